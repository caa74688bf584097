"""One index file on disk: its header and slots, and reading them back."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.build.index import rebuild_slots
from reput.config.settings import StoreSettings
from reput.errors import OutputError
from reput.format import indexfile, names
from reput.format.indexfile import ENTRY_LENGTH, FIRST_ORDINAL, HEADER_LENGTH, SLOT_LENGTH, IndexHeader
from reput.replay.target import Target
from reput.store import files
from reput.store.files import opened

_ENTRIES_AT_ONCE = 1 << 20


def file_length(settings: StoreSettings) -> int:
    """Bytes of each index file of a store."""
    return indexfile.file_length(settings.max_hash_slot_num, settings.max_index_num)


def entry_offset(max_hash_slot_num: int, ordinal: int) -> int:
    """Byte offset of an entry."""
    return HEADER_LENGTH + max_hash_slot_num * SLOT_LENGTH + ordinal * ENTRY_LENGTH


def empty_header(settings: StoreSettings, header: IndexHeader) -> IndexHeader:
    """The header of a file without entries as it is on disk: 4.9 counts from 0 until the first entry."""
    return replace(header, index_count=settings.dialect.empty_index_count)


def check_there(path: Path, header: IndexHeader) -> None:
    """Check that a file that had entries when it was committed is still there.

    Raises:
        OutputError: it is missing.
    """
    if header.index_count > FIRST_ORDINAL and not path.is_file():
        raise OutputError(
            "an index file that the journal names is missing",
            path=path,
            expected=f"{header.index_count - FIRST_ORDINAL} entries",
            next_step="Put it back, or remove the output and start again",
        )


def create_empty(target: Target, name: str, header: IndexHeader) -> None:
    """Make a file without entries, or start one of that name again; flushed if tasks of the target flush."""
    path = target.root / names.INDEX / name
    with opened(path, file_length(target.settings), target.owner) as fd:
        files.pwrite_all(fd, empty_header(target.settings, header).encode(), 0)
        if target.flush_in_tasks:
            files.fsync_file(fd)
            files.fsync_dir(path.parent)


def load_slots(fd: int, max_hash_slot_num: int, index_count: int) -> NDArray[np.int32]:
    """A file's slots, int32[slots] in native byte order, as of the time when it had ``index_count``.

    A writer that went further and then failed leaves slots that point to later entries. These can't be reset
    one by one, so all slots are computed again.

    Raises:
        OutputError: the file is shorter than it has to be.
        OSError: it can't be read.
    """
    if index_count <= FIRST_ORDINAL:
        return np.zeros(max_hash_slot_num, np.int32)
    data = _read(fd, max_hash_slot_num * SLOT_LENGTH, HEADER_LENGTH)
    slots = np.frombuffer(data, ">i4").astype(np.int32)
    if int(slots.max()) >= index_count:
        return slots_of_entries(fd, max_hash_slot_num, index_count)
    return slots


def slots_of_entries(fd: int, max_hash_slot_num: int, index_count: int) -> NDArray[np.int32]:
    """The slots, int32[slots], that follow from the entries below ``index_count``.

    Raises:
        OutputError: the file is shorter than it has to be.
        OSError: it can't be read.
    """
    slots = np.zeros(max_hash_slot_num, np.int32)
    for ordinal in range(FIRST_ORDINAL, index_count, _ENTRIES_AT_ONCE):
        count = min(_ENTRIES_AT_ONCE, index_count - ordinal)
        data = _read(fd, count * ENTRY_LENGTH, entry_offset(max_hash_slot_num, ordinal))
        hashes = np.frombuffer(data, ">i4").reshape(-1, ENTRY_LENGTH // 4)[:, 0]
        rebuild_slots(hashes.astype(np.int32), slots, ordinal)
    return slots


def slot_bytes(slots: NDArray[np.int32]) -> memoryview:
    """Slots as they are on disk."""
    return slots.astype(">i4").view(np.uint8).data


def _read(fd: int, length: int, offset: int) -> bytes:
    data = os.pread(fd, length, offset)
    if len(data) < length:
        raise OutputError(
            "the index file ends too early",
            path=files.path_of(fd),
            offset=offset,
            expected=f"{length} bytes",
            found=f"{len(data)} bytes",
        )
    return data
