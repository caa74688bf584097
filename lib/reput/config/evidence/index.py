"""What index files say: how many slots and entries they were made with, and whether they hold tags.

The length alone gives 40 + 4 x slots + 20 x entries, which many pairs fit. A full file's header says how many
entries (``IndexFile.isWriteFull``); in others the last entry is looked for. Either way the pair only counts
when the entries and the slots that lead to them stand where it says.

Tags are told from the entries of one message, which lie together: those of its keys alone before 5.4, one
more for its tags from 5.4 on (``IndexService.buildIndex``). The whole row is compared, so that no key that
looks like a tag's counts for one.
"""

from __future__ import annotations

import os
import stat
import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from reput.config.evidence.files import LogRecords, Sizes
from reput.format import indexfile, names
from reput.format.indexfile import ENTRY_LENGTH, FIRST_ORDINAL, HEADER_LENGTH, SLOT_LENGTH, IndexHeader
from reput.remote.store import is_left_out
from reput.store.listing import names_in
from reput.store.reading import extents, pread, reading

_File = TypeVar("_File")

WHAT = "index file"
SETTINGS = ("maxHashSlotNum", "maxIndexNum")
UNITS = ("slots", "entries")
_DEFAULT = (5_000_000, 20_000_000)

#: Files whose size is looked at, of the newest; those whose entries are.
_MOST_FILES, _MOST_TAG_FILES = 8, 4
#: Entries at the end of a file, messages among them, and messages that settle it.
_WINDOW, _MOST_MESSAGES, _ENOUGH = 2_000, 64, 8
#: Places where the last entry may stand, and entries that are tried for a pair.
_MOST_PLACES, _TRIED = 1_000, 16
#: Bytes that are searched for it.
_MOST_READ, _CHUNK = 64 << 20, 1 << 20
_ENTRY = struct.Struct(">iqii")


@dataclass(frozen=True, slots=True)
class Tags:
    """What some messages of one index file show."""

    file: str  # its name
    #: with_tags, without: messages with tags that have an entry for them, and that have only their
    #: keys'
    with_tags: int
    without: int
    long_topics: int  # messages of version 2
    v6_hosts: int  # messages with a host of 16 bytes

    @property
    def has_tags(self) -> bool | None:
        """Whether the index holds tags; None where no message tells."""
        return True if self.with_tags else False if self.without else None


@dataclass(frozen=True, slots=True)
class IndexEvidence:
    """What a store's index files show."""

    sizes: Sizes  # slots and entries
    newest: Tags | None = None  # tags in the newest file that tells; None where none does
    oldest: Tags | None = None  # those in the oldest file, where it differs
    #: the first file that tells, and whether its hashSlotCount counts keys, not slots
    counts_keys: tuple[str, bool] | None = None
    unread: tuple[str, ...] = ()  # what couldn't be read


def index_files(root: Path, log: LogRecords) -> IndexEvidence:
    """Look at a store's index files; never raises."""
    directory, unread = root / names.INDEX, []
    found: list[str] = []
    try:
        found = [name for name in names_in(directory) if names.is_index_name(name)]
    except OSError as error:
        unread.append(f"index/ can't be read: {error.strerror or error}")
    counts: Counter[tuple[int, int]] = Counter()
    lengths: Counter[int] = Counter()
    looked: list[tuple[str, int]] = []
    worth = telling(found)
    for name in reversed(found[-_MOST_FILES:]):
        if name not in worth and is_left_out(directory / name):
            length = (directory / name).stat().st_size
            looked.append((name, length))
            lengths[length] += 1
            continue
        try:
            length, pair = _size_of(directory / name, has_successor=name != found[-1])
        except (OSError, ValueError, OverflowError, struct.error) as error:
            unread.append(f"index/{name} can't be read: {getattr(error, 'strerror', None) or error}")
            continue
        looked.append((name, length))
        if pair is not None:
            counts[pair] += 1
        elif length > HEADER_LENGTH:
            lengths[length] += 1
    # What is empty, or too damaged to tell by itself, says what its length fits.
    for length, files in lengths.items():
        fitting = [pair for pair in counts if indexfile.file_length(*pair) == length]
        if len(fitting) == 1:
            counts[fitting[0]] += files
    sizes = _sizes(counts, lengths, len(looked))
    newest = oldest = counts_keys = None
    if log and sizes.shown is not None:
        slots, most = sizes.shown
        length = indexfile.file_length(slots, most)
        whole = [name for name, size in looked if size == length]
        counting = ((name, _counts_keys(directory / name, slots)) for name in whole[:_MOST_TAG_FILES])
        counts_keys = next(((name, found) for name, found in counting if found is not None), None)
        told = (
            _tags(directory / name, slots, first=name == found[0], log=log)
            for name in whole[:_MOST_TAG_FILES]
        )
        newest = next((one for one in told if one is not None and one.has_tags is not None), None)
        if newest is not None and found[0] != newest.file:
            oldest = _tags(directory / found[0], slots, first=True, log=log)
            if oldest is not None and oldest.has_tags in (None, newest.has_tags):
                oldest = None
    return IndexEvidence(sizes, newest, oldest, counts_keys, tuple(unread))


