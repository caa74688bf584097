"""What lies in a directory, in order; nothing where there is none."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from operator import attrgetter
from pathlib import Path

from reput.format import names

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

    ``queue_id`` None stands for any queue of the topic. ``also`` are queues that are known, from the log for
    instance.
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


def entries_in(directory: str | os.PathLike[str], most: int | None = None) -> list[os.DirEntry[str]]:
    """What a directory holds, sorted by name; nothing where there is no directory, or a link to itself.

    With ``most``, so many are read, as the file system gives them. An OSError names the path.
    """
    try:
        with os.scandir(os.fspath(directory)) as found:
            entries = list(islice(found, most))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return []
    if len(entries) > 1:  # of many queues each has one file
        entries.sort(key=attrgetter("name"))
    return entries


def names_in(directory: str | os.PathLike[str], most: int | None = None) -> list[str]:
    """The names of :func:`entries_in`."""
    return [entry.name for entry in entries_in(directory, most)]


def names_seen(directory: str | os.PathLike[str], most: int | None = None) -> list[str]:
    """The names in a directory for who only has a look: none where it can't be read, either."""
    with suppress(OSError):
        return names_in(directory, most)
    return []


def topics_seen(directory: str | os.PathLike[str]) -> list[str]:
    """The names of topics in a directory such as ``consumequeue/``; empty if it can't be listed.

    Files aren't looked for, but where a RocksDB lies there as well.
    """
    found = names_seen(directory)
    if "CURRENT" not in found:
        return found
    return [name for name in found if os.path.isdir(os.path.join(directory, name))]  # noqa: PTH112, PTH118


def queues_in(directory: str | os.PathLike[str]) -> Iterator[tuple[str, int, str]]:
    """Topic, queueId and path of the queues that have a directory, such as ``consumequeue/TOPIC/3``, by name.

    Other names aren't a broker's, and are left out.
    """
    for topic in entries_in(directory):
        for queue in entries_in(topic.path):
            if names.is_queue_id(queue.name) and queue.is_dir():
                yield topic.name, int(queue.name), queue.path


# What a store holds that the commit log alone doesn't tell. reput leaves it as it is, and says so. The timer
# wheel (``timerWheelEnable``) and compacted topics (``cleanup.policy=COMPACTION``) follow from queues and
# from how far the broker has come with them. Source: ``TimerMessageStore.getTimerWheelPath``,
# ``getTimerLogPath``, ``CompactionStore`` (rocketmq-all-5.3.3).
TIMER_WHEEL = "timerwheel"
TIMER_LOG = "timerlog"
COMPACTION = "compaction"
#: A 5.x store makes ``compaction`` and what lies in it anyway; messages are here.
_COMPACTION_LOG = "compactionLog"
#: What a broker with tiered storage has moved elsewhere (``DefaultMetadataStore``, rocketmq-all-5.3.3).
TIERED = "config/tieredStoreMetadata.json"


def ignored_features(root: Path) -> list[str]:
    """What a store holds of this, by names below ``root``, sorted."""
    found = [name for name in (TIMER_LOG, TIMER_WHEEL, TIERED) if _holds_something(root / name)]
    if _holds_something(root / COMPACTION / _COMPACTION_LOG):
        found.append(COMPACTION)
    return sorted(found)


def _holds_something(path: Path) -> bool:
    try:
        return path.is_file() or any(path.iterdir())
    except OSError:  # not there, or not to be looked into
        return False
