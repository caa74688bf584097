"""What commands take for a store's settings: what was given, the environment, what the store shows."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from reput.format import names
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, broker_conf, golden, tree

SHOWN = (
    "  settings   4.7.1 to 4.9: hashSlotCount of index/20261121103557943 counts slots and "
    "config/delayOffset.json has no dataVersion, 4.9 assumed; queue files of 1,000 bytes: 24 of 24; "
    "index files of 100 slots and 400 entries: 2 of 2"
)


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    found = golden("4.9.7-lost-head", tmp_path / "given")
    # Away from its broker.conf, which would be offered.
    found.root.rename(tmp_path / "store")
    return GoldenStore(found.name, tmp_path / "store", found.manifest)


@pytest.fixture
def conf(store: GoldenStore, tmp_path: Path) -> Path:
    return store.write_broker_conf(tmp_path / "given" / "own.conf")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The broker.conf of a broker with files of the default sizes."""
    path = tmp_path / "given" / "other.conf"
    path.touch()
    return path


def test_check_takes_a_sound_store_for_sound(reput: Command, store: GoldenStore) -> None:
    checked = reput("check", store.root)
    assert checked.code == 0
    assert checked.stdout.startswith(f"{store.root}: start it: nothing is wrong for RocketMQ 4.9\n")
    assert f"\n{SHOWN}\n" in checked.stdout
    settings = json.loads(reput("check", store.root, "--json").stdout)["settings"]
    assert settings == {
        "rocketmq_releases": ["4.9.4", "4.9.5", "4.9.6", "4.9.7", "4.9.8"],
        "assumed": SHOWN.removeprefix("  settings   ").split("; "),
        "contradictions": [],
        "broker_conf_nearby": None,
    }


def test_a_log_that_an_old_release_would_pass_over_is_there(
    reput: Command, store: GoldenStore, other: Path
) -> None:
    words = ("-c", other, "--rocketmq-version", "4.3.0", "--json")
    found = json.loads(reput("check", store.root, *words).stdout)["findings"]
    assert {one["kind"] for one in found if one["area"] == "log"} == {"other-settings"}


def test_settings_of_another_store_are_one_finding(reput: Command, store: GoldenStore, other: Path) -> None:
    log = json.loads(reput("check", store.root, "-c", other, "--json").stdout)["findings"]
    assert [(one["kind"], one["area"], one["effect"]) for one in log] == [("other-settings", "log", "blocks")]
    assert log[0]["expected"] == "mappedFileSizeCommitLog=1073741824, RocketMQ's default"
    assert log[0]["found"].endswith(" segments of 65536 bytes")
    other.write_text(f"{other.read_text()}mappedFileSizeCommitLog=65536\n")
    checked = reput("check", store.root, "-c", other)
    assert checked.code == 4
    assert checked.stdout.startswith(f"{store.root}: it will not start: RocketMQ 4.9")
    found = json.loads(reput("check", store.root, "-c", other, "--json").stdout)
    queues, index = found["findings"]
    assert (queues["kind"], queues["effect"]) == ("other-settings", "blocks")
    assert queues["found"] == "queue files of 1,000 bytes: 24 of 24"
    assert queues["expected"] == "mappedFileSizeConsumeQueue=6000000, RocketMQ's default"
    assert (index["kind"], index["effect"]) == ("other-settings", "unknown")
    assert [one["setting"] for one in found["settings"]["contradictions"]] == [
        "mappedFileSizeConsumeQueue",
        "maxHashSlotNum, maxIndexNum",
    ]
    report = json.loads(reput("report", store.root, "-c", other, "--json").stdout)
    assert report["findings"] == found["findings"]
    before = tree(store.root)
    mended = json.loads(reput("mend", store.root, "--apply", "-c", other, "--json").stdout)
    assert [one["kind"] for one in mended["findings"]] == ["other-settings", "other-settings"]
    assert tree(store.root) == before


@pytest.mark.parametrize(
    "words",
    [
        ("rebuild", "--in-place", "-c", "OTHER"),
        ("rebuild", "--in-place", "--queue", "Orders", "-c", "OTHER"),
    ],
)
def test_in_place_they_are_refused_before_spark(
    reput: Command, store: GoldenStore, other: Path, words: tuple[str, ...]
) -> None:
    before = tree(store.root)
    name, *options = [str(other) if word == "OTHER" else word for word in words]
    refused = reput(name, store.root, *options)
    assert (refused.code, refused.stdout) == (2, "")
    for said in (
        "expected queue files of 1,000 bytes: 24 of 24",
        "mappedFileSizeConsumeQueue=6000000, RocketMQ's default",
        "Give the broker.conf that this store was written with: -c FILE",
        "To give the store other files on purpose: reput rebuild --in-place --convert",
    ):
        assert said in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert tree(store.root) == before


