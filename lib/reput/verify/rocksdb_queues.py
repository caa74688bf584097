"""Queues in RocksDB: units and ends in their database against the log, or against another store's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reput.build.placement import Breaks
from reput.build.rocksdb import unpack
from reput.derived.rocksdb import stored_ends
from reput.errors import Finding
from reput.format import rocksdbqueue
from reput.format.commitlog import LMQ_PREFIX, SCHEDULE_TOPIC
from reput.format.names import Queue, QueueBytes, one_byte_apart
from reput.format.rocksdbqueue import (
    CHECKPOINT_KEY,
    MAX,
    OFFSETS,
    UNIT_LENGTH,
    UNITS,
    QueueEnd,
    Unit,
    UnitKey,
    parse_unit,
    parse_unit_key,
)
from reput.output.databases import Ends, Placed, Share, Totals, placed, shares_of, totals_of
from reput.replay.altered import Row, altered_message
from reput.replay.runner import Runner
from reput.replay.target import Selection, Target
from reput.rocksdb import CURRENT, Database, is_database, opened
from reput.rocksdb.snapshot import caught
from reput.store.system import check_free
from reput.verify.databases import (
    RANGES_A_SLOT,
    Bounds,
    DatabaseCheck,
    KeyBlocks,
    differing_keys,
    lacking,
    odd_keys,
    refuse_other_hosts,
)
from reput.verify.explain import DELAY_LEVELS, LOG_DAMAGED, Explainer, of_range
from reput.verify.plan import Plan, no_such_queue
from reput.verify.report import (
    CHECKPOINT,
    QUEUE,
    Difference,
    Note,
    Report,
    of_two,
    which_of_two,
)
from reput.verify.units import EXTRA, MISSING, WRONG, AnyUnit, Range, add_ranges, pieces
from reput.verify.units import Unit as PlainUnit
from reput.verify.waves import in_waves

if TYPE_CHECKING:
    from reput.verify.plan import Pair
    from reput.verify.run import LogRead
    from reput.verify.tasks import PartChecked

_AT_ONCE = 1 << 16  # units
_ROW_BYTES = 40  # of a unit on its way
_MOST_ALTERED = 64  # units of messages that may have been altered, which are looked at
_FOREIGN = 16  # keys that no broker writes and that are kept


@dataclass(slots=True)
class ShareChecked:
    """What came of a share."""

    units: int = 0  # of the log
    ends: Ends | None = None  # the ends of the log's queues; None without any
    end: int = -1  # physical offset after the last message, -1 without one
    findings: list[Finding] = field(default_factory=list)  # about the log's queues; ``path`` is empty
    queues: dict[QueueBytes, list[Range]] = field(default_factory=dict)  # what differs, by queue
    foreign: list[bytes] = field(default_factory=list)  # keys that no broker writes, some of them
    foreign_count: int = 0
    expired: int = 0  # units of messages that have expired
    pending: int = 0  # units that the database lacks, since the broker hadn't flushed them
    repeated: int = 0  # units of another message with the same queueOffset

    def add(self, queue: QueueBytes, one: Range) -> None:
        """Take what differs of a queue further on."""
        add_ranges(self.queues.setdefault(queue, []), [one])


@dataclass(frozen=True, slots=True)
class ShareTask:
    """Compare a share's units with the database's keys from ``first`` on and before ``stop``."""

    target: Target
    database: Path  # where it was caught
    named: Path  # where it is in the store
    runs: tuple[str, ...]  # units of the log, in log order
    breaks: Breaks
    bounds: Bounds
    share: Share | None  # its queues; None where the log has none
    first: bytes
    stop: bytes | None

    def __call__(self) -> ShareChecked:
        """Compare."""
        expected = None
        if self.share is not None:
            from_zero = self.bounds.start == 0
            expected = placed(self.target, self.share, self.runs, self.breaks, from_zero=from_zero)
        with opened(self.database, named=self.named) as database:
            compared = _Comparison(self.bounds, expected)
            for block, first, stop in _with_bounds(expected, self.first, self.stop):
                compared.look(database, block, first, stop)
        done = compared.done
        if expected is not None:
            done.units, done.end = len(expected.row), expected.end
            done.ends, done.findings = expected.ends(), expected.findings
        return done


def _with_bounds(
    expected: Placed | None, first: bytes, stop: bytes | None
) -> Iterator[tuple[NDArray[np.uint8] | None, bytes, bytes | None]]:
    """Blocks of what is expected, each with the range of keys up to the next one."""
    if expected is None:
        yield None, first, stop
        return
    here = first
    for block, following in pairwise(chain(expected.blocks(_AT_ONCE), [None])):
        end = stop if following is None else _cells(following[:1, :-UNIT_LENGTH])[0]
        yield block, here, end
        here = end or b""


def _cells(rows: NDArray[np.uint8]) -> list[bytes]:
    width, text = rows.shape[1], np.ascontiguousarray(rows).tobytes()
    return [text[at : at + width] for at in range(0, len(text), width)]


def _is_same(block: NDArray[np.uint8], keys: Sequence[bytes], values: Sequence[bytes]) -> bool:
    """Whether a database's keys and values are those of a block; fast where they are."""
    width = block.shape[1] - UNIT_LENGTH
    if len(keys) != len(block) or set(map(len, keys)) != {width} or set(map(len, values)) != {UNIT_LENGTH}:
        return False
    found = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, width)
    data = np.frombuffer(b"".join(values), np.uint8).reshape(-1, UNIT_LENGTH)
    return np.array_equal(found, block[:, :width]) and np.array_equal(data, block[:, width:])


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
        found: KeyBlocks = database.blocks(UNITS, first, stop, most=_AT_ONCE + 1)
        expected: dict[bytes, bytes] = {}
        if block is not None:
            head: tuple[Sequence[bytes], Sequence[bytes]] = next(found, ((), ()))
            if _is_same(block, *head) and next(found, None) is None:
                return
            found = chain([head], found)
            expected = dict(
                zip(_cells(block[:, :-UNIT_LENGTH]), _cells(block[:, -UNIT_LENGTH:]), strict=True)
            )
        missing = set()
        for text, right, value in odd_keys(expected, found):
            if value is None:
                missing.add(text)
            else:
                self._odd(text, right, value)
        if missing and block is not None:
            self._missing(block[np.flatnonzero([key in missing for key in expected])])

    def _missing(self, rows: NDArray[np.uint8]) -> None:
        prefixes, units = unpack(rows)
        changes = np.any(prefixes[1:] != prefixes[:-1], axis=1)
        for group in np.split(np.arange(len(rows)), np.flatnonzero(changes) + 1):
            key = parse_unit_key(prefixes[group[0]].tobytes() + bytes(8))
            queue = (b"", 0) if key is None else (key.topic, key.queue_id)
            if self._bounds.flushed is not None:
                late = units.position[group] >= self._bounds.flushed
                self.done.pending += int(late.sum())
                group = group[~late]
            for piece in pieces(group, units.offset[group], len(group)):
                first, last = int(units.offset[piece[0]]), int(units.offset[piece[-1]])
                wanted = Unit(*(int(column[int(piece[0])]) for column in units[2:]))
                self.done.add(queue, Range(MISSING, None, first, last + 1, len(piece), wanted, None))

    def _odd(self, text: bytes, right: bytes | None, value: bytes) -> None:
        key, unit = parse_unit_key(text), parse_unit(value)
        if key is None:
            self.done.foreign_count += 1
            if len(self.done.foreign) < _FOREIGN:
                self.done.foreign.append(text)
        elif right is not None:
            self._wrong(key, text[:-8], Unit(*(parse_unit(right) or (0, 0, 0, 0))), unit, value)
        elif unit is None or not self._is_let_be(key, text[:-8], unit):
            self.done.add((key.topic, key.queue_id), Range(EXTRA, None, *_at(key), None, unit or value))

    def _is_let_be(self, key: UnitKey, prefix: bytes, unit: Unit) -> bool:
        if self._bounds.is_live(unit.position):
            return True
        first = self._first.get(prefix)
        before = key.queue_offset >= 0 and (first is None or key.queue_offset < first)
        if before and unit.size > 0 and 0 <= unit.position < self._bounds.start:
            self.done.expired += 1
            return True
        return False

    def _wrong(self, key: UnitKey, prefix: bytes, right: Unit, unit: Unit | None, value: bytes) -> None:
        if unit is not None and self._expected is not None:
            others = self._expected.others(self._numbers[prefix], key.queue_offset)
            if any(unit == other for other in others):
                self.done.repeated += 1
                return
            if self._bounds.is_live(unit.position):
                return
        one = Range(WRONG, _field(right, unit), *_at(key), right, unit or value)
        self.done.add((key.topic, key.queue_id), one)


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


