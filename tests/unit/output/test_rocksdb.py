"""Queues and index in RocksDB, in one process: whatever ends a run, the keys are the same in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from reput.config.settings import RocksDBSettings
from reput.errors import OutputError
from reput.format import names, rocksdbqueue
from reput.format.rocksdbqueue import OFFSETS, UNITS
from reput.output import batch
from reput.output.batch import Sent, sent
from reput.replay.state import FILLED
from reput.rocksdb import opened
from reput.store import files
from reput.store.system import System
from tests.crash import FEWER, Dying, LosingPower, died
from tests.laid_out import Damage, Spec, lay_out, store_of
from tests.levels import sampled
from tests.local import Store, rebuild_locally
from tests.memory import scratch
from tests.unit.output.test_rollback import ENDS, LOG, PART_BYTES

Contents = dict[str, dict[str, dict[bytes, bytes]]]


@pytest.fixture
def place() -> Any:
    with scratch() as path:
        yield path


def in_rocksdb(store: Store, *, files_too: bool = False) -> Store:
    rocksdb = RocksDBSettings(names.CONSUME_QUEUE, files=files_too, lmq=True, index=True)
    return Store(store.root, replace(store.settings, rocksdb=rocksdb), store.selection)


@pytest.fixture
def store(place: Path) -> Store:
    laid = lay_out(LOG, segment_size=800)
    laid.segments = Damage(0.52, 40, 0).apply(laid.segments)
    return in_rocksdb(store_of(place / "store", laid, "5.5.0"))


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Callable[[System], None]:
    return lambda one: monkeypatch.setattr(files, "system", one)


def contents(out: Path) -> Contents:
    found: Contents = {}
    for name in (names.CONSUME_QUEUE, names.ROCKSDB_STORE):
        with opened(out / name) as database:
            found[name] = {
                family: {
                    key: value
                    for keys, values in database.blocks(family)
                    for key, value in zip(keys, values, strict=True)
                }
                for family in database.families
            }
    return found


def check(out: Path, expected: Contents) -> None:
    assert contents(out) == expected
    assert {path.name for path in (out / names.REPUT).iterdir()} <= {"journal", "lock", "tasks.lock"}
    assert not list(out.rglob("rocksdict-config.json"))


def looks_done(out: Path) -> list[str]:
    """Databases that a broker would take for whole."""
    return [name for name in (names.CONSUME_QUEUE, names.ROCKSDB_STORE) if (out / name / "CURRENT").exists()]


def test_batches_and_parts_leave_no_trace(store: Store, place: Path) -> None:
    rebuild_locally(store, place / "one")
    state = rebuild_locally(store, place / "many", part_bytes=PART_BYTES, ends=ENDS)
    check(place / "many", contents(place / "one"))
    units = contents(place / "one")[names.CONSUME_QUEUE][UNITS]
    assert len(units) > len(LOG) // 2
    assert {"queue-restarted", "queue-offset-jump"} <= {finding.kind for finding in state.findings}
    assert all(finding.path for finding in state.findings)


def test_a_database_is_made_of_all_that_was_put_aside(store: Store, place: Path) -> None:
    out = place / "out"
    rebuild_locally(store, out, part_bytes=PART_BYTES, ends=ENDS)
    (out / names.CONSUME_QUEUE).rename(place / "elsewhere")
    with pytest.raises(OutputError, match="what was put aside for a database isn't all there") as raised:
        rebuild_locally(store, out, part_bytes=PART_BYTES, ends=ENDS)
    assert raised.value.found == "up to 0"
    assert not (out / names.CONSUME_QUEUE).exists()


def test_files_and_database_beside_each_other(store: Store, place: Path) -> None:
    rebuild_locally(store, place / "alone")
    both = in_rocksdb(store, files_too=True)
    rebuild_locally(both, place / "both", part_bytes=PART_BYTES, ends=ENDS)
    check(place / "both", contents(place / "alone"))
    in_files = Store(store.root, replace(store.settings, rocksdb=RocksDBSettings()))
    rebuild_locally(in_files, place / "files")
    for path in (place / "files" / names.CONSUME_QUEUE).rglob("*"):
        if path.is_file():
            assert (place / "both" / path.relative_to(place / "files")).read_bytes() == path.read_bytes()


def test_large_results_go_through_files(store: Store, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rebuild_locally(store, place / "expected")
    taken: list[Sent] = []
    real = Sent.taken
    monkeypatch.setattr(Sent, "taken", lambda one: taken.append(one) or real(one))
    for limit, places in ((1000, {"", "scratch"}), (0, {"scratch", "rocksdb"})):
        monkeypatch.setattr(batch, "_LARGEST_SENT", limit)
        taken.clear()
        rebuild_locally(store, place / str(limit), part_bytes=PART_BYTES, ends=ENDS)
        check(place / str(limit), contents(place / "expected"))
        assert {Path(one.path).parent.name for one in taken} == places
    assert not any(Path(one.path).is_file() for one in taken)

    result = sent(list(range(1000)), place)
    assert result.taken() == list(range(1000))
    torn = sent(list(range(1000)), place)
    Path(torn.path).write_bytes(Path(torn.path).read_bytes()[:-1])
    with pytest.raises(OutputError, match="a task's result can't be read back"):
        torn.taken()


@pytest.mark.slow
def test_killed_at_any_call(store: Store, place: Path, system: Callable[[System], None]) -> None:
    rebuild_locally(store, place / "expected")
    expected = contents(place / "expected")
    counting = Dying()
    system(counting)
    rebuild_locally(store, place / "count", part_bytes=PART_BYTES, ends=ENDS)
    for last in sampled(range(1, counting.calls + 1, 5)):
        out = place / str(last)
        system(Dying(last))
        run = partial(rebuild_locally, store, out, part_bytes=PART_BYTES, ends=ENDS)
        assert died(run) or last > counting.calls - FEWER
        system(System())
        for name in looks_done(out):
            with opened(out / name) as database:
                assert {
                    key: value
                    for family in database.families
                    for keys, values in database.blocks(family)
                    for key, value in zip(keys, values, strict=True)
                } == {key: value for family in expected[name].values() for key, value in family.items()}
        rebuild_locally(store, out, part_bytes=PART_BYTES if last % 2 else 97)
        check(out, expected)


@pytest.mark.slow
def test_a_power_loss_at_any_call(store: Store, place: Path, system: Callable[[System], None]) -> None:
    rebuild_locally(store, place / "expected")
    expected = contents(place / "expected")
    counting = Dying()
    system(counting)
    rebuild_locally(store, place / "count", part_bytes=PART_BYTES, ends=ENDS)
    for last in sampled([*range(3, counting.calls + 1, 7), counting.calls + 1]):
        out = place / str(last)
        out.mkdir()
        losing = LosingPower(out, last)
        system(losing)
        died(lambda: rebuild_locally(store, out, part_bytes=PART_BYTES, ends=ENDS))  # noqa: B023
        losing.lose(Random(last))
        system(System())
        rebuild_locally(store, out, part_bytes=PART_BYTES, ends=ENDS)
        check(out, expected)


def test_a_hole_that_damage_made_repeats_the_next_unit(place: Path) -> None:
    laid = lay_out([Spec(), Spec(body=200), Spec(), Spec()], segment_size=4000)
    begin, data = laid.segments[0]
    second = int.from_bytes(data[:4], "big")
    laid.segments[0] = begin, data[: second + 4] + bytes(40) + data[second + 44 :]
    store = in_rocksdb(store_of(place / "store", laid, "5.5.0"))
    state = rebuild_locally(store, place / "out")
    units = contents(place / "out")[names.CONSUME_QUEUE][UNITS]
    (prefix,) = {key[:-8] for key in units}
    found = [units[prefix + number.to_bytes(8, "big")] for number in range(4)]
    assert found[1] == found[2] != found[0]
    assert [each.count for each in state.salvaged if each.kind == FILLED] == [1]


def test_a_run_that_was_cut_is_refused(store: Store, place: Path, system: Callable[[System], None]) -> None:
    counting = Dying()
    system(counting)
    rebuild_locally(store, place / "count")
    for last in sampled(range(counting.calls, 0, -7)):  # up to one without a database
        out = place / str(last)
        system(Dying(last))
        assert died(partial(rebuild_locally, store, out)) or last > counting.calls - FEWER
        if not looks_done(out):
            break
    system(System())
    runs = sorted((out / names.REPUT / names.ROCKSDB).glob("*.units"))
    assert runs
    for run in runs:
        run.write_bytes(run.read_bytes()[:-1])
    with pytest.raises(OutputError, match="can't be read back") as refused:
        rebuild_locally(store, out)
    assert refused.value.path in {str(run) for run in runs}
    assert looks_done(out) == []


def test_a_queues_ends(store: Store, place: Path) -> None:
    rebuild_locally(store, place / "out")
    found = contents(place / "out")[names.CONSUME_QUEUE]
    last = 0
    for key, value in found[OFFSETS].items():
        parsed, end = rocksdbqueue.parse_offset_key(key), rocksdbqueue.parse_offset(value)
        assert parsed is not None
        if key == rocksdbqueue.CHECKPOINT_KEY:
            continue
        assert end is not None
        unit = found[UNITS][rocksdbqueue.unit_key(parsed.topic, parsed.queue_id, end.queue_offset)]
        assert rocksdbqueue.parse_unit(unit)[0] == end.position  # type: ignore[index]
        last = max(last, *(sum(rocksdbqueue.parse_unit(unit)[:2]) for unit in found[UNITS].values()))  # type: ignore[index]
    assert rocksdbqueue.parse_checkpoint(found[OFFSETS][rocksdbqueue.CHECKPOINT_KEY]) == last
