"""Commands that look at the same thing say the same words about it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reput.diagnosis import check as reput_check
from reput.format import names
from reput.store import swap
from reput.store.lock import Holder
from reput.store.swap import Swap, new_stamp
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, broker_conf, give_settings, golden, tree


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    store = golden("5.5.0-tiny", tmp_path)
    give_settings(store)
    return store


def given(store: GoldenStore) -> list[str | Path]:
    return [store.root, "--broker-conf", broker_conf(store), "--rocketmq-version", store.version]


def half_replaced(store: GoldenStore) -> None:
    staging = store.root / names.REPUT / "staging"
    (staging / names.INDEX).mkdir(parents=True)
    begun = Swap(store.root, staging, [names.INDEX], new_stamp(store.root))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(swap, "_put", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            begun.run()


def short_segment(store: GoldenStore) -> None:
    (store.root / names.COMMIT_LOG / names.offset_name(0)).write_bytes(b"short")


def other_settings(store: GoldenStore) -> None:
    with broker_conf(store).open("a") as file:
        file.write("mappedFileSizeConsumeQueue=6000\n")


def unfinished_restore(store: GoldenStore) -> None:
    (store.root / names.COMMIT_LOG / names.RESTORING).write_bytes(b"2")


@pytest.mark.parametrize("damage", [half_replaced, short_segment, other_settings, unfinished_restore])
def test_a_migration_refuses_what_check_refuses(
    reput: Command, store: GoldenStore, damage: Callable[[GoldenStore], None]
) -> None:
    damage(store)
    found = json.loads(reput("check", *given(store), "--quick", "--json").stdout)
    assert found["exit_code"] in (3, 4)
    before = tree(store.root)
    for way in ["--plan"] if damage is half_replaced else ["--plan", "--apply"]:
        outcome = reput("migrate", *given(store), "--to", "rocksdb", way)
        assert outcome.code == 2
        assert found["findings"][0]["found"] in outcome.stderr
        assert found["next_steps"][0].split(": ")[-1] in outcome.stderr
        assert tree(store.root) == before


def test_a_report_says_of_a_half_replaced_store_what_check_says(
    reput: Command, store: GoldenStore, tmp_path: Path
) -> None:
    half_replaced(store)
    found = json.loads(reput("check", *given(store), "--json").stdout)
    outcome = reput("report", *given(store), "--json", "--out", tmp_path / "page.html")
    told = json.loads(outcome.stdout)
    names_of = ("exit_code", "summary", "findings", "next_steps")
    assert [told[name] for name in names_of] == [found[name] for name in names_of]
    assert outcome.code == 3


def test_a_database_that_broker_conf_does_not_name(
    reput: Command, store: GoldenStore, tmp_path: Path
) -> None:
    directory = store.root / names.CONSUME_QUEUE_ROCKSDB
    directory.mkdir()
    (directory / "CURRENT").touch()
    said = [
        json.loads(reput(*words, *given(store), "--json").stdout)
        for words in (["check"], ["report"], ["report", "--out", tmp_path / "page.html"], ["mend"])
    ]
    assert [(one["exit_code"], one["summary"]) for one in said] == [(5, said[0]["summary"])] * 4
    assert said[3]["steps"][0]["said"].startswith("If the broker keeps its queues in RocksDB")


def test_queues_by_other_settings_are_not_looked_at(reput: Command, store: GoldenStore) -> None:
    other_settings(store)
    found = json.loads(reput("check", *given(store), "--quick", "--json").stdout)
    (one,) = [one for one in found["findings"] if one["kind"] == "other-settings"]
    (store.root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:1}}}')
    (store.root / "config" / "lmqConsumerOffset.json").write_text('{"offsetTable":{"t@g":{0:1}}}')
    for words in (["lag"], ["query", "--queue", "t:0:0"]):
        outcome = reput(words[0], *given(store), *words[1:], "--json")
        refused = json.loads(outcome.stdout)
        assert outcome.code == 2
        assert [refused[name] for name in ("path", "expected", "found")] == [
            one[name] for name in ("path", "expected", "found")
        ]


def test_lag_says_that_there_is_no_such_topic(reput: Command, store: GoldenStore) -> None:
    (store.root / "config" / "lmqConsumerOffset.json").write_text('{"offsetTable":{"t@g":{0:1}}}')
    for topic, said in (("nowhere", "no such topic"), ("%LMQ%a", "no such entry")):
        outcome = reput("lag", *given(store), "--topic", topic)
        assert outcome.code == 2
        assert f"found {said}" in outcome.stderr


@pytest.mark.parametrize("line", ["{}", "[]", "null", "words", '{"type": "store"'])
def test_what_is_no_file_of_digests_is_shown(
    reput: Command, store: GoldenStore, tmp_path: Path, line: str
) -> None:
    (tmp_path / "digests").write_text(line)
    outcome = reput("dump", "digest", store.root, "--against", tmp_path / "digests")
    assert outcome.code == 2
    assert f"in line 1, found {line!r}. Make it again" in outcome.stderr


@pytest.mark.slow
def test_a_fifo_whose_next_segment_lies_outside_of_the_store(reput: Command, tmp_path: Path) -> None:
    store = golden("5.5.0-restart", tmp_path)
    give_settings(store)
    log, elsewhere = store.root / names.COMMIT_LOG, tmp_path / "elsewhere"
    elsewhere.mkdir()
    *_, gone, last = sorted(log.iterdir())
    last.rename(elsewhere / last.name)
    gone.unlink()
    os.mkfifo(gone)
    with broker_conf(store).open("a") as file:
        file.write(f"storePathCommitLog={log},{elsewhere}\n")
    quick = json.loads(reput("check", *given(store), "--quick", "--json").stdout)
    assert quick["exit_code"] == 4
    assert "`reput mend" in quick["next_steps"][0]
    assert reput("mend", *given(store), "--apply").code == 0
    assert sorted(path.name for path in log.iterdir()) == [names.offset_name(0), gone.name]
    assert reput("check", *given(store), "--quick").code == 0


@pytest.mark.parametrize("command", ["check", "report", "mend", "lag", "undo"])
def test_a_file_is_no_store(reput: Command, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()
    refused = json.loads(reput(command, tmp_path / "file", "--json").stdout)
    assert (refused["error"], refused["found"]) == ("there is no store here", "a file")


@pytest.mark.parametrize("name", [None, "abc", names.offset_name(0)])
def test_an_empty_log_is_that_of_a_new_broker(reput: Command, tmp_path: Path, name: str | None) -> None:
    log = tmp_path / "store" / names.COMMIT_LOG
    log.mkdir(parents=True)
    if name is not None:
        (log / name).touch()
    for words in (["check", "--quick"], ["check"], ["mend"], ["report"]):
        outcome = reput(*words, tmp_path / "store", "--json")
        assert outcome.code == 0, words
        assert f"{log}: empty, as that of a new broker" in outcome.stdout, words


def test_an_empty_log_of_a_store_whose_groups_have_read(reput: Command, tmp_path: Path) -> None:
    (tmp_path / "store" / names.COMMIT_LOG).mkdir(parents=True)
    (tmp_path / "store" / names.CONFIG).mkdir()
    offsets = tmp_path / "store" / names.CONFIG / "consumerOffset.json"
    offsets.write_text('{"offsetTable":{"T@g":{0:5}}}')
    for words in (["check", "--quick"], ["check"], ["mend"]):
        assert reput(*words, tmp_path / "store").code == 5, words


@pytest.mark.parametrize("words", [["check", "--quick"], ["check"], ["mend", "--apply"]])
def test_segments_without_a_byte(reput: Command, store: GoldenStore, words: list[str]) -> None:
    for path in (store.root / names.COMMIT_LOG).iterdir():
        path.write_bytes(b"")
    found = json.loads(reput(*words, *given(store), "--json").stdout)
    assert found["exit_code"] == 4
    step, *_ = found["next_steps"] if words[0] == "check" else [one["said"] for one in found["steps"]]
    assert step.endswith("move these segments away: there is nothing in them")


def test_a_segment_that_expires_meanwhile(
    reput: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, take = golden("5.5.0-restart", tmp_path), reput_check.take

    def taken(*given: Any) -> Any:
        found = take(*given)
        min((store.root / names.COMMIT_LOG).iterdir()).unlink()
        return replace(found, holder=Holder(None, "a broker"))

    monkeypatch.setattr(reput_check, "take", taken)
    assert reput("check", store.root, "-c", broker_conf(store), "--quick").code != 2


def test_settings_of_files_that_nobody_reads_refuse_no_queue(reput: Command, tmp_path: Path) -> None:
    store = golden("5.5.0-rocksdb-separate-path", tmp_path)
    other_settings(store)
    for queue_id in "01":
        (old := store.root / names.CONSUME_QUEUE / "Old" / queue_id).mkdir(parents=True)
        (old / names.offset_name(0)).write_bytes(bytes(1000))
    assert reput("query", *given(store), "--queue", "One:0").code == 0


def test_batch_queues_of_another_size_are_refused_as_by_check(reput: Command, tmp_path: Path) -> None:
    store = golden("5.5.0-batch-queue", tmp_path)
    give_settings(store)
    with broker_conf(store).open("a") as file:
        file.write("mapperFileSizeBatchConsumeQueue=4600\n")
    outcome = json.loads(reput("check", *given(store), "--json").stdout)
    (found,) = [one["found"] for one in outcome["findings"] if one["kind"] == "other-settings"]
    refused = reput("query", *given(store), "--queue", "Batches:0")
    assert refused.code == 2
    assert f"found {found}" in refused.stderr