class QueueDatabaseCheck(DatabaseCheck):
    """The queues' database of one run.

    Attributes:
        units: of the log's queues.
        restarts: by topic, the physical offset where a queue of it begins anew.
    """

    def __init__(self, plan: Plan, runner: Runner) -> None:
        super().__init__(plan, runner, plan.settings.root / str(plan.settings.rocksdb.queues), QUEUE)
        self._shares: list[ShareChecked] = []
        self._stored: dict[QueueBytes, list[Range]] = {}
        self._ends: dict[QueueBytes, tuple[QueueEnd, QueueEnd]] = {}  # first and last message in the log
        self._marked: int | None = None  # the checkpoint in the database
        self.units = 0
        self.restarts: dict[str, int] = {}

    def find(self, _proven: object, held: ExitStack) -> None:
        """Catch the database as it is now."""
        if self._plan.settings.rocksdb.queues is None:
            return
        refuse_other_hosts(self._runner, self.directory)
        if not is_database(self.directory):
            remark = (
                "the queues' database is gone: a start after a clean stop makes it anew, without the first "
                "message of the log"
            )
            expected, cause = f"queues in RocksDB, with {CURRENT}", "database-lost"
            lost = self._differs("missing-database", expected, "none", cause=cause, remark=remark)
            self._problems.append(lost)
            return
        self._held = held.enter_context(caught(self.directory)).directory
        with opened(self._held, required=(UNITS, OFFSETS), named=self.directory) as database:
            units = database.estimate(UNITS)
        self.scratch = self._held.parent / "units"
        check_free(self.scratch.parent, units * _ROW_BYTES, "the log's units, which are compared")
        self.scratch.mkdir()

    def add(self, checked: PartChecked) -> None:
        """See :class:`reput.verify.run.Form`."""
        self._runs += checked.result.runs

    def compare(self, log: LogRead, _proven: object) -> None:
        """Compare all that was taken with the database."""
        plan, breaks = self._plan, log.all_breaks()
        if self._held is None:
            return
        with opened(self._held, named=self.directory) as database:
            found = database.get(OFFSETS, CHECKPOINT_KEY)
        self._marked = None if found is None else rocksdbqueue.parse_checkpoint(found)
        bounds = Bounds.of(plan, self._marked or 0)
        selection = replace(plan.selection, batch=plan.settings.batch_topics())
        target = replace(plan.target(), selection=selection)
        of_all = target, self._held, self.directory, tuple(self._runs), breaks, bounds
        tasks = [ShareTask(*of_all, *of) for of in self._ranges(totals_of(self._runs, breaks))]
        for done in in_waves(self._runner, tasks):
            self._take(done)
        self._check_ends(bounds)
        if plan.selection.is_all and not plan.running:
            self._check_checkpoint(found)

    def _ranges(self, totals: Totals) -> Iterator[tuple[Share | None, bytes, bytes | None]]:
        """Shares with the ranges of keys that they are compared with, which leave out none that is wanted."""
        for low, high in _wanted_keys(self._plan.selection):
            here = totals.between(low, high)
            shares: list[Share | None] = [*shares_of(here, self._runner.slots)] or [None]
            firsts = [low, *(_begin(share) for share in shares[1:] if share is not None)]
            for share, first, stop in zip(shares, firsts, [*firsts[1:], high], strict=True):
                if share is not None and share.stop is None and high is not None:
                    share = replace(share, stop=high)
                yield share, first, stop

    def _take(self, done: ShareChecked) -> None:
        self._shares.append(done)
        self.units += done.units
        for queue, ranges in done.queues.items():
            add_ranges(self._stored.setdefault(queue, []), ranges)
        for finding in done.findings:
            if finding.kind == "queue-restarted" and finding.topic is not None:
                known = self.restarts.get(finding.topic, -1)
                self.restarts[finding.topic] = max(known, finding.offset)
        if done.ends is not None:
            first, last = done.ends.first.tolist(), done.ends.last.tolist()
            for prefix, begin, end in zip(done.ends.prefixes, first, last, strict=True):
                key = parse_unit_key(prefix + bytes(8))
                if key is not None:
                    queue = key.topic, key.queue_id
                    earlier = self._ends.get(queue, (QueueEnd(*begin),))
                    self._ends[queue] = earlier[0], QueueEnd(*end)
        done.ends, done.queues = None, {}

    # --- ends of queues -----------------------------------------------------------------------------------

    def _check_ends(self, bounds: Bounds) -> None:
        with_max: set[QueueBytes] = set()
        foreign: list[bytes] = []
        assert self._held is not None  # noqa: S101 - of compare
        with opened(self._held, named=self.directory) as database:
            for text, key, end, value in stored_ends(database):
                if key is None:
                    foreign.append(text)
                    continue
                queue = key.topic, key.queue_id
                if not _wants(self._plan.selection, queue):
                    continue
                if key.which == MAX:
                    with_max.add(queue)
                problem = self._end_problem(queue, key.which, end, bounds)
                if problem is not None and end is not None and key.which == MAX:
                    unit = database.get(UNITS, rocksdbqueue.unit_key(*queue, end.queue_offset))
                    log = self._ends.get(queue)
                    same = log is not None and log[1].queue_offset == end.queue_offset
                    if same and unit is not None and unit[:8] == value[:8]:
                        continue  # of several messages with this queueOffset, the one that has the unit
                if problem is not None:
                    self._end_differs(queue, key.which, *problem, "nothing" if end is None else _said(end))
        for queue in sorted(self._ends.keys() - with_max):
            last = self._ends[queue][1]
            if bounds.flushed is None or last.position < bounds.flushed:
                self._end_differs(queue, MAX, "missing-max", _said(last), "nothing")
        if foreign and self._plan.selection.is_all:
            self._problems.append(self._foreign(foreign, len(foreign), OFFSETS))

    def _end_problem(
        self, queue: QueueBytes, which: bytes, end: QueueEnd | None, bounds: Bounds
    ) -> tuple[str, str] | None:
        """The kind of what is wrong with a queue's end, and what was expected; None for nothing."""
        log = self._ends.get(queue)
        if end is not None and bounds.is_live(end.position):
            return None
        is_expired = end is not None and 0 <= end.position < bounds.start and end.queue_offset >= 0
        if log is None:
            # Brokers write this when an empty queue is asked for its first offset (5.3.3, 5.5.0).
            if which != MAX and end is not None and (end.position, end.queue_offset) == (0, 0):
                return None
            return None if is_expired else ("extra-end", "nothing, for the log has no message of this queue")
        first, last = log
        if which == MAX:
            if end == last or (bounds.flushed is not None and last.position >= bounds.flushed):
                return None
            return "wrong-max", _said(last)
        if end == first or (end is not None and is_expired and end.queue_offset < first.queue_offset):
            return None
        return "wrong-min", f"{_said(first)}, or an expired one before it"

    def _end_differs(self, queue: QueueBytes, which: bytes, kind: str, expected: str, found: str) -> None:
        if kind == "extra-end":
            found = f"{which.decode()} {found}"
        else:
            expected = f"{which.decode()} {expected}"
        self._problems.append(self._differs(kind, expected, found, **_of_queue(queue)))

    def _check_checkpoint(self, found: bytes | None) -> None:
        """The checkpoint key against the log: what a start dispatches depends on it."""
        last = max((share.end for share in self._shares), default=-1)
        end, marked = self._plan.end, self._marked
        if (self._plan.crashed and (marked is None or marked <= end)) or (found is None and last < 0):
            return
        expected = f"the key of the last dispatched record's end, {max(last, 0)}"
        there = "nothing" if found is None else found.hex() if marked is None else str(marked)
        if marked is None:
            kind = "checkpoint-missing" if found is None else "checkpoint-length"
            remark = "a start after a clean stop leaves out the first message of the log"
        elif marked > end:
            kind, remark, expected = (
                "checkpoint-ahead",
                "a start corrects it",
                f"{expected}; the log ends at {end}",
            )
        elif marked < last:
            kind = "checkpoint-behind"
            remark = (
                "a start after a clean stop dispatches what begins behind it: the record that begins there "
                "is left out if it has no unit yet"
            )
        else:
            return
        self._problems.append(self._differs(kind, expected, there, remark=remark, area=CHECKPOINT))

    # --- the report ---------------------------------------------------------------------------------------

    @property
    def queues(self) -> int:
        """How many queues the log has messages of."""
        return len(self._ends)

    def log_findings(self) -> Iterator[Finding]:
        """What is odd about queues in the log."""
        for share in self._shares:
            for finding in share.findings:
                segment = self._plan.log.segment_at(finding.offset)
                yield replace(finding, path="" if segment is None else str(segment.path))

    def ranges_of(self, topic: str, queue_id: int) -> Sequence[Range]:
        """What differs of a queue."""
        return self._stored.get((topic.encode("utf-8", "replace"), queue_id), ())

    def findings(self, explainer: Explainer) -> Iterator[Difference | Note]:
        """What is wrong with the database, then what is odd and legal."""
        deleted: set[Queue] = set()
        notes: list[Note] = []
        yield from self._altered(explainer)
        gone = self._without_key()
        for queue, stored in sorted(self._stored.items()):
            name = queue[0].decode("utf-8", "replace"), queue[1]
            last = self._ends[queue][1] if queue in self._ends else None
            lost = queue in gone
            reason = explainer.deleted(name[0], last.position) if lost and last is not None else None
            if reason is not None:
                deleted.add(name)
                missing = sum(one.count for one in stored if one.kind == MISSING)
                text = f"{name[0]}:{name[1]} has no key, and {missing:,} messages in the log: {reason}"
                notes.append(Note("deleted-queue", text, *name, missing))
                continue
            ranges: list[Range] = []
            add_ranges(ranges, sorted(stored, key=lambda one: one.first))
            due = None if last is None else last.queue_offset + 1
            for one in ranges:
                yield self._stored_range(explainer, name, one, due, is_lost=lost)
        for problem in self._problems:
            if problem.kind != "missing-max" or (problem.topic, problem.queue_id) not in deleted:
                yield problem
        count = sum(share.foreign_count for share in self._shares)
        if count:
            yield self._foreign([key for share in self._shares for key in share.foreign], count, UNITS)
        yield from notes
        pending = sum(share.pending for share in self._shares)
        if pending and not self._plan.running:
            text = "units that the broker hadn't flushed when it was killed: its start makes them"
            yield Note("to-dispatch", f"{pending:,} {text}", count=pending)
        if repeated := sum(share.repeated for share in self._shares):
            text = f"{repeated:,} places have the unit of an earlier message with the same queueOffset: "
            text += "of those dispatched together the first wins"
            yield Note("repeated-queue-offset", text, count=repeated)
        if expired := sum(share.expired for share in self._shares):
            text = f"{expired:,} units of expired messages, which a compaction will drop"
            yield Note("expired-unit", text, count=expired)

    def _altered(self, explainer: Explainer) -> Iterator[Difference]:
        """Messages of which a byte has changed that says where they belong: their units are let be."""
        extra = [
            (queue, one, one.found)
            for queue, stored in self._stored.items()
            for one in stored
            if one.kind == EXTRA and one.count == 1 and isinstance(one.found, Unit)
        ]
        if self._held is None or not 0 < len(extra) <= _MOST_ALTERED:
            return
        with opened(self._held, named=self.directory) as database:
            for queue, one, unit in extra:
                name = queue[0].decode("utf-8", "replace"), queue[1]
                said = explainer.message(unit.position)  # None outside of all segments
                if said is None or not one_byte_apart(name, said[:2], (one.first, said[2])):
                    continue
                named = said[0].encode("utf-8", "replace"), said[1]
                there = database.get(UNITS, rocksdbqueue.unit_key(*named, said[2]))
                if there is not None and there[:8] == unit.position.to_bytes(8, "big"):
                    continue  # it has its unit, and this is another one
                self._stored[queue].remove(one)
                lacks = self._stored.get(named, [])
                lacks[:] = [it for it in lacks if (it.kind, it.first, it.count) != (MISSING, said[2], 1)]
                row = Row(one.first, unit.position, unit.size, unit.tags)
                text = f"{said[0]!r}:{said[1]} queueOffset {said[2]}"
                yield Difference.of_log(altered_message(self._plan.log, name, row, said[:2], text))

    def _stored_range(
        self, explainer: Explainer, queue: Queue, one: Range, due: int | None, *, is_lost: bool
    ) -> Difference:
        """A range, ``due`` being the queueOffset after the queue's last message."""
        expected, found, cause = _plainly(one.expected), _plainly(one.found), explainer.odd(queue, one)
        if one.kind == MISSING:
            if is_lost:
                cause = "keys-lost"
            elif cause is None and one.end == due:
                cause = "queue-short"
        elif isinstance(one.found, Unit) and (one.kind == EXTRA or one.field == "message"):
            target, said = explainer.target(one.found.position)
            found += f" ({said})"
            cause = target if cause is None or target == LOG_DAMAGED else cause
            if queue[0].startswith(LMQ_PREFIX.decode()) and not self._plan.settings.rocksdb.lmq:
                cause = "light-queues-off"
        elif one.field == "tagsCode" and queue[0] == SCHEDULE_TOPIC.decode():
            cause = DELAY_LEVELS
        return of_range(queue, one, (self.directory, None), (expected, found), cause)

    def _without_key(self) -> set[QueueBytes]:
        """The queues of the log that have no unit in the database."""
        kinds = {queue: {one.kind for one in stored} for queue, stored in self._stored.items()}
        without = [queue for queue, of in kinds.items() if MISSING in of and EXTRA not in of]
        if self._held is None or not without:
            return set()
        with opened(self._held, named=self.directory) as database:
            prefixes = {queue: rocksdbqueue.prefix(*queue) for queue in without}
            return {
                queue
                for queue, prefix in prefixes.items()
                if database.first(UNITS, prefix, rocksdbqueue.after(*queue)) is None
            }

    def _foreign(self, keys: Sequence[bytes], count: int, family: str) -> Difference:
        said = ", ".join(key[:40].hex() or "an empty key" for key in keys[:3])
        return self._differs("foreign-key", f"keys of queues in column family {family}", said, count=count)

    def not_checked(self) -> Iterator[Note]:
        """What wasn't looked at."""
        if self._held is not None and self._plan.running:
            text = f"what the broker hasn't flushed into {self.directory}: from {self._marked} on"
            yield Note("not-flushed", text)


