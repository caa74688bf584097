"""The journal: the commit point of every batch.

``.reput/journal`` in the output is a sequence of records: length uint32, CRC-32 of the payload uint32 (both
big-endian), payload: UTF-8 JSON. The first is the :class:`Opening`; each other is one :class:`Batch` whose
outputs were on disk before it was appended. Its end offset is the cursor, whatever Spark's checkpoint says.
A record that is cut short or has a wrong CRC at the journal's end was never committed, and is cut off.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from zlib import crc32

from reput.errors import Finding, JournalError
from reput.format.indexfile import IndexHeader
from reput.store import files
from reput.store.ownership import Owner

_FRAME = struct.Struct(">II")
_FORMAT = 1
_MAX_RECORD = 1 << 31
_BATCH_BEGINS = b'{"start":'


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as of the end of a batch.

    Attributes:
        first, next: queueOffset of its first unit, and after its last.
        end: physical offset after its last message.
        units, bytes: added by the batch that wrote this.
        shift: how far its last message's queueOffset lies above its place; see reput.build.placement.
    """

    first: int
    next: int
    end: int
    units: int = 0
    bytes: int = 0
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """What the output was begun with.

    Attributes:
        store: the store's path.
        fingerprint: of everything that changes output bytes.
        start: physical offset of the first record to read.
        settings: what the fingerprint was made of, for people; JSON-ready.
    """

    store: str
    fingerprint: str
    start: int
    settings: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """One committed batch.

    Attributes:
        start, end: physical offsets, half open; ``end`` is the cursor.
        batch_id: Spark's, for people; it identifies nothing.
        messages, bytes: of the records in the range.
        last_position: physical offset of the last record so far, -1 if none.
        last_timestamp: its storeTimestamp, ms.
        last_unit_timestamp: storeTimestamp of the last message with a unit so far, ms.
        last_unit_position: physical offset of that message, -1 if none.
        queues: the queues that changed, by (topic, queue id).
        dropped: queues that the batch created anew: their old units are gone.
        index: the index files that changed: (name, header).
        findings: what was gone around.
        without_unit: messages that got no unit, by topic.
        breaks: physical offsets where something was passed over, so that messages may be missing.
        log_start: where the log began when retention last followed it, physical offset; see
            reput.sink.retention. 0: as before.
        dropped_index: names of the index files that retention removed.
        dropped_index_timestamp: endTimestamp of the last one of them, ms; 0: as before.
        last_record: by what the last record so far is known again; empty: as before.
    """

    start: int
    end: int
    batch_id: int
    messages: int
    bytes: int
    last_position: int
    last_timestamp: int
    last_unit_timestamp: int
    queues: dict[tuple[str, int], QueueState] = field(default_factory=dict)
    index: list[tuple[str, IndexHeader]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    without_unit: dict[str, int] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)
    last_unit_position: int = -1
    log_start: int = 0
    dropped_index: list[str] = field(default_factory=list)
    dropped_index_timestamp: int = 0
    last_record: str = ""


@dataclass(slots=True)
class State:
    """Everything the journal says, added up.

    Attributes:
        cursor: physical offset up to which the log has been processed.
        queues: every queue.
        index: every index file in order: (name, header), without those that retention removed.
        log_start: where the log began when the output was begun, or when retention last followed it.
        dropped_index_timestamp: endTimestamp of the last index file that retention removed, ms; 0 if none.
    """

    cursor: int
    messages: int = 0
    bytes: int = 0
    batches: int = 0
    last_position: int = -1
    last_timestamp: int = 0
    last_unit_timestamp: int = 0
    last_unit_position: int = -1
    queues: dict[tuple[str, int], QueueState] = field(default_factory=dict)
    index: list[tuple[str, IndexHeader]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    without_unit: dict[str, int] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)
    log_start: int = 0
    dropped_index_timestamp: int = 0
    last_record: str = ""

    def add(self, batch: Batch) -> None:
        """Go on from one batch to the next."""
        self.cursor = batch.end
        self.messages += batch.messages
        self.bytes += batch.bytes
        self.batches += 1
        self.last_position = batch.last_position
        self.last_timestamp = batch.last_timestamp
        self.last_unit_timestamp = batch.last_unit_timestamp
        self.last_unit_position = batch.last_unit_position
        self.queues.update(batch.queues)
        known = dict(self.index)
        known.update(batch.index)
        for name in batch.dropped_index:
            known.pop(name, None)
        self.index = sorted(known.items())
        self.log_start = batch.log_start or self.log_start
        self.dropped_index_timestamp = batch.dropped_index_timestamp or self.dropped_index_timestamp
        self.last_record = batch.last_record or self.last_record
        self.findings += batch.findings
        self.breaks += batch.breaks
        for topic, count in batch.without_unit.items():
            self.without_unit[topic] = self.without_unit.get(topic, 0) + count


