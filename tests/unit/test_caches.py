"""Kernels come from numba's cache without its compiler, and are compiled where they aren't there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
