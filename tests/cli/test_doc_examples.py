"""What README.md and docs/ show: commands that can be given, code that compiles, output that is so.

``tests/pages.py`` says which blocks are run; those of Chinese pages are the same, and run once
(``tests/unit/test_translations.py``). What isn't run here is run elsewhere: ``reput tail`` beside
a writer by ``test_tail_cli.py`` and ``tests/spark/test_tail.py``, ``spark-submit`` by
``tests/spark/test_cluster.py``, the ledger as a table by ``tests/spark/test_ledger_in_spark.py``.
"""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from reput import demo
from tests import pages
from tests.rebuilds import Command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = pages.ROOT / "docs"
PAGES = [
    *sorted(pages.ROOT.glob("README*.md")),
    pages.ROOT / "CONTRIBUTING.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "adr"),
]
HERE = "/tmp/shop"
"""Where the pages unpack the store that comes with reput."""

_named = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(pages.ROOT).as_posix())


@_named
def test_blocks_fit_their_kind(page: Path) -> None:
    wrong = []
    for block in pages.blocks(page):
        try:
            _check(block)
        except (AssertionError, ImportError, SyntaxError, ValueError, yaml.YAMLError) as error:
            wrong.append(f"{block}: {error}")
    for command in pages.indented_commands(page):
        pages.check_command(command)
    assert not wrong, "\n".join(wrong)


def test_every_command_is_shown() -> None:
    shown = [command for page in PAGES for block in pages.blocks(page) for command in pages.commands(block)]
    for command in pages.names_of_commands():
        assert any(f"reput {command}" in line for line in shown), f"no page shows reput {command}"


@_named
def test_marks_belong_to_blocks(page: Path) -> None:
    marks = re.findall(r"^<!-- *run.*", page.read_text(encoding="utf-8"), re.MULTILINE)
    marked = [block.mark for block in pages.blocks(page) if block.mark]
    assert marks == [f"<!-- {mark} -->" for mark in marked]
    assert set(marked) <= {"run", "run: spark"}


@_named
def test_commands_in_sentences_exist(page: Path) -> None:
    for command in pages.inline_commands(page):
        pages.check_inline(command)


@pytest.mark.parametrize(
    "command",
    [
        "reput rebuild /data/store --otu /data/new",
        "reput tail --status",
        "reput tail --stop /data/derived --out",
        "reput status /data/derived",
        "reput tail /data/store --out /data/new --metrics-port many",
        "reput heal /data/store",
        "reput rebuild /data/store --out /data/new | reput satus /data/new",
        "make coffee",
        "spark-submit jobs/rebuild.py /data/store --outt /data/new",
        "spark-submit jobs/nothing.py /data/store",
    ],
)
def test_a_command_that_cannot_be_given_is_seen(command: str) -> None:
    with pytest.raises(AssertionError):
        pages.check_command(command)


@pytest.mark.parametrize("command", ["reput check --agianst", "reput mend --in-place", "make coffee"])
def test_a_word_in_a_sentence_that_does_not_exist_is_seen(command: str) -> None:
    with pytest.raises(AssertionError):
        pages.check_inline(command)


def test_other_output_is_seen() -> None:
    page = ("Found …", "  one  … s", "…", "  last")
    pages.assert_printed(page, "Found it\n  one  0.3 s\n  two\n  three\n  last\n")
    pages.assert_printed(page, "Found it\n  one  0.3 s\n  last\n")
    for printed in ("Found it\n  one\n  last\n", "Found it\n  one  0.3 s\n  last\n  more\n", ""):
        with pytest.raises(AssertionError):
            pages.assert_printed(page, printed)


def _check(block: pages.Block) -> None:
    if block.language in ("console", "sh"):
        for command in pages.commands(block):
            pages.check_command(command)
    elif block.language == "python":
        pages.check_python(block.text)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "yaml":
        yaml.safe_load(block.text)
    else:
        assert "$ reput" not in block.text, "commands belong into a block of kind console"


class Reader:
    """Does what a page says, in a directory that the page takes for /tmp/shop."""

    def __init__(self, directory: Path, reput: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = directory
        self._reput = reput
        self._monkeypatch = monkeypatch
        self._code = 0
        # Whether a line of progress comes depends on the machine.
        monkeypatch.setattr("reput.cli.output._LINE_EVERY_SECONDS", math.inf)

    def follow(self, page: Path, *marks: str) -> int:
        """Run the page's blocks that have one of these marks; how many commands that were."""
        done = 0
        before = None
        for block in pages.blocks(page):
            if block.mark in marks and block.language == "console":
                for step in pages.steps(block):
                    printed = self._run(step.command)
                    if step.printed:
                        try:
                            pages.assert_printed(step.printed, printed)
                        except AssertionError as error:
                            raise AssertionError(f"{block}: $ {step.command}\n{error}") from None
                    assert step.printed or self._code != 2, f"{block}: $ {step.command}\n{printed}"
                    done += 1
            elif block.mark in marks and block.language == "python":
                before = self._python(block.text)
                done += 1
            elif block.language == "text" and before is not None:
                pages.assert_printed(tuple(block.text.splitlines()), before)
                before = None
        return done

    def _run(self, command: str) -> str:
        words = list(pages.simple_commands(command))
        if command == "echo $?":
            return f"{self._code}\n"
        if words[0][0] == "cd":
            self._monkeypatch.chdir(self._local(words[0][1]))
            return ""
        if words[0][0] == "export":
            for name, _, value in (word.partition("=") for word in words[0][1:]):
                self._monkeypatch.setenv(name, self._local(value))
            return ""
        if words[0][0] == "reput" and len(words) == 1:
            outcome = self._reput(*(self._local(word) for word in words[0][1:]))
            self._code = outcome.code
            return (outcome.stdout + outcome.stderr).replace(str(self._root), HERE)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._local(command)],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._code = done.returncode
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        return done.stdout.replace(str(self._root), HERE)

    def _python(self, text: str) -> str:
        said = io.StringIO()
        with redirect_stdout(said):
            exec(compile(self._local(text), "<page>", "exec"), {})
        return said.getvalue()

    def _local(self, text: str) -> str:
        return text.replace(HERE, str(self._root))


@pytest.mark.spark
def test_quickstart(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reput.spark.sessions.session", lambda *_, **__: spark)
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path / "shop", Command(monkeypatch, lambda: spark), monkeypatch)
    assert reader.follow(DOCS / "quickstart.md", "run", "run: spark") > 10


@pytest.mark.spark
@pytest.mark.parametrize("page", ["README.md", "docs/howto.md"])
def test_on_the_store_of_the_demo(
    page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.unpack(tmp_path)
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, Command(monkeypatch, lambda: spark), monkeypatch)
    assert reader.follow(pages.ROOT / page, "run", "run: spark") > 2
