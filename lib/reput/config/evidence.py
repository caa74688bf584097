"""What a store shows of the settings and of the release that it was written with.

Only what lies in the store counts: lengths of files, headers, a bounded sample of index entries and of the
records that they lead to. Nothing here raises but where it says so: what can't be read is no evidence.

A broker preallocates every file (``MappedFile.init``, rocketmq-all-4.9.7; ``DefaultMappedFile.init``, 5.3.3),
the last of a queue, too: its length is the setting. One that is cut short or grown says nothing of it.

A unit's tagsCode that low is an address in consumequeue_ext (``ConsumeQueueExt.isExtAddr``), and nothing
else is that small. A unit that leads to a message of another topic is that of a light queue, if the message
names the queue (``ConsumeQueue.multiDispatchLmqQueue``, 4.9.7; ``MultiDispatchUtils``, 5.3.3): a topic's name
alone proves nothing, for a producer may send to one that is named so.
"""

from __future__ import annotations

import os
import stat
import struct
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import TypeVar

from reput.format import commitlog, consumequeueext, indexfile, javastring, names, properties
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import ENTRY_LENGTH, FIRST_ORDINAL, HEADER_LENGTH, SLOT_LENGTH, IndexHeader
from reput.remote import remote_store
from reput.remote.store import is_left_out
from reput.store.listing import names_in, names_seen
from reput.store.reading import extents, pread, reading

#: The fixed fields with two hosts of 20 bytes, and what may follow a body.
_HEAD = commitlog.BORN_HOST + 2 * commitlog.HOST_V6_LENGTH + 8 + commitlog.BODY_AFTER_STORE_HOST
_MOST_BEHIND_BODY = 2 + 0x7FFF + 2 + 0xFFFF


@dataclass(frozen=True, slots=True)
class LogRecord:
    """What is known of a record."""

    topic: bytes  # its bytes
    queue_id: int  # its queue's
    properties: dict[bytes, bytes]  # the last of a repeated name wins
    version: int  # 1 or 2, by the magic
    has_v6: bool  # one of its hosts has 16 bytes

    def keys(self) -> list[int]:
        """What every release indexes of it, in the index's order (``IndexService.buildIndex``)."""
        found = self.properties
        texts = [found[properties.UNIQ_KEY]] if properties.UNIQ_KEY in found else []
        texts += [key for key in found.get(properties.KEYS, b"").split(b" ") if key]
        return [_hash(self.topic, text) for text in texts]

    def tag(self) -> int | None:
        """What releases from 5.4 on index of it, too; None without tags."""
        tags = self.properties.get(properties.TAGS)
        return None if tags is None else _hash(self.topic, b"T#" + tags)


class LogRecords:
    """The segments of a log, for a look at a few records; a directory that can't be read has none."""

    def __init__(self, directories: Iterable[Path]) -> None:
        found = [
            (names.parse_offset_name(name), directory / name)
            for directory in directories
            for name in _names_in(directory)
        ]
        self._segments = sorted((base, path) for base, path in found if base is not None)

    @property
    def begins(self) -> int:
        """Physical offset of the first segment; where none is known, one that no log reaches."""
        return self._segments[0][0] if self._segments else 1 << 63

    @property
    def end(self) -> int:
        """Physical offset after the last segment, written or not; 0 where none is known."""
        if not self._segments:
            return 0
        base, path = self._segments[-1]
        elsewhere = remote_store(path)
        try:
            return base + (path.stat().st_size if elsewhere is None else elsewhere.file_at(path).size)
        except (OSError, ValueError):
            return base

    def __bool__(self) -> bool:
        return bool(self._segments)

    def at(self, offset: int) -> LogRecord | None:
        """The record at a physical offset; None where no whole one of that place can be seen."""
        place = bisect_right(self._segments, offset, key=lambda one: one[0]) - 1
        if place < 0:
            return None
        base, path = self._segments[place]
        elsewhere = remote_store(path)
        try:
            if elsewhere is not None:
                return _record(partial(elsewhere.read, path), offset - base, offset)
            with reading(path) as descriptor:
                return _record(
                    lambda start, stop: os.pread(descriptor, stop - start, start), offset - base, offset
                )
        except (OSError, ValueError, OverflowError, struct.error, IndexError):
            return None


def _names_in(directory: Path) -> list[str]:
    elsewhere = remote_store(directory)
    return names_seen(directory) if elsewhere is None else elsewhere.names_in(directory)


