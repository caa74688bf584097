"""What Java makes of bytes and strings: UTF-8 decoding, String.hashCode, integer parsing.

The store hashes and compares *decoded* strings, so malformed UTF-8 must become what Java makes of it.
Source: ``java.lang.String.decodeUTF8_UTF16`` and ``hashCode``, ``Integer.parseInt`` (OpenJDK 17).
"""

from __future__ import annotations

_REPLACEMENT = 0xFFFD
_MOST_DIGITS = 19  # of a long


def utf16_units(data: bytes) -> list[int]:
    """The UTF-16 code units of ``new String(data, UTF_8)``, replacements as Java places them."""
    units: list[int] = []
    position, end = 0, len(data)
    while position < end:
        b1 = data[position]
        position += 1
        if b1 < 0x80:
            units.append(b1)
        elif 0xC2 <= b1 <= 0xDF:
            if position < end and _continues(data[position]):
                units.append((b1 & 0x1F) << 6 | data[position] & 0x3F)
                position += 1
            else:
                units.append(_REPLACEMENT)
        elif 0xE0 <= b1 <= 0xEF:
            if position + 1 < end:
                b2, b3 = data[position], data[position + 1]
                if _bad_second_of_three(b1, b2):
                    units.append(_REPLACEMENT)
                elif not _continues(b3):
                    units.append(_REPLACEMENT)
                    position += 1
                else:
                    unit = (b1 & 0x0F) << 12 | (b2 & 0x3F) << 6 | b3 & 0x3F
                    units.append(_REPLACEMENT if 0xD800 <= unit <= 0xDFFF else unit)
                    position += 2
            else:
                units.append(_REPLACEMENT)
                if position < end and not _bad_second_of_three(b1, data[position]):
                    break
        elif 0xF0 <= b1 <= 0xF7:
            if position + 2 < end:
                b2, b3, b4 = data[position : position + 3]
                if _bad_second_of_four(b1, b2):
                    units.append(_REPLACEMENT)
                elif not _continues(b3):
                    units.append(_REPLACEMENT)
                    position += 1
                elif not _continues(b4):
                    units.append(_REPLACEMENT)
                    position += 2
                else:
                    code = (b1 & 0x07) << 18 | (b2 & 0x3F) << 12 | (b3 & 0x3F) << 6 | b4 & 0x3F
                    units.append(0xD7C0 + (code >> 10))
                    units.append(0xDC00 + (code & 0x3FF))
                    position += 3
            else:
                units.append(_REPLACEMENT)
                if position >= end or not _bad_second_of_four(b1, data[position]):
                    position += 1
                    if position >= end or _continues(data[position]):
                        break
        else:
            units.append(_REPLACEMENT)
    return units


def decode(data: bytes) -> str:
    """``new String(data, UTF_8)`` as a Python string."""
    units = utf16_units(data)
    return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be")


def hash_code(data: bytes, start: int = 0) -> int:
    """``String.hashCode`` of the decoded bytes, as a signed int32, continuing from the hash ``start``."""
    value = start & 0xFFFFFFFF
    for unit in utf16_units(data):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value


def parse_integer(data: bytes, bits: int) -> int | None:
    """``Integer.parseInt`` (bits 32), ``Long.parseLong`` (64), ``Short.parseShort`` (16) of ASCII text.

    None where Java would throw. Java takes the digits of other scripts too; no client writes them,
    and here they count as no number.
    """
    digits = data[1:] if data[:1] in (b"+", b"-") else data
    if not digits or not all(0x30 <= digit <= 0x39 for digit in digits):
        return None
    # Python refuses texts of thousands of digits, Java none that are zeros as far as they are too many.
    significant = digits.lstrip(b"0")
    if len(significant) > _MOST_DIGITS:
        return None
    value = int(significant or b"0") * (-1 if data[:1] == b"-" else 1)
    return value if -(1 << (bits - 1)) <= value < 1 << (bits - 1) else None


def _continues(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _bad_second_of_three(b1: int, b2: int) -> bool:
    return (b1 == 0xE0 and b2 & 0xE0 == 0x80) or not _continues(b2)


def _bad_second_of_four(b1: int, b2: int) -> bool:
    return (
        b1 > 0xF4
        or (b1 == 0xF0 and not 0x90 <= b2 <= 0xBF)
        or (b1 == 0xF4 and b2 & 0xF0 != 0x80)
        or not _continues(b2)
    )
