"""Messages whose record names another queue, or another place in it, than it was written with.

No checksum covers topic, queue and queueOffset, so a record with a changed byte there is whole. If a queue
misses a queueOffset in a log that misses nothing, its message is looked for between its neighbours: the one
record there that would be it but for one byte, and that doesn't fit where it says it belongs; else what the
queue's own files lead to. Without either, the queue was written so: see :mod:`reput.build.placement`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.build.placement import Breaks, Gap
from reput.caches import CACHED
from reput.errors import Finding
from reput.format import commitlog, javastring
from reput.format.commitlog import (
    QUEUE_ID,
    QUEUE_OFFSET,
    SYS_FLAG,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from reput.format.names import Queue
from reput.log.segments import CommitLog, map_segment
from reput.log.walk import Frame, frame
from reput.replay.part_result import QueueRows, _output, collect
from reput.replay.placing import ALTERED, BatchQueues, QueueOutcome, own_unit
from reput.replay.state import QueueState
from reput.replay.target import Selection, Target
from reput.scan import kernel, output
from reput.scan.kernel import _GOOD, _frame
from reput.scan.load import i32, i64, u8
from reput.scan.rules import Part

#: More messages than this aren't looked for in one gap; nor more gaps, nor in more bytes of log.
_MOST_MISSING, _MOST_GAPS, _MOST_BYTES = 64, 1024, 1 << 32
#: What one altered message has hidden of another one shows when the first is put right.
_MOST_ROUNDS = 16
_LIGHT = commitlog.LMQ_PREFIX.decode()


class Row(NamedTuple):
    """A unit of a queue: queueOffset, physicalOffset, size in bytes and tagsCode."""

    offset: int
    position: int
    size: int
    tags: int


@dataclass(slots=True)
class Altered:
    """What of a batch's queues is to be placed otherwise than its records say."""

    #: added, taken: units of queues that they get, and physical offsets of those that they lose
    added: dict[Queue, list[Row]] = field(default_factory=dict)
    taken: dict[Queue, set[int]] = field(default_factory=dict)
    #: physical offsets at which queues miss messages, though the log isn't damaged there
    breaks: dict[Queue, set[int]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)  # the messages

    @property
    def queues(self) -> set[Queue]:
        """Those that are placed again."""
        return {*self.added, *self.taken, *self.breaks}

    def breaks_of(self, queue: Queue, breaks: Breaks) -> Breaks:
        """Where the log isn't whole for a queue."""
        return breaks._replace(places=sorted([*breaks.places, *self.breaks.get(queue, ())]))

    def add(self, more: Altered) -> None:
        """Take in what another round has found."""
        for queue, rows in more.added.items():
            self.added.setdefault(queue, []).extend(rows)
        for queue, gone in more.taken.items():
            self.taken.setdefault(queue, set()).update(gone)
        for queue, places in more.breaks.items():
            self.breaks.setdefault(queue, set()).update(places)
        self.findings += more.findings

    def put_right(self, rows: Mapping[Queue, QueueRows]) -> dict[Queue, QueueRows]:
        """The queues' units, in log order, as they were written."""
        found = dict(rows)
        moved = {queue: {row.position for row in more} for queue, more in self.added.items()}
        for queue in self.taken.keys() | moved.keys():
            if queue in found:
                gone = self.taken.get(queue, set()) | moved.get(queue, set())
                found[queue] = found[queue].only(~np.isin(found[queue].position, [*gone]))
        for queue, more in self.added.items():
            columns = zip(*sorted(more, key=lambda row: row.position), strict=True)
            new = QueueRows(*(np.array(column, np.int64) for column in columns))  # type: ignore[arg-type]
            new = new._replace(size=new.size.astype(np.int32))
            if queue in found:
                both = QueueRows(*map(np.concatenate, zip(*[found[queue], new], strict=True)))
                new = both.only_at(np.argsort(both.position, kind="stable"))
            found[queue] = new
        return {queue: units for queue, units in found.items() if len(units.offset)}


