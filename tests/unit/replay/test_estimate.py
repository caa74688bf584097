"""The disk space that a rebuild is likely to take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reput.config.settings import RocksDBSettings
from reput.format import names
from reput.format.commitlog import Record
from reput.replay.estimate import Estimate, estimate
from tests.local import Store, in_log_order, rebuild_locally, tree, write_store
from tests.property.logs import lay_out

GIB = 1 << 30


def store_of(tmp_path: Path, messages: int, segments: int = 1) -> Store:
    record = Record(b"T", b"x" * 50, b"UNIQ_KEY\x01u\x02KEYS\x01a b\x02TAGS\x01t\x02", store_timestamp=1)
    one = len(lay_out([record]))
    size = one * messages + 8
    log = [
        (base, lay_out([record] * messages, base) + b"\0\0\0\x08\xcb\xd4\x31\x94")
        for base in range(0, size * segments, size)
    ]
    return write_store(tmp_path / "store", log, max_index_num=1000, max_hash_slot_num=500)


def guess(store: Store, index: bool = True, bytes_per_batch: int = GIB) -> Estimate:
    return estimate(store.settings, store.log, index=index, bytes_per_batch=bytes_per_batch)


def test_a_log_of_equal_messages_is_guessed_well(tmp_path: Path) -> None:
    store = store_of(tmp_path, 300, segments=3)
    found = guess(store)
    assert found.messages == pytest.approx(900, rel=0.01)
    assert found.keys == pytest.approx(3600, rel=0.01)  # three words and, from 5.4 on, the tag


def test_no_index_takes_less(tmp_path: Path) -> None:
    store = store_of(tmp_path, 300)
    assert guess(store, index=False).keys == 0
    assert guess(store, index=False).output_bytes < guess(store).output_bytes


def test_many_segments_are_sampled(tmp_path: Path) -> None:
    assert guess(store_of(tmp_path, 20, segments=40)).messages == pytest.approx(800, rel=0.01)


def test_it_is_enough(tmp_path: Path) -> None:
    store = store_of(tmp_path, 500)
    rebuild_locally(store, tmp_path / "out")
    assert sum(map(len, tree(tmp_path / "out").values())) < guess(store).output_bytes


@pytest.mark.parametrize("batch", [(), ("T",)])
def test_it_is_enough_for_what_is_written_in_log_order(batch: tuple[str, ...], tmp_path: Path) -> None:
    store = store_of(tmp_path, 500)
    ordered = in_log_order(store, *batch)
    rebuild_locally(ordered, tmp_path / "out")
    found = estimate(
        ordered.settings, ordered.log, index=True, bytes_per_batch=GIB, batch_topics=frozenset(batch)
    )
    assert sum(map(len, tree(tmp_path / "out").values())) < found.output_bytes
    # A unit of 46 bytes in the place of one of 20, or a record of 20; and 48 bytes of scratch.
    assert found.output_bytes - guess(store).output_bytes >= 500 * (48 + (26 if batch else 20))


@pytest.mark.parametrize("files", [True, False])
def test_it_is_enough_for_databases_and_what_waits_for_them(files: bool, tmp_path: Path) -> None:
    plain = store_of(tmp_path, 3000)
    rocksdb = RocksDBSettings(names.CONSUME_QUEUE, files=files, index=True)
    store = Store(plain.root, replace(plain.settings, rocksdb=rocksdb), plain.selection)
    found = guess(store).output_bytes
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("reput.output.databases.files.remove_tree", lambda _path: None)
        rebuild_locally(store, out)
    waiting = sum(
        path.stat().st_size for path in (out / names.REPUT / names.ROCKSDB).rglob("*") if path.is_file()
    )
    assert waiting > 3000 * 36
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) < found
    # A run and a unit of the database for each message, and keys twice.
    assert found - guess(plain).output_bytes > 3000 * (36 + 30 - (0 if files else 20) + 2 * 4 * 30)
    alone = estimate(store.settings, store.log, index=True, bytes_per_batch=GIB, databases=False)
    assert alone == guess(plain)


def test_nothing_to_sample(tmp_path: Path) -> None:
    for number, data in enumerate([bytes(1000), b"\xff" * 1000]):
        store = write_store(tmp_path / str(number), [(0, data)])
        assert guess(store) == Estimate(0, 0, guess(store).output_bytes)
        assert guess(store).output_bytes > 0
