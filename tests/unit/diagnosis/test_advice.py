"""What findings say that is to be done by hand, done as it is said: then there is nothing more to say."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from reput.config.kept import parse
from reput.config.settings import StoreSettings
from reput.demo import VERSION, DemoStore
from reput.demo import unpack as unpack_demo
from reput.diagnosis.check import Diagnosis, check
from reput.diagnosis.verdict import Effect, Remedy
from reput.errors import OutputError, StoreError
from reput.format import consumequeue, names
from reput.format.commitlog import MAGIC_BLANK
from reput.job.options import RebuildOptions
from reput.lag import Flag, lag
from reput.mending import Mended, mend
from reput.report.gather import GatherOptions, gather
from reput.verify.plan import VerifyOptions
from tests.golden.store import unpack

_FILES = ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json")


@pytest.fixture
def store(tmp_path: Path) -> DemoStore:
    return unpack_demo(tmp_path / "demo")


def told(store: DemoStore, *, quick: bool = False) -> Diagnosis:
    return check(VerifyOptions(store.root, None, store.broker_conf, VERSION), quick=quick)


def ends(store: DemoStore) -> None:
    for quick in (True, False):
        found = told(store, quick=quick)
        assert (found.exit_code, found.next_steps) == (0, []), found.findings


def segments(log: Path) -> list[Path]:
    return sorted(log.iterdir())


@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("data", [None, b"", b"{"])
def test_a_file_of_settings_that_nobody_has(name: str, data: bytes | None, store: DemoStore) -> None:
    file = store.root / names.CONFIG / name
    file.with_name(f"{name}.bak").unlink(missing_ok=True)
    file.unlink()
    if data is not None:
        file.write_bytes(data)
    found = told(store)
    if data is None and name == "subscriptionGroup.json":
        ends(store)
        return
    assert found.exit_code == 3
    (step,) = found.next_steps
    assert f"write {{}} into {name}" in step
    file.write_bytes(b"{}")
    ends(store)


@pytest.mark.parametrize("empty", [True, False])
def test_settings_that_are_all_gone(empty: bool, store: DemoStore) -> None:
    config = store.root / names.CONFIG
    shutil.rmtree(config)
    config.mkdir()
    for name in _FILES if empty else ():
        (config / name).touch()
    (step,) = told(store).next_steps
    assert f"write {{}} into {', '.join(_FILES)};" in step
    for name in _FILES:
        (config / name).write_bytes(b"{}")
    ends(store)


def test_of_a_database_that_is_gone_a_guard_skips_its_look(tmp_path: Path) -> None:
    golden = unpack("5.5.0-rocksdb-settings-v2", tmp_path / "golden")
    shutil.rmtree(golden.root / names.CONFIG)
    conf = golden.write_broker_conf(tmp_path / "broker.conf")
    found = check(VerifyOptions(golden.root, None, conf, golden.version), quick=True)
    (one,) = [one for one in found.findings if one.kind == "missing-config"]
    assert "write {}" not in one.step
    assert "let a guard skip its look once" in one.step


def test_committed_offsets_that_a_start_does_not_take_over(tmp_path: Path) -> None:
    """A JSON file whose counter is 0, where the database isn't there (``reput lag`` says so, too)."""
    golden = unpack("5.5.0-rocksdb-settings-single", tmp_path / "golden")
    shutil.rmtree(golden.root / names.CONFIG / "metadata")
    conf = golden.write_broker_conf(tmp_path / "broker.conf")
    for quick in (True, False):
        found = check(VerifyOptions(golden.root, None, conf, golden.version), quick=quick)
        (one,) = [one for one in found.findings if one.kind == "missing-config"]
        assert one.found == "consumerOffset.json alone, which a start doesn't take over: its counter is 0"
        assert "without committed offsets" in one.outcome
        assert found.exit_code == 3


