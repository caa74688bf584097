"""Queues in RocksDB as a starting broker finds them, and as it leaves them.

A start checks no unit: it dispatches what its walk meets behind the checkpoint key (all of it after a crash),
and moves back the max keys that lead past the log's end. Where a queue begins is looked for when it is asked.

Source: ``RocksDBConsumeQueueStore``, ``RocksDBConsumeQueueOffsetTable``, ``RocksDBConsumeQueueTable``
(rocketmq-all-5.2.0, 5.3.3; 5.5.0 was tried: docs/data/recovery-matrix.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.broker.queues import StartedQueues, WalkedUnits, by_queue
from reput.config.kept import known_topics
from reput.config.settings import StoreSettings
from reput.derived.rocksdb import KeptOpen, KeptQueues, open_queues, searched
from reput.errors import SettingsError, StoreError
from reput.format import rocksdbqueue as keys
from reput.format.dtypes import ROCKSDB_UNIT_DTYPE
from reput.format.names import Queue
from reput.format.rocksdbqueue import UNITS, QueueEnd
from reput.rocksdb import Database
from reput.scan import output
from reput.scan.output import OutputArrays
from reput.scan.table import QueueTable

_I64 = NDArray[np.int64]
_TAIL = 8  # bytes of a key behind its queue's prefix
_LIGHT = "%LMQ%"
#: Bytes of a unit's key and value, as RocksDB has to read them.
UNIT_BYTES = 64


@dataclass(slots=True)
class QueueLeft:
    """A queue in RocksDB after a start; places are queueOffsets."""

    first: int = 0  # its first place, as the broker will say
    following: int = 0  # the place after its last one; 0: it looks empty
    cut: int = 0  # how far its end was moved back, since the log ends before
    missing: int = 0  # messages that the walk met without a unit, and other places of the queue without one
    #: missing_first, missing_last: of the messages that the walk met without one; -1 if it met none
    missing_first: int = -1
    missing_last: int = -1
    position: int = -1  # physical offset of the first of them, -1 if it met none
    wrong: int = 0  # units that lead to a message of another place
    nowhere: int = 0  # units that lead behind the log's end
    before: int = 0  # units of messages of the log before ``first``, which no consumer gets
    behind: int = 0  # the same from ``following`` on; new messages are put over them
    late: int = 0  # how many places its end is behind its last message
    anew: bool = False  # it had no unit, and has some now


class _Run(NamedTuple):
    """Places that came one behind the other: first and last, both physical offsets, and how many came.

    Of batches and light queues fewer come than lie in between.
    """

    first: int
    last: int
    at: int
    to: int
    came: int

    def within(self, first: int, last: int) -> int:
        """How many of them are in [first, last], as if what doesn't come lay outside."""
        return min(max(min(self.last, last) - max(self.first, first) + 1, 0), self.came)


@dataclass(slots=True)
class _Runs:
    """Places as a few runs, for a queue goes on upwards but where its topic was made anew."""

    runs: list[_Run] = field(default_factory=list)

    def add(self, places: _I64, positions: _I64) -> None:
        """Take places in the order in which they came."""
        for part in np.split(np.arange(len(places)), np.flatnonzero(np.diff(places) <= 0) + 1):
            new = _Run(
                int(places[part[0]]),
                int(places[part[-1]]),
                int(positions[part[0]]),
                int(positions[part[-1]]),
                len(part),
            )
            if self.runs and self.runs[-1].last < new.first:
                old = self.runs.pop()
                new = new._replace(first=old.first, at=old.at, came=old.came + new.came)
            elif self.runs:
                self._without(new.first, new.last)
            self.runs.append(new)

    def _without(self, first: int, last: int) -> None:
        """Take away what is about to come again: the later message has the place."""
        kept = []
        for run in self.runs:
            if run.first < first:
                kept.append(
                    run._replace(last=min(run.last, first - 1), came=run.within(run.first, first - 1))
                )
            if run.last > last:
                kept.append(run._replace(first=max(run.first, last + 1), came=run.within(last + 1, run.last)))
        self.runs = kept

    def inside(self, places: _I64) -> NDArray[np.bool_]:
        """Which of the places lie in them."""
        found = np.zeros(len(places), bool)
        for run in self.runs:
            found |= (places >= run.first) & (places <= run.last)
        return found

    def count(self, first: int, last: int) -> int:
        """How many are in [first, last]."""
        return sum(run.within(first, last) for run in self.runs)


@dataclass(slots=True)
class _State:
    last: QueueEnd | None
    first: QueueEnd | None
    given: _Runs = field(default_factory=_Runs)
    lacking: _Runs = field(default_factory=_Runs)
    elsewhere: int = 0
    counted_from: int | None = None
    cut: int = 0
    had: bool = False


