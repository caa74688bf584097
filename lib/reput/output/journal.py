"""The journal: the commit point of every batch.

``.reput/journal`` in the output is a sequence of records: the :class:`Opening`, then each :class:`Batch`
whose outputs were on disk before it was appended. Its end offset is the cursor, whatever Spark's checkpoint
says. A record that is cut short or has a wrong CRC at the end of the journal was never committed, and is
cut off.

A journal that has grown is rewritten, so that its length depends on the store and on how much is done in
:data:`KEEP_SECONDS`, not on its age: a snapshot replaces the oldest batches, and the newest are kept as they
are, to step back to. Batches are numbered from 1, those in the snapshot included.

A record: length uint32, CRC-32 of the payload uint32 (both big-endian), payload: UTF-8 JSON. Three kinds:
the opening, first in each journal; a snapshot, second where the opening announces one; batches. A batch's
payload begins with ``{"start":``, by which one is found behind damage.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from reput.errors import Finding, JournalError, OutputError
from reput.format.indexfile import IndexHeader
from reput.format.names import Queue
from reput.replay.state import Batch, Opening, QueueState, Salvaged, State
from reput.store import files
from reput.store.ownership import Owner
from reput.store.reading import open_file, read_file

#: 1: queues in a list, no snapshots; still read. 2: queues by topic.
FORMAT = 2
READABLE = (1, 2)

_FRAME = struct.Struct(">II")
_MAX_RECORD = 1 << 31
_BATCH_BEGINS = b'{"start":'
_TOPICS_AT_ONCE = 4096
_SELDOM = (
    "without_unit",
    "breaks",
    "log_start",
    "dropped_index",
    "dropped_index_timestamp",
    "last_record",
    "unproven_until",
    "older",
    "noted",
    "untimed_until",
)
_OWN_FORM = ("queues", "index", "findings", "salvaged")
_ALWAYS = [each.name for each in fields(Batch) if each.name not in (*_OWN_FORM, *_SELDOM)]
_STATE = [each.name for each in fields(State) if each.name not in _OWN_FORM]


def frame(payload: dict[str, Any], queues: dict[Queue, QueueState] | None = None) -> bytes:
    """A record's bytes, "queues" last of its fields: of a million they are made some at a time."""
    data = _dumped(payload)
    if queues is not None:
        text = ",".join(_dumped(topics)[1:-1] for topics in _by_topic(queues))
        data = f'{data[:-1]},"queues":{{{text}}}}}'
    encoded = data.encode()
    return _FRAME.pack(len(encoded), crc32(encoded)) + encoded


def opening_frame(begun: Opening, snapshot: int | None) -> bytes:
    """The record of an opening; ``snapshot`` is how many batches are in the snapshot that follows, if any."""
    mark = {} if snapshot is None else {"snapshot": snapshot}
    return frame({"format": FORMAT, **asdict(begun), **mark})


def batch_frame(done: Batch, number: int, committed: int) -> bytes:
    """The record of a batch, whose numbers count from 1.

    ``committed`` is in ms by the wall clock, for stepping back in time, not for anything that is derived.
    """
    payload: dict[str, Any] = {name: getattr(done, name) for name in _ALWAYS}
    if done.index:
        payload["index"] = [[name, header.encode().hex()] for name, header in done.index]
    if done.findings:
        payload["findings"] = [finding.stored() for finding in done.findings]
    if done.salvaged:
        payload["salvaged"] = [astuple(each) for each in done.salvaged]
    for name in _SELDOM:
        if value := getattr(done, name):
            payload[name] = value
    payload["number"] = number
    payload["committed"] = committed
    return frame(payload, done.queues)


def snapshot_frame(state: State) -> bytes:
    """The record of a state."""
    return frame(
        {
            "snapshot": {name: getattr(state, name) for name in _STATE},
            "index": [[name, header.encode().hex()] for name, header in state.index],
            "findings": [finding.stored() for finding in state.findings],
            "salvaged": [astuple(each) for each in state.salvaged],
        },
        state.queues,
    )


