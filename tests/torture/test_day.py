"""What ``make day`` checks an output by, without a tail: each check finds what is wrong, and nothing else."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from reput.format import names
from tests.expiry import expire, read_to
from tests.laid_out import Spec, lay_out, store_of
from tests.local import rebuild_locally
from tests.torture.day.checks import Compared, check_counts, check_files, check_queues, check_the_checks
from tests.torture.day.disk import Disk, DiskError
from tests.torture.day.plan import KINDS, plan
from tests.torture.day.sizes import Sizes
from tests.torture.day.stores import lose_units, records
from tests.torture.verify import WrongError

_SEGMENT = 4000
_LOG = [Spec(topic=number % 2, queue=number % 3 // 2, keys=2, body=20 + number % 9) for number in range(200)]


def test_each_check_finds_what_is_wrong(tmp_path: Path) -> None:
    laid = lay_out(_LOG, segment_size=_SEGMENT)
    store, right = store_of(tmp_path / "store", laid, "5.5.0"), tmp_path / "right"
    settings = store.settings
    sizes = Sizes(
        segment=_SEGMENT,
        kept=1,
        queue_units=settings.consume_queue_file_size // 20,
        index_entries=settings.max_index_num,
        index_slots=settings.max_hash_slot_num,
    )
    found = list(records(store.root / names.COMMIT_LOG, 0, _SEGMENT))
    assert [record.position for record in found] == laid.starts
    assert found[-1].position + found[-1].size == laid.end
    kept = Counter(record.queue for record in found)

    rebuild_locally(store, right)
    compared = Compared(right, tmp_path / "out", sizes)
    # Half of it, then segments expire, then the rest: each byte is compared once, before it goes.
    state = read_to(store, tmp_path / "out", laid.starts[100])
    assert len(state.index) > 2
    compared.more(state)
    assert compared.units == 100
    compared.more(state)
    assert compared.units == 100
    expire(store, 1)
    state = read_to(store, tmp_path / "out", laid.end)
    state = read_to(store, tmp_path / "out", laid.end)
    assert min(queue.first for queue in state.queues.values()) > 0
    compared.more(state)
    assert compared.units == 200
    assert compared.entries == 400
    check_counts(state, kept, kept)

    # In the end files that expired are too many on the other side, too.
    with pytest.raises(WrongError, match="missing"):
        check_files(right, tmp_path / "out")
    other = tmp_path / "other"
    read_to(store, other, laid.end)
    with pytest.raises(WrongError):
        check_files(right, other)  # begun after the expiry: other index files
    read_to(store_of(tmp_path / "whole", laid, "5.5.0"), tmp_path / "twin", laid.end)
    check_files(right, tmp_path / "twin")
    assert check_queues(right, tmp_path / "twin") > 0
    whole = store_of(tmp_path / "whole", laid, "5.5.0")
    state = read_to(whole, tmp_path / "twin", laid.end)

    # A cut takes the units of what it takes, and whole files of them.
    read_to(whole, tmp_path / "shorter", laid.starts[150])
    shutil.copytree(right, tmp_path / "cut")
    lose_units(tmp_path / "cut", laid.starts[150])
    assert check_queues(tmp_path / "shorter", tmp_path / "cut") > 0
    assert len(check_the_checks(right, tmp_path / "twin", state, sizes, kept)) == 3
    check_files(right, tmp_path / "twin")


def test_a_log_is_counted_up_to_its_first_record_that_is_not_whole(tmp_path: Path) -> None:
    laid = lay_out(_LOG, segment_size=_SEGMENT)
    log = store_of(tmp_path / "store", laid, "5.5.0").root / names.COMMIT_LOG
    last = laid.starts[-1]
    path = log / names.offset_name(last - last % _SEGMENT)
    with path.open("r+b") as file:
        file.seek(laid.end - 1 - last + last % _SEGMENT)
        file.write(b"\0")
    assert [record.position for record in records(log, laid.starts[150], _SEGMENT)] == laid.starts[150:-1]


def test_each_kind_of_event_comes_as_often_as_asked_and_leaves_a_stretch_alone() -> None:
    events = plan(1_000_000, 4, random.Random(5))
    assert Counter(event.kind for event in events) == dict.fromkeys(KINDS, 4)
    places = [event.at for event in events]
    assert places == sorted(places)
    assert not [place for place in places if 300_000 < place < 760_000]
    assert plan(1_000_000, 4, random.Random(5)) == events


def test_a_disk_that_is_filled_takes_no_more_until_there_is_room(tmp_path: Path) -> None:
    try:
        with Disk(tmp_path / "image", tmp_path / "disk", 64 << 20) as disk:
            assert disk.fill() > 32 << 20
            with pytest.raises(OSError, match="No space left"):
                (tmp_path / "disk" / "file").write_bytes(bytes(1 << 20))
            disk.make_room()
            (tmp_path / "disk" / "file").write_bytes(bytes(1 << 20))
    except DiskError as error:
        pytest.skip(f"NOT TESTED: {error}")
    assert not (tmp_path / "disk" / "file").exists()
