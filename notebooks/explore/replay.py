"""A writer that grows a commit log: messages of another store, stored again with new times and offsets.

It is used instead of a broker. It writes a broker's records, with new values in the three fields for time and
place: storeTimestamp, queueOffset and physicalOffset (docs/formats/commitlog.md). They go into segments of
full length, from the front, as a broker's do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from explore.workspace import Store
from reput.broker.record import Kind, judge
from reput.errors import StoreError
from reput.format import commitlog, names, properties
from reput.log.segments import discover, map_segment
from reput.replay.selection import is_system

if TYPE_CHECKING:
    from explore.workspace import Workspace

#: Bytes of the other store's log that are taken.
MOST_TAKEN = 16 << 20
SEGMENT = 64 << 20
_TICK_SECONDS = 0.005
_LONG = np.arange(8)
#: Properties of messages that need more than these three fields changed.
_PROPERTIES = {b"INNER_MULTI_DISPATCH", b"__CRC32#", b"INNER_NUM"}
_CONF = """\
# What a replayed store is written with: files large enough for some minutes, small enough for a notebook.
mappedFileSizeCommitLog={segment}
mappedFileSizeConsumeQueue=400000
maxHashSlotNum=100000
maxIndexNum=400000
"""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time with steady traffic.

    Attributes:
        name: for people.
        seconds: how long.
        rate: messages a second.
    """

    name: str
    seconds: float
    rate: int


@dataclass(frozen=True, slots=True)
class Recording:
    """Messages to be stored again.

    Attributes:
        data: uint8, the records one after the other.
        start: int64[messages + 1], where each begins, and the end.
        stamp: int64[messages], position of the storeTimestamp in the record.
        queue: int64[messages], a number for its queue.
        rank: int64[messages], how many of its queue come before it.
        held: int64[queues], how many each queue has.
    """

    data: NDArray[np.uint8]
    start: NDArray[np.int64]
    stamp: NDArray[np.int64]
    queue: NDArray[np.int64]
    rank: NDArray[np.int64]
    held: NDArray[np.int64]

    @classmethod
    def of(cls, store: Store, most: int = MOST_TAKEN) -> Recording:
        """The first messages of a store, without a broker's own topics, transactions and light queues.

        Args:
            most: bytes of log to look at.
        """
        settings = store.settings()
        pieces: list[NDArray[np.uint8]] = []
        stamps, queues, numbers = [], [], {}  # type: ignore[var-annotated]
        for segment in discover(settings).segments:
            data = map_segment(segment.path, segment.length)
            at = 0
            while most > 0:
                judged = judge(data, at, settings.dialect, check_crc=False)
                if judged.kind is not Kind.MESSAGE:
                    break
                record = commitlog.decode(data.data, at)
                if _is_plain(record):
                    pieces.append(np.array(data[at : at + judged.size]))
                    stamps.append(commitlog.store_timestamp_at(record.sys_flag))
                    queues.append(numbers.setdefault((record.topic, record.queue_id), len(numbers)))
                at += judged.size
                most -= judged.size
        if not pieces:
            raise StoreError("the log begins with no message that can be stored again", path=store.root)
        queue = np.array(queues, np.int64)
        ranks = np.asarray(pd.Series(queue).groupby(queue).cumcount(), np.int64)
        sizes = [len(piece) for piece in pieces]
        start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        held = np.bincount(queue).astype(np.int64)
        return cls(np.concatenate(pieces), start, np.array(stamps), queue, ranks, held)

    def __len__(self) -> int:
        return len(self.stamp)

    def __repr__(self) -> str:
        return f"{len(self):,} messages of {len(self.held)} queues, {len(self.data):,} bytes"


