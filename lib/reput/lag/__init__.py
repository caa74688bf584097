"""How far behind consumers are: what they committed, compared with queues and log. No Spark, no printing.

>>> report = lag(StoreSettings.load(store, broker_conf, version, dledger=True))  # doctest: +SKIP
>>> [(row.group, row.topic, row.queue_id, row.lag) for row in report.rows]       # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.lazily import lazily

if TYPE_CHECKING:
    from reput.lag.report import AgesTo, Flag, GroupLag, LagReport, QueueLag, lag

__all__ = [
    "AgesTo",
    "Flag",
    "GroupLag",
    "LagReport",
    "QueueLag",
    "lag",
]

# A shell's completion needs only the committed offsets.
__getattr__ = lazily(
    __name__,
    {
        "AgesTo": "report",
        "Flag": "report",
        "GroupLag": "report",
        "LagReport": "report",
        "QueueLag": "report",
        "lag": "report",
    },
)
