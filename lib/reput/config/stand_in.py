"""The directory of this host that stands for a store elsewhere."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from reput.caches import remove_at_exit, sweep
from reput.config.evidence import chosen, telling
from reput.errors import OutputError, StoreError
from reput.format import names
from reput.remote import client
from reput.remote.client import RANGE, RemoteFile, is_url, url_of
from reput.remote.store import (
    EVIDENCE,
    PREFIX,
    STORE,
    KnownFile,
    RemoteStore,
    client_of,
    leave_out,
    left_in,
    listed_below,
)
from reput.store.system import check_free

#: What a broker derives: copied whole where a command reads it, else some of it, as evidence.
_DERIVED = frozenset({*names.QUEUES, names.CONSUME_QUEUE_ROCKSDB, names.INDEX, names.ROCKSDB_STORE})
_AT_ONCE = 8
#: Nobody needs a directory any more that is older, unless a process holds it.
_OLD_SECONDS = 86_400
_NOTHING: Mapping[str, KnownFile] = {}


def here(
    store: Path, *, derived: bool, shared: bool = False, known: Mapping[str, KnownFile] = _NOTHING
) -> Path:
    """A STORE's directory on this host; of one elsewhere, one that stands for it."""
    return opened(store, derived=derived, shared=shared, known=known).root if is_url(store) else store


@contextmanager
def borrowed(store: Path, *, derived: bool, known: Mapping[str, KnownFile] = _NOTHING) -> Iterator[Path]:
    """A STORE's directory on this host for the block, at whose end what :func:`here` has made goes."""
    root = here(store, derived=derived, known=known)
    try:
        yield root
    finally:
        if root != store:
            shutil.rmtree(root.parent, ignore_errors=True)


def opened(
    place: str | Path,
    *,
    derived: bool,
    shared: bool = False,
    known: Mapping[str, KnownFile] = _NOTHING,
) -> RemoteStore:
    """List a store elsewhere, and make the directory that stands for it.

    Segments stay where they are. Copied are the store's own small files, those of config/, and DLedger's
    checkpoint; of what a broker has derived, all (``derived``) or what :mod:`reput.config.evidence` looks at.
    ``known`` queue and index files that are still so are left out (:mod:`reput.remote.store`).

    With ``shared``, processes that come later read there, too, and another one may have made it already; it
    goes when it is a day old. Else it goes when this process ends.
    """
    url = url_of(place)
    client.begin(url)
    listed_at = time.time()
    files = sorted(file for file in client_of(url).list() if _is_plain(file.name))
    _check_is_store(url, files)
    try:
        sweep(Path(tempfile.gettempdir()), PREFIX, _OLD_SECONDS)
        if not shared:
            home = Path(tempfile.mkdtemp(prefix=PREFIX))
            _hold(home)
            return _made(url, files, listed_at, home, home, derived=derived, known=known)
        key = json.dumps([url, derived, os.getuid(), files]).encode()
        home = Path(tempfile.gettempdir(), PREFIX + hashlib.sha256(key).hexdigest()[:32])
        if home.is_dir() and home.lstat().st_uid == os.getuid():
            os.utime(home)
            return left_in(home)
        making = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            made = _made(url, files, listed_at, making, home, derived=derived, known=_NOTHING)
            with suppress(OSError):  # another process was faster
                making.rename(home)
            return made
        finally:
            shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        raise OutputError(
            "what was read elsewhere can't be kept for the run",
            path=error.filename or tempfile.gettempdir(),
            found=error.strerror or str(error),
            next_step="Make room, or let TMPDIR name a directory with room",
        ) from error


def _check_is_store(url: str, files: list[RemoteFile]) -> None:
    if not files:
        raise StoreError(
            "there is no store here",
            path=url,
            expected="a store, with commitlog/",
            found="nothing whose name begins so",
            next_step="Check the STORE argument",
        )
    if any(names.parse_offset_name(file.name) is not None for file in files):
        raise StoreError(
            "this is a commit log, not a store",
            path=url,
            expected="a store, with commitlog/",
            found="segments",
            next_step=f"Give the store that holds it: {url.rpartition('/')[0]}",
        )


