from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reput.errors import StoreError
from reput.format import consumequeue
from reput.format.checkpoint import StoreCheckpoint
from reput.format.indexfile import IndexHeader
from reput.store.compare import compare

INDEX_NAME = "20240229123456789"


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "expected"
    units = b"".join(consumequeue.unit(100 * n, 100, n) for n in range(5))
    write(root / "consumequeue" / "t" / "0" / f"{0:020d}", units)
    write(root / "consumequeue" / "t" / "1" / f"{0:020d}", units)
    write(root / "batchconsumequeue" / "b" / "0" / f"{0:020d}", bytes(46))
    write(root / "index" / INDEX_NAME, IndexHeader(1, 2, 3, 4, 5, 6).encode() + bytes(100))
    write(root / "index" / "20240229123456790", IndexHeader().encode() + bytes(100))
    write(root / "checkpoint", StoreCheckpoint(physic_msg_timestamp=7).encode())
    return root


@pytest.fixture
def copy(store: Path) -> Path:
    return Path(shutil.copytree(store, store.parent / "actual"))


def test_a_copy_has_no_differences_and_all_is_counted(store: Path, copy: Path) -> None:
    found = compare(store, copy)
    assert (found.differences, found.checkpoint, found.empty_directories) == ((), (), ())
    assert (found.queue_files, found.queue_bytes) == (3, 100 + 100 + 46)
    assert (found.index_files, found.index_bytes) == (2, 280)


def test_index_files_are_matched_by_order_not_by_name(store: Path, copy: Path) -> None:
    (copy / "index" / INDEX_NAME).rename(copy / "index" / "20231231235959999")
    assert list(compare(store, copy).differences) == []


def test_the_order_of_index_files_matters(store: Path, copy: Path) -> None:
    (copy / "index" / INDEX_NAME).rename(copy / "index" / "20250101000000000")
    assert len(compare(store, copy).differences) == 2


def test_a_changed_unit_is_read_out(store: Path, copy: Path) -> None:
    path = copy / "consumequeue" / "t" / "1" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[59] ^= 4  # last byte of unit 2's tagsCode
    path.write_bytes(data)
    (found,) = compare(store, copy).differences
    assert found.startswith("consumequeue/t/1/00000000000000000000: 1 of 100 bytes differ, ")
    assert found.endswith("first the unit at byte 40: expected (200, 100, 2), found (200, 100, 6)")


def test_a_changed_index_header_is_read_out(store: Path, copy: Path) -> None:
    path = copy / "index" / INDEX_NAME
    path.write_bytes(IndexHeader(1, 2, 3, 4, 5, 7).encode() + bytes(100))
    (found,) = compare(store, copy).differences
    assert found.startswith(
        f"index file 1 of 2 ({INDEX_NAME}): 1 of 140 bytes differ, first the header: expected "
    )
    assert "index_count=6" in found
    assert "index_count=7" in found


def test_a_changed_index_entry_is_shown_by_its_bytes(store: Path, copy: Path) -> None:
    path = copy / "index" / INDEX_NAME
    path.write_bytes(path.read_bytes()[:-1] + b"\x2a")
    assert list(compare(store, copy).differences) == [
        f"index file 1 of 2 ({INDEX_NAME}): 1 of 140 bytes differ, first at byte 139: expected 00, found 2a"
    ]


def test_missing_surplus_and_short_files(store: Path, copy: Path) -> None:
    (copy / "consumequeue" / "t" / "0" / f"{0:020d}").unlink()
    write(copy / "consumequeue" / "t" / "7" / f"{0:020d}", b"")
    write(copy / "consumequeue" / "t" / "1" / f"{0:020d}", bytes(80))
    (copy / "index" / "20240229123456790").unlink()
    assert list(compare(store, copy).differences) == [
        "consumequeue/t/0/00000000000000000000: missing",
        "consumequeue/t/1/00000000000000000000: expected 100 bytes, found 80",
        "consumequeue/t/7/00000000000000000000: only in the second store",
        "index file 2 of 2 (20240229123456790): missing",
    ]


def test_directories_without_files_are_told_apart(store: Path, copy: Path) -> None:
    (store / "consumequeue" / "t" / "8").mkdir()
    (copy / "consumequeue" / "u" / "0").mkdir(parents=True)
    found = compare(store, copy)
    assert found.differences == ()
    assert found.empty_directories == (
        "consumequeue/t/8: only in the first store, and without a file",
        "consumequeue/u: only in the second store, and without a file",
        "consumequeue/u/0: only in the second store, and without a file",
    )


def test_the_checkpoint_is_compared_field_by_field_and_kept_apart(store: Path, copy: Path) -> None:
    (copy / "checkpoint").write_bytes(
        StoreCheckpoint(physic_msg_timestamp=8, logics_physical_offset=9).encode()
    )
    found = compare(store, copy)
    assert found.differences == ()
    assert found.checkpoint == (
        "checkpoint: physic_msg_timestamp: expected 7, found 8",
        "checkpoint: logics_physical_offset: expected 0, found 9",
    )
    (copy / "checkpoint").write_bytes(StoreCheckpoint(physic_msg_timestamp=7).encode()[:-1] + b"x")
    assert compare(store, copy).checkpoint == ("checkpoint: lengths or bytes behind the fields differ",)
    (copy / "checkpoint").unlink()
    assert compare(store, copy).checkpoint == ("checkpoint: missing",)


def test_a_missing_store_is_an_error_not_a_difference(store: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        compare(store, store.parent / "nowhere")


def test_differences_far_into_a_large_file(store: Path, copy: Path) -> None:
    size = (8 << 20) + 140
    for root, last in ((store, b"a"), (copy, b"b")):
        write(root / "index" / INDEX_NAME, bytes(size - 1) + last)
    (found,) = compare(store, copy).differences
    assert f"1 of {size} bytes differ, first at byte {size - 1}: expected 61, found 62" in found
