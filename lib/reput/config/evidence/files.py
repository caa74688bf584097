"""What the lengths of a store's files say of the settings that they were made with.

A broker preallocates every file (``MappedFile.init``, rocketmq-all-4.9.7; ``DefaultMappedFile.init``, 5.3.3),
the last of a queue, too: its length is the setting. One that is cut short or grown says nothing of it.

A unit's tagsCode that low is an address in consumequeue_ext (``ConsumeQueueExt.isExtAddr``), and nothing
else is that small. A unit that leads to a message of another topic is that of a light queue, if the message
names the queue (``ConsumeQueue.multiDispatchLmqQueue``, 4.9.7; ``MultiDispatchUtils``, 5.3.3): a topic's name
alone proves nothing, for a producer may send to one that is named so.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from reput.format import commitlog, consumequeueext, indexfile, javastring, names, properties
from reput.format.consumequeue import UNIT_LENGTH
from reput.remote import remote_store
from reput.store.listing import names_in, names_seen
from reput.store.reading import pread, reading

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
_MOST_QUEUES, _MOST_QUEUES, _MOST_READ, _CHUNK = 32, 100_000, 8 << 20, 64 << 10


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
        addresses += tags_code <= consumequeueext.MAX_ADDRESS
        name = os.fsencode(topic)
        record = log.at(place)
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
    for topic in chosen(names_seen(directory, _MOST_QUEUES)):
        queues = sorted(
            (int(name) for name in names_seen(directory / topic, _MOST_QUEUES) if names.is_queue_id(name)),
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
        [name for name in names_seen(queue, _MOST_QUEUES) if names.parse_offset_name(name) is not None][-2:]
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
        for name in names_seen(queue, _MOST_QUEUES)[-1:]:
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

    ``what`` is such a file, in words; ``setting`` decides their length, a multiple of ``unit`` bytes.
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
