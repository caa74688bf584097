"""What is wrong with a store's queues and index, found the obvious way: place by place, entry by entry.

Nothing is shared with the code under test: what should be there comes from :mod:`tests.slow_rebuild`. The log
is sound, and its queues go on simply.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests import slow_rebuild
from tests.slow_rebuild import Index, Message, Queue, Settings

Unit = tuple[int, int, int]
ZERO, BLANK = (0, 0, 0), (0, 0x7FFFFFFF, 0)


@dataclass
class Wrong:
    """What is wrong.

    Attributes:
        units: (topic, queue id, queueOffset) to the kind.
        files: (kind, topic, queue id) of files that are missing, too short, or of a strange name.
        missing_keys: (physical offset, hash) of keys without an entry.
        entries: how many entries are of no key.
        chains: (kind, file's number, ordinal or slot).
        times: entries with a wrong timeDiff, (file's number, ordinal).
        header: numbers of files with a wrong header.
    """

    units: dict[tuple[str, int, int], str] = field(default_factory=dict)
    files: set[tuple[str, str, int]] = field(default_factory=set)
    missing_keys: Counter[tuple[int, int]] = field(default_factory=Counter)
    entries: int = 0
    chains: set[tuple[str, int, int]] = field(default_factory=set)
    times: set[tuple[int, int]] = field(default_factory=set)
    headers: set[int] = field(default_factory=set)
    batch: Counter[tuple[str, int, str]] = field(default_factory=Counter)


@dataclass(frozen=True)
class InOrder:
    """What of a store is written in log order; sizes in bytes."""

    ext_file_size: int | None = None
    batch_topics: frozenset[str] = frozenset()
    batch_file_size: int = 0


def verify(
    root: Path, segments: list[tuple[int, bytes]], settings: Settings, ordered: InOrder | None = None
) -> Wrong:
    """Everything that is wrong with a store whose log has these segments."""
    ordered = ordered or InOrder()
    queues: dict[tuple[str, int], Queue] = {}
    messages: list[Message] = []
    log_start = min(base for base, _ in segments)
    for base, data in sorted(segments):
        for message in slow_rebuild.read(base, data, settings):
            messages.append(message)
            if message.topic not in ordered.batch_topics:
                slow_rebuild.dispatch(message, queues, settings, [], from_zero=log_start == 0)
    wrong = Wrong()
    on_disk = {
        (topic.name, int(queue.name)): queue
        for topic in sorted((root / "consumequeue").glob("*"))
        for queue in sorted(topic.iterdir())
    }
    for name in sorted(queues.keys() | on_disk.keys()):
        _queue(wrong, name, queues.get(name), on_disk.get(name), log_start, settings.queue_file_size)
        if ordered.ext_file_size is not None:
            _records(wrong, root, name, queues.get(name), on_disk.get(name), messages, settings, ordered)
    _batch_queues(wrong, root, messages, segments, settings, ordered)
    if settings.index:
        _index(wrong, root, messages, log_start, settings)
    return wrong


def _queue(
    wrong: Wrong,
    name: tuple[str, int],
    queue: Queue | None,
    directory: Path | None,
    log_start: int,
    file_size: int,
) -> None:
    there = _units(wrong, name, directory, file_size)
    units = {} if queue is None else {place: _unit(unit) for place, unit in queue.units.items()}
    for place, expected in units.items():
        found = there.get(place, ZERO)
        if found == expected:
            continue
        if found[0] == expected[0] and found not in (ZERO, BLANK):
            wrong.units[(*name, place)] = "wrong-unit"
        elif any(unit[:2] == expected[:2] for unit in there.values()):
            wrong.units[*name, place] = "misplaced-unit"
        else:
            wrong.units[*name, place] = "missing-unit" if found in (ZERO, BLANK) else "wrong-unit"
    first, following = (1 << 62, 1 << 62) if queue is None else (queue.first, queue.next)
    written = [place for place, unit in there.items() if unit != ZERO]
    highest = -1
    begun = False
    for place, unit in sorted(there.items()):
        if place >= following:
            if unit != ZERO:
                wrong.units[*name, place] = "extra-unit"
        elif place < first:
            if unit == ZERO:
                if queue is not None or place < max(written, default=-1):
                    wrong.units[*name, place] = "missing-unit"
            elif unit == BLANK:
                if begun:
                    wrong.units[*name, place] = "missing-unit"
            else:
                begun = True
                expired = 0 <= unit[0] < log_start and unit[1] > 0
                if not expired or unit[0] < highest:
                    wrong.units[*name, place] = "extra-unit"
                if expired:
                    highest = max(highest, unit[0])


def _records(
    wrong: Wrong,
    root: Path,
    name: tuple[str, int],
    queue: Queue | None,
    directory: Path | None,
    messages: list[Message],
    settings: Settings,
    ordered: InOrder,
) -> None:
    """What the addresses in a queue's units lead to; without them all else has been looked at."""
    size = ordered.ext_file_size or 0
    files = _files(wrong, name, root / "consumequeue_ext" / name[0] / str(name[1]), size)
    if queue is None:
        return
    there = _units(Wrong(), name, directory, settings.queue_file_size)
    by_position = {message.position: message for message in messages}
    seen = set()
    for place, data in sorted(queue.units.items()):
        position, length, tags = _unit(data)
        found = there.get(place, ZERO)
        message = by_position[position]
        own = (message.topic, message.queue_id) == name and position not in seen
        seen.add(position)
        if not own or found[2] > -(2**31) - 1 or found[:2] != (position, length):
            continue
        wrong.units.pop((*name, place), None)  # an address in the place of the tagsCode
        at = found[2] + 2**63
        before = there.get(place - 1, ZERO)
        record = files.get(at - at % size, b"")[at % size :][:20]
        head = struct.unpack(">hqqh", record.ljust(20, b"\0"))
        if head[3] < 0 or head[0] != 20 + head[3] or at % size + head[0] > size:
            wrong.units[*name, place] = "dangling-address"
        elif head[1:3] != (tags, message.store_timestamp):
            wrong.units[*name, place] = "wrong-ext-unit"
        elif before[2] <= -(2**31) - 1 and before[1] > 0 and found[2] <= before[2] and before[0] != position:
            wrong.units[*name, place] = "unordered-address"


def _batch_queues(
    wrong: Wrong,
    root: Path,
    messages: list[Message],
    segments: list[tuple[int, bytes]],
    settings: Settings,
    ordered: InOrder,
) -> None:
    due: dict[tuple[str, int], dict[int, bytes]] = {}
    anew: dict[tuple[str, int], int] = {}
    for message in messages:
        if message.topic not in ordered.batch_topics:
            continue
        queues: dict[tuple[str, int], Queue] = {}
        slow_rebuild.dispatch(message, queues, settings, [])
        if (message.topic, message.queue_id) in queues:
            units = queues[message.topic, message.queue_id].units.values()
            position, size, tags = _unit(next(iter(units)))
            packed = struct.pack(
                ">qiqqqhii", position, size, tags, message.store_timestamp, message.queue_offset, 1, -1, 0
            )
            if message.queue_offset == 0 and (message.topic, message.queue_id) in due:
                anew[message.topic, message.queue_id] = position
            due.setdefault((message.topic, message.queue_id), {})[position] = packed
    start = min(base for base, _ in segments)
    end = max(base + len(data) for base, data in segments)
    on_disk = {
        (topic.name, int(queue.name)): queue
        for topic in sorted((root / "batchconsumequeue").glob("*"))
        for queue in sorted(topic.iterdir())
    }
    for name in sorted(due.keys() | on_disk.keys()):
        left = dict(due.get(name, {}))
        seen: set[int] = set()
        highest, zeros, least = -1, 0, end
        files = on_disk.get(name)
        for _, data in sorted(_files(wrong, name, files, ordered.batch_file_size).items()):
            for at in range(0, len(data) // 46 * 46, 46):
                unit = data[at : at + 46]
                if unit == bytes(46):
                    zeros += 1
                    continue
                wrong.batch[*name, "blank-unit"] += zeros
                zeros = 0
                (position,) = struct.unpack_from(">q", unit)
                least = min(least, position)
                if 0 <= position < end:
                    wrong.batch[*name, "unordered-unit"] += position < highest
                    highest = max(highest, position)
                if 0 <= position < start:
                    continue
                if position in left and position not in seen:
                    wrong.batch[*name, "wrong-unit"] += unit != left.pop(position)
                else:
                    wrong.batch[*name, "extra-unit"] += 1
                seen.add(position)
        # What a live broker dropped with the topic.
        before = anew.get(name, -1)
        gone = max((at for (topic, _), at in anew.items() if topic == name[0]), default=-1)
        if (files is None or not any(files.iterdir())) and gone > max(due.get(name, {}), default=gone):
            before = gone
        elif least < before:
            before = -1
        wrong.batch[*name, "missing-unit"] += sum(position >= before for position in left)
    wrong.batch = +wrong.batch


def _files(wrong: Wrong, name: tuple[str, int], directory: Path | None, size: int) -> dict[int, bytes]:
    """A directory's files by the number in their names, what counts of them."""
    found: dict[int, bytes] = {}
    for path in sorted(directory.iterdir()) if directory is not None and directory.is_dir() else []:
        if len(path.name) != 20 or int(path.name) % size:
            wrong.files.add(("queue-file-name", *name))
            continue
        data = path.read_bytes()
        if len(data) != size:
            wrong.files.add(("queue-file-length", *name))
        if found and max(found) + size < int(path.name):
            wrong.files.add(("queue-file-missing", *name))
        found[int(path.name)] = data[:size]
    return found


def _units(wrong: Wrong, name: tuple[str, int], directory: Path | None, file_size: int) -> dict[int, Unit]:
    """What is in a queue's files, by queueOffset."""
    found: dict[int, Unit] = {}
    last = -1
    for path in sorted(directory.iterdir()) if directory is not None else []:
        if path.is_dir():
            wrong.files.add(("queue-stray-directory", *name))
            continue
        if len(path.name) != 20 or int(path.name) % file_size:
            wrong.files.add(("queue-file-name", *name))
            continue
        start = int(path.name)
        data = path.read_bytes()
        if len(data) != file_size:
            wrong.files.add(("queue-file-length", *name))
        if 0 <= last < start:
            wrong.files.add(("queue-file-missing", *name))
        last = start + file_size
        for at in range(0, min(len(data), file_size) // 20 * 20, 20):
            found[(start + at) // 20] = _unit(data[at : at + 20])
    return found


def _unit(data: bytes) -> Unit:
    position, size, tags = struct.unpack(">qiq", data)
    return position, size, tags


def _index(wrong: Wrong, root: Path, messages: list[Message], log_start: int, settings: Settings) -> None:
    index = Index(settings)
    for message in messages:
        index.build(message)
    due: Counter[tuple[int, int]] = Counter()
    times: dict[int, int] = {message.position: message.store_timestamp for message in messages}
    for file in index.all_files:
        for entry in file.entries:
            key_hash, position = struct.unpack_from(">iq", entry)
            due[position, key_hash] += 1
    left = due.copy()
    previous_end = -1
    for number, path in enumerate(sorted((root / "index").glob("*"))):
        data = path.read_bytes()
        begin, end, _, _, slot_count, count = struct.unpack_from(">qqqqii", data)
        first = 40 + 4 * settings.slots
        slots: dict[int, int] = {}
        last = max(min(count, settings.entries, (len(data) - first) // 20), 1)
        if not 0 <= count <= settings.entries:
            wrong.headers.add(number)
        for ordinal in range(1, last):
            key_hash, position, seconds, previous = struct.unpack_from(">iqii", data, first + 20 * ordinal)
            if key_hash < 0:
                wrong.chains.add(("index-hash", number, ordinal))
            else:
                expected = slots.get(key_hash % settings.slots, 0)
                if previous != expected:
                    kind = "index-cycle" if previous >= ordinal else "index-chain"
                    wrong.chains.add((kind, number, ordinal))
                slots[key_hash % settings.slots] = ordinal
            if 0 <= position < log_start:
                continue
            if not left[position, key_hash]:
                wrong.entries += 1
                continue
            left[position, key_hash] -= 1
            time, against = times[position], begin if ordinal > 1 else previous_end
            if ordinal == 1 and previous_end < 0:
                continue
            difference = slow_rebuild.long(time - against)
            right = min(max(difference // 1000, 0), 2**31 - 1) if against > 0 else 0
            if seconds != right:
                wrong.times.add((number, ordinal))
        for slot in range(settings.slots):
            (stored,) = struct.unpack_from(">i", data, 40 + 4 * slot)
            if stored != slots.get(slot, 0):
                wrong.chains.add(("index-slot", number, slot))
        if not len(slots) <= slot_count <= max(last - 1, 0):  # the ways of two releases, one after the other
            wrong.headers.add(number)
        previous_end = end
    wrong.missing_keys = +left
