"""What ran out is named, whoever tells it: the system, Java, a process that doesn't start, a place."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reput.spark.sessions import scratch_places, spark_error
from reput.store import system
from reput.store.system import Room, output_error, short_of, shortage, shortage_in, unwritten
from tests.rebuilds import environment

FULL, NO_INODES, ROOMY = Room(0, 1000), Room(1 << 30, 0), Room(1 << 40, None)


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> dict[Path, Room]:
    """What the file systems of places have left; all others have room."""
    known: dict[Path, Room] = {}

    def room(path: Path) -> Room:
        return next((left for place, left in known.items() if path.is_relative_to(place)), ROOMY)

    monkeypatch.setattr(system, "room", room)
    return known


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (FULL, "Free space on the file system that holds {} (0 bytes and 1,000 inodes left), then"),
        (
            NO_INODES,
            "Free inodes on the file system that holds {} (1.0 GiB and 0 inodes left) by removing files",
        ),
        (Room(0, 0), "Free space on the file system that holds {} (0 bytes and 0 inodes left)"),
        (ROOMY, "Free space on the file system that holds {} (1.0 TiB left)"),
    ],
)
def test_inodes_are_told_from_space(rooms: dict[Path, Room], tmp_path: Path, left: Room, said: str) -> None:
    rooms[tmp_path] = left
    error = output_error("can't", tmp_path / "a", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert (error.next_step or "").startswith(said.format(tmp_path))


def test_an_error_without_a_path_is_of_the_place_that_is_full(
    rooms: dict[Path, Room], tmp_path: Path
) -> None:
    places = [tmp_path / "out", tmp_path / "scratch"]
    no_space = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert unwritten(no_space, *places).path == str(places[0]), "none of them is"
    rooms[places[1]] = NO_INODES
    assert unwritten(no_space, *places).path == str(places[1])
    rooms[places[0]] = FULL
    assert unwritten(no_space, *places).path == str(places[0])
    no_space.filename = "/elsewhere"
    assert unwritten(no_space, *places).path == "/elsewhere"
    assert short_of(errno.ENOSPC, []) is None


JAVA = (
    "An error occurred while calling o141.start.\n: {}\n\tat org.apache.hadoop.fs.RawLocalFileSystem.create\n"
)


@pytest.mark.parametrize(
    ("text", "path", "found", "step"),
    [
        ("x.FileNotFoundException: /o/x.tmp (No space left on device)", "/o/x.tmp", "(ENOSPC)", "Free space"),
        ("java.io.IOException: No space left on device", "{full}", "(ENOSPC)", "holds {first}/full (0 b"),
        ("OSError: [Errno 27] File too large: '/o/q'", "/o/q", "File too large (EFBIG)", "ulimit -f"),
        ("java.io.IOException: Disk quota exceeded", "{first}", "(EDQUOT)", "quota"),
        ("java.io.FileNotFoundException: /o/x (Too many open files)", None, "(EMFILE)", "ulimit -n"),
        ("x: Too many open files in system", None, "(ENFILE)", "fs.file-max"),
        ("java.lang.OutOfMemoryError: Java heap space", None, "OutOfMemoryError (ENOMEM)", "more memory"),
        ("java.lang.OutOfMemoryError: unable to create native thread", None, "(EAGAIN)", "ulimit -u"),
        ("MemoryError", None, "MemoryError (ENOMEM)", "ulimit -v"),
    ],
)
def test_what_spark_says(
    rooms: dict[Path, Room], tmp_path: Path, text: str, path: str | None, found: str, step: str
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    rooms[full] = FULL
    error = spark_error(RuntimeError(JAVA.format(text)), tmp_path, full)
    assert error.problem == "Spark failed"
    assert error.path == (None if path is None else path.format(full=full, first=tmp_path))
    assert found in (error.found or "")
    assert step.format(first=tmp_path) in (error.next_step or "")
    assert "\n" not in str(error)


def test_java_says_nothing_of_why_a_directory_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute = RuntimeError(JAVA.format("java.io.IOException: Mkdirs failed to create file:/o/spark-checkpoint"))
    monkeypatch.setattr("reput.spark.sessions.scratch_places", list)
    said = spark_error(mute, tmp_path)
    assert said.found == "java.io.IOException: Mkdirs failed to create file:/o/spark-checkpoint"
    assert not list(tmp_path.iterdir())

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    tried = spark_error(mute, tmp_path)
    assert (tried.path, tried.found) == (str(tmp_path), "Read-only file system (EROFS)")


def test_other_words_are_left_alone() -> None:
    assert shortage_in("java.lang.IllegalStateException: a bug") is None
    assert shortage(ValueError("a bug")) is None
    assert shortage(RuntimeError("a bug")) is None


def test_scratch_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    assert scratch_places() == [Path("/tmp"), tmp_path]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/a, {tmp_path}")
    assert scratch_places() == [Path("/a"), tmp_path]


LIMITED = """
import resource
from reput.unforeseen import unforeseen
resource.setrlimit(resource.RLIMIT_{limit}, ({value}, {value}))
try:
    {work}
except BaseException as error:
    print(unforeseen(error))
"""


@pytest.mark.parametrize(
    ("limit", "value", "work", "said"),
    [
        ("NOFILE", 20, "[open('/dev/null') for _ in range(30)]", ["/dev/null", "(EMFILE)", "ulimit -n"]),
        ("AS", 1 << 29, "bytearray(1 << 30)", ["MemoryError (ENOMEM)", "ulimit -v"]),
    ],
)
def test_limits_of_this_process(limit: str, value: int, work: str, said: list[str]) -> None:
    program = LIMITED.format(limit=limit, value=value, work=work)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True
    )
    (line,) = done.stdout.splitlines()
    for words in said:
        assert words in line
