"""What a verification has proven of sealed segments, and the file that keeps it for the next one.

A segment is sealed when another one follows it: no broker writes to it any more. Of a sealed segment is kept
what binds the result to the bytes that it was proven from:

* of the segment, the digest of each part, or where it lies elsewhere its pin (the ETag);
* of each queue, which units are its messages', and their sum (:mod:`reput.verify.units`) as they were
  compared;
* of each index file, how many entries point into the segment, and their sum.

:mod:`reput.verify.proofs` is what a run makes of it.
"""

from __future__ import annotations

import base64
import gzip
import json
import struct
import zlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import reput
from reput.errors import SettingsError
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import IndexHeader
from reput.format.names import Queue
from reput.log.segments import Segment
from reput.remote import remote_store
from reput.remote.store import KnownFile, listed_file
from reput.verify.queue_files import Seen
from reput.verify.report import Difference
from reput.verify.units import Blocks, Range, Sum, Unit

#: What tells a file from what it was; None where that can't be told.
Identity = tuple[int | str, ...] | None

#: 1: without place and headers, and with nothing of what lies outside of the log; 2: a header only in the
#: sums of its file's first and last entry. Of both what was told is still read.
FORMAT = 3
READABLE = (1, 2, 3)
#: What comes of bytes, or JSON of a shape, that reput doesn't write.
_MALFORMED = (
    *(ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError),
    *(EOFError, OSError, zlib.error, struct.error),
)


@dataclass(slots=True)
class QueueProof:
    """A queue's messages of one segment."""

    first: int  # first, next: queueOffsets of its first, and after its last
    next: int
    end: int  # physical offset after the last
    sum: int  # of its units, as they were compared
    ranges: list[Range] = field(default_factory=list)  # units that differ


class QueueUnits(NamedTuple):
    """Units of a queue that are its messages in one segment, each of them."""

    topic: str  # topic, queue_id: of the queue
    queue_id: int
    first: int  # first, next: queueOffsets of the first, and after the last
    next: int
    sum: int  # by :func:`reput.verify.units.unit_sum`


@dataclass(slots=True)
class SegmentProof:
    """What was proven of a sealed segment."""

    base: int  # base, length: as :class:`reput.log.segments.Segment`
    length: int
    identity: Identity  # of its file
    #: (end, digest) of each part in order, physical offsets; empty where it lies elsewhere
    sha256: list[tuple[int, str]]
    messages: int  # messages, message_bytes: whole records
    message_bytes: int
    last_timestamp: int  # storeTimestamp of its last message, ms; 0 without one
    #: physical offset and storeTimestamp of the last message with a unit; -1, 0 without one
    last_unit: tuple[int, int]
    #: (topic, messages, physical offset of the first) where a topic got no units
    without_unit: list[tuple[bytes, int, int]]
    queues: dict[Queue, QueueProof]  # its consume queues
    index: dict[str, Sum]  # by the name of an index file, how many of its entries point here, and their sum

    @property
    def end(self) -> int:
        """Physical offset after it."""
        return self.base + self.length

    def units_of(self, topics: Set[str]) -> list[QueueUnits] | None:
        """The units of some topics; None where these aren't all messages of the topics in the segment.

        Only for stores whose messages have units in their own queues alone: then each message has one, or
        some, such as prepared ones, have none.
        """
        if self.messages != sum(one.next - one.first for one in self.queues.values()):
            return None
        found = {queue: one for queue, one in self.queues.items() if queue[0] in topics}
        if any(one.ranges for one in found.values()):
            return None
        return [QueueUnits(*queue, one.first, one.next, one.sum) for queue, one in found.items()]


@dataclass(slots=True)
class IndexProof:
    """What was proven of an index file by itself."""

    identity: Identity  # of its file
    header: IndexHeader  # its first bytes
    end: int  # the ordinal after its last entry
    blocks: Blocks  # where its entries point to
    before: int  # what its header was compared with: endPhyOffset of the file before it
    before_time: int  # what its first entry's time was: endTimestamp of that one
    sound: bool  # nothing is wrong with its slots and chains