def in_rounds(
    target: Target,
    log: CommitLog,
    parts: list[Part],
    queues: BatchQueues,
    place: Callable[[dict[Queue, QueueState | None], Altered], Iterable[QueueOutcome]],
) -> list[QueueOutcome]:
    """Place a batch's irregular queues, and again those with altered messages.

    ``place`` is given some queues with their states before the batch.
    """
    placed: dict[Queue, QueueOutcome] = {}
    altered, again = Altered(), queues.irregular()
    for _ in range(_MOST_ROUNDS):
        for outcome in place(again, altered) if again else ():
            queues.replace(outcome)
            placed[outcome.topic, outcome.queue_id] = outcome
        gaps = [(queue, gap) for queue, outcome in placed.items() for gap in outcome.gaps]
        more = find(target, log, parts, gaps, queues, altered)
        wanted = (queue for queue in more.queues if target.selection.wants_queue(*queue))
        again = queues.before(queue for queue in wanted if queue[0] not in target.selection.batch)
        altered.add(more)
        if not again:
            break
    if altered.findings and placed:
        next(iter(placed.values())).findings.extend(altered.findings)
    return [*placed.values()]


class _Candidate(NamedTuple):
    """A record that may be the one which a queue misses: its unit there, the queue that it names."""

    row: Row
    named: Queue | None
    said: str


def find(
    target: Target,
    log: CommitLog,
    parts: list[Part],
    gaps: Iterable[tuple[Queue, Gap]],
    queues: BatchQueues,
    known: Altered,
) -> Altered:
    """Look for the messages that queues miss in a log that isn't damaged there.

    ``gaps`` say where, ``queues`` how the queues were before the batch, and ``known`` what was found before.
    """
    result, settings = Altered(), target.settings
    if settings.entries or settings.remote is not None or target.queue_ext:  # a unit there would have to move
        return result
    left, findings = _MOST_BYTES, dict[int, Finding]()
    done = {row.position for rows in known.added.values() for row in rows}
    missing = dict[tuple[Queue, int, Gap], tuple[list[_Candidate], _Candidate | None]]()
    small = [
        (queue, gap)
        for queue, gap in gaps
        if gap.stop - gap.first <= _MOST_MISSING and gap.before not in known.breaks.get(queue, ())
    ]
    for queue, gap in sorted(small, key=lambda one: one[1].before - one[1].after)[:_MOST_GAPS]:
        left -= gap.before - gap.after
        if left < 0:
            break
        for offset in range(gap.first, gap.stop):
            missing[queue, offset, gap] = [], _unit_there(target, log, queue, offset, gap)
        for one in _candidates(target, log, queue, gap):
            if one.row.position not in done:
                missing[queue, one.row.offset, gap][0].append(one)
    looked_at = [one for found, unit in missing.values() for one in (*found, unit) if one is not None]
    named = {one.named for one in looked_at if one.named is not None}
    everything = replace(target, selection=Selection(batch=target.selection.batch))
    rows = known.put_right(collect(everything, parts, named)) if named else {}
    before = queues.before(named)
    light = {queue for queue, *_ in missing if settings.enable_multi_dispatch and queue[0].startswith(_LIGHT)}
    # What a queue lacks at its beginning may be all but one message of another one, which that misses.
    for place in sorted(missing, key=lambda place: (place[0] in light, place[2].first == 0)):
        (queue, _, gap), (found, unit) = place, missing[place]
        if queue in result.taken:
            continue
        if unit is not None and unit.row.position in done and queue not in light:
            unit = None
        # Light queues miss messages in a sound log: those that have no unit by other rules.
        alone = [] if queue in light else found
        strays = [one for one in alone if one.named not in result.added and _is_stray(one, rows, before)]
        doubtful = bool(strays) or any(_is_repeated(one, rows) for one in alone)
        if len(strays) != 1 and unit is not None:
            strays = [one for one in found if one.row.position == unit.row.position]
            if not strays and queue in light:  # beside the unit in the message's own queue
                nowhere = "" if unit.named is None else ", whose properties don't name it"
                strays = [unit._replace(named=None, said=f"{unit.said}{nowhere}")]
            elif not strays and _is_stray(unit, rows, before):
                strays = [unit]
        if len(strays) == 1:
            result.added.setdefault(queue, []).append(strays[0].row)
            if strays[0].named is not None:
                result.taken.setdefault(strays[0].named, set()).add(strays[0].row.position)
            findings.setdefault(strays[0].row.position, altered_message(log, queue, *strays[0]))
        if doubtful or strays:
            result.breaks.setdefault(queue, set()).add(gap.before)
    result.findings.extend(findings.values())
    return result


