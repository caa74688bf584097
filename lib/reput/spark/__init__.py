"""Spark as reput needs it: its session, its workers, and what they prove of the hosts that they run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.lazily import lazily

if TYPE_CHECKING:
    from reput.spark.sessions import session

__all__ = ["session"]

# Other modules of this package are used by processes that need no session.
__getattr__ = lazily(__name__, {"session": "sessions"})
