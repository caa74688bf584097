"""Where the units of irregular queues go, in log order, by the rules; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.build.placement import (
    Breaks,
    Gap,
    Oddity,
    Placement,
    giving_way,
    is_unproven,
    last_is_lone_zero,
    place,
)
from reput.config.settings import StoreSettings
from reput.derived.plain import QueueReader
from reput.errors import Finding
from reput.format import names
from reput.format.commitlog import LMQ_PREFIX
from reput.format.consumequeue import UNIT, UNIT_LENGTH, unit
from reput.format.dtypes import UNIT_DTYPE
from reput.format.names import Queue
from reput.replay.part_result import PartResult, QueueRows
from reput.replay.state import FILLED, HIDDEN, LoneZero, QueueState, Salvaged
from reput.scan.rules import Part
from reput.store.reading import pread, reading

# Who finds them says what to do; :mod:`reput.export` knows how they are told from others.

#: A queue that begins at 0 again: its topic was created again, or it was lost and no start has made it.
QUEUE_RESTARTED = "queue-restarted"
#: A message of which a byte has changed that says what queue, or what place in it, it is of.
ALTERED = "altered-message"
CREATED_AGAIN = "the topic was created again, or its queues were lost: the newest messages alone are kept"
#: What stands in a message's place of its queue.
ITSELF, NOTHING, ANOTHER = 0, 1, 2
#: By the names of findings: what stands in the place of such a message.
BY_UNIT = {
    "no-queues": {NOTHING},
    "queue-file-missing": {NOTHING},
    "missing-unit": {NOTHING},
    "wrong-unit": {ANOTHER},
    "repeated-queue-offset": {ANOTHER},
    "queue-begins-late": {NOTHING, ANOTHER},
    "queue-restarted": {NOTHING, ANOTHER},
    "unproven-message": {NOTHING, ANOTHER},
}
#: Losses of a start that are ranges of the log.
BY_RANGE = frozenset({"log-cut", "segment-deleted"})
#: The kinds that can be asked for.
KINDS = (*BY_UNIT, *sorted(BY_RANGE))
#: No mending has a place for these: only sending them anew brings them to consumers. All others are brought
#: back by a mending; sent anew besides, consumers would get them twice.
WITHOUT_PLACE = frozenset({"repeated-queue-offset", "queue-restarted", "unproven-message"})


def save_steps(kinds: Iterable[str], command: Callable[..., str]) -> list[str]:
    """Next steps that save the messages of findings which no mending brings back.

    ``command`` makes a command about the store of its name and its words.
    """
    found = {*kinds} & WITHOUT_PLACE
    # Whatever has another's unit in its place is among those that no unit leads to.
    wide = {kind for kind in found if ANOTHER in BY_UNIT[kind] and NOTHING in BY_UNIT[kind]}
    chosen = [min(wide)] if wide else sorted(found)
    return [
        f"`{command('export', '--finding', kind, '-o', f'{kind}.jsonl')}` saves the messages that no queue "
        "has a place for"
        for kind in chosen
    ]


#: Messages of one queue and batch that are listed one by one; one more row stands for the rest.
MOST_HIDDEN = 4096

_EXPECTED = "the queueOffset that is due"
_OUTCOMES = {
    "repeated-message": "one unit was kept",
    "repeated-queue-offset": "the first keeps its place; these can only be read by physical offset",
    QUEUE_RESTARTED: CREATED_AGAIN,
    "missing-queue-offsets": "the hole was filled with the unit after it, so that consumers lose no message",
    "queue-offset-jump": "appended at the due place, as the broker's dispatch does",
}


_FILL_AT_ONCE = 1 << 16  # units


@dataclass(frozen=True, slots=True)
class QueueOutcome:
    """The result of placing one irregular queue."""

    topic: str  # topic, queue_id: the queue
    queue_id: int
    state: QueueState | None  # as of the end of the batch; None when it has no units at all
    restarted: bool  # it was created again in this batch
    findings: list[Finding]  # what was odd
    #: holes that were filled, and messages that the queue can't show
    salvaged: list[Salvaged] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)  # queueOffsets that it misses without damage


class Placed(NamedTuple):
    """Where a queue's units go."""

    rows: QueueRows  # those that are placed, with one before them where the committed state requires it
    placement: Placement  # their places
    state: QueueState | None  # the queue afterwards
    hidden: QueueRows  # unproven ones, which are dropped in favour of proven ones


