"""A record of the log, read by its place and without its body: what evidence needs of one."""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from reput.format import commitlog, indexfile, javastring, names, properties
from reput.remote import remote_store
from reput.store.listing import names_seen
from reput.store.reading import reading

#: The fixed fields with two hosts of 20 bytes, and what may follow a body.
_HEAD = commitlog.BORN_HOST + 2 * commitlog.HOST_V6_LENGTH + 8 + commitlog.BODY_AFTER_STORE_HOST
_MOST_BEHIND_BODY = 2 + 0x7FFF + 2 + 0xFFFF


@dataclass(frozen=True, slots=True)
class LogRecord:
    """What is known of a record."""

    topic: bytes  # its bytes
    queue_id: int  # its queue's
    properties: dict[bytes, bytes]  # the last of a repeated name wins
    version: int  # 1 or 2, by the magic
    has_v6: bool  # one of its hosts has 16 bytes

    def keys(self) -> list[int]:
        """What every release indexes of it, in the index's order (``IndexService.buildIndex``)."""
        found = self.properties
        texts = [found[properties.UNIQ_KEY]] if properties.UNIQ_KEY in found else []
        texts += [key for key in found.get(properties.KEYS, b"").split(b" ") if key]
        return [_hash(self.topic, text) for text in texts]

    def tag(self) -> int | None:
        """What releases from 5.4 on index of it, too; None without tags."""
        tags = self.properties.get(properties.TAGS)
        return None if tags is None else _hash(self.topic, b"T#" + tags)


class LogRecords:
    """The segments of a log, for a look at a few records.

    Args:
        directories: those that hold segments; one that can't be read has none.
    """

    def __init__(self, directories: Iterable[Path]) -> None:
        found = [
            (names.parse_offset_name(name), directory / name)
            for directory in directories
            for name in _names_in(directory)
        ]
        self._segments = sorted((base, path) for base, path in found if base is not None)

    @property
    def begins(self) -> int:
        """Physical offset of the first segment; where none is known, one that no log reaches."""
        return self._segments[0][0] if self._segments else 1 << 63

    @property
    def end(self) -> int:
        """Physical offset after the last segment, written or not; 0 where none is known."""
        if not self._segments:
            return 0
        base, path = self._segments[-1]
        elsewhere = remote_store(path)
        try:
            return base + (path.stat().st_size if elsewhere is None else elsewhere.file_at(path).size)
        except (OSError, ValueError):
            return base

    def __bool__(self) -> bool:
        return bool(self._segments)

    def at(self, offset: int) -> LogRecord | None:
        """The record at a physical offset; None where no whole one of that place can be seen."""
        place = bisect_right(self._segments, offset, key=lambda one: one[0]) - 1
        if place < 0:
            return None
        base, path = self._segments[place]
        elsewhere = remote_store(path)
        try:
            if elsewhere is not None:
                return _record(partial(elsewhere.read, path), offset - base, offset)
            with reading(path) as descriptor:
                return _record(
                    lambda start, stop: os.pread(descriptor, stop - start, start), offset - base, offset
                )
        except (OSError, ValueError, OverflowError, struct.error, IndexError):
            return None


def _names_in(directory: Path) -> list[str]:
    elsewhere = remote_store(directory)
    return names_seen(directory) if elsewhere is None else elsewhere.names_in(directory)


def _record(read: Callable[[int, int], bytes], position: int, offset: int) -> LogRecord | None:
    head = read(position, position + _HEAD)
    size, magic = struct.unpack_from(">iI", head)
    (place,) = struct.unpack_from(">q", head, commitlog.PHYSICAL_OFFSET)
    queue_id, sys_flag = (
        struct.unpack_from(">i", head, at)[0] for at in (commitlog.QUEUE_ID, commitlog.SYS_FLAG)
    )
    if magic not in (commitlog.MAGIC_V1, commitlog.MAGIC_V2) or place != offset:
        return None
    body_at = commitlog.body_at(sys_flag)
    (body,) = struct.unpack_from(">i", head, body_at - 4)
    behind_body = body_at + max(body, 0)
    rest = size - behind_body
    if not 3 <= rest <= _MOST_BEHIND_BODY:
        return None
    data = read(position + behind_body, position + behind_body + rest)
    topic_at = 1 if magic == commitlog.MAGIC_V1 else 2
    topic_end = topic_at + int.from_bytes(data[:topic_at], "big")
    (length,) = struct.unpack_from(">h", data, topic_end)
    start = topic_end + 2
    if len(data) != rest or start + max(length, 0) != rest:
        return None
    version = 1 if magic == commitlog.MAGIC_V1 else 2
    has_v6 = bool(sys_flag & (commitlog.SYS_FLAG_BORN_HOST_V6 | commitlog.SYS_FLAG_STORE_HOST_V6))
    return LogRecord(data[topic_at:topic_end], queue_id, properties.parse(data[start:]), version, has_v6)


def _hash(topic: bytes, text: bytes) -> int:
    # Both are decoded each by itself, as Java does it, and joined then.
    start = javastring.hash_code(b"#", javastring.hash_code(topic))
    return indexfile.key_hash(javastring.hash_code(text, start))
