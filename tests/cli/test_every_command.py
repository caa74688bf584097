"""What every command does with no options, with wrong words, without its log, and on a narrow terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reput.cli import app as cli
from reput.cli.commands import Commands
from reput.format import names
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, golden, tree


def all_commands() -> list[str]:
    """Their names, those of a group behind the group's."""
    from typer.main import get_command

    root = get_command(cli.app)
    assert isinstance(root, Commands)
    found = []
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        found += [f"{name} {one}" for one in inner] if inner else [name]
    return found


ALL = all_commands()


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-restart", tmp_path)


def test_there_are_some() -> None:
    assert {"check", "rebuild", "dump commitlog", "query", "undo"} <= set(ALL)


@pytest.mark.parametrize("command", [one for one in ALL if one not in ("demo", "doctor")])
def test_without_options_it_says_what_is_missing(reput: Command, command: str) -> None:
    said = reput(*command.split())
    assert (said.code, said.stdout) == (2, "")
    assert ("Missing option '--out'" if command == "pack" else "Missing argument") in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("command", ALL)
def test_a_word_that_it_does_not_know(reput: Command, command: str) -> None:
    said = reput(*command.split(), "--nonsense")
    assert (said.code, said.stdout) == (2, "")
    assert "No such option" in said.stderr


@pytest.mark.parametrize("command", ALL)
def test_help_fits_60_columns(reput: Command, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERMINAL_WIDTH", "60")
    said = reput(*command.split(), "--help")
    assert said.code == 0
    assert max(map(len, said.stdout.splitlines())) <= 60
    assert "<bool>" not in said.stdout


#: How each command that reads the log ends where it isn't mounted, and what its first line says.
UNMOUNTED = {
    "check": (1, "Don't start RocketMQ"),
    "recover --plan": (1, "Don't start RocketMQ"),
    "recover --apply": (2, ""),
    "verify": (2, "commitlog"),
    "rebuild --in-place --dry-run": (2, "commitlog"),
    "rebuild --out OUT --dry-run": (2, "commitlog"),
    "rebuild --in-place": (2, "commitlog"),
    "stats": (2, "commitlog"),
    "dump commitlog": (2, "commitlog"),
    "query --offset 0": (2, "commitlog"),
    "export -o OUT": (2, "commitlog"),
    "export --finding units-missing -o OUT": (2, "commitlog"),
}


@pytest.mark.parametrize("command", UNMOUNTED)
def test_a_log_that_is_not_mounted(reput: Command, store: GoldenStore, tmp_path: Path, command: str) -> None:
    (store.root / names.COMMIT_LOG).rename(tmp_path / "elsewhere")
    before = tree(store.root, names.LOCK)
    code, first = UNMOUNTED[command]
    name, *more = [str(tmp_path / "out") if word == "OUT" else word for word in command.split()]
    group = [more.pop(0)] if name == "dump" else []
    said = reput(name, *group, store.root, *more)
    assert said.code == code, said
    assert first in (said.stdout or said.stderr).splitlines()[0]
    assert tree(store.root, names.LOCK) == before
    document = json.loads(reput(name, *group, store.root, *more, "--json").stdout)
    assert document["exit_code"] == code
