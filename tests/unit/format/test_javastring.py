"""Strings as Java has them. The table is what OpenJDK 17 answered."""

from __future__ import annotations

import pytest

from reput.format.javastring import decode, hash_code, parse_integer, utf8, utf16_units
from tests.slow_scan import is_blank

# bytes, new String(bytes, UTF_8).hashCode(), its UTF-16 code units
JAVA = [
    ("", 0, ""),
    ("61", 97, "0061"),
    ("616263", 96354, "0061 0062 0063"),
    ("0001", 1, "0000 0001"),
    ("c3a9", 233, "00e9"),
    ("e697a5e69cac", 835047, "65e5 672c"),
    ("f09f9880", 1772899, "d83d de00"),
    ("f48fbfbf", 1803232, "dbff dfff"),
    # Lone bytes, and sequences that end too early.
    ("80", 65533, "fffd"),
    ("ff", 65533, "fffd"),
    ("c3", 65533, "fffd"),
    ("c341", 2031588, "fffd 0041"),
    ("e4", 65533, "fffd"),
    ("e4b8", 65533, "fffd"),
    ("e4b841", 2031588, "fffd 0041"),
    ("e441b8", 63044761, "fffd 0041 fffd"),
    ("e4b8ade4", 685936, "4e2d fffd"),
    ("f0", 65533, "fffd"),
    ("f09f", 65533, "fffd"),
    ("f09f98", 65533, "fffd"),
    ("f09f9841", 2031588, "fffd 0041"),
    ("f09f41", 2031588, "fffd 0041"),
    # Longer than they need be, beyond the last character, surrogates: Python replaces these otherwise.
    ("c080", 2097056, "fffd fffd"),
    ("e08080", 65074269, "fffd fffd fffd"),
    ("f0808080", 2017367872, "fffd fffd fffd fffd"),
    ("f4908080", 2017367872, "fffd fffd fffd fffd"),
    ("f5808080", 2017367872, "fffd fffd fffd fffd"),
    ("f888808080", -1886039875, "fffd fffd fffd fffd fffd"),
    ("eda080", 65533, "fffd"),
    ("eda0bdedb880", 2097056, "fffd fffd"),
]


@pytest.mark.parametrize(("data", "hashed", "units"), JAVA)
def test_bytes_are_decoded_and_hashed_as_by_java(data: str, hashed: int, units: str) -> None:
    assert [f"{unit:04x}" for unit in utf16_units(bytes.fromhex(data))] == units.split()
    assert hash_code(bytes.fromhex(data)) == hashed
    assert decode(bytes.fromhex(data)).encode("utf-16-be").hex(" ", 2) == units


def test_a_hash_goes_on_from_another() -> None:
    assert hash_code(b"orders#id") == hash_code(b"#id", hash_code(b"orders"))
    assert hash_code(b"polygenelubricants") == -0x8000_0000


@pytest.mark.parametrize(
    ("text", "bits", "value"),
    [
        (b"0", 32, 0),
        (b"-" + b"0" * 5000 + b"7", 32, -7),
        (b"9" * 5000, 64, None),
        (b"+7", 32, 7),
        (b"-0012", 32, -12),
        (b"2147483647", 32, 2147483647),
        (b"2147483648", 32, None),
        (b"-2147483648", 32, -2147483648),
        (b"-32769", 16, None),
        (b"9223372036854775807", 64, 9223372036854775807),
        (b"9223372036854775808", 64, None),
        (b"", 64, None),
        (b"+", 64, None),
        (b"--1", 64, None),
        (b" 1", 64, None),
        (b"1_000", 64, None),
        (b"1.0", 64, None),
        (b"0x10", 64, None),
        ("\u0661".encode(), 32, 1),
        ("-\uff11\u0e58".encode(), 16, -18),
        ("\U0001d7d8".encode(), 32, None),  # a digit beyond the BMP
        ("\xb2".encode(), 32, None),
        (b"\xd9", 32, None),
    ],
)
def test_integers_are_those_that_java_takes(text: bytes, bits: int, value: int | None) -> None:
    assert parse_integer(text, bits) == value


@pytest.mark.parametrize(
    ("text", "blank"),
    [
        ("", True),
        (" \t\n\x0b\x0c\r\x1c\x1f", True),
        ("\u3000\u2028", True),
        ("\xa0", False),
        ("\u2007", False),
        (" x", False),
    ],
)
def test_blank_is_what_java_takes_for_white_space(text: str, blank: bool) -> None:
    assert is_blank(text.encode()) is blank


def test_texts_that_java_reads_alike_are_the_same_bytes() -> None:
    assert utf8(b"caf\xe9") == utf8(b"caf\xff") == "caf\ufffd".encode()
    for text in ("", "orders", "Gr\xf6\xdfe", "\U0001f600", "caf\ufffd"):
        assert utf8(text.encode()) == text.encode()