def whole_frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The whole records from the start of ``data`` on, as (offset, payload), up to what isn't one."""
    at = 0
    while at + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        # No record is empty, but zeros, which a power loss may leave at the end, look like an empty one.
        if not 0 < length <= _MAX_RECORD or len(payload) < length or crc32(payload) != crc:
            return
        yield at, payload
        at += _FRAME.size + length


def length_of(payload: bytes) -> int:
    """Bytes of the record with this payload."""
    return _FRAME.size + len(payload)


def batch_after(data: bytes, at: int) -> int | None:
    """Offset of a batch after a damaged record, or None. A crash only cuts the last record short."""
    start = data.find(_BATCH_BEGINS, at + _FRAME.size + 1)
    while start >= 0:
        length, crc = _FRAME.unpack_from(data, start - _FRAME.size)
        if crc32(data[start : start + length]) == crc:
            return start - _FRAME.size
        start = data.find(_BATCH_BEGINS, start + 1)
    return None


def to_opening(payload: dict[str, Any]) -> Opening:
    """The opening that a payload holds."""
    settings = payload.get("settings")
    return Opening(
        str(payload["store"]),
        str(payload["fingerprint"]),
        int(payload["start"]),
        settings if isinstance(settings, dict) else {},
    )


def to_batch(payload: bytes) -> tuple[Batch, int | None, int]:
    """A payload's batch, its number (None if not recorded), and when it was committed (0 likewise)."""
    facts: dict[str, Any] = json.loads(payload)
    number, committed = facts.pop("number", None), facts.pop("committed", 0)
    _decode(facts)
    return Batch(**facts), number, committed


def to_state(payload: bytes) -> State:
    """The state that a snapshot's payload holds."""
    facts: dict[str, Any] = json.loads(payload)
    _decode(facts)
    return State(**facts.pop("snapshot"), **facts)


def _dumped(facts: dict[str, Any]) -> str:
    return json.dumps(facts, separators=(",", ":"))


def _by_topic(queues: dict[Queue, QueueState]) -> Iterator[dict[str, list[list[Any]]]]:
    """The rows of some topics at a time, since a topic's name is longer than all the numbers of a queue."""
    topics: dict[str, list[list[Any]]] = {}
    for topic, found in groupby(sorted(queues), key=itemgetter(0)):
        topics[topic] = [_row(queue[1], queues[queue]) for queue in found]
        if len(topics) == _TOPICS_AT_ONCE:
            yield topics
            topics = {}
    if topics:
        yield topics


def _row(queue_id: int, state: QueueState) -> list[Any]:
    row: list[Any] = [queue_id, state.first, state.next, state.end, state.units, state.bytes]
    more: dict[str, Any] = {}
    if state.shift:
        row.append(state.shift)
    if state.lone_zero:
        row.append(state.lone_zero)
    if state.appended:
        more["appended"] = state.appended
    if state.is_batch and state.appended:
        more["is_batch"] = True
    if state.unproven is not None:
        more["unproven"] = state.unproven
    if more:
        row.append(more)
    return row


def _queue(row: list[Any]) -> QueueState:
    more = row.pop() if isinstance(row[-1], dict) else {}
    if isinstance(row[-1], list):
        more["lone_zero"] = tuple(row.pop())
    return QueueState(*row, **more)


def _decode(facts: dict[str, Any]) -> None:
    queues = facts["queues"]
    if isinstance(queues, list):
        facts["queues"] = {(topic, queue_id): _queue(rest) for topic, queue_id, *rest in queues}
    else:
        facts["queues"] = {
            (topic, queue_id): _queue(rest) for topic, rows in queues.items() for queue_id, *rest in rows
        }
    facts["index"] = [
        (name, IndexHeader.decode(bytes.fromhex(header))) for name, header in facts.get("index", ())
    ]
    for name in (*(name for name, _ in facts["index"]), *facts.get("dropped_index", ())):
        if "/" in name or name in ("", ".", ".."):
            raise ValueError(f"no name of an index file: {name!r}")
    facts["findings"] = [Finding(**finding) for finding in facts.get("findings", ())]
    facts["salvaged"] = [Salvaged(*each) for each in facts.get("salvaged", ())]


