"""Digests of a log and its queues, range by range: two hosts are compared by a small file, without a copy.

A range is told by what it counts (physical offsets, queueOffsets), not by its file, so that stores with other
file sizes, or with a head that has expired, are compared where both have something. What lies before or
behind the other's log is no difference, nor are units that lead there; all else that only one has is. Index
files aren't looked at: each host names and fills them by its own clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from reput.config.settings import StoreSettings
from reput.derived.plain import QueueView
from reput.derived.queues import Queues, Unbatched
from reput.dump.commitlog import of_log
from reput.dump.places import LogPlace, log_place
from reput.errors import Fact, RemoteStoreError, ReputError, Result, SettingsError
from reput.format import names
from reput.format.consumequeue import PRE_BLANK_SIZE, UNIT_LENGTH
from reput.format.names import Queue
from reput.log.segments import open_segment
from reput.store import files
from reput.store.lock import may_be_running
from reput.store.places import write_alone
from reput.words import SCHEMA_VERSION, counted

#: Bytes of log, and units of a queue, in a range; ranges begin at their multiples.
LOG_RANGE, QUEUE_RANGE = 16 << 20, 1 << 16
_LOG, _QUEUE = "commitlog", "queue"
_UNTOLD = "; whether they should be isn't told by a file of 1.0"
Listener = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Digest:
    """A range and its digest."""

    topic: str | None  # topic, queue_id: of a queue; None for the log
    queue_id: int | None
    start: int  # start, end: half open: physical offsets of the log, queueOffsets of a queue
    end: int
    sha256: str  # of its bytes, in hexadecimal digits; of a queue empty where not all units are there
    first: int | None = None  # first, last: physical offsets that its first and last unit lead to, if any
    last: int | None = None


@dataclass(frozen=True, slots=True)
class _File:
    """A file of digests."""

    store: str  # as it is named there
    start: int  # start, end: of its log, physical offsets
    end: int
    dispatched: int | None  # up to which physical offset its queues have all units; None where it isn't said
    queues: set[Queue]
    digests: list[Digest]


@dataclass(frozen=True, slots=True)
class Differs(Fact):
    """Something that isn't the same.

    Attributes:
        kind: ``log-differs``, ``log-only-here`` or ``log-only-there``; likewise of a queue.
        topic, queue_id: of a queue.
        start, end: as :class:`Digest`; 0 where only one has the queue.
    """

    topic: str | None = None
    queue_id: int | None = None
    start: int = 0
    end: int = 0

    @property
    def said(self) -> str:
        """What differs, and where."""
        queue, span = f"{self.topic}:{self.queue_id}", f"{self.start} to {self.end}"
        part = f"all {{}} in queueOffsets {span}" if self.end else "{}"
        return {
            "log-differs": f"{span} of the log isn't the same",
            "queue-differs": f"{queue} isn't the same in queueOffsets {span}",
            "log-only-here": f"{span} of the log is here and not there",
            "log-only-there": f"{span} of the log is there and not here",
            "queue-only-here": f"{queue} is here and not {part.format('there')}",
            "queue-only-there": f"{queue} is there and not {part.format('here')}",
        }[self.kind]

    def to_dict(self) -> dict[str, object]:
        """As :meth:`Fact.to_dict`."""
        facts = Fact.to_dict(self)
        if self.topic is None:
            return {**facts, "physical_offset": self.start, "physical_end": self.end}
        places = {"queue_offset": self.start, "queue_end": self.end} if self.end else {}
        return {**facts, **places}


@dataclass(slots=True)
class Written(Result):
    """A file of digests that was written."""

    settings: StoreSettings  # the store's
    out: Path  # the file
    start: int  # start, end: of the log, physical offsets
    end: int
    ranges: int = 0  # ranges, queues: how many
    queues: int = 0
    #: gaps of the log, and queues that can't be read, or have a gap, in words
    not_read: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0, or 1 when log or a queue isn't whole."""
        return int(bool(self.not_read))


