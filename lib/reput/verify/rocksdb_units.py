"""What a range of queues has in a database, against what a rebuild would put there: one task a share.

Keys are read in their order beside the expected ones, so that a task holds its share of the log's units and a
block of the database, however many keys there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reput.build.placement import Breaks
from reput.build.rocksdb_units import unpack
from reput.errors import Finding, UnsupportedError
from reput.format.rocksdbqueue import UNIT_LENGTH, UNITS, Unit, UnitKey, parse_unit, parse_unit_key
from reput.newer_python import Self
from reput.output.rocksdb.queue_task import Ends, Placed, Share, placed
from reput.replay.runner import Runner
from reput.replay.target import Target
from reput.rocksdb import Database, opened
from reput.verify.units import EXTRA, MISSING, WRONG, QueueRange, add_ranges, pieces

if TYPE_CHECKING:
    from reput.verify.plan import Plan

_AT_ONCE = 1 << 16  # units
_Entries = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class StoredRange(QueueRange):
    """Units of one queue in a database that differ in one way.

    Attributes:
        kind: MISSING, WRONG or EXTRA.
        field: what is wrong, where the kind is WRONG: fields' names, "message", or "length".
        expected: what the log says of ``first``; None for EXTRA.
        found: what is there; None for MISSING. Bytes that no broker writes are as they are.
    """

    expected: Unit | None
    found: Unit | bytes | None


@dataclass(slots=True)
class QueueStored:
    """What differs of one queue.

    Attributes:
        ranges: what differs, ascending.
        missing: how many units the database lacks.
        others: how many keys of the queue the log has no message for.
        pending: units that the database lacks, since the broker hadn't flushed them.
        repeated: units of another message with the same queueOffset.
    """

    ranges: list[StoredRange] = field(default_factory=list)
    missing: int = 0
    others: int = 0
    pending: int = 0
    repeated: int = 0

    def add(self, other: QueueStored) -> None:
        """Take in what came of places further on."""
        add_ranges(self.ranges, other.ranges)
        self.missing += other.missing
        self.others += other.others
        self.pending += other.pending
        self.repeated += other.repeated


@dataclass(slots=True)
class ShareChecked:
    """What came of a share.

    Attributes:
        units: of the log.
        ends: the ends of the log's queues; None without any.
        end: physical offset after the last message, -1 without one.
        findings: what is odd about the log's queues; ``path`` of each is empty.
        queues: what differs, by topic and queueId.
        foreign: keys that no broker writes, some of them; ``foreign_count`` is of all.
        expired: units of messages that have expired.
        beyond: units past the end of the log that was looked at, which a live broker has added.
    """

    units: int = 0
    ends: Ends | None = None
    end: int = -1
    findings: list[Finding] = field(default_factory=list)
    queues: dict[tuple[bytes, int], QueueStored] = field(default_factory=dict)
    foreign: list[bytes] = field(default_factory=list)
    foreign_count: int = 0
    expired: int = 0
    beyond: int = 0


#: Foreign keys that are listed one by one.
_MOST_FOREIGN = 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """What of the log a database is compared with.

    Attributes:
        start: physical offset where the log begins.
        live_end: where a broker writes meanwhile, the physical offset up to which the log was looked at.
        flushed: physical offset from which on the database needn't have anything, since a start dispatches it
            again; None where it has to have all.
    """

    start: int
    live_end: int | None
    flushed: int | None

    @classmethod
    def of(cls, plan: Plan, marked: int) -> Self:
        """Those of a verification.

        Args:
            marked: physical offset up to which the database has all, by its own mark.
        """
        again = plan.running or plan.crashed
        return cls(plan.log.start, plan.end if plan.running else None, marked if again else None)


@dataclass(frozen=True, slots=True)
class ShareTask:
    """Compare a share's units with the database's keys from ``first`` on and before ``stop``.

    Attributes:
        database: where it was caught.
        named: where it is in the store.
        runs: units of the log, in log order.
        breaks: where the log isn't whole.
        from_zero: the log begins at physical offset 0: nothing of it has expired.
        share: its queues; None where the log has none.
    """

    target: Target
    database: Path
    named: Path
    runs: tuple[str, ...]
    breaks: Breaks
    from_zero: bool
    bounds: Bounds
    share: Share | None
    first: bytes
    stop: bytes | None

    def __call__(self) -> ShareChecked:
        """Compare."""
        expected = None
        if self.share is not None:
            expected = placed(self.target, self.share, self.runs, self.breaks, from_zero=self.from_zero)
        with opened(self.database, named=self.named) as database:
            compared = _Comparison(self.bounds, expected)
            for block, first, stop in _with_bounds(expected, self.first, self.stop):
                compared.look(database, block, first, stop)
        done = compared.done
        if expected is not None:
            done.units, done.end = len(expected.row), expected.end
            done.ends, done.findings = expected.ends(), expected.findings
        return done


def refuse_other_hosts(runner: Runner, directory: Path) -> None:
    """See that all tasks run where a database was caught.

    Raises:
        UnsupportedError: they don't.
    """
    if not runner.is_local:
        raise UnsupportedError(
            "a database is compared on one host, which holds it still for all tasks",
            path=directory,
            expected="--master local[*]",
            found="tasks on other hosts",
            next_step="Run this on the store's host, or name the store with its host: HOST:/PATH",
        )


def _with_bounds(
    expected: Placed | None, first: bytes, stop: bytes | None
) -> Iterator[tuple[NDArray[np.uint8] | None, bytes, bytes | None]]:
    """Blocks of what is expected, each with the range of keys up to the next one."""
    blocks: Iterable[NDArray[np.uint8] | None] = () if expected is None else expected.blocks(_AT_ONCE)
    here = first
    for block, following in pairwise(_ended(blocks)):
        end = stop if following is None else _keys(following[:1])[0]
        yield block, here, end
        here = end or b""
    if expected is None:
        yield None, first, stop


def _ended(blocks: Iterable[Any]) -> Iterator[Any]:
    yield from blocks
    yield None


def _keys(block: NDArray[np.uint8]) -> list[bytes]:
    width = block.shape[1] - UNIT_LENGTH
    text = np.ascontiguousarray(block[:, :width]).tobytes()
    return [text[at : at + width] for at in range(0, len(text), width)]


def _values(block: NDArray[np.uint8]) -> list[bytes]:
    text = np.ascontiguousarray(block[:, -UNIT_LENGTH:]).tobytes()
    return [text[at : at + UNIT_LENGTH] for at in range(0, len(text), UNIT_LENGTH)]


def _is_same(block: NDArray[np.uint8], keys: Sequence[bytes], values: Sequence[bytes]) -> bool:
    """Whether a database's keys and values are those of a block; fast where they are."""
    width = block.shape[1] - UNIT_LENGTH
    if len(keys) != len(block) or set(map(len, keys)) != {width} or set(map(len, values)) != {UNIT_LENGTH}:
        return False
    found = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, width)
    if not np.array_equal(found, block[:, :width]):
        return False
    data = np.frombuffer(b"".join(values), np.uint8).reshape(-1, UNIT_LENGTH)
    return np.array_equal(data, block[:, width:])


