"""What the newest units of some queues say of switches: consumequeue_ext and light message queues.

A unit's tagsCode that low is an address in consumequeue_ext (``ConsumeQueueExt.isExtAddr``), and nothing
else is that small. A unit that leads to a message of another topic is that of a light queue, if the message
names the queue (``ConsumeQueue.multiDispatchLmqQueue``, 4.9.7; ``MultiDispatchUtils``, 5.3.3): a topic's name
alone proves nothing, for a producer may send to one that is named so.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.config.evidence.log import LogRecords
from reput.format import commitlog, consumequeueext, names, properties
from reput.format.consumequeue import UNIT_LENGTH
from reput.store.listing import names_seen
from reput.store.reading import pread, reading

#: Queues that are looked at, of light queues and of others; names in a directory; bytes of a file's end.
_MOST_QUEUES, _MOST_NAMES, _MOST_READ, _CHUNK = 32, 100_000, 8 << 20, 64 << 10


@dataclass(frozen=True, slots=True)
class Switches:
    """What units show of switches; None where they show nothing."""

    queue_ext: bool | None = None  # ``enableConsumeQueueExt``: newest units are addresses; true or not shown
    bit_maps: bool | None = None  # ``enableCalcFilterBitMap``: what lies there has bit maps
    multi_dispatch: bool | None = None  # ``enableMultiDispatch``: true or not shown
    #: ``enableLmq``: the ids of light queues are 0 whatever the messages' own, or are these
    lmq: bool | None = None
    why: str = ""  # a light queue, in words


def switches(root: Path, log: LogRecords) -> Switches:
    """Look at the newest units of some queues; never raises."""
    addresses = 0
    multi = lmq = None
    why = ""
    for topic, queue_id, directory in _some_queues(root / names.CONSUME_QUEUE):
        unit = _last_unit(directory)
        if unit is None:
            continue
        place, _, tags_code = unit
        addresses += tags_code <= consumequeueext.MAX_ADDRESS
        name = os.fsencode(topic)
        record = log.at(place)
        named = record and record.properties.get(properties.INNER_MULTI_DISPATCH, b"").split(b",")
        if record is None or record.topic == name or not named or name not in named:
            continue
        multi, why = (
            True,
            why or f"{names.CONSUME_QUEUE}/{topic}/{queue_id} leads to a message of another topic",
        )
        if name.startswith(commitlog.LMQ_PREFIX) and lmq is None and record.queue_id:
            lmq = queue_id == 0
    # Plain units may be older than the switch.
    ext = True if addresses else None
    return Switches(ext, _bit_maps(root) if ext else None, multi, lmq, why)


def _some_queues(directory: Path) -> Iterator[tuple[str, int, Path]]:
    """A queue of each of some topics, light ones and others."""
    for topic in chosen(names_seen(directory, _MOST_NAMES)):
        queues = sorted(
            (int(name) for name in names_seen(directory / topic, _MOST_NAMES) if names.is_queue_id(name)),
            reverse=True,
        )
        if queues:
            yield topic, queues[0], directory / topic / str(queues[0])


def chosen(topics: list[str]) -> list[str]:
    """The topics of which a queue is looked at, that with the highest id."""
    prefix = commitlog.LMQ_PREFIX.decode()
    light = [topic for topic in topics if topic.startswith(prefix)]
    others = [topic for topic in topics if not topic.startswith(prefix)]
    return [*_spread(light), *_spread(others)]


def _spread(found: list[str]) -> list[str]:
    return found[:: max(1, -(-len(found) // _MOST_QUEUES))]


def _last_unit(queue: Path) -> tuple[int, int, int] | None:
    """The last unit of a queue that leads to a message; None where none is found."""
    for name in reversed(
        [name for name in names_seen(queue, _MOST_NAMES) if names.parse_offset_name(name) is not None][-2:]
    ):
        try:
            with reading(queue / name, by_ranges=True) as descriptor:
                unit = _last_of_file(queue / name, descriptor)
        except (OSError, ValueError, struct.error):
            return None
        if unit is not None:
            return unit
    return None


def _last_of_file(path: Path, descriptor: int) -> tuple[int, int, int] | None:
    end = os.fstat(descriptor).st_size // UNIT_LENGTH * UNIT_LENGTH
    chunk = _CHUNK // UNIT_LENGTH * UNIT_LENGTH
    blank = bytes(chunk)
    for stop in range(end, max(end - _MOST_READ, 0), -chunk):
        start = max(stop - chunk, 0)
        data = pread(path, descriptor, stop - start, start)
        if blank.startswith(data):  # as most are; rstrip takes thirty times as long
            continue
        written = len(data.rstrip(b"\0"))
        at = (written - 1) // UNIT_LENGTH * UNIT_LENGTH
        import numpy as np

        from reput.format.dtypes import UNIT_DTYPE, UnitKind, classify

        unit = np.frombuffer(data.ljust(at + UNIT_LENGTH, b"\0"), UNIT_DTYPE, 1, at)
        place, size, tags_code = unit[0].tolist()
        return (place, size, tags_code) if classify(unit)[0] == UnitKind.MESSAGE else None
    return None


def _bit_maps(root: Path) -> bool | None:
    """Whether units in consumequeue_ext have bit maps; None where none is found."""
    directory, found = root / names.CONSUME_QUEUE_EXT, None
    for _, _, queue in _some_queues(directory):
        for name in names_seen(queue, _MOST_NAMES)[-1:]:
            try:
                with reading(queue / name) as descriptor:
                    size, _, _, bits = consumequeueext.HEAD.unpack(
                        os.pread(descriptor, consumequeueext.HEAD.size, 0)
                    )
            except (OSError, struct.error):
                continue
            if size >= consumequeueext.HEAD.size:
                found = bool(found) or bits > 0
    return found
