"""A store elsewhere, and the local directory that stands for it.

Queue and index files whose content was proven before aren't copied. A file of the same length stands for
each, without content: whoever reads such a file first calls :func:`have`, which brings what it is going to
read, from the very object that was listed. What was never written, behind a queue's last unit, stays a hole.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from reput.errors import RemoteStoreError
from reput.format import names
from reput.remote import client
from reput.remote.client import RANGE, RemoteFile

#: Left beside the directory, so that another process on this host knows what it stands for.
MANIFEST = "remote.json"
STORE, EVIDENCE = "store", "evidence"
#: How the name of the directory with these begins.
PREFIX = "reput-remote-"
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class RemoteStore:
    """A store elsewhere, as it was when it was listed.

    Processes of one run know it by :meth:`register`, which unpickling calls, or by what lies beside its
    directory.
    """

    url: str  # without a slash at its end
    root: Path  # the local directory that stands for it; its name is this run's own
    files: tuple[RemoteFile, ...]  # those of the commit log, and all others of which ``root`` has no copy
    copies: Path | None = None  # the store here that gets a copy of each segment; None if none does
    #: when its listing was begun, seconds since 1970, by this host's clock; 0: not known
    listed_at: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        copies = None if self.copies is None else str(self.copies)
        return _restored, (self.url, str(self.root), tuple(map(tuple, self.files)), copies, self.listed_at)

    def register(self) -> RemoteStore:
        """Make this process read paths below :attr:`root` from here; returns what it reads by.

        That is another one where that one has :attr:`copies`, of which not all processes of a run know.
        """
        found = _known.get(str(self.root))
        if found is None or found.copies is None:
            found = _known[str(self.root)] = self
        return found

    def copy_of(self, path: str | Path) -> Path | None:
        """Where the copy of a segment is, or will be; None if segments aren't copied."""
        return None if self.copies is None else self.copies / names.COMMIT_LOG / Path(path).name

    def leave(self, home: Path) -> None:
        """Leave in the directory above :attr:`root` what it stands for, for other processes of this host."""
        left = [self.url, str(self.root), self.files, None, self.listed_at]
        (home / MANIFEST).write_text(json.dumps(left), encoding="utf-8")

    @property
    def evidence_root(self) -> Path:
        """Where evidence of its settings is looked for: as :attr:`root`, with what a broker has derived."""
        evidence = self.root.parent / EVIDENCE
        return evidence if evidence.exists() else self.root

    def file_at(self, path: str | Path) -> RemoteFile:
        """The segment that a path below the root stands for."""
        name = Path(path).relative_to(self.root).as_posix()
        found = _by_name(self.files).get(name)
        if found is None:
            raise RemoteStoreError(
                "there is no such segment",
                path=f"{self.url}/{name}",
                expected="one that was listed when the run was planned",
                next_step="Check the STORE argument and storePathCommitLog in broker.conf",
            )
        return found

    def names_in(self, directory: Path) -> list[str]:
        """The names of :meth:`files_in`."""
        return [file.name.rpartition("/")[2] for file in self.files_in(directory)]

    def files_in(self, directory: Path) -> list[RemoteFile]:
        """Those of :attr:`files` that lie in a directory below the root, by name."""
        prefix = f"{directory.relative_to(self.root).as_posix()}/"
        return sorted(
            file
            for file in self.files
            if file.name.startswith(prefix) and "/" not in file.name[len(prefix) :]
        )

    def read(self, path: str | Path, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a segment, as far as it goes."""
        file = self.file_at(path)
        stop = min(stop, file.size)
        return bytes(client_of(self.url).read(file, start, stop)) if start < stop else b""


def remote_store(path: str | Path) -> RemoteStore | None:
    """The store elsewhere that a local path stands for, or lies in; None for what is here."""
    text = os.fspath(path)
    for root, store in _known.items():
        if text.startswith(root) and text[len(root) : len(root) + 1] in ("", "/"):
            return store
    return None


def left_in(home: Path) -> RemoteStore:
    """The store that :meth:`RemoteStore.leave` was called for."""
    return _restored(*json.loads((home / MANIFEST).read_text(encoding="utf-8")))


def copying_mark(directory: Path) -> Path:
    """The file that is in a restored store while more copies of segments may come."""
    return directory / names.REPUT / "copying"


def await_copy(path: str | Path) -> None:
    """Wait until the copy of a segment is there; does nothing for a segment that isn't copied.

    Raises RemoteStoreError where it won't come; the run's own error says why.
    """
    store = remote_store(path)
    copy = None if store is None else store.copy_of(path)
    if store is None or store.copies is None or copy is None:
        return
    mark = copying_mark(store.copies)
    while not copy.exists():
        # The last copy gets its name before the mark goes.
        if not mark.exists() and not copy.exists():
            raise RemoteStoreError(
                "the segment was not copied",
                path=copy,
                found="copying has ended",
                next_step="Run the same command again",
            )
        time.sleep(_POLL_SECONDS)


def is_elsewhere(path: str | Path) -> bool:
    """Whether a local path stands for something elsewhere."""
    return remote_store(path) is not None


def known(root: Path) -> RemoteStore | None:
    """The store elsewhere that a directory stands for, made by this process or another on this host."""
    store = remote_store(root)
    is_made = root.name == STORE and root.parent.name.startswith(PREFIX)
    if store is None and is_made and (root.parent / MANIFEST).exists():
        store = left_in(root.parent)
    return store


def with_urls(text: str) -> str:
    """A text for people and programs, with URLs for the directories that stand for them."""
    for root, store in _known.items():
        text = text.replace(str(store.root.parent / EVIDENCE), store.url).replace(root, store.url)
    return text


_known: dict[str, RemoteStore] = {}
_clients: dict[tuple[int, str], client.Client] = {}


def has_clients() -> bool:
    """Whether something elsewhere was read: with the client's threads, which a fork doesn't copy."""
    return bool(_clients)


def client_of(url: str) -> client.Client:
    """This process's client of a store.

    Raises RemoteStoreError in a process that was forked from one that has read elsewhere. The clients'
    threads don't come along, so that it would wait forever.
    """
    pid = os.getpid()
    if any(owner != pid for owner, _ in _clients):
        raise RemoteStoreError(
            "a forked process can't read stores elsewhere after its parent did",
            path=url,
            next_step="Start the process anew (multiprocessing: spawn), or read before it is forked",
        )
    if (pid, url) not in _clients:
        _clients[pid, url] = client.client(url)
    return _clients[pid, url]


def _restored(
    url: str, root: str, files: Iterable[Iterable[Any]], copies: str | None, listed_at: float
) -> RemoteStore:
    found = tuple(RemoteFile(*one) for one in files)
    copied = None if copies is None else Path(copies)
    return RemoteStore(url, Path(root), found, copied, listed_at).register()


@lru_cache(maxsize=8)
def _by_name(files: tuple[RemoteFile, ...]) -> dict[str, RemoteFile]:
    return {file.name: file for file in files}


#: What a store's directory holds of queues and index, beside that directory.
LISTED = "derived.json"
#: Bytes that are fetched at least, and a multiple of.
BLOCK = 64 << 10
_MOST_STORES = 16


class KnownFile(NamedTuple):
    """A queue or index file as a verification knows it."""

    size: int  # size, pin: as :class:`reput.remote.client.RemoteFile`
    pin: str
    written: int  # bytes, from its first one on, behind which it holds zeros


class _Derived(NamedTuple):
    """Files of queues and index below a directory, as they were listed."""

    url: str  # of the store
    files: dict[str, RemoteFile]  # all, by name
    left_out: dict[str, int]  # those of which there is no copy, with :attr:`KnownFile.written`


def leave_out(home: Path, url: str, files: Iterable[RemoteFile], left_out: dict[str, int]) -> None:
    """Note beside a store's directory what was listed, and of what there is no copy."""
    facts = [url, [*map(tuple, files)], left_out]
    (home / LISTED).write_text(json.dumps(facts), encoding="utf-8")


def listed_below(home: Path) -> dict[str, RemoteFile]:
    """All files of queues and index that were listed for a store, by name; its directory is in ``home``."""
    derived = _derived(os.fspath(home))
    return {} if derived is None else derived.files


def listed_file(path: str | os.PathLike[str]) -> RemoteFile | None:
    """What a path of a queue or index file stands for elsewhere; None for one that is here."""
    place = _place(os.fspath(path))
    return None if place is None else place[1].files.get(place[2])


def is_left_out(path: str | os.PathLike[str]) -> bool:
    """Whether a file's content wasn't copied."""
    place = _place(os.fspath(path))
    return place is not None and place[2] in place[1].left_out


def have(path: str | os.PathLike[str], start: int = 0, stop: int | None = None) -> None:
    """Have bytes [start, stop) of a file here, to its end without ``stop``; a file here has all."""
    place = _place(os.fspath(path))
    if place is None or place[2] not in place[1].left_out:
        return
    home, derived, name = place
    file = derived.files[name]
    end = min(file.size if stop is None else stop, derived.left_out[name])
    with _lock:
        fetched = _fetched.setdefault(home, {}).setdefault(name, set())
        _fetched.move_to_end(home)
        while len(_fetched) > _MOST_STORES:
            _fetched.popitem(last=False)
    missing = [at for at in range(max(start, 0) // BLOCK, -(-end // BLOCK)) if at not in fetched]
    if not missing:
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for first, count in _stretches(missing):
            at = first * BLOCK
            data = client_of(derived.url).read(file, at, min(at + count * BLOCK, file.size))
            # Another process may do the same: it writes the same bytes.
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], at + written)
            fetched.update(range(first, first + count))
    finally:
        os.close(descriptor)


def may_lack(directory: str | os.PathLike[str]) -> bool:
    """Whether files below a directory may have been left out: for who reads many, and few bytes of each."""
    return "/" + PREFIX in os.fspath(directory)


def _stretches(blocks: list[int]) -> list[tuple[int, int]]:
    """(first, count) of consecutive blocks, of at most one request's bytes."""
    found: list[tuple[int, int]] = []
    for at in blocks:
        if found and at == sum(found[-1]) and found[-1][1] < RANGE // BLOCK:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((at, 1))
    return found


def _place(path: str) -> tuple[str, _Derived, str] | None:
    """The directory that a path lies in, what was listed there, and the file's name in the store."""
    # Known by its name: a task gets paths, and no store to register.
    at = path.find("/" + PREFIX)
    while at >= 0:
        end = path.find("/", at + 1)
        if end > 0 and path.startswith(f"{STORE}/", end + 1):
            derived = _derived(path[:end])
            if derived is not None:
                return path[:end], derived, path[end + len(STORE) + 2 :]
        at = path.find("/" + PREFIX, at + 1)
    return None


@lru_cache(maxsize=_MOST_STORES)
def _derived(home: str) -> _Derived | None:
    try:
        url, files, left_out = json.loads(Path(home, LISTED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return _Derived(url, {one[0]: RemoteFile(*one) for one in files}, left_out)


_lock = threading.Lock()
_fetched: OrderedDict[str, dict[str, set[int]]] = OrderedDict()
