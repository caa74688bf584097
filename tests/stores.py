"""Small commit logs on disk, written record by record."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

from reput.format import commitlog, names
from reput.format.commitlog import Record


@dataclass
class LogWriter:
    """Appends to a commit log as a broker does: preallocated segments, each closed by a BLANK.

    Attributes:
        root: the store.
        segment_size: bytes of a segment.
        end: physical offset where the next record goes.
        records: what was appended, each with its place.
    """

    root: Path
    segment_size: int = 1000
    end: int = 0
    records: list[Record] = field(default_factory=list)

    def append(self, *records: Record) -> None:
        for record in records:
            left = self.segment_size - self.end % self.segment_size
            size = len(commitlog.encode(record))
            if size + commitlog.BLANK_LENGTH > left:
                self._write(commitlog.encode_blank(left))
            placed = replace(record, physical_offset=self.end)
            self._write(commitlog.encode(placed))
            self.records.append(commitlog.decode(commitlog.encode(placed)))

    def preallocate(self, base: int) -> Path:
        path = self.root / names.COMMIT_LOG / names.offset_name(base)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(bytes(self.segment_size))
        return path

    def overwrite(self, offset: int, data: bytes) -> None:
        base = offset - offset % self.segment_size
        with self.preallocate(base).open("r+b") as file:
            file.seek(offset - base)
            file.write(data)

    def _write(self, data: bytes) -> None:
        self.overwrite(self.end, data)
        self.end += len(data)


def move_to_host(root: Path, number: int) -> None:
    """Make the log of a store that was written at 127.0.0.1:10911 that of the broker at 127.0.0.NUMBER.

    The messages of IPv6 stay as they are, and so do the index and the ids in properties.
    """
    was, now = (struct.pack(">4BI", 127, 0, 0, last, 10911) for last in (1, number))
    for segment in (root / "commitlog").iterdir():
        segment.write_bytes(segment.read_bytes().replace(was, now))


def add_left_alone(root: Path) -> list[str]:
    """Put files there that no commit log tells; returns what a command calls them."""
    compaction, log = "compaction/compactionLog/T/0/0", f"timerlog/{0:020}"
    lengths = {"timerwheel": 38_707_200, log: 100 << 20, compaction: 300}
    for name, length in lengths.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 10)
        os.truncate(path, length)  # as a broker wants it
    return ["compaction", "timerlog", "timerwheel"]


def tree_of(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below ``root`` by its relative path, with its bytes and time of modification, ns."""
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
