"""Spark's own checkpoint of a stream, and whether a stream can resume from it.

Spark doesn't flush it, so a power loss may leave it empty, torn or behind, and an empty file in it stops a
query for good. It decides nothing: the journal's cursor does. A checkpoint that can't be used is set aside.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from reput.store import files

_OFFSETS, _COMMITS, _METADATA = "offsets", "commits", "metadata"
_ASIDE = ".aside"
#: Errors that reading and parsing a file raises that Spark didn't write this way.
_UNLIKE = (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Planned:
    """The last batch that a stream planned.

    Attributes:
        batch_id: its number.
        end: the physical offset that it was to reach.
    """

    batch_id: int
    end: int


def last_planned(checkpoint: Path) -> Planned | None:
    """The last batch that a checkpoint says was planned.

    Returns:
        None if a file that Spark would read is missing, torn or not as Spark 4.2 writes it.
    """
    try:
        json.loads((checkpoint / _METADATA).read_bytes())["id"]
        offsets, commits = _numbered(checkpoint / _OFFSETS), _numbered(checkpoint / _COMMITS)
        if not offsets or offsets[-1] - (commits[-1] if commits else -1) not in (0, 1):
            return None
        # At its start a query reads the newest two of either.
        ends = [_end(checkpoint / _OFFSETS / str(number)) for number in offsets[-2:]]
        for number in commits[-2:]:
            version, _, facts = (checkpoint / _COMMITS / str(number)).read_text().partition("\n")
            _is_version(version)
            json.loads(facts)
        return Planned(offsets[-1], ends[-1])
    except _UNLIKE:
        return None


def planned_end(checkpoint: Path, batch_id: int) -> int | None:
    """The physical offset that a planned batch is to reach; None where that can't be read."""
    try:
        return _end(checkpoint / _OFFSETS / str(batch_id))
    except _UNLIKE:
        return None


def set_aside(checkpoint: Path) -> None:
    """Make room for a new checkpoint; one that was set aside before is removed."""
    if not checkpoint.exists():
        return
    aside = checkpoint.with_name(checkpoint.name + _ASIDE)
    files.remove_tree(aside)
    files.rename(checkpoint, aside)


def _numbered(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def _end(path: Path) -> int:
    """The end offset of a planned batch: version, the batch's metadata, one line for our one source."""
    version, facts, source = path.read_text().split("\n")
    _is_version(version)
    json.loads(facts)
    return int(json.loads(source)["offset"])


def _is_version(line: str) -> None:
    if line not in ("v1", "v2"):
        raise ValueError(line)
