"""Kernels come from numba's cache without its compiler; temporary directories go, whatever ends a process."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from reput.caches import temporary

_LOADED = """
import sys
from numba.core import event

compiled = event.RecordingListener()
event.register("numba:compile", compiled)
from reput.log import walk_kernel

walk_kernel.load()
# What a compiler alone needs to know: numpy's functions as numba has them.
print(len(compiled.buffer) > 0, "numba.np.arraymath" in sys.modules)
"""


@pytest.mark.slow
def test_the_compiler_is_made_ready_only_to_compile(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for expected in ("True True", "False False"):
        done = subprocess.run(
            [sys.executable, "-c", _LOADED], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected, done.stderr


_HOLD = """
import sys
from pathlib import Path
from reput.caches import temporary
with temporary("reput-test-", sys.argv[1]) as directory:
    Path(directory, "secret").touch()
    print(directory, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_goes_with_the_next(tmp_path: Path) -> None:
    def age() -> None:
        for path in tmp_path.iterdir():
            os.utime(path, (0, 0))

    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    left = Path(holder.stdout.readline().strip())
    (tmp_path / "reput-other").mkdir()
    age()
    with temporary("reput-test-", tmp_path) as mine:
        assert mine.stat().st_mode & 0o777 == 0o700
        assert (left / "secret").exists(), "its process runs"
        holder.kill()
        holder.communicate()
        with temporary("reput-test-", tmp_path):
            assert not left.exists()
            assert mine.exists(), "this process holds it"
    assert [path.name for path in tmp_path.iterdir()] == ["reput-other"]


def test_a_forked_process_leaves_its_parents_directory(tmp_path: Path) -> None:
    held = ExitStack()
    directory = held.enter_context(temporary("reput-test-", tmp_path))
    child = os.fork()
    if not child:
        held.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert directory.exists()
    held.close()
    assert not directory.exists()
