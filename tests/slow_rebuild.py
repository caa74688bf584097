"""What a broker's live dispatch writes from a sound commit log: slow, in one place, to compare with.

Nothing here is shared with the code under test. It follows ``CommitLog.checkMessageAndReturnSize``,
``ConsumeQueue.putMessagePositionInfoWrapper``, ``IndexService.buildIndex`` and ``IndexFile.putKey``
(rocketmq-all-4.9.7, 5.3.3): one message after the other, one byte array a file.

Three versions are known, by what tells them apart: 4.9 (no long topics, no excluded LMQ topics, an empty
index file counts 0), 5.3, and 5.4+ (tags are indexed).
"""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from zlib import crc32

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
DELAYS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class DamagedError(Exception):
    """The log isn't sound: what a broker would do with it isn't asked here."""


class NotUtf8Error(DamagedError):
    """The log may be sound, but what Java makes of its texts isn't known here."""


@dataclass(frozen=True)
class Settings:
    """broker.conf, as far as it matters; sizes in bytes."""

    version: str = "5.5"
    queue_file_size: int = 100
    slots: int = 7
    entries: int = 9
    multi_dispatch: bool = False
    lmq: bool = False
    index: bool = True

    @property
    def counts_keys(self) -> bool:
        """IndexFile.putKey counts every key up to 4.7.0."""
        return tuple(map(int, self.version.split("."))) <= (4, 7, 0)

    @property
    def minor(self) -> tuple[int, int]:
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


@dataclass
class Message:
    """One record."""

    position: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: dict[str, str]
    raw: bytes = b""  # the topic

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def transaction(self) -> str:
        return {0: "none", 4: "prepared", 8: "commit", 12: "rollback"}[self.sys_flag & 12]


@dataclass
class Rebuilt:
    """What was written.

    Attributes:
        queues: consume-queue files by their path below consumequeue/.
        index: index files in order.
        messages: how many records the log has.
        odd: queues whose queueOffsets don't simply ascend.
        altered: places of messages whose topic, queue or queueOffset isn't what it was.
        doubted: whether a message was altered, or one that repeats another may be.
    """

    queues: dict[str, bytes] = field(default_factory=dict)
    index: list[bytes] = field(default_factory=list)
    messages: int = 0
    odd: set[tuple[str, int]] = field(default_factory=set)
    altered: set[int] = field(default_factory=set)
    doubted: bool = False


def rebuild(
    segments: Iterable[tuple[int, bytes]], settings: Settings, own: Mapping[str, bytes] | None = None
) -> Rebuilt:
    """The files of a whole store; ``own`` are its queue files, which tell where altered messages belong.

    Raises:
        DamagedError: a record isn't sound.
    """
    segments = sorted(segments)
    queues: dict[tuple[str, int], Queue] = {}
    index = Index(settings)
    result = Rebuilt()
    from_zero = segments[:1] != [] and segments[0][0] == 0
    breaks = [
        base + len(data)
        for (base, data), (following, _) in pairwise(segments)
        if base + len(data) != following
    ]
    messages = [message for base, data in segments for message in read(base, data, settings)]
    result.messages = len(messages)
    for message in messages:
        index.build(message)
    written: dict[int, Message] = {}
    more: dict[tuple[str, int], list[int]] = {}
    beside: dict[int, list[tuple[tuple[str, int], int, int]]] = {}
    for _ in range(16):  # what one altered message has hidden of another one shows now
        queues = {}
        for message in messages:
            units = beside.get(message.position, [])
            elsewhere = {name for name, _, _ in units}
            dispatch(
                message,
                queues,
                settings,
                breaks,
                from_zero=from_zero,
                written=written,
                more=more,
                elsewhere=elsewhere,
            )
            for name, place, tags in units:
                queue = queues.setdefault(name, Queue(from_zero=from_zero))
                queue.put(message, place, tags, sorted([*breaks, *more.get(name, [])]))
        now, places = as_written(messages, queues, settings, written, more)
        found, light = beside_their_own(messages, queues, settings, own or {}, more)
        if not (now or places or found):
            break
        written |= now
        for name, befores in [*places.items(), *light.items()]:
            more.setdefault(name, []).extend(befores)
        for position, added in found.items():
            beside.setdefault(position, []).extend(added)
    result.altered, result.doubted = {*written, *beside}, bool(more)
    for (topic, queue_id), queue in queues.items():
        for start, content in queue.files(settings.queue_file_size):
            result.queues[f"{topic}/{queue_id}/{start:020d}"] = content
        if queue.odd:
            result.odd.add((topic, queue_id))
    if settings.index:
        result.index = [file.content() for file in index.all_files]
    return result


