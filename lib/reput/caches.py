"""Where compiled kernels are kept, also for a user who has no home directory to keep them in.

numba keeps them in ``NUMBA_CACHE_DIR``, beside the package, or below the home directory, and fails where a
user can write to none of the three: reput was installed by root, say, and a service has no home. Such a user
gets a directory among the temporary files. It holds code that this process runs: one that isn't the user's
alone isn't taken, whoever made it.

What pip installed has no kernels beside it, for an uninstall would leave them there: they go to the user's
cache of reput. A checkout has them beside the package, and so has what `reput pack` made.

Modules with kernels ask for :data:`CACHED`, so that this is settled before the first of them is compiled.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: Whoever made a temporary directory has its lock by then.
_OLD_SECONDS = 600

_VARIABLE = "NUMBA_CACHE_DIR"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_BESIDE = Path(__file__).parent / "scan" / "__pycache__"
#: Below the user's directory, what runs make again: kernels, Java's classes, and what Maven Central has.
KERNELS, CLASSES, JARS = "numba", "java", "jars"


@functools.cache
def settle() -> bool:
    """See that numba has a place for kernels, in this process and those that it starts.

    Says so, once, where numba by itself has none.

    Returns:
        Whether there is one.
    """
    if _is_for_users() and (place := _user_place()) is not None:
        _use(place)
        return True
    if kernels_can_be_cached():
        return True
    own = own_directory()
    if own is None:
        _warn(
            "compiled kernels can't be kept, and each command compiles them anew: no directory can be "
            f"written to. Set {_VARIABLE} or TMPDIR to one of your own"
        )
        return False
    place = own / KERNELS
    _use(place)
    _warn(
        "numba's cache can't be written to beside the package or in your home directory: compiled kernels "
        f"are kept in {place}. Set {_VARIABLE} to choose another directory"
    )
    return True


def kernels_can_be_cached() -> bool:
    """Whether numba finds a place by itself: its variable's, the package's, the home directory's."""
    places = [_BESIDE]
    if named := os.environ.get(_VARIABLE):
        places.insert(0, Path(named))
    # Where nothing names a home, numba takes "~" for a directory's name; the one here is none for a cache.
    with suppress(RuntimeError):
        places.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba")
    return any(map(can_write, places))


def user_directory() -> Path | None:
    """The user's cache of reput, which needn't be there; None where nothing names a home."""
    with suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reput"
    return None


def kept() -> list[Path]:
    """The directories with what reput keeps of its own for this user; all that an uninstall leaves."""
    user = user_directory()
    places = [] if user is None else [user / name for name in (KERNELS, CLASSES, JARS)]
    temporary = _temporary_place()
    return [place for place in (*places, temporary) if place.is_dir() and not place.is_symlink()]


def size_of(places: Iterable[Path]) -> int:
    """Bytes of the files below directories."""
    return sum(file.lstat().st_size for place in places for file in place.rglob("*") if file.is_file())


def remove(place: Path) -> None:
    """Remove a directory of :func:`kept`, and with the last one the user's cache of reput.

    Raises:
        OSError: it can't be removed.
    """
    shutil.rmtree(place)
    with suppress(OSError):
        if (user := user_directory()) is not None:
            user.rmdir()


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
        path = _temporary_place()
        with suppress(FileExistsError):
            path.mkdir(0o700)
        if path.is_dir() and is_mine_alone(path) and can_write(path):
            return path
        path = Path(tempfile.mkdtemp(prefix=f"reput-{os.geteuid()}-"))
    except OSError:
        return None
    remove_at_exit(path)
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


def _temporary_place() -> Path:
    return Path(tempfile.gettempdir()) / f"reput-{os.geteuid()}"


def _is_for_users() -> bool:
    """Whether kernels belong into the user's cache: pip installed this, and nobody says otherwise."""
    is_installed = Path(__file__).parents[1].name in ("site-packages", "dist-packages")
    return is_installed and _VARIABLE not in os.environ and not any(_BESIDE.glob("*.nbi"))


def _user_place() -> Path | None:
    user = user_directory()
    if user is None:
        return None
    place = user / KERNELS
    with suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place if is_mine_alone(place) and can_write(place) else None


def _use(place: Path) -> None:
    os.environ[_VARIABLE] = str(place)
    if "numba" in sys.modules:  # it has read the variable
        from numba import config

        config.CACHE_DIR = str(place)


def remove_at_exit(directory: Path) -> None:
    """Have a directory go with this process, and not with a worker that was forked from it."""
    atexit.register(_remove, directory, os.getpid())


def _remove(directory: Path, maker: int) -> None:
    if os.getpid() == maker:
        shutil.rmtree(directory, ignore_errors=True)


def sweep(place: Path, prefix: str, old_seconds: float = _OLD_SECONDS) -> None:
    """Remove what nobody holds any more: a process that needs one holds a lock on it (``flock``).

    Names begin with ``prefix``; what isn't this user's is left, and so is what is younger than
    ``old_seconds``, since its lock may not have been taken yet.
    """
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            with suppress(OSError):  # somebody else is removing it
                if not entry.name.startswith(prefix) or entry.is_symlink() or not entry.is_dir():
                    continue
                facts = entry.stat()
                if facts.st_uid != os.getuid() or time.time() - facts.st_mtime < old_seconds:
                    continue
                descriptor = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(descriptor)


@contextmanager
def temporary(prefix: str, place: Path | str | None = None) -> Iterator[Path]:
    """A directory that goes with the block; in ``place``, or where temporary files lie.

    What killed processes left there by this prefix, which is no other directory's, goes first. OSError where
    none can be made.
    """
    place = Path(place or tempfile.gettempdir())
    sweep(place, prefix)
    home, maker = Path(tempfile.mkdtemp(prefix=prefix, dir=place)), os.getpid()
    held = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # where there are no locks, none is swept
            fcntl.flock(held, fcntl.LOCK_SH)
        yield home
    finally:
        _remove(home, maker)
        os.close(held)


def _warn(message: str) -> None:
    with suppress(OSError, ValueError):
        print(f"reput: {message}", file=sys.stderr, flush=True)  # noqa: T201 - a command says it, and so does a worker


def __getattr__(name: str) -> bool:
    """:data:`CACHED`, for ``numba.njit(cache=…)``, when the first module with kernels asks for it."""
    if name != "CACHED":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _spare_the_compiler()
    return settle()


@functools.cache
def _spare_the_compiler() -> None:
    """Have numba load kernels from its cache without making its compiler ready, half of what loading takes.

    In ``Cache.load_overload`` (numba 0.61 to 0.68) that comes first. Here it comes if a kernel isn't there.
    """
    from numba.core.caching import Cache
    from numba.core.runtime import rtsys

    as_numba_does = Cache.load_overload

    def load_overload(self: Any, sig: Any, target_context: Any) -> Any:
        if not self._py_func.__module__.startswith("reput."):
            return as_numba_does(self, sig, target_context)
        rtsys.initialize(target_context)  # of kernels that make arrays
        with self._guard_against_spurious_io_errors():
            if (found := self._load_overload(sig, target_context)) is not None:
                return found
        target_context.refresh()
        return None

    Cache.load_overload = load_overload
