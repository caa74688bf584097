"""One command behind another that a kill ended, or beside somebody who writes to the store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reput import mending
from reput.diagnosis.check import Diagnosis, check
from reput.errors import OutputError, StoreInUseError
from reput.format import names
from reput.job import in_place, undo
from reput.job.in_place import preview_undo
from reput.job.options import RebuildOptions
from reput.job.rebuilding import rebuild
from reput.mending import mend
from reput.output.writer import BatchWriter
from reput.store import files, swap
from reput.store.swap import KEPT, Intent, is_pending
from reput.store.system import System
from reput.verify.plan import VerifyOptions
from tests.crash import Dying, KilledError, died
from tests.rebuilds import give_settings, golden, overwrite, record_starts, tree

NAME = "5.5.0-mixed"
SEGMENT = 65_536


@pytest.fixture
def options(tmp_path: Path) -> RebuildOptions:
    """A sound store."""
    store = golden(NAME, tmp_path)
    give_settings(store)
    store.write_topics_json()
    return RebuildOptions(store.root, broker_conf=tmp_path / "broker.conf", rocketmq_version=store.version)


def segments(options: RebuildOptions) -> list[Path]:
    return sorted((options.store / names.COMMIT_LOG).iterdir())


def looked_at(options: RebuildOptions, *, quick: bool = False) -> Diagnosis:
    wanted = VerifyOptions(options.store, None, options.broker_conf, options.rocketmq_version)
    return check(wanted, quick=quick)


def replica_of(options: RebuildOptions) -> Path:
    """A copy of the log, of which the store then loses the first three segments."""
    replica = options.store.parent / "replica"
    shutil.copytree(options.store / names.COMMIT_LOG, replica / names.COMMIT_LOG)
    for path in segments(options)[:3]:
        path.unlink()
    return replica


def killed_before(monkeypatch: pytest.MonkeyPatch, number: int, run: Callable[[], object]) -> None:
    """Do something, and die before so many names were put in place."""
    put, count = swap._put, 0

    def die(root: Path, intent: Intent, name: str) -> None:
        nonlocal count
        count += 1
        if count > number:
            raise KilledError
        put(root, intent, name)

    with monkeypatch.context() as patched:
        patched.setattr(swap, "_put", die)
        with pytest.raises(KilledError):
            run()


@pytest.mark.parametrize("number", [0, 2])
def test_a_rebuild_behind_a_mend_makes_queues_of_the_segments_that_it_put_in_place(
    options: RebuildOptions, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    replica = replica_of(options)
    killed_before(monkeypatch, number, lambda: mend(options, replica, apply=True))
    found = [looked_at(options), looked_at(options, quick=True), looked_at(options, quick=True).for_start()]
    found.append(mend(options).now)
    for one in found:
        assert [left.kind for left in one.left] == ["half-replaced"]
        assert one.exit_code == 3, "a guard refuses it"
        assert "mend" in one.next_steps[0]
        assert "--apply --broker-conf" in one.next_steps[0]
    summary = rebuild(options, None)
    assert (summary.start, summary.findings) == (0, [])
    assert looked_at(options).exit_code == 0


def test_a_rebuild_behind_a_mend_of_some_files_makes_all_of_them(
    options: RebuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(options.store / names.INDEX)
    killed_before(monkeypatch, 1, lambda: mend(options, apply=True))
    lost = options.store / names.CONSUME_QUEUE / "Orders"
    before = tree(lost)
    shutil.rmtree(lost)
    rebuild(options, None)
    assert tree(lost) == before
    assert not is_pending(options.store)


def test_a_rebuild_ends_its_own_swap_and_no_more(
    options: RebuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_before(monkeypatch, 1, lambda: rebuild(options, None))
    kept = rebuild(options, None).kept
    assert [str(path) for path in options.store.glob(f"{KEPT}*")] == [kept]


def test_an_interrupted_undo_is_ended_by_undo(
    options: RebuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuild(options, None)
    killed_before(monkeypatch, 1, lambda: undo(options.store))
    assert looked_at(options).next_steps == [f"`reput undo {options.store}` finishes that."]
    undo(options.store)
    assert looked_at(options).exit_code == 0


@pytest.mark.parametrize("number", range(4))
@pytest.mark.slow
def test_behind_an_interrupted_undo_and_a_broker_all_name_the_mending(
    options: RebuildOptions, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    overwrite(options.store, SEGMENT, record_starts(options.store, SEGMENT)[3] + 4, b"oops")
    shutil.rmtree(options.store / names.CONSUME_QUEUE / "Orders")
    assert mend(options, apply=True).exit_code == 0
    ours = (names.REPUT, names.LOCK, *(path.name for path in options.store.glob(f"{KEPT}*")))
    mended = tree(options.store, *ours)
    killed_before(monkeypatch, number, lambda: undo(options.store))
    lock = options.store / names.LOCK
    lock.write_text("lock")  # as a broker does when it starts
    os.utime(lock, ns=(0, lock.stat().st_mtime_ns + 1))
    given = f"--broker-conf {options.broker_conf} --rocketmq-version {options.rocketmq_version}"
    advice = (
        f"`reput mend {options.store} --apply{{}}` gives that command up, and mends the store as it is now."
    )
    for found in (looked_at(options), looked_at(options, quick=True), mend(options).now):
        assert [one.kind for one in found.left] == ["half-replaced"]
        assert "since then lock written to at 20" in found.left[0].found
        assert found.next_steps == [advice.format(f" {given}")]
    for run in (preview_undo, undo):
        with pytest.raises(OutputError, match="lock written to at 20") as refused:
            run(options.store)
        assert refused.value.next_step == advice.format("")
    assert is_pending(options.store)
    assert mend(options, apply=True).exit_code == 0
    assert looked_at(options).exit_code == 0
    ours = (names.REPUT, names.LOCK, *(path.name for path in options.store.glob(f"{KEPT}*")))
    assert tree(options.store, *ours) == mended


@pytest.mark.parametrize("quick", [False, True])
def test_a_record_that_cant_be_read_is_a_half_replaced_store_too(
    options: RebuildOptions, quick: bool
) -> None:
    record = options.store / names.REPUT / swap.INTENT
    record.parent.mkdir(exist_ok=True)
    record.write_bytes(b"{")
    found = looked_at(options, quick=quick).for_start()
    assert ([one.kind for one in found.left], found.exit_code) == (["half-replaced"], 3)


def test_an_undo_that_dies_anywhere_is_ended_by_the_next_one(
    options: RebuildOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(options.store, names.LOCK)
    rebuild(options, None)
    shutil.copytree(options.store, tmp_path / "rebuilt")
    counting = Dying()
    monkeypatch.setattr(files, "system", counting)
    undo(options.store)
    said = set()
    for last in range(1, counting.calls + 1):
        shutil.rmtree(options.store)
        shutil.copytree(tmp_path / "rebuilt", options.store)
        monkeypatch.setattr(files, "system", Dying(last))
        assert died(lambda: undo(options.store))
        monkeypatch.setattr(files, "system", System())
        try:
            undo(options.store)
        except OutputError as error:
            said.add(error.problem)
        after = tree(options.store, names.LOCK)
        assert {
            name: one for name, one in after.items() if not name.startswith((KEPT, names.REPUT))
        } == before
    assert said == {"there is nothing to undo"}, "what died behind the last step was done"


@pytest.mark.parametrize("from_replica", [False, True])
def test_what_was_written_while_a_mend_looked_stays(
    options: RebuildOptions, monkeypatch: pytest.MonkeyPatch, from_replica: bool
) -> None:
    replica = replica_of(options) if from_replica else None
    last = segments(options)[-1]
    sound = last.read_bytes()
    if not from_replica:
        last.write_bytes(sound[:4] + bytes(4) + sound[8:])
    refuse = mending._refuse_in_use

    def write(snapshot: mending.Snapshot) -> None:
        refuse(snapshot)
        last.write_bytes(sound)

    monkeypatch.setattr(mending, "_refuse_in_use", write)
    with pytest.raises(StoreInUseError, match="written to while it was looked at") as refused:
        mend(options, replica, apply=True)
    assert refused.value.path == str(last)
    assert last.read_bytes() == sound
    assert not any(options.store.glob(f"{KEPT}*"))
    monkeypatch.undo()
    assert mend(options, replica, apply=True).exit_code == 0


def test_an_output_is_refused_where_any_of_the_missing_segments_is_back(
    options: RebuildOptions, tmp_path: Path
) -> None:
    gone = segments(options)[2:4]
    for path in gone:
        path.rename(tmp_path / path.name)
    beside = replace(options, out=tmp_path / "out")
    rebuild(beside, None)
    shutil.copy2(tmp_path / gone[1].name, gone[1])
    with pytest.raises(OutputError, match="segments that this output was made without") as refused:
        rebuild(beside, None)
    assert refused.value.expected == f"no segment at {3 * SEGMENT}"


def test_what_was_begun_at_another_path_is_begun_anew(
    options: RebuildOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(options.store / names.INDEX)

    def die(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(BatchWriter, "_commit", die)
        with pytest.raises(KilledError):
            mend(options, apply=True)
    assert in_place.staging_of(options.store).exists()
    moved = options.store.rename(tmp_path / "moved")
    assert mend(replace(options, store=moved), apply=True).exit_code == 0
    assert looked_at(replace(options, store=moved)).exit_code == 0