def read(base: int, data: bytes, settings: Settings) -> Iterable[Message]:
    """The messages of a segment."""
    at = 0
    while at < len(data):
        if len(data) - at < 8:
            raise DamagedError("no room for a size and a magic")
        size, magic = struct.unpack_from(">iI", data, at)
        if magic == BLANK:
            return
        if size == 0 and magic == 0:
            if any(data[at:]):
                raise DamagedError("something after the end")
            return
        if magic not in ((V1,) if settings.minor < (5, 1) else (V1, V2)):
            raise DamagedError(f"magic {magic:x} at {at}")
        if not 0 < size <= len(data) - at:
            raise DamagedError(f"size {size} at {at}")
        try:
            yield parse(data[at : at + size], base + at, magic, settings)
        except (struct.error, IndexError) as error:
            raise DamagedError(f"record at {at}: {error}") from error
        at += size


def parse(record: bytes, place: int, magic: int, settings: Settings) -> Message:
    """One message from its bytes."""
    size, _magic, body_crc, queue_id, _flag, queue_offset, physical_offset, sys_flag = struct.unpack_from(
        ">iIiiiqqi", record
    )
    if physical_offset != place:
        raise DamagedError("another place")
    at = 40 + 8 + (20 if sys_flag & 0x10 else 8)
    (store_timestamp,) = struct.unpack_from(">q", record, at)
    at += 8 + (20 if sys_flag & 0x20 else 8) + 4 + 8
    (body_length,) = struct.unpack_from(">i", record, at)
    at += 4
    if body_length > 0:
        body = record[at : at + body_length]
        if crc32(body) & 0x7FFFFFFF != body_crc:
            raise DamagedError("body CRC")
        at += body_length
    topic_length = struct.unpack_from(">b" if magic == V1 else ">h", record, at)[0]
    at += 1 if magic == V1 else 2
    if topic_length < 0:
        raise DamagedError("topic length")
    topic = record[at : at + topic_length]
    at += topic_length
    (properties_length,) = struct.unpack_from(">h", record, at)
    at += 2
    raw = record[at : at + max(properties_length, 0)]
    at += max(properties_length, 0)
    if at != size:
        raise DamagedError("lengths")
    properties = parse_properties(text(raw))
    name, _, digits = raw[:-1].split(b"\x02")[-1].partition(b"\x01")
    if raw.endswith(b"\x02") and name == b"__CRC32#" and len(digits) == 10:
        number = sum((digit - 48) * 10**place for place, digit in enumerate(digits))
        if number != crc32(record[: size - 20]) & 0x7FFFFFFF:
            raise DamagedError("property CRC")
    return Message(
        place, size, text(topic), queue_id, queue_offset, sys_flag, store_timestamp, properties, topic
    )