def test_what_is_no_store_is_not_half_replaced(store: DemoStore) -> None:
    with pytest.raises(StoreError, match=r"there is no store here; .* found a file\. Check the STORE"):
        check(VerifyOptions(store.broker_conf, None, None, VERSION))


def test_a_pending_swap_that_cannot_be_looked_at_counts(store: DemoStore) -> None:
    (store.root / names.REPUT).write_text("no directory")
    assert [one.kind for one in told(store).findings] == ["half-replaced"]


def test_each_kind_that_a_start_does_not_take_over_is_named(tmp_path: Path) -> None:
    golden = unpack("5.5.0-rocksdb-settings-single", tmp_path / "golden")
    shutil.rmtree(golden.root / names.CONFIG / "metadata")
    for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
        path = golden.root / names.CONFIG / name
        path.write_text(
            json.dumps({**cast(dict[str, object], parse(path.read_bytes())), "dataVersion": {"counter": 0}})
        )
    conf = golden.write_broker_conf(tmp_path / "broker.conf")
    found = check(VerifyOptions(golden.root, None, conf, golden.version), quick=True)
    gone = {Path(one.path).name for one in found.findings if one.kind == "missing-config"}
    assert gone == {"topics.json", "subscriptionGroup.json", "consumerOffset.json"}


@pytest.fixture
def outside(store: DemoStore, tmp_path: Path) -> Path:
    """The store's log, outside of it."""
    log = tmp_path / "log"
    (store.root / names.COMMIT_LOG).rename(log)
    with store.broker_conf.open("a") as conf:
        conf.write(f"storePathRootDir={store.root}\nstorePathCommitLog={log}\n")
    return log


def test_what_such_a_log_lacks_for_good_a_slave_may_have(store: DemoStore, outside: Path) -> None:
    with segments(outside)[0].open("r+b") as first:
        first.seek(88)  # in the first message's body
        first.write(bytes(4))
    found = told(store)
    assert [one.kind for one in found.left] == ["bad-crc"]
    assert any("--from REPLICA" in step for step in found.next_steps)


def test_a_stray_file_of_a_log_outside_the_store(store: DemoStore, outside: Path) -> None:
    stray = outside / "notes.txt"
    stray.write_text("hi\n")
    assert told(store).next_steps == [f"{stray}: Move it elsewhere: it is no file of the store."]
    stray.unlink()
    ends(store)


def test_a_segment_that_a_log_outside_the_store_lacks(
    store: DemoStore, outside: Path, tmp_path: Path
) -> None:
    replica = tmp_path / "replica"
    shutil.copytree(outside, replica / names.COMMIT_LOG)
    lost = segments(outside)[2]
    lost.unlink()
    step, replicas = told(store).next_steps
    assert "copy the whole segment there from a slave that has all of it" in step
    assert "--from REPLICA" in replicas
    options = RebuildOptions(store.root, broker_conf=store.broker_conf, rocketmq_version=VERSION)
    for apply in (False, True):
        (only,) = mend(options, replica=replica, apply=apply).steps[1:]
        assert (only.by_hand, f"copy {lost.name} whole from {replica} to {outside}" in only.said) == (
            True,
            True,
        )
    shutil.copy(replica / names.COMMIT_LOG / lost.name, lost)
    ends(store)


def test_a_last_segment_that_is_a_link_to_nowhere(store: DemoStore, tmp_path: Path) -> None:
    """Its disk may not be mounted: nothing is made of what is left."""
    last = [path for path in segments(store.root / names.COMMIT_LOG) if any(path.read_bytes())][-1]
    for path in segments(store.root / names.COMMIT_LOG):
        if path > last:
            path.unlink()
    last.rename(tmp_path / "elsewhere")
    last.symlink_to(tmp_path / "gone")
    for quick in (True, False):
        found = told(store, quick=quick)
        assert f"{last} is a link that leads nowhere: bring back what it led to" in found.next_steps[0]
        assert found.exit_code == found.for_start().exit_code == 3
        assert not found.mendable
    last.unlink()
    last.symlink_to(tmp_path / "elsewhere")
    ends(store)


