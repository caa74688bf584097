"""A directory that holds a database as it is at one moment, while its broker may go on writing.

RocksDB changes no file that CURRENT and its MANIFEST lead to; it makes new ones, and removes those that a
compaction or a flush has replaced, after it has written so to the MANIFEST. Files of entries (``*.sst``) and
of the write-ahead log (``*.log``) are therefore linked, and the two others copied. If the MANIFEST is the
same before and after, all that it leads to has been caught. What the broker hasn't flushed isn't in any file.

rocksdict writes a file of its own into each directory that it opens, to read it, too: that is the other
reason for a directory apart.

Source: RocksDB, ``VersionSet::Recover``, ``DBImpl::OpenForReadOnly`` (v8.4.4); seen with rocksdict 0.3.29.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from reput import caches
from reput.errors import OutputError, StoreError
from reput.format import names
from reput.store.reading import check_file, open_file, read_file, step_to_read
from reput.store.system import check_free

#: The file by which a directory is known to be a database.
CURRENT = "CURRENT"
#: How the directories are called.
PREFIX = ".reput-rocksdb-"
_NAMED = re.compile(rb"(MANIFEST-[0-9]{1,20})\n", re.ASCII)
#: Entries, what isn't in them yet, and large values.
_HELD = (".sst", ".log", ".blob")
#: What a flush or a compaction needs at most to become visible, and how often it may come between.
_TRIES = 8
_WAIT_SECONDS = 0.02
#: A MANIFEST's blocks, and its records' heads: checksum, length, kind. Of the kinds 1 to 4 the first is a
#: whole record and the last the end of one; 5 to 8 are the same with 4 bytes more.
_LOG_BLOCK, _LOG_HEADER, _LOG_LAST = 32_768, 7, 4
_NO_LINK = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS}
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A directory of links and copies."""

    directory: Path  # where it is
    copied: int  # bytes of entries that had to be copied, since no link could be made
    tries: int  # how often it was begun; more than once where files were removed meanwhile
    stamp: tuple[object, ...]  # :func:`stamp` of the database as it was caught


def is_database(directory: Path) -> bool:
    """Whether RocksDB has written there; no where that can't be told."""
    try:
        return (directory / CURRENT).is_file()
    except OSError:
        return False


def traces(directory: Path) -> bool:
    """Whether a database is there, or something is left of one."""
    if is_database(directory):
        return True
    try:
        return any(path.suffix == ".sst" or path.name.startswith("MANIFEST-") for path in directory.iterdir())
    except OSError:
        return False


def stamp(directory: Path) -> tuple[object, ...]:
    """What changes when a database does: names, lengths and times of files; empty if it can't be listed."""
    found: list[object] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name == CURRENT or entry.name.startswith("MANIFEST-") or entry.name.endswith(_HELD):
                    with suppress(FileNotFoundError):
                        facts = entry.stat()
                        found.append((entry.name, facts.st_ino, facts.st_size, facts.st_mtime_ns))
    except OSError:
        return ()
    return tuple(sorted(found, key=str))


def torn_at(manifest: Path) -> int | None:
    """Where a MANIFEST was cut: the byte at which a record begins that isn't whole; None where it is sound.

    RocksDB takes that for its end, and the database for one with fewer files, or none.

    Source: RocksDB, ``log_format.h``, ``log::Reader::ReadPhysicalRecord`` (v8.4.4).
    """
    data = read_file(manifest)
    at = begin = 0
    whole = True
    while at < len(data):
        left = _LOG_BLOCK - at % _LOG_BLOCK
        if left < _LOG_HEADER:
            at += left
            continue
        if at + _LOG_HEADER > len(data):
            return begin if not whole else at
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if kind == 0 and not length:  # zeros, up to the block's end
            if not any(data[at:]):
                return at if whole else begin  # nothing of what was written there is left
            at += left
            continue
        if whole:
            begin = at
        at += length + (_LOG_HEADER if kind <= _LOG_LAST else _LOG_HEADER + 4)
        if at > len(data):
            return begin
        whole = kind % _LOG_LAST in (0, 1)
    return None if whole else begin


@contextmanager
def caught(directory: Path) -> Iterator[Snapshot]:
    """Catch a database as it is; the directory goes with the block.

    It is where temporary files lie. If TMPDIR isn't set, and these are on another file system than the
    database, where no link can be made, it is beside the store, if that can be written to.

    ``directory``: the database. StoreError where it is no database, a file of it can't be read, or it changed
    all the time. OutputError where there is no room for copies.
    """
    _named_by_current(directory)
    with temporary(_place(directory)) as home:
        yield _caught(directory, home)


@contextmanager
def temporary(place: Path | None = None) -> Iterator[Path]:
    """A directory that goes with the block; in ``place``, or where temporary files lie.

    OutputError where none can be made.
    """
    place = place or Path(tempfile.gettempdir())
    with ExitStack() as held:
        try:
            home = held.enter_context(caches.temporary(PREFIX, place))
        except OSError as error:
            raise _no_room(place, error) from error
        yield home