def telling(files: Sequence[_File]) -> list[_File]:
    """Of a store's index files, in order, those that are worth being copied so that they tell.

    The newest may just have been begun; the oldest may be of another release. Of the others lengths count.
    """
    return list(dict.fromkeys([*files[:1], *files[-2:]]))


def _sizes(counts: Counter[tuple[int, int]], lengths: Counter[int], files: int) -> Sizes:
    seen: tuple[tuple[tuple[int, ...], int], ...] = tuple(counts.most_common())
    if seen or not lengths:
        return Sizes(WHAT, SETTINGS, UNITS, seen, files)
    length, count = lengths.most_common(1)[0]
    total = (length - HEADER_LENGTH) // SLOT_LENGTH  # slots + 5 x entries
    if (length - HEADER_LENGTH) % SLOT_LENGTH or total < 11:
        unclear = f"{WHAT}s of {length:,} bytes ({count:,} of {files:,}): no index file is so long"
        return Sizes(WHAT, SETTINGS, UNITS, (), files, unclear, length=length)
    # No entry, or none in its place. The default's own length is the default's, others fit many pairs.
    if length == indexfile.file_length(*_DEFAULT):
        return Sizes(WHAT, SETTINGS, UNITS, ((_DEFAULT, count),), files)
    entries = max(2, total * 4 // 21)
    unclear = (
        f"{WHAT}s of {length:,} bytes ({count:,} of {files:,}) without an entry that tells how many "
        "slots and entries they were made with"
    )
    return Sizes(
        WHAT, SETTINGS, UNITS, (), files, unclear, near=(total - 5 * entries, entries), length=length
    )


def _size_of(path: Path, *, has_successor: bool) -> tuple[int, tuple[int, int] | None]:
    """Bytes of an index file, and its slots and entries where they can be told.

    Raises OSError, ValueError or struct.error where it can't be read.
    """
    with reading(path, by_ranges=True) as descriptor:
        facts = os.fstat(descriptor)
        length = facts.st_size
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError("no file")
        if length <= HEADER_LENGTH:
            return length, None
        header = IndexHeader.decode(pread(path, descriptor, HEADER_LENGTH, 0))
        return length, _OpenIndex(path, descriptor, length, header).pair(is_full=has_successor)


@dataclass(frozen=True, slots=True)
class _OpenIndex:
    """An open index file. It is read, not mapped: who cuts it meanwhile must not end this process."""

    path: Path
    descriptor: int
    length: int
    header: IndexHeader

    def pair(self, *, is_full: bool) -> tuple[int, int] | None:
        """Slots and entries; None where no pair, or more than one, can be told.

        ``is_full``: there is a file behind it, so that it has as many entries as it can have.
        """
        count, rest = self.header.index_count, self.length - HEADER_LENGTH
        if count <= FIRST_ORDINAL or rest % SLOT_LENGTH:
            return None
        total = rest // SLOT_LENGTH  # slots + 5 x entries
        if is_full and self._fits(total - 5 * count, count):
            return total - 5 * count, count
        if self.length == indexfile.file_length(*_DEFAULT) and self._fits(*_DEFAULT):
            return _DEFAULT
        found = set()
        for at in self._places_of_last():
            slots, odd = divmod(at - HEADER_LENGTH - (count - 1) * ENTRY_LENGTH, SLOT_LENGTH)
            entries, left = divmod(total - slots, 5)
            if not odd and not left and self._fits(slots, entries):
                found.add((slots, entries))
        return found.pop() if len(found) == 1 else None

    def _places_of_last(self) -> Iterator[int]:
        """Where an entry may stand that leads to the file's last message, as far as that is looked for."""
        wanted = struct.pack(">q", self.header.end_physical_offset)
        places, read = 0, 0
        # What stands for a file that was left out has holes where nothing was fetched yet.
        lacks = is_left_out(self.path)
        ranges = extents(self.descriptor, HEADER_LENGTH, self.length)
        for start, end in [(HEADER_LENGTH, self.length)] if lacks else ranges:
            for begin in range(start, end, _CHUNK):
                data = self._read(min(_CHUNK, end - begin) + len(wanted) - 1, begin)
                read += len(data) if not lacks or data.count(0) < len(data) else 0
                at = data.find(wanted)
                while at >= 0:
                    yield begin + at - indexfile.PHYSICAL_OFFSET
                    places += 1
                    at = data.find(wanted, at + 1)
                    if places >= _MOST_PLACES:
                        return
                if read >= _MOST_READ:
                    return

    def _fits(self, slots: int, entries: int) -> bool:
        """Whether first and last entry, and the slots of some, stand where this pair puts them."""
        count = self.header.index_count
        if slots < 1 or entries < max(count, 2) or indexfile.file_length(slots, entries) != self.length:
            return False
        step = max(1, (count - 1) // _TRIED)
        expected = {FIRST_ORDINAL: self.header.begin_physical_offset}
        expected[count - 1] = self.header.end_physical_offset
        if count - 1 == FIRST_ORDINAL and len(set(expected.values())) > 1:
            return False
        for ordinal in sorted({*expected, *range(FIRST_ORDINAL, count, step)}):
            at = indexfile.file_length(slots, ordinal)
            key_hash, place, _, before = _ENTRY.unpack(self._read(ENTRY_LENGTH, at))
            if key_hash < 0 or not 0 <= before < ordinal or place != expected.get(ordinal, place):
                return False
            slot = HEADER_LENGTH + key_hash % slots * SLOT_LENGTH
            (newest,) = struct.unpack(">i", self._read(SLOT_LENGTH, slot))
            if not ordinal <= newest < entries:
                return False
        return True

    def _read(self, length: int, at: int) -> bytes:
        return pread(self.path, self.descriptor, length, at)


def _tags(path: Path, slots: int, *, first: bool, log: LogRecords) -> Tags | None:
    """What the last messages of an index file show; None where it can't be read.

    ``first``: it is the store's oldest, so that its first message has all its entries here.
    """
    try:
        with reading(path, by_ranges=True) as descriptor:
            count = IndexHeader.decode(pread(path, descriptor, HEADER_LENGTH, 0)).index_count
            begin = max(FIRST_ORDINAL, count - _WINDOW)
            at = indexfile.file_length(slots, begin)
            data = pread(path, descriptor, max(count - begin, 0) * ENTRY_LENGTH, at)
        entries = [
            entry[:2] for entry in _ENTRY.iter_unpack(data[: len(data) // ENTRY_LENGTH * ENTRY_LENGTH])
        ]
    except (OSError, OverflowError, struct.error):
        return None
    rows = [
        (place, [key for key, _ in group]) for place, group in groupby(entries, key=lambda entry: entry[1])
    ]
    # The others of its entries may stand in the file before this one, or behind; or aren't written yet.
    if not (first and begin == FIRST_ORDINAL):
        rows = rows[1:]
    with_tags = without = long_topics = v6_hosts = 0
    last = len(rows) - 1
    for number in range(last, max(last - _MOST_MESSAGES, -1), -1):
        place, hashes = rows[number]
        record = log.at(place)
        if record is None:
            continue
        long_topics += record.version > 1
        v6_hosts += record.has_v6
        keys, tag = record.keys(), record.tag()
        if tag is None or tag in keys:
            continue
        with_tags += hashes == [*keys, tag]
        # The last row may lack its last entry, which is that of the tags.
        without += hashes == keys and number != last
        if with_tags + without >= _ENOUGH:
            break
    return Tags(path.name, with_tags, without, long_topics, v6_hosts)


def _counts_keys(path: Path, slots: int) -> bool | None:
    """Whether a file's hashSlotCount is the number of its keys, and not that of the slots they are in.

    None where the two don't differ, and where the file can't be read.
    """
    try:
        with reading(path, by_ranges=True) as descriptor:
            header = IndexHeader.decode(pread(path, descriptor, HEADER_LENGTH, 0))
            keys, used = header.index_count - FIRST_ORDINAL, 0
            if 0 < header.slot_count < keys:
                return False
            for start, end in extents(descriptor, HEADER_LENGTH, HEADER_LENGTH + slots * SLOT_LENGTH):
                words = array("i", pread(path, descriptor, (end - start) // SLOT_LENGTH * SLOT_LENGTH, start))
                used += len(words) - words.count(0)
    except (OSError, OverflowError, ValueError, struct.error):
        return None
    return True if keys == header.slot_count > used else None