def text(data: bytes) -> str:
    """UTF-8 as Java reads it; of what isn't UTF-8, only what Java and Python replace alike is taken."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if any(one > 127 and other > 127 for one, other in pairwise(data)):
            raise NotUtf8Error from error
        return data.decode(errors="replace")


def parse_properties(line: str) -> dict[str, str]:
    found = {}
    for entry in line.split("\x02"):
        name, _, value = entry.partition("\x01")
        if name and value:
            found[name] = value
    return found


def hash_code(string: str) -> int:
    """String.hashCode."""
    value = 0
    encoded = string.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", encoded):
        value = (31 * value + unit) % 2**32
    return value - 2**32 if value >= 2**31 else value


def parse_long(string: str, bits: int = 64) -> int | None:
    """Long.parseLong, which takes digits of any script, one UTF-16 code unit each."""
    digits = string[1:] if string[:1] in "+-" else string
    if not digits or any(unicodedata.category(digit) != "Nd" or digit > "\uffff" for digit in digits):
        return None
    return int(string) if -(2 ** (bits - 1)) <= int(string) < 2 ** (bits - 1) else None


def is_blank(string: str) -> bool:
    """StringUtils.isBlank: Character.isWhitespace takes separators but for those that don't break."""
    return all(
        char in "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f"
        or (unicodedata.category(char) in ("Zs", "Zl", "Zp") and char not in "\xa0\u2007\u202f")
        for char in string
    )


def long(value: int) -> int:
    """What is left of a number in a Java long."""
    return (value + 2**63) % 2**64 - 2**63


# --- consume queues -------------------------------------------------------------------------------------