__all__ = ["Journal", "read", "read_state"]

_Given = TypeVar("_Given")
_Taken = TypeVar("_Taken")

#: Any rewriting keeps at least this many batches to step back to, and all batches of this many seconds.
KEEP_BATCHES = 256
KEEP_SECONDS = 600

#: A rewriting has to save this many bytes, beside as many as it writes.
_WORTH_IT = 4 << 20

_UNKNOWN = "What the batches wrote is no longer known: remove the output and rebuild it"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A batch's record in the file: where it ends, and when it was committed (ms by the wall clock)."""

    end: int
    committed: int


class Journal:
    """An open journal. Use it as a context manager.

    ``state`` adds up all batches, those appended included; ``first_number`` is that of the oldest batch that
    is kept, or of the next one where none is.
    """

    def __init__(self, path: Path, data: bytes) -> None:
        """Read a journal; for :meth:`create` and :meth:`open`.

        What was never committed at its end is ignored.
        """
        content = _Content(path, data)
        self.path = path
        self.opening = content.opening
        self._snapshot_end = content.snapshot_end
        self._base = content.base
        self.state = self._base.copy()
        self.first_number = self.state.batches + 1
        self.steps_back = 0
        self._kept: list[_Kept] = []
        self._last: Batch | None = None
        for self._last, kept in content.batches():
            self._kept.append(kept)
            self.state.add(self._last)
        self._length = self._kept[-1].end if self._kept else self._snapshot_end
        self._fd = open_file(path, os.O_RDWR)
        self._is_lost = False

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @classmethod
    def create(cls, path: Path, opening: Opening, owner: Owner | None) -> Journal:
        """Create a journal."""
        data = opening_frame(opening, None)
        files.write_atomically(path, data, owner)
        return cls(path, data)

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open a journal, and cut off a record at its end that was never committed."""
        opened = cls(path, _bytes_of(path))
        if os.fstat(opened._fd).st_size > opened._length:
            os.ftruncate(opened._fd, opened._length)
            files.fsync_file(opened._fd)
        return opened

    @property
    def batches(self) -> list[Batch]:
        """All batches that are kept, read from the file: to inspect them, not for use in each batch."""
        return [self.batch(number) for number in range(self.first_number, self.state.batches + 1)]

    def batch(self, number: int) -> Batch:
        """One batch that is kept, else IndexError; the last one is in memory."""
        if number == self.state.batches and self._last is not None:
            return self._last
        return self._read(number)

    def append(self, batch: Batch) -> None:
        """Commit a batch: on return the record is on disk.

        Where it can't be written, the journal is as it was.
        """
        self._check_usable()
        now = int(time.time() * 1000)
        self._rewrite_if_grown(now)
        data = batch_frame(batch, self.state.batches + 1, now)
        files.pwrite_all(self._fd, data, self._length)
        files.fsync_file(self._fd, data_only=True)
        self._length += len(data)
        self._kept.append(_Kept(self._length, now))
        self._last = batch
        self.state.add(batch)

    def state_after(self, number: int) -> State:
        """What the first ``number`` batches add up to, as a new state.

        Raises IndexError where the batches up to it are no longer kept one by one, or aren't there yet.
        """
        if number == self.state.batches:
            return self.state.copy()
        if not self.first_number - 1 <= number < self.state.batches:
            raise IndexError(number)
        # The base has moved on from the file's snapshot, as a rewriting comes nearer.
        state = self._base.copy() if self._base.batches <= number else self._snapshot()
        for at in range(state.batches + 1, number + 1):
            state.add(self._read(at))
        return state

    def step_back(self, number: int, record: Batch | None = None) -> State:
        """Remove all batches after ``number``: on return the journal ends with it, on disk.

        ``record`` replaces them in the same step, and says what happened. The caller then rolls back what the
        others wrote. Where it can't be written, the next run finds the journal as it was, or stepped back.
        """
        self._check_usable()
        if number == self.state.batches:
            return self.state
        state = self.state_after(number)
        end, now = self._end_of(number), int(time.time() * 1000)
        tail = batch_frame(record, number + 1, now) if record else b""
        self._replace(os.pread(self._fd, end, 0) + tail)
        del self._kept[number + 1 - self.first_number :]
        self._length = end
        self._last = self._read(number) if self._kept else None
        if self._base.batches > number:
            self._base = self._snapshot()
        self.state = state
        self.steps_back += 1
        if record is not None:
            self._length += len(tail)
            self._kept.append(_Kept(self._length, now))
            self._last = record
            state.add(record)
        return state

    def move_store(self, store: str) -> None:
        """Write down where the store is now: on return it is on disk."""
        self._check_usable()
        opening = replace(self.opening, store=store)
        data = os.pread(self._fd, self._length, 0)
        old = next(length_of(payload) for _, payload in whole_frames(data))
        head = opening_frame(opening, self.first_number - 1 if self._snapshot_end > old else None)
        self._replace(head + data[old:])
        self.opening, moved = opening, len(head) - old
        self._kept = [_Kept(each.end + moved, each.committed) for each in self._kept]
        self._length += moved
        self._snapshot_end += moved

    def _rewrite_if_grown(self, now: int) -> None:
        """Replace the oldest batches by a snapshot once it is worth it."""
        self._move_base(now)
        dropped = self._end_of(self._base.batches) - self._snapshot_end
        if dropped < _WORTH_IT + self._length - dropped:
            return
        head = opening_frame(self.opening, self._base.batches) + snapshot_frame(self._base)
        start = self._end_of(self._base.batches)
        self._replace(head + os.pread(self._fd, self._length - start, start))
        moved = len(head) - start
        kept = self._kept[self._base.batches + 1 - self.first_number :]
        self._kept = [_Kept(each.end + moved, each.committed) for each in kept]
        self._length += moved
        self._snapshot_end = len(head)
        self.first_number = self._base.batches + 1

    def _move_base(self, now: int) -> None:
        """Advance the state for the next snapshot, by two batches at most, so that no append takes long."""
        for _ in range(2):
            number = self._base.batches + 1
            if self.state.batches - number < KEEP_BATCHES:
                return
            if 0 <= now - self._kept[self._place(number)].committed < KEEP_SECONDS * 1000:
                return
            self._base.add(self._read(number))

    def _replace(self, data: bytes) -> None:
        """Replace the whole file, and continue in the new one."""
        facts = os.fstat(self._fd)
        owner = Owner(facts.st_uid, facts.st_gid, facts.st_mode & 0o7777)
        # When this fails halfway, the old file, to which batches are appended, may have lost its name.
        self._is_lost = True
        files.write_atomically(self.path, data, owner)
        fd = open_file(self.path, os.O_RDWR)
        os.close(self._fd)
        self._fd, self._is_lost = fd, False

    def _check_usable(self) -> None:
        if self._is_lost:
            raise OutputError(
                "the journal could not be rewritten before",
                path=self.path,
                next_step="Run the same command again",
            )
        with files.reporting("the journal is gone", self.path):
            is_in_place = os.path.samestat(self.path.stat(), os.fstat(self._fd))
        if not is_in_place:
            raise OutputError(
                "another journal has replaced this one",
                path=self.path,
                expected="nobody but this command changes its output",
                next_step="Run the same command again, when nothing else does",
            )

    def _place(self, number: int) -> int:
        if not self.first_number <= number <= self.state.batches:
            raise IndexError(number)
        return number - self.first_number

    def _end_of(self, number: int) -> int:
        """Where a batch's record ends; for a number before the first one, where the snapshot ends."""
        return self._snapshot_end if number < self.first_number else self._kept[self._place(number)].end

    def _read(self, number: int) -> Batch:
        place = self._place(number)
        start = self._end_of(number - 1)
        data = os.pread(self._fd, self._kept[place].end - start, start)
        for _, payload in whole_frames(data):
            return to_batch(payload)[0]
        raise _damaged(self.path, start, "bytes that changed since it was written")

    def _snapshot(self) -> State:
        """The state before the file's first batch."""
        return _Content(self.path, os.pread(self._fd, self._snapshot_end, 0)).base


