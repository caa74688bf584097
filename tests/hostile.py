"""Messages whose bodies hold records, by a producer who knows every rule, every offset and every CRC."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from reput.format import commitlog
from reput.format.commitlog import Record
from reput.scan import output
from reput.scan.part import PartOutcome, scan_part
from reput.scan.rules import Part, Rules
from reput.scan.table import QueueTable

NOW = 1_700_000_000_000
RULES = Rules(True, True, True, False, False, True, True, True, False, np.ones(18, np.int64))
#: The fields that lead through the log, as (offset in a record with IPv4 hosts, bytes).
FIELDS = {
    "size": (commitlog.TOTAL_SIZE, 4),
    "magic": (commitlog.MAGIC, 4),
    "bodyCRC": (commitlog.BODY_CRC, 4),
    "physicalOffset": (commitlog.PHYSICAL_OFFSET, 8),
    "sysFlag": (commitlog.SYS_FLAG, 4),
    "bodyLength": (84, 4),
}


def fake(
    place: int, size: int = 0, queue_offset: int = 0, topic: bytes = b"Victim", queue_id: int = 0
) -> bytes:
    """A perfect record for a physical offset; ``size`` fills it up by its properties."""
    record = Record(
        topic,
        b"forged",
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=place,
        store_timestamp=NOW + 4 * 10**11,
    )
    whole = commitlog.encode(record)
    if size > len(whole):
        record = replace(record, properties=b"p" * (size - len(whole)))
    return commitlog.encode(record)


def hostile_body(start: int, length: int, fill: str, topic: bytes = b"Victim", segment_end: int = 0) -> bytes:
    """A body for a physical offset that holds perfect records of queue 0 of a topic.

    Args:
        start: where the body will lie.
        length: bytes.
        fill: ``chain``: one behind the other. ``apart``: with room between them. ``blank``: with closing
            records before them, for a segment that ends at ``segment_end``.
    """
    body = bytearray(b"\xee" * length)
    at = 40
    while at + 150 < length:
        if fill == "blank":
            body[at : at + 8] = struct.pack(">II", segment_end - start - at, commitlog.MAGIC_BLANK)
            at += 8
        one = fake(start + at, queue_offset=at % 90, topic=topic)
        body[at : at + len(one)] = one
        at += len(one) if fill == "chain" else 131
    return bytes(body)


@dataclass
class Hostile:
    """A segment with honest messages and hostile ones among them.

    Attributes:
        base: physical offset of the segment's first byte.
        size: bytes of the segment.
        data: it.
        places: (position, size) of the records, in order.
        attacks: numbers of the hostile ones.
    """

    base: int = 1 << 20
    size: int = 1 << 15
    data: bytearray = field(default_factory=bytearray)
    places: list[tuple[int, int]] = field(default_factory=list)
    attacks: list[int] = field(default_factory=list)

    def honest(self, body: bytes = b"honest", topic: bytes = b"Victim") -> None:
        place = len(self.data)
        number = len(self.places)
        record = Record(
            topic,
            body,
            b"KEYS\x01k\x02",
            queue_offset=number,
            physical_offset=self.base + place,
            store_timestamp=NOW + number,
        )
        whole = commitlog.encode(record)
        self.data += whole
        self.places.append((place, len(whole)))

    def attack(self, fill: str, length: int = 3000) -> None:
        """Append a message with a hostile body of some length; ``fill`` names its kind."""
        self.attacks.append(len(self.places))
        place = len(self.data)
        body_at = place + 88
        tail = 1 + len(b"Victim") + 2 + len(b"KEYS\x01k\x02")
        end = body_at + length + tail
        body = bytearray(b"\xee" * length)

        def put(at: int, what: bytes) -> None:
            if body_at <= at and at + len(what) <= body_at + length:
                body[at - body_at : at - body_at + len(what)] = what

        closing = struct.pack(">I", commitlog.MAGIC_BLANK)
        if fill == "one":
            put(body_at + 40, fake(self.base + body_at + 40, queue_offset=80))
        elif fill == "closed places":
            for bit in range(8, 12):
                at = end - (1 << bit)
                one = fake(self.base + at, queue_offset=80)
                left = self.size - at - len(one)
                put(at, one + left.to_bytes(4, "big") + closing)
        elif fill == "places":
            # Wherever one flipped bit of the size or of a length may lead.
            for bit in range(12):
                at = end - (1 << bit)
                put(at, fake(self.base + at, queue_offset=80 + bit))
        elif fill == "chain":
            at = body_at
            while at + 400 < body_at + length:
                one = fake(self.base + at, queue_offset=80)
                put(at, one)
                at += len(one)
            # The last one ends where the hostile record ends: its properties are that one's own end.
            left = end - at
            put(at, fake(self.base + at, left - 0, queue_offset=80)[: body_at + length - at])
        elif fill == "broken chain":
            at = body_at + 7
            while at + 400 < body_at + length:
                one = fake(self.base + at, queue_offset=80)
                put(at, one)
                at += len(one)
        elif fill == "blank":
            at = body_at + 100
            put(at, struct.pack(">II", self.size - at, commitlog.MAGIC_BLANK))
            put(at + 200, fake(self.base + at + 200))
            one = fake(self.base + at + 200)
            at += 200 + len(one)
            put(at, struct.pack(">II", self.size - at, commitlog.MAGIC_BLANK))
        elif fill == "reaching over":
            # Its properties reach over the next records, to the end of one of them.
            one = commitlog.encode(
                Record(
                    b"Victim",
                    b"forged",
                    b"p" * (end - (body_at + 50) - 103 + 200),
                    queue_offset=80,
                    physical_offset=self.base + body_at + 50,
                    store_timestamp=NOW + 4 * 10**11,
                )
            )
            put(body_at + 50, one[: body_at + length - body_at - 50])
        self.honest(bytes(body))

    def close(self) -> None:
        self.data += commitlog.encode_blank(self.size - len(self.data))


#: Used again for each scan: it is large.
_OUT = output.output()
FILLS = ["one", "places", "closed places", "chain", "broken chain", "blank", "reaching over"]


def hostile(fill: str, *, closed: bool) -> Hostile:
    """Two honest messages, a hostile one, three honest ones, hostile, hostile, honest."""
    log = Hostile()
    for step in "hhahhhaah":
        if step == "h":
            log.honest()
        else:
            log.attack(fill)
    if closed:
        log.close()
    else:
        log.data += bytes(log.size - len(log.data))
    return log


def flips(log: Hostile, number: int) -> Iterator[tuple[str, bytes]]:
    """The segment with each bit flipped that leads through the log, in one record."""
    place, _ = log.places[number]
    fields = {name: (place + at, length) for name, (at, length) in FIELDS.items()}
    body_length = int.from_bytes(log.data[place + 84 : place + 88], "big")
    topic_at = place + 88 + body_length
    fields["topicLength"] = topic_at, 1
    fields["propertiesLength"] = topic_at + 1 + log.data[topic_at], 2
    for name, (at, length) in fields.items():
        for bit in range(length * 8):
            data = bytearray(log.data)
            data[at + bit // 8] ^= 0x80 >> bit % 8
            yield f"{name} bit {bit}", bytes(data)


def taken(
    data: bytes, base: int, *, part_bytes: int | None = None, last: bool
) -> tuple[list[tuple[int, int]], list[PartOutcome]]:
    """(position, queueOffset) of the units that the scan finds, put together as the chain of parts does."""
    from reput.replay.part_result import Chain, ScannedPart

    array = np.frombuffer(data, np.uint8)
    step = part_bytes or len(data)
    chain = Chain(base, 0)
    found: list[tuple[int, int]] = []
    outcomes: list[PartOutcome] = []

    def scan(part: Part) -> tuple[ScannedPart, list[tuple[int, int]]]:
        out, outcome = _OUT, PartOutcome()
        units: list[tuple[int, int]] = []
        for chunk in scan_part(part, array, RULES, QueueTable(), out, outcome):
            count = int(chunk.counts[output.UNITS])
            units += zip(
                (chunk.unit_position[:count] - base).tolist(), chunk.unit_offset[:count].tolist(), strict=True
            )
        messages, last_time = int(out.counts[output.MESSAGES]), int(out.counts[output.LAST_TIMESTAMP])
        return ScannedPart(part, outcome, messages, last_time), units

    for start in range(0, len(data), step):
        stop = min(start + step, len(data))
        part = Part("-", base, len(data), len(data), base + start, base + stop, start == 0, last)
        result, units = scan(part)
        verdict = chain.judge(result)
        while not verdict.accepted and verdict.again is not None:
            result, units = scan(verdict.again)
            verdict = chain.judge(result)
        if verdict.accepted:
            found += units
            outcomes.append(result.outcome)
    return found, outcomes
