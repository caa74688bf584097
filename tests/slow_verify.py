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


def verify(root: Path, segments: list[tuple[int, bytes]], settings: Settings) -> Wrong:
    """Everything that is wrong with a store whose log has these segments."""
    queues: dict[tuple[str, int], Queue] = {}
    messages: list[Message] = []
    for base, data in sorted(segments):
        for message in slow_rebuild.read(base, data, settings):
            messages.append(message)
            slow_rebuild.dispatch(message, queues, settings, [])
    wrong = Wrong()
    on_disk = {
        (topic.name, int(queue.name)): queue
        for topic in sorted((root / "consumequeue").glob("*"))
        for queue in sorted(topic.iterdir())
    }
    log_start = min(base for base, _ in segments)
    for name in sorted(queues.keys() | on_disk.keys()):
        _queue(wrong, name, queues.get(name), on_disk.get(name), log_start, settings.queue_file_size)
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
            wrong.units[*name, place] = "wrong-unit"
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
            right = min(max((time - against) // 1000, 0), 2**31 - 1) if against > 0 else 0
            if seconds != right:
                wrong.times.add((number, ordinal))
        for slot in range(settings.slots):
            (stored,) = struct.unpack_from(">i", data, 40 + 4 * slot)
            if stored != slots.get(slot, 0):
                wrong.chains.add(("index-slot", number, slot))
        if slot_count != len(slots):
            wrong.headers.add(number)
        previous_end = end
    wrong.missing_keys = +left
