"""The two real stores of a day: the one that is written to, and the one that gets its log as a slave does."""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reput.format import names
from reput.format.dtypes import UNIT_DTYPE
from tests.compat.cleaning import expire
from tests.compat.compiled import instance
from tests.compat.java_store import JavaStore
from tests.compat.jvm import JavaError
from tests.torture.day.sizes import QUEUES, TOPICS, Sizes
from tests.torture.verify import WrongError

_HERE = Path(__file__).parent
#: One core for a JVM's own threads: the machine is shared with the tail.
_OPTIONS = ("-XX:ActiveProcessorCount=1",)
_MESSAGE, _BLANK = 0xDAA320A7, 0xCBD43194
_FRAME = struct.Struct(">iI4xi")  # TOTALSIZE, MAGICCODE, QUEUEID
_BODY_LENGTH = struct.Struct(">84xi")
#: A queue, as LogCopier.java names it: topic/queueId.
Queue = str


@dataclass(frozen=True, slots=True)
class Record:
    """A whole message in a log: where it begins, its bytes, its queue."""

    position: int
    size: int
    queue: Queue


def records(log: Path, position: int, segment: int) -> Iterator[Record]:
    """The whole messages from this place on, up to the first bytes that are none, the plain way.

    Args:
        log: a directory of segments.
        position: physical offset where a record begins.
        segment: bytes of each file.
    """
    while (path := log / names.offset_name(position - position % segment)).exists():
        base = position - position % segment
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            while (at := position - base) + 8 <= len(data):
                size, magic = struct.unpack_from(">iI", data, at)
                # The last byte of a record of FeedWriter.java is never zero.
                if magic == _MESSAGE and 0 < size <= len(data) - at and data[at + size - 1]:
                    yield Record(position, size, _queue(data, at))
                elif magic != _BLANK or size != len(data) - at:
                    return
                position += size
            position = max(position, base + segment)


def _queue(data: mmap.mmap, at: int) -> Queue:
    _, _, queue_id = _FRAME.unpack_from(data, at)
    topic_at = at + _BODY_LENGTH.size + _BODY_LENGTH.unpack_from(data, at)[0]
    topic = data[topic_at + 1 : topic_at + 1 + data[topic_at]]
    return f"{topic.decode()}/{queue_id}"


def lose_units(root: Path, position: int) -> None:
    """Take the units of messages at or past a physical offset out of a stopped store's consume queues.

    A start that cuts queues leaves the units in their files, and the start after it takes those again whose
    place the log has reached since (docs/starts.md): a hole comes into the queue, and what is derived from
    the log has other queueOffsets than the store from there on.
    """
    for path in sorted((root / names.CONSUME_QUEUE).glob("*/*/*")):
        units = np.memmap(path, UNIT_DTYPE, "r+")
        lost = units["position"] >= position
        if lost[0]:
            path.unlink()  # of a last file of zeros, a start makes a unit of zeros
        else:
            units[lost] = 0