class RocksDBModel(StartedQueues):
    """The queues of a store's RocksDB during a start.

    Attributes:
        checkpoint: the checkpoint key; 0 where there is none, as for a broker.
        queues: after :meth:`finish`, every queue.
        unread: units weren't read, for there are too many.
        unreadable: why units couldn't be read; None when they could.
        added: units that the start placed.
    """

    def __init__(self, settings: StoreSettings, kept: KeptQueues, *, clean: bool) -> None:
        self.kept = kept
        self._settings = settings
        self._clean = clean
        self._open: KeptOpen | None = None
        self._batch_topics = settings.batch_topics()
        self.checkpoint = kept.checkpoint or 0
        self.queues: dict[Queue, QueueLeft] = {}
        self.unread = False
        self.unreadable: StoreError | None = None
        self._given = 0
        self._states = {queue: _State(ends.last, ends.first) for queue, ends in kept.ends.items()}

    @property
    def end(self) -> int:
        """The checkpoint key."""
        return self.checkpoint

    def settings_of_walk(self, settings: StoreSettings) -> StoreSettings:
        """``RocksDBConsumeQueueStore.dispatchLMQ`` asks for enableLmq alone, and takes names with a slash."""
        lmq, dialect = settings.rocksdb.lmq, replace(settings.dialect, lmq_rejects_slash=False)
        return replace(settings, enable_multi_dispatch=lmq, enable_lmq=lmq, dialect=dialect)

    def meet(self, out: OutputArrays, table: QueueTable, walked: WalkedUnits) -> None:
        """Do messages that the walk goes through and doesn't dispatch have their units?"""
        walked.add_keys(out)
        if not self._clean or self.unreadable is not None:
            return
        rows = np.arange(int(out.counts[output.UNITS]))
        if self._settings.dialect.recovery.dispatches_after_clean:
            rows = rows[out.unit_position[rows] <= self.checkpoint]
        try:
            if self._open is None and self.kept.exists:
                self._open = KeptOpen(open_queues(self.kept.directory))
            database = None if self._open is None else self._open.database
            for queue, part in by_queue(out, table, rows):
                self._meet(database, queue, out.unit_offset[part], out.unit_position[part])
        except StoreError as error:
            self.unreadable = error

    def give(self, out: OutputArrays, table: QueueTable, after: int, *, hashes: bool) -> int:  # noqa: ARG002
        """See :class:`reput.broker.queues.StartedQueues`."""
        rows = np.flatnonzero(out.unit_position[: int(out.counts[output.UNITS])] > after)
        for queue, part in by_queue(out, table, rows):
            places, positions = out.unit_offset[part], out.unit_position[part]
            state = self._state(queue)
            state.given.add(places, positions)
            state.last = QueueEnd(int(positions[-1]), int(places[-1]))
            self._given += len(part)
        return int(out.unit_position[rows[-1]]) if len(rows) else -1

    def _meet(self, db: Database | None, queue: Queue, places: _I64, positions: _I64) -> None:
        state = self._state(queue)
        held = np.full(len(places), -1, np.int64)
        prefix = keys.prefix(queue[0].encode(), queue[1])
        # Places below zero compare as large: brokers write none.
        low, high = max(int(places.min()), 0), int(places.max())
        blocks = () if db is None else db.blocks(UNITS, _key(prefix, low), _key(prefix, high + 1))
        for names, values in blocks:
            offsets = np.frombuffer(b"".join(name[-_TAIL:] for name in names), ">i8").astype(np.int64)
            found = np.searchsorted(offsets, places)
            found[found == len(offsets)] = 0
            same = offsets[found] == places
            held[same] = _positions(values)[found[same]]
        lacking = held < 0
        if lacking.any():
            state.lacking.add(places[lacking], positions[lacking])
        state.elsewhere += int(((held >= 0) & (held != positions)).sum())

    def truncate(self, log_start: int, end: int, known: int) -> None:  # noqa: ARG002
        """``truncateDirty``, where the log ends before the checkpoint; all up to there was dispatched before.

        Queues whose topic isn't in the broker's settings aren't looked at.
        """
        if self._given:
            self.checkpoint = end
        if end >= self.checkpoint:
            return
        self.checkpoint = end
        try:
            topics = known_topics(self._settings.config)
        except SettingsError:
            topics = None
        past = [
            (queue, state, state.last.queue_offset)
            for queue, state in self._states.items()
            if state.last is not None
            and state.last.position >= end
            and (topics is None or queue[0] in topics)
        ]
        if not past or not self.kept.exists:
            return
        try:
            self._truncate(past, log_start, end)
        except StoreError as error:
            self.unreadable = error

    def _truncate(self, past: list[tuple[Queue, _State, int]], log_start: int, end: int) -> None:
        with open_queues(self.kept.directory) as db:
            for queue, state, last in past:
                first = self._first(db, queue, state, log_start)
                at = self._search(db, queue, state, first, last, end, least=False)
                # Where nothing is left it keeps the queue's first message, whatever that leads to.
                state.last = at or QueueEnd(end, first)
                state.cut = last - state.last.queue_offset

    def finish(self, log_start: int, log_end: int, most: int | None) -> None:
        """Where the queues begin and end then, and what they lead to.

        ``log_start``, ``log_end``: where the log begins and ends, physical offsets. ``most``: bytes to read
        at most; None for all.
        """
        self.added, self._open = self._given, None
        if self.kept.exists:
            self.unread = most is not None and self.kept.units * UNIT_BYTES > most
            try:
                with open_queues(self.kept.directory) as db:
                    self._begin(db, log_start)
                    if not self.unread:
                        self._count(db, log_start, log_end)
            except StoreError as error:
                self.unreadable = error
        else:
            self._begin(None, log_start)
        for queue, state in self._states.items():
            left = self.queues.setdefault(queue, QueueLeft())
            left.cut, left.anew = state.cut, not state.had and bool(state.given.runs)
            if not self.kept.exists:
                self._settle(queue, left, state, _Tally())
            self._add_lacking(left, state)

    def _state(self, queue: Queue) -> _State:
        state = self._states.get(queue)
        if state is None:
            state = self._states[queue] = _State(None, None)
        return state

    def _begin(self, db: Database | None, log_start: int) -> None:
        """Where each queue begins and ends."""
        for queue, state in self._states.items():
            left = self.queues[queue] = QueueLeft()
            left.following = 0 if state.last is None else state.last.queue_offset + 1
            left.first = self._first(db, queue, state, log_start)

    def _first(self, db: Database | None, queue: Queue, state: _State, log_start: int) -> int:
        """``getMinCqOffset``."""
        last, first = state.last, state.first
        low = 0 if first is None else first.queue_offset
        if first is not None and first.position >= log_start:
            return low
        if last is None:
            return 0
        if last.position < log_start:
            return last.queue_offset + 1
        at = self._search(db, queue, state, low, last.queue_offset, log_start, least=True)
        return last.queue_offset if at is None else at.queue_offset

    def _search(
        self,
        db: Database | None,
        queue: Queue,
        state: _State,
        low: int,
        high: int,
        target: int,
        *,
        least: bool,
    ) -> QueueEnd | None:
        prefix = keys.prefix(queue[0].encode(), queue[1])
        return searched(lambda at: self._position(db, prefix, state, at), low, high, target, least=least)

    def _position(self, db: Database | None, prefix: bytes, state: _State, place: int) -> int | None:
        for run in state.given.runs:
            if (
                run.first <= place <= run.last
            ):  # in between: so is the offset, and none is searched that lies there
                return run.at if place == run.first else run.to
        value = None if db is None else db.get(UNITS, _key(prefix, place))
        unit = None if value is None else keys.parse_unit(value)
        return None if unit is None else unit.position

    def _count(self, db: Database, log_start: int, log_end: int) -> None:
        tallies: dict[Queue, _Tally] = {}
        for queue, places, positions in _scanned(db):
            state = self._state(queue)
            state.had = True
            if queue not in self.queues:  # it has no key of an end
                self.queues[queue] = QueueLeft()
            if queue not in tallies:
                self._close(tallies)
                tallies[queue] = _Tally()
            tallies[queue].add(self.queues[queue], state, places, positions, log_start, log_end)
        self._close(tallies)
        seen = {queue for queue, state in self._states.items() if state.had}
        for queue, state in self._states.items():
            if queue not in seen:
                self._settle(queue, self.queues[queue], state, _Tally())

    def _close(self, tallies: dict[Queue, _Tally]) -> None:
        """Settle the queues whose units have all come, so that memory doesn't grow with the queues."""
        for queue, tally in tallies.items():
            self._settle(queue, self.queues[queue], self._states[queue], tally)
        tallies.clear()

    def _settle(self, queue: Queue, left: QueueLeft, state: _State, tally: _Tally) -> None:
        """What a queue leads to, once its units are counted."""
        left.wrong, left.nowhere = max(tally.wrong, state.elsewhere - tally.nowhere), tally.nowhere
        left.before, left.behind = tally.before + state.given.count(0, left.first - 1), tally.behind
        last, high, at = left.following - 1, tally.high, tally.at
        # A batch has one place for all its messages; a light queue's places may be left out by its broker.
        if last < left.first or queue[0] in self._batch_topics or queue[0].startswith(_LIGHT):
            return
        low = min(
            [left.first, *(run.first for run in state.given.runs), *([tally.low] if tally.low >= 0 else [])]
        )
        for run in state.given.runs:
            if high < run.last <= last:
                high, at = run.last, run.to
        state.counted_from = low
        missing = last - low + 1 - tally.present - state.given.count(low, last)
        if state.last is not None and high < last and 0 <= at and at >= state.last.position:
            left.late = last - high
            missing -= left.late
        left.missing = max(missing, 0)

    def _add_lacking(self, left: QueueLeft, state: _State) -> None:
        runs = state.lacking.runs
        if not runs:
            return
        left.missing_first, left.missing_last = min(run.first for run in runs), max(run.last for run in runs)
        left.position = min(run.at for run in runs)
        low = left.first if state.counted_from is None else state.counted_from
        inside = state.lacking.count(low, left.following - 1)
        outside = sum(run.came for run in runs) - inside
        left.missing = (max(left.missing, inside) if not self.unread else inside) + outside


