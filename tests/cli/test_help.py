"""The examples of ``--help``: each command has some, each can be given, and those without Spark are run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from reput.cli import app as cli
from reput.dump.digest import write
from tests import pages
from tests.golden.store import GoldenStore
from tests.local import open_store, rebuild_locally
from tests.rebuilds import Command, broker_conf, golden

#: Commands that start Spark, and words that let others do it.
WITH_SPARK = {"rebuild", "catalog", "demo"}
#: Of a tail, it follows a store; those with several stores are in ``test_many.py``.
SPARK_WORDS = {"--apply", "--verify", "--master", "--out-root", "--at-once"}
#: Need a store that was rebuilt in place, or an export, or minutes: ``test_undo.py``, ``test_resend_cli.py``,
#: ``test_packed.py``; or a store elsewhere: ``tests/remote``.
ELSEWHERE = {"undo", "resend", "pack", "restore"}


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group, by the words that name it."""
    for name, command in group.commands.items():
        if getattr(command, "commands", None) is None:
            yield (*path, name), command
        else:
            yield from leaves(command, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(cli.app)))


def examples(path: tuple[str, ...]) -> list[str]:
    """The lines that ``--help`` shows as commands."""
    lines = (COMMANDS[path].epilog or "").splitlines()
    return [line.strip() for line in lines if line.startswith("    ")]


EXAMPLES = [example for path in COMMANDS for example in examples(path)]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_each_command_has_examples_of_itself(path: tuple[str, ...]) -> None:
    own = " ".join(("reput", *path))
    assert any(example == own or example.startswith(f"{own} ") for example in examples(path))
    shown = CliRunner().invoke(cli.app, [*path, "--help"]).stdout
    assert "Examples" in shown


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_can_be_given(example: str) -> None:
    assert example.startswith("reput ")
    pages.check_command(example)


@pytest.mark.parametrize("path", [(), ("dump",), *COMMANDS], ids=" ".join)
def test_help_fits_on_a_screen_or_two(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(CliRunner().invoke(cli.app, [*path, "--help"]).stdout.splitlines()) <= 60


def test_every_option_is_explained() -> None:
    unexplained = [
        f"reput {' '.join(path)} {parameter.opts[0]}"
        for path, command in COMMANDS.items()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert unexplained == []


def without_spark(words: list[str]) -> bool:
    """Whether an example's command starts no Spark and comes to an end."""
    if words[0] in WITH_SPARK | ELSEWHERE or SPARK_WORDS & set(words) or "--follow" in words:
        return False
    if words[0] == "check" and {"--against", "--proofs"} & set(words):
        return False  # of another store, and a file elsewhere: test_check_cli.py, test_nightly.py
    if words[0] == "tail" and words[1] not in ("--status", "--stop"):
        return False
    return words[0] != "doctor" or "--no-spark" in words


RUN = [example for example in EXAMPLES if without_spark(next(pages.simple_commands(example))[1:])]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    """The examples' /data/store, with offsets of consumers; /data/derived, backup and slave beside it."""
    data = tmp_path_factory.mktemp("data")
    store = golden("5.3.3-mixed", data)
    offsets = json.dumps({"offsetTable": {"Orders@readers": {"0": 3}}})
    for place in (store.root / "config", data / "backup"):
        place.mkdir(exist_ok=True)
        (place / "consumerOffset.json").write_text(offsets)
    shutil.copytree(store.root / "commitlog", data / "slave")
    rebuild_locally(open_store(store.root, version="5.3.3"), data / "derived")
    write(store.root, data / "store.digest", broker_conf(store), "5.3.3")
    golden("5.5.0-rocksdb-settings-v1", data / "rocksdb")
    return store


def in_rocksdb(words: list[str]) -> bool:
    """Whether an example is about what only stores with RocksDB have."""
    return words[:2] == ["dump", "config"] or any("rocksdbstore" in word for word in words)


def placed(words: list[str], store: GoldenStore) -> list[str]:
    """An example's words with the paths and names of a store that is there."""
    segment = min((store.root / "commitlog").iterdir())
    changes = (
        *([(r"^/data/store", str(store.root.parent / "rocksdb" / "store"))] if in_rocksdb(words) else []),
        (r"^\./\d{20}$", str(segment)),
        (r"^/data/", f"{store.root.parent}/"),
        (r"^broker\.conf$", str(broker_conf(store))),
        *([(r"^store\.digest$", str(store.root.parent / "store.digest"))] if "--against" in words else []),
        (r"^orders\b", "Orders"),
    )
    for pattern, found in changes:
        words = [re.sub(pattern, found, word) for word in words]
    return words


def test_there_are_examples_without_spark() -> None:
    commands = {shlex.split(example)[1] for example in RUN}
    assert {"query", "lag", "stats", "doctor", "check", "mend", "tail", "dump"} <= commands


@pytest.mark.parametrize("example", RUN)
@pytest.mark.slow
def test_an_example_works(
    example: str, store: GoldenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_spark() -> Any:
        raise AssertionError("Spark was to be started")

    monkeypatch.chdir(tmp_path)
    words = placed(next(pages.simple_commands(example))[1:], store)
    if "--broker-conf" not in words and any("--broker-conf" in one.opts for one in _of(words).params):
        # The golden store's files are shorter than a broker's usually are.
        conf = broker_conf(store)
        words += ["--broker-conf", str(conf.parent / "rocksdb" / conf.name if in_rocksdb(words) else conf)]
    outcome = Command(monkeypatch, no_spark)(*words)
    assert outcome.code in (0, 1), outcome.stderr
    assert outcome.stdout or words[0] == "dump", "what isn't in the store isn't dumped"


def _of(words: list[str]) -> Any:
    return COMMANDS[tuple(words[:2])] if tuple(words[:2]) in COMMANDS else COMMANDS[tuple(words[:1])]