def _candidates(target: Target, log: CommitLog, queue: Queue, gap: Gap) -> Iterator[_Candidate]:
    topic = np.frombuffer(queue[0].encode("utf-8", "surrogateescape"), np.uint8)
    v2 = target.settings.dialect.topic_length_v2
    for segment in log.segments:
        start, end = max(gap.after, segment.base), min(gap.before, segment.base + segment.length)
        if start >= end:
            continue
        data, found = map_segment(segment.path, segment.length), np.empty(_MOST_MISSING, np.int64)
        begin, stop = start - segment.base, end - segment.base
        count = _records(data, segment.base, begin, stop, v2, topic, queue[1], gap.first, gap.stop, found)
        for at in found[:count].tolist():
            one = _candidate(target, data, segment.base, at, queue, gap)
            if one is not None:
                yield one


def _candidate(
    target: Target, data: NDArray[np.uint8], base: int, at: int, queue: Queue, gap: Gap
) -> _Candidate | None:
    """The unit of a record as it was written; None if it had none."""
    found = frame(data.data, base, at, target.settings.dialect.topic_length_v2)
    if not isinstance(found, Frame):
        return None
    record = bytearray(data[at : at + found.size])
    queue_id, _flag, offset, _place, sys_flag = struct.unpack_from(">iiqqi", record, QUEUE_ID)
    topic = bytes(data[slice(*found.topic)])
    own = offset if gap.first <= offset < gap.stop else gap.first
    record[found.topic[0] - at : found.topic[1] - at] = queue[0].encode("utf-8", "surrogateescape")
    struct.pack_into(">i", record, QUEUE_ID, queue[1])
    struct.pack_into(">q", record, QUEUE_OFFSET, own)
    struct.pack_into(">i", record, SYS_FLAG, sys_flag & ~TRANSACTION_PREPARED)
    out, table = _output(), target.table()
    out.counts.fill(0)
    rules = target.rules()._replace(index_keys=False, index_tags=False)
    kernel.scan(np.frombuffer(bytes(record), np.uint8), base + at, 0, 1, rules, table, out)
    if not out.counts[output.UNITS] or int(out.unit_offset[0]) != own:
        return None
    row = Row(own, base + at, found.size, int(out.unit_tags[0]))
    return _Candidate(row, *_named(target, topic, queue_id, offset, sys_flag))


def _named(
    target: Target, topic: bytes, queue_id: int, offset: int, sys_flag: int
) -> tuple[Queue | None, str]:
    """The queue that a record has its unit in by its own words, if any; and these."""
    name = javastring.utf8(topic)
    said = f"{name.decode()!r}:{queue_id} queueOffset {offset}"
    if sys_flag & TRANSACTION_PREPARED or target.topic_problem(name) is not None:
        return None, f"{said}, type {sys_flag & TRANSACTION_MASK}"
    return (name.decode(), queue_id), said


def _is_stray(
    one: _Candidate, rows: Mapping[Queue, QueueRows], before: Mapping[Queue, QueueState | None]
) -> bool:
    """Whether a record of the batch goes on with neither of its neighbours in the queue that it names."""
    if one.named is None:
        return True
    offset, row = _place_of(one, rows)
    if row < 0:  # of an earlier batch: what is committed stays
        return False
    state = before.get(one.named)
    due = offset[row - 1] + 1 if row else -1 if state is None else state.next + state.shift
    return not (offset[row] == due or (row + 1 < len(offset) and offset[row + 1] == offset[row] + 1))


