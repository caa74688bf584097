"""The records of ``consumequeue_ext`` that units lead to."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from reput.dump.places import numbered_files
from reput.dump.reading import read_bytes
from reput.errors import SegmentGoneError
from reput.format.consumequeueext import HEAD, HEAD_LENGTH, MAX_UNIT_LENGTH, place_of


@dataclass(frozen=True, slots=True)
class ExtRecord:
    """A unit's record of consumequeue_ext."""

    tags_code: int  # the tagsCode itself
    store_timestamp: int  # ms
    bit_map: bytes  # for which consumers the message may be

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        facts: dict[str, object] = {"tags_code": self.tags_code, "store_timestamp": self.store_timestamp}
        return {**facts, "bit_map_base64": base64.b64encode(self.bit_map).decode()}


class ExtFiles:
    """A queue's files of consumequeue_ext; looked at when a unit first leads there."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._files: list[tuple[Path, int, int]] | None = None

    def record(self, tags_code: int) -> ExtRecord | None:
        """What an address leads to; None where nothing is there."""
        place = place_of(tags_code)
        if place is None or self._directory is None:
            return None
        if self._files is None:
            self._files = numbered_files(self._directory)
        for path, base, length in self._files:
            if base <= place < base + length:
                return self._read(path, place - base)
        return None

    def _read(self, path: Path, position: int) -> ExtRecord | None:
        try:
            data = read_bytes("the queue", path, position, MAX_UNIT_LENGTH)
        except SegmentGoneError:
            return None  # expired just now
        if len(data) < HEAD_LENGTH:
            return None
        size, tags_code, timestamp, width = HEAD.unpack_from(data)
        if not HEAD_LENGTH <= size <= len(data) or width != size - HEAD_LENGTH:
            return None
        return ExtRecord(tags_code, timestamp, data[HEAD_LENGTH:size])