def _wanted_keys(selection: Selection) -> Iterator[tuple[bytes, bytes | None]]:
    """Ranges of keys, half open, of the queues that are wanted."""
    if selection.is_all:
        yield b"", None
        return
    found = set()
    for topic, queue_id in selection.queues:
        if queue_id is not None and (topic, None) in selection.queues:
            continue
        low = rocksdbqueue.prefix(topic.encode("utf-8", "replace"), queue_id or 0)
        if queue_id is None:
            low = low[: -len(b"\0\0\0\0\1")]
        found.add((low, low[:-1] + rocksdbqueue.CTRL_2))
    yield from sorted(found)


def _wants(selection: Selection, queue: QueueBytes) -> bool:
    return selection.wants_queue(queue[0].decode("utf-8", "replace"), queue[1])


def _begin(share: Share) -> bytes:
    if share.offsets is None:
        return share.first
    return share.first + share.offsets[0].to_bytes(8, "big", signed=True)


def _said(end: QueueEnd) -> str:
    return f"queueOffset {end.queue_offset} at {end.position}"


def _plainly(found: AnyUnit | bytes | None, *, plain: bool = False) -> str:
    """What a database has, in words; ``plain``: zeros and pre-blank units as any other."""
    if isinstance(found, bytes):
        return f"{len(found)} bytes"
    if not isinstance(found, Unit):
        return "nothing"
    unit = f"{found.position}, {found.size} bytes, tagsCode {found.tags}" if plain else PlainUnit(*found[:3])
    return f"{unit}, storeTimestamp {found.timestamp}"