@dataclass(slots=True)
class Proofs:
    """What a verification leaves for the next one."""

    place: str = ""  # of the store
    verified: str = ""  # when it was made, ISO 8601
    settings: str = ""  # what else the result depends on, as a digest
    segments: dict[int, SegmentProof] = field(default_factory=dict)  # by base
    #: identity of each file that units were read from, by queue and first byte
    queue_files: dict[tuple[str, int, int], Identity] = field(default_factory=dict)
    #: what was found of these files' places outside of what the log has
    seen: dict[tuple[str, int, int], Seen] = field(default_factory=dict)
    index_files: dict[str, IndexProof] = field(default_factory=dict)  # by name
    #: when each finding was first there, by :func:`key_of`
    first_seen: dict[str, str] = field(default_factory=dict)
    #: findings about what was proven before, told until that is there again, or all is verified again
    told: list[Difference] = field(default_factory=list)
    #: what was proven of the segments that these are of, by base; none of those that 1.0.0 told
    lost: dict[int, SegmentProof] = field(default_factory=dict)
    version: str = ""  # of reput that made it; empty where it didn't say

    def encode(self) -> bytes:
        """As a file has it: JSON, compressed."""
        proofs = [*self.segments.values(), *self.lost.values()]
        queues = sorted({queue for segment in proofs for queue in segment.queues})
        number = {queue: at for at, queue in enumerate(queues)}
        facts = {
            "format": FORMAT,
            "reput": self.version,
            "place": self.place,
            "verified": self.verified,
            "settings": self.settings,
            "queues": queues,
            "segments": [_segment_out(one, number) for _, one in sorted(self.segments.items())],
            "queue_files": [
                [*key, identity, self.seen.get(key)] for key, identity in sorted(self.queue_files.items())
            ],
            "index_files": {
                name: {
                    "header": one.header.encode().hex(),
                    **{
                        key: getattr(one, key)
                        for key in ("identity", "end", "before", "before_time", "sound")
                    },
                    "least": _array_out(one.blocks.least),
                    "greatest": _array_out(one.blocks.greatest),
                }
                for name, one in self.index_files.items()
            },
            "first_seen": self.first_seen,
            "told": [asdict(one) for one in self.told],
            "lost": [_segment_out(one, number) for _, one in sorted(self.lost.items())],
        }
        return gzip.compress(json.dumps(facts, separators=(",", ":")).encode(), 6, mtime=0)

    @classmethod
    def decode(
        cls,
        data: bytes,
        path: Path,
        next_step: str = "Move it away: then all is verified again",
        *,
        any_format: bool = False,
    ) -> Proofs:
        """What :meth:`encode` made."""
        try:
            facts = json.loads(gzip.decompress(data))
            if any_format and isinstance(facts["format"], int) and facts["format"] not in READABLE:
                return cls()
            if facts["format"] not in READABLE:
                raise ValueError(f"format {facts['format']}")
            if facts["format"] != FORMAT:
                # Its settings are another format's, so that no file would be believed; what was told stays.
                facts = {"place": "", **facts, "queue_files": [], "index_files": {}}
            queues = [(topic, queue_id) for topic, queue_id in facts["queues"]]
            segments, lost = (
                {one.base: one for one in (_segment_in(each, queues) for each in facts.get(key, ()))}
                for key in ("segments", "lost")
            )
            files = [((topic, queue, base), *rest) for topic, queue, base, *rest in facts["queue_files"]]
            return cls(
                facts["place"],
                facts["verified"],
                facts["settings"],
                segments,
                {key: _identity(was) for key, was, _ in files},
                {key: Seen(*seen) for key, _, seen in files if seen is not None},
                {
                    name: IndexProof(
                        _identity(one["identity"]),
                        IndexHeader.decode(bytes.fromhex(one["header"])),
                        one["end"],
                        Blocks(_array_in(one["least"]), _array_in(one["greatest"])),
                        one["before"],
                        one["before_time"],
                        one["sound"],
                    )
                    for name, one in facts["index_files"].items()
                },
                dict(facts["first_seen"]),
                [Difference(**one) for one in facts["told"]],
                lost,
                str(facts.get("reput", "")),
            )
        except _MALFORMED as error:
            raise SettingsError(
                "what was proven before can't be read",
                path=path,
                expected=f"a file that reput wrote, of format {FORMAT}",
                found=str(error) or type(error).__name__,
                next_step=next_step,
            ) from error

    def known_files(self) -> dict[str, KnownFile]:
        """Files of a store elsewhere that needn't be copied while they stay as they are, by name.

        None after another version of reput: all is verified again, and they would be read piece by piece.
        """
        found: dict[str, KnownFile] = {}
        if self.version != reput.__version__:
            return found
        for (topic, queue_id, base), identity in self.queue_files.items():
            if (one := known_file(identity)) is not None:
                seen = self.seen.get((topic, queue_id, base))
                empty_from = -1 if seen is None else seen.after
                if empty_from >= 0:
                    one = one._replace(written=min(max(empty_from * UNIT_LENGTH - base, 0), one.size))
                directory = names.queue_directory(Path(), topic, queue_id)
                found[(directory / names.offset_name(base)).as_posix()] = one
        for name, proof in self.index_files.items():
            if (one := known_file(proof.identity)) is not None:
                found[f"{names.INDEX}/{name}"] = one
        return found


