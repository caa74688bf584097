"""One sentence for a file that can't be read, whoever reads it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.derived.files import read_bytes
from reput.dump import places
from reput.errors import SegmentGoneError, StoreError
from reput.source.ranges import ReadStatistics, opened
from reput.store.reading import unreadable


def dumped(path: Path) -> None:
    read_bytes("the queue", path, 0, 20)


def queried(path: Path) -> None:
    with opened(path, "the queue", ReadStatistics()) as descriptor:
        os.pread(descriptor, 20, 0)


@pytest.mark.parametrize("reads", [dumped, queried])
def test_a_dump_and_a_query_say_the_same(reads: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(SegmentGoneError) as gone:
        reads(tmp_path / "vanished")
    assert str(gone.value) == (
        f"{tmp_path}/vanished: the queue can't be read; found No such file or directory. "
        "A running broker deletes what has expired: ask the same again"
    )
    (tmp_path / "loop").symlink_to("loop")
    for name, found in (("", "a directory"), ("loop", "Too many levels of symbolic links")):
        with pytest.raises(StoreError, match=f"the queue can't be read; found {found}. Check the file") as no:
            reads(tmp_path / name)
        assert type(no.value) is StoreError
        assert no.value.path == str(tmp_path / name)


def test_a_dump_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for reads in (dumped, places.read_checkpoint):
        with pytest.raises(StoreError, match="can't be read; found a FIFO"):
            reads(tmp_path / "pipe")


def test_permissions_are_no_expiry() -> None:
    error = unreadable("the segment", "/log/0", PermissionError(13, "Permission denied"))
    assert type(error) is StoreError
    assert str(error) == (
        "/log/0: the segment can't be read; found Permission denied. "
        "Run the same command as root, or as the user that the broker runs as"
    )
    assert unreadable("the queue", "/queue", OSError(5, "Input/output error", "/queue/0")).path == "/queue/0"
    assert unreadable("the queue", "/queue", FileNotFoundError("it was cut meanwhile")).found == (
        "it was cut meanwhile"
    )
