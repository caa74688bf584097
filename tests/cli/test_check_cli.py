"""``reput check``, which only reads: its verdicts, exit codes, and what it names."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reput.format import names
from tests.golden.store import GoldenStore
from tests.rebuilds import (
    LIB,
    Command,
    broker_conf,
    broker_lock,
    environment,
    golden,
    overwrite,
    record_starts,
    run,
    tree,
)
from tests.stores import add_left_alone


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-restart", tmp_path)


def options(store: GoldenStore) -> tuple[str, ...]:
    return str(store.root), "--broker-conf", str(broker_conf(store)), "--rocketmq-version", store.version


def checked(reput: Command, store: GoldenStore, *more: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reput("check", *options(store), *more, "--json").stdout)
    return found


def kinds(found: dict[str, Any], *effects: str) -> list[str]:
    return [one["kind"] for one in found["findings"] if not effects or one["effect"] in effects]


def test_a_sound_store(reput: Command, store: GoldenStore) -> None:
    before = tree(store.root)
    done = reput("check", *options(store))
    assert done.code == 0
    assert done.stdout.startswith(f"{store.root}: start it: nothing is wrong for RocketMQ 5.3.3\n")
    assert "\n  findings   none\n" in done.stdout
    quick = reput("check", *options(store), "--quick")
    assert quick.code == 0
    assert ". Not read: " in quick.stdout.splitlines()[0]
    assert "nothing is wrong for RocketMQ 5.3.3. Not read" in quick.stdout
    assert tree(store.root) == before


def test_what_no_log_tells_is_named(reput: Command, store: GoldenStore) -> None:
    beside = add_left_alone(store.root)
    said = f"{', '.join(beside)}: the commit log alone doesn't hold them"
    for more in ((), ("--quick",)):
        found = checked(reput, store, *more)
        assert (found["exit_code"], said in found["not_read"]) == (0, True)


def test_what_stops_a_broker(reput: Command, store: GoldenStore) -> None:
    for number in range(25):
        (store.root / names.COMMIT_LOG / f"notes-{number}.txt").write_text("hello")
    done = reput("check", *options(store))
    assert done.code == 4
    first = done.stdout.splitlines()[0]
    assert first == f"{store.root}: it will not start: RocketMQ 5.3.3 stops at 25 stray-file"
    assert done.stdout.count(" and 5 more; --json lists all") == 1
    found = checked(reput, store)
    assert (found["verdict"], found["starting"]["starts"]) == ("no-start", False)
    assert {one["remedy"] for one in found["findings"]} == {"mend"}
    (step,) = found["next_steps"]
    assert f"`reput mend {store.root} " in step


def test_commands_fit_a_shell(reput: Command, store: GoldenStore) -> None:
    _, *words = options(store)
    root = store.root.rename(store.root.with_name("a store"))
    shutil.rmtree(root / names.INDEX)
    assert f"`reput mend '{root}'" in reput("check", str(root), *words).stdout


@pytest.mark.parametrize(
    ("gone", "kind", "said"),
    [
        (names.INDEX, "missing-entry", "the index is wrong (missing-entry)"),
        (f"{names.CONSUME_QUEUE}/Orders", "missing-unit", "no queue leads to "),
    ],
)
def test_what_a_start_doesnt_put_right_is_to_be_mended(
    reput: Command, store: GoldenStore, gone: str, kind: str, said: str
) -> None:
    shutil.rmtree(store.root / gone)
    found = checked(reput, store)
    assert (found["exit_code"], found["verdict"]) == (3, "mend")
    assert set(kinds(found, "lacks", "loses")) == {kind}
    assert found["summary"].partition(": mend it first: ")[2].startswith(said)


def test_a_log_that_lost_its_end_is_gone_for_good(reput: Command, store: GoldenStore) -> None:
    max((store.root / names.COMMIT_LOG).iterdir()).unlink()
    shutil.rmtree(store.root / names.INDEX)
    (store.root / names.ABORT).touch()
    found = checked(reput, store)
    assert "queue-cut" in kinds(found, "gone")
    assert " gone for good" in found["summary"]


def test_damage_of_the_log_comes_before_what_it_costs(reput: Command, store: GoldenStore) -> None:
    size = int(str(store.config["mappedFileSizeCommitLog"]))
    starts = record_starts(store.root, store.manifest["log"]["end"] // size * size)
    overwrite(store.root, size, starts[len(starts) // 2], bytes(50))
    for more in ((), ("--quick",)):
        found = checked(reput, store, *more)
        areas = [one["area"] for one in found["findings"] if one["effect"] == "loses"]
        assert areas[0] == "log"
        assert set(areas[1:]) == {"queue"}


@pytest.mark.parametrize("name", ["4.9.7-crash", "5.3.3-crash", "5.5.0-crash"])
def test_what_the_start_after_a_crash_puts_right_is_no_reason(
    reput: Command, name: str, tmp_path: Path
) -> None:
    store = golden(name, tmp_path)
    for more in ((), ("--quick",)):
        found = checked(reput, store, *more)
        assert (found["exit_code"], found["verdict"], found["clean"]) == (0, "start", False)


def test_a_log_that_is_not_mounted_cant_be_told(reput: Command, store: GoldenStore) -> None:
    (store.root / names.COMMIT_LOG).rename(store.root / "elsewhere")
    found = checked(reput, store)
    assert (found["exit_code"], found["verdict"]) == (5, "unknown")
    assert not [step for step in found["next_steps"] if "reput" in step], "nothing helps but the log"


@pytest.mark.parametrize("more", [(), ("--quick",)])
def test_sizes_that_nothing_shows_are_asked_for(
    reput: Command, store: GoldenStore, more: tuple[str, ...]
) -> None:
    """Files made by RocketMQ's default sizes are none for a broker with others."""
    shutil.rmtree(store.root / names.INDEX)
    found = json.loads(reput("check", str(store.root), *more, "--json").stdout)
    assert found["exit_code"] == 3
    assert {one["remedy"] for one in found["findings"] if one["effect"] in ("lacks", "loses")} == {"by-hand"}
    assert any("broker.conf" in step for step in found["next_steps"])
    assert not any("mend" in step for step in found["next_steps"])
    refused = reput("rebuild", str(store.root), "--in-place")
    assert (refused.code, "broker.conf" in refused.stderr) == (2, True)