@dataclass(slots=True)
class Compared(Result):
    """What came of a comparison with a file of digests."""

    hidden: ClassVar[tuple[str, ...]] = ("unsure",)

    settings: StoreSettings  # the store's
    against: Path  # the file
    against_store: str  # the store that it is of, as it was named there
    same_ranges: int = 0  # ranges that are the same
    findings: list[Differs] = field(default_factory=list)  # what isn't
    not_read: list[str] = field(default_factory=list)  # what wasn't compared, in words
    unsure: bool = False  # something should have been compared and couldn't be

    @property
    def exit_code(self) -> int:
        """0 when all that both have is the same, and they have something."""
        return int(bool(self.findings) or not self.same_ranges or self.unsure)

    @property
    def verdict(self) -> str:
        """For programs, in the words of ``check --against``: whether all that was compared is the same."""
        return "unknown" if self.exit_code else "same"

    @property
    def text(self) -> str:
        """Whether the store is the same, in a sentence."""
        if not self.findings and not self.same_ranges:
            return f"Nothing of {self.settings.root} could be compared with {self.against_store}"
        if not self.findings and self.unsure:
            what = f"Not all that {self.settings.root} and {self.against_store} have could be compared"
            return f"{what}; the same: {counted(self.same_ranges, 'range')}"
        if not self.findings:
            where = "" if not self.not_read else " where both have something"
            ranges = counted(self.same_ranges, "range")
            return f"{self.settings.root} is the same as {self.against_store}{where}: {ranges}"
        findings = counted(len(self.findings), "finding")
        return f"{self.settings.root} isn't the same as {self.against_store}: {findings}"

    def compared(self, one: Digest, found: str, path: Path) -> None:
        """Take a range's digest as it is here."""
        if found == one.sha256:
            self.same_ranges += 1
        else:
            kind = "differs" if one.sha256 else "only-here"
            self.found(f"{'log' if one.topic is None else 'queue'}-{kind}", path, one)

    def found(self, kind: str, path: Path, one: Digest) -> None:
        """Take a finding about a range."""
        self.findings.append(Differs(kind, str(path), one.topic, one.queue_id, one.start, one.end))

    def more(self) -> dict[str, object]:
        """The verdict, for programs and in a sentence."""
        return {"verdict": self.verdict, "summary": self.text}


class _Bytes:
    """A store's log and queues as bytes by range."""

    def __init__(self, store: Path, broker_conf: Path | None, version: str | None) -> None:
        self.place: LogPlace = log_place(store, broker_conf, version)
        self.settings = self.place.settings
        extent = of_log(self.place)
        self.start, self.end = extent.start, extent.end
        self._queues: dict[Queue, Unbatched] = {}
        self._all = Queues(self.settings)
        self.dispatched = self._dispatched()

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Ranges of the log without a gap, half open."""
        segments = self.place.log.segments
        begin = self.start
        for one, other in pairwise(segments):
            if one.base + one.length != other.base and other.base < self.end:
                yield begin, min(one.base + one.length, self.end)
                begin = other.base
        yield begin, self.end

    def log(self, start: int, end: int) -> str | None:
        """The digest of a range of the log; None where not all of it is here."""
        found = hashlib.sha256()
        for segment in self.place.log.segments:
            low, high = max(start, segment.base), min(end, segment.base + segment.length, self.end)
            if low >= high:
                continue
            if low != start:
                return None
            opened = open_segment(segment.path, segment.length)
            found.update(opened.read(low - segment.base, high - segment.base).data)
            start = high
        return found.hexdigest() if start == end else None

    def queues(self) -> list[Queue]:
        """Plain queues, by topic and id."""
        return sorted(self._all.unbatched_queues())

    def queue(self, topic: str, queue_id: int) -> Unbatched:
        """A queue; the last one is kept."""
        view = self._queues.get((topic, queue_id))
        if view is None:
            view = self._all.unbatched(topic, queue_id, self.start)
            self._queues = {(topic, queue_id): view}
        return view

    def position(self, topic: str, queue_id: int, offset: int) -> int | None:
        """The physical offset that the unit at a queueOffset leads to; None without a message's unit."""
        units = self.queue(topic, queue_id).units_from(offset, 1) or ()
        return next((unit.physical_offset for unit in units if 0 < unit.size < PRE_BLANK_SIZE), None)

    def _dispatched(self) -> int:
        """Up to which physical offset the queues must have their units, from now on.

        A broker that runs, or was killed, may be behind its log, or not have flushed all into RocksDB. But it
        goes by the log: what is before the last unit of all must be there.
        """
        root = self.settings.root
        if not may_be_running(root) and not (root / names.ABORT).exists():
            return self.end
        known = -1
        for queue in self.queues():
            with _reading([]):
                known = max(known, self.position(*queue, self.queue(*queue).max_offset - 1) or -1)
        self._queues.clear()
        return min(self.end, known + 1)

    def units(self, topic: str, queue_id: int, start: int, end: int) -> str | None:
        """The digest of units of a queue; None where not all of them are here."""
        view = self.queue(topic, queue_id)
        if start < view.min_offset or end > view.max_offset:
            return None
        found, length = hashlib.sha256(), 0
        for data in view.pieces(start, end):
            found.update(data)
            length += len(data)
        return found.hexdigest() if length == (end - start) * UNIT_LENGTH else None


