"""Flushing a whole file system: when that is allowed, and what the kernel really tells of a broken disk."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reput.errors import OutputError
from reput.store import file_system, files, lock
from reput.store.file_system import FileCache, FileSystem, Mount, kernel_version, mounted
from reput.store.lock import broker_on
from reput.store.system import System
from tests.unit.store.test_lock import BROKER, OPEN, process

ALL_PROCESSES = 0xEFFFFFFC


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says on what file system the test's files are, as if nothing else were mounted there."""

    def is_on(kind: str = "ext4", *more: Mount) -> None:
        mounts = [
            Mount(tmp_path.stat().st_dev, "/", kind, ("rw",)),
            Mount(-1, "/proc", "proc", ("rw",)),
            *more,
        ]
        monkeypatch.setattr(file_system, "mounted", lambda: mounts)
        monkeypatch.setattr(file_system, "kernel_version", lambda: (6, 1))
        monkeypatch.setattr(file_system, "_ALL_PROCESSES", Path("/proc/self/ns/pid").stat().st_ino)
        monkeypatch.setattr(file_system, "broker_on", lambda _device: None)

    is_on()
    return is_on


def why_not(root: Path, store: Path | None = None) -> str:
    with FileSystem(root, store) as opened:
        return opened.why_not() or "it may"


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_file_system_that_tells_its_errors_may_be_flushed(
    tmp_path: Path, here: Callable[..., None], kind: str
) -> None:
    here(kind)
    assert why_not(tmp_path) == "it may"


@pytest.mark.parametrize("kind", ["nfs4", "overlay", "fuse.glusterfs", "tmpfs", "btrfs", "ext3", "ceph"])
def test_another_file_system_may_not(tmp_path: Path, here: Callable[..., None], kind: str) -> None:
    here(kind)
    assert why_not(tmp_path) == f"no file system of which it is known: {kind}"


def test_nor_one_below_which_another_one_is_mounted(tmp_path: Path, here: Callable[..., None]) -> None:
    here("ext4", Mount(7, f"{tmp_path}/consumequeue/TopicA", "ext4", ()))
    assert why_not(tmp_path) == f"another file system is mounted on {tmp_path}/consumequeue/TopicA"
    here("ext4", Mount(7, f"{tmp_path}-2", "ext4", ()))
    assert why_not(tmp_path) == "it may"


@pytest.mark.parametrize(
    ("release", "may"),
    [
        ("5.7.19", False),
        ("5.8.0", False),
        ("5.16.20-generic", False),
        ("5.17.0-rc4", True),
        ("6.18.44", True),
    ],
)
def test_old_kernels_may_not(
    tmp_path: Path, here: Callable[..., None], monkeypatch: pytest.MonkeyPatch, release: str, may: bool
) -> None:
    here()
    monkeypatch.setattr(file_system, "kernel_version", kernel_version)
    monkeypatch.setattr(platform, "release", lambda: release)
    assert why_not(tmp_path) == ("it may" if may else f"Linux {release} doesn't tell of all errors")