def _of_queue(queue: QueueBytes) -> dict[str, Any]:
    return {"topic": queue[0].decode("utf-8", "replace"), "queue_id": queue[1]}


# --- two stores -------------------------------------------------------------------------------------------


def compare_databases(pair: Pair, runner: Runner, selection: Selection, report: Report) -> None:
    """Compare the queues' databases of two stores, both ways."""
    places = [settings.root / str(settings.rocksdb.queues) for settings in pair.stores]
    refuse_other_hosts(runner, places[0])
    if lacks := lacking(places, QUEUE, "queues in RocksDB"):
        report.findings.append(lacks)
        return
    with ExitStack() as stack:
        held = [stack.enter_context(caught(place)).directory for place in places]
        left, right = (_ends_of(*of, selection) for of in zip(held, places, strict=True))
        if not selection.is_all and not (left or right):
            chosen = min(selection.queues, key=str)
            raise no_such_queue(pair.first.root, chosen, "a queue that one of the databases has")
        bounds = pair.start, pair.end
        compare = partial(_compare_ranges, held, places, bounds)
        ranges = _ranges_of(selection, left, runner.slots)
        queues: dict[QueueBytes, list[Range]] = {}
        units = 0
        for count, found in in_waves(runner, [partial(compare, *each) for each in ranges]):
            units += count
            for queue, differing in found.items():
                add_ranges(queues.setdefault(queue, []), differing)
    for queue, differing in sorted(queues.items()):
        for one in differing:
            span = one.first, one.end, one.count
            said = _plainly(one.expected, plain=True), _plainly(one.found, plain=True)
            report.findings.append(
                of_two(one.kind, places, QUEUE, said, span, offset=None, **_of_queue(queue))
            )
    report.findings += _ends_differ(places, left, right, bounds)
    report.queues, report.units = max(report.queues, len(left)), max(report.units, units)


