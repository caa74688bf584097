"""Hypothesis strategies for commit logs: sound ones, odd ones, and damaged ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from reput.format import commitlog, dledger, properties
from reput.format.commitlog import Record
from tests import encoders

# Lone and cut UTF-8 sequences, surrogates, characters beyond the BMP: what Java replaces and how.
_ODD_BYTES = [
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\xf0\x9f\x98",
    b"\xc3\xa9",
    b"\xe4\xb8",
    b"\xff",
    b"\xf5\x80\x80\x80",
    b"\x80",
]
_texts = st.one_of(
    st.text("abcXYZ019_%-", max_size=12).map(str.encode),
    st.lists(st.sampled_from([b"a", b"key", b"\x00", *_ODD_BYTES]), max_size=6).map(b"".join),
    st.binary(max_size=20).map(lambda data: data.replace(b"\x02", b"").replace(b"\x01", b"")),
)
_numbers = st.one_of(
    st.integers(-3, 22).map(lambda number: str(number).encode()),
    st.sampled_from([b"", b"+3", b"-", b"9223372036854775807", b"9223372036854775808", b"-2147483648", b"x"]),
    # Digits of other scripts, one beyond the BMP, white space, and what is cut short.
    st.lists(st.sampled_from([*"12\u0663\u06f4\uff15\ua9f0+ \u3000\u2007\U0001d7d8"]), max_size=4).map(
        lambda chars: "".join(chars).encode()
    ),
    st.sampled_from([b"\xd9", b"1\xef\xbc", b"\xe0\x81\x80", b"\xef\xbc\x91\xff", b"\xd9\xa1\xd9\xa2"]),
)
_queue_lists = st.lists(
    st.sampled_from([b"%LMQ%a", b"%LMQ%b", b"plain", b"with/slash", b"", b"%LMQ%\xff", b"%LMQ%\xfe"]),
    max_size=4,
).map(b",".join)
_properties = st.lists(
    st.one_of(
        st.tuples(st.just(properties.KEYS), st.lists(_texts, max_size=4).map(b" ".join)),
        st.tuples(st.sampled_from([properties.TAGS, properties.UNIQ_KEY, b"WAIT", b"KEY", b"TAGSX"]), _texts),
        st.tuples(st.sampled_from([properties.DELAY, properties.INNER_BASE, properties.INNER_NUM]), _numbers),
        st.tuples(st.just(properties.INNER_MULTI_DISPATCH), _queue_lists),
        st.tuples(
            st.just(properties.INNER_MULTI_QUEUE_OFFSET), st.lists(_numbers, max_size=4).map(b",".join)
        ),
        st.tuples(_texts, _texts),
        st.tuples(st.just(b"a-name-of-more-than-twenty-four-bytes"), _texts),
    ),
    max_size=6,
)
_hosts = st.sampled_from([("127.0.0.1", 10911), ("2001:db8::1", 80)])
_topics = st.one_of(
    st.sampled_from(
        [b"TopicA", b"TopicB", b"%RETRY%group", commitlog.SCHEDULE_TOPIC, b"../x", b"with/slash"]
    ),
    _texts.filter(lambda topic: len(topic) <= 127),
)


@st.composite
def _property_bytes(draw: st.DrawFn) -> bytes:
    entries = [name + b"\x01" + value for name, value in draw(_properties)]
    if draw(st.integers(0, 9)) == 0:
        entries.append(draw(st.binary(max_size=8)))
    data = b"\x02".join(entries)
    return data + b"\x02" if draw(st.booleans()) else data


@st.composite
def records(draw: st.DrawFn, any_time: bool = False) -> Record:
    """A record that has no place yet: physicalOffset 0. ``any_time``: its storeTimestamp may be no date's."""
    topic = draw(_topics)
    return Record(
        topic=topic,
        body=draw(st.binary(max_size=90)),
        properties=draw(_property_bytes()),
        queue_id=draw(st.sampled_from([0, 1, 7, -1])),
        queue_offset=draw(
            st.one_of(st.integers(0, 5), st.sampled_from([-1, commitlog.MAGIC_V1, (1 << 63) - 1]))
        ),
        sys_flag=draw(st.sampled_from([0, 1, 4, 8, 12])),
        born_timestamp=draw(st.integers(0, 1 << 41)),
        store_timestamp=draw(
            st.one_of(st.integers(0, 1 << 41), st.sampled_from([-(1 << 63), (1 << 63) - 1, -1]))
            if any_time
            else st.integers(0, 1 << 41)
        ),
        born_host=draw(_hosts),
        store_host=draw(_hosts),
        version=draw(st.sampled_from([1, 1, 2])),
    )


def with_property_crc(data: bytes) -> bytes:
    """The record with the CRC property of ``enabledAppendPropCRC`` at its end (properties not empty)."""
    crc = commitlog.body_crc(data)
    digits = "".join(reversed(f"{crc:010d}")).encode()
    return data + properties.CRC32 + b"\x01" + digits + b"\x02"


def lay_out(log: list[Record], base: int = 0, blank: bool = False, zeros: int = 0) -> bytes:
    """The records one after another, each with the physicalOffset of its place."""
    data = bytearray()
    for record in log:
        data += commitlog.encode(replace(record, physical_offset=base + len(data)))
    if blank:
        data += commitlog.encode_blank(40)
    return bytes(data) + bytes(zeros)


def lay_out_entries(log: list[tuple[Record, bool]], base: int, blank: bool, zeros: int) -> bytes:
    """The records as DLedger writes them, but for those that are to stand alone, as from before it."""
    data = bytearray()
    for index, (record, alone) in enumerate(log):
        place = base + len(data)
        if alone:
            data += commitlog.encode(replace(record, physical_offset=place))
        else:
            body = commitlog.encode(replace(record, physical_offset=place + dledger.HEADER_LENGTH))
            data += encoders.entry_header(body, index, 7, place) + body
    if blank:
        data += encoders.entry_blank(40)
    return bytes(data) + bytes(zeros)


@st.composite
def segments(
    draw: st.DrawFn, damaged: bool = False, entries: bool = False, any_time: bool = False
) -> tuple[int, np.ndarray]:
    """(base, uint8 bytes) of a segment; ``damaged`` changes, cuts or inserts some bytes."""
    base = draw(st.sampled_from([0, 1 << 30, 123_456]))
    blank, zeros = draw(st.booleans()), draw(st.integers(0, 40))
    if entries:
        mostly = st.sampled_from([False, False, False, True])
        data = bytearray(
            lay_out_entries(
                draw(st.lists(st.tuples(records(any_time), mostly), max_size=8)), base, blank, zeros
            )
        )
    else:
        data = bytearray(lay_out(draw(st.lists(records(any_time), max_size=8)), base, blank, zeros))
    if damaged and data:
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(data) - 1))
            kind = draw(st.sampled_from(["bit", "zero", "cut", "number"]))
            if kind == "bit":
                data[at] ^= 1 << draw(st.integers(0, 7))
            elif kind == "zero":
                data[at : at + 8] = bytes(len(data[at : at + 8]))
            elif kind == "number":
                data[at : at + 4] = draw(st.sampled_from([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"]))
            else:
                del data[at:]
                break
    return base, np.frombuffer(bytes(data), np.uint8)
