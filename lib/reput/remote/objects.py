"""Objects that reput writes: a table's files, and the note of who writes a broker's messages there.

Credentials, tries and what is said of failures are as for what is only read: see :mod:`reput.remote.client`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

from reput.errors import UnsupportedError
from reput.remote.client import object_store, tried

_AT_ONCE = 1000  # keys of one request that deletes


class Found(NamedTuple):
    """An object's bytes, by what a later version of it is told from this one, and its age.

    ``written_at`` is by the server's clock, in seconds since 1970.
    """

    data: bytes
    version: Any
    written_at: float


class Objects:
    """Objects below a URL, by obstore and what the environment says."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = object_store(url)
        self._minds_conditions = False

    def put(self, name: str, data: Any) -> None:
        """Write an object; on return it is there."""
        import obstore

        tried(self._place(name), lambda: obstore.put(self._store, name, data), "written")

    def get(self, name: str) -> Found | None:
        """An object; None if there is none."""
        import obstore

        def got() -> Found | None:
            try:
                result = obstore.get(self._store, name)
            except FileNotFoundError:
                return None
            written_at = result.meta["last_modified"].timestamp()
            return Found(bytes(result.bytes()), _version(result.meta), written_at)

        return tried(self._place(name), got)

    def swap(self, name: str, data: bytes, expected: Any) -> Any:
        """Write an object if it still is the expected version; the new version, or None if it isn't.

        After a failure of the network None may be the answer although the object was written. ``expected`` is
        that of :class:`Found`, or what this has returned; None for an object that isn't there yet.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def swapped() -> Any:
            mode: Any = "create" if expected is None else expected
            try:
                return _version(obstore.put(self._store, name, data, mode=mode, use_multipart=False))
            except (AlreadyExistsError, PreconditionError):
                return None
            except FileNotFoundError:
                if expected is None:
                    raise  # there is no such bucket
                return None

        return tried(self._place(name), swapped, "written")

    def check_conditions(self, name: str, version: Any) -> None:
        """See that the server minds conditions, without which two writers undo each other's commits.

        Once is enough for a process, and not more than Google takes writes of one object in a second. It is
        tried on an object that is there, and that nobody needs. UnsupportedError where it doesn't.
        """
        if self._minds_conditions:
            return
        # Google's is told by its generation, a number; where there are both, S3 and Azure compare the ETag.
        other = {name: "1" if name == "version" else f'"{secrets.token_hex(16)}"' for name in version}
        for expected in (None, other):
            if self.swap(name, b"", expected) is not None:
                raise UnsupportedError(
                    "the server writes an object although a condition forbids it",
                    path=self._place(name),
                    expected="writes with If-None-Match and If-Match, as S3 has them since the end of 2024",
                    found="If-None-Match is ignored" if expected is None else "If-Match is ignored",
                    next_step="Take a server that has them, or a table in a local directory",
                )
        self._minds_conditions = True

    def names(self, prefix: str) -> list[tuple[str, int]]:
        """The names and sizes of objects whose names begin with the directories ``prefix``."""
        import obstore

        def listed() -> list[tuple[str, int]]:
            return [
                (entry["path"], entry["size"])
                for entries in obstore.list(self._store, prefix or None)
                for entry in entries
            ]

        return tried(self._place(prefix), listed)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that aren't there count as removed."""
        import obstore

        left = list(names)
        while left:
            some, left = left[:_AT_ONCE], left[_AT_ONCE:]

            def removed(some: list[str] = some) -> None:
                try:
                    obstore.delete(self._store, some)
                except FileNotFoundError:
                    for name in some:
                        try:
                            obstore.delete(self._store, name)
                        except FileNotFoundError:
                            continue

            tried(self._place(some[0]), removed, "removed")

    def _place(self, name: str) -> str:
        return f"{self.url}/{name}"


def _version(meta: Any) -> Any:
    named = {"e_tag": meta["e_tag"], "version": meta.get("version")}
    return {name: value for name, value in named.items() if value is not None}


_clients: dict[tuple[int, str], Objects] = {}


def objects(url: str) -> Objects:
    """This process's client for what lies below a URL."""
    key = os.getpid(), url
    if key not in _clients:
        _clients[key] = Objects(url)
    return _clients[key]