def _ends_of(held: Path, place: Path, selection: Selection) -> dict[QueueBytes, QueueEnd]:
    """The last message of each queue."""
    with opened(held, required=(UNITS, OFFSETS), named=place) as database:
        return {
            one.queue: one.end
            for one in stored_ends(database)
            if one.queue is not None and one.end is not None and _wants(selection, one.queue)
        }


def _ranges_of(
    selection: Selection, ends: Iterable[QueueBytes], slots: int
) -> Iterator[tuple[bytes, bytes | None]]:
    """Ranges of keys that leave out none that is wanted, cut between queues."""
    prefixes = sorted(rocksdbqueue.prefix(*queue) for queue in ends)
    cuts = prefixes[(step := max(-(-len(prefixes) // (slots * RANGES_A_SLOT)), 1)) :: step]
    for low, high in _wanted_keys(selection):
        inside = [cut for cut in cuts if cut > low and (high is None or cut < high)]
        yield from zip([low, *inside], [*inside, high], strict=True)


def _compare_ranges(
    held: Sequence[Path], places: Sequence[Path], bounds: tuple[int, int], first: bytes, stop: bytes | None
) -> tuple[int, dict[QueueBytes, list[Range]]]:
    """How many units of [first, stop) the first store has, and what differs, by queue."""
    count, found = 0, dict[QueueBytes, list[Range]]()
    for keys, differing in differing_keys(held, places, UNITS, first, stop):
        count += len(keys)
        for text, *values in differing:
            key = parse_unit_key(text)
            left, right = (_inside(value, bounds) for value in values)
            if key is not None and (left is not None or right is not None):
                one = Range(which_of_two(left, right), None, *_at(key), left, right)
                add_ranges(found.setdefault((key.topic, key.queue_id), []), [one])
    return count, found


def _inside(value: bytes | None, bounds: tuple[int, int]) -> Unit | None:
    """A unit of a message that both logs have."""
    unit = None if value is None else parse_unit(value)
    return unit if unit is not None and bounds[0] <= unit.position < bounds[1] else None


def _ends_differ(
    places: Sequence[Path],
    left: Mapping[QueueBytes, QueueEnd],
    right: Mapping[QueueBytes, QueueEnd],
    bounds: tuple[int, int],
) -> Iterator[Difference]:
    """Last messages that both logs have, and that aren't the same."""
    for queue in sorted(left.keys() | right.keys()):
        both = left.get(queue), right.get(queue)
        if both[0] == both[1] or not all(
            end is None or bounds[0] <= end.position < bounds[1] for end in both
        ):
            continue
        said = ["nothing" if end is None else f"max {end.queue_offset} at {end.position}" for end in both]
        yield of_two(which_of_two(*both), places, QUEUE, said, offset=None, **_of_queue(queue))
