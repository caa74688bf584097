"""The command line on a store whose commit log DLedger writes: what answers, and what refuses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from reput.format import names
from reput.job import RebuildOptions, rebuild
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, broker_conf, golden, tree


@pytest.fixture(params=["4.9.7", "5.5.0"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return golden(f"{request.param}-dledger", tmp_path)


def options(store: GoldenStore) -> tuple[str, ...]:
    return str(store.root), "--broker-conf", str(broker_conf(store)), "--rocketmq-version", store.version


@pytest.mark.parametrize("command", ["check", "check --quick", "mend", "mend --apply"])
def test_what_the_group_decides_cant_be_told(reput: Command, store: GoldenStore, command: str) -> None:
    name, *rest = command.split()
    before = tree(store.root)
    outcome = reput(name, *options(store), *rest)
    assert outcome.code == 5
    assert "can't be told: not-foretold: how DLedger recovers its log" in outcome.stdout
    assert tree(store.root) == before


def test_the_group_brings_back_what_the_log_lacks(reput: Command, tmp_path: Path) -> None:
    store = golden("5.5.0-dledger", tmp_path)
    unit = (store.root / names.CONSUME_QUEUE / "Orders" / "0" / names.offset_name(0)).read_bytes()[60:68]
    segment = next(store.root.glob(f"dledger-*/data/{names.offset_name(0)}"))
    data = bytearray(segment.read_bytes())
    data[int.from_bytes(unit, "big") + 88] ^= 1  # of a body
    segment.write_bytes(data)
    told = json.loads(reput("check", *options(store), "--json").stdout)
    assert {one["kind"] for one in told["findings"]} == {"not-foretold", "bad-crc"}
    assert told["next_steps"] == [
        "DLedger's group brings a member's log back itself: let it join its group with an empty directory."
    ], "a replica is refused"


def test_a_tail_is_refused(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    before = tree(store.root)
    outcome = reput("tail", *options(store), "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "enableDLegerCommitLog asks for a commit log that DLedger writes" in outcome.stderr
    assert "docs/formats/dledger.md" in outcome.stderr
    assert tree(store.root) == before
    assert not (tmp_path / "out").exists()


def test_questions_are_answered(reput: Command, store: GoldenStore) -> None:
    words = options(store)
    before = tree(store.root)
    queue = reput("query", *words, "--queue", "Orders:0", "--at", "3", "--json")
    assert queue.code == 0, queue.stderr
    (message,) = json.loads(queue.stdout)["messages"]
    assert (message["topic"], message["queue_offset"]) == ("Orders", 3)
    place = message["physical_offset"]
    unit = (store.root / names.CONSUME_QUEUE / "Orders" / "0" / names.offset_name(0)).read_bytes()[60:68]
    assert place == int.from_bytes(unit, "big")
    for asked in (["--offset", str(place)], ["--id", message["offset_msg_id"]]):
        found = json.loads(reput("query", *words, *asked, "--json").stdout)
        assert [each["physical_offset"] for each in found["messages"]] == [place]
    assert tree(store.root) == before


def test_a_small_store_of_it_is_no_groups(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    small = tmp_path / "small"
    outcome = reput("export", *options(store), "--as", "store", "-o", small)
    assert outcome.code == 1, "what the group hasn't committed isn't there"
    (step,) = re.findall(r"`reput (check .*) --broker-conf COPY`", outcome.stdout)
    conf = broker_conf(store)
    conf.write_text(f"{conf.read_text()}enableDLegerCommitLog=false\n")
    assert shlex.split(step)[1] == str(small)
    assert (
        rebuild(RebuildOptions(small, broker_conf=conf, rocketmq_version=store.version), None).messages > 100
    )