def test_nor_where_not_all_processes_can_be_seen(
    tmp_path: Path, here: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    unseen = "a broker in another container couldn't be seen"
    here("ext4", Mount(-1, "/proc", "proc", ("rw", "hidepid=invisible")))
    assert why_not(tmp_path) == unseen
    here("ext4", Mount(-1, "/proc", "proc", ("rw", "hidepid=0")))
    assert why_not(tmp_path) == "it may"
    monkeypatch.setattr(file_system, "_ALL_PROCESSES", 1)
    assert why_not(tmp_path) == unseen


def test_a_broker_of_the_store_and_of_any_other_is_seen(
    tmp_path: Path, here: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    store = tmp_path / "store"
    store.mkdir()
    assert why_not(tmp_path / "out", store) == "it may"
    with process(BROKER, store / "lock"):
        assert why_not(tmp_path / "out", store) == "a broker runs on this file system"
    monkeypatch.setattr(file_system, "broker_on", broker_on)
    device = tmp_path.stat().st_dev
    # Other tests' stores run beside this one.
    really = lock._is_store_file

    def is_ours(of: Path, fd: str, device: int) -> bool:
        try:
            return str(tmp_path) in str((of / "fd" / fd).readlink()) and really(of, fd, device)
        except OSError:
            return False

    monkeypatch.setattr(lock, "_is_store_file", is_ours)
    with process(OPEN, tmp_path / "lock") as other:
        found = broker_on(device)
        assert found is not None
        assert found.pid == other.pid
        assert why_not(tmp_path / "out").startswith("a broker may write here: process ")
        assert broker_on(device + 1) is None
    (tmp_path / "other" / "commitlog").mkdir(parents=True)
    with process(OPEN, tmp_path / "other" / "commitlog" / f"{0:020d}"):
        assert broker_on(device) is not None


def test_who_only_reads_a_log_and_reputs_own_locks_are_no_broker(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / ".reput").mkdir()
    log = tmp_path / "commitlog" / f"{0:020d}"
    log.touch()
    device = tmp_path.stat().st_dev
    reading = "import os, sys; os.open(sys.argv[1], os.O_RDONLY)"
    with process(reading, log) as first, process(OPEN, tmp_path / ".reput" / "lock") as second:
        found = broker_on(device)
        assert found is None or found.pid not in (first.pid, second.pid)


class Counting(System):
    """Counts the flushes."""

    def __init__(self) -> None:
        self.one = self.names = self.whole = 0

    def sync(self, fd: int, data_only: bool) -> None:
        self.one += 1
        super().sync(fd, data_only)

    def sync_directory(self, path: Path) -> None:
        self.names += 1
        super().sync_directory(path)

    def sync_file_system(self, fd: int) -> None:
        self.whole += 1


@pytest.mark.parametrize(("count", "may"), [(4, True), (5, True), (5, False)])
def test_many_files_are_flushed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, may: bool
) -> None:
    counting = Counting()
    monkeypatch.setattr(files, "system", counting)
    monkeypatch.setattr(file_system, "MANY", 5)
    monkeypatch.setattr(FileSystem, "why_not", lambda _self: None if may else "not here")
    with FileCache(whole=FileSystem(tmp_path)) as cache:
        for number in range(count):
            cache.write(tmp_path / str(number) / "file", b"x", 0, 10)
        assert cache.flush_all() == count
        assert cache.flush_all() == 0
    one_by_one = 0 if may and count == 5 else count
    assert (counting.one, counting.names > 0, counting.whole) == (
        one_by_one,
        one_by_one > 0,
        1 - bool(one_by_one),
    )


def test_a_file_elsewhere_is_flushed_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting()
    monkeypatch.setattr(files, "system", counting)
    other = Path("/dev/shm")
    if other.stat().st_dev == tmp_path.stat().st_dev:
        other = Path("/proc")
    (tmp_path / "file").touch()
    (tmp_path / "gone").unlink(missing_ok=True)
    with FileSystem(tmp_path) as whole:
        left = whole.flush([tmp_path / "file", other, tmp_path / "gone"])
    assert left == [other, tmp_path / "gone"]


def test_a_flush_of_all_that_failed_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(System):
        def sync_file_system(self, fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(file_system, "MANY", 1)
    monkeypatch.setattr(FileSystem, "why_not", lambda _self: None)
    with FileCache(whole=FileSystem(tmp_path)) as cache:
        cache.write(tmp_path / "file", b"x", 0, 10)
        monkeypatch.setattr(files, "system", Failing())
        with pytest.raises(OutputError, match="EIO"):
            cache.flush_all()
        monkeypatch.setattr(files, "system", System())
        with pytest.raises(OutputError, match="EIO"):
            cache.flush_all()


def test_what_is_mounted_is_read() -> None:
    found = mounted()
    assert found is not None
    assert {"/", "/proc"} <= {mount.place for mount in found}
    assert Path("/proc").stat().st_dev in [mount.device for mount in found if mount.kind == "proc"]


def _broken_disk(place: Path) -> str | None:
    """Mount ext4 on ``place/disk``, on a disk that takes 64 of its 512 MiB; or why that can't be."""
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        return "only root can mount a file system here"
    for name in ("back", "disk"):
        (place / name).mkdir()
    image = place / "back" / "image"
    # Its journal has all its blocks: where one of these isn't taken, ext4 takes nothing more, always.
    journal = ["-J", "size=4", "-E", "nodiscard,lazy_journal_init=0,lazy_itable_init=0"]
    for command in (
        ["mount", "-t", "tmpfs", "-o", "size=64M", "none", str(place / "back")],
        ["truncate", "-s", "512M", str(image)],
        ["mkfs.ext4", "-q", *journal, str(image)],
        ["mount", "-o", "loop", str(image), str(place / "disk")],
    ):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            return f"{command[0]}: {getattr(error, 'stderr', error)}"
    return None


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    why = _broken_disk(tmp_path)
    try:
        if why is not None:
            pytest.skip(f"NOT TESTED: {why}")
        yield tmp_path / "disk"
    finally:
        for name in ("disk", "back"):
            subprocess.run(["umount", tmp_path / name], check=False, capture_output=True)


def test_the_kernel_tells_of_pages_that_a_disk_did_not_take(disk: Path) -> None:
    """A descriptor opened before the writing is told once, one opened after somebody was told never."""
    if kernel_version() < (5, 17):
        pytest.skip("NOT TESTED: an old kernel")
    with FileSystem(disk) as before:
        files.sync_file_system(before._fd)
        fd = os.open(disk / "file", os.O_RDWR | os.O_CREAT)
        for at in range(100):
            os.pwrite(fd, os.urandom(1 << 20), at << 20)
        os.close(fd)
        somebody = os.open(disk, os.O_RDONLY)
        try:
            assert ctypes.CDLL(None).syncfs(somebody) == -1
        finally:
            os.close(somebody)
        with pytest.raises(OutputError, match="can't flush the file system"):
            before.flush([disk / "file"])
        with FileSystem(disk) as late:
            assert late.flush([disk / "file"]) == []
