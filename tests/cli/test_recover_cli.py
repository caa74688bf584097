"""``reput check`` and ``reput recover --plan``, which only read, and ``--apply``: output and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.format import names
from reput.format.consumequeue import unit
from tests.golden.store import GoldenStore
from tests.rebuilds import (
    Command,
    broker_conf,
    broker_lock,
    golden,
    overwrite,
    record_starts,
    tree,
)
from tests.stores import add_left_alone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-restart", tmp_path)


def options(store: GoldenStore) -> tuple[str, ...]:
    return str(store.root), "--broker-conf", str(broker_conf(store)), "--rocketmq-version", store.version


def test_a_sound_store(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    before = tree(store.root)
    checked = reput("check", *words)
    assert (checked.code, checked.stderr) == (0, "")
    assert checked.stdout.startswith(f"RocketMQ 5.3.3 starts with {store.root}; nothing wrong was found\n")
    assert "\n  not read   the log, and all units but each queue's last: `reput recover " in checked.stdout
    planned = reput("recover", *words, "--plan")
    assert (planned.code, planned.stderr) == (0, "")
    assert planned.stdout.startswith(f"A start of RocketMQ 5.3.3 loses nothing of {store.root}, and leaves ")
    assert "  loses      nothing" in planned.stdout
    assert tree(store.root) == before


def test_files_of_config_that_are_gone_are_said(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    config = store.root / names.CONFIG
    config.mkdir(exist_ok=True)
    for name in ("topics.json", "consumerOffset.json", "delayOffset.json"):
        (config / name).write_text("{}")
    assert "config/" not in reput("check", *words).stdout
    (config / "topics.json").rename(config / "topics.json.bak")
    assert "config/" not in reput("check", *words).stdout, "the broker takes its .bak"
    (config / "topics.json.bak").unlink()
    assert "\n             config/topics.json: found nothing; " in reput("check", *words).stdout


def test_what_no_log_tells_is_named(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    assert "left alone" not in reput("check", *words).stdout
    assert json.loads(reput("check", *words, "--json").stdout)["left_alone"] == []
    beside = add_left_alone(store.root)
    checked = reput("check", *words)
    assert checked.code == 0
    assert f"  left alone {', '.join(beside)}: the commit log alone doesn't hold them\n" in checked.stdout
    assert json.loads(reput("check", *words, "--json").stdout)["left_alone"] == beside


def test_what_stops_a_broker(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    (store.root / names.COMMIT_LOG / "notes.txt").write_text("hello")
    checked = reput("check", *words)
    assert checked.code == 1
    assert checked.stdout.startswith(
        f"RocketMQ 5.3.3 doesn't start with {store.root}: see to 1 thing first\n"
    )
    found = json.loads(reput("check", *words, "--json").stdout)
    assert (found["exit_code"], found["starts"], found["verdict"]) == (1, False, "does-not-start")
    assert [finding["kind"] for finding in found["findings"]] == ["stray-file"]
    planned = json.loads(reput("recover", *words, "--plan", "--json").stdout)
    assert (planned["exit_code"], planned["starts"]) == (1, False)
    by_hand, command = planned["next_steps"]
    assert by_hand.startswith("Move it elsewhere")
    assert "--apply" in command


def test_what_many_files_have_in_common_is_said_once(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    for number in range(25):
        (store.root / names.COMMIT_LOG / f"notes-{number}.txt").write_text("hello")
    planned = reput("recover", *words, "--plan").stdout
    assert (planned.count("stray-file: "), planned.count("    and 5 more; --json")) == (20, 1)
    assert planned.count("  next       Move it elsewhere") == 1
    assert planned.count(str(store.root)) == 4, "in the verdict, and in commands: verify, --apply, undo"
    assert len(json.loads(reput("recover", *words, "--plan", "--json").stdout)["findings"]) == 25


def test_commands_fit_a_shell(reput: Command, store: GoldenStore) -> None:
    _, *words = options(store)
    root = store.root.rename(store.root.with_name("a store"))
    shutil.rmtree(root / names.INDEX)
    planned = reput("recover", str(root), "--plan", *words).stdout
    for command in ("recover", "rebuild", "verify"):
        assert f"`reput {command} '{root}'" in planned


def test_a_store_without_a_log_has_no_bounds(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    for segment in (store.root / names.COMMIT_LOG).iterdir():
        segment.unlink()
    assert "\n  log        none\n" in reput("recover", *words, "--plan").stdout


@pytest.mark.parametrize("ignored", [("--apply", "--full"), ("--plan", "--master", "local[2]")])
def test_options_that_would_change_nothing_are_refused(
    reput: Command, store: GoldenStore, ignored: tuple[str, ...]
) -> None:
    before = tree(store.root)
    refused = reput("recover", *options(store), *ignored)
    assert (refused.code, refused.stdout) == (2, "")
    assert ignored[1] in refused.stderr
    assert tree(store.root) == before


def test_a_lost_index_is_told_with_the_way_out(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    shutil.rmtree(store.root / names.INDEX)
    checked = json.loads(reput("check", *words, "--json").stdout)
    assert (checked["exit_code"], checked["verdict"]) == (1, "not-read")
    assert [finding["kind"] for finding in checked["findings"]] == ["no-index"]
    planned = reput("recover", *words, "--plan")
    assert planned.code == 1
    assert planned.stdout.startswith("A start of RocketMQ 5.3.3 with ")
    assert planned.stdout.splitlines()[0].endswith(" would leave damage (index-missing)")
    assert "\n    index: index-missing: " in planned.stdout
    assert f"reput rebuild {store.root} --in-place" in planned.stdout


def test_a_log_without_queues_is_no_sound_store(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    shutil.rmtree(store.root / names.CONSUME_QUEUE)
    checked = json.loads(reput("check", *words, "--json").stdout)
    assert (checked["exit_code"], checked["verdict"], checked["starts"]) == (1, "not-read", True)
    assert [finding["kind"] for finding in checked["findings"]] == ["no-queues"]
    assert all("recover" in step for step in checked["next_steps"])


def test_what_nobody_could_reach_comes_first(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    queue = max((store.root / names.CONSUME_QUEUE / "Orders").iterdir())
    shutil.rmtree(queue)
    planned = reput("recover", *words, "--plan")
    verdict, *rest = planned.stdout.splitlines()
    assert verdict.startswith(f"Don't start RocketMQ 5.3.3 with {store.root}: it would leave at least ")
    assert verdict.endswith(" messages that no queue leads to")
    assert [line.split()[0] for line in rest if line[2] != " "][:3] == ["not", "next", "stopped"]
    found = json.loads(reput("recover", *words, "--plan", "--json").stdout)
    assert (found["verdict"], found["summary"]) == ("loses", verdict)


def test_a_log_that_lost_its_end_is_told_alike_by_check_and_plan(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    max((store.root / names.COMMIT_LOG).iterdir()).unlink()
    for command in (("check",), ("recover", "--plan")):
        said = reput(*command[:1], *words, *command[1:])
        assert (said.code, said.stdout.splitlines()[0].split(":")[0]) == (
            1,
            f"Don't start RocketMQ 5.3.3 with {store.root}",
        )
    assert f"`reput recover {store.root} --from REPLICA --plan --broker-conf " in said.stdout
    (store.root / names.ABORT).touch()
    checked, planned = reput("check", *words), reput("recover", *words, "--plan")
    assert (checked.code, planned.code) == (1, 1)
    assert checked.stdout.startswith("Not known what a start "), (
        "after a crash they may never have been flushed"
    )
    assert planned.stdout.startswith("A start of RocketMQ 5.3.3 with ")
    assert (
        "next       Look for the log's end first, unless it was never flushed: `reput recover "
        in planned.stdout
    )
    assert "--from REPLICA" in planned.stdout


@pytest.mark.parametrize("name", ["4.9.7-crash", "5.3.3-crash", "5.5.0-crash"])
def test_a_killed_broker_is_not_said_to_lose_what_its_start_makes_again(
    reput: Command, name: str, tmp_path: Path
) -> None:
    store = golden(name, tmp_path)
    words = options(store)
    checked = json.loads(reput("check", *words, "--json").stdout)
    assert [finding["kind"] for finding in checked["findings"]] == ["index-unsafe"]
    assert (checked["exit_code"], checked["verdict"]) == (1, "not-read")
    (step,) = checked["next_steps"]
    assert "recover" in step
    planned = json.loads(reput("recover", *words, "--plan", "--json").stdout)
    assert (planned["exit_code"], planned["verdict"]) == (0, "nothing-found")


def test_a_queue_that_would_begin_late_is_no_reason_to_start(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Orders")
    (store.root / names.ABORT).touch()
    planned = reput("recover", *words, "--plan").stdout.splitlines()[0]
    assert planned.startswith(f"Don't start RocketMQ 5.3.3 with {store.root}: it would leave damage (")
    assert "queue-begins-late" in planned


def test_a_log_that_is_not_mounted_is_said_first(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    (store.root / names.COMMIT_LOG).rename(store.root / "elsewhere")
    checked = reput("check", *words)
    assert checked.code == 1
    assert checked.stdout.startswith(
        f"Don't start RocketMQ 5.3.3 with {store.root}: it starts, but loses data ("
    )
    assert "\n  next       " in checked.stdout


def test_the_log_alone_is_no_store(reput: Command, store: GoldenStore) -> None:
    for command in ("check", "recover --plan", "recover --apply", "verify", "rebuild --in-place", "undo"):
        name, *words = command.split()
        refused = reput(name, store.root / names.COMMIT_LOG, *words)
        assert (refused.code, refused.stdout) == (2, "")
        assert "this is a commit log, not a store" in refused.stderr, command
        assert f"Give the store that holds it: {store.root}" in refused.stderr


def test_a_store_in_use_is_looked_at_and_said_so(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    with broker_lock(store.root):
        checked = reput("check", *words)
    assert checked.code == 0
    assert "  in use     by " in checked.stdout


def test_a_running_broker_is_not_said_to_have_crashed(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-crash", tmp_path)
    with broker_lock(store.root):
        checked = reput("check", *options(store))
    assert (checked.code, "crash" in checked.stdout) == (0, False), "its index is ahead of its checkpoint"


def test_no_mending_is_recommended_that_is_refused(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    log = sorted((store.root / names.COMMIT_LOG).iterdir())
    log[1].unlink()
    steps = json.loads(reput("recover", *words, "--plan", "--json").stdout)["next_steps"]
    assert "--from REPLICA --plan" in " ".join(steps)
    assert "--apply" not in " ".join(steps)
    for segment in log[:1] + log[2:]:
        segment.unlink()
    steps = json.loads(reput("recover", *words, "--plan", "--json").stdout)["next_steps"]
    assert [step for step in steps if "reput" in step] == [], "nothing helps but the log"
    assert reput("recover", *words, "--apply").code == 2


def test_no_mending_of_a_log_outside_the_store_is_recommended(
    reput: Command, store: GoldenStore, tmp_path: Path
) -> None:
    """Nothing can be put in place there together with the rest."""
    words = options(store)
    last = max(path for path in (store.root / names.COMMIT_LOG).iterdir() if any(path.read_bytes()))
    start = record_starts(store.root, int(last.name))[-1]
    overwrite(store.root, last.stat().st_size, start + 4, b"oops")
    (store.root / names.ABORT).touch()
    steps = json.loads(reput("recover", *words, "--plan", "--json").stdout)["next_steps"]
    assert "--apply" in " ".join(steps)
    (store.root / names.COMMIT_LOG).rename(tmp_path / "outside")
    with broker_conf(store).open("a") as conf:
        conf.write(f"storePathRootDir={store.root}\nstorePathCommitLog={tmp_path / 'outside'}\n")
    steps = json.loads(reput("recover", *words, "--plan", "--json").stdout)["next_steps"]
    assert "--apply" not in " ".join(steps)


def test_a_deleted_topic_is_no_loss(reput: Command, store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Payments")
    topics = {path.name for path in (store.root / names.CONSUME_QUEUE).iterdir()}
    (store.root / names.CONFIG).mkdir(exist_ok=True)
    config = store.root / names.CONFIG / "topics.json"
    words = options(store)
    for known, code in ((topics, 0), (topics | {"Payments"}, 1)):
        config.write_text(json.dumps({"topicConfigTable": {name: {} for name in known}}))
        planned = json.loads(reput("recover", *words, "--plan", "--json").stdout)
        assert planned["exit_code"] == code
        assert planned["summary"].endswith(", if Payments was deleted") == (not code)
        assert ("whether Payments was lost or deleted: " in " ".join(planned["not_read"])) == (not code)


def test_no_mending_by_settings_of_another_store_is_recommended(reput: Command, store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Payments")
    for conf, release, said in (
        (broker_conf(store), "4.9.7", "--rocketmq-version"),
        (Path("/dev/null"), "5.3.3", "broker.conf"),
    ):
        words = (str(store.root), "--broker-conf", str(conf), "--rocketmq-version", release)
        planned = json.loads(reput("recover", *words, "--plan", "--json").stdout)
        steps = " ".join(planned["next_steps"])
        assert (planned["exit_code"], said in steps) == (1, True)
        assert "--apply" not in steps
        assert "--in-place" not in steps
        assert reput("recover", *words, "--apply").code == 2


def test_mending_does_not_hide_a_lost_file_of_config(reput: Command, store: GoldenStore) -> None:
    (store.root / names.CONFIG).mkdir(exist_ok=True)
    (store.root / names.CONFIG / "topics.json").write_text("{")
    mended = reput("recover", *options(store), "--apply")
    assert mended.code == 1
    assert "would start without config/topics.json" in mended.stdout.splitlines()[0]
    assert f"Nothing to mend in {store.root}" in mended.stdout


@pytest.mark.parametrize("arguments", [("recover",), ("check", "--rocketmq-version", "3.2")])
def test_refusals(reput: Command, store: GoldenStore, arguments: tuple[str, ...]) -> None:
    command, *rest = arguments
    refused = reput(command, str(store.root), *rest)
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("reput: ")


def test_no_store(reput: Command, tmp_path: Path) -> None:
    refused = reput("check", str(tmp_path / "nowhere"), "--json")
    assert refused.code == 2
    assert json.loads(refused.stdout)["error"] == "there is no store here"


def test_a_sound_store_is_left_alone(reput: Command, store: GoldenStore) -> None:
    before = tree(store.root)
    applied = reput("recover", *options(store), "--apply")
    assert (applied.code, applied.stderr) == (0, "")
    assert applied.stdout.endswith(f"Nothing to mend in {store.root}\n")
    assert tree(store.root) == before


def test_a_store_in_use_is_not_mended(reput: Command, store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.INDEX)
    with broker_lock(store.root):
        refused = reput("recover", *options(store), "--apply", "--json")
    assert (refused.code, json.loads(refused.stdout)["error"]) == (2, "the store is in use")


def test_controller_mode_is_refused(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-restart", tmp_path, enableControllerMode="true")
    refused = reput("recover", *options(store), "--apply")
    assert refused.code == 2
    assert "enableControllerMode changes how a broker recovers" in refused.stderr


@pytest.mark.spark
def test_lost_queues_and_damage_in_the_log_are_mended_and_undone(
    store: GoldenStore, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    command, words = Command(monkeypatch, lambda: spark), options(store)
    last = record_starts(store.root, 131072)[-3]
    overwrite(store.root, 65536, last + 4, b"oops")
    shutil.rmtree(store.root / names.CONSUME_QUEUE)
    before = tree(store.root, names.REPUT, names.LOCK)
    applied = command("recover", *words, "--apply")
    assert applied.code == 1, applied.stderr
    assert "\n  loses " in applied.stdout, "the plan comes first"
    assert f"at {last} to " in applied.stdout
    assert "bad-magic" in applied.stdout
    assert command("recover", *words, "--plan").code == 0
    assert command("undo", store.root).code == 0
    now = tree(store.root, names.REPUT, names.LOCK, *(path.name for path in store.root.glob("replaced-*")))
    assert now == before
    assert json.loads(command("recover", *words, "--apply", "--json").stdout)["exit_code"] == 1


@pytest.mark.spark
@pytest.mark.parametrize("repair", [("recover", "--apply"), ("rebuild", "--in-place")])
def test_queues_of_a_lost_log_end_alone_are_gone_after_one_repair(
    store: GoldenStore, monkeypatch: pytest.MonkeyPatch, spark: SparkSession, repair: tuple[str, str]
) -> None:
    command, words = Command(monkeypatch, lambda: spark), options(store)
    segment = max((store.root / names.COMMIT_LOG).iterdir())
    end = int(segment.name)
    lost = store.root / names.CONSUME_QUEUE / "Lost" / "0" / names.offset_name(0)
    lost.parent.mkdir(parents=True)
    size = int(str(store.config["mappedFileSizeConsumeQueue"]))
    lost.write_bytes(unit(end + 100, 200, 7).ljust(size, b"\0"))
    segment.unlink()
    assert "queue-cut" in command("recover", *words, "--plan").stdout
    repaired = command(repair[0], *words, repair[1])
    assert repaired.code == 1, repaired.stderr
    gone = (
        f"  gone       Lost:0 begins at offset 0 again: all its units (1) lead past the log's end at {end}\n"
    )
    assert gone in repaired.stdout
    assert not lost.exists()
    planned = command("recover", *words, "--plan")
    assert (planned.code, planned.stderr) == (0, ""), planned.stdout
    assert command("check", *words).code == 0