def placed_anew(
    settings: StoreSettings,
    queue: Queue,
    rows: QueueRows,
    committed: QueueState | None,
    breaks: Breaks,
    *,
    from_zero: bool,
) -> Placed:
    """Where a queue's units, given in log order, go by the rules; nothing is written.

    ``settings`` are the store's. ``committed`` is its state before them, None for a new queue. ``from_zero``:
    nothing of the log has expired.
    """
    begins = own_unit(settings, queue, 0) if (rows.offset == 0).any() else None
    rows, hidden, committed = proven_first(rows, committed, breaks)
    if committed is not None and committed.lone_zero is not None:
        rows = _with_unit_before(committed.lone_zero, rows)

    def placed(count: int) -> Placement:
        return place(
            rows.offset[:count],
            rows.position[:count],
            rows.size[:count],
            committed.first if committed else None,
            committed.next if committed else 0,
            committed.end if committed else -1,
            committed.shift if committed else 0,
            breaks.places,
            from_zero=from_zero,
            begin=-1 if begins is None else begins[0],
        )

    placement = placed(len(rows.offset))
    runs = [(first, stop) for _offset, first, stop in placement.runs]
    last = runs[-1][1] - 1 if runs else -1
    state = committed
    if placement.first is not None:
        state = QueueState(
            first=placement.first,
            next=placement.next,
            end=int(rows.position[last] + rows.size[last]) if runs else (committed.end if committed else -1),
            units=sum(stop - first for first, stop in runs),
            bytes=sum(int(rows.size[first:stop].sum()) for first, stop in runs),
            shift=placement.shift,
            lone_zero=_lone_zero(rows, placement),
        )
        proven = np.flatnonzero(~is_unproven(rows.position, breaks))
        if not len(proven) and committed is not None:
            state = replace(state, unproven=committed.proven_next)
        elif not len(proven) or proven[-1] + 1 < len(rows.offset):
            before = placed(int(proven[-1]) + 1).next if len(proven) else placement.first
            state = replace(state, unproven=before)
    return Placed(rows, placement, state, hidden)


def own_unit(settings: StoreSettings, queue: Queue, queue_offset: int) -> tuple[int, int, int] | None:
    """The whole unit in a queue's own file: physicalOffset, size (bytes) and tagsCode; None without one."""
    at = queue_offset * UNIT_LENGTH
    path = names.queue_file(settings.root, *queue, at - at % settings.consume_queue_file_size)
    try:
        with reading(path, by_ranges=True) as descriptor:
            data = pread(path, descriptor, UNIT_LENGTH, at - int(path.name))
    except OSError:  # whoever compares the file's units tells
        return None
    return UNIT.unpack(data) if len(data) == UNIT_LENGTH else None


def proven_first(
    rows: QueueRows, committed: QueueState | None, breaks: Breaks
) -> tuple[QueueRows, QueueRows, QueueState | None]:
    """Drop unproven messages of a queue, given in log order, in favour of proven ones.

    Returns the rows to place; those that are dropped; the queue without the unproven units at its end that a
    row contradicts.
    """
    unproven = is_unproven(rows.position, breaks)
    hidden = giving_way(rows.offset, unproven, 0 if committed is None else committed.proven_next)
    left = rows.only(~hidden)
    if (
        committed is not None
        and committed.unproven is not None
        and len(left.offset)
        and committed.unproven <= left.offset[0] < committed.next
    ):
        committed = replace(committed, next=int(left.offset[0]), shift=0, lone_zero=None)
    return left, rows.only(hidden), committed


def findings_of(parts: list[Part], queue: Queue, rows: QueueRows, placement: Placement) -> list[Finding]:
    """What was odd about a queue."""
    return [_finding(parts, *queue, rows, oddity) for oddity in _grouped(placement.oddities)]


def unproven_of(parts: list[Part], queue: Queue, hidden: QueueRows) -> Iterator[Finding]:
    """One finding for a queue's unproven messages that were dropped in favour of proven ones."""
    if len(hidden.offset):
        first, last = int(hidden.position[0]), int(hidden.position[-1] + hidden.size[-1])
        yield Finding(
            kind="unproven-message",
            path=path_of(parts, first),
            offset=first,
            end=last,
            expected="a queueOffset between those of the proven messages before and behind",
            found=f"{int(hidden.offset[0])}, of what may be part of a message's body",
            outcome="no unit was written; it can only be read by physical offset",
            topic=queue[0],
            queue_id=queue[1],
            queue_offset=int(hidden.offset[0]),
            count=len(hidden.offset),
        )


