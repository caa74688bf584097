"""The source's options: texts, as Spark hands them over, to values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reput.errors import SettingsError
from reput.settings import StoreSettings

MESSAGES = "messages"
PARTS = "parts"

#: As a user writes them; any case will do.
NAMES = (
    "path",
    "brokerConf",
    "rocketmqVersion",
    "content",
    "startOffset",
    "endOffset",
    "partBytes",
    "maxBytesPerTrigger",
    "maxBytesPerSecond",
    "live",
    "stopFile",
)
_PART_BYTES = 128 << 20
_OFFSET = re.compile(r"[0-9]{1,19}", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,19})\s*(?:([kmgt])(?:i?b)?|b)?", re.ASCII | re.IGNORECASE)
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Options:
    """What to read, and how.

    Attributes:
        settings: the store's.
        content: ``messages`` or ``parts``.
        start_offset: physical offset where the first record to read begins, None for the log's start.
        end_offset: physical offset; records that begin at or after it aren't read. None for the log's end.
        part_bytes: bytes of log in one part.
        max_bytes_per_trigger: bytes of log in one micro-batch, None for everything that is there.
        max_bytes_per_second: bytes of log in a second of a stream, None for no limit.
        live: a stream takes only what is settled of a log that a broker may be writing.
        stop_file: while there is such a file, a stream finds nothing new, so that it can be stopped between
            two batches; None: no such file.
    """

    settings: StoreSettings
    content: str = MESSAGES
    start_offset: int | None = None
    end_offset: int | None = None
    part_bytes: int = _PART_BYTES
    max_bytes_per_trigger: int | None = None
    max_bytes_per_second: int | None = None
    live: bool = False
    stop_file: Path | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """The options of a ``.load()``; names in any case.

        Raises:
            SettingsError: a name isn't known, a value can't be used, or broker.conf can't be.
            UnsupportedError: the store uses a feature that reput doesn't read.
        """
        values = {name.lower(): value for name, value in options.items()}
        known = {name.lower() for name in NAMES}
        for name in values:
            if name not in known:
                raise SettingsError(
                    "the source has no such option", expected=f"one of {', '.join(NAMES)}", found=name
                )
        path = values.get("path", "")
        if not path:
            raise SettingsError(
                "the source needs a path",
                expected="the store's directory, as in .load(path)",
                found="no path",
            )
        content = values.get("content", MESSAGES).lower()
        if content not in (MESSAGES, PARTS):
            raise SettingsError(
                "content isn't one that the source has",
                expected=f"{MESSAGES} or {PARTS}",
                found=repr(content),
            )
        start, end = _offset(values, "startOffset"), _offset(values, "endOffset")
        if start is not None and end is not None and start > end:
            raise SettingsError("startOffset lies behind endOffset", expected=f"at most {end}", found=start)
        live = _switch(values, "live")
        if live and end is not None:
            raise SettingsError(
                "a live log's end is looked for", expected="live without endOffset", found=f"endOffset {end}"
            )
        broker_conf = values.get("brokerconf")
        stop_file = values.get("stopfile")
        return cls(
            settings=StoreSettings.load(
                Path(path),
                Path(broker_conf) if broker_conf else None,
                values.get("rocketmqversion") or None,
                dledger=not live,
            ),
            content=content,
            start_offset=start,
            end_offset=end,
            part_bytes=_size(values, "partBytes") or _PART_BYTES,
            max_bytes_per_trigger=_size(values, "maxBytesPerTrigger"),
            max_bytes_per_second=_size(values, "maxBytesPerSecond"),
            live=live,
            stop_file=Path(stop_file) if stop_file else None,
        )


def _offset(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name.lower())
    if text is None:
        return None
    if _OFFSET.fullmatch(text) is None or int(text) > _LONG_MAX:
        raise SettingsError(
            f"{name} isn't a physical offset",
            expected=f"a whole number from 0 to {_LONG_MAX}",
            found=repr(text),
        )
    return int(text)


def _switch(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name.lower(), "false").strip().lower()
    if text not in ("true", "false"):
        raise SettingsError(f"{name} isn't a switch", expected="true or false", found=repr(text))
    return text == "true"


def _size(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name.lower())
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    size = 0 if match is None else int(match[1]) << _SHIFTS[(match[2] or "").lower()]
    if not 0 < size <= _LONG_MAX:
        raise SettingsError(
            f"{name} isn't a size",
            expected="a number of bytes from 1 up, or one with k, m, g or t after it, e.g. 512m",
            found=repr(text),
        )
    return size
