"""The layer that writes: real files, and an operating system that fails at the right moment."""

from __future__ import annotations

import errno
import os
import random
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from reput.errors import OutputError
from reput.store import files, system
from reput.store.file_system import FileCache
from reput.store.ownership import Owner
from reput.store.system import System
from tests.rebuilds import without_root_powers

MINE = Owner(os.geteuid(), os.getegid(), 0o640, 0o750)


class Watched(System):
    """Fails the calls that it is told to, and writes down the others."""

    def __init__(self, **failures: int) -> None:
        self.failures = failures
        self.calls: list[tuple[str, object]] = []
        self.open_now = 0
        self.most_open = 0

    def _call(self, name: str, where: object) -> None:
        if name in self.failures:
            raise OSError(self.failures[name], os.strerror(self.failures[name]))
        self.calls.append((name, where))

    def open(self, path: Path, flags: int) -> int:
        self._call("open", path)
        fd = super().open(path, flags)
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        return fd

    def close(self, fd: int) -> None:
        self.open_now -= 1
        super().close(fd)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._call("pwrite", files.path_of(fd))
        return super().pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._call("truncate", files.path_of(fd))
        super().truncate(fd, size)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._call("allocate", files.path_of(fd))
        super().allocate(fd, offset, length)

    def punch_hole(self, fd: int, offset: int, length: int) -> None:
        self._call("punch_hole", files.path_of(fd))
        super().punch_hole(fd, offset, length)

    def sync(self, fd: int, data_only: bool) -> None:
        self._call("sync", files.path_of(fd))
        self.calls.append(("sync data" if data_only else "sync all", files.path_of(fd)))
        super().sync(fd, data_only)

    def sync_directory(self, path: Path) -> None:
        self._call("sync_directory", path)
        super().sync_directory(path)

    def make_directory(self, path: Path) -> None:
        self._call("make_directory", path)
        super().make_directory(path)

    def own(self, path: Path, uid: int, gid: int) -> None:
        self._call("own", (path, uid, gid))  # only root could

    def rename(self, source: Path, target: Path) -> None:
        self._call("rename", source)
        super().rename(source, target)

    def exchange(self, left: Path, right: Path) -> None:
        self._call("exchange", left)
        super().exchange(left, right)

    def unlink(self, path: Path) -> None:
        self._call("unlink", path)
        super().unlink(path)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    system = Watched()
    monkeypatch.setattr(files, "system", system)
    return system


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    number = files.create_file(tmp_path / "file", 10_000)
    yield number
    os.close(number)


@pytest.fixture
def full() -> Iterator[int]:
    """A device on which there is never any space left."""
    number = os.open("/dev/full", os.O_RDWR)
    yield number
    os.close(number)


# create_file


def test_a_new_file_is_sparse_and_takes_the_owners_mode(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}"
    os.close(files.create_file(path, 6_000_000, MINE))
    facts = path.stat()
    assert (facts.st_size, facts.st_blocks) == (6_000_000, 0)
    assert stat.S_IMODE(facts.st_mode) == 0o640


def test_an_owner_is_set_only_where_it_differs(tmp_path: Path, watched: Watched) -> None:
    os.close(files.create_file(tmp_path / "mine", 1, MINE))
    assert not [call for call in watched.calls if call[0] == "own"]
    os.close(files.create_file(tmp_path / "theirs", 1, Owner(os.geteuid() + 1, os.getegid())))
    assert ("own", (tmp_path / "theirs", os.geteuid() + 1, -1)) in watched.calls


def test_an_existing_file_of_the_right_size_keeps_its_bytes_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    path.chmod(0o600)
    opened = files.create_file(path, 6, MINE)
    try:
        files.pwrite_all(opened, b"X", 2)
    finally:
        os.close(opened)
    assert path.read_bytes() == b"beXore"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_empty_file_is_one_whose_creation_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.close(files.create_file(path, 77, MINE))
    assert path.stat().st_size == 77
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_without_a_size_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    os.close(files.create_file(path, None))
    assert path.read_bytes() == b""
    path.write_bytes(b"records")
    os.close(files.create_file(path, None))
    assert path.read_bytes() == b"records"


def test_a_file_of_another_size_is_refused(tmp_path: Path, watched: Watched) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with pytest.raises(OutputError, match="another size") as caught:
        files.create_file(path, 6_000_000)
    assert (caught.value.expected, caught.value.found) == ("6000000 bytes", "100 bytes")
    assert path.stat().st_size == 100
    assert watched.open_now == 0


