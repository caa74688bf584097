"""Starts on stores with consumequeue_ext and with batch queues, against what the real store does."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from reput.format.consumequeue import UNIT_LENGTH
from reput.recovery.predict import predict
from reput.recovery.snapshot import QUEUE_EXT, take
from tests.compat import damage
from tests.compat.damage import Copy, Damage, write
from tests.compat.jars import VERSIONS
from tests.compat.starts import Bench, Case, batched, differences, expected

pytestmark = pytest.mark.compat

#: 24 records to a file, and a rest.
EXT_FILE = 500
EXT_RECORD = 20


def ext_files(copy: Copy, topic: str = "Orders", queue_id: int = 0) -> list[Path]:
    return sorted((copy.root / QUEUE_EXT / topic / str(queue_id)).iterdir())


def used(path: Path) -> int:
    """Bytes of a file of consumequeue_ext that hold records."""
    return -(-len(path.read_bytes().rstrip(b"\0")) // EXT_RECORD) * EXT_RECORD


def ext_gone(copy: Copy) -> None:
    """The records of all queues are gone."""
    shutil.rmtree(copy.root / QUEUE_EXT)


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


@pytest.mark.parametrize("version", VERSIONS)
def test_a_start_with_consumequeue_ext_is_predicted(version: str, tmp_path: Path) -> None:
    other = {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": EXT_FILE}
    bench = Bench(version, tmp_path, other=other)
    try:
        tried = [_tried(bench, harm, crash) for harm in EXT_DAMAGES for crash in (None, "killed")]
        stopped = [_tried(bench, harm, None) for harm in EXT_STOPS]
        assert all(case.predicted.ext for case in tried)
        assert not any(case.predicted.starts for case in stopped)
        _compare(bench, tried + stopped)
    finally:
        bench.close()


def _tried(bench: Bench, harm: Damage, crash: str | None) -> Case:
    name = f"{harm.__name__}-{crash or 'stopped'}"
    copy = bench.copy(name, crash=crash)
    harm(copy)
    return Case(name, copy.root, expected(predict(take(bench.settings(copy.root)))))


def _compare(bench: Bench, tried: list[Case]) -> None:
    for some in batched(tried):
        bench.open_all(some)
    wrong = {}
    for case in tried:
        found = differences(case.predicted, case.seen)
        if found:
            wrong[case.name] = [*found, case.error[:1000]]
    assert not wrong, "\n".join(f"{name}\n    " + "\n    ".join(found) for name, found in wrong.items())
