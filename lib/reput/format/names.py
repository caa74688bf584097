"""Every file and directory name of a store, and of what reput adds to it, is built here.

Source: ``StorePathConfigHelper``, ``UtilAll.offset2FileName``, ``UtilAll.timeMillisToHumanString``
(rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import re
import struct
from datetime import datetime
from pathlib import Path

from reput.errors import SettingsError

#: Topic and queueId; the same with the topic's bytes, as records and keys have it.
Queue = tuple[str, int]
QueueBytes = tuple[bytes, int]

COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"
BATCH_CONSUME_QUEUE = "batchconsumequeue"
CONSUME_QUEUE_EXT = "consumequeue_ext"
#: Where a broker may have queues in RocksDB instead of in consumequeue/ (5.5).
CONSUME_QUEUE_ROCKSDB = "consumequeue_rocksdb"
ROCKSDB_STORE = "rocksdbstore"  # the index in RocksDB, and what a broker knows of timers and transactions
#: What queues may have of files.
QUEUES = (CONSUME_QUEUE, CONSUME_QUEUE_EXT, BATCH_CONSUME_QUEUE)
INDEX = "index"
CHECKPOINT = "checkpoint"
ABORT = "abort"
LOCK = "lock"
CONFIG = "config"
LEDGER = "ledger"
LOST_AND_FOUND = "lost-and-found"
#: What an output has in the end, the checkpoint last: it speaks for all others.
OUTPUT = (*QUEUES, CONSUME_QUEUE_ROCKSDB, INDEX, ROCKSDB_STORE, LEDGER, LOST_AND_FOUND, CHECKPOINT)
#: A restore isn't finished. No broker starts while this is in commitlog/: it has no segment's length.
RESTORING = "restore.unfinished"
VIEW = ".reput-view"  # links to what a log will be: beside the next one, in which no link may be
REPUT = ".reput"  # everything that is reput's own and no broker's; below it:
JOURNAL = "journal"
MENDING = "mending"  # copies of segments when nothing is rebuilt; else a rebuild's staging has them
SCRATCH = "scratch"  # there while the files may hold more than the journal says
SPARK_CHECKPOINT = "spark-checkpoint"
ROCKSDB = "rocksdb"  # what databases are made of
EXPIRING = "expiring"  # there while files go that retention has taken out of the state
SHARED = "shared-"  # and a nonce: there while tasks on other hosts write
STOP = "stop"  # asks a tail to end
RUN = "run.json"  # what the last tail said of itself
TABLE = "catalog.json"  # what it said of the table of messages that it keeps

OFFSET_DIGITS = 20
_MAX_OFFSET = (1 << 63) - 1
_OFFSET_NAME = re.compile(r"\d{20}", re.ASCII)
# What Long.parseLong takes; it looks at single chars, so that digits beyond the first plane are none.
_NUMBER = re.compile(r"[+-]?\d{1,99}")
_INDEX_NAME = re.compile(r"\d{17}", re.ASCII)
_QUEUE_ID = re.compile(r"0|-?[1-9][0-9]{0,9}", re.ASCII)
_INT_MAX = (1 << 31) - 1
_MAX_NAME_BYTES = 255


def offset_name(offset: int) -> str:
    """The name of the file whose first byte is at ``offset`` of its queue or log."""
    return f"{offset:0{OFFSET_DIGITS}d}"


def parse_offset_name(name: str) -> int | None:
    """The offset in a file name of 20 digits; None for any other name.

    None, too, for what is no long: a broker doesn't start with such a name (``Long.parseLong``).
    """
    offset = int(name) if _OFFSET_NAME.fullmatch(name) else _MAX_OFFSET + 1
    return offset if offset <= _MAX_OFFSET else None


def number(name: str) -> int | None:
    """The number that Java reads from a file name; None when it is none."""
    if _NUMBER.fullmatch(name) is None or max(name) > "\uffff":
        return None
    value = int(name)
    return value if -_MAX_OFFSET - 1 <= value <= _MAX_OFFSET else None


def index_name(timestamp_ms: int) -> str:
    """``yyyyMMddHHmmssSSS`` of a time in ms, in local time as a broker does it.

    A broker appends to the index file with the greatest name, so that a name must not lie in its future.
    """
    moment = datetime.fromtimestamp(timestamp_ms // 1000)
    return f"{moment:%Y%m%d%H%M%S}{timestamp_ms % 1000:03d}"


def later_index_name(timestamp_ms: int, than: str | None) -> str:
    """The name for a time, or the next one after ``than`` when that is not greater."""
    name = index_name(timestamp_ms)
    return name if than is None or name > than else f"{int(than) + 1:017d}"


def is_index_name(name: str) -> bool:
    """Whether a name is one that a broker or reput gives to an index file."""
    return _INDEX_NAME.fullmatch(name) is not None


def is_queue_id(name: str) -> bool:
    """Whether a broker takes a directory of this name for a queue's."""
    return _QUEUE_ID.fullmatch(name) is not None and -_INT_MAX - 1 <= int(name) <= _INT_MAX


