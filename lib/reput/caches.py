"""Where compiled kernels are kept, also for a user who has no home directory to keep them in.

numba keeps them in ``NUMBA_CACHE_DIR``, beside the package, or below the home directory, and fails where a
user can write to none of the three: reput was installed by root, say, and a service has no home. Such a user
gets a directory among the temporary files. It holds code that this process runs: one that isn't the user's
alone isn't taken, whoever made it.

Modules with kernels ask for :data:`CACHED`, so that this is settled before the first of them is compiled.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_VARIABLE = "NUMBA_CACHE_DIR"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@functools.cache
def settle() -> bool:
    """See that numba has a place for kernels, in this process and those that it starts.

    Says so, once, where numba by itself has none.

    Returns:
        Whether there is one.
    """
    if kernels_can_be_cached():
        return True
    own = own_directory()
    if own is None:
        _warn(
            "compiled kernels can't be kept, and each command compiles them anew: no directory can be "
            f"written to. Set {_VARIABLE} or TMPDIR to one of your own"
        )
        return False
    place = str(own / "numba")
    os.environ[_VARIABLE] = place
    if "numba" in sys.modules:  # it has read the variable
        from numba import config

        config.CACHE_DIR = place
    _warn(
        "numba's cache can't be written to beside the package or in your home directory: compiled kernels "
        f"are kept in {place}. Set {_VARIABLE} to choose another directory"
    )
    return True


def kernels_can_be_cached() -> bool:
    """Whether numba finds a place by itself: its variable's, the package's, the home directory's."""
    places = [Path(__file__).parent / "scan" / "__pycache__"]
    if named := os.environ.get(_VARIABLE):
        places.insert(0, Path(named))
    # Where nothing names a home, numba takes "~" for a directory's name; the one here is none for a cache.
    with suppress(RuntimeError):
        places.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba")
    return any(map(can_write, places))


@functools.cache
def own_directory() -> Path | None:
    """A directory for temporary files that is this user's alone; None if there can't be one.

    The same at each call, by each process of the user, unless somebody else took its name: then one that goes
    with this process.
    """
    try:
        base = Path(tempfile.gettempdir())
        found = base.stat()
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return None  # anybody could put another one in its place
        path = base / f"reput-{os.geteuid()}"
        with suppress(FileExistsError):
            path.mkdir(0o700)
        if path.is_dir() and is_mine_alone(path) and can_write(path):
            return path
        path = Path(tempfile.mkdtemp(prefix=f"reput-{os.geteuid()}-"))
    except OSError:
        return None
    atexit.register(_remove, path, os.getpid())
    return path


def can_write(directory: Path) -> bool:
    """Whether a file can be made in a directory, which is made where it is missing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def is_mine_alone(path: Path) -> bool:
    """Whether a file or directory is there, is this user's, and nobody else's to change or read."""
    try:
        found = path.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return is_plain and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS


def _remove(path: Path, maker: int) -> None:
    if os.getpid() == maker:  # and not a worker that was forked from it
        shutil.rmtree(path, ignore_errors=True)


def _warn(message: str) -> None:
    with suppress(OSError, ValueError):
        print(f"reput: {message}", file=sys.stderr, flush=True)  # noqa: T201 - a command says it, and so does a worker


#: For ``numba.njit(cache=…)``.
CACHED = settle()
