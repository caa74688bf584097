"""Digests of a log and its queues, range by range: two hosts are compared by a small file, without a copy.

A range is told by what it counts (physical offsets, queueOffsets), not by its file, so that stores with other
file sizes, or with a head that has expired, are compared where both have something. Index files aren't looked
at: each host names and fills them by its own clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.derived.queues import Queues, Unbatched
from reput.dump.commitlog import of_log
from reput.dump.places import LogPlace, log_place
from reput.errors import Fact, RemoteStoreError, ReputError, Result, SettingsError
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.names import Queue
from reput.log.segments import open_segment
from reput.store import files
from reput.store.places import write_alone
from reput.words import SCHEMA_VERSION, counted

#: Bytes of log, and units of a queue, in a range; ranges begin at their multiples.
LOG_RANGE, QUEUE_RANGE = 16 << 20, 1 << 16
_LOG, _QUEUE = "commitlog", "queue"
Listener = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Digest:
    """A range and its digest."""

    topic: str | None  # topic, queue_id: of a queue; None for the log
    queue_id: int | None
    start: int  # start, end: half open: physical offsets of the log, queueOffsets of a queue
    end: int
    sha256: str  # of its bytes, in hexadecimal digits


@dataclass(frozen=True, slots=True)
class Differs(Fact):
    """Something that isn't the same.

    Attributes:
        kind: ``log-differs``, ``queue-differs``, ``queue-only-here`` or ``queue-only-there``.
        topic, queue_id: of a queue.
        start, end: as :class:`Digest`.
    """

    topic: str | None = None
    queue_id: int | None = None
    start: int = 0
    end: int = 0

    @property
    def said(self) -> str:
        """What differs, and where."""
        queue, span = f"{self.topic}:{self.queue_id}", f"{self.start} to {self.end}"
        return {
            "log-differs": f"{span} of the log isn't the same",
            "queue-differs": f"{queue} isn't the same in queueOffsets {span}",
            "queue-only-here": f"{queue} is here and not there",
            "queue-only-there": f"{queue} is there and not here",
        }[self.kind]

    def to_dict(self) -> dict[str, object]:
        """As :meth:`Fact.to_dict`."""
        facts = Fact.to_dict(self)
        if self.kind == "log-differs":
            return {**facts, "physical_offset": self.start, "physical_end": self.end}
        places = {"queue_offset": self.start, "queue_end": self.end} if self.kind == "queue-differs" else {}
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
    not_read: list[str] = field(default_factory=list)  # queues that can't be read, or have a gap, in words

    @property
    def exit_code(self) -> int:
        """0, or 1 when a queue isn't whole."""
        return int(bool(self.not_read))


