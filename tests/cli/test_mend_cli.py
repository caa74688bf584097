"""``reput mend``: the steps, what they change, and the way back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reput.format import names
from reput.format.consumequeue import unit
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, broker_conf, broker_lock, golden, overwrite, record_starts, tree

from .test_check_cli import options


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-restart", tmp_path)


def files(store: GoldenStore) -> dict[str, str]:
    kept = (path.name for path in store.root.glob("replaced-*"))
    return tree(store.root, names.REPUT, names.LOCK, *kept)


def test_a_sound_store_is_left_alone(reput: Command, store: GoldenStore) -> None:
    before = tree(store.root)
    for more in ((), ("--apply",)):
        done = reput("mend", *options(store), *more)
        assert done.code == 0
        assert "\n  steps      none: there is nothing to mend here\n" in done.stdout
        assert tree(store.root) == before


def test_steps_are_said_taken_and_taken_back(reput: Command, store: GoldenStore) -> None:
    last = record_starts(store.root, 131072)[-3]
    overwrite(store.root, 65536, last + 4, b"oops")
    shutil.rmtree(store.root / names.CONSUME_QUEUE)
    (store.root / names.COMMIT_LOG / "notes.txt").write_text("hello")
    before = files(store)
    planned = reput("mend", *options(store))
    assert planned.code == 4
    assert "  steps      1. move commitlog/notes.txt aside" in planned.stdout
    assert "close 1 damaged place of the log" in planned.stdout
    assert "anew from the log" in planned.stdout
    assert "--apply" in planned.stdout
    assert files(store) == before
    applied = reput("mend", *options(store), "--apply")
    assert applied.code == 0, applied.stdout
    assert applied.stdout.startswith(f"{store.root}: start it: nothing is wrong for RocketMQ 5.3.3")
    assert "Don't start" not in applied.stdout
    assert f"at {last} to " in applied.stdout
    assert reput("check", *options(store)).code == 0
    now = files(store)
    again = json.loads(reput("mend", *options(store), "--apply", "--json").stdout)
    assert (again["exit_code"], again["applied"], again["steps"]) == (0, False, [])
    assert files(store) == now
    assert reput("undo", store.root).code == 0
    assert files(store) == before


def test_only_what_is_wrong_is_made_anew(reput: Command, store: GoldenStore) -> None:
    queue = max((store.root / names.CONSUME_QUEUE / "Orders").iterdir())
    before = files(store)
    shutil.rmtree(queue)
    mended = json.loads(reput("mend", *options(store), "--apply", "--json").stdout)
    assert mended["exit_code"] == 0
    assert mended["made"] == [f"{names.CONSUME_QUEUE}/Orders/{queue.name}"]
    assert files(store) == before


@pytest.mark.parametrize("lost", ["short", "missing"])
def test_a_segment_that_is_short_or_missing_is_closed(reput: Command, store: GoldenStore, lost: str) -> None:
    segment = sorted((store.root / names.COMMIT_LOG).iterdir())[1]
    if lost == "short":
        segment.write_bytes(segment.read_bytes()[: segment.stat().st_size // 2])
    else:
        segment.unlink()
    before = files(store)
    mended = json.loads(reput("mend", *options(store), "--apply", "--json").stdout)
    assert mended["exit_code"] == 0, mended["summary"]
    found = {change["kind"] for change in mended["changes"]}
    assert {"made-longer" if lost == "short" else "new-segment", "stand-in"} <= found
    assert " that are lost are filled" in mended["summary"]
    assert reput("check", *options(store)).code == 0
    assert reput("undo", store.root).code == 0
    assert files(store) == before


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_gap_before_an_empty_segment_is_closed_if_the_log_goes_on_over_it(
    reput: Command, store: GoldenStore, goes_on: bool
) -> None:
    """A broker makes segments ahead; a start deletes one that stands behind the log's end."""
    size = int(str(store.config["mappedFileSizeCommitLog"]))
    last = max((store.root / names.COMMIT_LOG).iterdir())
    if goes_on:
        last.unlink()
        last = max((store.root / names.COMMIT_LOG).iterdir())
    last.with_name(names.offset_name(int(last.name) + 2 * size)).write_bytes(bytes(size))
    shutil.rmtree(store.root / names.INDEX)
    mended = json.loads(reput("mend", *options(store), "--apply", "--json").stdout)
    assert ("new-segment" in {change["kind"] for change in mended["changes"]}) == goes_on
    assert goes_on or (mended["exit_code"], mended["changes"]) == (0, [])
    again = json.loads(reput("mend", *options(store), "--apply", "--json").stdout)
    assert (again["changes"], again["made"]) == ([], [])