def _record(read: Callable[[int, int], bytes], position: int, offset: int) -> LogRecord | None:
    head = read(position, position + _HEAD)
    size, magic = struct.unpack_from(">iI", head)
    (place,) = struct.unpack_from(">q", head, commitlog.PHYSICAL_OFFSET)
    queue_id, sys_flag = (
        struct.unpack_from(">i", head, at)[0] for at in (commitlog.QUEUE_ID, commitlog.SYS_FLAG)
    )
    if magic not in (commitlog.MAGIC_V1, commitlog.MAGIC_V2) or place != offset:
        return None
    body_at = commitlog.body_at(sys_flag)
    (body,) = struct.unpack_from(">i", head, body_at - 4)
    behind_body = body_at + max(body, 0)
    rest = size - behind_body
    if not 3 <= rest <= _MOST_BEHIND_BODY:
        return None
    data = read(position + behind_body, position + behind_body + rest)
    topic_at = 1 if magic == commitlog.MAGIC_V1 else 2
    topic_end = topic_at + int.from_bytes(data[:topic_at], "big")
    (length,) = struct.unpack_from(">h", data, topic_end)
    start = topic_end + 2
    if len(data) != rest or start + max(length, 0) != rest:
        return None
    version = 1 if magic == commitlog.MAGIC_V1 else 2
    has_v6 = bool(sys_flag & (commitlog.SYS_FLAG_BORN_HOST_V6 | commitlog.SYS_FLAG_STORE_HOST_V6))
    return LogRecord(data[topic_at:topic_end], queue_id, properties.parse(data[start:]), version, has_v6)


def _hash(topic: bytes, text: bytes) -> int:
    # Both are decoded each by itself, as Java does it, and joined then.
    start = javastring.hash_code(b"#", javastring.hash_code(topic))
    return indexfile.key_hash(javastring.hash_code(text, start))


#: Queues that are looked at, of light queues and of others; names in a directory; bytes of a file's end.
_MOST_QUEUES, _MOST_NAMES, _MOST_READ, _CHUNK = 32, 100_000, 8 << 20, 64 << 10


@dataclass(frozen=True, slots=True)
class Switches:
    """What units show of switches; None where they show nothing."""

    queue_ext: bool | None = None  # ``enableConsumeQueueExt``: newest units are addresses; true or not shown
    bit_maps: bool | None = None  # ``enableCalcFilterBitMap``: what lies there has bit maps
    multi_dispatch: bool | None = None  # ``enableMultiDispatch``: true or not shown
    #: ``enableLmq``: the ids of light queues are 0 whatever the messages' own, or are these
    lmq: bool | None = None
    why: str = ""  # a light queue, in words


def switches(root: Path, log: LogRecords) -> Switches:
    """Look at the newest units of some queues; never raises."""
    addresses = 0
    multi = lmq = None
    why = ""
    for topic, queue_id, directory in _some_queues(root / names.CONSUME_QUEUE):
        unit = _last_unit(directory)
        if unit is None:
            continue
        place, _, tags_code = unit
        name = os.fsencode(topic)
        record = log.at(place)
        if tags_code <= consumequeueext.MAX_ADDRESS:  # where it leads nowhere, it may be junk
            held = root / names.CONSUME_QUEUE_EXT / topic / str(queue_id)
            addresses += record is not None or bool(_names_in(held))
        named = record and record.properties.get(properties.INNER_MULTI_DISPATCH, b"").split(b",")
        if record is None or record.topic == name or not named or name not in named:
            continue
        multi, why = (
            True,
            why or f"{names.CONSUME_QUEUE}/{topic}/{queue_id} leads to a message of another topic",
        )
        if name.startswith(commitlog.LMQ_PREFIX) and lmq is None and record.queue_id:
            lmq = queue_id == 0
    # Plain units may be older than the switch.
    ext = True if addresses else None
    return Switches(ext, _bit_maps(root) if ext else None, multi, lmq, why)


def _some_queues(directory: Path) -> Iterator[tuple[str, int, Path]]:
    """A queue of each of some topics, light ones and others."""
    for topic in chosen(names_seen(directory, _MOST_NAMES)):
        queues = sorted(
            (int(name) for name in names_seen(directory / topic, _MOST_NAMES) if names.is_queue_id(name)),
            reverse=True,
        )
        if queues:
            yield topic, queues[0], directory / topic / str(queues[0])


def chosen(topics: list[str]) -> list[str]:
    """The topics of which a queue is looked at, that with the highest id."""
    prefix = commitlog.LMQ_PREFIX.decode()
    light = [topic for topic in topics if topic.startswith(prefix)]
    others = [topic for topic in topics if not topic.startswith(prefix)]
    return [*_spread(light), *_spread(others)]


