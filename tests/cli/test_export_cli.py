"""``reput export`` as it is typed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reput.export.records import message_of
from reput.format import names
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, broker_conf, environment, golden, run, start


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    store = golden("5.3.3-mixed", tmp_path_factory.mktemp("data"))
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Payments")
    return store


def test_the_name_of_a_finding_is_copied_from_a_check(
    reput: Command, store: GoldenStore, tmp_path: Path
) -> None:
    conf = ("--broker-conf", broker_conf(store), "--rocketmq-version", store.version)
    check = json.loads(reput("check", store.root, *conf, "--json").stdout)
    missing = sum(one["count"] for one in check["findings"] if one["kind"] == "missing-unit")
    assert missing > 0
    assert not any("export" in step for step in check["next_steps"])
    out = tmp_path / "stranded.jsonl"
    said = reput("export", store.root, "--finding", "missing-unit", "-o", out, *conf)
    assert said.code == 0, said.stderr
    count = len(out.read_bytes().splitlines())
    assert said.stdout.startswith(f"Saved {count} messages of missing-unit, ")
    assert count == missing
    assert f"next       `reput mend {store.root} " in said.stdout
    assert "reput resend" not in said.stdout, "what a mend brings back would come twice"
    document = json.loads(
        reput("export", store.root, "--finding", "no-queues", "-o", out, *conf, "--force", "--json").stdout
    )
    assert (document["exit_code"], document["messages"]) == (0, count)
    assert document["topics"] == {"Payments": count}


def test_a_file_stays_where_nothing_is_found(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    out = tmp_path / "old.jsonl"
    out.write_text("old")
    said = reput("export", store.root, "--topic", "None", "-o", out, "--force", "-c", broker_conf(store))
    assert said.code == 0
    assert f"no file was written, and {out} is as it was" in said.stdout
    assert out.read_text() == "old"


def test_lines_on_stdout_are_all_of_stdout(store: GoldenStore) -> None:
    said = run("export", store.root, "--topic", "Orders", "-n", "3", "-o", "-", "-c", broker_conf(store))
    assert said.code == 0
    found = [message_of(line) for line in said.stdout.splitlines()]
    assert [one.topic for one in found] == ["Orders"] * 3
    assert "Saved 3 messages" in said.stderr


def test_who_closes_the_pipe_has_seen_enough(store: GoldenStore) -> None:
    process = start("export", store.root, "-o", "-", "-c", broker_conf(store))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    assert (process.wait(180), "Traceback" in said) == (0, False)
    process.stderr.close()


def test_a_full_device_is_said(store: GoldenStore) -> None:
    with open("/dev/full", "w") as full:
        words = ["export", str(store.root), "-o", "-", "-c", str(broker_conf(store))]
        done = subprocess.run(
            [sys.executable, "-m", "reput.cli", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert "stdout" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "where the messages go is not clear"),
        (["-o", "-", "--json"], "--json with --out -"),
        (["-o", "-", "--as", "store"], "can't be written to stdout"),
        (["-o", "x", "--half"], "--half without --as store"),
        (["-o", "x", "--queue", "Orders:x"], "a queue can't be understood"),
        (["-o", "x", "--start", "9", "--end", "9"], "isn't before"),
        (["-o", "x", "--finding", "missing-uni"], "Did you mean missing-unit?"),
    ],
)
def test_what_does_not_go_together_is_refused(
    reput: Command, store: GoldenStore, words: list[str], said: str
) -> None:
    outcome = reput("export", store.root, *words, "-c", broker_conf(store))
    assert outcome.code == 2
    assert said in outcome.stderr
