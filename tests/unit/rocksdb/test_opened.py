"""A database is opened without a trace, also while it is written, and refused where it is torn."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reput.errors import ReputError, StoreError, UnsupportedError
from reput.rocksdb import is_database, opened, stamp
from reput.rocksdb.snapshot import PREFIX, torn_at
from tests.rocksdbs import write, writing

COUNT = 20_000
_WRITER = """
import struct, sys, time
from pathlib import Path
from tests.rocksdbs import writing

with writing(Path(sys.argv[1])) as db:
    number = 0
    print("begun", flush=True)
    while True:
        for number in range(number, number + 200):
            db[struct.pack(">Q", number)] = b"x" * 200
        number += 1
        db.flush()
        db.compact_range(None, None)
        time.sleep(0.1)
"""


def key(number: int) -> bytes:
    return struct.pack(">Q", number)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    entries = {key(number): key(number) * 4 for number in range(COUNT)}
    return write(tmp_path_factory.mktemp("sound") / "db", {"default": entries, "offset": {b"k": b"v"}})


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's temporary files are, and no other's."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Temporary files on another file system."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        yield Path(place)


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "db")


def facts(directory: Path) -> dict[str, tuple[int, int, int]]:
    return {
        path.name: (path.stat().st_size, path.stat().st_mtime_ns, path.stat().st_nlink)
        for path in directory.iterdir()
    }


def left() -> list[str]:
    return [path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*")]


def largest(directory: Path) -> Path:
    return max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)


def test_it_gives_all_keys_in_order_and_leaves_no_trace(sound: Path) -> None:
    before = facts(sound)
    with opened(sound, required=["offset"], known=["default", "offset"]) as db:
        blocks = list(db.blocks("default", most=7_000))
        assert [len(keys) for keys, _ in blocks] == [7_000, 7_000, 6_000]
        assert [one for keys, _ in blocks for one in keys] == [key(number) for number in range(COUNT)]
        assert all(
            value == one * 4 for keys, values in blocks for one, value in zip(keys, values, strict=True)
        )
        ((keys, _),) = db.blocks("default", key(5), key(8))
        assert keys == (key(5), key(6), key(7))
        assert list(db.blocks("default", key(5), key(5))) == []
        assert list(db.blocks("offset", b"z")) == []
        assert db.get("offset", b"k") == b"v"
        assert db.get("default", b"none") is None
        assert db.get_many("default", [key(1), b"none", key(2)]) == [key(1) * 4, None, key(2) * 4]
        assert db.first("default", key(9)) == (key(9), key(9) * 4)
        assert db.first("default", key(9), key(9)) is None
        assert db.last("default", b"\xff" * 9) == (key(COUNT - 1), key(COUNT - 1) * 4)
        assert db.last("default", b"") is None
        assert (db.copied, db.tries, db.families) == (0, 1, ("default", "offset"))
        assert len(left()) == 1
        assert facts(sound) != before, "files are linked, not copied"
        with pytest.raises(StoreError, match="lacks a column family"):
            db.get("topic", b"k")
    assert facts(sound) == before
    assert not left()


def test_what_is_not_flushed_is_read_from_the_write_ahead_log(tmp_path: Path) -> None:
    directory = write(tmp_path / "db", {"default": {b"a": b"1"}}, flush=False)
    before = facts(directory)
    with opened(directory) as db:
        assert db.get("default", b"a") == b"1"
    assert facts(directory) == before


def test_a_live_one_is_read_as_it_was_at_some_moment(tmp_path: Path) -> None:
    directory = tmp_path / "db"
    command = [sys.executable, "-c", _WRITER, str(directory)]
    counts = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            until, latest = time.monotonic() + 2, time.monotonic() + 120
            while time.monotonic() < until or (len(set(counts)) < 4 and time.monotonic() < latest):
                with opened(directory) as db:
                    keys = [one for block, _ in db.blocks("default") for one in block]
                assert keys == [key(number) for number in range(len(keys))]
                counts.append(len(keys))
        finally:
            writer.kill()
    assert counts == sorted(counts)
    assert len(set(counts)) > 3, "it was written meanwhile"


def test_it_is_copied_where_no_link_can_be_made(
    sound: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert elsewhere.stat().st_dev != sound.stat().st_dev
    before = facts(sound)
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    with opened(sound) as db:
        assert db.copied >= largest(sound).stat().st_size
        assert facts(sound) == before, "no link"
        assert sum(len(keys) for keys, _ in db.blocks("default")) == COUNT
    assert not left()
    assert not left()


@pytest.mark.parametrize("name", ["consumequeue", "config/topics"])
def test_it_is_linked_beside_the_store_where_temporary_files_are_elsewhere(
    name: str, sound: Path, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shutil.copytree(sound, tmp_path / "store" / name)

    def made() -> list[Path]:
        return [path.parent for path in tmp_path.rglob(f"{PREFIX}*")]

    monkeypatch.delenv("TMPDIR", raising=False)
    with opened(directory) as db:
        assert (db.copied, made(), left()) == (0, [tmp_path], [])
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    with opened(directory) as db:
        assert (db.copied > 0, made(), len(left())) == (True, [], 1)


def test_copies_that_do_not_fit_are_refused(
    sound: Path, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    big = shutil.copytree(sound, tmp_path / "db")
    os.truncate(largest(big), 8 << 40)  # a hole
    with pytest.raises(ReputError, match="copies of files of"), opened(big):
        pass
    assert not list(elsewhere.iterdir())


def test_directories_of_killed_processes_are_removed(sound: Path, temporary: Path) -> None:
    old, young = temporary / f"{PREFIX}old", temporary / f"{PREFIX}young"
    for directory in (old, young):
        (directory / "1").mkdir(parents=True)
    os.utime(old, (0, 0))
    with opened(sound):
        assert left()
        assert not old.exists()
        assert young.exists()


def _put(name: Callable[[Path], Path], at: int, data: bytes) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = name(directory)
        with path.open("r+b") as file:
            file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
            file.write(data)

    return change


def _manifest(directory: Path) -> Path:
    return next(directory.glob("MANIFEST-*"))


def _other_order(directory: Path) -> None:
    """Name another comparator in the MANIFEST, with the right checksums."""
    path = _manifest(directory)
    data = bytearray(path.read_bytes().replace(b"leveldb.BytewiseComparator", b"another.BytewiseComparator"))
    at = 0
    while at + 7 <= len(data):
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        crc = _crc32c(bytes(data[at + 6 : at + 7 + length]))
        masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
        data[at : at + 4] = masked.to_bytes(4, "little")
        at += 7 + length
    path.write_bytes(data)


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (
            lambda d: _manifest(d).unlink(),
            StoreError,
            "CURRENT: .*MANIFEST that isn't there; expected MANIFEST-",
        ),
        (
            lambda d: (d / "CURRENT").unlink(),
            StoreError,
            "this is no RocksDB; expected a directory with CURRENT",
        ),
        (lambda d: (d / "CURRENT").write_bytes(b""), StoreError, "CURRENT names no MANIFEST.* an empty file"),
        (_put(lambda d: d / "CURRENT", 0, b"?"), StoreError, "CURRENT at offset 0: .*names no MANIFEST"),
        (
            lambda d: os.truncate(largest(d), 1000),
            StoreError,
            r"\.sst: .* was cut; expected \d+ bytes, found 1000",
        ),
        (lambda d: largest(d).unlink(), StoreError, r"\.sst: this RocksDB lacks a file"),
        (_put(largest, 70_000, b"\0\1\2\3"), StoreError, r"\.sst at offset \d+: this RocksDB is damaged"),
        (_put(largest, -8, bytes(8)), StoreError, r"\.sst: this RocksDB is damaged"),
        (
            _put(largest, -12, struct.pack("<I", 9)),
            UnsupportedError,
            r"\.sst: .*can't read; .* format_version: 9",
        ),
        (_put(_manifest, 30, b"??"), StoreError, r"MANIFEST-\d+: this RocksDB is damaged; .*checksum"),
        (lambda d: os.truncate(_manifest(d), 60), StoreError, r"MANIFEST-\d+: this RocksDB is damaged"),
        (_other_order, UnsupportedError, "another order .* found another.BytewiseComparator"),
    ],
)
def test_a_torn_one_is_refused(
    copy: Path, change: Callable[[Path], object], kind: type[ReputError], said: str
) -> None:
    change(copy)
    before = facts(copy)
    with pytest.raises(kind, match=said) as raised, opened(copy) as db:
        for _ in db.blocks("default"):
            pass
    assert raised.value.next_step
    assert str(raised.value).count(PREFIX) == 0, "paths are the store's"
    assert facts(copy) == before
    assert not left()


def test_column_families_have_to_be_those_that_are_expected(copy: Path) -> None:
    with (
        pytest.raises(StoreError, match="a foreign column family; expected default, found offset"),
        opened(copy, known=["default"]),
    ):
        pass
    with (
        pytest.raises(StoreError, match="lacks a column family; expected topic, found default, offset"),
        opened(copy, required=["default", "topic"]),
    ):
        pass


def test_a_file_that_can_not_be_read_is_named(copy: Path) -> None:
    broken = largest(copy)
    broken.unlink()
    broken.symlink_to(broken)
    with pytest.raises(StoreError, match=r"can't be read|lacks a file|damaged"), opened(copy):
        pass


def test_without_rocksdict_it_says_what_to_install(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(UnsupportedError, match=r"pip install '.\[rocksdb\]'"), opened(copy):
        pass


def test_a_change_shows_in_the_stamp(tmp_path: Path) -> None:
    directory = tmp_path / "db"
    assert (is_database(directory), stamp(directory)) == (False, ())
    with writing(directory) as db:
        first = stamp(directory)
        assert is_database(directory)
        db[b"a"] = b"1"
        db.flush_wal()
        assert stamp(directory) != first


def test_a_cut_manifest_is_known_at_every_byte(copy: Path, tmp_path: Path) -> None:
    data = _manifest(copy).read_bytes()
    cut = tmp_path / "MANIFEST-000001"
    whole, begins = [], set()
    for length in range(len(data) + 1):
        cut.write_bytes(data[:length])
        at = torn_at(cut)
        if at is None:
            whole.append(length)
        else:
            begins.add(at)
            assert at < length
    assert (whole[0], whole[-1]) == (0, len(data))
    assert begins == {*whole[:-1]}
    for length in whole[:-1]:
        cut.write_bytes(data[:length] + bytes(len(data) - length))
        assert torn_at(cut) == length, "zeros are no record"
