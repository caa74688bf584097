"""A new store whose commit log holds chosen records, one behind the other.

Physical offsets begin at 0, and queueOffsets of each queue, too: with gaps, a broker that makes the queues
anew would put messages into other places than they say (``ConsumeQueue.putMessagePositionInfo``). All else of
a record stays, storeTimestamp and storeHost included; a CRC of the whole record is computed anew.

Source: ``CommitLog.DefaultAppendMessageCallback.doAppend``, ``AppendMessageCallback.setBatchSizeIfNeeded``,
``LmqDispatch`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from reput.config.kept import Form, Kind, kept
from reput.config.settings import StoreSettings
from reput.errors import OutputError, StoreError
from reput.format import commitlog, javastring, names, properties
from reput.format.commitlog import Record
from reput.newer_python import Self
from reput.store import files
from reput.store.temporary import beside

_PIECE = 4 << 20


class SmallStore:
    """Writes a store beside its place, and moves it there when it is whole; a context manager.

    Args:
        path: the new store; it must not be there.
        settings: of the store that the records are from: the new one has segments of the same size, and a
            copy of its topics.json.
        segment_size: bytes.
    """

    def __init__(self, path: Path, settings: StoreSettings, segment_size: int) -> None:
        self._path = path
        self._settings = settings
        self._size = segment_size
        #: It is built beside its place, on the same file system, and a name with a dot is nobody's store.
        self._beside = beside(path, directory=True)
        self._fd: int | None = None
        self._waiting = bytearray()
        self._end = 0
        self._next: dict[tuple[bytes, int], int] = {}

    def __enter__(self) -> Self:
        self._staging = self._beside.__enter__()
        try:
            files.make_dirs(self._staging / names.COMMIT_LOG)
        except OutputError:
            self.__exit__(None, None, None)
            raise
        return self

    def append(self, record: Record) -> None:
        """Add a record behind the others.

        Raises:
            StoreError: no segment can hold it.
            OutputError: it can't be written.
        """
        record = self._renumbered(record)
        size = len(commitlog.encode(record))
        if size + commitlog.BLANK_LENGTH > self._size:
            raise StoreError(
                "no segment of the new store can hold this record",
                offset=record.physical_offset,
                expected=f"at most {self._size - commitlog.BLANK_LENGTH} bytes",
                found=f"{size} bytes",
            )
        left = self._size - self._end % self._size
        if size + commitlog.BLANK_LENGTH > left:
            # What follows the closing record's head means nothing, and stays a hole in the file.
            self._write(commitlog.encode_blank(left)[: commitlog.BLANK_LENGTH])
            self._close_segment()
            self._end += left - commitlog.BLANK_LENGTH
        data = bytearray(commitlog.encode(replace(record, physical_offset=self._end)))
        if (digits := commitlog.property_crc(data)) is not None:
            data[-1 - len(digits) : -1] = digits
        self._write(data)

    def finish(self) -> None:
        """Flush everything, and give the store its name.

        Raises:
            OutputError: it can't be written, or somebody else took the name.
        """
        self._close_segment()
        config = self._settings.config
        topics = config.file(Kind.TOPICS)
        if config.form is not Form.FILES:
            found = kept(config, Kind.TOPICS)
            if found is not None:
                files.make_dirs(self._staging / names.CONFIG)
                table = json.dumps({"topicConfigTable": found.entries}).encode()
                files.write_atomically(self._staging / names.CONFIG / topics.name, table)
        elif topics.is_file():
            files.make_dirs(self._staging / names.CONFIG)
            with files.reporting("the topics can't be copied", topics):
                shutil.copyfile(topics, self._staging / names.CONFIG / topics.name)
        files.fsync_dirs(self._staging)
        with files.reporting("the new store can't be moved to its place", self._path):
            if self._path.exists():
                self._path.rmdir()  # an empty one that was made beforehand
        files.rename(self._staging, self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            files.system.close(self._fd)
            self._fd = None
        self._beside.__exit__(None, None, None)

    def _renumbered(self, record: Record) -> Record:
        values = properties.parse(record.properties)
        changed: dict[bytes, bytes] = {}
        count = 1
        if {properties.INNER_BASE, properties.INNER_NUM} <= values.keys():
            count = max(javastring.parse_integer(values[properties.INNER_NUM], 16) or 1, 1)
        offset = record.queue_offset
        state = record.sys_flag & commitlog.TRANSACTION_MASK
        if state in (commitlog.TRANSACTION_NONE, commitlog.TRANSACTION_COMMIT):
            offset = self._taken((record.topic, record.queue_id), count)
            if properties.INNER_BASE in values and properties.INNER_NUM in values:
                changed[properties.INNER_BASE] = str(offset).encode()
            light = values.get(properties.INNER_MULTI_DISPATCH)
            if light is not None and properties.INNER_MULTI_QUEUE_OFFSET in values:
                places = [str(self._taken((name, 0), 1)) for name in light.split(b",")]
                changed[properties.INNER_MULTI_QUEUE_OFFSET] = ",".join(places).encode()
        raw = _with(record.properties, changed) if changed else record.properties
        return replace(record, queue_offset=offset, properties=raw)

    def _taken(self, queue: tuple[bytes, int], count: int) -> int:
        offset = self._next.get(queue, 0)
        self._next[queue] = offset + count
        return offset

    def _write(self, data: bytes | bytearray) -> None:
        if self._fd is None:
            name = names.offset_name(self._end - self._end % self._size)
            self._fd = files.create_file(self._staging / names.COMMIT_LOG / name, self._size)
        self._waiting += data
        self._end += len(data)
        if len(self._waiting) >= _PIECE:
            self._flush()

    def _flush(self) -> None:
        if self._fd is not None:
            at = (self._end - len(self._waiting)) % self._size
            files.pwrite_all(self._fd, self._waiting, at)
            self._waiting.clear()

    def _close_segment(self) -> None:
        self._flush()
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                files.fsync_file(fd)
            finally:
                files.system.close(fd)


def _with(raw: bytes, changed: dict[bytes, bytes]) -> bytes:
    """Properties with other values, all else as it was spelled."""
    entries = raw.split(b"\x02")
    for number, entry in enumerate(entries):
        name, separator, value = entry.partition(b"\x01")
        if separator and value and name in changed:
            entries[number] = name + separator + changed[name]
    return b"\x02".join(entries)