def write(
    store: Path,
    file: Path,
    broker_conf: Path | None,
    version: str | None,
    *,
    force: bool = False,
    listener: Listener = lambda _done, _total: None,
) -> Written:
    """Write the digests of a store's log and queues.

    ``file``: a new one, not in the store; with ``force`` it may be there. ``listener``: gets bytes of the log
    that were read, and how many there are.

    OutputError where the file can't be written, is there, or lies in the store. ReputError where the store
    can't be read.
    """
    here = _Bytes(store, broker_conf, version)
    file = files.new_file(file, here.settings.root, force=force)
    done = Written(here.settings, file, here.start, here.end)
    lines = [_head(here)]
    stretches = list(here.stretches())
    gaps = _without(here.start, here.end, stretches)
    done.not_read += [_missing(Digest(None, None, *gap, "")) for gap in gaps]
    for begin, finish in stretches:
        for low, high in _ranges(begin, finish, LOG_RANGE):
            sha256 = here.log(low, high)
            if sha256 is not None:
                lines.append(_line(Digest(None, None, low, high, sha256)))
                done.ranges += 1
            listener(high - here.start, here.end - here.start)
    for queue in here.queues():
        done.queues += 1
        with _reading(done.not_read):
            view = here.queue(*queue)
            for low, high in _ranges(view.min_offset, view.max_offset, QUEUE_RANGE):
                sha256 = here.units(*queue, low, high)
                ends = here.position(*queue, low), here.position(*queue, high - 1)
                one = Digest(*queue, low, high, sha256 or "", *ends)
                lines.append(_line(one))
                if sha256 is None:
                    done.not_read.append(_missing(one))
                else:
                    done.ranges += 1
    write_alone(file, "".join(f"{line}\n" for line in lines).encode())
    return done


def compare(
    store: Path,
    file: Path,
    broker_conf: Path | None,
    version: str | None,
    listener: Listener = lambda _done, _total: None,
) -> Compared:
    """Compare a store with a file of digests, wherever both have something.

    SettingsError where it is no such file. ReputError where it, or the store, can't be read.
    """
    other = _read(file)
    here = _Bytes(store, broker_conf, version)
    done = Compared(here.settings, file, other.store)
    known = set(here.queues())
    if other.digests:
        _compare_log(here, other, done, listener)
        lines: dict[Queue, list[Digest]] = {queue: [] for queue in sorted(known & other.queues)}
        for one in other.digests:
            if one.topic is not None and (one.topic, one.queue_id or 0) in lines:
                lines[one.topic, one.queue_id or 0].append(one)
        unread: list[str] = []
        for queue, digests in lines.items():
            with _reading(unread):
                _compare_queue(here, other, queue, digests, done)
        done.not_read += unread
        done.unsure |= bool(unread)
    for kind, queues in (("there", other.queues - known), ("here", known - other.queues)):
        for queue in sorted(queues):
            path = names.queue_directory(here.settings.root, *queue)
            done.found(f"queue-only-{kind}", path, Digest(*queue, 0, 0, ""))
    return done