@pytest.mark.parametrize("place", ["behind", "within"])
def test_a_file_between_the_places_of_segments_is_moved_aside(
    reput: Command, store: GoldenStore, place: str
) -> None:
    size = int(str(store.config["mappedFileSizeCommitLog"]))
    last = max((store.root / names.COMMIT_LOG).iterdir())
    foreign = last.with_name(names.offset_name(int(last.name) + (size if place == "behind" else 0) + 123))
    foreign.write_bytes(b"x" * 1000)
    before = files(store)
    planned = reput("mend", *options(store))
    assert f"move commitlog/{foreign.name} aside" in planned.stdout
    assert reput("check", *options(store), "--quick").code == planned.code == 4
    assert reput("mend", *options(store), "--apply").code == 0
    assert not foreign.exists()
    assert reput("check", *options(store)).code == 0
    assert reput("undo", store.root).code == 0
    assert files(store) == before


def test_what_is_left_is_told_by_where_it_is(reput: Command, store: GoldenStore) -> None:
    size = int(str(store.config["mappedFileSizeCommitLog"]))
    last = max((store.root / names.COMMIT_LOG).iterdir())
    foreign = last.with_name(names.offset_name(int(last.name) + 2 * size))
    foreign.write_bytes(b"x" * 1000)
    mended = json.loads(reput("mend", *options(store), "--apply", "--json").stdout)
    assert [(one["path"], one["area"]) for one in mended["findings"]] == [(str(foreign), "log")]


def test_a_log_that_isnt_there_is_never_mended(reput: Command, store: GoldenStore) -> None:
    for path in (store.root / names.COMMIT_LOG).iterdir():
        path.unlink()
    before = tree(store.root)
    done = reput("mend", *options(store), "--apply")
    assert done.code == 5
    assert "Bring the commit log back" in done.stdout
    assert tree(store.root) == before


def test_a_lost_file_of_config_stays_said(reput: Command, store: GoldenStore) -> None:
    (store.root / names.CONFIG).mkdir(exist_ok=True)
    (store.root / names.CONFIG / "topics.json").write_text("{")
    shutil.rmtree(store.root / names.INDEX)
    done = reput("mend", *options(store), "--apply")
    assert done.code == 3
    assert "lost-config" in done.stdout
    assert not (store.root / names.INDEX).exists(), "topics say which queues there have to be"
    (store.root / names.CONFIG / "topics.json").write_text("{}")
    assert reput("mend", *options(store), "--apply").code == 0
    assert (store.root / names.INDEX).is_dir()


def test_a_store_in_use_is_not_mended(reput: Command, store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.INDEX)
    before = tree(store.root)
    with broker_lock(store.root):
        refused = reput("mend", *options(store), "--apply", "--json")
    assert (refused.code, json.loads(refused.stdout)["error"]) == (2, "the store is in use")
    assert tree(store.root, names.LOCK) == {name: one for name, one in before.items() if name != names.LOCK}


def test_settings_of_another_store_change_nothing(reput: Command, store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Payments")
    before = tree(store.root)
    for conf, release in ((broker_conf(store), "4.9.7"), (Path("/dev/null"), "5.3.3")):
        words = (str(store.root), "--broker-conf", str(conf), "--rocketmq-version", release)
        done = reput("mend", *words, "--apply")
        assert done.code in (3, 4, 5)
        assert "by hand: " in done.stdout
        assert tree(store.root) == before


def test_a_log_outside_the_store_is_for_the_operator(
    reput: Command, store: GoldenStore, tmp_path: Path
) -> None:
    """Nothing can be put in place there together with the rest."""
    last = max(path for path in (store.root / names.COMMIT_LOG).iterdir() if any(path.read_bytes()))
    start = record_starts(store.root, int(last.name))[-2]
    overwrite(store.root, last.stat().st_size, start + 4, b"oops")
    (store.root / names.COMMIT_LOG).rename(tmp_path / "outside")
    words = options(store)
    with broker_conf(store).open("a") as conf:
        conf.write(f"storePathRootDir={store.root}\nstorePathCommitLog={tmp_path / 'outside'}\n")
    before = tree(tmp_path / "outside")
    done = reput("mend", *words, "--apply")
    assert "lies outside of" in done.stdout
    assert done.code == 3
    assert tree(tmp_path / "outside") == before


def test_queues_of_a_lost_log_end_alone_are_gone_after_one_mend(reput: Command, store: GoldenStore) -> None:
    segment = max((store.root / names.COMMIT_LOG).iterdir())
    end = int(segment.name)
    lost = store.root / names.CONSUME_QUEUE / "Lost" / "0" / names.offset_name(0)
    lost.parent.mkdir(parents=True)
    size = int(str(store.config["mappedFileSizeConsumeQueue"]))
    lost.write_bytes(unit(end + 100, 200, 7).ljust(size, b"\0"))
    segment.unlink()
    shutil.rmtree(store.root / names.INDEX)
    for _ in range(2):
        done = reput("mend", *options(store), "--apply")
        assert done.code in (0, 1), done.stdout
    assert reput("check", *options(store)).code == done.code
