"""Whether two stores hold the same consume queues, index files and checkpoint, byte for byte.

Index files are matched by their order: a broker names them after its clock, so their names can't be derived
from the log. The checkpoint is kept apart: its values depend on which of the broker's flushes ran last.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

import numpy as np

from reput.errors import StoreError
from reput.format import consumequeue, indexfile, names
from reput.format.checkpoint import StoreCheckpoint
from reput.store.listing import entries_in
from reput.store.reading import open_file, read_file

_CHUNK = 8 << 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two stores have in common and where they differ."""

    #: one sentence a file: it is missing, only the second store has it, or its bytes differ
    differences: tuple[str, ...]
    checkpoint: tuple[str, ...]  # one sentence for each field of the checkpoint that differs
    empty_directories: tuple[str, ...]  # directories that hold no file and that only one of the stores has
    #: queue_files, queue_bytes: equal files of all kinds of consume queues, and their sizes in bytes
    queue_files: int
    queue_bytes: int
    index_files: int  # index_files, index_bytes: equal index files, and their sizes in bytes
    index_bytes: int
    #: bytes that differ; a file that one store lacks, or has in another size, counts whole
    differing_bytes: int


def compare(expected: Path, actual: Path) -> Comparison:
    """Compare what two stores hold beside their commit logs."""
    for root in (expected, actual):
        if not root.is_dir():
            raise StoreError("there is no store", path=root, expected="a directory")
    differences: list[str] = []
    differing = 0
    queue_sizes: list[int] = []
    empty: list[str] = []
    for directory in names.QUEUES:
        left, right = _files(expected / directory), _files(actual / directory)
        for name in sorted(left.keys() | right.keys()):
            title = f"{directory}/{name}"
            differing += _compare_file(title, left.get(name), right.get(name), differences, queue_sizes)
        empty += _only_one(_empty(expected / directory), _empty(actual / directory), directory)
    index_sizes: list[int] = []
    differing += _compare_index(expected / names.INDEX, actual / names.INDEX, differences, index_sizes)
    return Comparison(
        differences=tuple(differences),
        checkpoint=tuple(_checkpoint_differences(expected / names.CHECKPOINT, actual / names.CHECKPOINT)),
        empty_directories=tuple(empty),
        queue_files=len(queue_sizes),
        queue_bytes=sum(queue_sizes),
        index_files=len(index_sizes),
        index_bytes=sum(index_sizes),
        differing_bytes=differing,
    )


def _files(root: Path) -> dict[str, Path]:
    return {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}


def _empty(root: Path) -> set[str]:
    """Directories below which there is no file."""
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir()}
    for name in _files(root):
        found.difference_update(parent.as_posix() for parent in Path(name).parents)
    return found


def _only_one(left: set[str], right: set[str], directory: str) -> list[str]:
    return [
        f"{directory}/{name}: only in the {'first' if name in left else 'second'} store, and without a file"
        for name in sorted(left ^ right)
    ]


def _compare_index(expected: Path, actual: Path, differences: list[str], sizes: list[int]) -> int:
    """Compare the index files in their order; returns how many bytes differ."""
    differing = 0
    left, right = _index_files(expected), _index_files(actual)
    for number in range(max(len(left), len(right))):
        first = left[number] if number < len(left) else None
        second = right[number] if number < len(right) else None
        stored_as = "/".join(dict.fromkeys(path.name for path in (first, second) if path is not None))
        title = f"{names.INDEX} file {number + 1} of {len(left)} ({stored_as})"
        differing += _compare_file(title, first, second, differences, sizes)
    return differing


def _index_files(root: Path) -> list[Path]:
    return [Path(entry.path) for entry in entries_in(root) if entry.is_file()]


def _compare_file(
    title: str, expected: Path | None, actual: Path | None, differences: list[str], sizes: list[int]
) -> int:
    """Add a sentence or a size; returns how many bytes differ."""
    if expected is None or actual is None:
        differences.append(f"{title}: {'only in the second store' if expected is None else 'missing'}")
        return sum(path.stat().st_size for path in (expected, actual) if path is not None)
    size, other_size = expected.stat().st_size, actual.stat().st_size
    if size != other_size:
        differences.append(f"{title}: expected {size} bytes, found {other_size}")
        return max(size, other_size)
    with open(open_file(expected), "rb") as first, open(open_file(actual), "rb") as second:
        offset, count = _differing_bytes(first, second)
        if offset is None:
            sizes.append(size)
            return 0
        differences.append(f"{title}: {count} of {size} bytes differ, {_where(title, offset, first, second)}")
        return count


def _differing_bytes(first: BinaryIO, second: BinaryIO) -> tuple[int | None, int]:
    """The offset of the first byte that differs, None if missing, and how many do."""
    offset: int | None = None
    count = position = 0
    while left := first.read(_CHUNK):
        right = second.read(_CHUNK)
        if left != right:
            differing = np.flatnonzero(np.frombuffer(left, np.uint8) != np.frombuffer(right, np.uint8))
            if offset is None:
                offset = position + int(differing[0])
            count += len(differing)
        position += len(left)
    return offset, count


def _where(title: str, offset: int, first: BinaryIO, second: BinaryIO) -> str:
    """The first difference, as the format around it reads."""
    if title.startswith(f"{names.CONSUME_QUEUE}/"):
        start = offset - offset % consumequeue.UNIT_LENGTH
        units = [_read(file, start, consumequeue.UNIT_LENGTH) for file in (first, second)]
        if all(len(unit) == consumequeue.UNIT_LENGTH for unit in units):
            before, after = (consumequeue.UNIT.unpack(unit) for unit in units)
            return f"first the unit at byte {start}: expected {before}, found {after}"
    if title.startswith(f"{names.INDEX} ") and offset < indexfile.HEADER_LENGTH:
        headers = [
            indexfile.IndexHeader.decode(_read(file, 0, indexfile.HEADER_LENGTH)) for file in (first, second)
        ]
        return f"first the header: expected {headers[0]}, found {headers[1]}"
    before_bytes, after_bytes = (_read(file, offset, 8).hex(" ") for file in (first, second))
    return f"first at byte {offset}: expected {before_bytes}, found {after_bytes}"


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)


def _checkpoint_differences(expected: Path, actual: Path) -> list[str]:
    if not expected.is_file() or not actual.is_file():
        if expected.is_file() == actual.is_file():
            return []
        return [f"{names.CHECKPOINT}: {'missing' if expected.is_file() else 'only in the second store'}"]
    first, second = read_file(expected), read_file(actual)
    left, right = StoreCheckpoint.decode(first), StoreCheckpoint.decode(second)
    found: list[str] = []
    for field in fields(StoreCheckpoint):
        before, after = getattr(left, field.name), getattr(right, field.name)
        if before != after:
            found.append(f"{names.CHECKPOINT}: {field.name}: expected {before}, found {after}")
    if first != second and not found:
        found.append(f"{names.CHECKPOINT}: lengths or bytes behind the fields differ")
    return found