def test_a_symbolic_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"1234")
    (tmp_path / "file").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="ELOOP"):
        files.create_file(tmp_path / "file", 4)


def test_a_missing_directory_and_one_in_the_way_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="ENOENT"):
        files.create_file(tmp_path / "missing" / "file", 4)
    with pytest.raises(OutputError, match="EISDIR"):
        files.create_file(tmp_path, 4)


def test_a_descriptor_is_not_left_open_when_sizing_fails(tmp_path: Path, watched: Watched) -> None:
    watched.failures["truncate"] = errno.ENOSPC
    with pytest.raises(OutputError, match="ENOSPC"):
        files.create_file(tmp_path / "file", 4)
    assert watched.open_now == 0


# pwrite_all, zero


def test_bytes_land_at_their_place(fd: int, tmp_path: Path) -> None:
    files.pwrite_all(fd, b"\x01\x02\x03", 20)
    files.pwrite_all(fd, np.arange(4, dtype=np.uint8), 40)
    files.pwrite_all(fd, np.empty((0, 20), np.uint8), 60)
    expected = bytearray(10_000)
    expected[20:23], expected[40:44] = b"\x01\x02\x03", b"\x00\x01\x02\x03"
    assert (tmp_path / "file").read_bytes() == expected


def test_short_writes_are_continued(fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(System):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            return super().pwrite(fd, data[:7], offset)

    monkeypatch.setattr(files, "system", Slow())
    data = random.Random(1).randbytes(1000)
    files.pwrite_all(fd, data, 500)
    assert (tmp_path / "file").read_bytes()[500:1500] == data


def test_a_write_that_writes_nothing_ends(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(System):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            return 0

    monkeypatch.setattr(files, "system", Stuck())
    with pytest.raises(OutputError, match="wrote nothing"):
        files.pwrite_all(fd, b"data", 0)


def test_a_full_disk_is_an_error_with_path_offset_and_what_to_do(full: int) -> None:
    with pytest.raises(OutputError) as caught:
        files.pwrite_all(full, bytes(20), 4000)
    error = caught.value
    assert (error.problem, error.path, error.offset) == ("can't write 20 bytes", "/dev/full", 4000)
    assert error.found == "No space left on device (ENOSPC)"
    assert error.next_step is not None
    assert error.next_step.startswith("Free space on the file system that holds /dev/full (")
    assert error.next_step.endswith("then run the same command again.")


def test_the_offset_is_that_of_the_first_byte_that_was_not_written(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Filling(System):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            if offset >= 100:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().pwrite(fd, data[: 100 - offset], offset)

    monkeypatch.setattr(files, "system", Filling())
    with pytest.raises(OutputError) as caught:
        files.pwrite_all(fd, bytes(300), 50)
    assert caught.value.offset == 100


def test_a_limit_on_file_sizes_is_an_error_not_a_signal(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from pathlib import Path; from reput.store import files\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: files.create_file(Path(sys.argv[1]), 6_000_000)\n"
        "except files.OutputError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "file"], capture_output=True, text=True, check=True
    )
    assert "(EFBIG)" in done.stdout
    assert "ulimit -f" in done.stdout


def test_running_out_of_descriptors_says_so(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(OutputError, match=r"EMFILE.*ulimit -n"):
            files.create_file(tmp_path / "file", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("hole", [True, False])
def test_a_range_is_made_zero_with_or_without_holes(
    fd: int, tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch, hole: bool
) -> None:
    if not hole:
        watched.failures["punch_hole"] = errno.EOPNOTSUPP
        monkeypatch.setattr(files, "_ZEROS", 512)
    files.pwrite_all(fd, b"\xff" * 10_000, 0)
    files.zero(fd, 100, 9000)
    files.zero(fd, 50, 0)
    assert (tmp_path / "file").read_bytes() == b"\xff" * 100 + bytes(9000) + b"\xff" * 900


def test_a_hole_gives_its_space_back(tmp_path: Path) -> None:
    opened = files.create_file(tmp_path / "file", 1 << 20)
    try:
        files.pwrite_all(opened, b"\xff" * (1 << 20), 0)
        files.fsync_file(opened)
        before = os.fstat(opened).st_blocks
        files.zero(opened, 0, 1 << 20)
        files.fsync_file(opened)
        after = os.fstat(opened)
    finally:
        os.close(opened)
    assert after.st_size == 1 << 20
    assert after.st_blocks < before


def test_a_range_that_cannot_be_cleared_is_an_error(fd: int, watched: Watched) -> None:
    watched.failures["punch_hole"] = errno.EIO
    with pytest.raises(OutputError, match=r"can't clear 10 bytes.*EIO.*dmesg"):
        files.zero(fd, 0, 10)


# fallocate, maps, flushing


def test_reserved_space_is_really_there(fd: int) -> None:
    files.fallocate(fd, 0, 8192)
    assert os.fstat(fd).st_blocks * 512 >= 8192


def test_no_space_to_reserve_is_an_error_not_a_signal(fd: int, watched: Watched) -> None:
    watched.failures["allocate"] = errno.ENOSPC
    with pytest.raises(OutputError, match=r"can't reserve 9\.8 KiB.*ENOSPC"):
        files.map_for_writing(fd, 10_000)


def test_what_is_written_through_a_map_is_flushed_by_range(fd: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    mapping = files.map_for_writing(fd, 10_000)
    try:
        mapping[5000:5004] = b"data"
        files.flush_map(fd, mapping, 5000, 4)
        files.flush_map(fd, mapping, 0, 0)
        files.flush_map(fd, mapping, 0, 10_000)
    finally:
        mapping.close()
    assert path.read_bytes()[5000:5004] == b"data"


def test_a_flush_that_fails_names_the_file(fd: int, tmp_path: Path, watched: Watched) -> None:
    watched.failures["sync"] = errno.EIO
    with pytest.raises(OutputError, match="can't flush the file") as caught:
        files.fsync_file(fd)
    assert caught.value.path == str(tmp_path / "file")
    with pytest.raises(OutputError, match="can't flush the directory"):
        files.fsync_dir(tmp_path / "missing")


def test_starting_to_write_back_is_only_a_hint(fd: int) -> None:
    files.start_writeback(fd, 0, 4096)
    reading, writing = os.pipe()
    try:
        files.start_writeback(writing, 0, 4096)
    finally:
        os.close(reading)
        os.close(writing)


# make_dirs


def test_new_directories_are_flushed_into_their_parents(tmp_path: Path, watched: Watched) -> None:
    path = tmp_path / "consumequeue" / "TopicA" / "0"
    changed = files.make_dirs(path, MINE)
    assert changed == [tmp_path, tmp_path / "consumequeue", tmp_path / "consumequeue" / "TopicA"]
    assert [where for name, where in watched.calls if name == "sync_directory"] == changed
    assert [stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent, path.parent.parent)] == [
        0o750
    ] * 3


def test_directories_that_exist_are_left_alone(tmp_path: Path, watched: Watched) -> None:
    tmp_path.chmod(0o711)
    assert files.make_dirs(tmp_path, MINE) == []
    assert watched.calls == []
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o711


def test_two_tasks_may_make_the_same_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Beaten(System):
        def make_directory(self, path: Path) -> None:
            path.mkdir()
            super().make_directory(path)

    monkeypatch.setattr(files, "system", Beaten())
    assert files.make_dirs(tmp_path / "TopicA" / "0") == [tmp_path, tmp_path / "TopicA"]
    assert (tmp_path / "TopicA" / "0").is_dir()


def test_a_file_in_the_way_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "TopicA").write_bytes(b"")
    with pytest.raises(OutputError, match="EEXIST"):
        files.make_dirs(tmp_path / "TopicA")
    with pytest.raises(OutputError, match=r"EEXIST|ENOTDIR"):
        files.make_dirs(tmp_path / "TopicA" / "0")


def test_every_directory_of_a_tree_is_flushed(tmp_path: Path, watched: Watched) -> None:
    for place in ("a/b", "c"):
        (tmp_path / place).mkdir(parents=True)
    files.fsync_dirs(tmp_path)
    assert {where for _, where in watched.calls} == {
        tmp_path,
        *(tmp_path / name for name in ("a", "a/b", "c")),
    }


# rename, exchange, write_atomically, remove_tree


def test_a_rename_is_flushed_in_both_directories(tmp_path: Path, watched: Watched) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"new")
    (tmp_path / "file").write_bytes(b"old")
    files.rename(tmp_path / "a" / "file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [where for name, where in watched.calls if name == "sync_directory"] == [tmp_path, tmp_path / "a"]
    with pytest.raises(OutputError, match=r"can't rename to .*there.*ENOENT"):
        files.rename(tmp_path / "a" / "file", tmp_path / "there")


def test_two_names_change_places(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "inside").touch()
    (tmp_path / "new").write_bytes(b"new")
    files.exchange(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "old").read_bytes() == b"new"
    assert (tmp_path / "new" / "inside").exists()


@pytest.mark.parametrize("call", ["exchange", "rename"])
@pytest.mark.parametrize("closed", ["a", "b", "a/moved"])
def test_who_may_not_rename_is_told_of_the_directory_that_is_closed(
    tmp_path: Path, call: str, closed: str
) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "moved").mkdir(parents=True)
    (tmp_path / closed).chmod(0o555)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from reput.store import files\n"
        f"try: files.{call}(*map(Path, sys.argv[1:]))\n"
        "except files.OutputError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "a/moved", tmp_path / "b/moved"],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=without_root_powers,
    )
    assert f"{tmp_path}/{closed} belongs to" in done.stdout, done.stderr
    assert "has mode 0555: run as a user that may write there" in done.stdout


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_cannot_exchange_lets_the_caller_go_another_way(
    tmp_path: Path, watched: Watched, code: int
) -> None:
    watched.failures["exchange"] = code
    with pytest.raises(OSError, match="can't be exchanged") as caught:
        files.exchange(tmp_path / "a", tmp_path / "b")
    assert caught.value.errno == errno.ENOTSUP


def test_any_other_failure_to_exchange_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="ENOENT"):
        files.exchange(tmp_path / "a", tmp_path / "b")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, watched: Watched) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old, and longer than the new")
    (tmp_path / ".checkpoint.tmp").write_bytes(b"left over by a crash, and longer than the new one")
    files.write_atomically(path, b"new", MINE)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]
    order = [name for name, _ in watched.calls if name in ("pwrite", "sync", "rename", "sync_directory")]
    assert order[-4:] == ["pwrite", "sync", "rename", "sync_directory"]