@dataclass(slots=True)
class _Tally:
    """What is counted of a queue's units while they come, in the order of their places."""

    present: int = 0  # units of messages up to the queue's last place that the start didn't write
    low: int = -1  # the first such place, -1 without one
    #: high, at: the last such place between the queue's ends and its physical offset, -1 without one
    high: int = -1
    at: int = -1
    wrong: int = 0  # wrong, nowhere, before, behind: see :class:`QueueLeft`
    nowhere: int = 0
    before: int = 0
    behind: int = 0

    def add(
        self, left: QueueLeft, state: _State, places: _I64, positions: _I64, log_start: int, log_end: int
    ) -> None:
        """Take the next units of the queue."""
        alive = (positions >= log_start) & (positions < log_end)
        given = state.given.inside(places)
        old = ~given
        last = left.following - 1
        beyond = state.last.position if state.last is not None else -1
        self.before += int((old & alive & (places < left.first)).sum())
        self.behind += int((old & alive & (places > last) & (positions > beyond)).sum())
        here = np.flatnonzero(old & (alive | (places >= left.first)) & (places <= last))
        self.present += len(here)
        if len(here) and self.low < 0:
            self.low = int(places[here[0]])
        rows = np.flatnonzero(old & (places >= left.first) & (places <= last))
        if not len(rows):
            return
        at = positions[rows]
        following = np.append(at[1:], np.int64(1) << 62)
        for run in state.given.runs:
            row = int(np.searchsorted(places[rows], run.first)) - 1
            if row >= 0:
                following[row] = min(int(following[row]), run.at)
        if int(at[0]) < self.at < log_end:
            self.wrong += 1
        self.wrong += int(((at < log_end) & (at > following)).sum())
        self.nowhere += int((at >= log_end).sum())
        self.high, self.at = int(places[rows[-1]]), int(at[-1])


