"""Writes messages, by conditions or of a finding, to a file, to stdout, or into a new store."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from reput.broker.snapshot import take
from reput.config.basis import Basis
from reput.config.kept import Form, Kind, kept
from reput.config.settings import StoreSettings
from reput.config.stand_in import here
from reput.derived.queues import OnDisk, Queues
from reput.dump.commitlog import MOST_OFFSET, Block, Reader
from reput.dump.damage import Damage
from reput.dump.places import LogPlace, log_place
from reput.dump.wanted import Wanted
from reput.errors import Finding, OutputError, Result, SettingsError, StoreError, UnsupportedError
from reput.export.records import REASONS, Apart, Counted, LeftOut, apart, deliver_time, line_of
from reput.format import commitlog, javastring, names, properties
from reput.format.commitlog import Record
from reput.format.names import QueueBytes
from reput.newer_python import Self
from reput.query.message import Message
from reput.recovery.plan import MOST_READ, brings_back, plan
from reput.replay.placing import ANOTHER, BY_RANGE, BY_UNIT, ITSELF, KINDS, NOTHING, WITHOUT_PLACE
from reput.store import files
from reput.store.listing import nearest, nearest_of
from reput.store.lock import store_holder
from reput.store.places import beside, check_file, check_outside
from reput.words import next_command

#: Findings without messages to save, and why.
_WITHOUT = {
    "past-log-end": "the log doesn't hold these messages: look for its end on a replica or in a backup",
    "index-ahead": "the log doesn't hold these messages: look for its end on a replica or in a backup",
    "checkpoint-ahead": "the log doesn't hold these messages: look for its end on a replica or in a backup",
    "missing-segments": "the log doesn't hold these messages: look for the segments on a replica",
    "queue-cut": "units go with the messages that they lead to: export --finding log-cut saves these",
    "misplaced-unit": "consumers get these messages, in another place of the queue: `reput mend`",
    "no-index": "consumers get these messages: `reput mend` makes the index anew",
    "missing-entry": "consumers get these messages: `reput mend` makes the index anew",
}


class Stranded:
    """Chooses the messages of one kind of finding; SettingsError says why a name is none with messages.

    ``uncertain`` says, in words, whether messages among them were cut off on purpose.
    """

    def __init__(self, settings: StoreSettings, kind: str) -> None:
        self._settings = settings
        self._kind = check_kind(kind)
        self._ranges: list[tuple[int, int]] = []
        self._queues: dict[QueueBytes, OnDisk] = {}
        self.uncertain: list[str] = []
        by_range = kind in BY_RANGE
        if not by_range:
            self._all = Queues(settings)
        elif settings.dledger is not None:
            raise UnsupportedError(
                "what a start cuts off a DLedger log isn't known",
                path=settings.root,
                next_step="Give the physical offsets to save: --start and --end",
            )
        with nullcontext() if by_range else suppress(UnsupportedError):
            snapshot = take(settings)
            if by_range or snapshot.holder is None:
                start = plan(snapshot, None if by_range else MOST_READ)
                self.uncertain += brings_back(start.prediction)
                self._ranges = [(loss.offset, loss.end) for loss in start.losses if loss.kind == kind]

    def of(self, block: Block) -> NDArray[np.int64]:
        """Which rows of a block they are: int64[n], ascending."""
        rows, found = block.rows, block.frames
        places = found.position[rows] + block.base
        if self._kind in BY_RANGE:
            mask = np.zeros(len(rows), np.bool_)
            for start, end in self._ranges:
                mask |= (places >= start) & (places < end)
            return rows[mask]
        state = found.sys_flag[rows] & commitlog.TRANSACTION_MASK
        has_unit = (state == commitlog.TRANSACTION_NONE) | (state == commitlog.TRANSACTION_COMMIT)
        of_queue: dict[QueueBytes, list[int]] = {}
        columns = found.topic[rows], found.topic_length[rows], found.queue_id[rows]
        for number, (at, length, queue_id) in enumerate(zip(*(one.tolist() for one in columns), strict=True)):
            of_queue.setdefault((block.data[at : at + length].tobytes(), queue_id), []).append(number)
        wanted = np.zeros(len(rows), np.bool_)
        for queue, numbers in of_queue.items():
            chosen = np.array(numbers)
            states = _states(self._queue(queue), found.queue_offset[rows[chosen]], places[chosen])
            wanted[chosen] = np.isin(states, list(BY_UNIT[self._kind]))
        chosen_rows: NDArray[np.int64] = rows[wanted & has_unit]
        return chosen_rows

    def _queue(self, queue: QueueBytes) -> OnDisk:
        if queue not in self._queues:
            self._queues[queue] = self._all.on_disk(javastring.decode(queue[0]), queue[1])
        return self._queues[queue]


def check_kind(kind: str) -> str:
    """The name of a finding with messages to save.

    SettingsError says why it is none, or which may have been meant.
    """
    if kind in KINDS:
        return kind
    meant = nearest(kind, [*KINDS, *_WITHOUT])
    raise SettingsError(
        f"finding {kind} has no messages to save" if kind in _WITHOUT else "--finding can't be understood",
        expected=f"one of {', '.join(KINDS)}",
        found=kind,
        next_step=_WITHOUT.get(kind) or (None if meant is None else f"Did you mean {meant}?"),
    )


def _states(queue: OnDisk, offsets: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """What stands in the places of messages, by their queueOffsets and physical offsets, int64[messages].

    One that stands elsewhere in the queue counts as itself: consumers get it.
    """
    found = np.full(len(offsets), ITSELF)
    for number in np.flatnonzero(~queue.leads_to(places)).tolist():
        found[number] = ANOTHER if queue.holds(int(offsets[number])) else NOTHING
    return found


# Physical offsets begin at 0, and queueOffsets of each queue, too: with gaps, a broker that makes the queues
# anew would put messages into other places than they say (``ConsumeQueue.putMessagePositionInfo``). All else
# of a record stays, storeTimestamp and storeHost included; a CRC of the whole record is computed anew.
#
# Source: ``CommitLog.DefaultAppendMessageCallback.doAppend``, ``AppendMessageCallback.setBatchSizeIfNeeded``,
# ``LmqDispatch`` (rocketmq-all-4.9.7, 5.3.3).

_PIECE = 4 << 20
#: What each broker has that has taken messages, with nothing in it: else it would count as lost. No offset
#: that a group has committed fits the new queues. The second file's fields would show a release.
_EMPTY = {"consumerOffset.json": b'{"offsetTable":{}}', "delayOffset.json": b"{}"}


class SmallStore:
    """Writes a store beside its place, and moves it there when it is whole; a context manager.

    The store that the records are from gives the size of segments, and a copy of its topics.json.
    """

    def __init__(self, path: Path, settings: StoreSettings, segment_size: int) -> None:
        self._path = path
        self._settings = settings
        self._size = segment_size
        #: It is built beside its place, on the same file system, and a name with a dot is nobody's store.
        self._beside = beside(path, directory=True)
        self._fd: int | None = None
        self._waiting = bytearray()
        self._end = 0
        self._next: dict[QueueBytes, int] = {}

    def __enter__(self) -> Self:
        self._staging = self._beside.__enter__()
        try:
            files.make_dirs(self._staging / names.COMMIT_LOG)
        except OutputError:
            self.__exit__(None, None, None)
            raise
        return self

    def append(self, record: Record) -> None:
        """Add a record behind the others; StoreError where no segment can hold it."""
        record = self._renumbered(record)
        size = len(commitlog.encode(record))
        if size + commitlog.BLANK_LENGTH > self._size:
            raise StoreError(
                "no segment of the new store can hold this record",
                offset=record.physical_offset,
                expected=f"at most {self._size - commitlog.BLANK_LENGTH} bytes",
                found=f"{size} bytes",
            )
        left = self._size - self._end % self._size
        if size + commitlog.BLANK_LENGTH > left:
            # What follows the closing record's head means nothing, and stays a hole in the file.
            self._write(commitlog.encode_blank(left)[: commitlog.BLANK_LENGTH])
            self._close_segment()
            self._end += left - commitlog.BLANK_LENGTH
        data = bytearray(commitlog.encode(replace(record, physical_offset=self._end)))
        if (digits := commitlog.property_crc(data)) is not None:
            data[-1 - len(digits) : -1] = digits
        self._write(data)

    def finish(self) -> None:
        """Flush everything, and give the store its name."""
        self._close_segment()
        config = self._settings.config
        topics, new = config.file(Kind.TOPICS), self._staging / names.CONFIG
        files.make_dirs(new)
        for name, data in _EMPTY.items():
            files.write_atomically(new / name, data)
        if config.form is not Form.FILES:
            found = kept(config, Kind.TOPICS)
            if found is not None:
                table = json.dumps({"topicConfigTable": found.entries}).encode()
                files.write_atomically(new / topics.name, table)
        elif topics.is_file():
            with files.reporting("the topics can't be copied", topics):
                shutil.copyfile(topics, new / topics.name)
        files.fsync_dirs(self._staging)
        with files.reporting("the new store can't be moved to its place", self._path):
            if self._path.exists():
                self._path.rmdir()  # an empty one that was made beforehand
        files.rename(self._staging, self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            files.system.close(self._fd)
            self._fd = None
        self._beside.__exit__(None, None, None)

    def _renumbered(self, record: Record) -> Record:
        values = properties.parse(record.properties)
        changed: dict[bytes, bytes] = {}
        count = 1
        if {properties.INNER_BASE, properties.INNER_NUM} <= values.keys():
            count = max(javastring.parse_integer(values[properties.INNER_NUM], 16) or 1, 1)
        offset = record.queue_offset
        state = record.sys_flag & commitlog.TRANSACTION_MASK
        if state in (commitlog.TRANSACTION_NONE, commitlog.TRANSACTION_COMMIT):
            offset = self._taken((record.topic, record.queue_id), count)
            if properties.INNER_BASE in values and properties.INNER_NUM in values:
                changed[properties.INNER_BASE] = str(offset).encode()
            light = values.get(properties.INNER_MULTI_DISPATCH)
            if light is not None and properties.INNER_MULTI_QUEUE_OFFSET in values:
                places = [str(self._taken((name, 0), 1)) for name in light.split(b",")]
                changed[properties.INNER_MULTI_QUEUE_OFFSET] = ",".join(places).encode()
        raw = _with(record.properties, changed) if changed else record.properties
        return replace(record, queue_offset=offset, properties=raw)

    def _taken(self, queue: QueueBytes, count: int) -> int:
        offset = self._next.get(queue, 0)
        self._next[queue] = offset + count
        return offset

    def _write(self, data: bytes | bytearray) -> None:
        if self._fd is None:
            name = names.offset_name(self._end - self._end % self._size)
            self._fd = files.create_file(self._staging / names.COMMIT_LOG / name, self._size)
        self._waiting += data
        self._end += len(data)
        if len(self._waiting) >= _PIECE:
            self._flush()

    def _flush(self) -> None:
        if self._fd is not None:
            at = (self._end - len(self._waiting)) % self._size
            files.pwrite_all(self._fd, self._waiting, at)
            self._waiting.clear()

    def _close_segment(self) -> None:
        self._flush()
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                files.fsync_file(fd)
            finally:
                files.system.close(fd)


def _with(raw: bytes, changed: dict[bytes, bytes]) -> bytes:
    """Properties with other values, all else as it was spelled."""
    entries = raw.split(b"\x02")
    for number, entry in enumerate(entries):
        name, separator, value = entry.partition(b"\x01")
        if separator and value and name in changed:
            entries[number] = name + separator + changed[name]
    return b"\x02".join(entries)


LINES, STORE = "lines", "store"
#: The place of lines that stands for stdout.
STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What is asked for."""

    store: Path  # a store, or segments of one
    out: Path  # the file of lines, :data:`STDOUT`, or the directory of the new store
    form: str = LINES  # :data:`LINES` or :data:`STORE`
    wanted: Wanted = field(default_factory=Wanted)  # what records must have
    start: int = 0  # start, end: of their physical offsets; half open
    end: int = MOST_OFFSET
    finding: str | None = None  # only messages of findings of this kind
    limit: int | None = None  # so many at most
    included: frozenset[Apart] = frozenset()  # what goes into a new store although it is left out otherwise
    force: bool = False  # replace a file that is there
    broker_conf: Path | None = None  # broker_conf, version: see :meth:`StoreSettings.load`
    version: str | None = None