@pytest.mark.parametrize("call", ["open", "pwrite", "sync", "rename"])
def test_a_failed_replacement_leaves_the_old_file_alone(tmp_path: Path, watched: Watched, call: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old")
    watched.failures[call] = errno.ENOSPC
    with pytest.raises(OutputError, match="ENOSPC"):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]
    assert watched.open_now == 0


def test_a_tree_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "file").touch()
    (tree / "link").symlink_to(kept, target_is_directory=True)
    (tree / "dangling").symlink_to(tmp_path / "nowhere")
    files.remove_tree(tree)
    files.remove_tree(tree)
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
    (tmp_path / "link").symlink_to(kept, target_is_directory=True)
    files.remove_tree(tmp_path / "link")
    assert (kept / "file").exists()


def test_a_tree_that_cannot_be_removed_is_an_error(tmp_path: Path, watched: Watched) -> None:
    (tmp_path / "file").touch()
    watched.failures["unlink"] = errno.EPERM
    with pytest.raises(OutputError, match="EPERM"):
        files.remove_tree(tmp_path)


# messages


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "Free space on the file system that holds"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "belongs to"),
        (errno.EPERM, "mode 0"),
        (errno.EROFS, "mounted read-only"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENOMEM, "spark.executor.pyspark.memory"),
        (errno.EXDEV, "different file systems"),
        (errno.EIO, "dmesg"),
    ],
)
def test_the_next_step_fits_the_error(tmp_path: Path, code: int, advice: str) -> None:
    error = system.output_error("can't do it", tmp_path / "a" / "b", OSError(code, os.strerror(code)))
    assert error.found == f"{os.strerror(code)} ({errno.errorcode[code]})"
    assert advice in (error.next_step or "")