class Replay:
    """A store that is written to.

    Args:
        workspace: gets the store's directory, with a broker.conf beside it.
        recording: what is written, over and over.
        version: the release whose store it is, None for the newest.

    Attributes:
        store: for readers.
        end: physical offset after the last message.
    """

    def __init__(
        self, workspace: Workspace, recording: Recording, version: str | None = None, segment: int = SEGMENT
    ) -> None:
        root = workspace.root / "growing"
        conf = workspace.root / "growing.conf"
        (root / names.COMMIT_LOG).mkdir(parents=True)
        (root / names.ABORT).touch()
        conf.write_text(_CONF.format(segment=segment), encoding="utf-8")
        self.store = Store(root, conf, version, "a log that grows", is_copy=True)
        self.end = 0
        self._recording, self._segment = recording, segment
        self._written = 0
        self._fd = -1
        self._ticks: list[tuple[int, str, int, int]] = []

    def close(self) -> None:
        """Close the log's file; the next message opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def run(self, phases: Sequence[Phase]) -> None:
        """Write one phase after the other; returns after the last."""
        for phase in phases:
            began = time.monotonic()
            done = 0
            while (elapsed := time.monotonic() - began) < phase.seconds:
                due = int(elapsed * phase.rate) - done
                if due:
                    self._write(due, phase.name)
                    done += due
                time.sleep(_TICK_SECONDS)

    @property
    def ticks(self) -> pd.DataFrame:
        """What was written: ``time`` (UTC), ``phase``, ``messages``, ``end`` (physical offset)."""
        frame = pd.DataFrame(self._ticks, columns=["time", "phase", "messages", "end"])
        frame["time"] = pd.to_datetime(frame["time"], unit="ms", utc=True)
        return frame

    def _write(self, messages: int, phase: str) -> None:
        now = int(time.time() * 1000)
        left = messages
        while left:
            left -= self._write_some(left, now)
        self._ticks.append((now, phase, messages, self.end))

    def _write_some(self, most: int, now: int) -> int:
        """Write messages up to the recording's or the segment's end; returns how many."""
        kept = self._recording
        turn, first = divmod(self._written, len(kept))
        last = min(first + most, len(kept))
        room = self._segment - self.end % self._segment - commitlog.BLANK_LENGTH
        fit = int(np.searchsorted(kept.start, kept.start[first] + room, side="right")) - 1
        last = min(last, fit)
        if last <= first:
            self._close_segment()
            return 0
        begin = int(kept.start[first])
        data = kept.data[begin : kept.start[last]].copy()
        at = kept.start[first:last] - begin
        queue = kept.queue[first:last]
        _put(data, at + commitlog.QUEUE_OFFSET, turn * kept.held[queue] + kept.rank[first:last])
        _put(data, at + commitlog.PHYSICAL_OFFSET, self.end + at)
        _put(data, at + kept.stamp[first:last], np.full(len(at), now))
        self._append(data.tobytes())
        self._written += last - first
        return last - first

    def _close_segment(self) -> None:
        left = self._segment - self.end % self._segment
        self._append(commitlog.encode_blank(left)[: commitlog.BLANK_LENGTH])
        self.end += left - commitlog.BLANK_LENGTH
        self.close()

    def _append(self, data: bytes) -> None:
        if self._fd < 0:
            base = self.end - self.end % self._segment
            path = self.store.root / names.COMMIT_LOG / names.offset_name(base)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._fd, self._segment)
        os.pwrite(self._fd, data, self.end % self._segment)
        self.end += len(data)


def _is_plain(record: commitlog.Record) -> bool:
    odd = commitlog.SYS_FLAG_INNER_BATCH | commitlog.SYS_FLAG_NEED_UNWRAP | commitlog.TRANSACTION_MASK
    if record.sys_flag & odd or is_system(record.topic.decode("utf-8", "replace")):
        return False
    return not any(name in _PROPERTIES for name, _ in properties.pairs(record.properties))


def _put(data: NDArray[np.uint8], at: NDArray[np.int64], values: NDArray[np.int64]) -> None:
    """Write longs, big-endian."""
    data[at[:, None] + _LONG] = values.astype(">i8").view(np.uint8).reshape(-1, 8)