@dataclass(slots=True)
class Exported(Result):
    """What came of it; ``to_dict`` is what ``--json`` prints."""

    settings: StoreSettings  # the store's
    options: ExportOptions  # what was asked for
    messages: int = 0  # messages, bytes: of the log, that were written
    bytes: int = 0
    topics: dict[str, int] = field(default_factory=dict)  # messages by topic
    #: first, last: physical offsets of the first and the last of them; None without one
    first: int | None = None
    last: int | None = None
    left_out: list[LeftOut] = field(default_factory=list)  # what was asked for and isn't in the new store
    findings: list[Damage] = field(default_factory=list)  # damage in the range that was read
    not_checked: list[str] = field(default_factory=list)  # what isn't certain of the choice

    @property
    def exit_code(self) -> int:
        """0 when all that was asked for was written, and nothing in its range is damaged."""
        return int(bool(self.findings or self.left_out))

    @property
    def out(self) -> Path | None:
        """What was written; None where there was nothing to write."""
        return self.options.out if self.messages or self.options.out == STDOUT else None

    @property
    def basis(self) -> Basis:
        """What the settings rest on."""
        return self.settings.basis

    @property
    def did_you_mean(self) -> str | None:
        """Where nothing fits: the topic or queue that is most like one that isn't there."""
        return None if self.messages else nearest_of(self.settings.root, self.options.wanted.named)

    @property
    def next_steps(self) -> list[str]:
        """What to do with it."""
        if not self.messages or self.options.out == STDOUT:
            return []
        out, conf, release = self.options.out, self.options.broker_conf, self.options.version
        if self.options.form == STORE:
            if self.settings.dledger is not None:
                check = next_command("check", out, rocketmq_version=release)
                text = "What is saved is no group's log: give a copy of broker.conf with"
                return [f"{text} enableDLegerCommitLog=false, `{check} --broker-conf COPY`"]
            return [next_command("check", out, broker_conf=conf, rocketmq_version=release)]
        if self.options.finding is None or self.options.finding in WITHOUT_PLACE:
            return [next_command("resend", out, "--name-server", "HOST:9876", "--dry-run")]
        mend = self.settings.command("mend")
        return [f"`{mend}` brings these messages back; sent anew besides, consumers get them twice"]

    hidden = ("options", "first", "last", "not_checked")

    def more(self) -> dict[str, object]:
        """What isn't a field by this name."""
        return {
            "out": self.out,
            "form": self.options.form,
            "finding": self.options.finding,
            "did_you_mean": self.did_you_mean,
            "first_physical_offset": self.first,
            "last_physical_offset": self.last,
            "findings": [Finding.to_dict(one) for one in self.findings],
            "not_read": self.not_checked,
            "next_steps": self.next_steps,
        }


