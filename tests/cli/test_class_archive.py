"""The archive of Java's classes: made once, used by later starts, and never a reason why one fails."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from reput.demo import VERSION, unpack
from reput.errors import SparkError
from reput.spark import class_archive

LIB = Path(__file__).parents[2] / "lib"


def reput(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reput.cli", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(LIB), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the archives, which isn't there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(class_archive.VARIABLE, raising=False)
    return tmp_path / "cache" / "reput" / "java"


def train_with(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Let an archive be these bytes."""

    def write(part: Path) -> str:
        part.write_bytes(data)
        return ""

    monkeypatch.setattr(class_archive, "_train", write)


def current() -> Path | None:
    found = class_archive.find()
    assert found is not None
    return found.path()


@pytest.mark.proof
@pytest.mark.spark
def test_a_start_uses_the_archive_that_doctor_made(place: Path, tmp_path: Path) -> None:
    made = reput("doctor", "--no-spark", "--class-archive", "make")
    (archive,) = place.glob("*.jsa")
    assert str(archive) in made.stdout
    assert archive.stat().st_mode & 0o777 == 0o600
    assert place.stat().st_mode & 0o777 == 0o700
    assert sorted(path.suffix for path in place.iterdir()) == [".jsa", ".json", ".seen"]

    store, loaded = unpack(tmp_path), tmp_path / "loaded"
    words = ("rebuild", store.root, "--broker-conf", store.broker_conf, "--rocketmq-version", VERSION)
    log = f"-Xlog:class+load:file={loaded}"
    done = reput(*words, "--out", tmp_path / "out", SPARK_SUBMIT_OPTS=log)
    assert done.returncode == 0, done.stderr
    lines = loaded.read_text().splitlines()
    assert sum("shared objects file (top)" in line for line in lines) > len(lines) / 2

    removed = reput("doctor", "--no-spark", "--class-archive", "remove")
    assert "class-archive  none: `reput doctor --class-archive make` makes one" in removed.stdout
    assert list(place.iterdir()) == []


