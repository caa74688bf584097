"""What ``reput dump`` shows of a changed store: a documented exit code, and lines that say what they are."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints
from unittest.mock import patch

import typer

from reput.cli.dump import checkpoint_command, commitlog_command, consumequeue_command, index_command
from reput.dump import commitlog, consumequeue

LOG, QUEUES, INDEX, CHECKPOINT = "commitlog", "consumequeue", "index", "checkpoint"
_KINDS = {
    LOG: {"message", "blank", "unwritten", "damage", "nothing", "error"},
    QUEUES: {"unit", "pre-blank", "unwritten", "zeros", "damage", "nothing", "error"},
    INDEX: {"index", "slot", "entry", "damage", "nothing", "error"},
    CHECKPOINT: {"checkpoint", "error"},
}


class WrongDumpError(AssertionError):
    """Something that a dump must not say, or do."""


@dataclass(frozen=True, slots=True)
class Dumped:
    """What came of a dump.

    Attributes:
        what: the command.
        code: its exit code.
        text, lines: what it showed for people, and as JSON lines.
    """

    what: str
    code: int
    text: str
    lines: tuple[str, ...]

    def told(self) -> Counter[str]:
        """What it was about, in short."""
        kinds = Counter(str(json.loads(line)["type"]) for line in self.lines)
        said = {0: "sound", 1: "damage", 2: "refused"}[self.code]
        told = Counter({f"dump {self.what}: {said}": 1})
        if kinds["damage"]:
            told[f"dump {self.what}: damage lines"] = kinds["damage"]
        return told


def dumped(what: str, root: Path, broker_conf: Path, version: str) -> Dumped:
    """Show all of a store's files of one sort, for people and as JSON lines.

    Raises:
        WrongDumpError: an exit code that isn't documented or doesn't fit the lines, a traceback, or a line
            that isn't what it says.
    """
    command, options = _commands(broker_conf, version)[what]
    # Whether a broker is writing is looked at twice, with a nap in between.
    with (
        patch.object(commitlog, "_LOOK_AGAIN_SECONDS", 0),
        patch.object(consumequeue, "_LOOK_AGAIN_SECONDS", 0),
    ):
        text = _run(what, command, root, options)
        found = _run(what, command, root, {**options, "as_json": True})
    lines = tuple(found[1].splitlines())
    kinds = Counter(_kind(what, line) for line in lines)
    if kinds.keys() - _KINDS[what]:
        raise WrongDumpError(f"dump {what}: lines of {sorted(kinds)}")
    expected = 2 if kinds["error"] else 1 if kinds["damage"] else 0
    if not text[0] == found[0] == expected:
        raise WrongDumpError(f"dump {what}: exit codes {text[0]} and {found[0]} with {dict(kinds)}")
    shown = sum(count for kind, count in kinds.items() if kind not in ("error", "nothing"))
    if what != CHECKPOINT and text[1].count("\n") != shown:
        raise WrongDumpError(f"dump {what}: {text[1].count(chr(10))} lines of text, {shown} of JSON")
    return Dumped(what, found[0], text[1], lines)


def _commands(broker_conf: Path, version: str) -> dict[str, tuple[Callable[..., None], dict[str, Any]]]:
    settings = {"broker_conf": broker_conf, "rocketmq_version": version}
    return {
        LOG: (commitlog_command, {**settings, "bodies": True, "show_all": True}),
        QUEUES: (consumequeue_command, {"show_all": True}),
        INDEX: (index_command, settings),
        CHECKPOINT: (checkpoint_command, {}),
    }


def _run(what: str, command: Callable[..., None], root: Path, options: dict[str, Any]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    code = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            command(get_type_hints(command)["given"](path=root, **options))
        except typer.Exit as ended:
            code = ended.exit_code
    if code not in (0, 1, 2) or "Traceback" in err.getvalue():
        raise WrongDumpError(f"dump {what}: exit code {code}; {err.getvalue()}")
    if code == 2 and not err.getvalue().startswith("reput: "):
        raise WrongDumpError(f"dump {what}: exit code 2 without a reason")
    return code, out.getvalue()


def _kind(what: str, line: str) -> str:
    try:
        return str(json.loads(line)["type"])
    except (ValueError, KeyError) as error:
        raise WrongDumpError(f"dump {what}: no line of JSON: {line}") from error
