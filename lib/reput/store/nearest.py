"""For a topic, queue or group that isn't there, the one that may have been meant."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from reput.format import names
from reput.store.listing import names_seen, topics_seen

#: Names that are compared: more take seconds.
_MOST = 20_000


def nearest(asked: str, known: Collection[str]) -> str | None:
    """The known name that is most like one that isn't known; None for a known one, or if none is like it."""
    if asked in known:
        return None
    by_lower = {name.lower(): name for name in islice(known, _MOST)}
    found = get_close_matches(asked.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def nearest_of(root: Path, asked: Iterable[tuple[str, int | None]]) -> str | None:
    """As :func:`nearest_queue`, for the first of several topics or queues that a store doesn't have."""
    return next(filter(None, (nearest_queue(root, *one) for one in asked)), None)


def nearest_queue(
    root: Path, topic: str, queue_id: int | None = None, also: Iterable[tuple[str, int | None]] = ()
) -> str | None:
    """``TOPIC`` or ``TOPIC:ID`` of a store's queues, for one that has no directory there.

    Args:
        root: the store.
        topic, queue_id: what was asked for; None for any queue of the topic.
        also: more topics and queues that are known, from the log for instance.
    """
    also = [*also]
    places = [root / kind for kind in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)]
    topics = {name for place in places for name in topics_seen(place)} | {name for name, _ in also}
    meant = nearest(topic, topics)
    if queue_id is None or (meant is None and topic not in topics):
        return meant
    found = names_seen(places[0] / (meant or topic)) + names_seen(places[1] / (meant or topic))
    ids = [int(name) for name in found if names.is_queue_id(name)]
    ids += [number for name, number in also if name == (meant or topic) and number is not None]
    if meant is None and queue_id in ids:
        return None
    closest = min(ids, key=lambda number: abs(number - queue_id), default=None)
    return meant if closest is None else f"{meant or topic}:{closest}"