def _compare_log(here: _Bytes, other: _File, done: Compared, listener: Listener) -> None:
    path = here.settings.root / names.COMMIT_LOG
    lines = [one for one in other.digests if one.topic is None]
    low, high = max(here.start, other.start), min(here.end, other.end)
    for one in lines:
        found = here.log(one.start, one.end)
        if found is None:
            done.not_read.append(_missing(one))
        else:
            done.compared(one, found, path)
        listener(min(one.end, here.end) - here.start, max(high - here.start, 1))
    if lines and here.start < here.end and not done.same_ranges and not done.findings:
        done.not_read.append("the log: no range of it is whole on both sides")
        done.unsure = True
    ours = list(_without(low, high, here.stretches()))
    theirs = list(_without(low, high, [(one.start, one.end) for one in lines]))
    for kind, gaps, others in (("log-only-there", ours, theirs), ("log-only-here", theirs, ours)):
        for gap in gaps:
            alone = list(_without(*gap, others))
            for span in alone:
                done.found(kind, path, Digest(None, None, *span, ""))
            if kind == "log-only-there":
                neither = [
                    _missing(Digest(None, None, *span, ""), "here or there") for span in _without(*gap, alone)
                ]
                done.not_read += neither
                done.unsure |= bool(neither)
    for start, end in ((here.start, min(other.start, here.end)), (max(other.end, here.start), here.end)):
        if start < end:
            done.not_read.append(f"{start} to {end} of the log, which the other store doesn't have")


def _compare_queue(here: _Bytes, other: _File, queue: Queue, lines: list[Digest], done: Compared) -> None:
    path = names.queue_directory(here.settings.root, *queue)
    view = here.queue(*queue)
    known = range(view.min_offset, view.max_offset)
    in_files = isinstance(view, QueueView)  # in RocksDB batches and light queues leave places out
    for one in lines:
        found = here.units(*queue, one.start, one.end)
        low, high = max(one.start, known.start), min(one.end, known.stop)
        ends = [to for at, to in ((one.start, one.first), (one.end - 1, one.last)) if at not in known]
        if not one.sha256 and found is None:
            done.not_read.append(_missing(one, "here or there"))
            due = _is_any_within((one.first, one.last), other.start, other.dispatched or 0)
            done.unsure |= in_files and due
        elif found is not None:
            done.compared(one, found, path)
        elif (low < high and here.units(*queue, low, high) is None) or _is_any_within(
            ends, here.start, here.dispatched
        ):
            done.found("queue-only-there", path, one)
        else:
            done.not_read.append(_missing(one) + (_UNTOLD if other.dispatched is None else ""))
    spans = [(one.start, one.end) for one in lines]
    for low, high in _without(known.start, known.stop, spans):
        one = Digest(*queue, low, high, "")
        ends = [here.position(*queue, low), here.position(*queue, high - 1)]
        is_due = _is_any_within(ends, other.start, other.dispatched or 0)
        is_due |= in_files and bool(spans) and spans[0][0] < low < spans[-1][1]  # as files of 1.0 have a gap
        if here.units(*queue, low, high) is None:
            done.not_read.append(_missing(one, "here or there"))
            done.unsure |= in_files and is_due
        elif is_due:
            done.found("queue-only-here", path, one)
        elif other.dispatched is None:
            done.not_read.append(_missing(one, "there") + _UNTOLD)