class FedStore:
    """The store that is written to, again and again in a JVM of its own.

    Args:
        version: the RocketMQ release.
        root: the store's directory.
        sizes: of its files.
        rate: messages a second.
        counts: a file beside the store, of what it took; see FeedWriter.java.

    Attributes:
        starts: how often it was started.
        late: seconds by which the feeding is behind, in all lives so far together.
        most_late: the most by which a message was late in one life, seconds, since it was set to 0.
    """

    def __init__(self, version: str, root: Path, sizes: Sizes, rate: int, counts: Path) -> None:
        self.root = root
        self.starts = 0
        self.most_late = 0.0
        self._version, self._sizes, self._rate, self._counts = version, sizes, rate, counts
        self._java: JavaStore | None = None
        self._writer: Any = None
        self._late_before = self._late_now = 0.0

    @property
    def log(self) -> Path:
        return self.root / names.COMMIT_LOG

    @property
    def runs(self) -> bool:
        return self._java is not None

    @property
    def late(self) -> float:
        return self._late_before + self._late_now

    def start(self, until: int) -> int:
        """Start it, and feed it up to so many messages; returns where its log ends before that.

        Raises:
            JavaError: it doesn't load.
        """
        java = JavaStore(self._version, self.root, self._sizes.config, jvm_options=_OPTIONS)
        self._java = java
        self.starts += 1
        if not java.load():
            raise JavaError(f"{self.root}: the store did not load; {java.jvm.log_tail()}")
        java.start()
        end = int(java.store.getMaxPhyOffset())
        self._writer = instance(java.jvm, _HERE / "FeedWriter.java")
        request = {"store": java.store, "rate": self._rate, "counts": str(self._counts), "until": until}
        self._writer.apply({**request, "topics": TOPICS, "queues": QUEUES})
        return end

    def fed(self, until: int | None = None) -> int:
        """How many messages it has taken in all, as the writer knows it; ``until`` is a new limit.

        Raises:
            JavaError: it takes no more.
        """
        return self._told(self._writer.apply({} if until is None else {"until": until}))

    def end(self) -> int:
        """The physical offset of the log's end: a record ends there."""
        assert self._java is not None
        return int(self._java.store.getMaxPhyOffset())

    def stop(self) -> int:
        """Stop it cleanly, when everything is derived; where its log ends.

        Raises:
            JavaError: it doesn't come to an end.
        """
        assert self._java is not None
        self._told(self._writer.apply({"stop": True}))
        self._java.wait_dispatched()
        end = self.end()
        self._java.shutdown()
        self.close()
        return end

    def kill(self) -> None:
        """SIGKILL."""
        assert self._java is not None
        self._java.kill()
        self.close()

    def close(self) -> None:
        """End its JVM, as it is."""
        self._late_before, self._late_now = self.late, 0.0
        if self._java is not None:
            self._java.jvm.close()
            self._java = None

    def expire(self, segments: int) -> None:
        """Let the log's first segments expire."""
        assert self._java is not None
        expire(self._java, segments)

    def taken(self) -> Counter[Queue]:
        """How many messages of each queue it has taken, since the first start."""
        numbers = struct.unpack(f">{TOPICS * QUEUES}q", self._counts.read_bytes())
        return Counter({f"day-{n // QUEUES}/{n % QUEUES}": count for n, count in enumerate(numbers)})

    def _told(self, answer: Any) -> int:
        if "error" in answer:
            raise JavaError(str(answer["error"]))
        self._late_now = int(answer["late"]) / 1e9
        self.most_late = max(self.most_late, int(answer["most_late"]) / 1e9)
        return int(answer["messages"])


class Slave:
    """A store that gets the other one's log as a slave does, derives all of it, and is never killed.

    What it has is what a broker of the release derives from this log. After a crash, a broker's own index
    lacks keys, or has some twice (docs/formats/indexfile.md).

    Args:
        version: the RocketMQ release.
        root: the store's directory.
        sizes: of its files.
        log: the directory of the segments that it gets.

    Attributes:
        end: physical offset up to which it has the log.
        counts: the messages in that, by queue, as LogCopier.java counts them.
    """

    def __init__(self, version: str, root: Path, sizes: Sizes, log: Path) -> None:
        self.root = root
        self.end = 0
        self.counts: Counter[Queue] = Counter()
        self._log, self._sizes = log, sizes
        self._java = JavaStore(version, root, sizes.config, jvm_options=_OPTIONS)
        try:
            self._copier = instance(self._java.jvm, _HERE / "LogCopier.java")
            if not self._java.load():
                raise JavaError(f"{root}: the store did not load; {self._java.jvm.log_tail()}")
            self._java.start()
        except BaseException:
            self.close()
            raise

    def follow(self, to: int) -> None:
        """Get the log up to this physical offset, where a record ends, and derive it.

        Raises:
            WrongError: a record isn't what the one before it makes it.
        """
        request = {"store": self._java.store, "log": str(self._log), "segment": self._sizes.segment, "to": to}
        answer = self._copier.apply(request)
        self.end = int(answer["end"])
        self.counts = Counter({str(queue): int(count) for queue, count in answer["counts"].items()})
        if "error" in answer:
            raise WrongError(f"{self._log}: {answer['error']}")
        self._java.wait_dispatched()

    def expire(self, segments: int) -> None:
        """Let the log's first segments expire."""
        expire(self._java, segments)

    def stop(self) -> None:
        """Stop it cleanly."""
        self._java.shutdown()
        self.close()

    def close(self) -> None:
        """End its JVM, as it is."""
        self._java.jvm.close()
