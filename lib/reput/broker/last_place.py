"""Where a queue leads to by its last unit, found by halving: 100,000 queues are looked at in seconds."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from reput.broker.files import LAST_FILES, StoreFile
from reput.broker.queue import HEAD
from reput.errors import SegmentGoneError
from reput.format.consumequeue import PRE_BLANK_SIZE
from reput.store.reading import reading

_WHAT = "this queue file"
#: Physical offset and size, with which units of both kinds of queues begin.
_HEAD = struct.Struct(">qi")
#: Bytes that are read at once where so few are left to look at.
_BLOCK = 4096 + 64  # a page, to the end of a unit
_ZEROS = bytes(HEAD)


def last_place(
    files: Sequence[StoreFile], file_size: int, unit_length: int, heads: dict[str, bytes] | None = None
) -> int:
    """Physical offset in the last unit of a queue; -1 if missing, or the last one is a blank.

    That is the one that a recovery finds (:class:`reput.broker.queue.QueueModel`), but for a queue with a
    hole in it, of which it may be any unit with none behind it.

    Args:
        files: the queue's, in order.
        file_size: bytes of a file.
        unit_length: bytes of a unit.
        heads: gets the first :data:`reput.broker.queue.HEAD` bytes of the files of which these were read,
            without the zeros at their end, by their path; not of a file with a hole.

    Raises:
        StoreError: a file can't be read.
    """
    for file in reversed(files[-LAST_FILES:]):
        try:
            with reading(file.place, _WHAT) as descriptor:
                place, size, block, end = _last_head(descriptor, file_size, unit_length)
        except SegmentGoneError:
            continue  # expired just now
        length = min(HEAD, file_size // unit_length * unit_length)
        if heads is not None and len(block) >= length and block[end:length] == _ZEROS[: length - end]:
            heads[file.place] = block[:end]
        if size > 0:
            return place if size != PRE_BLANK_SIZE else -1
    return -1


def _last_head(descriptor: int, file_size: int, unit_length: int) -> tuple[int, int, bytes, int]:
    """A file's last unit.

    Returns:
        Its physical offset and size, zeros without one; what was read from the file's start; where it ends.
    """
    low, high = 0, -(-_written(descriptor, file_size) // unit_length)
    last = 0, 0
    block, begin = b"", -1
    while low < high:
        middle = (low + high) // 2
        if begin < 0 and (high - low) * unit_length <= _BLOCK:
            begin = low * unit_length
            block = os.pread(descriptor, high * unit_length - begin, begin)
        at = middle * unit_length
        data = block[at - begin :] if begin >= 0 else os.pread(descriptor, _HEAD.size, at)
        place, size = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
        if place >= 0 and size > 0:
            low, last = middle + 1, (place, size)
        else:
            high = middle
    return last[0], last[1], b"" if begin else block, low * unit_length


def _written(descriptor: int, file_size: int) -> int:
    """Bytes up to the file's first hole: what a broker hasn't written yet is one on most file systems."""
    try:
        return min(os.lseek(descriptor, 0, os.SEEK_HOLE), file_size)
    except OSError:
        return file_size  # this file system doesn't tell