def test_a_file_that_hides_what_a_start_does_is_named(store: DemoStore) -> None:
    first = segments(store.root / names.COMMIT_LOG)[0]
    stray = first.with_name("77")
    stray.touch()
    os.truncate(stray, first.stat().st_size)
    found = told(store)
    assert found.next_steps[0].startswith(f"{stray}: Move it elsewhere")
    assert not any("--apply does" in step for step in found.next_steps)
    stray.unlink()
    ends(store)


def test_a_store_that_does_not_start_is_not_started_as_it_is(store: DemoStore) -> None:
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Orders")
    (step,) = told(store).unless_deleted
    assert "can start as it is" in step
    os.truncate(segments(store.root / names.COMMIT_LOG)[2], 500_000)
    (step,) = told(store).unless_deleted
    assert "can start as it is" not in step


def test_queues_in_a_database_elsewhere_are_no_files(tmp_path: Path) -> None:
    golden = unpack("5.5.0-rocksdb-separate-path", tmp_path / "golden")
    conf = golden.write_broker_conf(tmp_path / "broker.conf")
    lines = conf.read_text().splitlines(keepends=True)
    conf.write_text("".join(line for line in lines if "useSeparate" not in line))
    kinds = []
    for quick in (True, False):
        found = check(VerifyOptions(golden.root, None, conf, golden.version), quick=quick)
        kinds.append({one.kind for one in found.left})
        assert all(one.remedy is not Remedy.MEND for one in found.left if one.kind == "not-a-file")
        gathered = gather(GatherOptions(golden.root, conf, golden.version, quick=quick))
        assert (gathered.exit_code, gathered.next_steps) == (found.exit_code, found.next_steps)
    assert "not-a-file" not in kinds[1]


def test_a_torn_index_database_is_one_finding(tmp_path: Path) -> None:
    golden = unpack("5.5.0-rocksdb-index", tmp_path / "golden")
    conf = golden.write_broker_conf(tmp_path / "broker.conf")
    (golden.root / names.ROCKSDB_STORE / "CURRENT").write_text("x")
    answers = []
    for quick in (True, False):
        found = check(VerifyOptions(golden.root, None, conf, golden.version), quick=quick)
        answers.append((found.exit_code, found.next_steps))
    assert answers[0] == answers[1]


def test_lag_names_the_check_with_its_settings(store: DemoStore, tmp_path: Path) -> None:
    conf = store.broker_conf.rename(tmp_path / "other.conf")
    for path in (store.root / "consumequeue").glob("*/*/*"):
        units = list(consumequeue.UNIT.iter_unpack(path.read_bytes()))
        away = [((1 << 40) if size else at, size, tags) for at, size, tags in units]
        path.write_bytes(b"".join(consumequeue.UNIT.pack(*one) for one in away))
    found = lag(StoreSettings.load(store.root, conf, None))
    assert {flag for row in found.rows for flag in row.flags} == {Flag.UNREADABLE}
    assert found.next_steps == [
        f"`reput check {store.root} --broker-conf {conf}` says why queues can't be read"
    ]


@pytest.mark.parametrize("name", ["timerwheel", "timerwheel.3", f"timerlog/{names.offset_name(0)}"])
def test_a_timer_file_that_nobody_has(name: str, store: DemoStore) -> None:
    with store.broker_conf.open("a") as conf:
        conf.write("timerWheelEnable=true\ntimerWheelSnapshotFlush=true\n")
    broken = store.root / name
    broken.parent.mkdir(exist_ok=True)
    broken.write_bytes(b"x" * 100)
    found = told(store)
    assert found.exit_code == 4
    said = "ithout one, move timerwheel with each timerwheel.N, timerlog and config/timercheck away"
    assert said in found.next_steps[0]
    for path in [*store.root.glob("timer*"), store.root / "config" / "timercheck"]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    ends(store)


