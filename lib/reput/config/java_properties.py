"""The ``.properties`` text that broker.conf is written in, read as the broker's JVM reads it.

The broker hands the file's bytes to ``java.util.Properties.load(InputStream)`` (``BrokerStartup``, 4.9.0 to
5.5.1), so every byte is one ISO-8859-1 character, whatever the editor wrote. The grammar is that of the
Javadoc of ``Properties.load(Reader)``; where it is silent (a comment sign after a continuation, a backslash
at the end of the file) this follows what OpenJDK 17 does, but for the entry with an empty key that a lone
backslash at the very end makes there: nothing asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike

from reput.errors import SettingsError

_WHITE = " \t\f"
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\r|\n")
_UNICODE = re.compile(r"[0-9A-Fa-f]{4}")


@dataclass(frozen=True, slots=True)
class Property:
    """One entry of a properties file.

    Attributes:
        key: the key, unescaped.
        value: the value, unescaped; leading white space is gone, trailing white space is kept.
        line: number of the line that it starts on, from 1.
    """

    key: str
    value: str
    line: int


def parse(data: bytes, path: str | PathLike[str] | None = None) -> dict[str, Property]:
    r"""The properties by key; of a repeated key the last entry stays, as in the broker.

    Args:
        data: the whole file.
        path: the file's name, for errors.

    Raises:
        SettingsError: a ``\u`` that four hexadecimal digits don't follow (the JVM refuses the file, too).
    """
    entries: dict[str, Property] = {}
    for number, line in _logical_lines(data.decode("iso-8859-1")):
        raw_key, raw_value = _split(line)
        try:
            entry = Property(_unescape(raw_key), _unescape(raw_value), number)
        except _MalformedEscapeError as error:
            raise SettingsError(
                f"line {number}: a broken \\u escape; no broker starts with this file",
                path=path,
                expected="four hexadecimal digits after \\u",
                found=repr(error.args[0]),
                next_step="Write a backslash that isn't an escape twice.",
            ) from None
        entries[entry.key] = entry
    return entries


class _MalformedEscapeError(ValueError):
    """A Unicode escape without four digits; holds the text from its backslash on."""


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """First line number and text of each entry: no comments, no blank lines, continued lines joined."""
    logical = ""
    start = 0
    continued = False
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(_WHITE)
        if not logical:
            # A continued line that is still empty is a new one: it may be a comment (Properties.LineReader,
            # len == 0).
            if not line or line[0] in "#!":
                continued = False
                continue
            start = number
        logical += line
        # The run of backslashes is that of this line alone: the one that continued the line before is gone.
        backslashes = len(line) - len(line.rstrip("\\"))
        continued = backslashes % 2 == 1
        if continued:
            logical = logical[:-1]
        else:
            yield start, logical
            logical = ""
    if continued and logical:
        yield start, logical


def _split(line: str) -> tuple[str, str]:
    """Key and value of a logical line, both still escaped; the separator is ``=``, ``:`` or white space."""
    end = 0
    while end < len(line) and line[end] not in "=:" and line[end] not in _WHITE:
        # Whatever follows a backslash belongs to the key.
        end += 2 if line[end] == "\\" else 1
    value = line[end:].lstrip(_WHITE)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(_WHITE)
    return line[:end], value


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            parts.append(char)
            continue
        char = text[at]
        at += 1
        if char == "u":
            digits = _UNICODE.match(text, at)
            if digits is None:
                raise _MalformedEscapeError(text[at - 2 : at + 4])
            parts.append(chr(int(digits.group(), 16)))
            at += 4
        else:
            parts.append(_ESCAPES.get(char, char))
    # Java's characters are UTF-16 units: two escapes may make one character here.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
