"""What a start made of a damaged store, counted against what the live broker had written before the damage.

Nothing of reput judges here: the log, the units and the index entries of the undamaged store are the measure,
and a message has survived when each of its bytes is where it was.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass
from pathlib import Path

from reput.format import names
from reput.format.consumequeue import UNIT, UNIT_LENGTH
from reput.format.indexfile import HEADER_LENGTH, IndexHeader
from tests.compat.damage import Copy
from tests.compat.starts import CONFIG, SEGMENT, Seen

_SLOTS = int(str(CONFIG["maxHashSlotNum"]))
_MOST_ENTRIES = int(str(CONFIG["maxIndexNum"]))
SAFETY_MS = 3000
_ENTRY = struct.Struct(">iqii")

#: A unit: physical offset, bytes, tagsCode.
Unit = tuple[int, int, int]
#: Topic and queue id.
Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Written:
    """A store as its broker left it, undamaged.

    Attributes:
        records: bytes and storeTimestamp of each message, by physical offset.
        units: by queue and queueOffset.
        keys: hashes of each message's index keys, by physical offset.
    """

    records: dict[int, tuple[bytes, int]]
    units: dict[Queue, dict[int, Unit]]
    keys: dict[int, set[int]]

    @classmethod
    def of(cls, copy: Copy) -> Written:
        """What a store holds."""
        records = {}
        for record in copy.records():
            data = record.segment.read_bytes()[record.position : record.position + record.size]
            records[record.offset] = data, record.timestamp
        units: dict[Queue, dict[int, Unit]] = {}
        for path in sorted((copy.root / names.CONSUME_QUEUE).glob("*/*/*")):
            queue = path.parts[-3], int(path.parts[-2])
            found = UNIT.iter_unpack(path.read_bytes())
            first = int(path.name) // UNIT_LENGTH
            whole = {first + n: unit for n, unit in enumerate(found) if unit[0] in records and unit[1] > 0}
            units.setdefault(queue, {}).update(whole)
        keys: dict[int, set[int]] = {}
        for key, position in _entries(copy.index()):
            keys.setdefault(position, set()).add(key)
        return cls(records, units, keys)

    def survivors(self, root: Path) -> set[int]:
        """Physical offsets of the messages of which a damaged copy has every byte in its place."""
        log = root / names.COMMIT_LOG
        held = {path.name: path.read_bytes() for path in log.iterdir() if path.is_file()}
        found = set()
        for offset, (data, _) in self.records.items():
            at = offset % SEGMENT
            if held.get(names.offset_name(offset - at), b"")[at : at + len(data)] == data:
                found.add(offset)
        return found


@dataclass(slots=True)
class Outcome:
    """What became of the messages that had survived the damage.

    Attributes:
        starts: the broker started.
        why: why it didn't.
        cut: messages that the log doesn't have any more.
        missing: messages in the log that no unit of their queue leads to.
        displaced: messages that stand in other places of their queue than their own.
        hashed: delayed messages whose unit says another time.
        dangling: units that lead to no whole message of their queue; those of expired ones don't count.
        repeated: places of a queue that lead to a message which stands in its own place, too.
        keys: keys of messages in the log that the index doesn't lead to.
        stale_keys: index entries that lead to no message; those of expired ones don't count.
        index_ahead: the index ends past the log: new messages will not be indexed for a while.
        checkpoint_ahead: the checkpoint lies past the log's last message, its times by more than the 3 s that
            a start takes off.
    """

    starts: bool
    why: str = ""
    cut: int = 0
    missing: int = 0
    displaced: int = 0
    hashed: int = 0
    dangling: int = 0
    repeated: int = 0
    keys: int = 0
    stale_keys: int = 0
    index_ahead: bool = False
    checkpoint_ahead: bool = False

    @property
    def sound(self) -> bool:
        """It started, and all that survived is there, and nothing else."""
        return asdict(self) == asdict(Outcome(starts=True))


def outcome(written: Written, survivors: set[int], seen: Seen, root: Path, why: str) -> Outcome:
    """Count.

    Args:
        written: the store before the damage.
        survivors: what the damage left of its messages.
        seen: the running store.
        root: its directory.
        why: why it didn't start, if it didn't.
    """
    if not seen.starts:
        return Outcome(starts=False, why=why)
    start, end = seen.log
    there = {offset for offset in survivors if start <= offset < end}
    found = Outcome(starts=True, cut=len(survivors - there))
    for queue in sorted({*written.units, *seen.units}):
        _count_queue(found, written.units.get(queue, {}), _held(seen, queue), there, start)
    entries = _entries([root / names.INDEX / name for name, _ in seen.index if name is not None])
    indexed = set(entries)
    for offset in there:
        found.keys += sum((key, offset) not in indexed for key in written.keys.get(offset, ()))
    found.stale_keys = sum(position >= start and position not in there for _, position in entries)
    found.index_ahead = any(header.end_physical_offset > end for _, header in seen.index)
    last = max((written.records[offset][1] for offset in there), default=0)
    checkpoint = seen.checkpoint
    times = checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp
    found.checkpoint_ahead = max(times) > last + SAFETY_MS or checkpoint.logics_physical_offset > end
    return found


def _held(seen: Seen, queue: Queue) -> dict[int, Unit]:
    """The units that consumers get, by queueOffset."""
    if not seen.files.get(queue):
        return {}
    low, high = seen.queues[queue]
    first = int(seen.files[queue][0]) // UNIT_LENGTH
    units = enumerate(UNIT.iter_unpack(seen.units[queue]), first)
    return {place: unit for place, unit in units if low <= place < high}


def _count_queue(
    found: Outcome, right: dict[int, Unit], held: dict[int, Unit], there: set[int], start: int
) -> None:
    reached = {unit[0] for unit in held.values()}
    own = set()
    for place, unit in right.items():
        if unit[0] not in there:
            continue
        is_there = held.get(place)
        if is_there is not None and is_there[:2] == unit[:2]:
            own.add(unit[0])
            found.hashed += is_there[2] != unit[2]
        elif unit[0] in reached:
            found.displaced += 1
        else:
            found.missing += 1
    known = {unit[0] for unit in right.values()} & there
    for place, unit in held.items():
        if unit[0] not in known:
            found.dangling += unit[0] >= start or unit == (0, 0, 0)
        elif unit[0] in own and right.get(place, (-1,))[0] != unit[0]:
            found.repeated += 1


def _entries(files: list[Path]) -> list[tuple[int, int]]:
    """(hash, physical offset) of all entries that the slots of index files lead to."""
    found = []
    for path in files:
        data = path.read_bytes().ljust(HEADER_LENGTH + 4 * _SLOTS + _ENTRY.size * _MOST_ENTRIES, b"\0")
        count = IndexHeader.decode(data).index_count
        for (slot,) in struct.iter_unpack(">i", data[HEADER_LENGTH : HEADER_LENGTH + 4 * _SLOTS]):
            passed: set[int] = set()
            while 0 < slot <= count and slot not in passed:
                passed.add(slot)
                key, position, _, before = _ENTRY.unpack_from(
                    data, HEADER_LENGTH + 4 * _SLOTS + _ENTRY.size * slot
                )
                found.append((key, position))
                slot = before
    return found