def _is_repeated(one: _Candidate, rows: Mapping[Queue, QueueRows]) -> bool:
    """Whether another message has the same place in the queue that a record names."""
    offset, row = _place_of(one, rows)
    return row >= 0 and int((offset == offset[row]).sum()) > 1


def _place_of(one: _Candidate, rows: Mapping[Queue, QueueRows]) -> tuple[NDArray[np.int64], int]:
    """The batch's queueOffsets of the queue that a record names, and its row there, -1 without one."""
    mine = None if one.named is None else rows.get(one.named)
    if mine is None:
        return np.empty(0, np.int64), -1
    at = np.flatnonzero(mine.position == one.row.position)
    return mine.offset, int(at[0]) if len(at) else -1


def _unit_there(target: Target, log: CommitLog, queue: Queue, offset: int, gap: Gap) -> _Candidate | None:
    """The unit in the queue's own file, if it leads to a whole record in the gap."""
    settings = target.settings
    unit = own_unit(settings, queue, gap.due + offset - gap.first)
    if unit is None:
        return None
    position, length, tags = unit
    segment = log.segment_at(position) if gap.after <= position < gap.before else None
    if segment is None:
        return None
    log_data = map_segment(segment.path, segment.length).data
    found = frame(log_data, segment.base, position - segment.base, settings.dialect.topic_length_v2)
    if not isinstance(found, Frame) or found.size != length:
        return None
    record = commitlog.decode(log_data, position - segment.base)
    said = _named(target, record.topic, record.queue_id, record.queue_offset, record.sys_flag)
    return _Candidate(Row(offset, position, length, tags), *said)


def altered_message(log: CommitLog, queue: Queue, row: Row, named: Queue | None, said: str) -> Finding:
    """A message that has its unit, ``row``, in ``queue``, and names another one, or ``said``, itself."""
    segment = log.segment_at(row.position) or log.segments[-1]
    return Finding(
        kind=ALTERED,
        path=str(segment.path),
        offset=row.position,
        end=row.position + row.size,
        expected=f"{queue[0]}:{queue[1]} queueOffset {row.offset}, which that queue misses here",
        found=said,
        outcome="its unit stands in the queue that misses it",
        topic=None if named is None else named[0],
        queue_id=None if named is None else named[1],
        queue_offset=row.offset,
    )


@njit(cache=CACHED, nogil=True)
def _records(data, base, start, end, v2, topic, queue_id, first, stop, found):  # type: ignore[no-untyped-def]
    """Where records begin that would be of a queue and in [first, stop), but for one byte; how many."""
    position, count = np.int64(start), 0
    while position < end and count < len(found):
        status, size, _h, _b, _bl, name, length, _p, _pl = _frame(data, base, position, len(data), v2, None)
        if status != _GOOD:
            break
        if length == len(topic):
            transaction = i32(data, position + SYS_FLAG) & TRANSACTION_MASK
            differ = np.int64(transaction in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK))
            differ += _bytes(np.int64(i32(data, position + QUEUE_ID) ^ queue_id) & 0xFFFFFFFF)
            offset = i64(data, position + QUEUE_OFFSET)
            if not first <= offset < stop:
                differ += _bytes(offset ^ first) if stop - first == 1 else 2
            for at in range(length):
                if differ > 1:
                    break
                if u8(data, name + at) != topic[at]:
                    differ += 1
            if differ == 1:
                found[count] = position
                count += 1
        position += size
    return count


@njit(inline="always")
def _bytes(number):  # type: ignore[no-untyped-def]
    """How many bytes of a number aren't 0."""
    count = 0
    for byte in range(8):
        if (number >> (8 * byte)) & 0xFF:
            count += 1
    return count
