"""Starts on stores with consumequeue_ext and with batch queues, against what the real store does."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from tests.compat import damage
from tests.compat.damage import Copy, Damage, write
from tests.compat.java_store import JavaStore
from tests.compat.message import Message
from tests.compat.starts import Bench, Case, otherwise, prepared, started
from tests.levels import tried

pytestmark = pytest.mark.compat

#: 24 records to a file, and a rest.
EXT_FILE = 500
EXT_RECORD = 20


def ext_files(copy: Copy, topic: str = "Orders", queue_id: int = 0) -> list[Path]:
    return sorted((copy.root / names.CONSUME_QUEUE_EXT / topic / str(queue_id)).iterdir())


def used(path: Path) -> int:
    """Bytes of a file of consumequeue_ext that hold records."""
    return -(-len(path.read_bytes().rstrip(b"\0")) // EXT_RECORD) * EXT_RECORD


def ext_gone(copy: Copy) -> None:
    """The records of all queues are gone."""
    shutil.rmtree(copy.root / names.CONSUME_QUEUE_EXT)


def ext_damaged(copy: Copy) -> None:
    """Each queue's records in a way of their own, the last one's are left when its queue was cut."""
    torn = ext_files(copy, "Orders", 0)[-1]
    half = used(torn) // 2 // EXT_RECORD * EXT_RECORD
    write(torn, half, bytes(EXT_FILE - half))
    write(ext_files(copy, "Orders", 1)[-1], 0, bytes(EXT_FILE))
    write(ext_files(copy, "Payments", 0)[0], 0, bytes(EXT_FILE))
    ext_files(copy, "Payments", 1)[-1].unlink()
    write(copy.queue("Payments", 2)[-1], 0, bytes(copy.queue_file_size))


def ext_size_leads_out(copy: Copy) -> None:
    """A record says that it ends behind its file."""
    write(ext_files(copy)[1], 3 * EXT_RECORD, struct.pack(">h", EXT_FILE))


def ext_bit_map_too_long(copy: Copy) -> None:
    """The last record has no room for its bit map."""
    last = ext_files(copy)[-1]
    write(last, used(last) - 2, struct.pack(">h", 300))


def queues_shorter(copy: Copy) -> None:
    """Queues end earlier than their records: a unit, two files, and all files but not the directory."""
    last = copy.queue("Orders", 0)[-1]
    units = -(-len(last.read_bytes().rstrip(b"\0")) // UNIT_LENGTH)
    write(last, (units - 1) * UNIT_LENGTH, bytes(UNIT_LENGTH))
    for path in (*copy.queue("Orders", 1)[-2:], *copy.queue("Payments", 0)):
        path.unlink()


def expired_head(copy: Copy) -> None:
    """The first segments have expired."""
    for path in copy.segments[:9]:
        path.unlink()


EXT_DAMAGES: tuple[Damage, ...] = (
    damage.nothing,
    queues_shorter,
    damage.queues_gone,
    damage.zeroed_tail,
    damage.bad_magic_early,
    expired_head,
    ext_gone,
    ext_damaged,
)
EXT_STOPS: tuple[Damage, ...] = (ext_size_leads_out, ext_bit_map_too_long)


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7", "5.3.3"]))
def test_a_start_with_consumequeue_ext_is_predicted(version: str, tmp_path: Path) -> None:
    other = {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": EXT_FILE}
    bench = Bench(version, tmp_path, other=other)
    try:
        tried = _tried(bench, EXT_DAMAGES, (None, "killed"))
        stopped = _tried(bench, EXT_STOPS, (None,))
        assert all(case.predicted.ext for case in tried)
        assert not any(case.predicted.starts for case in stopped)
        _compare(bench, tried + stopped)
    finally:
        bench.close()


BATCH_UNIT = 46
BATCH_FILE = 10 * BATCH_UNIT
TOPICS = {"Batches": {"queue.type": "BatchCQ"}}


def fill_batches(store: JavaStore) -> None:
    """The usual messages, batches of one to eight among them, and some of that topic that are none."""
    for n in range(140):
        store.put(Message("Orders", n % 2, b"body" * (n % 30 + 1), tags=f"t{n % 3}", keys=f"k{n}"))
        if n % 9 == 0:
            store.put(Message("Batches", n % 2, b"no batch", tags="single"))
        else:
            inner = {"INNER_NUM": str(n % 8 + 1)}
            store.put(Message("Batches", n % 2, b"many" * (n % 20 + 1), sys_flag=0x80, properties=inner))
    store.wait_dispatched()


def batch_files(copy: Copy, queue_id: int = 0) -> list[Path]:
    return sorted((copy.root / names.BATCH_CONSUME_QUEUE / "Batches" / str(queue_id)).iterdir())


def batch_queues_gone(copy: Copy) -> None:
    """All batch queues are gone."""
    shutil.rmtree(copy.root / names.BATCH_CONSUME_QUEUE)


def all_queues_gone(copy: Copy) -> None:
    """Not one queue is left."""
    batch_queues_gone(copy)
    damage.queues_gone(copy)


def batch_queues_shorter(copy: Copy) -> None:
    """The last unit of one was never written, the last two files of the other are gone."""
    last = batch_files(copy, 0)[-1]
    units = -(-len(last.read_bytes().rstrip(b"\0")) // BATCH_UNIT)
    write(last, (units - 1) * BATCH_UNIT, bytes(BATCH_UNIT))
    for path in batch_files(copy, 1)[-2:]:
        path.unlink()


def batch_unit_without_messages(copy: Copy) -> None:
    """A unit of the last file but one says that it holds none, one of the first file likewise."""
    for path in (batch_files(copy, 0)[-2], batch_files(copy, 1)[0]):
        write(path, 4 * BATCH_UNIT + 36, bytes(2))


def batch_files_empty(copy: Copy) -> None:
    """Zeros in the last two files of one, in all of the other."""
    for path in (*batch_files(copy, 0)[-2:], *batch_files(copy, 1)):
        write(path, 0, bytes(BATCH_FILE))


BATCH_DAMAGES: tuple[Damage, ...] = (
    damage.nothing,
    batch_queues_shorter,
    batch_files_empty,
    batch_unit_without_messages,
    batch_queues_gone,
    damage.queues_gone,
    all_queues_gone,
    damage.zeroed_tail,
    expired_head,
)


@pytest.mark.parametrize("version", tried("5.5.0", more=["5.3.3"]))
def test_a_start_with_batch_queues_is_predicted(version: str, tmp_path: Path) -> None:
    other = {"mapperFileSizeBatchConsumeQueue": BATCH_FILE}
    bench = Bench(version, tmp_path, other=other, filled=fill_batches, topics=TOPICS)
    try:
        tried = _tried(bench, BATCH_DAMAGES, (None, "killed"))
        assert all(("Batches", 0) in case.predicted.queues for case in tried if "gone" not in case.name)
        _compare(bench, tried)
    finally:
        bench.close()


def _tried(bench: Bench, harms: Sequence[Damage], crashes: Sequence[str | None]) -> list[Case]:
    named = [(f"{harm.__name__}-{crash or 'stopped'}", harm, crash) for harm in harms for crash in crashes]
    return prepared(bench, named)


def _compare(bench: Bench, tried: list[Case]) -> None:
    wrong = otherwise(started(bench, tried))
    assert not wrong, "\n".join(f"{name}\n    " + "\n    ".join(found) for name, found in wrong.items())
