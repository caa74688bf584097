"""Damage for a copy of a store, as a bad disk or a wrong command would cause it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reput.errors import StoreError
from reput.format import indexfile, names
from reput.log.segments import discover
from reput.query import QueryStore

if TYPE_CHECKING:
    from explore.workspace import Store

_FLIPPED = 16


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done.

    Attributes:
        text: in words.
        lost: physical offsets, half open, of the log's bytes that are lost for good.
    """

    text: str
    lost: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return self.text


def lose_queues(store: Store, topic: str) -> Damage:
    """Remove all queues of a topic.

    Raises:
        StoreError: the store isn't a copy, or there is no such topic.
    """
    _refuse_all_but_copies(store)
    directory = store.root / names.CONSUME_QUEUE / topic
    if not directory.is_dir():
        raise StoreError("there are no queues of this topic", path=directory, expected="a directory")
    files = [path for path in directory.rglob("*") if path.is_file()]
    shutil.rmtree(directory)
    return Damage(f"{names.CONSUME_QUEUE}/{topic} is gone, with {len(files)} files of its queues")


def tear_index(store: Store) -> Damage:
    """Fill the second half of the entries of the middle index file with zeros.

    Raises:
        StoreError: the store isn't a copy, or has no index.
    """
    _refuse_all_but_copies(store)
    found = sorted((store.root / names.INDEX).glob("*"))
    if not found:
        raise StoreError("there are no index files", path=store.root / names.INDEX, expected="at least one")
    path = found[len(found) // 2]
    header = indexfile.IndexHeader.decode(path.read_bytes()[: indexfile.HEADER_LENGTH])
    first = header.index_count // 2
    count = header.index_count - first
    at = indexfile.file_length(store.settings().max_hash_slot_num, first)
    _overwrite(path, at, bytes(count * indexfile.ENTRY_LENGTH))
    torn = f"its last {count:,} of {header.index_count - 1:,} entries are zeros"
    return Damage(f"{names.INDEX}/{path.name} is torn: {torn}")


def flip_bytes(store: Store) -> Damage:
    """Flip all bits of a message's first bytes, in the middle of the log's last segment.

    Raises:
        StoreError: the store isn't a copy, or has no message there.
    """
    _refuse_all_but_copies(store)
    log, reader = discover(store.settings()), QueryStore(store.settings()).log
    end, last = reader.end, log.segments[-1]
    segment = log.segment_at(end - 1) or last
    message = reader.after(segment.base + (end - segment.base) // 2)
    if message is None:
        raise StoreError("there is no message in the middle of the last segment", path=segment.path)
    record = message.record
    at = record.physical_offset - segment.base
    before = segment.path.read_bytes()[at : at + _FLIPPED]
    _overwrite(segment.path, at, bytes(byte ^ 0xFF for byte in before))
    return Damage(
        f"{names.COMMIT_LOG}/{segment.path.name}: {_FLIPPED} bytes turned at {at}, where message "
        f"{record.queue_offset} of {message.topic}:{record.queue_id} begins",
        (record.physical_offset, record.physical_offset + message.size),
    )


def _refuse_all_but_copies(store: Store) -> None:
    if not store.is_copy:
        raise StoreError(
            "this store isn't a copy, and the only one must not be damaged",
            path=store.root,
            next_step="Copy it first: Workspace.copy",
        )


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