def test_settings_of_another_store_cant_be_told_by(reput: Command, store: GoldenStore) -> None:
    words = (str(store.root), "--broker-conf", "/dev/null", "--rocketmq-version", "5.3.3")
    found = json.loads(reput("check", *words, "--json").stdout)
    assert (found["exit_code"], "other-settings" in kinds(found, "unknown", "blocks")) != (0, True)
    assert not any("mend" in step for step in found["next_steps"])


def test_files_of_config_that_are_gone_are_for_the_operator(reput: Command, store: GoldenStore) -> None:
    (store.root / names.CONFIG).mkdir(exist_ok=True)
    (store.root / names.CONFIG / "topics.json").write_text("{")
    found = checked(reput, store)
    assert (found["exit_code"], kinds(found, "loses")) == (3, ["lost-config"])
    assert "Bring the file back" in found["next_steps"][0]
    (store.root / names.CONFIG / "topics.json").write_text("{}")
    assert checked(reput, store)["exit_code"] == 0


def test_a_deleted_topic_is_no_loss(reput: Command, store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Payments")
    topics = {path.name for path in (store.root / names.CONSUME_QUEUE).iterdir()}
    (store.root / names.CONFIG).mkdir(exist_ok=True)
    config = store.root / names.CONFIG / "topics.json"
    for known, code in ((topics, 0), (topics | {"Payments"}, 3)):
        config.write_text(json.dumps({"topicConfigTable": {name: {} for name in known}}))
        found = checked(reput, store)
        assert (found["exit_code"], "deleted-queue" in {one["kind"] for one in found["notes"]}) == (
            code,
            not code,
        )


def test_a_store_in_use(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-crash", tmp_path)
    with broker_lock(store.root):
        done = reput("check", *options(store))
    assert (done.code, "crash" in done.stdout) == (0, False)
    assert done.stdout.startswith(f"{store.root}: let it run: ")
    assert "  in use     by " in done.stdout


def test_controller_mode_isnt_foretold(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-restart", tmp_path, enableControllerMode="true")
    found = checked(reput, store)
    assert (found["exit_code"], kinds(found)) == (5, ["not-foretold"])
    assert "enableControllerMode" in found["findings"][0]["outcome"]


def test_chosen_queues_alone(reput: Command, store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Payments")
    found = checked(reput, store, "--queue", "Orders")
    assert found["exit_code"] == 3, "the start is of the whole store"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--quick", "--queue", "Orders"), "--quick compares nothing"),
        (("--all",), "--proofs FILE"),
        (("--rocketmq-version", "3.2"), "3.2"),
    ],
)
def test_refusals(reput: Command, store: GoldenStore, more: tuple[str, ...], said: str) -> None:
    refused = reput("check", str(store.root), *more)
    assert (refused.code, refused.stdout) == (2, "")
    assert said in refused.stderr


def test_no_store(reput: Command, tmp_path: Path) -> None:
    refused = reput("check", str(tmp_path / "nowhere"), "--json")
    assert refused.code == 2
    assert json.loads(refused.stdout)["error"] == "there is no store here"


def test_the_log_alone_is_no_store(reput: Command, store: GoldenStore) -> None:
    for command in ("check", "mend", "mend --apply", "rebuild --in-place", "undo"):
        name, *words = command.split()
        refused = reput(name, store.root / names.COMMIT_LOG, *words)
        assert (refused.code, refused.stdout) == (2, "")
        assert "this is a commit log, not a store" in refused.stderr, command
        assert f"Give the store that holds it: {store.root}" in refused.stderr


@pytest.mark.spark
def test_on_spark_the_same_is_found(tmp_path: Path) -> None:
    store = golden("5.3.3-crash", tmp_path)
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Orders")
    words = ("check", *options(store), "--json")
    here, there = run(*words), run(*words, "--master", "local[2]")
    assert "starting Spark" in there.stderr
    assert "starting Spark" not in here.stderr
    found, other = json.loads(here.stdout), json.loads(there.stdout)
    assert (found.pop("seconds"), other.pop("seconds")) != (0, 0)
    assert found == other


def test_the_jobs_are_the_commands() -> None:
    for job in ("check", "mend"):
        done = subprocess.run(
            [sys.executable, Path(LIB).parent / "jobs" / f"{job}.py", "/nothing/here", "--json"],
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
        assert done.returncode == 2
        assert json.loads(done.stdout)["error"] == "there is no store here"


def test_two_logs_without_a_common_part_are_not_the_same(
    reput: Command, store: GoldenStore, tmp_path: Path
) -> None:
    """Whether there is a part that both have, and they differ in it, can't be told."""
    other = Path(shutil.copytree(store.root, tmp_path / "other"))
    first, *later = sorted((store.root / names.COMMIT_LOG).iterdir())
    for path in later:
        path.unlink()
    (other / names.COMMIT_LOG / first.name).unlink()
    start, end = later[0].name.lstrip("0"), first.stat().st_size
    for stores in ((store.root, other), (other, store.root)):
        asked = ("check", stores[0], "--against", stores[1], "--rocketmq-version", store.version)
        done = json.loads(reput(*asked, "--json").stdout)
        (found,) = done["findings"]
        assert (done["exit_code"], done["verdict"]) == (5, "unknown")
        assert (done["start"], done["end"], done["queues"]) == (int(start), int(start), 0)
        assert (found["kind"], found["area"], found["effect"]) == ("nothing-in-common", "log", "unknown")
        assert f"0 to {end}" in done["summary"]
        assert f"{start} to " in done["summary"]
        assert done["next_steps"] == ["Name a store whose log has a part of this one's"]
        text = reput(*asked).stdout
        assert "was compared" not in text
        assert "the same" not in text