def export(options: ExportOptions, show: Callable[[int, int, int], None] = lambda *_: None) -> Exported:
    """Write what is asked for. The store is only read.

    A file, or a store, gets its name when it is whole; a run that was interrupted begins anew. ``show`` gets
    bytes of the log that were read, messages that were written, and bytes in all. Raises BrokenPipeError
    where nobody reads stdout any more.
    """
    if options.finding is not None:
        check_kind(options.finding)
    store = here(options.store, derived=options.finding is not None)
    place = log_place(store, options.broker_conf, options.version)
    settings = place.settings
    result = Exported(settings, options)
    _check_out(options, place)
    chosen = None
    if options.finding is not None:
        if settings.root in settings.commit_log_dirs:  # segments that were named themselves
            raise SettingsError(
                "--finding needs a store, whose queues are looked at",
                expected="the directory that holds commitlog/",
                found=str(options.store),
            )
        chosen = Stranded(settings, options.finding)
        result.not_checked += chosen.uncertain
        if store_holder(settings.root) is not None:
            result.not_checked.append(
                "a broker uses the store: a message of the last moments may be in the file although its unit "
                "was only about to be written"
            )
    left_out = Counted()
    with _opened(options, place) as write:
        for message in _messages(options, place, chosen, result, show):
            if options.form == STORE and (kind := apart(message, options.included)) is not None:
                left_out.add(kind.value, message, REASONS[kind], f"--{kind}")
                continue
            write(message)
            result.messages += 1
            result.bytes += message.size
            result.topics[message.topic] = result.topics.get(message.topic, 0) + 1
            result.last = message.record.physical_offset
            result.first = result.last if result.first is None else result.first
            if result.messages == options.limit:
                break
    result.left_out = left_out.all()
    return result


