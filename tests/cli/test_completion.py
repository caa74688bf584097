"""Completion of values, asked for as bash, zsh and fish ask."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.cli import app as cli
from reput.config.dialect import DIALECTS
from tests.golden.store import GoldenStore, unpack
from tests.rebuilds import environment, golden

Shell = Callable[..., list[str]]


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    store = golden("5.3.3-lost-head", tmp_path)
    table = {"t@readers": {"0": 1}, "t@reports": {"0": 1}, "Orders@audit": {}}
    (store.root / "config").mkdir()
    (store.root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    return store


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """What a shell is offered for the last of some words."""
    kind: str = request.param

    def ask(*words: str | Path) -> list[str]:
        line = ["reput", *map(str, words)]
        monkeypatch.setenv("_REPUT_COMPLETE", f"complete_{kind}")
        if kind == "bash":
            monkeypatch.setenv("COMP_WORDS", "\n".join(line))
            monkeypatch.setenv("COMP_CWORD", str(len(line) - 1))
        else:
            monkeypatch.setenv("_TYPER_COMPLETE_ARGS", " ".join(line))
            monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        with pytest.raises(SystemExit):
            cli.app(prog_name="reput")
        told = capsys.readouterr()
        assert told.err == ""
        if kind == "zsh":
            return [found.replace("\\\\:", ":") for found in re.findall(r'"((?:[^"\\]|\\.)*)"', told.out)]
        return [line.split("\t")[0] for line in told.out.splitlines() if line]

    return ask


def test_findings_to_save(shell: Shell, store: GoldenStore) -> None:
    assert shell("export", store.root, "--finding", "missing-u") == ["missing-unit"]
    assert shell("export", store.root, "--queue", "Ord") == shell("query", store.root, "--queue", "Ord")


def test_topics_and_queues_of_the_store(shell: Shell, store: GoldenStore) -> None:
    topics = sorted(path.name for path in (store.root / "consumequeue").iterdir())
    assert shell("query", store.root, "--topic", "") == topics
    assert shell("rebuild", store.root, "--out", "x", "--queue", "") == topics
    assert shell("rebuild", store.root, "--queue", "T") == ["Transfers:0"]
    assert shell("check", "--queue", "T") == []
    assert shell("tail", store.root, "--queue", "T") == ["Transfers:0"]
    assert shell("query", store.root, "--at", "5", "--queue", "Ord") == [
        f"Orders:{number}" for number in range(4)
    ]
    assert shell("stats", store.root, "--topic", "Pay") == ["Payments"]
    assert shell("query", store.root, "--queue", "nothing") == []
    for name in ("-1", "007"):  # no --queue names these
        (store.root / "consumequeue" / "Transfers" / name).mkdir()
    assert shell("query", store.root, "--queue", "T") == ["Transfers:0"]


def test_queues_after_a_colon_that_is_no_end_of_a_word(shell: Shell, store: GoldenStore) -> None:
    assert shell("query", store.root, "--queue", "t:") == [f"t:{number}" for number in range(4)]
    assert shell("query", store.root, "--queue", "t:3") == ["t:3"]
    assert shell("query", store.root, "--queue", "../x:") == []


def test_groups(shell: Shell, store: GoldenStore) -> None:
    assert shell("lag", store.root, "--group", "") == ["audit", "readers", "reports"]
    assert shell("lag", store.root, "--by", "queue", "--group", "re") == ["readers", "reports"]
    (store.root / "config" / "consumerOffset.json").write_text("{")
    assert shell("lag", store.root, "--group", "") == []


def test_what_is_in_rocksdb(shell: Shell, tmp_path: Path) -> None:
    store = unpack("5.5.0-rocksdb-settings-single", tmp_path / "store")
    assert shell("query", store.root, "--topic", "O") == ["Odd%|name_1", "Orders"]
    assert shell("query", store.root, "--queue", "Pay")[0] == "Payments:0"
    assert shell("query", store.root, "--queue", "Orders:1") == ["Orders:1"]
    assert shell("lag", store.root, "--group", "") == [
        "audit",
        "billing",
        "devices",
        "odd%|group_1",
        "readers",
    ]


def test_releases(shell: Shell, store: GoldenStore) -> None:
    found = shell("rebuild", store.root, "--rocketmq-version", "")
    assert found[0] == DIALECTS[-1].versions[-1].rpartition(".")[0]
    assert {version for row in DIALECTS for version in row.versions} < set(found)
    for command in ("query", "check", "mend", "lag", "stats", "doctor"):
        assert shell(command, store.root, "--rocketmq-version", "4.9.") == [
            f"4.9.{patch}" for patch in range(8, -1, -1)
        ]


def test_without_a_store_nothing_is_offered(shell: Shell, tmp_path: Path) -> None:
    for words in (
        ("query", "--queue", ""),
        ("lag", tmp_path / "nowhere", "--group", ""),
        ("query", "--topic", ""),
    ):
        assert shell(*words) == []


def test_choices_and_commands(shell: Shell, store: GoldenStore) -> None:
    assert shell("stats", store.root, "--by", "h") == ["hour", "host"]
    offered = shell("st")
    assert ("stats" in offered, "status" in offered) == (True, False)


def test_bash_itself(store: GoldenStore, tmp_path: Path) -> None:
    script, program = tmp_path / "bin" / "reput", tmp_path / "reput"
    program.write_text("from reput.cli import main\nmain()\n")
    script.parent.mkdir()
    # A line "#!" may not be long, and its path has no spaces.
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {program} "$@"\n')
    script.chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    asked = f"""
        eval "$(reput --show-completion)"
        COMP_WORDS=(reput query {store.root} --queue Pay) COMP_CWORD=4
        _reput_completion reput
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{script.parent}:{environment()['PATH']}"
    told = subprocess.run(
        [bash, "--norc", "-c", asked],
        capture_output=True,
        text=True,
        env=environment(PATH=path, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=None),
        timeout=180,
        check=True,
    )
    assert told.stdout.split() == [f"Payments:{number}" for number in range(4)], told.stderr
