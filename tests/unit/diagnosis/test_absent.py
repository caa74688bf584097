"""What neither a start nor a comparison tells of, and what isn't made anew without being asked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.diagnosis.check import Diagnosis, check
from reput.diagnosis.findings import not_derived
from reput.diagnosis.verdict import Area, Effect, Finding, Remedy
from reput.format import names
from reput.format.checkpoint import StoreCheckpoint
from reput.job.options import RebuildOptions
from reput.mending import mend, steps_of
from reput.verify.plan import VerifyOptions
from tests.golden.store import GoldenStore, unpack
from tests.rebuilds import broker_conf, give_settings, golden


def found_in(store: GoldenStore, version: str | None = None, *, quick: bool = True) -> Diagnosis:
    conf = store.write_broker_conf(store.root.parent / "broker.conf")
    return check(VerifyOptions(store.root, None, conf, version or store.version), quick=quick)


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return unpack("5.3.3-restart", tmp_path / "store")


def test_of_a_whole_store_nothing_is_missing(store: GoldenStore) -> None:
    conf = store.write_broker_conf(store.root.parent / "broker.conf")
    snapshot = take(StoreSettings.load(store.root, conf, store.version))
    assert list(not_derived(snapshot)) == []
    shutil.rmtree(store.root / names.CONSUME_QUEUE)
    shutil.rmtree(store.root / names.INDEX)
    bare = take(StoreSettings.load(store.root, conf, store.version))
    assert [(one.kind, one.path) for one in not_derived(bare)] == [
        ("no-queues", str(store.root / names.CONSUME_QUEUE)),
        ("no-index", str(store.root / names.INDEX)),
    ]


def test_a_new_broker_has_lost_no_log(store: GoldenStore) -> None:
    """Before its first message it has a checkpoint of zeros, and nothing else."""
    shutil.rmtree(store.root)
    for name in (names.COMMIT_LOG, names.CONSUME_QUEUE, names.INDEX):
        (store.root / name).mkdir(parents=True)
    (store.root / names.CHECKPOINT).write_bytes(StoreCheckpoint().encode())
    assert [one.kind for one in found_in(store).left] == []
    (store.root / names.CHECKPOINT).write_bytes(StoreCheckpoint(physic_msg_timestamp=1).encode())
    assert [one.kind for one in found_in(store).left] == ["no-log"]


def test_an_empty_queue_file_that_the_start_deletes_is_none_to_mend(store: GoldenStore) -> None:
    """A broker that is killed between making and filling it leaves one (from 5.1.3 on it is deleted)."""
    queue = store.root / names.CONSUME_QUEUE / "Orders" / "0"
    newest = max(queue.iterdir())
    (queue / names.offset_name(int(newest.name) + newest.stat().st_size)).touch()
    for quick in (True, False):
        found = found_in(store, quick=quick)
        assert (found.exit_code, [one.kind for one in found.findings]) == (0, ["empty-file"])


def test_a_topic_without_queues_may_have_been_deleted(store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Orders")
    for quick in (True, False):
        found = found_in(store, quick=quick)
        assert found.exit_code == 3
        assert "If Orders was deleted and created again on purpose, don't mend" in found.next_steps[1]
    shutil.rmtree(store.root / names.CONSUME_QUEUE)
    assert not found_in(store).unless_deleted


def test_an_index_that_no_start_makes_is_said_once(store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.INDEX)
    for quick in (True, False):
        found = found_in(store, quick=quick)
        assert Area.INDEX in {one.area for one in found.findings}
        assert found.exit_code == 3
        assert not {"no-index"} & {one.kind for one in found.findings}, "it is said in detail"


def test_queues_that_the_start_makes_are_to_be_started_with(store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.CONSUME_QUEUE)
    found = found_in(store)
    (one,) = found.findings
    assert (one.kind, one.effect, one.remedy, found.exit_code) == ("no-queues", Effect.HEALS, Remedy.START, 0)


@pytest.mark.parametrize(("name", "version"), [("5.3.3-restart", "5.5"), ("5.5.0-mixed", "5.3")])
def test_an_index_of_another_release_is_not_made_anew_by_the_wrong_one(
    name: str, version: str, tmp_path: Path
) -> None:
    store = unpack(name, tmp_path / "other")
    found = found_in(store, version, quick=False)
    assert not [one for one in found.findings if one.area is Area.INDEX]
    assert {"tags-not-indexed", "tags-indexed"} & {one.kind for one in found.notes}
    assert not [step for step in steps_of(found, None) if step.kind == "make-index"]


def test_what_a_mending_has_no_place_for_is_saved_after_it(store: GoldenStore) -> None:
    lost = Finding(
        "repeated-queue-offset", "log", "", "two", area=Area.LOG, effect=Effect.GONE, remedy=Remedy.NONE
    )
    missing = Finding(
        "missing-unit", "queue", "", "none", area=Area.QUEUE, effect=Effect.LACKS, remedy=Remedy.MEND
    )
    settings = StoreSettings.load(store.root, None, store.version)
    alone = Diagnosis(settings, [lost], quick=True).next_steps
    assert any("export" in step and "repeated-queue-offset" in step for step in alone)
    for findings in ([missing], [lost, missing]):
        steps = Diagnosis(settings, findings, quick=True).next_steps
        assert not any("export" in step for step in steps)
        assert any("mend" in step for step in steps)


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("name", ["5.3.3-batch-queue", "5.3.3-lmq"])
def test_what_a_start_makes_is_right_for_check_as_for_mend(name: str, crashed: bool, tmp_path: Path) -> None:
    """Batch queues, and light queues whose messages don't stand at their own places."""
    store = golden(name, tmp_path)
    give_settings(store)
    store.write_topics_json()
    for lost in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE, names.INDEX):
        shutil.rmtree(store.root / lost, ignore_errors=True)
    (store.root / names.CHECKPOINT).unlink()
    if crashed:
        (store.root / names.ABORT).touch()
    before = found_in(store, quick=False)
    assert before.exit_code == 0
    assert before.plan is not None
    assert before.plan.prediction.units_added > 100
    conf = broker_conf(store)
    mended = mend(RebuildOptions(store.root, broker_conf=conf, rocketmq_version=store.version), apply=True)
    assert (mended.applied, mended.verdict.text) == (False, before.verdict.text)
