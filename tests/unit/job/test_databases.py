"""What a rebuild into RocksDB refuses, before anything is changed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from reput.errors import StoreError, UnsupportedError
from reput.format import names
from reput.format.consumequeue import PRE_BLANK, UNIT_LENGTH, unit
from reput.format.rocksdbqueue import QueueEnd, checkpoint_value, offset_key, offset_value
from reput.job.options import RebuildOptions, TailOptions
from reput.job.plan import intended, prepare, with_delivery_state
from reput.job.rebuilding import carried
from reput.output.writer import BatchWriter
from reput.source.options import load
from tests.compat.served import in_files, places
from tests.golden.store import GoldenStore, unpack
from tests.local import NoLedger, Runner, parts_of
from tests.rebuilds import tree


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack("5.5.0-rocksdb-index", tmp_path / "store")


def options(golden: GoldenStore, **more: object) -> RebuildOptions:
    conf = golden.write_broker_conf(golden.root.parent / "broker.conf")
    given = {"store": golden.root, "broker_conf": conf, "rocketmq_version": golden.version, **more}
    return RebuildOptions(**given)  # type: ignore[arg-type]


def put(directory: Path, family: str, key: bytes, value: bytes) -> None:
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(directory)) if name != "default"}
    with Rdict(str(directory), Options(raw_mode=True), families) as database:
        of_family = database.get_column_family(family)
        of_family[key] = value
        of_family.close()


def test_chosen_queues(golden: GoldenStore) -> None:
    with pytest.raises(UnsupportedError, match="the queues of the whole store") as refused:
        intended(options(golden, queues=("Orders:1",)))
    assert refused.value.found == "--queue Orders:1"


def test_without_rocksdict(golden: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(UnsupportedError, match=r"pip install '.\[rocksdb\]'"):
        intended(options(golden))


@pytest.mark.parametrize("family", ["timer", "trans"])
def test_what_is_still_to_be_delivered(golden: GoldenStore, family: str, tmp_path: Path) -> None:
    intended(options(golden))
    put(golden.root / names.ROCKSDB_STORE, family, b"key", b"value")
    before = tree(golden.root)
    with pytest.raises(UnsupportedError, match="still to be delivered") as refused:
        intended(options(golden))
    assert refused.value.path == str(golden.root / names.ROCKSDB_STORE)
    assert refused.value.found == f"{family} has entries"
    intended(options(golden, index=False))
    intended(options(golden, out=tmp_path / "out"))
    assert tree(golden.root) == before


@pytest.mark.parametrize("lost", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_torn_database_is_not_taken_for_one_without_timers(
    golden: GoldenStore, lost: str, tmp_path: Path
) -> None:
    directory = golden.root / names.ROCKSDB_STORE
    for path in directory.glob(lost):
        path.unlink()
    before = tree(golden.root)
    with pytest.raises(StoreError, match="can't be told whether timers or half messages are in") as refused:
        intended(options(golden))
    assert str(refused.value.path).startswith(str(directory))
    assert "--no-index" in str(refused.value.next_step)
    assert f"move {directory} away" in str(refused.value.next_step)
    with pytest.raises(StoreError):
        with_delivery_state(directory)
    intended(options(golden, index=False))
    assert tree(golden.root) == before
    directory.rename(tmp_path / "away")
    intended(options(golden))


def test_the_end_of_a_queue_whose_messages_expired(golden: GoldenStore) -> None:
    (golden.root / names.COMMIT_LOG / names.offset_name(0)).unlink()
    put(golden.root / "consumequeue", "offset", offset_key(b"Gone", 3, b"max"), offset_value(7, 41))
    put(golden.root / "consumequeue", "offset", offset_key(b"Gone", 2, b"max"), checkpoint_value(7))
    with prepare(intended(options(golden))) as plan:
        found = carried(plan)
    assert found[b"Gone", 3] == QueueEnd(7, 41)
    assert all(end.position < plan.log.start for end in found.values())


def put_file(golden: GoldenStore, topic: str, units: bytes) -> None:
    size = golden.manifest["config"]["mappedFileSizeConsumeQueue"]
    path = golden.root / names.CONSUME_QUEUE / topic / "0" / names.offset_name(size)
    path.parent.mkdir(parents=True)
    path.write_bytes(units.ljust(size, b"\0"))


def test_queues_of_which_only_files_know_the_end_go_on(golden: GoldenStore) -> None:
    """Beside a database, as double write leaves them that was switched on, or off, later."""
    (golden.root / names.COMMIT_LOG / names.offset_name(0)).unlink()
    start = golden.manifest["config"]["mappedFileSizeCommitLog"]
    first = golden.manifest["config"]["mappedFileSizeConsumeQueue"] // UNIT_LENGTH
    put(golden.root / "consumequeue", "offset", offset_key(b"Both", 0, b"max"), offset_value(7, first))
    put(golden.root / "consumequeue", "offset", offset_key(b"Base", 0, b"max"), offset_value(9, first + 9))
    for topic in ("Both", "Base", "Files"):
        put_file(golden, topic, unit(8, 1, 0) + unit(start - 5, 5, 0))
    put_file(golden, "Blank", PRE_BLANK * 3 + unit(1 << 40, 5, 0))
    put_file(golden, "Never", b"")
    put_file(golden, "Lost", unit(start + 1, 5, 0))
    with prepare(intended(options(golden))) as plan:
        state = plan.journal.state
        plan.journal.append(replace(state.without_messages(), end=plan.log.end))
        put(golden.root / "consumequeue", "offset", offset_key(b"Gone", 3, b"max"), offset_value(start, 41))
        found = carried(plan)
        findings = plan.journal.state.findings
    assert {
        topic: found.get((topic.encode(), 0)) for topic in ("Both", "Base", "Files", "Blank", "Never")
    } == {
        "Both": QueueEnd(start - 5, first + 1),
        "Base": QueueEnd(9, first + 9),
        "Files": QueueEnd(start - 5, first + 1),
        "Blank": QueueEnd(start - 1, first + 2),
        "Never": None,
    }
    assert found[b"Lost", 0] == QueueEnd(0, first), "its unit leads into the log"
    assert found[b"Gone", 3] == QueueEnd(start - 1, 41)
    assert {one.outcome for one in findings} == {
        "without a message in the log, they go on behind it",
        "without a message in the log, they go on behind what their files hold",
    }


@pytest.mark.parametrize("name", ["5.5.0-rocksdb-mixed", "5.5.0-rocksdb-lost-head"])
def test_a_database_that_cant_be_read_isnt_needed(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "store")
    store.write_broker_conf(tmp_path / "broker.conf")
    for path in (store.root / "consumequeue").glob("*.sst"):
        path.write_bytes(path.read_bytes()[:100])
    with prepare(intended(options(store))) as plan:
        assert (carried(plan), carried(plan)) == ({}, {})
        findings = plan.journal.state.findings
    if name == "5.5.0-rocksdb-mixed":  # its log begins at 0, and nothing has expired
        assert findings == []
        return
    (finding,) = findings
    assert finding.kind == "expired-queues"
    assert finding.path.startswith(str(store.root / "consumequeue"))
    assert "begin at 0 again" in finding.outcome


@pytest.mark.parametrize("store_type", ["defaultRocksDB", "default"])
def test_a_tail_makes_files_of_a_log_whose_queues_are_in_rocksdb(tmp_path: Path, store_type: str) -> None:
    """Whatever broker.conf says of them; Spark's part of it is tests/spark/test_tail_rocksdb.py's."""
    store = unpack("5.3.3-rocksdb-mixed", tmp_path / "store")
    store.manifest["config"]["storeType"] = store_type
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    out = tmp_path / "out"
    asked = TailOptions(store.root, out, broker_conf=conf, rocketmq_version=store.version)
    with prepare(intended(asked, follows=True)) as plan:
        assert any("files are made" in line for line in plan.settings.basis.kept) == (store_type != "default")
        target = plan.target(flush_in_tasks=False)
        assert not target.in_rocksdb
        writer = BatchWriter(target, plan.journal, plan.log, Runner(), abort_present=plan.abort_present)
        writer._ledger = NoLedger()  # type: ignore[assignment]
        writer.begin()
        writer.write(parts_of(plan.log, 0, plan.end, 1 << 20, 0), 0)
        writer.finish()
        options = {"path": str(store.root), "brokerconf": str(conf), "rocketmqversion": store.version}
        (settings,) = load(options, dledger=False, derived=False)
        assert settings.root == store.root
    assert in_files(out) == places(store.dump()[names.CONSUME_QUEUE])
    assert not list(out.rglob("CURRENT"))
