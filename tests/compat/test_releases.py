"""Stores that releases before 4.9 write: rebuilt to the byte, with the release given and without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.diagnosis.check import check
from reput.diagnosis.verdict import Effect
from reput.errors import StoreInUseError
from reput.format import names
from reput.job.options import RebuildOptions
from reput.mending import mend
from reput.query import QueryStore
from reput.store.compare import compare
from reput.store.lock import StoreLock, is_broker_running
from reput.verify.plan import VerifyOptions
from tests.compat.java_store import JavaStore
from tests.compat.message import Message
from tests.compat.releases import sweep
from tests.conftest import LIB
from tests.levels import tried

pytestmark = pytest.mark.compat


@pytest.mark.parametrize(
    ("release", "shown"),
    [
        *(
            (old, "4.7.0 or before; 4.7.0 assumed")
            for old in tried("4.2.0", more=("4.0.0", "4.1.0", "4.3.1", "4.4.0", "4.5.1", "4.5.2"))
        ),
        *tried(("4.8.0", "4.7.1 to 5.3; 4.9 assumed"), more=[("4.7.0", "4.6.0 to 4.7.0; 4.7.0 assumed")]),
    ],
)
def test_no_byte_differs(release: str, shown: str, tmp_path: Path) -> None:
    found = sweep(release, tmp_path, ("mixed",))
    assert found.problem == ""
    assert (found.differing, found.without) == (0, 0)
    assert found.shown == shown
    assert found.messages > (400 if release == "4.0.0" else 500)
    root = tmp_path / release / "mixed" / "store"
    asked = check(VerifyOptions(root)), check(VerifyOptions(root, None, root.parent / "broker.conf", release))
    assert [(one.verdict.exit_code, one.left) for one in asked] == [(0, [])] * 2
    # Without its queues, what a start makes of it depends on the release, which its marks don't tell.
    shutil.rmtree(root / names.CONSUME_QUEUE)
    found = check(VerifyOptions(root), quick=True)
    told = "4.7.0 or before" not in shown
    assert [one.kind for one in found.left if one.effect is Effect.UNKNOWN] == (
        [] if told else ["not-foretold"]
    )
    assert ("Give the broker's release: --rocketmq-version" in found.by_hand) != told


def _write(release: str, root: Path, count: int) -> None:
    config = {"mappedFileSizeConsumeQueue": 1000, "maxHashSlotNum": 100, "maxIndexNum": 400}
    with JavaStore(release, root, {**config, "mappedFileSizeCommitLog": 1 << 20}) as store:
        assert store.load()
        store.start()
        for number in range(count):
            store.put(Message("T", number % 4, b"body", tags="a", keys=f"k{number} k{number % 7}"))
        store.wait_dispatched()


@pytest.mark.parametrize(("release", "given"), [("4.1.0", 1), ("4.2.0", 2)])
def test_a_running_store_without_a_lock_is_seen_and_gives_one_less(
    release: str, given: int, tmp_path: Path
) -> None:
    """4.1 ends a pull one message early, and has no ``lock``."""
    with JavaStore(release, tmp_path, {"mappedFileSizeCommitLog": 1 << 20}) as store:
        assert store.load()
        store.start()
        for _ in range(5):
            store.put(Message("T", body=b"body"))
        store.wait_dispatched()
        assert int(store.store.getMessage("group", "T", 0, 0, 2, None).getMessageCount()) == given
        assert (tmp_path / names.LOCK).exists() == (release == "4.2.0")
        assert is_broker_running(tmp_path)
        with pytest.raises(StoreInUseError, match=r"\(java\)"):
            StoreLock(tmp_path).acquire()
        assert is_broker_running(tmp_path)
        store.shutdown()
        assert not is_broker_running(tmp_path)
    queries = QueryStore(StoreSettings.load(tmp_path, None, release))
    assert len(queries.pull("T", 0, 0, 2).found) == given


@pytest.mark.parametrize("before", tried(20, more=[300]))
def test_the_index_of_an_upgraded_store_is_sound(before: int, tmp_path: Path) -> None:
    """4.9.7 goes on in the file that 4.7.0 began, by its own way of counting: no reason to make it anew."""
    for release, count in (("4.7.0", before), ("4.9.7", 300)):
        _write(release, tmp_path, count)
    checked = check(VerifyOptions(tmp_path))
    assert checked.verdict.exit_code == 0
    assert [one.kind for one in checked.notes] == ["counted-otherwise"]


@pytest.mark.parametrize("lost", [(), (names.CONSUME_QUEUE, names.INDEX)])
def test_5_5_goes_on_with_a_store_of_4_4(lost: tuple[str, ...], tmp_path: Path) -> None:
    """As it is, and after its queues and index were made by the rules of 5.5.0; what changes is told."""
    _write("4.4.0", tmp_path, 300)
    for name in lost:
        shutil.rmtree(tmp_path / name)
    mend(RebuildOptions(tmp_path, rocketmq_version="5.5.0"), apply=True)
    for count in (300, 360):
        checked = check(VerifyOptions(tmp_path, None, None, "5.5.0"))
        assert (checked.verdict.exit_code, checked.left) == (0, [])
        told = [] if lost else ["counted-otherwise", "tags-not-indexed"]
        assert [(one.kind, one.count) for one in checked.notes if one.kind == "tags-not-indexed"] == (
            [] if lost else [("tags-not-indexed", 300)]
        )
        assert [one.kind for one in checked.notes if one.kind != "indexed-twice"] == told
        assert checked.plan is not None
        assert sum(one.max_offset for one in checked.plan.prediction.queues.values()) == count
        if count == 300:
            _write("5.5.0", tmp_path, 60)


def test_each_command_says_which_release_it_takes_an_old_store_for(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    _write("4.4.0", store, 300)
    page, out = tmp_path / "page.html", tmp_path / "out"
    for words in (
        ("check", store),
        ("mend", store),
        ("query", store, "--queue", "T:0"),
        ("report", store, "--out", page),
        ("rebuild", store, "--out", out),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "reput.cli", *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(LIB)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        assert "counts keys, 4.7.0 assumed" in " ".join((done.stdout + done.stderr).split()), words
    assert "4.7.0" in page.read_text(encoding="utf-8")
    assert compare(store, out).differing_bytes == 0
