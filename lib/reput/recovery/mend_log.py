"""What of the commit log a starting broker would stumble over, changed on copies.

Each step asks the model of the start where the walk ends, and changes the place on a copy; the next step asks
again, about the copies. So nothing is changed that a start doesn't meet, and the end is proven by the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.broker.files import StoreFile
from reput.broker.record import Kind, judge
from reput.broker.snapshot import Snapshot
from reput.errors import Fact, StoreError
from reput.format import commitlog
from reput.format.commitlog import Record
from reput.log.segments import map_segment
from reput.recovery.log_copies import LogCopies
from reput.recovery.plan import Plan, plan
from reput.recovery.refusals import rebuild_out, refuse_sound_record
from reput.recovery.survivors import first_cut, is_followed
from reput.scan.part import STAND_IN_TOPIC

_MOST_CHANGES = 1000

#: Bytes of a record that stands where damage was, so that a start goes on behind it, at least and at most. A
#: damaged message is never shorter than a record without a body.
_LEAST = commitlog.MIN_RECORD_LENGTH + 1
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class Change(Fact):
    """A range of the log that isn't any more what it was.

    Attributes:
        kind: ``torn-end`` (zeros now), ``stand-in`` (records that a broker passes over), ``closing-record``,
            ``moved-away`` (a file).
        path: the segment.
        offset, end: physical offsets, half open.
    """

    offset: int
    end: int

    @property
    def said(self) -> str:
        """What was done."""
        return {
            "torn-end": "no whole record: zeros now, as a broker finds them behind its log",
            "stand-in": "damaged: records stand there that a broker passes over",
            "closing-record": "the segment's closing record",
            "moved-away": "moved away",
        }[self.kind]

    def to_dict(self) -> dict[str, object]:
        """As :meth:`Fact.to_dict`."""
        return {**Fact.to_dict(self), "physical_offset": self.offset, "physical_end": self.end}

    def __str__(self) -> str:
        where = f" at {self.offset} to {self.end}" if self.end else ""
        return f"{self.path}{where}: {self.said}"


@dataclass(slots=True)
class MendedLog:
    """A log that a start goes through, and what it took.

    Attributes:
        view: the store with the copies in the segments' places.
        plan: what a start makes of it.
        changes: what was changed, in order.
        removed: segments to move away, relative to the store.
        whole: physical offsets of messages among the damage: their bodies alone are wrong, and queues that
            are made of the log as it was have units of them.
    """

    view: Snapshot
    plan: Plan
    changes: list[Change]
    removed: list[str]
    whole: list[int] = field(default_factory=list)


class WholeMessagesError(StoreError):
    """Queues and index hold messages that stand-ins take the places of: make them without ``offsets``."""

    def __init__(self, path: Path, offsets: Sequence[int]) -> None:
        super().__init__(
            "a message's body doesn't have its CRC, messages follow, and a start cuts the log there",
            path=path,
            offset=offsets[0],
            next_step="Set checkCRCOnRecover=false in broker.conf to keep it, and all behind it.",
        )
        self.offsets = tuple(offsets)


def mend_log(view: Snapshot, copies: LogCopies, without: Sequence[int] = ()) -> MendedLog:
    """Change copies until a start cuts nothing off the log.

    Args:
        view: the store, its queues and index as they will be.
        without: the messages with a wrong body that they were made without, by physical offset.

    Raises:
        WholeMessagesError: they have to be made anew, without others.
        ReputError: there is damage that can't be mended, with what to do instead.
    """
    mended = MendedLog(view, plan(view), [], [])
    while any(loss.kind in ("log-cut", "segment-deleted") for loss in mended.plan.losses):
        if len(mended.changes) >= _MOST_CHANGES:
            raise _refused(view, mended.plan, f"more than {_MOST_CHANGES} damaged places")
        _step(mended, copies)
        mended.plan = plan(mended.view)
    if set(mended.whole) != set(without):
        raise WholeMessagesError(Path(mended.changes[0].path), sorted({*mended.whole, *without}))
    return mended


def _step(mended: MendedLog, copies: LogCopies) -> None:
    view, prediction = mended.view, mended.plan.prediction
    cut = first_cut(prediction)
    if cut is None:  # the walk ended with a closing record, and no segment begins there
        path = prediction.cuts[0].path
        raise _refused(view, mended.plan, f"the log ends at {prediction.log_end}, and {path.name} follows")
    segment, position, found, timestamp = cut.segment, cut.position, cut.found, cut.timestamp
    size = view.segment_size
    data = map_segment(segment.path, size)
    if not is_followed(view, cut):
        copy = _take(mended, copies, segment)
        copies.clear(copy, position)
        _note(mended, copies, "torn-end", segment, position, size)
        for one in cut.written:
            mended.removed.append(copies.name(one.path))
            mended.view = _with(mended.view, [file for file in mended.view.log.files if file != one])
            mended.changes.append(Change("moved-away", mended.removed[-1], one.base, one.base + size))
        return
    refuse_sound_record(prediction, cut)
    if judge(data, position, view.settings.dialect, check_crc=False).kind is Kind.MESSAGE:
        mended.whole.append(segment.base + position)
    end = found if found >= 0 else size
    if found >= 0:
        timestamp = max(timestamp, commitlog.decode(data.data, found).store_timestamp)
    closing = found < 0
    room = end - (commitlog.BLANK_LENGTH if closing else 0)
    records = []
    if room - position > commitlog.MIN_RECORD_LENGTH:
        records = list(stand_ins(data, segment.base, position, room, timestamp))
    elif not closing or end - position < commitlog.BLANK_LENGTH:
        raise _refused(view, mended.plan, f"{end - position} damaged bytes at {segment.base + position}")
    else:
        room = position
    copy = _take(mended, copies, segment)
    for at, record in records:
        copies.write(copy, at, record)
    if records:
        _note(mended, copies, "stand-in", segment, position, room)
    if closing:
        copies.write(copy, room, commitlog.encode_blank(size - room))
        _note(mended, copies, "closing-record", segment, room, size)


def _take(mended: MendedLog, copies: LogCopies, segment: StoreFile) -> StoreFile:
    copy = copies.of(segment)
    files = [copy if file == segment else file for file in mended.view.log.files]
    mended.view = _with(mended.view, files)
    return copy


def _note(mended: MendedLog, copies: LogCopies, kind: str, segment: StoreFile, start: int, end: int) -> None:
    path = next(name for name in copies.names if name.endswith(segment.path.name))
    mended.changes.append(Change(kind, path, segment.base + start, segment.base + end))


def _with(view: Snapshot, log: list[StoreFile]) -> Snapshot:
    return replace(view, log=replace(view.log, files=tuple(log)))


def _refused(view: Snapshot, result: Plan, found: str) -> StoreError:
    first = next((loss.path for loss in result.losses), str(view.settings.root))
    return StoreError(
        "the commit log has damage that --apply doesn't mend",
        path=Path(first),
        found=found,
        next_step=rebuild_out(view.settings),
    )


def stand_ins(
    data: NDArray[np.uint8], base: int, start: int, end: int, timestamp: int
) -> Iterator[tuple[int, bytes]]:
    """Records that fill a damaged range, one after the other.

    Args:
        data: uint8[bytes], the segment.
        base: physical offset of its first byte.
        start, end: the range, positions in the segment, half open.
        timestamp: storeTimestamp, ms, of a message next to the range.

    Yields:
        Position in the segment, and the record's bytes.

    Raises:
        ValueError: the range is shorter than a record.
    """
    if end - start < _LEAST:
        raise ValueError(f"{end - start} bytes are no room for a record")
    while start < end:
        size = end - start
        if size > _MOST:
            size = min(_MOST, size - _LEAST)
        topic = STAND_IN_TOPIC[: size - commitlog.MIN_RECORD_LENGTH]
        around = commitlog.MIN_RECORD_LENGTH + len(topic)
        # The body lies where these very bytes lay.
        first = start + commitlog.body_at(commitlog.TRANSACTION_ROLLBACK)
        record = Record(
            topic=topic,
            body=data[first : first + size - around].tobytes(),
            physical_offset=base + start + 1,
            sys_flag=commitlog.TRANSACTION_ROLLBACK,
            born_timestamp=timestamp,
            store_timestamp=timestamp,
        )
        yield start, commitlog.encode(record)
        start += size