class _Comparison:
    def __init__(self, bounds: Bounds, expected: Placed | None) -> None:
        self._bounds = bounds
        self._expected = expected
        self._numbers: dict[bytes, int] = {}
        self._first: dict[bytes, int] = {}
        if expected is not None:
            self._numbers = {prefix: number for number, prefix in enumerate(expected.prefixes)}
            ends = expected.ends()
            self._first = dict(zip(ends.prefixes, ends.first[:, 1].tolist(), strict=True))
        self.done = ShareChecked()

    def look(
        self, database: Database, block: NDArray[np.uint8] | None, first: bytes, stop: bytes | None
    ) -> None:
        """Compare a block with the keys of [first, stop)."""
        found = database.blocks(UNITS, first, stop, most=_AT_ONCE + 1)
        if block is None:
            for keys, values in found:
                self._odd(dict(zip(keys, values, strict=True)), {})
            return
        pending: tuple[Sequence[bytes], Sequence[bytes]] = next(found, ((), ()))
        if _is_same(block, *pending) and next(found, None) is None:
            return
        expected = dict(zip(_keys(block), _values(block), strict=True))
        missing = expected.keys() - set(pending[0])
        self._odd(dict(zip(*pending, strict=True)), expected)
        for keys, values in found:
            missing -= set(keys)
            self._odd(dict(zip(keys, values, strict=True)), expected)
        self._missing(block, missing)

    def _missing(self, block: NDArray[np.uint8], missing: set[bytes]) -> None:
        if not missing:
            return
        rows = np.flatnonzero([key in missing for key in _keys(block)])
        prefixes, units = unpack(block[rows])
        changes = np.any(prefixes[1:] != prefixes[:-1], axis=1)
        for group in np.split(np.arange(len(rows)), np.flatnonzero(changes) + 1):
            queue = self._queue(parse_unit_key(prefixes[group[0]].tobytes() + bytes(8)))
            if self._bounds.flushed is not None:
                late = units.position[group] >= self._bounds.flushed
                queue.pending += int(late.sum())
                group = group[~late]
            queue.missing += len(group)
            for piece in pieces(group, units.offset[group], len(group)):
                offset = units.offset[piece]
                row = int(piece[0])
                wanted = Unit(*(int(column[row]) for column in units[2:]))
                first = int(offset[0])
                add_ranges(
                    queue.ranges,
                    [StoredRange(MISSING, None, first, int(offset[-1]) + 1, len(piece), wanted, None)],
                )

    def _odd(self, found: _Entries, expected: _Entries) -> None:
        """Look at what isn't as it is expected."""
        for text, value in sorted(found.items() - expected.items()):
            key, unit = parse_unit_key(text), parse_unit(value)
            if key is None:
                self.done.foreign_count += 1
                if len(self.done.foreign) < _MOST_FOREIGN:
                    self.done.foreign.append(text)
                continue
            right = expected.get(text)
            if right is not None:
                self._wrong(key, text[:-8], Unit(*(parse_unit(right) or (0, 0, 0, 0))), unit, value)
            elif unit is None or not self._is_let_be(key, text[:-8], unit):
                queue = self._queue(key)
                queue.others += 1
                add_ranges(queue.ranges, [StoredRange(EXTRA, None, *_at(key), None, unit or value)])

    def _is_let_be(self, key: UnitKey, prefix: bytes, unit: Unit) -> bool:
        bounds = self._bounds
        if bounds.live_end is not None and unit.position >= bounds.live_end:
            self.done.beyond += 1
            return True
        first = self._first.get(prefix)
        before = key.queue_offset >= 0 and (first is None or key.queue_offset < first)
        if before and unit.size > 0 and 0 <= unit.position < bounds.start:
            self.done.expired += 1
            return True
        return False

    def _wrong(self, key: UnitKey, prefix: bytes, right: Unit, unit: Unit | None, value: bytes) -> None:
        queue = self._queue(key)
        if unit is not None and self._expected is not None:
            number = self._numbers[prefix]
            if any(unit == other for other in self._expected.others(number, key.queue_offset)):
                queue.repeated += 1
                return
            if self._bounds.live_end is not None and unit.position >= self._bounds.live_end:
                self.done.beyond += 1
                return
        add_ranges(queue.ranges, [StoredRange(WRONG, _field(right, unit), *_at(key), right, unit or value)])

    def _queue(self, key: UnitKey | None) -> QueueStored:
        queue = (b"", 0) if key is None else (key.topic, key.queue_id)
        return self.done.queues.setdefault(queue, QueueStored())


def _at(key: UnitKey) -> tuple[int, int, int]:
    return key.queue_offset, key.queue_offset + 1, 1


def _field(right: Unit, unit: Unit | None) -> str:
    """What is wrong with a unit that is there."""
    if unit is None:
        return "length"
    if unit.position != right.position:
        return "message"
    names = {"size": "size", "tags": "tagsCode", "timestamp": "storeTimestamp"}
    return " and ".join(said for name, said in names.items() if getattr(unit, name) != getattr(right, name))