def test_an_error_without_advice_gives_none(tmp_path: Path) -> None:
    assert system.output_error("can't do it", tmp_path, OSError("odd")).found == "odd (no errno)"
    assert system.output_error("can't do it", tmp_path, OSError(errno.EINTR, "x")).next_step is None


# FileCache


def _flushed_since_written(watched: Watched) -> bool:
    """Whether every write was followed by a flush of its file, every new name by one of its directory."""
    pending: set[object] = set()
    for name, where in watched.calls:
        if name in ("pwrite", "truncate"):
            pending.add(where)
        if name in ("truncate", "make_directory"):
            assert isinstance(where, Path)
            pending.add(where.parent)
        if name in ("sync", "sync_directory"):
            pending.discard(where)
    return not pending


def test_more_files_than_may_be_open_are_written_in_any_order(tmp_path: Path, watched: Watched) -> None:
    chance = random.Random(7)
    expected = {
        tmp_path / f"T{topic}" / f"{queue}" / f"{0:020d}": bytearray(200)
        for topic in range(5)
        for queue in range(6)
    }
    with FileCache(MINE, max_open=4) as cache:
        for flush in range(3):
            for _ in range(200):
                path = chance.choice(list(expected))
                at, data = chance.randrange(190), chance.randbytes(10)
                cache.write(path, data, at, 200)
                expected[path][at : at + 10] = data
            assert watched.most_open <= 4
            assert not _flushed_since_written(watched)
            count = cache.flush_all()
            assert _flushed_since_written(watched)
            assert count == 30 or flush
            watched.most_open = 0
        assert cache.flush_all() == 0
    assert watched.open_now == 0
    assert {path: path.read_bytes() for path in expected} == expected