class Journal:
    """An open journal. Use it as a context manager."""

    def __init__(self, path: Path, fd: int, length: int, opening: Opening, batches: list[Batch]) -> None:
        self.path = path
        self.opening = opening
        self.batches = batches
        self.state = State(cursor=opening.start, log_start=opening.start)
        for batch in batches:
            self.state.add(batch)
        self._fd = fd
        self._length = length

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    @classmethod
    def create(cls, path: Path, opening: Opening, owner: Owner | None) -> Journal:
        """Begin a journal.

        Raises:
            OutputError: it can't be written.
        """
        data = _frame({"format": _FORMAT, **asdict(opening)})
        files.write_atomically(path, data, owner)
        return cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), len(data), opening, [])

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open a journal and cut a record off its end that was never committed.

        Raises:
            JournalError: it isn't a journal of this version.
        """
        payloads, length = _read(path)
        opening = _opening(path, payloads)
        batches = [_batch(payload) for payload in payloads[1:]]
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(fd).st_size > length:
            os.ftruncate(fd, length)
            files.fsync_file(fd)
        return cls(path, fd, length, opening, batches)

    def append(self, batch: Batch) -> None:
        """Commit a batch: on return the record is on disk.

        Raises:
            OutputError: it can't be written; the journal is as it was.
        """
        data = _frame(_payload(batch))
        files.pwrite_all(self._fd, data, self._length)
        files.fsync_file(self._fd)
        self._length += len(data)
        self.batches.append(batch)
        self.state.add(batch)


def read(path: Path) -> tuple[Opening, list[Batch]]:
    """What a journal holds, without changing anything.

    Raises:
        JournalError: it isn't a journal of this version.
    """
    payloads, _length = _read(path)
    return _opening(path, payloads), [_batch(payload) for payload in payloads[1:]]


def _read(path: Path) -> tuple[list[dict[str, object]], int]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JournalError("the journal can't be read", path=path, found=error.strerror) from error
    payloads = []
    at = 0
    while at + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        # No record is empty, but zeros, which a power loss may leave at the end, would pass for an empty one.
        if not 0 < length <= _MAX_RECORD or len(payload) < length or crc32(payload) != crc:
            break
        payloads.append(json.loads(payload))
        at += _FRAME.size + length
    following = _whole_record_after(data, at)
    if following is not None:
        raise JournalError(
            "a record of the journal is damaged, and others follow it",
            path=path,
            offset=at,
            expected="a length and a CRC that fit",
            found=f"another whole record at {following}",
            next_step="What the batches wrote is not known any more: remove the output and rebuild it",
        )
    return payloads, at


def _whole_record_after(data: bytes, at: int) -> int | None:
    """Where a batch lies after a damaged record. A crash leaves none: only the last one can be cut short."""
    start = data.find(_BATCH_BEGINS, at + _FRAME.size + 1)
    while start >= 0:
        length, crc = _FRAME.unpack_from(data, start - _FRAME.size)
        if crc32(data[start : start + length]) == crc:
            return start - _FRAME.size
        start = data.find(_BATCH_BEGINS, start + 1)
    return None


def _opening(path: Path, payloads: list[dict[str, object]]) -> Opening:
    head = payloads[0] if payloads else {}
    if head.get("format") != _FORMAT:
        raise JournalError(
            "this is no journal that can be continued",
            path=path,
            expected=f"an opening record of format {_FORMAT}",
            found=head.get("format", "none"),
            next_step="Choose another output directory, or remove this one",
        )
    settings = head.get("settings")
    return Opening(
        str(head["store"]),
        str(head["fingerprint"]),
        int(str(head["start"])),
        settings if isinstance(settings, dict) else {},
    )


def _frame(payload: dict[str, object]) -> bytes:
    data = json.dumps(payload, separators=(",", ":")).encode()
    return _FRAME.pack(len(data), crc32(data)) + data


def _payload(batch: Batch) -> dict[str, object]:
    payload = {name: getattr(batch, name) for name in Batch.__slots__}
    payload["queues"] = [
        [topic, queue_id, state.first, state.next, state.end, state.units, state.bytes, state.shift]
        for (topic, queue_id), state in batch.queues.items()
    ]
    payload["index"] = [[name, header.encode().hex()] for name, header in batch.index]
    payload["findings"] = [finding.to_dict() for finding in batch.findings]
    return payload


def _batch(payload: dict[str, object]) -> Batch:
    facts = dict(payload)
    facts["queues"] = {
        (topic, queue_id): QueueState(*rest)
        for topic, queue_id, *rest in facts["queues"]  # type: ignore[attr-defined]
    }
    facts["index"] = [
        (name, IndexHeader.decode(bytes.fromhex(header)))
        for name, header in facts["index"]  # type: ignore[attr-defined]
    ]
    facts["findings"] = [Finding(**finding) for finding in facts["findings"]]  # type: ignore[attr-defined]
    return Batch(**facts)  # type: ignore[arg-type]
