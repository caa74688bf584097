"""``reput undo``, as a process and in this one: the store is again what it was before a rebuild in place."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from reput.format import names
from reput.store import swap
from reput.store.swap import Swap
from tests.rebuilds import Command, broker_lock, run, tree

OLD, NEW = "20261121T093000Z", "20261121T094500Z"
QUEUE = "consumequeue/TopicA/0/00000000000000000000"
OURS = (names.REPUT, names.LOCK)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    for name in ("commitlog/00000000000000000000", QUEUE, "checkpoint"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"old {name}")
    return root


def replace(root: Path, stamp: str, *chosen: str) -> Path:
    """What a rebuild in place does in the end."""
    staging = root / names.REPUT / "staging"
    for name in chosen:
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_text(f"new {name} {stamp}")
    tops = sorted({Path(name).parts[0] for name in chosen})
    return Swap(root, staging, tops, stamp).run()


@pytest.mark.slow
def test_the_last_rebuild_is_undone(store: Path) -> None:
    before = tree(store, *OURS)
    kept = replace(store, OLD, QUEUE, "checkpoint", "ledger/row")
    rebuilt = tree(store, *OURS, kept.name)
    outcome = run("undo", store)
    assert (outcome.code, outcome.stderr) == (0, "")
    first, back, away, where = outcome.stdout.splitlines()
    assert first == f"Put back what was replaced in {store}"
    assert back.split(maxsplit=2) == ["put", "back", "checkpoint, consumequeue"]
    assert away.split() == ["taken", "away", "ledger"]
    new = Path(where.rpartition(" ")[2])
    assert where == f"  kept       what was in place is kept in {new}"
    assert tree(store, *OURS, new.name) == before
    kept_now = tree(new, swap.INTENT)
    assert kept_now.items() <= rebuilt.items()
    assert {"checkpoint", "ledger/row", QUEUE} <= kept_now.keys()

    again = run("undo", store)
    assert again.code == 2, "each rebuild is undone once"
    assert "there is nothing to undo" in again.stderr
    assert run("undo", store, "--kept", new, "--json").code == 0, "unless it is asked for by name"
    assert {name: digest for name, digest in tree(store).items() if name in rebuilt} == rebuilt


def test_where_nothing_was_replaced_no_undo_is_named(store: Path) -> None:
    none = run("undo", store)
    assert (none.code, "--kept" in none.stderr) == (2, False)


def test_rebuilds_are_undone_one_after_the_other(store: Path, reput: Command) -> None:
    before = tree(store, *OURS)
    replace(store, OLD, QUEUE, "checkpoint")
    middle = tree(store, *OURS, swap.KEPT + OLD)
    replace(store, NEW, QUEUE)
    for expected in (middle, before):
        outcome = reput("undo", store, "--json")
        assert outcome.code == 0, outcome.stderr
        facts = json.loads(outcome.stdout)
        assert (facts["exit_code"], facts["store"], facts["taken_away"]) == (0, str(store), [])
        seen = {name: tree(store)[name] for name in expected}
        assert seen == expected
        assert Path(facts["kept"]).is_dir()


def test_the_newest_is_undone_after_the_clock_was_set_back(store: Path, reput: Command) -> None:
    replace(store, "20991121T093000Z", QUEUE)
    middle = tree(store, *OURS)
    replace(store, swap.new_stamp(store), "checkpoint")
    assert reput("undo", store).code == 0
    assert middle.items() <= tree(store).items()


def test_a_directory_by_its_name(store: Path, tmp_path: Path, reput: Command) -> None:
    before = tree(store, *OURS)
    replace(store, OLD, QUEUE, "checkpoint")
    replace(store, NEW, QUEUE)
    for wrong in ("consumequeue", swap.KEPT + "20200101T000000Z", tmp_path):
        outcome = reput("undo", store, "--kept", wrong)
        assert outcome.code == 2
        assert "this directory doesn't hold what a swap replaced" in outcome.stderr
    other = tmp_path / "other" / swap.KEPT
    Path(f"{other}20200101T000000Z").mkdir(parents=True)
    for path in (f"{other}{OLD}", f"{other}20200101T000000Z"):  # one that only this store has, and the other
        outcome = reput("undo", store, "--kept", path)
        assert (outcome.code, f"{path}: this directory doesn't hold" in outcome.stderr) == (2, True)
        assert f"one of those named {swap.KEPT}… in {store}" in outcome.stderr
    assert reput("undo", store, "--kept", swap.KEPT + OLD).code == 0
    assert before.items() <= tree(store).items()


def test_what_is_refused_changes_nothing(store: Path, tmp_path: Path, reput: Command) -> None:
    before = tree(tmp_path)
    for wrong, said in ((tmp_path / "gone", "there is no store here"), (store, "there is nothing to undo")):
        outcome = reput("undo", wrong, "--json")
        assert outcome.code == 2
        assert json.loads(outcome.stdout)["error"] == said
        assert tree(tmp_path) == before, "not even a lock"

    replace(store, OLD, QUEUE)
    (store / names.LOCK).touch()
    before = tree(store, names.REPUT)
    with broker_lock(store) as pid:
        outcome = reput("undo", store)
        assert outcome.code == 2
        assert f"process {pid}" in outcome.stderr
    assert tree(store, names.REPUT) == before
    (store / names.LOCK).write_text("lock")  # as a broker does when it starts
    outcome = reput("undo", store)
    assert outcome.code == 2
    assert "can't be put back as a whole any more; nothing was changed" in outcome.stderr
    assert re.search(
        rf"{store}/lock: .*expected no broker to have run since .*found lock written to at 20", outcome.stderr
    )
    assert f"`reput check {store}`" in outcome.stderr
    assert f"What was replaced stays in {store}/{swap.KEPT}{OLD}" in outcome.stderr
    assert "swap" not in outcome.stderr
    assert tree(store, names.REPUT, names.LOCK) == {
        name: digest for name, digest in before.items() if name != names.LOCK
    }


def test_what_was_replaced_and_is_gone_is_named(store: Path, reput: Command) -> None:
    """An undo that puts back what is left of it would make a store that never was."""
    kept = replace(store, OLD, QUEUE, "checkpoint", "ledger/row")
    (kept / "checkpoint").unlink()
    before = tree(store, names.REPUT)
    for words in ((), ("--dry-run",)):
        outcome = reput("undo", store, *words)
        assert outcome.code == 2
        assert f"{kept}/checkpoint: " in outcome.stderr
        assert "expected what was replaced, found nothing" in outcome.stderr
    assert tree(store, names.REPUT) == before


def interrupt(root: Path) -> None:
    """Put a finished swap's record back to where it lies until the last of its steps."""
    kept = swap.kept_directories(root)[0]
    (kept / swap.INTENT).rename(root / names.REPUT / swap.INTENT)


def test_what_was_interrupted_is_finished_first(store: Path, reput: Command) -> None:
    before = tree(store, *OURS)
    replace(store, OLD, QUEUE)
    staged = store / names.REPUT / "staging" / names.REPUT / names.JOURNAL
    staged.parent.mkdir(parents=True)
    staged.write_text("a rebuild's journal: it died before it could remove it")
    interrupt(store)
    assert reput("undo", store).code == 0, "an interrupted rebuild is finished, then undone"
    assert before.items() <= tree(store).items()
    assert not staged.exists(), "the next rebuild begins anew"

    undone = tree(store, names.REPUT)
    interrupt(store)
    outcome = reput("undo", store)
    assert outcome.code == 0, "an interrupted undo is finished, and not undone"
    assert tree(store, names.REPUT) == undone


def test_what_is_made_anew_belongs_to_the_store(store: Path, reput: Command) -> None:
    uid, gid = (12_345, 23_456) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    replace(store, OLD, QUEUE)
    shutil.rmtree(store / names.REPUT)
    for path in (store, *store.rglob("*")):
        os.chown(path, uid, gid)
    assert reput("undo", store).code == 0
    assert {(path.stat().st_uid, path.stat().st_gid) for path in store.rglob("*")} == {(uid, gid)}