def applied(store: DemoStore) -> Mended:
    options = RebuildOptions(store.root, broker_conf=store.broker_conf, rocketmq_version=VERSION)
    return mend(options, apply=True)


def abort_is_a_directory(root: Path) -> None:
    (root / names.ABORT).mkdir()


def settings_are_torn(root: Path) -> None:
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (root / names.CONFIG / name).write_bytes(b"{")


def index_database_is_torn(root: Path) -> None:
    (root / names.ROCKSDB_STORE).mkdir()
    (root / names.ROCKSDB_STORE / "CURRENT").write_text("x")


@pytest.mark.parametrize("damage", [abort_is_a_directory, settings_are_torn, index_database_is_torn])
def test_a_mending_says_what_is_left_for_the_operator(
    damage: Callable[[Path], None], store: DemoStore
) -> None:
    damage(store.root)
    for file in (store.root / names.CONSUME_QUEUE / "Orders" / "0").iterdir():
        file.unlink()
    done = applied(store)
    assert done.made
    after = told(store)
    assert done.exit_code == after.exit_code != 0
    assert done.after is not None
    assert {(one.kind, one.path) for one in after.left} == {(one.kind, one.path) for one in done.after.left}


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("name", ["5.5.0-crash", "4.9.7-crash", "5.5.0-restart"])
def test_segments_that_go_with_a_cut_are_counted_and_kept(
    name: str, with_index: bool, tmp_path: Path
) -> None:
    """One other bit in a closing record: a start cuts no message there, and deletes the segments behind."""
    golden = unpack(name, tmp_path / "golden")
    first = segments(golden.root / names.COMMIT_LOG)[0]
    blank = first.read_bytes().rindex(struct.pack(">I", MAGIC_BLANK))
    with first.open("r+b") as log:
        log.seek(blank + 1)
        log.write(b"\x54")
    conf = golden.write_broker_conf(tmp_path / "broker.conf")
    if not with_index:
        shutil.rmtree(golden.root / names.INDEX)
        with conf.open("a") as text:
            text.write("messageIndexEnable=false\n")
    wanted = VerifyOptions(golden.root, None, conf, golden.version)
    quick, whole = check(wanted, quick=True), check(wanted)
    assert whole.exit_code == 3
    if name.endswith("crash"):  # else a start doesn't come by
        assert quick.exit_code == 3
        assert sum(one.messages for one in whole.left) >= sum(one.messages for one in quick.left) > 0
    assert whole.mendable
    done = mend(RebuildOptions(golden.root, broker_conf=conf, rocketmq_version=golden.version), apply=True)
    assert (done.exit_code, done.lost) == (0, 0)
    assert check(wanted).exit_code == 0


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_records_beside_queues_that_are_switched_off_are_no_finding(version: str, tmp_path: Path) -> None:
    golden = unpack(f"{version}-restart", tmp_path / "golden")
    beside = golden.root / names.CONSUME_QUEUE_EXT / "Orders" / "0"
    beside.mkdir(parents=True)
    (beside / names.offset_name(0)).write_bytes(bytes(1000))
    conf = golden.write_broker_conf(tmp_path / "broker.conf")
    for quick in (True, False):
        found = check(VerifyOptions(golden.root, None, conf, version), quick=quick)
        assert (found.exit_code, found.next_steps) == (0, [])


def test_a_database_that_nobody_uses_is_no_finding_of_a_report(store: DemoStore) -> None:
    (store.root / names.CONSUME_QUEUE_ROCKSDB).mkdir()
    (store.root / names.CONSUME_QUEUE_ROCKSDB / "CURRENT").touch()
    gathered = gather(GatherOptions(store.root, store.broker_conf, VERSION, quick=True))
    assert gathered.exit_code == told(store, quick=True).exit_code == 0


