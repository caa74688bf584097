"""A writer that grows a commit log: messages of another store, stored again with new times and offsets.

It is used instead of a broker. It writes a broker's records, with new values in the three fields for time and
place: storeTimestamp, queueOffset and physicalOffset (docs/formats/commitlog.md). They go into segments of
full length, from the front, as a broker's do.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import reput
from explore.workspace import Store
from reput.broker.record import Kind, judge
from reput.errors import OutputError, ReputError, StoreError
from reput.format import commitlog, names, properties
from reput.job.status import RunNote, Status, Stopped, look, stop
from reput.log.segments import discover, map_segment
from reput.newer_python import Self
from reput.replay.target import is_system

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


_START_SECONDS = 120.0
_POLL_SECONDS = 0.1
_MOST_OUTPUT = 2000
_OURS = {
    *("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_ENV_LOADED"),
    *("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED"),
}
_STAGE = "reput_stage_duration_seconds"


class Tail:
    """A tail as a process of its own; it ends with this one at the latest.

    Args:
        workspace: gets the output, and what the tail prints on stderr.
        store: the store to follow.
    """

    def __init__(self, workspace: Workspace, store: Store) -> None:
        self.out = workspace.root / "derived"
        self._said = workspace.root / "tail.log"
        words: list[object] = ["tail", store.root, "--out", self.out, "--metrics-port", 0]
        words += [] if store.broker_conf is None else ["--broker-conf", store.broker_conf]
        words += [] if store.version is None else ["--rocketmq-version", store.version]
        library = str(Path(reput.__file__).parents[1])
        path = os.pathsep.join(filter(None, [library, os.environ.get("PYTHONPATH")]))
        # The tail starts a JVM of its own, whatever the notebook's session is.
        environment = {key: value for key, value in os.environ.items() if key not in _OURS}
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "reput.cli", *map(str, words)],
                env={**environment, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )

        atexit.register(self.kill)

    def wait(self, offset: int, seconds: float = _START_SECONDS) -> Status:
        """Wait until the log is committed up to a physical offset.

        Raises:
            OutputError: it isn't within this time, or the tail has ended.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(ReputError):  # it hasn't begun its output
                status = look(self.out)
                if status.committed.cursor >= offset:
                    return status
            time.sleep(_POLL_SECONDS)
        printed = self._said.read_text(encoding="utf-8", errors="replace")[-_MOST_OUTPUT:]
        code = self._process.poll()
        found = f"exit code {code}" if code is not None else f"not there within {seconds:g} s"
        raise OutputError("the tail doesn't work", path=self.out, found=f"{found}; it printed: {printed}")

    def metrics(self) -> dict[str, float]:
        """Its metrics for Prometheus, by name; values of labels are appended after dots.

        Raises:
            OutputError: it doesn't serve metrics now.
        """
        from prometheus_client.parser import text_string_to_metric_families

        note = RunNote.read(self.out)
        if note is None or note.metrics is None:
            raise OutputError("the tail serves no metrics", path=self.out)
        try:
            with urllib.request.urlopen(note.metrics, timeout=5) as answer:
                text = answer.read().decode()
        except OSError as error:
            raise OutputError("the tail's metrics can't be read", found=str(error)) from error
        return {
            ".".join([sample.name, *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def stop(self) -> Stopped:
        """Stop it after the batch under way.

        Raises:
            StoreInUseError: it hasn't stopped in time.
        """
        stopped = stop(self.out)
        self._process.wait(30)
        return stopped

    def kill(self) -> None:
        """Kill it at once, if it still runs, as in a crash."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Sampler:
    """Reads a tail's metrics repeatedly while the block runs.

    Args:
        tail: it has started.
        every: seconds from one reading to the next.
    """

    def __init__(self, tail: Tail, every: float = 0.25) -> None:
        self._tail, self._every = tail, every
        self._rows: list[dict[str, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            with suppress(OutputError):  # it ends; the samples so far are what there is
                self._rows.append({"time": time.time() * 1000, **self._tail.metrics()})
            self._ended.wait(self._every)

    @property
    def samples(self) -> pd.DataFrame:
        """A row a reading, indexed by its time (UTC); a column a metric."""
        frame = pd.DataFrame(self._rows)
        frame["time"] = pd.to_datetime(frame["time"], unit="ms", utc=True)
        return frame.set_index("time")


def stages(before: dict[str, float], after: dict[str, float]) -> pd.DataFrame:
    """How the time of batches was spent between two readings of the metrics.

    Returns:
        Indexed by stage: ``ms`` (in a batch, in the mean) and ``share`` (0 to 1); the longest first.
    """
    prefix = f"{_STAGE}_sum."
    spent = {
        key.removeprefix(prefix): after[key] - before.get(key, 0) for key in after if key.startswith(prefix)
    }
    batches = after["reput_batches_total"] - before.get("reput_batches_total", 0)
    series = pd.Series(spent, dtype=float).sort_values(ascending=False)
    frame = pd.DataFrame({"ms": series / max(batches, 1) * 1000, "share": series / max(series.sum(), 1e-12)})
    frame.index.name = "stage"
    return frame