def parse_queue(text: str) -> tuple[str, int | None]:
    """Topic and queueId of ``TOPIC:ID``; of ``TOPIC`` alone None for the queueId.

    Raises:
        SettingsError: it is neither.
    """
    return parse_queue_with_id(text, "TOPIC or TOPIC:ID") if ":" in text or not text else (text, None)


def parse_queue_with_id(text: str, form: str = "TOPIC:ID") -> Queue:
    """Topic and queueId of ``TOPIC:ID``.

    Raises:
        SettingsError: it isn't one; ``form`` is what is expected.
    """
    topic, _, number = text.rpartition(":")
    if not topic or not (number.isascii() and number.isdecimal()) or len(number) > 10:
        raise SettingsError("a queue can't be understood", expected=f"{form}, e.g. orders:3", found=text)
    return topic, int(number)


def queue_directory(root: Path, topic: str, queue_id: int) -> Path:
    """``consumequeue/TOPIC/QUEUEID`` under ``root``. The topic has passed :func:`topic_problem`."""
    return root / f"{CONSUME_QUEUE}/{topic}/{queue_id}"


def batch_queue_directory(root: Path, topic: str, queue_id: int) -> Path:
    """``batchconsumequeue/TOPIC/QUEUEID`` under ``root``: a batch queue."""
    return root / f"{BATCH_CONSUME_QUEUE}/{topic}/{queue_id}"


def queue_ext_directory(root: Path, topic: str, queue_id: int) -> Path:
    """``consumequeue_ext/TOPIC/QUEUEID`` under ``root``: what belongs to a queue's units."""
    return root / f"{CONSUME_QUEUE_EXT}/{topic}/{queue_id}"


def queue_file(root: Path, topic: str, queue_id: int, base: int) -> Path:
    """The consume queue file of a queue under ``root`` that begins at the byte offset ``base``."""
    return root / f"{CONSUME_QUEUE}/{topic}/{queue_id}/{offset_name(base)}"


def topic_problem(topic: bytes) -> str | None:
    """Why a topic can't be a directory name of its own inside consumequeue/; None when it can."""
    if not topic:
        return "an empty name"
    if b"/" in topic or b"\0" in topic:
        return "a name with a path separator or NUL"
    if topic in (b".", b".."):
        return "a name that means another directory"
    if len(topic) > _MAX_NAME_BYTES:
        return f"a name of {len(topic)} bytes"
    try:
        topic.decode()
    except UnicodeDecodeError:
        return "a name that is not UTF-8"
    return None


def one_byte_apart(one: Queue, other: Queue, offsets: tuple[int, int] = (0, 0)) -> bool:
    """Whether a record names one queue or the other, and a queueOffset there, by a single byte."""
    if (one[1], offsets[0]) == (other[1], offsets[1]) and _BROKEN in one[0] + other[0] and one != other:
        return _breaks_into(one[0], other[0]) or _breaks_into(other[0], one[0])
    first, second = (
        topic.encode("utf-8", "replace") + struct.pack(">Iq", queue_id & 0xFFFFFFFF, offset)
        for (topic, queue_id), offset in zip((one, other), offsets, strict=True)
    )
    return len(first) == len(second) and sum(a != b for a, b in zip(first, second, strict=True)) == 1


#: What is decoded to this isn't UTF-8.
_BROKEN = "\ufffd"


def _breaks_into(name: str, broken: str) -> bool:
    """Whether a byte that changes makes of a name what is decoded to the other one."""
    same, behind = (
        next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(name))
        for one, other in ((name, broken), (name[::-1], broken[::-1]))
    )
    if same + behind < len(name) - 1:
        return False  # more than one character differs
    data = name.encode("utf-8", "replace")
    first = len(name[:same].encode("utf-8", "replace"))
    return any(
        (data[:at] + bytes([byte]) + data[at + 1 :]).decode("utf-8", "replace") == broken
        for at in range(first, min(first + 4, len(data)))  # a character's bytes
        for byte in range(256)
    )
