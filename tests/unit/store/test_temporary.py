"""What is filled beside its place: what a killed run left goes, what another one fills stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.errors import OutputError
from reput.store.places import beside, write_alone


def killed(work: Callable[[], object]) -> None:
    """Let a child do something that ends in its being killed."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("directory", [True, False])
def test_the_next_run_clears_what_a_killed_one_left(tmp_path: Path, directory: bool) -> None:
    def leave() -> None:
        with beside(tmp_path / "x", directory=directory) as temporary:
            (temporary / "part" if directory else temporary).write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

    killed(leave)
    killed(leave)
    assert [path.name for path in tmp_path.iterdir()] == [".x.tmp"]
    for other in (directory, not directory):  # also where the next one is of the other kind
        with beside(tmp_path / "x", directory=other) as temporary:
            assert temporary.is_dir() is other
            assert not (list(temporary.iterdir()) if other else temporary.read_bytes())
            (temporary / "more" if other else temporary).write_bytes(b"more")
        assert list(tmp_path.iterdir()) == []
        killed(leave)


@pytest.mark.parametrize("directory", [True, False])
def test_two_runs_at_once(tmp_path: Path, directory: bool) -> None:
    with beside(tmp_path / "x", directory=directory) as temporary:
        (temporary / "part" if directory else temporary).write_bytes(b"mine")
        with (
            pytest.raises(OutputError, match="another run is writing this") as refused,
            beside(tmp_path / "x", directory=directory),
        ):
            pass
        assert "Wait until it has ended" in str(refused.value)
        assert (temporary / "part" if directory else temporary).read_bytes() == b"mine"
        temporary.rename(tmp_path / "x")
        with beside(tmp_path / "x", directory=directory) as other:  # the name is free again
            assert other.exists()
    assert (tmp_path / "x" / "part" if directory else tmp_path / "x").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path, size = tmp_path / "x", 1 << 20
    children = []
    for letter in b"abcdef":
        child = os.fork()
        if not child:
            code = 1
            try:
                for _ in range(20):
                    write_alone(path, bytes([letter]) * size)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
    data = path.read_bytes()
    assert (len(data), len(set(data))) == (size, 1)
    assert [one.name for one in tmp_path.iterdir()] == ["x"]


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / ".x.tmp").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match=r"\.x\.tmp"), beside(tmp_path / "x"):
        pass
    assert not (tmp_path / "elsewhere").exists()