def _scanned(db: Database) -> Iterator[tuple[Queue, _I64, _I64]]:
    """(queue, places, physical offsets) of all units, in order of the keys; a queue may come in pieces."""
    for names, values in db.blocks(UNITS):
        lengths = np.fromiter(map(len, names), np.int64, len(names))
        positions = _positions(values)
        for rows in np.split(np.arange(len(names)), np.flatnonzero(np.diff(lengths)) + 1):
            length, start = int(lengths[rows[0]]), int(rows[0])
            if length < keys.UNIT_KEY_LENGTH:
                continue
            same = np.frombuffer(b"".join(names[start : start + len(rows)]), np.uint8).reshape(-1, length)
            places = np.ascontiguousarray(same[:, -_TAIL:]).view(">i8")[:, 0].astype(np.int64)
            changes = np.flatnonzero((same[1:, :-_TAIL] != same[:-1, :-_TAIL]).any(axis=1)) + 1
            for part in np.split(np.arange(len(rows)), changes):
                key = keys.parse_unit_key(names[start + int(part[0])])
                if key is not None:
                    queue = key.topic.decode("utf-8", "replace"), key.queue_id
                    yield queue, places[part], positions[start + part]


def _positions(values: tuple[bytes, ...]) -> _I64:
    """The physical offsets of units; far beyond any log for a value that is none."""
    if all(len(value) == keys.UNIT_LENGTH for value in values):
        return np.frombuffer(b"".join(values), ROCKSDB_UNIT_DTYPE)["position"].astype(np.int64)
    units = (keys.parse_unit(value) for value in values)
    return np.array([1 << 62 if unit is None else unit.position for unit in units], np.int64)


def _key(prefix: bytes, place: int) -> bytes:
    return prefix + place.to_bytes(_TAIL, "big")
