"""``reput query``: output and exit codes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.golden.store import GoldenStore
from tests.rebuilds import Command, Outcome, broker_conf, golden, run, tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGE = Path(__file__).parents[2] / "docs" / "query.md"
_EXAMPLE = re.compile(r"^\$ (reput query .*)\n((?:(?!\$ |```).*\n)*)", re.MULTILINE)


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-lost-head", tmp_path)


@pytest.fixture
def reput(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    def no_spark() -> SparkSession:
        raise AssertionError("Spark was to be started")

    command = Command(monkeypatch, no_spark)
    yield command
    assert command.sessions == 0


def query(command: Callable[..., Outcome], store: GoldenStore, *words: str) -> Outcome:
    options = ("--broker-conf", str(broker_conf(store)), "--rocketmq-version", store.version)
    return command("query", store.root, *options, *words)


def test_the_examples_of_its_page(reput: Command, store: GoldenStore) -> None:
    examples = _EXAMPLE.findall(_PAGE.read_text(encoding="utf-8"))
    assert len(examples) >= 4
    before = tree(store.root)
    for command, shown in examples:
        words = shlex.split(command)[3:]
        assert query(reput, store, *words).stdout == shown, command
    assert tree(store.root) == before


def test_found_not_found_and_refused(reput: Command, store: GoldenStore) -> None:
    found = query(run, store, "--offset", "134044", "--body", "--json")
    assert found.code == 0
    answer = json.loads(found.stdout)
    assert (answer["exit_code"], answer["found"], answer["why"]) == (0, True, None)
    (message,) = answer["messages"]
    assert (message["physicalOffset"], message["keys"], message["verdict"]) == (134044, ["order"], "MATCH")
    assert len(message["body"]) == message["bodySize"] == 2
    missing = query(reput, store, "--queue", "t:1", "--at", "0", "--json")
    assert missing.code == 1
    answer = json.loads(missing.stdout)
    assert (answer["status"], answer["nextBeginOffset"], answer["messages"]) == ("OFFSET_TOO_SMALL", 12, [])
    refused = query(reput, store, "--key", "order")
    assert refused.code == 2
    assert "expected --topic beside it" in refused.stderr
