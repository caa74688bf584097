"""Strings and numbers as Java has them: UTF-16 code units, ``valueOf`` of the number classes, ``compareTo``.

A property's value is a Java string, and an expression compares it with constants of the classes String,
Integer, Long, Double and Boolean. Here they are :class:`str` (one character for each UTF-16 code unit),
:class:`int`, :class:`Long`, :class:`float` and :class:`bool`.

Source: ``Integer.parseInt``, ``Long.parseLong``, ``Double.valueOf``, ``Double.compareTo`` (OpenJDK 17).
"""

from __future__ import annotations

import math
import re

from reput.format.javastring import integer_of, utf16_units

#: ``String.trim`` takes away every character up to the space.
_WHITE = "".join(map(chr, range(0x21)))
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_HEXADECIMAL = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+", re.ASCII
)
_NAMED = {
    "NaN": math.nan,
    "+NaN": math.nan,
    "-NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "-Infinity": -math.inf,
}


class Long(int):
    """A ``java.lang.Long``; a plain int is an ``Integer``."""

    __slots__ = ()


class NumberFormatError(ValueError):
    """Java's NumberFormatException."""


def text_of(data: bytes) -> str:
    """``new String(data, UTF_8)``, a character for each UTF-16 code unit."""
    if data.isascii():
        return data.decode("ascii")
    return "".join(map(chr, utf16_units(data)))


def units_of(text: str) -> str:
    """A Python string with characters beyond the BMP as two surrogates, as Java has them."""
    if not text or max(text) <= "\uffff":
        return text
    data = text.encode("utf-16-be", "surrogatepass")
    return "".join(chr(data[at] << 8 | data[at + 1]) for at in range(0, len(data), 2))


def integer(text: str, bits: int) -> int:
    """``Integer.valueOf`` (32 bits) or ``Long.valueOf`` (64) of a text; digits of any script count.

    Raises:
        NumberFormatError: not a number of this class.
    """
    value = integer_of(map(ord, text), bits)
    if value is None:
        raise NumberFormatError(text)
    return value


def double(text: str) -> float:
    """``Double.valueOf`` of a text.

    Raises:
        NumberFormatError: not a number.
    """
    trimmed = text.strip(_WHITE)
    named = _NAMED.get(trimmed)
    if named is not None:
        return named
    number = trimmed[:-1] if trimmed[-1:] in ("f", "F", "d", "D") else trimmed
    if _DECIMAL.fullmatch(number):
        return float(number)
    # The last hexadecimal digits are an exponent's, and those are decimal, so that a D or an F is a suffix.
    if _HEXADECIMAL.fullmatch(number):
        try:
            return float.fromhex(number)
        except OverflowError:
            return -math.inf if number[0] == "-" else math.inf
    raise NumberFormatError(text)


def compare_doubles(left: float, right: float) -> int:
    """``Double.compareTo``: -0.0 is below 0.0, NaN above all and equal to itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    one, other = _rank(left), _rank(right)
    return (one > other) - (one < other)


def _rank(value: float) -> int:
    if math.isnan(value):
        return 1
    return -1 if value == 0 and math.copysign(1.0, value) < 0 else 0