def _next_step(found: object) -> str:
    if isinstance(found, int) and found > FORMAT:
        return "A newer reput wrote it: continue with that version, or choose another output directory"
    return "Choose another output directory, or remove this one"


class _Content:
    """The bytes of a journal, decoded."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data = path, data
        self._frames = whole_frames(data)
        at, payload = next(self._frames, (0, b"{}"))
        head: dict[str, Any] = _taken_apart(path, lambda data: dict(json.loads(data)), payload)
        if head.get("format") not in READABLE:
            raise JournalError(
                "this isn't a journal that can be continued",
                path=path,
                expected=f"an opening record of format {' or '.join(map(str, READABLE))}",
                found=head.get("format", "none"),
                next_step=_next_step(head.get("format")),
            )
        self.opening = _taken_apart(path, to_opening, head)
        self.snapshot_end = at + length_of(payload)
        self.base = State(cursor=self.opening.start, log_start=self.opening.start)
        if "snapshot" in head:
            # It was written and flushed together with the opening: a crash can't have removed it.
            at, payload = next(self._frames, (self.snapshot_end, b""))
            if not payload:
                raise _damaged(path, at, "none")
            self.base = _taken_apart(path, to_state, payload)
            self.snapshot_end = at + length_of(payload)

    def batches(self) -> Iterator[tuple[Batch, _Kept]]:
        """The batches, each of which begins where the one before it ended.

        Raises JournalError where one doesn't.
        """
        end, cursor, due = self.snapshot_end, self.base.cursor, self.base.batches + 1
        for at, payload in self._frames:
            batch, number, committed = _taken_apart(self._path, to_batch, payload)
            # Versions before this one wrote no numbers.
            if batch.start != cursor or batch.end < cursor or number not in (None, due):
                named = "" if number is None else f"batch {number}, "
                raise JournalError(
                    "the journal's batches don't follow one another",
                    path=self._path,
                    offset=at,
                    expected=f"batch {due}, which begins at physical offset {cursor}",
                    found=f"{named}from {batch.start} to {batch.end}",
                    next_step=_UNKNOWN,
                )
            end, cursor, due = at + length_of(payload), batch.end, due + 1
            yield batch, _Kept(end, committed)
        following = batch_after(self._data, end)
        if following is not None:
            raise _damaged(self._path, end, f"another whole record at {following}")


def read(path: Path) -> tuple[Opening, list[Batch]]:
    """A journal's opening and the batches that it keeps; nothing is changed."""
    content = _Content(path, _bytes_of(path))
    return content.opening, [batch for batch, _ in content.batches()]