def salvaged_of(queue: Queue, rows: QueueRows, placement: Placement) -> Iterator[Salvaged]:
    """The holes of a queue that were filled, and the messages that it can't show."""
    topic, queue_id = queue
    left = MOST_HIDDEN
    rest: list[Oddity] = []
    for oddity in placement.oddities:
        if oddity.kind == "missing-queue-offsets":
            begin, end = oddity.after, int(rows.position[oddity.row])
            yield Salvaged(FILLED, begin, end, topic, queue_id, oddity.queue_offset, oddity.count)
        elif oddity.kind == "repeated-queue-offset":
            listed = min(oddity.count, left)
            left -= listed
            for row in range(oddity.row, oddity.row + listed):
                begin = int(rows.position[row])
                end, queue_offset = begin + int(rows.size[row]), int(rows.offset[row])
                yield Salvaged(HIDDEN, begin, end, topic, queue_id, queue_offset)
            if listed < oddity.count:
                rest.append(Oddity(oddity.kind, oddity.row + listed, 0, 0, oddity.count - listed))
    if rest:
        first, last = rest[0].row, rest[-1].row + rest[-1].count - 1
        yield Salvaged(
            HIDDEN,
            int(rows.position[first]),
            int(rows.position[last] + rows.size[last]),
            topic,
            queue_id,
            int(rows.offset[first]),
            sum(oddity.count for oddity in rest),
        )


def hidden_of(queue: Queue, rows: QueueRows) -> Iterator[Salvaged]:
    """Unproven messages that were dropped for proven ones, the first :data:`MOST_HIDDEN` one by one."""
    for row in range(min(len(rows.offset), MOST_HIDDEN)):
        begin = int(rows.position[row])
        yield Salvaged(HIDDEN, begin, begin + int(rows.size[row]), *queue, int(rows.offset[row]))


def path_of(parts: list[Part], position: int) -> str:
    """The segment that holds a physical offset which one of these parts scanned; empty where none did."""
    return next((one.path for one in parts if one.base <= position < one.base + one.segment_size), "")


def _lone_zero(rows: QueueRows, placement: Placement) -> tuple[int, int, int] | None:
    """The last unit, if :func:`last_is_lone_zero`."""
    if not last_is_lone_zero(placement.next, placement.shift):
        return None
    return int(rows.position[-1]), int(rows.size[-1]), int(rows.tags[-1])


def _with_unit_before(unit_before: LoneZero, rows: QueueRows) -> QueueRows:
    """The rows with the queue's last unit, a lone queueOffset 0, put before them."""
    position, size, tags, *_ = unit_before
    first = QueueRows(
        np.zeros(1, np.int64), np.array([position]), np.array([size], np.int32), np.array([tags])
    )
    return QueueRows(*map(np.concatenate, zip(*[first, rows], strict=True)))


def pieces(rows: QueueRows, placement: Placement) -> Iterator[tuple[int, bytes]]:
    """A placement as bytes: (queueOffset of the first unit, packed units), the fills of holes last."""
    for queue_offset, first, stop in placement.runs:
        packed = np.empty(stop - first, UNIT_DTYPE)
        packed["position"] = rows.position[first:stop]
        packed["size"] = rows.size[first:stop]
        packed["tags"] = rows.tags[first:stop]
        yield queue_offset, packed.tobytes()
    for queue_offset, end, row in placement.fills:
        filler = unit(int(rows.position[row]), int(rows.size[row]), int(rows.tags[row]))
        for start in range(queue_offset, end, _FILL_AT_ONCE):
            yield start, filler * min(_FILL_AT_ONCE, end - start)


def _grouped(oddities: list[Oddity]) -> list[Oddity]:
    """One oddity a kind, with the count of all; holes are listed one by one."""
    grouped: dict[str, Oddity] = {}
    holes = []
    for oddity in oddities:
        if oddity.kind == "missing-queue-offsets":
            holes.append(oddity)
        elif oddity.kind in grouped:
            first = grouped[oddity.kind]
            grouped[oddity.kind] = replace(first, count=first.count + oddity.count)
        else:
            grouped[oddity.kind] = oddity
    return [*grouped.values(), *holes]


