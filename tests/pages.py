"""The pages of documentation as programs read them: blocks, the commands in them, and what these print.

A block is run by a test only if the line before it says so, in a comment that no reader sees:

- ``<!-- run -->``: its commands are run, in order, and what they print is compared;
- ``<!-- run: spark -->``: likewise, in a test that has a Spark session.

All blocks of a page share one directory, so that a block finds what those before it left. In what a page
prints, ``…`` stands for any text, and a line of nothing else for any number of lines.
"""

from __future__ import annotations

import ast
import functools
import importlib
import io
import re
import shlex
import unicodedata
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from reput.cli import app as cli

ROOT = Path(__file__).parents[1]

_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>run(?:: \w+)?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`(?:\.venv/bin/)?(reput [a-z]+[^`]*|make [a-z]+[^`]*)`(?!`)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_JOB = re.compile(r"(?:^|/)jobs/\w+\.py$")
_ANY = "…"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        page: the file it stands in.
        line: the number of its first line in the page, from 1 on.
        language: what stands behind the fence, such as ``console``.
        text: its lines.
        mark: ``run`` or ``run: spark``, or nothing.
    """

    page: Path
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a ``console`` block, and the lines that it prints according to the page."""

    command: str
    printed: tuple[str, ...]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        indent = match["indent"]
        lines = [line.removeprefix(indent) for line in match["text"].splitlines()]
        number = text.count("\n", 0, match.start("text")) + 1
        found.append(Block(page, number, match["language"], "\n".join(lines) + "\n", match["mark"] or ""))
    return found


def steps(block: Block) -> list[Step]:
    """The commands behind ``$``, with the lines they go on in, and the lines below each."""
    found: list[Step] = []
    lines = iter(block.text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = command[:-1] + next(lines).lstrip("> ")
            found.append(Step(command, ()))
        elif found:
            found[-1] = Step(found[-1].command, (*found[-1].printed, line))
        else:
            raise AssertionError(f"{block}: begins with {line!r}, which is no command")
    return found


def commands(block: Block) -> list[str]:
    """All commands of a ``console`` or ``sh`` block; another block has none."""
    if block.language == "console":
        return [step.command for step in steps(block)]
    if block.language != "sh":
        return []
    joined = re.sub(r"\\\n\s*", "", block.text)
    return [line for line in joined.splitlines() if line and not line.startswith("#")]


def indented_commands(page: Path) -> list[str]:
    """Commands of blocks that are indented by four spaces, without a fence."""
    text = re.sub(r"\\\n\s*", "", prose(page))
    return re.findall(r"(?<=^    )(?:make|reput|spark-submit|python -m) .*", text, re.MULTILINE)


def inline_commands(page: Path) -> list[str]:
    """``reput …`` and ``make …`` between single backticks."""
    return _INLINE.findall(re.sub(r"\s+", " ", prose(page)))


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return cut(page.read_text(encoding="utf-8"))[0]


def cut(text: str) -> tuple[str, list[str]]:
    """A page's text without its fenced blocks, and these, with what marks and encloses them."""
    return _FENCE.sub("", text), [match[0] for match in _FENCE.finditer(text)]


def links(text: str) -> list[tuple[str, str]]:
    """Relative links of a page's text: (path, anchor), either may be empty."""
    targets = [target for target in _LINK.findall(text) if not re.match(r"[a-z][a-z0-9+.-]*:", target)]
    return [(path, anchor) for path, _, anchor in (target.partition("#") for target in targets)]


def headings(text: str) -> list[tuple[int, str]]:
    """The headings of a page's text: (level, anchor as GitHub makes it)."""
    return [(len(marks), _anchor(title)) for marks, title in re.findall(r"^(#+) +(.+)$", text, re.MULTILINE)]


def _anchor(title: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
    kept = (char for char in plain if char in " -_" or unicodedata.category(char)[0] in "LN")
    return "".join(kept).replace(" ", "-")


def check_command(command: str) -> None:
    """A command that a page shows can be given: of reput's with these words, of others what can be known.

    Raises:
        AssertionError: says why not.
    """
    for words in simple_commands(command):
        name = Path(words[0]).name
        if name == "reput":
            check_words(words[1:])
        elif name == "make":
            wanted = {word for word in words[1:] if "=" not in word}
            assert wanted <= targets(), f"make has no target {', '.join(sorted(wanted - targets()))}"
        elif name == "spark-submit":
            (place,) = [number for number, word in enumerate(words) if _JOB.search(word)]
            job = Path(words[place])
            assert (ROOT / "jobs" / job.name).is_file(), f"there is no {words[place]}"
            check_words([job.stem.replace("_", "-"), *words[place + 1 :]])
        elif name.startswith("python") and words[1:2] == ["-m"] and words[2].split(".")[0] in _OURS:
            importlib.import_module(words[2])


_OURS = ("reput", "bench", "tests")


def check_words(words: list[str]) -> None:
    """Words behind ``reput`` are parsed by the command line itself, which then does nothing.

    Raises:
        AssertionError: a command, an option or the number of arguments is wrong, or a value can't be used.
    """
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as ended:
        _idle_command_line().main(words, prog_name="reput")
    assert not ended.value.code, f"reput {shlex.join(words)}: {said.getvalue()}"


def names_of_commands() -> list[str]:
    """The words behind ``reput`` that name a command, those of a group of commands included."""
    group = _idle_command_line()
    return [
        " ".join((name, *more))
        for name, command in group.commands.items()
        for more in [[inner] for inner in getattr(command, "commands", {})] or [[]]
    ]


@functools.cache
def _idle_command_line() -> Any:
    """``reput`` whose commands end as soon as their words are parsed.

    A group of click's, or of the copy of it that newer releases of typer come with.
    """
    group: Any = typer.main.get_command(cli.app)
    waiting = [*group.commands.values()]
    while waiting:
        command = waiting.pop()
        command.callback = None
        waiting += getattr(command, "commands", {}).values()
    return group


def check_inline(command: str) -> None:
    """A command in a sentence may leave out words; what is there has to exist.

    Raises:
        AssertionError: there is no such command, target or option.
    """
    words = command.split()
    if words[0] == "make":
        assert words[1] in targets(), f"make has no target {words[1]}"
        return
    found, place = _idle_command_line(), 0
    while place + 1 < len(words) and words[place + 1] in getattr(found, "commands", {}):
        place += 1
        found = found.commands[words[place]]
    assert place, f"there is no reput {words[1]}"
    known = {option for parameter in found.params for option in parameter.opts} | {"--help"}
    named = {word.strip(".,;:)]") for word in words[place + 1 :] if word.startswith("--")}
    assert named <= known, f"reput {found.name} has no {', '.join(sorted(named - known))}"


def check_python(text: str) -> None:
    """Python compiles, and what it imports from reput is there.

    Raises:
        AssertionError: a name isn't there.
        SyntaxError: it doesn't compile.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _OURS:
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in _OURS:
                    importlib.import_module(alias.name)


def targets() -> set[str]:
    """What ``make`` can be asked for."""
    return set(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))


def assert_printed(expected: tuple[str, ...], actual: str) -> None:
    """What a command printed is what the page says.

    Raises:
        AssertionError: it isn't; with both.
    """
    pattern = ""
    for line in expected:
        if line.strip() in (_ANY, "..."):
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(map(re.escape, line.rstrip().split(_ANY))) + r" *\n"
    text = actual if actual.endswith("\n") or not actual else actual + "\n"
    assert re.fullmatch(pattern, text), "\n".join(("the page says:", *expected, "and it prints:", text))


def simple_commands(command: str) -> Iterator[list[str]]:
    """The commands of a line without comment, each as its words, without what precedes and redirects it."""
    lexer = shlex.shlex(re.sub(r"\s# .*", "", command), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""  # else a word ends at a # in it
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("();&|") and word:
            if words:
                yield words
            words = []
        elif words or not re.fullmatch(r"\w+=.*", word):
            if set(word) <= set("<>"):
                words.append(">")
            elif words and words[-1] == ">":
                words.pop()
            else:
                words.append(word)