def test_a_release_that_did_not_write_it_is_refused_in_place(
    reput: Command, store: GoldenStore, conf: Path
) -> None:
    refused = reput("rebuild", store.root, "--in-place", "-c", conf, "--rocketmq-version", "5.5.0")
    assert refused.code == 2
    assert "config/delayOffset.json has no dataVersion, found RocketMQ 5.5.0" in refused.stderr
    assert "Name the release that wrote this store: --rocketmq-version V" in refused.stderr


@pytest.mark.parametrize(
    "words", [("--out", "OUT"), ("--in-place", "--queue", "t"), ("--in-place", "--no-index")]
)
def test_a_store_is_converted_as_a_whole(
    reput: Command, store: GoldenStore, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Else files of two sizes would stand beside each other."""
    asked = [str(tmp_path / "out") if word == "OUT" else word for word in words]
    refused = reput("rebuild", store.root, "--convert", *asked)
    assert (refused.code, "--convert makes all files of a store anew" in refused.stderr) == (2, True)


def test_a_file_nearby_is_offered_and_not_taken(
    reput: Command, store: GoldenStore, conf: Path, tmp_path: Path
) -> None:
    beside = tmp_path / "broker.conf"
    beside.write_text("mappedFileSizeConsumeQueue=5000\n")
    checked = reput("check", store.root)
    assert checked.code == 0
    assert (
        f"{SHOWN}; a broker.conf lies at {beside}: give it with -c if it is this broker's\n" in checked.stdout
    )
    assert str(beside) not in reput("check", store.root, "-c", conf).stdout


def test_what_the_environment_gives_counts_and_is_carried_on(
    reput: Command,
    store: GoldenStore,
    conf: Path,
    other: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPUT_BROKER_CONF", str(conf))
    monkeypatch.setenv("REPUT_ROCKETMQ_VERSION", "4.9.5")
    checked = reput("check", store.root)
    assert checked.code == 0
    assert "settings" not in checked.stdout, "nothing was assumed"
    shutil.rmtree(store.root / names.INDEX)
    planned = reput("check", store.root)
    carried = f"--broker-conf {shlex.quote(str(conf))} --rocketmq-version 4.9.5"
    assert f"`reput mend {store.root} {carried}`" in planned.stdout
    # The option wins, and an environment that contradicts the store is refused beside the store, too.
    assert reput("check", store.root, "-c", other).code == 4
    monkeypatch.setenv("REPUT_BROKER_CONF", str(other))
    refused = reput("rebuild", store.root, "--out", tmp_path / "out")
    assert (refused.code, "queue files of 1,000 bytes: 24 of 24" in refused.stderr) == (2, True)
    assert not (tmp_path / "out").exists()
    assert reput("check", store.root, "-c", conf).code == 3, "its index is gone"
    # Without a store they change nothing, and aren't refused as options are.
    assert reput("doctor", "--no-spark").code != 2


def test_files_of_two_sizes_are_refused_without_an_option(
    reput: Command, store: GoldenStore, tmp_path: Path
) -> None:
    """As a rebuild of one topic by the defaults once left them: no broker starts on it."""
    for path in (store.root / names.CONSUME_QUEUE / "Orders").rglob("0000*"):
        os.truncate(path, 6_000_000)
    refused = reput("rebuild", store.root, "--out", tmp_path / "out")
    assert refused.code == 2
    assert "queue files don't agree: 1,000 bytes" in refused.stderr
    checked = json.loads(reput("check", store.root, "--json").stdout)
    assert [one["kind"] for one in checked["findings"]] == ["other-settings"]


def test_what_is_shown_is_not_mixed_with_what_was_asked_for(reput: Command, store: GoldenStore) -> None:
    """Of a command whose output is messages, the line is on stderr."""
    asked = reput("query", store.root, "--queue", "Orders:0")
    assert asked.stdout.startswith("minOffset ")
    assert asked.stderr == f"reput: settings: {SHOWN.removeprefix('  settings   ')}\n"
    dumped = reput("dump", "index", store.root / names.INDEX, "--limit", "1")
    assert (dumped.code, "100 slots and 400 entries" in dumped.stderr) == (0, True)
    listed = reput("lag", store.root).stderr
    assert "settings" not in listed
    assert broker_conf(store) == store.root.parent / "broker.conf"