def _finding(parts: list[Part], topic: str, queue_id: int, rows: QueueRows, oddity: Oddity) -> Finding:
    position = int(rows.position[oddity.row])
    return Finding(
        kind=oddity.kind,
        path=path_of(parts, position),
        offset=position,
        end=position + int(rows.size[oddity.row]),
        expected=f"{_EXPECTED}, {oddity.expected}",
        found=str(int(rows.offset[oddity.row])),
        outcome=_OUTCOMES[oddity.kind],
        topic=topic,
        queue_id=queue_id,
        queue_offset=oddity.queue_offset,
        count=oddity.count,
    )


_KNOWN = np.dtype(
    [(name, np.int64) for name in ("first", "next", "end", "units", "bytes", "position")]
    + [("going_on", np.bool_)]
)
#: How far before its queueOffset the unit of a light queue's first message is looked for.
_MOST_DRIFT = 4096
_LIGHT = LMQ_PREFIX.decode()


def _unit_before(reader: QueueReader, queue: Queue, first: int, position: int) -> int:
    """Where a message's unit stands that belongs at ``first`` or before; ``first`` where that isn't seen."""
    for start in (first, max(first - _MOST_DRIFT, 0)):  # nearly all stand in their own places
        try:
            units = np.frombuffer(reader.read(*queue, start, first - start + 1), UNIT_DTYPE)
        except OSError:
            break
        found = np.flatnonzero(units["position"] == position)
        if len(found):
            return start + int(found[-1])
    return first


class Regular(NamedTuple):
    """Queues of a batch with queueOffsets that go on without a hole."""

    queues: list[Queue]  # all of the batch's
    chosen: NDArray[np.bool_]  # bool[queues], these among them
    #: int64[queues], the next queueOffset before the batch, -1 where there was no such queue
    before: NDArray[np.int64]
    #: of each part, in log order, int64[its queues]: which of the batch's they are
    of_parts: list[NDArray[np.int64]]


