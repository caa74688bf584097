"""The ranges of a log that a table lacks, in a file beside its own.

A commit has the file's number as the version of a transaction, and the number is made from what is in the
file: it holds what that commit says, or the commit was never made. A transaction for each range won't do: to
tell the version of one, deltalake reads the table's log anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.errors import OutputError
from reput.remote.client import objects
from reput.store import files

#: Half-open ranges of physical offsets, in log order; none lies over another one.
Ranges = tuple[tuple[int, int], ...]
#: VACUUM passes over what begins with ``_``.
_DIRECTORY = "_reput"


def before_offset(ranges: Ranges, offset: int) -> Ranges:
    """What of some ranges lies before a physical offset."""
    return tuple((start, min(end, offset)) for start, end in ranges if start < offset)


@dataclass(frozen=True, slots=True)
class LackingFiles:
    """Such files of one store's messages."""

    table: Path  # the table's directory
    url: str | None  # of a table in an object store; None for one in a directory
    store: str  # in the files' names: whose they are

    def read(self, number: int) -> Ranges:
        """What the file with a number holds; 0 is that of no ranges. Raises OutputError where it is gone."""
        if not number:
            return ()
        name = self._name(number)
        if self.url is None:
            try:
                data = (self.table / name).read_bytes()
            except FileNotFoundError:
                data = b""
        else:
            found = objects(self.url).get(name)
            data = b"" if found is None else found.data
        if _number(data) != number:
            raise OutputError(
                "the file that says what the table lacks of the log isn't what it was",
                path=f"{self.url or self.table}/{name}",
                expected="the ranges that the table's last commit left",
                found="other bytes" if data else "no file",
                next_step="Copy it from where the table was copied from, or begin another table",
            )
        return tuple((start, end) for start, end in json.loads(data))

    def write(self, ranges: Ranges) -> int:
        """Write a file with some ranges, on disk on return; its number."""
        if not ranges:
            return 0
        data = json.dumps(ranges).encode()
        name = self._name(_number(data))
        if self.url is None:
            files.make_dirs((self.table / name).parent)
            files.write_atomically(self.table / name, data)
        else:
            objects(self.url).put(name, data)
        return _number(data)

    def names(self) -> list[str]:
        """Those that there are."""
        return list(self._names())

    def clean(self, found: Iterable[str], number: int) -> None:
        """Remove those of some files that haven't a number."""
        kept = self._name(number)
        names = [name for name in found if name != kept]
        if self.url is None:
            files.remove_files(self.table / name for name in names)
        else:
            objects(self.url).remove(names)

    def _names(self) -> Iterator[str]:
        if self.url is None:
            for path in (self.table / _DIRECTORY).glob(f"{self.store}-*.json"):
                yield str(path.relative_to(self.table))
        else:
            for name, _ in objects(self.url).names(_DIRECTORY):
                if name.startswith(f"{_DIRECTORY}/{self.store}-"):
                    yield name

    def _name(self, number: int) -> str:
        return f"{_DIRECTORY}/{self.store}-{number:016x}.json"


def _number(data: bytes) -> int:
    """Never 0, and a version that Delta can have."""
    return int.from_bytes(hashlib.sha256(data).digest()[:7], "big") | 1 << 56