@contextmanager
def _reading(not_read: list[str]) -> Iterator[None]:
    """Say in words what of a queue can't be read here."""
    try:
        yield
    except RemoteStoreError:
        raise
    except ReputError as error:
        not_read.append(str(error))


def _is_any_within(positions: Iterable[int | None], start: int, end: int) -> bool:
    return any(position is not None and start <= position < end for position in positions)


def _without(start: int, end: int, others: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What of a range none of the others has, which are in order; all half open."""
    for low, high in others:
        if start < min(low, end):
            yield start, min(low, end)
        start = max(start, high)
    if start < end:
        yield start, end


def _missing(one: Digest, where: str = "here") -> str:
    if one.topic is None:
        return f"{one.start} to {one.end} of the log, which isn't all {where}"
    return f"queueOffsets {one.start} to {one.end} of {one.topic}:{one.queue_id}, which aren't all {where}"


def _ranges(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """A range in pieces that begin at multiples of a size, smaller ones towards its end.

    A store that ends a little before another one is so compared nearly up to its end.
    """
    while start < end:
        high = min(end, (start // size + 1) * size)
        if high == end and end - start > max(size >> 8, 1):
            high -= (end - start) // 2
        yield start, high
        start = high


def _head(here: _Bytes) -> str:
    facts = {
        "schema_version": SCHEMA_VERSION,
        "type": "store",
        "store": here.settings.place,
        "start": here.start,
        "end": here.end,
        "dispatched": here.dispatched,
        "queues": [list(queue) for queue in here.queues()],
    }
    return json.dumps(facts)


def _line(one: Digest) -> str:
    sort = _LOG if one.topic is None else _QUEUE
    facts = {name: value for name, value in asdict(one).items() if value is not None}
    return json.dumps({"schema_version": SCHEMA_VERSION, "type": sort, **facts})


def _read(file: Path) -> _File:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            raise SettingsError(
                "the file of digests can't be read",
                path=file,
                expected="a file that `reput dump digest --out` wrote",
                found=error.strerror,
            ) from error
        raise _no_digests(file, 0, "bytes that aren't UTF-8") from error
    found: _File | None = None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            facts = json.loads(line)
            if number == 1:
                if facts["type"] != "store" or facts["schema_version"] not in (1, SCHEMA_VERSION):
                    shown = f"type {facts['type']}, schema_version {facts['schema_version']}"
                    raise _no_digests(file, number, shown)
                queues = {(str(topic), int(number)) for topic, number in facts["queues"]}
                span = int(facts["start"]), int(facts["end"])
                found = _File(str(facts["store"]), *span, _number(facts, "dispatched"), queues, [])
                continue
            is_queue = facts["type"] == _QUEUE
            topic, queue_id = (str(facts["topic"]), int(facts["queue_id"])) if is_queue else (None, None)
            ends = _number(facts, "first"), _number(facts, "last")
            one = Digest(topic, queue_id, int(facts["start"]), int(facts["end"]), str(facts["sha256"]), *ends)
            if facts["type"] not in (_LOG, _QUEUE) or not 0 <= one.start < one.end:
                raise _no_digests(file, number, f"{one.start} to {one.end}")
            if found is not None:
                found.digests.append(one)
        except (ValueError, KeyError, TypeError) as error:
            raise _no_digests(file, number, repr(line[:80])) from error
    if found is None:
        raise _no_digests(file, 1, "nothing")
    return found


def _number(facts: dict[str, Any], name: str) -> int | None:
    """A number that digests of 1.0 don't have."""
    return None if facts.get(name) is None else int(facts[name])


def _no_digests(file: Path, number: int, found: str) -> SettingsError:
    return SettingsError(
        "this isn't a file that `reput dump digest --out` wrote, or it is torn",
        path=file,
        expected=f"a range and its digest in line {number}",
        found=found,
        next_step="Make it again on the other host",
    )
