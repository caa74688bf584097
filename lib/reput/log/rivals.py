"""Two files for one place of a commit log: which of them is the log's, as far as their bytes tell.

A broker maps whatever it lists, in the order of names, and takes a name for any number that
``Long.parseLong`` reads (``MappedFileQueue.load``, ``DefaultMappedFile``, rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reput.format import names
from reput.remote import remote_store

#: The file of two for one place that can go: the other one is the log's.
SECOND_FILE = "second-file"
#: Of two files for one place it can't be told which one is the log's, or the wrong one has the name.
RIVAL_FILE = "rival-file"
#: A file alone in its place, with another name than a broker gives.
ODD_NAME = "odd-name"
#: Files that a start takes for what they aren't: what it then cuts is there.
MISTAKEN = frozenset({SECOND_FILE, RIVAL_FILE, ODD_NAME})


@dataclass(frozen=True, slots=True)
class Choice:
    """What is known of two files for one place."""

    kind: str  # ``second-file`` or ``rival-file``
    #: stays, goes: the two; of ``rival-file`` either may be the log's, unless ``found`` says which one
    #: is
    stays: Path
    goes: Path
    found: str  # what was found
    next_step: str  # what the operator can do


def is_odd(path: Path, base: int) -> bool:
    """Whether a broker would give the file of this place another name."""
    return path.name != names.offset_name(base)


def choose(one: Path, other: Path, base: int, *, topic_length_v2: bool, entries: bool = False) -> Choice:
    """Compare two files for one place; the whole of both may be read.

    Where both hold the same, ``one`` stays. ``base`` is that place's physical offset.
    """
    from reput.log.segments import map_segment  # it asks for this module
    from reput.log.walk_kernel import walk

    first, second = (map_segment(path, _length(path)) for path in (one, other))
    length = min(len(first), len(second))
    if len(first) == len(second) and (first == second).all():
        return Choice(SECOND_FILE, one, other, f"also {one}, with the same bytes", _away(other))
    ends = [
        walk(data, base, 0, 0, topic_length_v2, 0, len(data), entries).position for data in (first, second)
    ]
    differs = next(
        (
            at + int((first[at:end] != second[at:end]).argmax())
            for at, end in _pieces(length)
            if (first[at:end] != second[at:end]).any()
        ),
        length,
    )
    stays, goes = (one, other) if ends[0] >= ends[1] else (other, one)
    found = (
        f"also {stays}; the two differ from byte {differs} on; messages that stand where they say fill the "
        f"first {ends[0]} bytes of {one.name} and {ends[1]} of {other.name}"
    )
    if differs < min(ends) or not max(ends):
        step = "Ask who put one there, and keep a copy of both: move away the one that isn't the log's."
        return Choice(RIVAL_FILE, one, other, found, step)
    if is_odd(stays, base) and stays.parent == goes.parent:
        step = f"Move {goes} elsewhere, then name {stays.name} {goes.name}: it has what is the log's."
        return Choice(RIVAL_FILE, stays, goes, found, step)
    return Choice(SECOND_FILE, stays, goes, found, _away(goes))


def _length(path: Path) -> int:
    elsewhere = remote_store(path)
    return path.stat().st_size if elsewhere is None else elsewhere.file_at(path).size


def _away(path: Path) -> str:
    return f"Move {path} elsewhere: the log has its messages in the other one."


def _pieces(length: int) -> list[tuple[int, int]]:
    return [(at, min(at + (8 << 20), length)) for at in range(0, length, 8 << 20)]
