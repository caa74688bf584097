"""``--dry-run``: what a command would do, and what it would refuse, with nothing changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reput.format import names
from reput.store.lock import OutputLock
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, broker_conf, broker_lock, golden, tree

pytestmark = pytest.mark.spark


@pytest.fixture
def reput(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Command:
    return Command(monkeypatch, lambda: request.getfixturevalue("spark"))


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-restart", tmp_path)


def options(store: GoldenStore) -> tuple[str, ...]:
    return str(store.root), "--broker-conf", str(broker_conf(store)), "--rocketmq-version", store.version


def test_a_rebuild_in_place(reput: Command, store: GoldenStore) -> None:
    before, words = tree(store.root), options(store)
    said = reput("rebuild", *words, "--in-place", "--dry-run")
    assert (said.code, said.stderr) == (0, "")
    assert said.stdout.startswith(f"Nothing was done. Would replace files of {store.root} as RocketMQ 5.3 ")
    assert "\n  replaces   consumequeue, index, checkpoint; the old files are kept\n" in said.stdout
    found = json.loads(reput("rebuild", *words, "--in-place", "--dry-run", "--json").stdout)
    assert (found["dry_run"], found["replaces"]) == (True, ["consumequeue", "index", "checkpoint"])
    chosen = json.loads(
        reput("rebuild", *words, "--in-place", "--queue", "Orders", "--dry-run", "--json").stdout
    )
    assert (chosen["replaces"], chosen["unknown_queues"]) == (["consumequeue"], {})
    misspelt = (*words, "--in-place", "--queue", "ordres:3", "--queue", "zzzzzz", "--dry-run")
    unknown = json.loads(reput("rebuild", *misspelt, "--json").stdout)["unknown_queues"]
    assert unknown == {"ordres:3": "Orders:3", "zzzzzz": None}
    assert "has ordres:3; did you mean Orders:3?" in reput("rebuild", *misspelt).stdout
    assert tree(store.root) == before


def test_a_rebuild_beside_and_its_continuation(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    words, out = (*options(store), "--dry-run", "--json", "--out", str(tmp_path / "out")), tmp_path / "out"
    found = json.loads(reput("rebuild", *words).stdout)
    assert (found["continues"], found["start"], found["output"]) == (False, 0, str(out))
    assert found["estimated_messages"] > 0 < found["needed_bytes"] < found["free_bytes"]
    assert not out.exists()
    done = json.loads(reput("rebuild", *options(store), "--out", out, "--json").stdout)
    before = tree(out)
    found = json.loads(reput("rebuild", *words).stdout)
    assert (found["continues"], found["start"]) == (True, done["end"])
    assert tree(out) == before


def test_what_a_rebuild_refuses(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    words, out = options(store), tmp_path / "out"
    with broker_lock(store.root):
        refused = reput("rebuild", *words, "--in-place", "--dry-run")
    assert (refused.code, refused.stdout) == (2, "")
    assert "the store is in use" in refused.stderr
    with OutputLock(out):
        assert "another reput writes here" in reput("rebuild", *words, "--out", out, "--dry-run").stderr
    shutil.rmtree(out)
    assert reput("rebuild", *words, "--out", out).code == 0
    other = reput("rebuild", *words, "--out", out, "--no-index", "--dry-run")
    assert (other.code, "the output was begun with other settings" in other.stderr) == (2, True)
    assert reput("rebuild", *words, "--out", store.root, "--dry-run").code == 2


def test_an_undo(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    nothing = reput("undo", store.root, "--dry-run")
    assert (nothing.code, "there is nothing to undo" in nothing.stderr) == (2, True)
    (store.root / names.INDEX / max(path.name for path in (store.root / names.INDEX).iterdir())).unlink()
    old = tree(store.root, names.REPUT, names.LOCK)
    kept = json.loads(reput("rebuild", *words, "--in-place", "--json").stdout)["kept"]
    before = tree(store.root)
    would = reput("undo", store.root, "--dry-run")
    assert (would.code, would.stderr) == (0, "")
    assert would.stdout.startswith(f"Nothing was done. Would put back what was replaced in {store.root}\n")
    found = json.loads(reput("undo", store.root, "--dry-run", "--json").stdout)
    assert (found["kept"], found["finishes_swap"]) == (kept, False)
    assert tree(store.root) == before
    done = json.loads(reput("undo", store.root, "--json").stdout)
    assert (done["put_back"], done["taken_away"]) == (found["put_back"], found["taken_away"])
    now = tree(store.root, names.REPUT, names.LOCK, *(path.name for path in store.root.glob("replaced-*")))
    assert now == old
