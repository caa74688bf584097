"""A migration without Spark: ended at any call it goes on, or is undone; expired queues come along."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.errors import SettingsError, UnsupportedError
from reput.format import names, rocksdbindex, rocksdbqueue
from reput.format.consumequeue import PRE_BLANK, UNIT_LENGTH
from reput.format.rocksdbqueue import OFFSETS, QueueEnd
from reput.job import rebuilding as job
from reput.job.in_place import discard_if_swapped, staging_of, undo
from reput.job.migrate import Migrated, migrate, plan_migration
from reput.job.options import RebuildOptions
from reput.job.plan import Plan, intended
from reput.mending import mend
from reput.output import databases
from reput.output.batch import BatchTasks
from reput.output.log_changes import roll_back
from reput.output.writer import BatchWriter
from reput.rocksdb import is_database, opened
from reput.store import files
from reput.store.lock import OutputLock
from reput.store.swap import is_pending
from reput.store.system import System
from tests.crash import Dying, KilledError
from tests.golden.store import GoldenStore, unpack
from tests.levels import sampled
from tests.local import NoLedger, Runner, parts_of
from tests.rebuilds import tree
from tests.rocksdbs import writing
from tests.unit.mending.test_mend import lose_ends, units, unreadable


def run_here(plan: Plan, _spark: object, _listener: object, _announce: object) -> BatchWriter:
    """What :func:`reput.job.rebuilding.run` does, without Spark and ledger."""
    from reput.job.rebuilding import carried

    target = plan.target(flush_in_tasks=False)
    with OutputLock(plan.root, plan.owner).exclusive():
        roll_back(target, plan.journal.state)
    writer = BatchWriter(target, plan.journal, plan.log, Runner(), abort_present=plan.abort_present)
    writer._ledger = NoLedger()  # type: ignore[assignment]
    writer.begin()
    cursor = plan.journal.state.cursor
    if cursor < plan.end:
        writer.write(parts_of(plan.log, cursor, plan.end, 1 << 20, cursor), 0)
    writer.finish()
    if target.in_rocksdb:
        tasks = BatchTasks.for_databases(Runner(), target)
        databases.make(target, plan.journal, tasks, 2, lambda: carried(plan))
        writer.finish()
    return writer


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[System], None]]:
    before = files.system
    monkeypatch.setattr(job, "run", run_here)

    def use(system: System) -> None:
        files.system = system

    yield use
    files.system = before


def options(store: GoldenStore, store_type: str | None = None) -> RebuildOptions:
    conf = store.write_broker_conf(store.root.parent / "broker.conf")
    if store_type is not None:
        lines = [line for line in conf.read_text().splitlines() if not line.startswith("storeType")]
        conf.write_text("\n".join([*lines, f"storeType={store_type}", ""]))
    return RebuildOptions(store.root, broker_conf=conf, rocketmq_version=store.version)


def moved(store: GoldenStore, to: str, store_type: str | None = None) -> Migrated:
    return migrate(options(store, store_type), to, lambda: None)  # type: ignore[arg-type, return-value]


def contents(directory: Path) -> dict[str, dict[bytes, bytes]]:
    with opened(directory) as database:
        return {
            family: {
                key: value
                for keys, values in database.blocks(family)
                for key, value in zip(keys, values, strict=True)
            }
            for family in database.families
        }


LIGHT = '{"lmqOffsetTable":{"%LMQ%t@%LMQ%g":4},"offsetTable":{"t@g":{0:1}}}'


def unpacked(place: Path) -> GoldenStore:
    store = unpack("5.5.0-tiny", place / "store")
    store.write_topics_json()
    assert store.config["enableLmq"]
    (store.root / names.CONFIG / "lmqConsumerOffset.json").write_text(LIGHT)
    return store


def test_killed_at_any_call(tmp_path: Path, system: Callable[[System], None]) -> None:
    store = unpacked(tmp_path / "sound")
    counting = Dying()
    system(counting)
    moved(store, "rocksdb")
    system(System())
    expected = contents(store.root / names.CONSUME_QUEUE)
    half = counting.calls // 2
    for last in sampled([*range(3, half, 17), *range(half, counting.calls + 1, 3)]):
        place = tmp_path / str(last)
        store = unpacked(place)
        before = tree(store.root, "lock", names.REPUT)
        system(Dying(last))
        with pytest.raises(KilledError):
            moved(store, "rocksdb")
        system(System())
        if not is_pending(store.root) and not is_database(store.root / names.CONSUME_QUEUE):
            assert tree(store.root, "lock", names.REPUT) == before
        moved(store, "rocksdb")
        assert contents(store.root / names.CONSUME_QUEUE) == expected
        written = json.loads((store.root / names.CONFIG / "consumerOffset.json").read_text())
        assert written["dataVersion"]["counter"] == 1
        assert written["offsetTable"] == {"t@g": {"0": 1}, "%LMQ%t@%LMQ%g": {"0": 4}}
        if last % 2:
            undo(store.root)
            after = tree(store.root, "lock", names.REPUT)
            assert {path: after.get(path) for path in before} == before


def test_queues_whose_messages_have_expired_go_on_where_they_were(
    tmp_path: Path, system: Callable[[System], None]
) -> None:
    system(System())
    store = unpack("5.5.0-lost-head", tmp_path / "store")
    gone = names.queue_file(store.root, "Gone", 3, 0)
    gone.parent.mkdir(parents=True)
    size = int(str(store.config["mappedFileSizeConsumeQueue"]))
    unit = (7).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8)
    gone.write_bytes((PRE_BLANK * 4 + unit).ljust(size, b"\0"))
    start = store.manifest["log"]["start"]
    doubtful = names.queue_file(store.root, "Doubtful", 1, 0)
    doubtful.parent.mkdir(parents=True)
    unit = (start + 7).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8)
    doubtful.write_bytes((PRE_BLANK * 2 + unit).ljust(size, b"\0"))
    done = moved(store, "rocksdb")
    assert done.rebuilt is not None
    (finding,) = done.rebuilt.findings
    assert (finding.kind, finding.count) == ("expired-queues", 1)
    assert finding.expected == f"Doubtful:1: a last unit before {start}, where the log begins"
    assert finding.found == f"one at {start + 7}"
    found = contents(store.root / names.CONSUME_QUEUE)[OFFSETS]
    end = rocksdbqueue.parse_offset(found[rocksdbqueue.offset_key(b"Gone", 3, rocksdbqueue.MAX)])
    assert end == QueueEnd(7, 4)
    end = rocksdbqueue.parse_offset(found[rocksdbqueue.offset_key(b"Doubtful", 1, rocksdbqueue.MAX)])
    assert end == QueueEnd(0, 2), "no new message gets the place of the lost one"
    moved(store, "file", "defaultRocksDB")
    data = gone.read_bytes()
    assert len(data) == size
    assert data[: 5 * UNIT_LENGTH] == PRE_BLANK * 5  # the unit itself isn't in the log
    assert data[5 * UNIT_LENGTH :] == bytes(size - 5 * UNIT_LENGTH)


def test_light_queues_that_rocksdb_does_not_have_are_no_finding(
    tmp_path: Path, system: Callable[[System], None]
) -> None:
    system(System())
    store = unpack("5.5.0-lmq-own-ids", tmp_path / "store")
    assert any(path.name.startswith("%LMQ%") for path in (store.root / names.CONSUME_QUEUE).iterdir())
    done = moved(store, "rocksdb")
    assert done.rebuilt is not None
    assert done.rebuilt.findings == []
    assert any(line.startswith("light message queues: there are none") for line in done.plan.lacking)


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    store = unpack("5.5.0-rocksdb-separate-path", tmp_path / "store")
    asked = options(store)
    before = tree(store.root)
    plan: Any
    plan, _ = plan_migration(asked, "file")
    assert plan.lines == ["storeType=default"]
    assert any("storeType=defaultRocksDB" in line for line in plan.basis.kept), plan.basis
    assert "consumequeue_rocksdb" in plan.replaces
    plan, _ = plan_migration(asked, "rocksdb")
    assert (plan.already, plan.lines) == (True, [])
    assert tree(store.root) == before


@pytest.mark.parametrize(
    ("name", "store_type", "to"),
    [("5.5.0-tiny", "defaultRocksDB", "rocksdb"), ("5.5.0-rocksdb-settings-v1", "default", "file")],
)
def test_a_broker_conf_that_was_changed_before_is_refused(
    tmp_path: Path, name: str, store_type: str, to: str
) -> None:
    store = unpack(name, tmp_path / "store")
    asked = options(store, store_type)
    with pytest.raises(SettingsError, match="contradicts the store") as caught:
        plan_migration(asked, to, estimates=False)
    assert "that the broker was stopped with" in str(caught.value)


def test_after_double_write_the_settings_tell_that_broker_conf_was_changed(tmp_path: Path) -> None:
    store = unpack("5.5.0-rocksdb-double-write", tmp_path / "store")
    store.write_topics_json()
    plan_migration(options(store), "rocksdb", estimates=False)
    asked = options(store, "defaultRocksDB")
    with pytest.raises(SettingsError, match="contradicts the store"):
        plan_migration(asked, "rocksdb", estimates=False)


def test_expired_batch_queues_get_no_consume_queue_file(
    tmp_path: Path, system: Callable[[System], None]
) -> None:
    system(System())
    store = unpack("5.5.0-lost-head", tmp_path / "store")
    size = int(str(store.config["mappedFileSizeConsumeQueue"]))
    for topic in ("Gone", "Batches"):
        gone = names.queue_file(store.root, topic, 0, 0)
        gone.parent.mkdir(parents=True)
        unit = (7).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8)
        gone.write_bytes((PRE_BLANK * 4 + unit).ljust(size, b"\0"))
    moved(store, "rocksdb")
    attributes = {"attributes": {"queue.type": "BatchCQ"}}
    topics = store.root / names.CONFIG / "topics.json"
    topics.parent.mkdir(exist_ok=True)
    topics.write_text(
        json.dumps({"topicConfigTable": {"Batches": attributes}, "dataVersion": {"counter": 1}})
    )
    done = moved(store, "file", "defaultRocksDB")
    made = {path.name for path in (store.root / names.CONSUME_QUEUE).iterdir()}
    assert "Gone" in made
    assert "Batches" not in made
    assert any("begin at 0" in line for line in done.plan.lacking)


def test_batch_topics_are_read_from_the_bak_too(tmp_path: Path) -> None:
    store = unpack("5.3.3-batch-queue", tmp_path / "store")
    topics = store.write_topics_json()
    asked = options(store)
    plan, _ = plan_migration(asked, "rocksdb", estimates=False)
    assert plan.config.batch
    topics.rename(topics.with_name("topics.json.bak"))
    again, _ = plan_migration(asked, "rocksdb", estimates=False)
    assert again.config.batch == plan.config.batch


def test_findings_outlast_a_kill_behind_the_swap(tmp_path: Path, system: Callable[[System], None]) -> None:
    counting = Dying()
    system(counting)
    moved(unpack("5.3.3-rocksdb-lmq", tmp_path / "sound" / "store"), "file")
    already = []
    for last in (counting.calls - 3, counting.calls - 12):
        store = unpack("5.3.3-rocksdb-lmq", tmp_path / str(last) / "store")
        system(Dying(last))
        with pytest.raises(KilledError):
            moved(store, "file")
        system(System())
        again = moved(store, "file")
        already.append(again.plan.already)
        assert again.exit_code == 1
        assert "lead to other messages" in again.findings[0]
        assert set(again.findings) <= set(again.plan.lacking)
    assert already[0]
    assert moved(store, "file").exit_code == 0


def test_what_is_told_says_of_which_migration_it_is(tmp_path: Path, system: Callable[[System], None]) -> None:
    store = unpack("5.3.3-rocksdb-lmq", tmp_path / "store")
    staging = staging_of(store.root)
    staging.mkdir(parents=True)
    told = {"to": "rocksdb", "findings": ["some finding"], "differs": ["some difference"]}
    (staging / "migrated.json").write_text(json.dumps(told))
    done = moved(store, "file")
    before = "of the migration to rocksdb before: some"
    assert done.findings[0] == f"{before} finding"
    assert len(done.findings) > 1, "its own come behind"
    assert f"{before} difference" in done.plan.lacking
    assert moved(store, "file").findings == []


def test_a_staged_database_in_its_own_directory_is_kept(tmp_path: Path) -> None:
    for name in (f"{names.CONSUME_QUEUE_ROCKSDB}/CURRENT", f"{names.REPUT}/{names.ROCKSDB}/1.units"):
        path = tmp_path / "staging" / name
        path.parent.mkdir(parents=True)
        path.touch()
        discard_if_swapped(tmp_path / "staging")
        assert path.is_file()
        path.unlink()
        discard_if_swapped(tmp_path / "staging")
        assert not (tmp_path / "staging").exists()


@pytest.mark.parametrize("name", ["5.3.3-rocksdb-lmq", "5.5.0-rocksdb-mixed"])
def test_queues_whose_offsets_lead_to_other_messages_are_findings(
    tmp_path: Path, system: Callable[[System], None], name: str
) -> None:
    system(System())
    store = unpack(name, tmp_path / "store")
    done = moved(store, "file")
    assert done.exit_code == len(done.findings) == int("lmq" in name)
    assert all("lead to other messages" in line and "%LMQ%" in line for line in done.findings)
    assert set(done.findings) <= set(done.plan.lacking)
    assert done.differs == []


def test_queues_that_rocksdb_lacks_come_back_and_are_named(
    tmp_path: Path, system: Callable[[System], None]
) -> None:
    system(System())
    done = moved(unpack("5.3.3-rocksdb-recreated-topic", tmp_path / "store"), "file")
    assert any("come back" in line for line in done.differs), done


def test_a_torn_database_of_queues_is_said_and_does_not_stop_it(
    tmp_path: Path, system: Callable[[System], None]
) -> None:
    system(System())
    store = unpack("5.5.0-rocksdb-mixed", tmp_path / "store")
    torn = max((store.root / names.CONSUME_QUEUE).glob("*.sst"), key=lambda path: path.stat().st_size)
    torn.write_bytes(torn.read_bytes()[:100])
    asked = options(store)
    plan, _ = plan_migration(asked, "file", estimates=False)
    assert any("begin at 0 again, since" in line for line in plan.lacking)
    done = moved(store, "file")
    assert done.exit_code == len(done.findings) == 1
    assert not is_database(store.root / names.CONSUME_QUEUE)


def test_marks_of_drained_timers_do_not_hinder_a_migration(tmp_path: Path) -> None:
    store = unpack("5.5.0-rocksdb-index", tmp_path / "store")
    directory = store.root / names.ROCKSDB_STORE
    marks = {
        rocksdbindex.TIMER: {b"timeline_checkpoint": bytes(8), b"sys_topic_scan_offset_checkpoint": bytes(8)},
        rocksdbindex.TRANS: {rocksdbindex.LAST_POSITION: bytes(8)},
    }

    def put(family: str, entries: dict[bytes, bytes]) -> None:
        with writing(directory, rocksdbindex.TIMER, rocksdbindex.TRANS) as database:
            column = database.get_column_family(family)
            for key, value in entries.items():
                column[key] = value
            column.close()

    for family, entries in marks.items():
        put(family, entries)
    asked = options(store)
    plan_migration(asked, "file", estimates=False)
    with pytest.raises(UnsupportedError, match="timer has marks alone"):
        intended(RebuildOptions(store.root, broker_conf=asked.broker_conf, rocketmq_version=store.version))
    put(rocksdbindex.TIMER, {b"\x00\x00\x01\xa2\x00\x00\x00\x00@message": b"1"})
    with pytest.raises(UnsupportedError, match="timer has entries"):
        plan_migration(asked, "file", estimates=False)
    with pytest.raises(UnsupportedError, match="timer has entries"):
        intended(RebuildOptions(store.root, broker_conf=asked.broker_conf, rocketmq_version=store.version))


def test_files_of_settings_keep_their_other_keys_and_half_surrogate_pairs(tmp_path: Path) -> None:
    of_files = unpacked(tmp_path / "files")
    del of_files.manifest["config"]["enableLmq"]
    offsets = of_files.root / names.CONFIG / "consumerOffset.json"
    offsets.write_text('{"offsetTable":{"t@g\\ud83d":{0:1}},"groupTopicMap":{"g":["t"]}}')
    plan, _ = plan_migration(options(of_files), "rocksdb", estimates=False)
    written = json.loads(plan.config.write["config/consumerOffset.json"])
    assert written["offsetTable"] == {"t@g\ud83d": {"0": 1}}
    assert written["groupTopicMap"] == {"g": ["t"]}

    of_rocksdb = unpack("5.5.0-rocksdb-settings-v1", tmp_path / "rocksdb" / "store")
    asked = options(of_rocksdb)
    plan, _ = plan_migration(asked, "file", estimates=False)
    expected = json.loads(plan.config.write["config/consumerOffset.json"])
    old = {"offsetTable": {"old@g": {"0": 9}}, "groupTopicMap": {"g\ud83d": ["t"]}}
    (of_rocksdb.root / names.CONFIG / "consumerOffset.json").write_text(json.dumps(old))
    plan, _ = plan_migration(asked, "file", estimates=False)
    written = json.loads(plan.config.write["config/consumerOffset.json"])
    assert written["groupTopicMap"] == old["groupTopicMap"]
    assert written["offsetTable"] == expected["offsetTable"]
    assert written["dataVersion"]["counter"] > 0


def test_ends_that_a_mending_kept_are_named(tmp_path: Path, system: Callable[[System], None]) -> None:
    """A database has no place without a message."""
    system(System())
    store = unpack("5.5.0-restart", tmp_path / "store")
    lost = lose_ends(store, 2)
    unreadable(store, units(store, "Transfers", 1)["position"].astype(int).tolist())
    assert mend(options(store), apply=True).exit_code == 0
    done = moved(store, "rocksdb")
    assert done.exit_code == 1
    named = sorted(f"{topic}:{queue_id}" for topic, queue_id in [*lost, ("Transfers", 1)])
    assert done.findings[-1].endswith(", ".join(named)), done.findings
