"""The files of one queue, which have one size and follow one another: listed, and read at any place.

Nothing is mapped, for a broker may cut a file meanwhile.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path

from reput.format import names
from reput.format.names import Queue
from reput.store.listing import entries_in, names_seen
from reput.store.reading import looked_at, what_is
from reput.verify.report import QUEUE, Difference


def files_of(root: Path, topic: str, queue_id: int) -> set[int]:
    """The first bytes of a plain queue's files, by their names."""
    found = map(names.parse_offset_name, names_seen(names.queue_directory(root, topic, queue_id)))
    return {base for base in found if base is not None}


@dataclass(slots=True)
class SeriesListed:
    """The files of one size that follow one another in a directory."""

    #: (byte offset of its first byte, file), in order: those that have places
    files: list[tuple[int, Path]] = field(default_factory=list)
    problems: list[Difference] = field(default_factory=list)  # what is wrong with the others, and with these
    fitting: int = 0  # files of the right length


def series_files(
    directory: Path, queue: Queue, file_size: int, unit_length: int | None = None
) -> SeriesListed:
    """List the files of a queue."""
    result = SeriesListed()
    found = result.files

    def wrong(kind: str, path: str, expected: str, found: str, first: int = 0, end: int = 0) -> None:
        told = Difference(
            kind, path, QUEUE, expected, found, first=first, end=end, topic=queue[0], queue_id=queue[1]
        )
        result.problems.append(told)

    for entry in entries_in(directory):
        facts = looked_at(entry)
        if facts is None:
            continue
        if not stat.S_ISREG(facts.st_mode):
            wrong("queue-stray-directory", entry.path, "files only", what_is(facts.st_mode))
            continue
        base = names.parse_offset_name(entry.name)
        if base is None or base % file_size:
            expected = f"20 digits, a multiple of {file_size}"
            wrong("queue-file-name", entry.path, expected, entry.name)
            continue
        per_file = 0 if unit_length is None else file_size // unit_length
        first = base // file_size * per_file
        if facts.st_size != file_size:
            whole = 0 if unit_length is None else min(facts.st_size // unit_length, per_file)
            wrong(
                "queue-file-length",
                entry.path,
                f"{file_size} bytes",
                f"{facts.st_size} bytes",
                first + whole,
                first + per_file,
            )
        else:
            result.fitting += 1
        if found and base > found[-1][0] + file_size:
            missing = found[-1][0] + file_size
            wrong(
                "queue-file-missing",
                str(directory / names.offset_name(missing)),
                f"file {names.offset_name(missing)}",
                f"{entry.name} after {names.offset_name(found[-1][0])}",
                missing // file_size * per_file,
                first,
            )
        found.append((base, Path(entry.path)))
    return result
