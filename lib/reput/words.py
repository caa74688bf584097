"""What people read: numbers with what they count, and texts in which everything is to be seen."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime
from functools import cache

from reput.newer_python import UTC

#: Categories of Unicode that steer, begin a line, or can't be seen and make two names look like one: control
#: characters, those of formatting (U+202E turns a text around), line and paragraph separators, surrogates.
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
_WORD_BEGINS = re.compile("(?<=[a-z0-9])(?=[A-Z])")


#: Of all JSON documents and lines (docs/interface.md): a field that goes, or means something else, raises it.
SCHEMA_VERSION = 2


@cache
def snake_case(name: str) -> str:
    """A name of RocketMQ's or of a column as JSON has it: ``storeTimestamp`` is ``store_timestamp``."""
    return _WORD_BEGINS.sub("_", name).lower()


def counted(number: int, one: str, several: str | None = None) -> str:
    """``1 file``, ``2,000 files``."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def utc(ms: int) -> str:
    """``2026-11-21T11:06:10.676Z``; as it is, where that is no time that a clock may have had."""
    try:
        text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return text.removesuffix("+00:00") + "Z" if ms > 0 else str(ms)


@cache
def _doubtful(keep: str) -> re.Pattern[str]:
    """What may have to be escaped."""
    return re.compile(f"[^ -~{re.escape(keep)}]")


def visible(text: str, keep: str = "") -> str:
    """A text with escapes in place of characters that aren't seen, or turn what follows.

    Args:
        keep: those that stay as they are, such as a line feed.
    """

    def escaped(found: re.Match[str]) -> str:
        character = found[0]
        if unicodedata.category(character) not in _UNSEEN:
            return character
        return character.encode("unicode_escape").decode()

    return _doubtful(keep).sub(escaped, text)
