"""What the lengths of a store's files say of the settings that they were made with.

A broker preallocates every file (``MappedFile.init``, rocketmq-all-4.9.7; ``DefaultMappedFile.init``, 5.3.3),
the last of a queue, too: its length is the setting. One that is cut short or grown says nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from reput.format import indexfile, names
from reput.store.listing import names_in

#: Files that are looked at, of one kind; files of one queue; names in one directory.
_MOST_FILES, _MOST_OF_QUEUE, _MOST_NAMES = 500, 8, 100_000
_INT_MAX = 2**31 - 1
#: One file in so many may be damaged without making the rest doubtful.
_ODD_ONE_IN = 10


@dataclass(frozen=True, slots=True)
class Sizes:
    """What one kind of file says of the settings that decide its length."""

    what: str  # the files, in words
    settings: tuple[str, ...]  # the names of the settings, as broker.conf has them
    units: tuple[str, ...]  # what each of them counts
    #: how many files show which values, the most frequent first
    counts: tuple[tuple[tuple[int, ...], int], ...] = ()
    looked_at: int = 0  # files that were looked at
    #: why no values can be told though there are files; None where they can, or there are none
    unclear: str | None = None
    #: values that fit the files' length where they can't be told; good for reading only
    near: tuple[int, ...] | None = None
    length: int | None = None  # that length, in bytes

    @property
    def shown(self) -> tuple[int, ...] | None:
        """The values; None where the files show none, or several."""
        if not self.counts or self.unclear is not None:
            return None
        values, files = self.counts[0]
        odd = self.looked_at - files
        return values if not odd or (files > 1 and odd <= max(1, self.looked_at // _ODD_ONE_IN)) else None

    @property
    def is_mixed(self) -> bool:
        """Whether there are files, and they don't agree or don't tell."""
        return self.looked_at > 0 and self.shown is None

    @staticmethod
    def bytes_of(values: tuple[int, ...]) -> int:
        """Bytes of a file: one value is its length, two are an index file's slots and entries."""
        return values[0] if len(values) == 1 else indexfile.file_length(*values)

    def of(self, values: tuple[int, ...]) -> str:
        """Values in words: ``2,000 bytes``."""
        return " and ".join(f"{value:,} {unit}" for value, unit in zip(values, self.units, strict=True))

    def __str__(self) -> str:
        """``queue files of 2,000 bytes: 91 of 91``."""
        if not self.looked_at:
            return f"no {self.what}"
        if self.unclear is not None:
            return self.unclear
        if self.shown is not None:
            return f"{self.what}s of {self.of(self.shown)}: {self.counts[0][1]:,} of {self.looked_at:,}"
        if not self.counts:
            return f"{self.what}s: none of {self.looked_at:,} tells its size"
        several = ", ".join(f"{self.of(values)} ({files:,})" for values, files in self.counts[:3])
        return f"{self.what}s don't agree: {several} of {self.looked_at:,}"


def queue_files(root: Path, directory: str, what: str, setting: str, unit: int) -> tuple[Sizes, str | None]:
    """What the files of queues show, and what couldn't be read.

    Args:
        root: the store.
        directory: one of :data:`reput.format.names.QUEUES`.
        what: such a file, in words.
        setting: what decides their length.
        unit: bytes that the length is a multiple of.
    """
    counts: Counter[int] = Counter()
    looked_at, unread = 0, None
    try:
        for base, length in islice(_files(root / directory), _MOST_FILES):
            looked_at += 1
            if 0 < length <= _INT_MAX and not length % unit and not base % length:
                counts[length] += 1
    except OSError as error:
        unread = f"{directory}/ can't be read: {error.strerror or error}"
    seen = tuple(((length,), files_of) for length, files_of in counts.most_common())
    return Sizes(what, (setting,), ("bytes",), seen, looked_at), unread


def _files(directory: Path) -> Iterator[tuple[int, int]]:
    """Base and length of files of queues, a queue of each topic first, so that a few speak for all.

    Raises:
        OSError: a directory can't be read.
    """
    waiting = [_of_topic(directory / topic) for topic in names_in(directory, _MOST_NAMES)]
    while waiting:
        left = []
        for queue in waiting:
            found = next(queue, None)
            if found is not None:
                yield from found
                left.append(queue)
        waiting = left


def _of_topic(topic: Path) -> Iterator[list[tuple[int, int]]]:
    for queue in names_in(topic, _MOST_NAMES):
        if names.is_queue_id(queue):
            yield list(islice(_of_queue(topic / queue), _MOST_OF_QUEUE))


def _of_queue(queue: Path) -> Iterator[tuple[int, int]]:
    for name in names_in(queue, _MOST_NAMES):
        base = names.parse_offset_name(name)
        if base is None:
            continue
        try:
            facts = (queue / name).stat()
        except FileNotFoundError:
            continue  # expired just now
        yield base, facts.st_size