def _caught(directory: Path, home: Path) -> Snapshot:
    target = home / "db"
    target.mkdir()
    lacks, manifest, copied = False, "", 0
    for tries in range(1, _TRIES + 1):
        for log in target.glob("*.log"):
            log.unlink()  # it may have grown; entries never change, and stay
        manifest = _named_by_current(directory)
        before = _manifest_stamp(directory, manifest)
        seen = stamp(directory)
        copied += _hold(directory, target)
        if _copy_head(directory, target, manifest):
            copied += _hold(directory, target)  # what has come since
            if _named_by_current(directory) == manifest and _manifest_stamp(directory, manifest) == before:
                return Snapshot(target, copied, tries, seen)
        (target / manifest).unlink(missing_ok=True)
        time.sleep(_WAIT_SECONDS * tries)
        lacks = _manifest_stamp(directory, manifest) is None and _named_by_current(directory) == manifest
        if lacks and tries > 1:
            break
    if lacks:
        raise StoreError(
            "this RocksDB is torn: CURRENT names a MANIFEST that isn't there",
            path=directory / CURRENT,
            expected=manifest,
            found=", ".join(sorted(one.name for one in directory.glob("MANIFEST-*"))) or "no MANIFEST at all",
            next_step="Bring the whole directory back from a copy: its files don't tell what belongs where",
        )
    raise StoreError(
        "this RocksDB changed each time that it was to be read",
        path=directory,
        expected=f"{manifest} to stay as it is for a moment",
        found=f"changes during {_TRIES} tries",
        next_step="Ask again when the broker writes less, or ask a copy",
    )


def _named_by_current(directory: Path) -> str:
    """The name of the MANIFEST that is in force."""
    path = directory / CURRENT
    try:
        data = read_file(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            "this is no RocksDB",
            path=directory,
            expected=f"a directory with {CURRENT}",
            found="none" if directory.is_dir() else "no such directory",
            next_step="Check the path; if it was one, bring the whole directory back from a copy",
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    named = _NAMED.fullmatch(data)
    if named is None:
        raise StoreError(
            "this RocksDB is torn: CURRENT names no MANIFEST",
            path=path,
            offset=0,
            expected="MANIFEST-, its number and a line feed",
            found=repr(data[:40]) if data else "an empty file",
            next_step="Bring the whole directory back from a copy",
        )
    return named[1].decode()


def _manifest_stamp(directory: Path, name: str) -> tuple[int, int, int] | None:
    try:
        facts = (directory / name).stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _place(directory: Path) -> Path:
    """Where temporary files are to be, or where links can be made."""
    usual = Path(tempfile.gettempdir())
    if os.environ.get("TMPDIR"):
        return usual
    holder = directory.absolute().parent
    beside = holder.parent.parent if holder.name == names.CONFIG else holder.parent
    with suppress(OSError):
        device = directory.stat().st_dev
        if usual.stat().st_dev != device == beside.stat().st_dev and os.access(beside, os.W_OK):
            return beside
    return usual


def _hold(directory: Path, target: Path) -> int:
    """Link the files that aren't linked yet, or copy them; returns the bytes that were copied."""
    to_copy: list[tuple[str, int]] = []
    try:
        with os.scandir(directory) as entries:
            held = [entry.name for entry in entries if entry.name.endswith(_HELD)]
        for name in held:
            try:
                check_file(directory / name)
                os.link(directory / name, target / name)
            except FileExistsError:
                pass
            except FileNotFoundError:
                pass  # a compaction has removed it: the MANIFEST tells whether it is needed
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                if not (target / name).exists():
                    with suppress(FileNotFoundError):
                        to_copy.append((name, (directory / name).stat().st_size))
    except OSError as error:
        raise _unreadable(directory, error) from error
    total = sum(size for _, size in to_copy)
    if total:
        check_free(target, total, f"copies of files of {directory}")
    for name, _ in to_copy:
        _copy(directory / name, target / name)
    return total


def _copy_head(directory: Path, target: Path, manifest: str) -> bool:
    """Copy what leads to the rest; no where the MANIFEST has just been replaced."""
    if not _copy(directory / manifest, target / manifest):
        return False
    (target / CURRENT).write_bytes(manifest.encode() + b"\n")
    return True


def _copy(source: Path, target: Path) -> bool:
    """Whether there was anything to copy."""
    try:
        with open(open_file(source), "rb") as read:
            try:
                with target.open("wb") as out:
                    shutil.copyfileobj(read, out, 1 << 20)
            except OSError as error:
                raise _no_room(target.parent, error) from error
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unreadable(source, error) from error
    return True


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        "this RocksDB can't be read",
        path=error.filename or path,
        found=error.strerror or str(error),
        next_step=step_to_read(error),
    )


def _no_room(place: Path, error: OSError) -> OutputError:
    return OutputError(
        "links to a RocksDB's files, or copies of them, can't be made",
        path=error.filename or place,
        found=error.strerror or str(error),
        next_step="Make room, or let TMPDIR name a directory with room",
    )
