"""reput: what an Apache RocketMQ broker derives from its commit log, rebuilt with Spark, byte for byte.

>>> import reput
>>> store = reput.open("/data/store")  # doctest: +SKIP
>>> store.check().verdict.text         # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.lazily import lazily

if TYPE_CHECKING:
    from reput.api import Store, mend, open, rebuild  # noqa: A004 - reput.open, as gzip.open
    from reput.errors import ReputError
    from reput.spark.sessions import session

__version__ = "2.0.0"

__all__ = ["ReputError", "Store", "mend", "open", "rebuild", "session"]

__getattr__ = lazily(
    __name__,
    {
        "ReputError": "errors",
        "Store": "api",
        "mend": "api",
        "open": "api",
        "rebuild": "api",
        "session": "spark.sessions",
    },
)