def _messages(
    options: ExportOptions,
    place: LogPlace,
    chosen: Stranded | None,
    result: Exported,
    show: Callable[[int, int, int], None],
) -> Iterator[Message]:
    log = place.log
    reader = Reader(
        place.settings, entries=log.entries, wanted=options.wanted, start=options.start, end=options.end
    )
    start = log.segments[0].base if log.segments else 0
    last = log.segments[-1] if log.segments else None
    total = 0 if last is None else last.base + last.length - start
    for event in reader.log(log, followed=place.followed):
        if isinstance(event, Damage):
            result.findings.append(event)
        if not isinstance(event, Block):
            continue
        rows = event.rows if chosen is None else chosen.of(event)
        for message in Block(event.data, event.base, event.frames, rows).messages():
            yield message
            show(message.record.physical_offset + message.size - start, result.messages, total)


def _check_out(options: ExportOptions, place: LogPlace) -> None:
    """Refuse a place that must not be written to; before anything is read, for that may take long."""
    out = options.out
    if out == STDOUT:
        if options.form == STORE:
            raise SettingsError("a store can't be written to stdout", expected="--out DIR", found="--out -")
        return
    what = "an export" if options.form == LINES else "a new store"
    target = check_outside(what, out, place.settings.directories, "Name another place with --out.")
    with files.reporting("the place can't be looked at", out):
        if options.form == LINES:
            check_file(target, "lines are written to", force=options.force)
        else:
            if not target.parent.is_dir():
                raise OutputError(
                    "the directory isn't there",
                    path=target.parent,
                    next_step="Make it, or name another place with --out.",
                )
            if target.exists() and not (target.is_dir() and not any(target.iterdir())):
                raise OutputError(
                    "something is there already",
                    path=out,
                    expected="no such directory, or an empty one",
                    found="a directory with files" if target.is_dir() else "a file",
                    next_step="Name another place with --out.",
                )


@contextmanager
def _opened(options: ExportOptions, place: LogPlace) -> Iterator[Callable[[Message], object]]:
    levels = place.settings.delay_levels_ms

    def line(message: Message) -> bytes:
        return json.dumps(line_of(message, deliver_time(message, levels))).encode() + b"\n"

    if options.out == STDOUT:
        yield lambda message: sys.stdout.write(line(message).decode())
        sys.stdout.flush()
        return
    if options.form == STORE:
        with SmallStore(Path(os.path.realpath(options.out)), place.settings, place.log.segment_size) as store:
            count = 0

            def append(message: Message) -> None:
                nonlocal count
                store.append(message.record)
                count += 1

            yield append
            if count:
                store.finish()
        return
    target = Path(os.path.realpath(options.out))
    # Messages are nobody else's business.
    with beside(target, mode=0o600) as temporary, files.reporting("the export can't be written", target):
        with temporary.open("wb") as file:
            yield lambda message: file.write(line(message))
            file.flush()
            os.fsync(file.fileno())
            empty = not file.tell()
        if not empty:
            files.rename(temporary, target)
