"""Queue and index files elsewhere that weren't copied, for what they hold was proven before.

A file of the same length stands for each, without content: whoever reads such a file first calls
:func:`have`, which brings what it is going to read, from the very object that was listed. What was never
written, behind a queue's last unit, stays a hole.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from reput.remote.client import RANGE, RemoteFile
from reput.remote.store import PREFIX, STORE, client_of

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


def leave(home: Path, url: str, files: Iterable[RemoteFile], left_out: dict[str, int]) -> None:
    """Note beside a store's directory what was listed, and of what there is no copy."""
    facts = [url, [*map(tuple, files)], left_out]
    (home / LISTED).write_text(json.dumps(facts), encoding="utf-8")


def listed_below(home: Path) -> dict[str, RemoteFile]:
    """All files of queues and index that were listed for a store, by name.

    Args:
        home: the directory that its own lies in.
    """
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
    """Have bytes [start, stop) of a file here, to its end without ``stop``; a file here has all.

    Raises:
        RemoteStoreError: they can't be read, or the file isn't what was listed.
    """
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