@dataclass(slots=True)
class Compared(Result):
    """What came of a comparison with a file of digests."""

    settings: StoreSettings  # the store's
    against: Path  # the file
    against_store: str  # the store that it is of, as it was named there
    same_ranges: int = 0  # ranges that are the same
    findings: list[Differs] = field(default_factory=list)  # what isn't
    not_read: list[str] = field(default_factory=list)  # ranges that only one of the two has, in words

    @property
    def exit_code(self) -> int:
        """0 when all that both have is the same, and they have something."""
        return int(bool(self.findings) or not self.same_ranges)

    @property
    def verdict(self) -> str:
        """For programs, in the words of ``check --against``: whether all that was compared is the same."""
        return "unknown" if self.exit_code else "same"

    @property
    def text(self) -> str:
        """Whether the store is the same, in a sentence."""
        if not self.findings and not self.same_ranges:
            return f"Nothing of {self.settings.root} could be compared with {self.against_store}"
        if not self.findings:
            where = "" if not self.not_read else " where both have something"
            ranges = counted(self.same_ranges, "range")
            return f"{self.settings.root} is the same as {self.against_store}{where}: {ranges}"
        findings = counted(len(self.findings), "finding")
        return f"{self.settings.root} isn't the same as {self.against_store}: {findings}"

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

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Ranges of the log without a gap, half open."""
        segments = self.place.log.segments
        begin = self.start
        for one, other in pairwise(segments):
            if one.base + one.length != other.base:
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
    for begin, finish in here.stretches():
        for low, high in _ranges(begin, finish, LOG_RANGE):
            sha256 = here.log(low, high)
            if sha256 is not None:
                lines.append(_line(Digest(None, None, low, high, sha256)))
            listener(high - here.start, here.end - here.start)
    for queue in here.queues():
        done.queues += 1
        try:
            view = here.queue(*queue)
            for low, high in _ranges(view.min_offset, view.max_offset, QUEUE_RANGE):
                sha256 = here.units(*queue, low, high)
                if sha256 is None:
                    done.not_read.append(_missing(Digest(*queue, low, high, "")))
                else:
                    lines.append(_line(Digest(*queue, low, high, sha256)))
        except RemoteStoreError:
            raise
        except ReputError as error:
            done.not_read.append(str(error))
    done.ranges = len(lines) - 1
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
    other, named, digests = _read(file)
    here = _Bytes(store, broker_conf, version)
    done = Compared(here.settings, file, other)
    known = set(here.queues())
    end = max((one.end for one in digests if one.topic is None), default=0)
    for one in digests:
        if one.topic is None:
            path, kind = here.settings.root / names.COMMIT_LOG, "log-differs"
            found = here.log(one.start, one.end)
            listener(min(one.end, here.end) - here.start, max(min(end, here.end) - here.start, 1))
        elif (one.topic, one.queue_id or 0) in known:
            queue_id = one.queue_id or 0
            path, kind = names.queue_directory(here.settings.root, one.topic, queue_id), "queue-differs"
            try:
                found = here.units(one.topic, queue_id, one.start, one.end)
            except RemoteStoreError:
                raise
            except ReputError as error:
                done.not_read.append(str(error))
                continue
        else:
            continue
        if found is None:
            done.not_read.append(_missing(one))
        elif found == one.sha256:
            done.same_ranges += 1
        else:
            done.findings.append(Differs(kind, str(path), one.topic, one.queue_id, one.start, one.end))
    if here.end > end:
        done.not_read.append(f"{end} to {here.end} of the log, which the other store doesn't have")
    for queues, kind in ((named - known, "queue-only-there"), (known - named, "queue-only-here")):
        for topic, queue_id in sorted(queues):
            path = names.queue_directory(here.settings.root, topic, queue_id)
            done.findings.append(Differs(kind, str(path), topic, queue_id))
    return done


def _missing(one: Digest) -> str:
    if one.topic is None:
        return f"{one.start} to {one.end} of the log, which isn't all here"
    return f"queueOffsets {one.start} to {one.end} of {one.topic}:{one.queue_id}, which aren't all here"


def _ranges(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """A range in pieces that begin at multiples of a size."""
    while start < end:
        high = min(end, (start // size + 1) * size)
        yield start, high
        start = high


def _head(here: _Bytes) -> str:
    facts = {
        "schema_version": SCHEMA_VERSION,
        "type": "store",
        "store": here.settings.place,
        "start": here.start,
        "end": here.end,
        "queues": [list(queue) for queue in here.queues()],
    }
    return json.dumps(facts)


def _line(one: Digest) -> str:
    sort = _LOG if one.topic is None else _QUEUE
    facts = {name: value for name, value in asdict(one).items() if value is not None}
    return json.dumps({"schema_version": SCHEMA_VERSION, "type": sort, **facts})


def _read(file: Path) -> tuple[str, set[Queue], list[Digest]]:
    """The store's name, its queues, and the digests."""
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
    store: str | None = None
    queues: set[Queue] = set()
    found: list[Digest] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            facts = json.loads(line)
            if number == 1:
                if facts["type"] != "store" or facts["schema_version"] not in (1, SCHEMA_VERSION):
                    raise ValueError(f"type {facts['type']}, schema_version {facts['schema_version']}")
                store = str(facts["store"])
                queues = {(str(topic), int(number)) for topic, number in facts["queues"]}
                continue
            is_queue = facts["type"] == _QUEUE
            topic, queue_id = (str(facts["topic"]), int(facts["queue_id"])) if is_queue else (None, None)
            one = Digest(topic, queue_id, int(facts["start"]), int(facts["end"]), str(facts["sha256"]))
            if facts["type"] not in (_LOG, _QUEUE) or not 0 <= one.start < one.end:
                raise ValueError(f"{one.start} to {one.end}")
            found.append(one)
        except (ValueError, KeyError, TypeError) as error:
            raise _no_digests(file, number, f"{type(error).__name__}: {error}") from error
    if store is None:
        raise _no_digests(file, 1, "nothing")
    return store, queues, found


def _no_digests(file: Path, number: int, found: str) -> SettingsError:
    return SettingsError(
        "this isn't a file that `reput dump digest --out` wrote, or it is torn",
        path=file,
        expected=f"a range and its digest in line {number}",
        found=found,
        next_step="Make it again on the other host",
    )