def known_file(identity: Identity) -> KnownFile | None:
    """A file elsewhere; None for one here, and where it can't be told from others."""
    match identity:
        case (int(size), str(pin)):
            return KnownFile(size, pin, size)
    return None


def identity_of(path: str | Path) -> Identity:
    """Size, times of change of bytes and of inode in ns, and inode; None without a file.

    Of one elsewhere its size and its pin.
    """
    listed = listed_file(path)
    if listed is not None:
        return listed.size, listed.pin
    try:
        facts = Path(path).stat()
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino


def identity_of_segment(segment: Segment) -> Identity:
    """Of a file here as for any; of one elsewhere its size and its pin."""
    store = remote_store(segment.path)
    if store is None:
        return identity_of(segment.path)
    file = store.file_at(segment.path)
    return file.size, file.pin


def _segment_out(one: SegmentProof, number: Mapping[Queue, int]) -> dict[str, object]:
    facts = {
        key: getattr(one, key)
        for key in (
            "base",
            "length",
            "identity",
            "sha256",
            "messages",
            "message_bytes",
            "last_timestamp",
            "last_unit",
        )
    }
    return {
        **facts,
        "without_unit": [[topic.hex(), *rest] for topic, *rest in one.without_unit],
        "queues": [
            [number[queue], part.first, part.next - part.first, one.end - part.end, part.sum]
            for queue, part in one.queues.items()
        ],
        "ranges": [
            [number[queue], *_range_out(each)] for queue, part in one.queues.items() for each in part.ranges
        ],
        "index": one.index,
    }


def _segment_in(facts: dict[str, Any], queues: Sequence[Queue]) -> SegmentProof:
    end = facts["base"] + facts["length"]
    found = {
        queues[number]: QueueProof(first, first + count, end - before, total)
        for number, first, count, before, total in facts["queues"]
    }
    for number, *each in facts["ranges"]:
        found[queues[number]].ranges.append(_range_in(each))
    return SegmentProof(
        facts["base"],
        facts["length"],
        _identity(facts["identity"]),
        [(stop, digest) for stop, digest in facts["sha256"]],
        facts["messages"],
        facts["message_bytes"],
        facts["last_timestamp"],
        (facts["last_unit"][0], facts["last_unit"][1]),
        [(bytes.fromhex(topic), count, position) for topic, count, position in facts["without_unit"]],
        found,
        {name: (count, total) for name, (count, total) in facts["index"].items()},
    )


def _range_out(one: Range) -> list[object]:
    expected = list(one.expected) if isinstance(one.expected, Unit) else None
    return [one.kind, one.field, one.first, one.end, one.count, expected, list(one.stored), one.shift]


def _range_in(facts: list[Any]) -> Range:
    kind, what, first, end, count, expected, found, shift = facts
    return Range(
        kind, what, first, end, count, None if expected is None else Unit(*expected), Unit(*found), shift
    )


def _identity(facts: list[int | str] | None) -> Identity:
    return None if facts is None else tuple(facts)


def _array_out(values: NDArray[np.int64]) -> str:
    return base64.b64encode(values.astype("<i8").tobytes()).decode()


def _array_in(text: str) -> NDArray[np.int64]:
    return np.frombuffer(base64.b64decode(text), "<i8").astype(np.int64)