@pytest.mark.parametrize("name", [names.INDEX, names.CONSUME_QUEUE])
def test_a_plan_says_what_an_application_refuses(name: str, store: DemoStore, tmp_path: Path) -> None:
    (store.root / name).rename(tmp_path / "there")
    (store.root / name).symlink_to(tmp_path / "there")
    damaged = max(path for path in (tmp_path / "there").rglob("*") if path.is_file())
    damaged.unlink()
    options = RebuildOptions(store.root, broker_conf=store.broker_conf, rocketmq_version=VERSION)
    planned = mend(options).steps[0]
    assert planned.by_hand
    with pytest.raises(OutputError, match="a symbolic link can't be swapped") as refused:
        mend(options, apply=True)
    assert str(refused.value) == planned.said


def test_a_lock_that_is_a_link_to_nowhere_is_named(store: DemoStore) -> None:
    lock = store.root / names.LOCK
    lock.unlink(missing_ok=True)
    lock.symlink_to("nowhere")
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Orders" / "0")
    with pytest.raises(OutputError, match=f"{lock} is a link that isn't followed here: move it elsewhere"):
        applied(store)
    lock.unlink()
    applied(store)
    ends(store)


def test_what_a_replica_brings_back_is_not_left_for_the_operator(tmp_path: Path) -> None:
    golden = unpack("5.5.0-rocksdb-index", tmp_path / "golden")
    conf = golden.write_broker_conf(tmp_path / "broker.conf")
    replica = shutil.copytree(golden.root, tmp_path / "replica")
    segments(golden.root / names.COMMIT_LOG)[0].unlink()
    (golden.root / names.ROCKSDB_STORE / "CURRENT").write_text("x")
    options = RebuildOptions(golden.root, broker_conf=conf, rocketmq_version=golden.version)
    done = mend(options, replica, apply=True)
    after = check(VerifyOptions(golden.root, None, conf, golden.version))
    assert done.exit_code == after.exit_code == 0


def test_what_a_replica_does_not_bring_back_is_said_once(store: DemoStore, tmp_path: Path) -> None:
    replica = shutil.copytree(store.root, tmp_path / "replica")
    segments(store.root / names.COMMIT_LOG)[2].unlink()
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store.root / names.CONFIG / name).unlink(missing_ok=True)
    options = RebuildOptions(store.root, broker_conf=store.broker_conf, rocketmq_version=VERSION)
    done, after = mend(options, replica, apply=True), told(store)
    assert done.after is not None
    left = [[(one.kind, one.path) for one in found.left] for found in (done.after, after)]
    assert left[0] == left[1] == [("missing-config", str(store.root / names.CONFIG / "consumerOffset.json"))]


def test_a_slave_that_is_behind_is_not_copied_over_what_is_here(
    store: DemoStore, outside: Path, tmp_path: Path
) -> None:
    last = [path for path in segments(outside) if any(path.read_bytes())][-1]
    replica = tmp_path / "replica"
    shutil.copytree(outside, replica / names.COMMIT_LOG)
    with (replica / names.COMMIT_LOG / last.name).open("r+b") as behind:
        behind.seek(300_000)
        behind.write(bytes(last.stat().st_size - 300_000))
    with last.open("r+b") as damaged:
        damaged.seek(100_000)
        damaged.write(bytes(60))
    options = RebuildOptions(store.root, broker_conf=store.broker_conf, rocketmq_version=VERSION)
    found = mend(options, replica=replica)
    assert found.replica is not None
    assert found.replica.taken
    assert all(step.by_hand for step in found.steps)
    assert not any(f"whole from {replica}" in step.said for step in found.steps)


def test_a_link_that_could_be_no_segment_is_none_that_is_lost(store: DemoStore) -> None:
    (store.root / names.COMMIT_LOG / "foo").symlink_to("/nowhere/x")
    found = told(store, quick=True)
    assert all(one.effect is not Effect.LOSES for one in found.findings)