def test_only_new_files_are_flushed_with_all_their_facts(tmp_path: Path, watched: Watched) -> None:
    path = tmp_path / "file"
    with FileCache(None, max_open=1) as cache:
        for expected in ("sync all", "sync data"):
            watched.calls.clear()
            cache.write(path, b"x", 0, 10)
            cache.flush_all()
            assert [name for name, _ in watched.calls if name in ("sync all", "sync data")] == [expected]


def test_data_that_would_lengthen_a_file_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with FileCache() as cache:
        for at in (-1, 6):
            with pytest.raises(ValueError, match="don't fit"):
                cache.write(tmp_path / "file", b"12345", at, 10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["sync", "sync_directory"])
def test_a_flush_that_failed_is_not_tried_again(tmp_path: Path, watched: Watched, call: str) -> None:
    with FileCache() as cache:
        cache.write(tmp_path / "T" / "file", b"x", 0, 10)
        watched.failures[call] = errno.EIO
        with pytest.raises(OutputError, match="EIO"):
            cache.flush_all()
        watched.failures.clear()
        with pytest.raises(OutputError, match="EIO"):
            cache.flush_all()
        with pytest.raises(OutputError, match="EIO"):
            cache.write(tmp_path / "T" / "file", b"x", 0, 10)
    assert watched.open_now == 0


def test_a_file_that_vanished_is_not_taken_for_flushed(tmp_path: Path) -> None:
    with FileCache(max_open=1) as cache:
        cache.write(tmp_path / "a", b"x", 0, 10)
        cache.write(tmp_path / "b", b"x", 0, 10)
        (tmp_path / "a").unlink()
        with pytest.raises(OutputError, match="can't open the file to flush it"):
            cache.flush_all()


def test_errors_on_the_way_to_a_file_leave_nothing_open(tmp_path: Path, watched: Watched) -> None:
    (tmp_path / "T").touch()
    (tmp_path / "short").write_bytes(b"123")
    with FileCache() as cache:
        with pytest.raises(OutputError, match="ENOTDIR"):
            cache.write(tmp_path / "T" / "file", b"x", 0, 10)
        with pytest.raises(OutputError, match="another size"):
            cache.write(tmp_path / "short", b"x", 0, 10)
        watched.failures["make_directory"] = errno.EDQUOT
        with pytest.raises(OutputError, match="EDQUOT"):
            cache.write(tmp_path / "U" / "file", b"x", 0, 10)
        assert cache.flush_all() == 0
    assert watched.open_now == 0


def test_an_empty_file_that_a_crash_left_is_flushed_with_its_directory(
    tmp_path: Path, watched: Watched
) -> None:
    (tmp_path / "file").touch()
    with FileCache() as cache:
        cache.write(tmp_path / "file", b"x", 0, 10)
        cache.flush_all()
    assert ("sync_directory", tmp_path) in watched.calls


def test_the_file_that_was_not_used_for_longest_is_closed(tmp_path: Path, watched: Watched) -> None:
    with FileCache(max_open=2) as cache:
        for name in ("a", "b", "a", "c", "a"):
            cache.write(tmp_path / name, b"x", 0, 10)
    opened = [where for name, where in watched.calls if name == "open"]
    assert opened == [tmp_path / name for name in ("a", "b", "c")]


def test_all_are_flushed_together_whatever_one_of_them_says() -> None:
    flushed: list[int] = []

    def flush(item: int) -> None:
        if item == 3:
            raise OutputError("the disk is gone")
        flushed.append(item)

    with pytest.raises(OutputError, match="the disk is gone"):
        files.flush_together(flush, range(40))
    assert sorted(flushed) == [item for item in range(40) if item != 3]
    # A forked process has none of the threads.
    if (child := os.fork()) == 0:
        flushed.clear()
        files.flush_together(flush, range(10, 20))
        os._exit(len(flushed))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10