@dataclass
class Queue:
    """A consume queue: its units by place, and where a broker would write next."""

    units: dict[int, bytes] = field(default_factory=dict)
    first: int = -1
    next: int = 0
    end: int = -1
    last_end: int = -1
    lone_zero: bytes | None = None
    odd: bool = False
    from_zero: bool = False
    rows: list[tuple[int, int]] = field(default_factory=list)
    gaps: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    own: int = 0

    def put(self, message: Message, queue_offset: int, tags_code: int, breaks: list[int]) -> None:
        """A broker's rules, and those that reput documents where a broker's lose messages."""
        unit = struct.pack(">qiq", message.position, message.size, tags_code)
        self.rows.append((queue_offset, message.position))
        if message.end <= self.last_end:  # the second time in one message
            self.odd = True
            return
        self.last_end = message.end
        if self.first < 0:
            self.first = self.next = queue_offset
            if (
                self.from_zero  # lost, not expired
                and queue_offset <= message.position // 91
                and any(place <= message.position for place in breaks)
            ):
                self.odd |= queue_offset > 0
                self.first = 0
                self.units |= dict.fromkeys(range(queue_offset), unit)
            elif self.from_zero and queue_offset:
                self.gaps.append((0, queue_offset, 0, message.position, 0))
        if queue_offset != self.next:
            self.odd = True
        zero, self.lone_zero = self.lone_zero, None
        stored = queue_offset
        if queue_offset == 1 and zero is not None:  # created anew: a live broker has nothing older
            self.units, self.first, self.next = {0: zero}, 0, 1
        elif queue_offset == 0 and self.next > 0:  # appended, as by a broker, unless 1 comes next
            queue_offset = self.next
            self.lone_zero = unit
        if queue_offset < self.next:  # the first of a repeat wins
            self.own = max(self.own, self.next)
            return
        if queue_offset > self.next:
            lost = queue_offset != self.own and any(self.end <= place <= message.position for place in breaks)
            if not (lost and queue_offset - self.next <= (message.position - self.end) // 91):
                if self.own < queue_offset:
                    self.gaps.append((self.own, queue_offset, self.end, message.position, self.next))
                queue_offset = self.next  # appended, as by a broker
            for hole in range(self.next, queue_offset):
                self.units[hole] = unit
        self.units[queue_offset] = unit
        self.next, self.end, self.own = queue_offset + 1, message.end, stored + 1

    def files(self, size: int) -> Iterable[tuple[int, bytes]]:
        """(first byte, content) of each file."""
        per_file = size // 20
        for start in range(self.first // per_file * per_file, self.next, per_file):
            content = bytearray()
            for place in range(start, start + per_file):
                if place < self.first:
                    content += struct.pack(">qiq", 0, 0x7FFFFFFF, 0)
                else:
                    content += self.units.get(place, bytes(20))
            yield start * 20, bytes(content)


def as_written(
    messages: list[Message],
    queues: dict[tuple[str, int], Queue],
    settings: Settings,
    known: dict[int, Message],
    asked: dict[tuple[str, int], list[int]],
) -> tuple[dict[int, Message], dict[tuple[str, int], list[int]]]:
    """What messages were before a byte of them changed, by position, and where queues miss one.

    ``known`` are those that were found before, and ``asked`` the places.
    """
    written: dict[int, Message] = {}
    more: dict[tuple[str, int], list[int]] = {}
    gaps = [(name, gap) for name, queue in queues.items() for gap in queue.gaps]
    if settings.multi_dispatch:  # light queues miss messages in a sound log
        gaps = [(name, gap) for name, gap in gaps if not name[0].startswith("%LMQ%")]
    for name, (first, stop, after, before, _) in sorted(gaps, key=_by_bytes):
        if stop - first > 64 or name in {(queues_name(messages, place)) for place in written}:
            continue
        if before in asked.get(name, []):
            continue
        for place in range(first, stop):
            found = [
                (one, was)
                for one in messages
                if after <= one.position < before
                and one.position not in known
                and (was := _but_for_a_byte(one, name, place, first, stop)) is not None
            ]
            given = {(one.topic, one.queue_id) for one in written.values()}
            doubtful = any(_is_repeated(one, queues) for one, _ in found)
            strays = [
                (one, was)
                for one, was in found
                if (one.topic, one.queue_id) not in given and _is_stray(one, queues)
            ]
            if len(strays) == 1:
                written[strays[0][0].position] = strays[0][1]
            if strays or doubtful:
                more.setdefault(name, []).append(before)
    return written, more


def _by_bytes(gap: tuple[tuple[str, int], tuple[int, int, int, int, int]]) -> tuple[bool, int]:
    """Those at a queue's beginning last; of others the one first that has the least of the log."""
    _, (first, _, after, before, _) = gap
    return first == 0, before - after


def beside_their_own(
    messages: list[Message],
    queues: dict[tuple[str, int], Queue],
    settings: Settings,
    own: Mapping[str, bytes],
    asked: dict[tuple[str, int], list[int]],
) -> tuple[dict[int, list[tuple[tuple[str, int], int, int]]], dict[tuple[str, int], list[int]]]:
    """What light queues miss and had: by the message's position (queue, place in it, tagsCode); and where."""
    found: dict[int, list[tuple[tuple[str, int], int, int]]] = {}
    more: dict[tuple[str, int], list[int]] = {}
    for name, queue in queues.items():
        for first, stop, after, before, due in queue.gaps if settings.multi_dispatch else ():
            if before in asked.get(name, []):
                continue
            for place in range(first, stop) if name[0].startswith("%LMQ%") and stop - first <= 64 else ():
                at = (due + place - first) * 20
                start = at // settings.queue_file_size * settings.queue_file_size
                unit = own.get(f"{name[0]}/{name[1]}/{start:020d}", b"")[at - start :][:20]
                position, size, tags = struct.unpack(">qiq", unit.ljust(20, b"\0"))
                if after <= position < before and any(
                    (one.position, one.size) == (position, size) for one in messages
                ):
                    found.setdefault(position, []).append((name, place, tags))
                    more.setdefault(name, []).append(before)
    return found, more


def queues_name(messages: list[Message], position: int) -> tuple[str, int]:
    """The queue that the message at a place names."""
    return next((one.topic, one.queue_id) for one in messages if one.position == position)


def _but_for_a_byte(one: Message, name: tuple[str, int], place: int, first: int, stop: int) -> Message | None:
    own = one.queue_offset if first <= one.queue_offset < stop else first
    was = replace(one, topic=name[0], queue_id=name[1], queue_offset=own, sys_flag=one.sys_flag & ~4)
    was.raw = name[0].encode()
    told = [
        message.raw + struct.pack(">iqi", message.queue_id, message.queue_offset, message.sys_flag)
        for message in (one, was)
    ]
    if own != one.queue_offset and stop - first != 1:
        return None
    if own != place or len(told[0]) != len(told[1]):
        return None
    return was if sum(left != right for left, right in zip(*told, strict=True)) == 1 else None


def _is_stray(one: Message, queues: dict[tuple[str, int], Queue]) -> bool:
    if one.transaction in ("prepared", "rollback"):
        return True
    rows = queues[one.topic, one.queue_id].rows
    at = next(number for number, row in enumerate(rows) if row[1] == one.position)
    offset = rows[at][0]
    return not (
        (at > 0 and rows[at - 1][0] == offset - 1) or (at + 1 < len(rows) and rows[at + 1][0] == offset + 1)
    )


def _is_repeated(one: Message, queues: dict[tuple[str, int], Queue]) -> bool:
    if one.transaction in ("prepared", "rollback"):
        return False
    return [row[0] for row in queues[one.topic, one.queue_id].rows].count(one.queue_offset) > 1


def dispatch(
    message: Message,
    queues: dict[tuple[str, int], Queue],
    settings: Settings,
    breaks: list[int],
    *,
    from_zero: bool = False,
    written: dict[int, Message] | None = None,
    more: dict[tuple[str, int], list[int]] | None = None,
    elsewhere: Container[tuple[str, int]] = (),
) -> None:
    """One message's units; ``written`` has it as it was written, ``more`` where queues miss messages.

    Light queues that are ``elsewhere`` get another unit than its properties say.
    """
    light, message = message, (written or {}).get(message.position, message)
    properties = message.properties
    tags_code = hash_code(properties["TAGS"]) if "TAGS" in properties else 0
    if message.topic == "SCHEDULE_TOPIC_XXXX" and "DELAY" in properties:
        level = parse_long(properties["DELAY"], 32)
        if level is None:
            raise DamagedError("DELAY")
        if level > 0:
            delays = [
                int(word[:-1]) * {"s": 1000, "m": 60_000, "h": 3_600_000}[word[-1]]
                for word in DELAYS.split(" ")
            ]
            tags_code = long(message.store_timestamp + delays[min(level, len(delays)) - 1])
    inner = properties.get("INNER_BASE"), properties.get("INNER_NUM")
    both = settings.minor >= (5, 0) and None not in inner
    if both and None in (parse_long(str(inner[0])), parse_long(str(inner[1]), 16)):
        raise DamagedError("inner batch")
    if message.transaction in ("prepared", "rollback"):
        return
    new, more = Queue(from_zero=from_zero), more or {}
    name = message.topic, message.queue_id
    places = sorted([*breaks, *more.get(name, [])])
    _put(message, *name, message.queue_offset, tags_code, queues, places, new)
    if light.transaction in ("prepared", "rollback"):
        return
    message = light
    if not settings.multi_dispatch or settings.minor < (4, 9) or _no_lmq(message.topic, settings):
        return
    names = properties.get("INNER_MULTI_DISPATCH", "")
    offsets = properties.get("INNER_MULTI_QUEUE_OFFSET", "")
    if is_blank(names) or is_blank(offsets):
        return
    if len(java_split(names)) != len(java_split(offsets)):
        raise DamagedError("LMQ counts")
    for name, number in zip(java_split(names), java_split(offsets), strict=True):
        if settings.minor >= (5, 2) and "/" in name:
            continue
        queue_offset = parse_long(number)
        if queue_offset is None:
            raise DamagedError("LMQ offset")
        queue_id = 0 if settings.lmq and name.startswith("%LMQ%") else message.queue_id
        new = Queue(from_zero=from_zero)
        places = sorted([*breaks, *more.get((name, queue_id), [])])
        if (name, queue_id) not in elsewhere:
            _put(message, name, queue_id, queue_offset, tags_code, queues, places, new)


def _put(
    message: Message,
    topic: str,
    queue_id: int,
    queue_offset: int,
    tags_code: int,
    queues: dict[tuple[str, int], Queue],
    breaks: list[int],
    new: Queue,
) -> None:
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic or len(topic.encode()) > 255:
        raise DamagedError("no directory can have this name")
    if queue_offset < 0 or queue_offset * 20 + 20 > 2**63:
        raise DamagedError("queueOffset")
    queues.setdefault((topic, queue_id), new).put(message, queue_offset, tags_code, breaks)


def _no_lmq(topic: str, settings: Settings) -> bool:
    if settings.minor < (5, 2):
        return False  # 4.9.7
    return topic.startswith(("%RETRY%", "rmq_sys_")) or topic == "SCHEDULE_TOPIC_XXXX"


def java_split(string: str) -> list[str]:
    """String.split(","): empty strings at the end are dropped."""
    words = string.split(",")
    while words and not words[-1]:
        del words[-1]
    return words


# --- index files ----------------------------------------------------------------------------------------


@dataclass
class IndexFile:
    """One index file."""

    settings: Settings
    begin_time: int = 0
    end_time: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slot_count: int = 0
    count: int = 1
    slots: dict[int, int] = field(default_factory=dict)
    entries: list[bytes] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return self.count >= self.settings.entries

    def put(self, key: str, message: Message) -> None:
        """IndexFile.putKey."""
        key_hash = abs(hash_code(key))
        self.put_hash(0 if key_hash == 2**31 else key_hash, message)

    def put_hash(self, key_hash: int, message: Message) -> None:
        """A key by the hash that is stored."""
        slot = key_hash % self.settings.slots
        seconds = 0
        if self.begin_time > 0:
            difference = long(message.store_timestamp - self.begin_time)
            seconds = min(max(difference // 1000, 0), 2**31 - 1)
        previous = self.slots.get(slot, 0)
        self.entries.append(struct.pack(">iqii", key_hash, message.position, seconds, previous))
        self.slots[slot] = self.count
        if self.count <= 1:
            self.begin_time, self.begin_offset = message.store_timestamp, message.position
        self.slot_count += previous == 0 or self.settings.counts_keys
        self.count += 1
        self.end_time, self.end_offset = message.store_timestamp, message.position

    def content(self) -> bytes:
        """The file's bytes after a clean stop."""
        count = self.count
        if not self.entries:
            count = 0 if self.settings.minor < (5, 0) else 1
        header = struct.pack(
            ">qqqqii",
            self.begin_time,
            self.end_time,
            self.begin_offset,
            self.end_offset,
            self.slot_count,
            count,
        )
        slots = b"".join(struct.pack(">i", self.slots.get(slot, 0)) for slot in range(self.settings.slots))
        entries = bytes(20) + b"".join(self.entries)
        return header + slots + entries.ljust(20 * self.settings.entries, b"\0")


class Index:
    """IndexService."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.all_files: list[IndexFile] = []

    def build(self, message: Message) -> None:
        """One message's keys."""
        self._last()
        if message.transaction == "rollback":
            return
        properties, topic = message.properties, message.topic
        keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
        keys += [word for word in properties.get("KEYS", "").split(" ") if word]
        if self.settings.minor >= (5, 4) and "TAGS" in properties:
            keys.append("T#" + properties["TAGS"])
        for key in keys:
            self._last().put(f"{topic}#{key}", message)

    def _last(self) -> IndexFile:
        """The file that the next key goes to, a new one where the last is full."""
        if not self.all_files:
            self.all_files.append(IndexFile(self.settings))
        elif self.all_files[-1].is_full:
            before = self.all_files[-1]
            self.all_files.append(
                IndexFile(
                    self.settings, before.end_time, before.end_time, before.end_offset, before.end_offset
                )
            )
        return self.all_files[-1]
