"""What was asked of stores elsewhere, and how much came, by URL; of a run's tasks, too."""

from __future__ import annotations

import threading
from typing import NamedTuple


class Spent(NamedTuple):
    """What a store's server was asked."""

    requests: int = 0  # each try of each; a listing counts as one for each :data:`LISTED` names
    fetched: int = 0  # bytes of files that came

    def __add__(self, other: tuple[int, ...]) -> Spent:  # type: ignore[override]
        """The sum of both."""
        return Spent(self.requests + other[0], self.fetched + other[1])


#: Names in one answer of S3's ListObjectsV2, at most.
LISTED = 1000

_lock = threading.Lock()
_spent: dict[str, Spent] = {}


def count(url: str, requests: int = 1, fetched: int = 0) -> None:
    """Note what was asked of a store."""
    add({url: Spent(requests, fetched)})


def add(found: dict[str, Spent]) -> None:
    """Note what a task had noted."""
    with _lock:
        for url, more in found.items():
            _spent[url] = _spent.get(url, Spent()) + more


def taken() -> dict[str, Spent]:
    """What was noted in this process, which forgets it: it goes with a task's result to who adds it there."""
    with _lock:
        found = dict(_spent)
        _spent.clear()
    return found


def begin(url: str) -> None:
    """Forget what was asked of a store by an earlier run."""
    with _lock:
        _spent.pop(url, None)


def total(url: str) -> Spent:
    """What this process and finished tasks have asked of a store since :func:`begin`."""
    with _lock:
        return _spent.get(url, Spent())