class BatchQueues:
    """The queues of a batch, updated part by part; all parts are added before anything is asked.

    The queues in ``committed``, before the batch, are not changed.
    """

    def __init__(self, committed: Mapping[Queue, QueueState]) -> None:
        self._committed = committed
        # Numbers of the batch's queues, and what is known of each: a batch may have a million.
        self._numbers: dict[Queue, int] = {}
        self._known = np.empty(0, _KNOWN)
        self._of_parts: list[NDArray[np.int64]] = []
        self._irregular: set[Queue] = set()
        self._ordered: set[Queue] = set()
        self._restarted: set[Queue] = set()
        #: before the batch, light queues that it begins and a broker has begun before their queueOffsets
        self.anchored: dict[Queue, QueueState] = {}
        self.last_unit_position = -1
        self.last_unit_timestamp = 0

    def add(self, result: PartResult) -> None:
        """Add a part's queues."""
        columns = result.queues
        queues, numbers = columns.queues(), self._numbers
        count = len(numbers)
        rows = np.array([numbers.setdefault(queue, len(numbers)) for queue in queues], np.int64)
        self._of_parts.append(rows)
        self._ordered.update(result.waiting)
        if not queues:
            return
        self._make_room(count)
        known = self._known
        going_on = known["going_on"][rows]
        wrong = (columns.irregular != 0) | (going_on & (columns.first != known["next"][rows]))
        # A queue in log order is written when all parts are known; until then its state is a guess.
        self._irregular.update(
            queue
            for queue in map(queues.__getitem__, np.flatnonzero(wrong).tolist())
            if queue not in self._ordered
        )
        known["first"][rows] = np.where(going_on, known["first"][rows], columns.first)
        known["position"][rows] = np.where(going_on, known["position"][rows], columns.first_position)
        known["going_on"][rows] = True
        known["next"][rows], known["end"][rows] = columns.next, columns.end
        known["units"][rows] += columns.units
        known["bytes"][rows] += columns.bytes
        last = int(np.argmax(columns.last_position))
        if columns.last_position[last] > self.last_unit_position:
            self.last_unit_position = int(columns.last_position[last])
            self.last_unit_timestamp = int(columns.last_timestamp[last])

    def _make_room(self, count: int) -> None:
        """Make room for the queues from the number ``count`` on, and note what is committed of them."""
        missing = len(self._numbers) - len(self._known)
        if missing > 0:
            self._known = np.concatenate([self._known, np.zeros(max(missing, count), _KNOWN)])
        if not self._committed:
            return
        for queue, number in islice(self._numbers.items(), count, None):
            state = self._committed.get(queue)
            if state is not None:
                self._known["first"][number], self._known["next"][number] = state.first, state.next
                self._known["going_on"][number] = True

    @cached_property
    def _now(self) -> dict[Queue, QueueState]:
        columns = (self._known[name].tolist() for name in ("first", "next", "end", "units", "bytes"))
        return dict(zip(self._numbers, map(QueueState, *columns), strict=False))

    def distrust(self, result: PartResult) -> None:
        """A part was rejected, but its units may be in files: place these queues again."""
        if result.in_files:
            self._irregular.update(queue for queue in result.queues.queues() if queue not in result.waiting)

    def doubt_heads(self) -> None:
        """Place new queues again that lack messages before their first one, of a log that begins at 0."""
        for queue, state in self._now.items():
            if state.first and queue not in self._committed and queue not in self._ordered:
                self._irregular.add(queue)

    def anchor(self, settings: StoreSettings) -> None:
        """Place new light queues again as a broker has them, of a log whose head has expired.

        Where a message names a queue twice it counts two queueOffsets and puts one unit, so that all later
        units stand before their queueOffsets. Once that message has expired, the first unit alone shows it.
        """
        if not settings.enable_multi_dispatch:
            return
        with QueueReader(settings.root, settings.consume_queue_file_size) as reader:
            for queue, number in self._numbers.items():
                if not queue[0].startswith(_LIGHT) or queue in self._committed:
                    continue
                first, position = (int(self._known[name][number]) for name in ("first", "position"))
                place = _unit_before(reader, queue, first, position)
                if place < first:
                    self.anchored[queue] = QueueState(place, place, position, shift=first - place)
                    if queue not in self._ordered:
                        self._irregular.add(queue)

    def doubt(self, breaks: Breaks, largest_record: int) -> None:
        """Place queues again if their last messages are unproven: later ones may contradict them.

        ``breaks`` have the byte ranges in which an unproven record begins.
        """
        for start, end in breaks.unproven:
            for queue, state in self._now.items():
                if start < state.end <= end + largest_record and queue not in self._ordered:
                    self._irregular.add(queue)

    def regular(self) -> Regular:
        """The other consume queues that the batch changed."""
        apart = self._irregular | self._ordered
        queues = list(self._numbers)
        chosen = np.ones(len(queues), bool)
        chosen[[self._numbers[queue] for queue in apart if queue in self._numbers]] = False
        before = np.full(len(queues), -1, np.int64)
        for number, queue in enumerate(queues) if self._committed else ():
            state = self._committed.get(queue)
            if state is not None:
                before[number] = state.next
        return Regular(queues, chosen, before, self._of_parts)

    def irregular(self) -> dict[Queue, QueueState | None]:
        """The queues to place again, with their states before the batch."""
        return self.before(self._irregular)

    def before(self, queues: Iterable[Queue]) -> dict[Queue, QueueState | None]:
        """These queues, with their states before the batch."""
        return {queue: self._committed.get(queue, self.anchored.get(queue)) for queue in sorted(queues)}

    def replace(self, outcome: QueueOutcome) -> None:
        """Take the result of placing a queue again."""
        queue = (outcome.topic, outcome.queue_id)
        if outcome.state is None or outcome.state == self._committed.get(queue):
            self._now.pop(queue, None)
        else:
            self._now[queue] = outcome.state
        if outcome.restarted:
            self._restarted.add(queue)

    def changed(self) -> dict[Queue, QueueState]:
        """The queues that the batch changed."""
        return self._now

    def new(self) -> Iterator[tuple[Queue, QueueState]]:
        """Consume queues that begin in the batch: new ones, and those that begin again."""
        for queue, state in self._now.items():
            if not state.is_batch and (queue not in self._committed or queue in self._restarted):
                yield queue, state

    def restarted(self) -> Iterator[tuple[Queue, QueueState | None, QueueState]]:
        """Queues that begin again, with their states before the batch and now."""
        for queue in sorted(self._restarted):
            if queue in self._now:
                yield queue, self._committed.get(queue), self._now[queue]

    def going_on(self) -> Iterator[Queue]:
        """The queues that the batch adds to."""
        return (queue for queue in self._now if queue not in self._restarted)

    def ranges(self, file_size: int) -> Iterator[tuple[Queue, tuple[int, int]]]:
        """For each changed consume queue, the byte range, in whole files, that it may have written."""
        for queue, state in self._now.items():
            if state.is_batch:
                continue
            before = self._committed.get(queue)
            fresh = before is None or queue in self._restarted
            start = (state.first if fresh or before is None else before.next) * UNIT_LENGTH
            yield queue, (start - start % file_size, state.next * UNIT_LENGTH)