def _spread(found: list[str]) -> list[str]:
    return found[:: max(1, -(-len(found) // _MOST_QUEUES))]


def _last_unit(queue: Path) -> tuple[int, int, int] | None:
    """The last unit of a queue that leads to a message; None where none is found."""
    for name in reversed(
        [name for name in names_seen(queue, _MOST_NAMES) if names.parse_offset_name(name) is not None][-2:]
    ):
        try:
            with reading(queue / name, by_ranges=True) as descriptor:
                unit = _last_of_file(queue / name, descriptor)
        except (OSError, ValueError, struct.error):
            return None
        if unit is not None:
            return unit
    return None


def _last_of_file(path: Path, descriptor: int) -> tuple[int, int, int] | None:
    end = os.fstat(descriptor).st_size // UNIT_LENGTH * UNIT_LENGTH
    chunk = _CHUNK // UNIT_LENGTH * UNIT_LENGTH
    blank = bytes(chunk)
    for stop in range(end, max(end - _MOST_READ, 0), -chunk):
        start = max(stop - chunk, 0)
        data = pread(path, descriptor, stop - start, start)
        if blank.startswith(data):  # as most are; rstrip takes thirty times as long
            continue
        written = len(data.rstrip(b"\0"))
        at = (written - 1) // UNIT_LENGTH * UNIT_LENGTH
        import numpy as np

        from reput.format.dtypes import UNIT_DTYPE, UnitKind, classify

        unit = np.frombuffer(data.ljust(at + UNIT_LENGTH, b"\0"), UNIT_DTYPE, 1, at)
        place, size, tags_code = unit[0].tolist()
        return (place, size, tags_code) if classify(unit)[0] == UnitKind.MESSAGE else None
    return None


def _bit_maps(root: Path) -> bool | None:
    """Whether units in consumequeue_ext have bit maps; None where none is found."""
    directory, found = root / names.CONSUME_QUEUE_EXT, None
    for _, _, queue in _some_queues(directory):
        for name in names_seen(queue, _MOST_NAMES)[-1:]:
            try:
                with reading(queue / name) as descriptor:
                    size, _, _, bits = consumequeueext.HEAD.unpack(
                        os.pread(descriptor, consumequeueext.HEAD.size, 0)
                    )
            except (OSError, struct.error):
                continue
            if size >= consumequeueext.HEAD.size:
                found = bool(found) or bits > 0
    return found


#: Files that are looked at, of one kind; files of one queue.
_MOST_FILES, _MOST_OF_QUEUE = 500, 8
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
    looked_at: int = 0  # files that were looked at, but for those that were never made in full
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

    ``what`` is such a file, in words; ``setting`` decides their length, a multiple of ``unit`` bytes.
    """
    counts: Counter[int] = Counter()
    looked_at, unread = 0, None
    try:
        for base, length in islice(_files(root / directory), _MOST_FILES):
            looked_at += length > 0  # one that was only created says nothing, neither for nor against
            if 0 < length <= _INT_MAX and not length % unit and not base % length:
                counts[length] += 1
    except OSError as error:
        unread = f"{directory}/ can't be read: {error.strerror or error}"
    seen = tuple(((length,), files_of) for length, files_of in counts.most_common())
    return Sizes(what, (setting,), ("bytes",), seen, looked_at), unread


def _files(directory: Path) -> Iterator[tuple[int, int]]:
    """Base and length of files of queues, a queue of each topic first, so that a few speak for all."""
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


# What index files say: how many slots and entries they were made with, and whether they hold tags.
#
# The length alone gives 40 + 4 x slots + 20 x entries, which many pairs fit. A full file's header says how
# many entries (``IndexFile.isWriteFull``); in others the last entry is looked for. Either way the pair only
# counts when the entries and the slots that lead to them stand where it says.
#
# Tags are told from the entries of one message, which lie together: those of its keys alone before 5.4, one
# more for its tags from 5.4 on (``IndexService.buildIndex``). The whole row is compared, so that no key that
# looks like a tag's counts for one.

_File = TypeVar("_File")

WHAT = "index file"
SETTINGS = ("maxHashSlotNum", "maxIndexNum")
UNITS = ("slots", "entries")
_DEFAULT = (5_000_000, 20_000_000)

#: Files whose size is looked at, of the newest; those whose entries are.
_INDEX_FILES, _TAG_FILES = 8, 4
#: Entries at the end of a file, messages among them, and messages that settle it.
_WINDOW, _MOST_MESSAGES, _ENOUGH = 2_000, 64, 8
#: Places where the last entry may stand, and entries that are tried for a pair.
_MOST_PLACES, _TRIED = 1_000, 16
#: Bytes that are searched for it.
_INDEX_READ, _INDEX_CHUNK = 64 << 20, 1 << 20
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
    for name in reversed(found[-_INDEX_FILES:]):
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
    # What ends before its entries begin was never made in full: it says nothing, neither for nor against.
    least = min((indexfile.file_length(slots, 0) for slots, _ in counts), default=HEADER_LENGTH + 1)
    sizes = _index_sizes(counts, lengths, sum(length >= least for _, length in looked))
    newest = oldest = counts_keys = None
    if log and sizes.shown is not None:
        slots, most = sizes.shown
        length = indexfile.file_length(slots, most)
        whole = [name for name, size in looked if size == length]
        counting = ((name, _counts_keys(directory / name, slots)) for name in whole[:_TAG_FILES])
        counts_keys = next(((name, found) for name, found in counting if found is not None), None)
        told = (
            _tags(directory / name, slots, first=name == found[0], log=log) for name in whole[:_TAG_FILES]
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


def _index_sizes(counts: Counter[tuple[int, int]], lengths: Counter[int], files: int) -> Sizes:
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
            for begin in range(start, end, _INDEX_CHUNK):
                data = self._read(min(_INDEX_CHUNK, end - begin) + len(wanted) - 1, begin)
                read += len(data) if not lacks or data.count(0) < len(data) else 0
                at = data.find(wanted)
                while at >= 0:
                    yield begin + at - indexfile.PHYSICAL_OFFSET
                    places += 1
                    at = data.find(wanted, at + 1)
                    if places >= _MOST_PLACES:
                        return
                if read >= _INDEX_READ:
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