def _made(
    url: str,
    files: list[RemoteFile],
    listed_at: float,
    making: Path,
    home: Path,
    *,
    derived: bool,
    known: Mapping[str, KnownFile],
) -> RemoteStore:
    """Fill a directory, later called ``home``, and know the store by it."""
    made = [file for file in files if file.name.partition("/")[0] in _DERIVED]
    same = {file.name: known[file.name].written for file in made if derived and _is_same(file, known)}
    copied = [file for file in files if _is_small(file)]
    copied += [file for file in made if derived and file.name not in same]
    sample = [] if derived else list(_sample(made))
    check_free(making, sum(file.size for file in (*copied, *sample)), f"copies of files of {url}")
    root, evidence = making / STORE, making / EVIDENCE
    left = set(files) - set(made)
    for directory in {file.name.rpartition("/")[0] for file in left} | {names.COMMIT_LOG}:
        (root / directory).mkdir(parents=True, exist_ok=True)
    _copy(url, [(file, root / file.name) for file in copied])
    if derived:
        _stand_in([file for file in made if file.name in same], root)
    leave_out(making, url, made, same)
    if made and not derived:
        _stand_in(made, evidence)
        for entry in root.iterdir():
            (evidence / entry.name).symlink_to(Path("..", STORE, entry.name))
        _copy(url, [(file, evidence / file.name) for file in sample])
    store = RemoteStore(url, home / STORE, tuple(sorted(left - set(copied))), listed_at=listed_at)
    store.leave(making)
    return store.register()


def _is_same(file: RemoteFile, known: Mapping[str, KnownFile]) -> bool:
    was = known.get(file.name)
    return was is not None and (was.size, was.pin) == (file.size, file.pin)


def _hold(home: Path) -> None:
    """Keep a directory until this process ends, and no longer."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # let go of when the process ends, however it does
    remove_at_exit(home)


def with_queues(store: RemoteStore, queues: Collection[str]) -> Path:
    """Copy some queues whole; returns a directory that has them as the store did when it was listed.

    It goes with the root. What it has already isn't copied again. ``queues`` are relative to the store; a
    file that has changed since raises RemoteStoreError.
    """
    directory = store.root.parent / "queues"
    wanted = [
        file
        for name, file in listed_below(store.root.parent).items()
        if name.rpartition("/")[0] in queues and not (directory / name).exists()
    ]
    check_free(store.root, sum(file.size for file in wanted), f"copies of files of {store.url}")
    directory.mkdir(exist_ok=True)
    _copy(store.url, [(file, directory / file.name) for file in wanted])
    return directory


def _is_plain(name: str) -> bool:
    """Whether it could be a file's: a broker has written no other."""
    parts = name.split("/")
    return "\0" not in name and all(part not in ("", ".", "..") for part in parts)


def _is_small(file: RemoteFile) -> bool:
    """Whether a file is one of the store's own, of config/, or beside what DLedger writes."""
    first, _, rest = file.name.partition("/")
    return (
        (not rest and file.size <= RANGE)
        or first == names.CONFIG
        or (first.startswith("dledger-") and "/" not in rest)
    )


def _sample(made: list[RemoteFile]) -> Iterator[RemoteFile]:
    """What evidence opens of what a broker has derived; of the rest, lengths count."""
    queues: dict[str, dict[str, dict[int, list[RemoteFile]]]] = {}
    index = []
    for file in made:
        match file.name.split("/"):
            case [names.INDEX, _]:
                index.append(file)
            case [kind, topic, queue, name] if names.is_queue_id(queue):
                if names.parse_offset_name(name) is not None:
                    queues.setdefault(kind, {}).setdefault(topic, {}).setdefault(int(queue), []).append(file)
    for topics in queues.values():
        for topic in chosen(sorted(topics)):
            yield from topics[topic][max(topics[topic])][-2:]
    yield from telling(index)


def _stand_in(made: list[RemoteFile], evidence: Path) -> None:
    """Files of the right lengths, without content."""
    for file in made:
        path = evidence / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            out.truncate(file.size)
        os.utime(path, (file.changed_at, file.changed_at))


def _copy(url: str, wanted: list[tuple[RemoteFile, Path]]) -> None:
    """Copy files whole, some at once."""

    def one(pair: tuple[RemoteFile, Path]) -> None:
        file, path = pair
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            for start in range(0, file.size, RANGE):
                data = client_of(url).read(file, start, min(start + RANGE, file.size)).tobytes()
                if data.count(0) < len(data):
                    out.seek(start)
                    out.write(data)
            out.truncate(file.size)
        os.utime(path, (file.changed_at, file.changed_at))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(one, wanted))
