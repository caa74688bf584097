"""Messages by key: the index files, searched as by a broker, and a check of what they give.

Source: ``IndexService.load``, ``queryOffset``, ``buildKey``, ``IndexFile.isTimeMatched``,
``selectPhyOffset`` (rocketmq-all-4.9.7, 5.3.3; 5.5.0 by its bytecode), ``MessageStoreConfig``.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from reput.broker.files import in_order
from reput.broker.index import read_header
from reput.errors import SettingsError, StoreError
from reput.format import indexfile, javastring, names
from reput.store.reading import reading, unreadable

if TYPE_CHECKING:
    from pathlib import Path

    from reput.config.settings import StoreSettings
    from reput.query.log import LogReader
    from reput.query.message import Message

#: ``maxMsgsNumBatch``: a broker gives no more offsets for a key.
MOST_OFFSETS = 64
#: ``MessageConst.INDEX_TAG_TYPE``: from 5.4 on, keys that are tags.
TAG_TYPE = "T"

_WHAT = "the index file"
_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")


class Verdict(Enum):
    """Whether a message that the index gave really has the key."""

    MATCH = "the message has this key"
    COLLISION = "another key with the same hash"
    GONE = "no message begins there any more"


@dataclass(frozen=True, slots=True)
class KeyHit:
    """An offset that the index gave."""

    physical_offset: int
    verdict: Verdict
    message: Message | None  # the message there; None when it is gone


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    header: indexfile.IndexHeader

    def is_time_matched(self, begin: int, end: int) -> bool:
        first, last = self.header.begin_timestamp, self.header.end_timestamp
        return (begin < first and end > last) or first <= begin <= last or first <= end <= last


class IndexReader:
    """The index files of a store as they are when this is created; for one query.

    Raises:
        StoreError: a file can't be read, or is longer than broker.conf says, or all are shorter.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._slots = settings.max_hash_slot_num
        self._check = settings.command("check")
        length = indexfile.file_length(self._slots, settings.max_index_num)
        self._files: list[_File] = []
        found_lengths: list[int] = []
        for entry in in_order(settings.root / names.INDEX):
            if entry.is_dir or names.number(entry.path.name) is None:
                continue
            found_lengths.append(entry.length)
            if entry.length > length:
                raise _wrong_length(entry.path, length, entry.length)
            try:
                self._files.append(_File(entry.path, read_header(entry.path)))
            except OSError as error:
                raise unreadable(_WHAT, entry.path, error) from error
        # A shorter file is torn, and a broker fills it up with zeros. If all are shorter: other settings.
        if found_lengths and max(found_lengths) < length:
            raise _wrong_length(self._files[-1].path, length, max(found_lengths))

    def offsets(
        self,
        topic: str,
        key: str,
        begin: int,
        end: int,
        most: int,
        *,
        index_type: str | None = None,
        limit: int = MOST_OFFSETS,
    ) -> list[int]:
        """Physical offsets of messages whose key has this key's hash, the newest first.

        The times of entries are kept in whole seconds since their file's first: an entry counts as up to
        999 ms earlier than its message.

        Args:
            topic, key: what to look for; only the hash is checked.
            begin, end: ms, both inclusive.
            most: how many at most, and no more than ``limit``.
            index_type: None for keys and UNIQ_KEYs, ``"T"`` for tags.
            limit: what a broker gives at most.

        Raises:
            SettingsError: an index of this type doesn't exist.
            StoreError: a file can't be read, or one of its chains is a loop.
        """
        text = f"{topic}#{key}" if index_type is None else f"{topic}#{self._type(index_type)}#{key}"
        key_hash = indexfile.key_hash(javastring.hash_code(text.encode("utf-8", "replace")))
        most = min(most, limit)
        found: list[int] = []
        for file in reversed(self._files):
            if file.is_time_matched(begin, end):
                self._select(file, key_hash, begin, end, most, found)
            if file.header.begin_timestamp < begin or len(found) >= most:
                break
        return found

    def _type(self, index_type: str) -> str:
        if index_type != TAG_TYPE or not self._settings.dialect.index_tags:
            raise SettingsError(
                "there is no such index",
                expected=f"{TAG_TYPE}: tags, from 5.4 on",
                found=f"{index_type} of {self._settings.dialect.name}",
            )
        return index_type

    def _select(self, file: _File, key_hash: int, begin: int, end: int, most: int, found: list[int]) -> None:
        with reading(file.path, _WHAT) as fd:
            slot = indexfile.HEADER_LENGTH + key_hash % self._slots * indexfile.SLOT_LENGTH
            (ordinal,) = _SLOT.unpack(_pread(fd, _SLOT.size, slot))
            # After the slot: a running broker counts an entry once its slot points to it, and a slot that
            # points past the count is invalid.
            header = read_header(file.path)
            if header.index_count <= 1:
                return
            steps = header.index_count + 1
            while 0 < ordinal <= header.index_count and len(found) < most:
                steps -= 1
                if steps < 0:
                    raise StoreError(
                        "a chain of the index is a loop",
                        path=file.path,
                        next_step=f"Run `{self._check}`, which says how to repair it",
                    )
                ordinal = self._entry(fd, header, ordinal, key_hash, begin, end, found)

    def _entry(
        self,
        fd: int,
        header: indexfile.IndexHeader,
        ordinal: int,
        key_hash: int,
        begin: int,
        end: int,
        found: list[int],
    ) -> int:
        """Check one entry; returns the ordinal of the next one, 0 at the end."""
        at = indexfile.file_length(self._slots, ordinal)
        stored, offset, seconds, previous = _ENTRY.unpack(_pread(fd, _ENTRY.size, at))
        if seconds < 0:
            return 0
        time = header.begin_timestamp + seconds * 1000
        if stored == key_hash and begin <= time <= end:
            found.append(offset)
        return 0 if previous == ordinal or time < begin else previous


def look_up(log: LogReader, offsets: list[int], topic: str, key: str, *, tags: bool = False) -> list[KeyHit]:
    """The messages that the index gave, in log order, each with whether the key really is its own.

    Args:
        tags: the key is a tag.
    """
    hits = []
    for offset in sorted(offsets):
        message = log.message(offset)
        if message is None:
            verdict = Verdict.GONE
        elif (message.topic == topic and message.tags == key) if tags else message.has_key(topic, key):
            verdict = Verdict.MATCH
        else:
            verdict = Verdict.COLLISION
        hits.append(KeyHit(offset, verdict, message))
    return hits


def _wrong_length(path: Path, expected: int, found: int) -> StoreError:
    return StoreError(
        "the index file has another length than it should",
        path=path,
        expected=f"{expected} bytes (maxHashSlotNum, maxIndexNum)",
        found=f"{found} bytes",
        next_step="Give the broker.conf of the broker that wrote this store",
    )


def _pread(fd: int, length: int, at: int) -> bytes:
    return os.pread(fd, length, at).ljust(length, b"\0")