@pytest.mark.proof
@pytest.mark.spark
@pytest.mark.parametrize("what", ["noise", "another archive"])
def test_a_jvm_starts_without_an_archive_that_it_does_not_understand(
    place: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(os.path.realpath(str(class_archive.java()[0]))).parents[1]
    other = home / "lib" / "server" / "classes.jsa"
    train_with(monkeypatch, other.read_bytes() if what == "another archive" else bytes(range(256)) * 400)
    class_archive.make()
    assert current() is not None, "it is whole, and of the right name"
    store = unpack(tmp_path)
    words = ("rebuild", store.root, "--broker-conf", store.broker_conf, "--rocketmq-version", VERSION)
    done = reput(*words, "--out", tmp_path / "out")
    assert done.returncode == 0
    assert "archive" not in done.stdout + done.stderr


def test_one_that_is_cut_short_or_changed_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_with(monkeypatch, bytes(range(256)) * 64)
    class_archive.make()
    archive = current()
    assert archive is not None
    assert f"-XX:SharedArchiveFile={archive}" in class_archive.java_options()
    whole = archive.read_bytes()
    for data in (b"", whole[:4096], whole[:-1], whole + b"\0", bytes([whole[0] ^ 1]) + whole[1:]):
        archive.write_bytes(data)
        assert class_archive.java_options() == ""
    archive.write_bytes(whole)
    archive.chmod(0o620)
    assert current() is None, "somebody else could have written it"
    archive.chmod(0o600)
    place.chmod(0o770)
    assert current() is None, "somebody else could have put it there"
    place.chmod(0o700)
    assert current() == archive
    archive.rename(place / "kept")
    archive.symlink_to(place / "kept")
    assert current() is None


def test_its_bytes_are_read_once_after_each_change(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_with(monkeypatch, bytes(range(256)) * 64)
    class_archive.make()
    read: list[Path] = []
    checksum = class_archive._checksum
    monkeypatch.setattr(class_archive, "_checksum", lambda path: read.append(path) or checksum(path))
    archive = current()
    assert archive is not None
    assert [current(), current(), read] == [archive, archive, [archive]]
    (seen,) = place.glob("*.seen")
    assert seen.stat().st_mode & 0o777 == 0o600
    at = archive.stat()
    archive.write_bytes(bytes([1]) + archive.read_bytes()[1:])
    os.utime(archive, ns=(at.st_atime_ns, at.st_mtime_ns))
    assert current() is None, "changed in place, with the old length and time"
    assert len(read) == 2
    seen.chmod(0o644)
    assert current() is None
    class_archive.make()
    assert current() == archive
    seen.write_text("another file's", encoding="ascii")
    assert current() == archive
    place.chmod(0o500)  # root writes all the same; others do without the note
    assert current() == archive
    place.chmod(0o700)
    assert class_archive.remove() > 0
    assert list(place.iterdir()) == []


def test_another_java_or_spark_has_another_one(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_with(monkeypatch, b"first")
    class_archive.make()
    first = current()
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core.jar").write_bytes(b"jar")
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    assert current() is None
    train_with(monkeypatch, b"second")
    class_archive.make()
    second = current()
    assert {first, second} == set(place.glob("*.jsa"))
    os.utime(jars / "spark-core.jar", (1, 1))
    assert current() is None, "a jar has changed"
    (jars / "spark-core.jar").unlink()
    jars.rmdir()
    jars.parent.rmdir()
    monkeypatch.delenv("SPARK_HOME")
    class_archive.make()
    assert list(place.glob("*.jsa")) == [current()], "that Spark is gone, and the first archive replaced"
    assert len(list(place.glob("*.json"))) == 1
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert class_archive.find() is None


def test_two_that_make_it_at_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def write(part: Path) -> str:
        part.write_bytes(threading.current_thread().name.encode())
        both.wait(120)
        return ""

    monkeypatch.setattr(class_archive, "_train", write)
    pids = {"a": 1, "b": 2}
    monkeypatch.setattr(class_archive.os, "getpid", lambda: pids.get(threading.current_thread().name, 0))
    threads = [threading.Thread(target=class_archive.make, name=name) for name in pids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert current() is not None
    assert not list(place.glob("*.part"))


def test_what_a_killed_maker_left_is_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_with(monkeypatch, b"archive")
    class_archive.make()
    old, new = place / "spark-0.11.part", place / "spark-0.12.part"
    for path in (old, new):
        path.write_bytes(b"half")
    long_ago = time.time() - 7200
    os.utime(old, (long_ago, long_ago))
    class_archive.make()
    assert not old.exists()
    assert new.exists(), "somebody may be writing it"
    assert class_archive.remove() > 0
    assert list(place.iterdir()) == []


def test_where_there_can_be_none(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not place.exists()
    for named in (class_archive.OFF, str(tmp_path / "a:b"), str(tmp_path / 'a"b')):
        monkeypatch.setenv(class_archive.VARIABLE, named)
        assert class_archive.find() is None
        assert class_archive.java_options() == ""
        assert not place.parent.exists(), "to look for one changes nothing"
        with pytest.raises(SparkError, match="can't be made here"):
            class_archive.make()
    (tmp_path / "file").touch()
    monkeypatch.setenv(class_archive.VARIABLE, str(tmp_path / "file" / "java"))
    with pytest.raises(SparkError, match="Not a directory"):
        class_archive.make()
    monkeypatch.setenv(class_archive.VARIABLE, str(tmp_path / "own"))
    monkeypatch.setattr(class_archive, "_train", lambda _part: "the last line of the JVM")
    with pytest.raises(SparkError, match="the last line of the JVM"):
        class_archive.make()
    monkeypatch.setattr(class_archive, "free_bytes", lambda _place: 1 << 20)
    with pytest.raises(SparkError, match=r"expected 400.0 MiB free, found 1.0 MiB"):
        class_archive.make()
    assert list((tmp_path / "own").iterdir()) == []
