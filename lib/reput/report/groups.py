"""How far behind consumers are, as :mod:`reput.lag` says."""

from __future__ import annotations

from collections.abc import Callable

from reput.config.settings import StoreSettings
from reput.lag import Flag, lag
from reput.report.facts import GroupLag

_WORDS = {
    Flag.EXPIRED: "messages expired unread",
    Flag.PAST_END: "offset past the queue's end",
    Flag.NO_QUEUE: "no such queue",
    Flag.UNREADABLE: "next message can't be read",
    Flag.NOT_COMMITTED: "never committed",
}


def group_lag(settings: StoreSettings, say: Callable[[str], None], now: int) -> list[GroupLag]:
    """A row for each group and topic, the greatest lag first.

    Args:
        now: the moment of the report, ms.

    Raises:
        ReputError: there are no committed offsets, or they or the queues can't be read.
    """
    say("looking at consumers")
    return [
        GroupLag(
            group=one.group,
            topic=one.topic,
            queues=one.queues,
            lag=one.lag,
            expired=one.expired,
            oldest_stored=one.oldest_stored,
            notes=tuple(
                f"{_WORDS.get(flag, str(flag))}: {number:,} of {one.queues:,} queues"
                for flag, number in one.flags.items()
            ),
        )
        for one in lag(settings, now=now).groups
    ]
