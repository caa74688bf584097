"""Messages that have no place yet, laid out as a commit log, and ways to cut it into parts and batches."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from hypothesis import strategies as st

from reput.format import commitlog
from reput.format.commitlog import Record
from tests.local import Store, write_store
from tests.property.logs import with_property_crc

TOPICS = (
    b"TopicA",
    b"B",
    "Thema-\u00e9\U0001f600".encode(),
    b"%RETRY%g",
    commitlog.SCHEDULE_TOPIC,
    b"B\xfe",  # the same to Java as the next
    b"B\xff",
    b"x" * 130,
)
#: The first counts keys in its index headers.
VERSIONS = ("4.7.0", "4.9.7", "5.3.3", "5.5.0")
RESTART = -1000
NOW = 1_700_000_000_000
BODY = 88  # where a body begins in a record with IPv4 hosts


@dataclass(frozen=True)
class Spec:
    """A message that has no place yet."""

    topic: int = 0
    queue: int = 0
    transaction: int = 0
    keys: int = 0
    tags: bool = False
    body: int = 0
    later: int = 0
    delay: str | None = None
    zero: str = "0"  # which digits the queueOffsets of light queues have
    at: int | None = None  # storeTimestamp
    lmq: tuple[str, ...] = ()
    fake: int = 0
    crc: bool = False
    jump: int = 0  # added to the queueOffset that is due; RESTART: the queue begins anew
    stray: bool = False  # the jump is this message's alone
    ipv6: bool = False


specs = st.builds(
    Spec,
    topic=st.integers(0, len(TOPICS) - 1),
    queue=st.sampled_from([0, 0, 1, 3]),
    transaction=st.sampled_from([0, 0, 0, 0, 4, 8, 12]),
    keys=st.integers(0, 4),
    tags=st.booleans(),
    body=st.integers(0, 90),
    later=st.sampled_from([0, 1, 999, 5000, -700]),
    delay=st.sampled_from([None, None, "0", "1", "18", "25", "-3", "\u0661", "+\uff11\u0e58"]),
    zero=st.sampled_from(["0", "0", "\u0660", "\ua9f0"]),
    lmq=st.lists(st.sampled_from(["%LMQ%a", "%LMQ%b", "plain", "B", "plain2"]), max_size=3).map(tuple),
    fake=st.sampled_from([0, 0, 0, 1, 2]),
    crc=st.booleans(),
    ipv6=st.booleans(),
)


#: Some with a storeTimestamp of their own. None in the future: index files are named by the clock then.
specs_of_any_time = st.builds(
    lambda spec, at: replace(spec, at=at),
    specs,
    st.sampled_from([None] * 6 + [-(1 << 63), NOW - (1 << 63), NOW - 1 - (1 << 63)]),
)


@dataclass
class Log:
    """Segments, and how far they reach."""

    segments: list[tuple[int, bytes]] = field(default_factory=list)
    end: int = 0
    starts: list[int] = field(default_factory=list)


def without_light(log: list[Spec], version: str) -> list[Spec]:
    """The same messages, of a release that has light queues or not: their units would be missing ones."""
    return [replace(spec, lmq=()) for spec in log] if version < "4.9" else log


def lay_out(
    log: list[Spec], *, segment_size: int, base: int = 0, long_topics: bool = True, stale: bool = True
) -> Log:
    """The messages in segments that end in a BLANK, with old records after it and zeros after the last."""
    result = Log()
    due: dict[tuple[bytes, int], int] = defaultdict(int)
    data = bytearray()
    now = NOW
    for number, spec in enumerate(log):
        now += spec.later
        place = base + len(data)
        record = _record(spec, number, now, place, due, long_topics)
        left = segment_size - len(data)
        if len(record) + 8 > left:
            data += _close(left, base + len(data), stale)
            result.segments.append((base, bytes(data)))
            base, data = base + segment_size, bytearray()
            record = _record(spec, number, now, base, due, long_topics)
        result.starts.append(base + len(data))
        _count(spec, due, long_topics)
        data += record
    result.end = base + len(data)
    result.segments.append((base, bytes(data).ljust(segment_size, b"\0")))
    return result


def _close(left: int, place: int, stale: bool) -> bytes:
    blank = struct.pack(">II", left, commitlog.MAGIC_BLANK)
    # What an earlier use of the file left there: whole, in its own place, and no part of the log.
    old = Record(b"stale!", queue_offset=2, physical_offset=place + 8, properties=b"KEYS\x01old")
    rest = commitlog.encode(old) if stale else b""
    return (blank + rest if len(blank + rest) <= left else blank).ljust(left, b"\xee")


def _queue(spec: Spec, long_topics: bool) -> tuple[bytes, int]:
    return _string(_topic(spec, long_topics)), spec.queue


def _topic(spec: Spec, long_topics: bool) -> bytes:
    topic = TOPICS[spec.topic]
    return topic if long_topics or len(topic) < 128 else b"short"


def _string(topic: bytes) -> bytes:
    return topic.decode(errors="replace").encode()


def _record(
    spec: Spec, number: int, now: int, place: int, due: dict[tuple[bytes, int], int], long_topics: bool
) -> bytes:
    queue_id = spec.queue
    topic = _topic(spec, long_topics)
    entries = [b"UNIQ_KEY\x01id%d" % number] if spec.keys else []
    if spec.keys > 1:
        entries.append(b"KEYS\x01" + b" ".join(b"k%d" % (key % 3) for key in range(spec.keys - 1)))
    if spec.tags:
        entries.append(b"TAGS\x01tag%d" % (number % 3))
    if spec.delay is not None:
        entries.append(b"DELAY\x01" + spec.delay.encode())
    if spec.lmq:
        wanted = [(name.encode(), _lmq_id(name, queue_id)) for name in spec.lmq]
        entries.append(b"INNER_MULTI_DISPATCH\x01" + ",".join(spec.lmq).encode())
        offsets = ",".join(_digits(due[queue], spec.zero) for queue in wanted)
        entries.append(b"INNER_MULTI_QUEUE_OFFSET\x01" + offsets.encode())
    properties = b"".join(entry + b"\x02" for entry in entries)
    body = bytes((number * 7 + at) % 256 for at in range(spec.body))
    if spec.fake:
        body = b"".join(_fakes(spec, place + BODY))
    record = Record(
        topic=topic,
        body=body,
        properties=properties,
        queue_id=queue_id,
        queue_offset=0 if spec.transaction in (4, 12) else max(due[_string(topic), queue_id] + spec.jump, 0),
        physical_offset=place,
        sys_flag=spec.transaction,
        store_timestamp=now if spec.at is None else spec.at,
        version=2 if len(topic) > 127 else 1,
        store_host=("2001:db8::1", 10911) if spec.ipv6 else ("10.0.0.1", 10911),
    )
    if not spec.crc:
        return commitlog.encode(record)
    # The CRC is of the whole record without the property, its final size and lengths included.
    whole = commitlog.encode(replace(record, properties=properties + bytes(20)))
    return with_property_crc(whole[:-20])


def _digits(number: int, zero: str) -> str:
    return "".join(chr(ord(zero) + int(digit)) for digit in str(number))


def _lmq_id(name: str, queue_id: int) -> int:
    return 0 if name.startswith("%LMQ%") else queue_id


def _fakes(spec: Spec, place: int) -> Iterator[bytes]:
    """Records inside a body that name the very places where they lie."""
    for number in range(spec.fake):
        fake = commitlog.encode(
            Record(
                topic=TOPICS[spec.queue % 2] if number else b"fake",
                queue_id=spec.queue,
                queue_offset=spec.keys * 3,
                physical_offset=place,
                store_timestamp=NOW,
                properties=b"KEYS\x01fake\x02",
            )
        )
        yield fake
        place += len(fake)


def _count(spec: Spec, due: dict[tuple[bytes, int], int], long_topics: bool) -> None:
    if spec.transaction in (4, 12):
        return
    queue = _queue(spec, long_topics)
    due[queue] = max(due[queue] + (0 if spec.stray else spec.jump), 0) + 1
    # A queue that a message names twice gets it once.
    for name in dict.fromkeys(spec.lmq):
        due[name.encode(), _lmq_id(name, spec.queue)] += 1


@dataclass(frozen=True)
class Run:
    """How a log is cut up."""

    part_bytes: int = 1 << 20
    ends: tuple[int, ...] = ()
    flush_in_tasks: bool = False
    several_hosts: bool = False


runs = st.builds(
    Run,
    part_bytes=st.sampled_from([41, 100, 256, 700, 100_000]),
    ends=st.lists(st.integers(1, 4000), max_size=4, unique=True).map(lambda ends: tuple(sorted(ends))),
    flush_in_tasks=st.booleans(),
    several_hosts=st.booleans(),
)


def store_of(root: Path, log: Log, version: str, multi_dispatch: bool = True, lmq: bool = True) -> Store:
    return write_store(
        root,
        log.segments,
        version=version,
        enable_multi_dispatch=multi_dispatch,
        enable_lmq=lmq,
    )


odd_specs = st.builds(
    Spec,
    topic=st.sampled_from([0, 0, 1]),
    jump=st.sampled_from([0, 0, 0, 1, 2, 40, -1, -2, RESTART]),
    stray=st.booleans(),
    body=st.integers(0, 40),
)


@dataclass(frozen=True)
class Damage:
    """Bytes that are changed: where, as a share of the log, how many, to what (None: a bit is flipped)."""

    at: float
    length: int = 1
    byte: int | None = None

    def apply(self, segments: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        log = bytearray(b"".join(data for _, data in segments))
        start = int(self.at * (len(log) - 1))
        end = min(start + self.length, len(log))
        log[start:end] = bytes([log[start] ^ 16 if self.byte is None else self.byte]) * (end - start)
        size = len(segments[0][1])
        return [(base, bytes(log[at : at + size])) for at, (base, _) in zip(count(0, size), segments)]