def read_state(path: Path) -> tuple[Opening, State]:
    """What a journal's batches add up to; nothing is changed, and a run may be appending to it."""
    content = _Content(path, _bytes_of(path))
    for batch, _ in content.batches():
        content.base.add(batch)
    return content.opening, content.base


def _taken_apart(path: Path, take: Callable[[_Given], _Taken], given: _Given) -> _Taken:
    """The contents of a record; an error if another version or program wrote it."""
    try:
        return take(given)
    except (ValueError, LookupError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise JournalError(
            "a record of the journal is whole, but this version of reput didn't write it",
            path=path,
            found=repr(error),
            next_step="Continue with the version that wrote it, or choose another output directory",
        ) from error


def _bytes_of(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise JournalError("the journal can't be read", path=path, found=error.strerror) from error


def _damaged(path: Path, offset: int, found: str) -> JournalError:
    return JournalError(
        "a record of the journal is damaged, and more records follow it",
        path=path,
        offset=offset,
        expected="a length and a CRC that fit",
        found=found,
        next_step=_UNKNOWN,
    )


@cache
def ledger_is_kept() -> bool:
    """Whether runs here keep a ledger, too: what writes it comes with ``reput[spark]``.

    The journal is what counts. A run where this is installed adds to the ledger what one without left out.
    """
    try:
        import pyarrow  # noqa: F401 - it starts a thread
    except ModuleNotFoundError:
        return False
    return True


def load_ledger() -> None:
    """Load what writes one, where it is kept: a quarter of a second."""
    if ledger_is_kept():
        import reput.output.ledger  # noqa: F401
