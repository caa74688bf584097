"""What Java makes of bytes and strings: UTF-8 decoding, String.hashCode, integer parsing, white space.

The store hashes and compares *decoded* strings, so malformed UTF-8 must become what Java makes of it.
Source: ``java.lang.String.decodeUTF8_UTF16`` and ``hashCode``, ``Integer.parseInt``, ``Character.digit`` and
``isWhitespace`` (OpenJDK 17), ``StringUtils.isBlank`` (commons-lang3 3.4).
"""

from __future__ import annotations

from collections.abc import Iterable

#: The code units of each script's digit 0; its other digits follow. Java looks at one code unit after the
#: other, so that the digits beyond the BMP are none. Java 8 doesn't know the two scripts of Unicode 7:
#: U+0DE6 and U+A9F0.
ZEROS = (
    0x0030, 0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6, 0x0D66,
    0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50,
    0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10,
)  # fmt: skip

#: The code units that are white space, as half-open ranges. Java 8 takes U+180E for one, too.
WHITE_SPACE = (
    (0x0009, 0x000E), (0x001C, 0x0021), (0x1680, 0x1681), (0x2000, 0x2007), (0x2008, 0x200B),
    (0x2028, 0x202A), (0x205F, 0x2060), (0x3000, 0x3001),
)  # fmt: skip

_REPLACEMENT = 0xFFFD
_MOST_DIGITS = 19  # of a long


def utf16_units(data: bytes) -> list[int]:
    """The UTF-16 code units of ``new String(data, UTF_8)``, replacements as Java places them."""
    if data.isascii():
        return list(data)
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
    try:
        return data.decode()
    except UnicodeDecodeError:
        return b"".join(unit.to_bytes(2, "big") for unit in utf16_units(data)).decode("utf-16-be")


def utf8(data: bytes) -> bytes:
    """The string that Java reads in these bytes, in UTF-8: what Java writes for it.

    Other bytes only where these aren't UTF-8: then several spellings are one string.
    """
    return decode(data).encode()


def hash_code(data: bytes, start: int = 0) -> int:
    """``String.hashCode`` of the decoded bytes, as a signed int32, continuing from the hash ``start``."""
    value = start & 0xFFFFFFFF
    for unit in utf16_units(data):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value


def digit(unit: int) -> int | None:
    """``Character.digit`` of a UTF-16 code unit, radix 10; None where Java answers -1."""
    for zero in ZEROS:
        if zero <= unit < zero + 10:
            return unit - zero
    return None


def parse_integer(data: bytes, bits: int) -> int | None:
    """``Integer.parseInt`` (bits 32), ``Long.parseLong`` (64), ``Short.parseShort`` (16), the bytes decoded.

    None where Java would throw. The digits of any script count: see :data:`ZEROS`.
    """
    return integer_of(utf16_units(data), bits)


def integer_of(units: Iterable[int], bits: int) -> int | None:
    """What :func:`parse_integer` does with a text's UTF-16 code units."""
    given = list(units)
    digits = [digit(unit) for unit in (given[1:] if given[:1] in ([0x2B], [0x2D]) else given)]
    if not digits or None in digits:
        return None
    # Python refuses texts of thousands of digits, Java none that are zeros as far as they are too many.
    significant = "".join(map(str, digits)).lstrip("0")
    if len(significant) > _MOST_DIGITS:
        return None
    value = int(significant or "0") * (-1 if given[0] == 0x2D else 1)
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
