"""reput's commands in a notebook, as typed in a shell, but run in this process with its Spark session."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from reput.errors import SettingsError

if TYPE_CHECKING:
    from explore.workspace import Workspace

_REFUSED = 2
#: Options that name what is written.
_OUT = ("-o", "--out")


class Terminal:
    """Runs commands as if its shell were in a workspace, and shows them with what they print.

    As a process, a command that starts Spark takes ten seconds or more; here all share one session.

    Args:
        workspace: relative paths are looked for there, and paths in it are shown as such.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __call__(self, line: str) -> None:
        """Run ``reput …`` and show what it prints, progress left out.

        Raises:
            SettingsError: it isn't one of reput's commands.
        """
        self._show(line, self._run(line))

    def json(self, line: str) -> dict[str, Any]:
        """Run ``reput … --json``, show the line and the exit code, and return what it prints.

        Raises:
            SettingsError: it isn't one of reput's commands, or it was refused.
        """
        code, printed = self._run(f"{line} --json")
        self._show(f"{line} --json", (code, ""))
        document: dict[str, Any] = json.loads(printed)
        if code == _REFUSED:
            raise SettingsError(str(document.get("message")))
        return document

    def _run(self, line: str) -> tuple[int, str]:
        from reput.cli.app import app  # its package registers all commands

        program, *words = shlex.split(line)
        if program != "reput":
            raise SettingsError("only reput's own commands are run here", found=line)
        root = self._workspace.root
        found = [
            str(root / word)
            if before in _OUT or (not (root / word).name.startswith("-") and (root / word).exists())
            else word
            for before, word in pairwise(["", *words])
        ]
        printed, progress = io.StringIO(), io.StringIO()
        with redirect_stdout(printed), redirect_stderr(progress):
            code = app(found, standalone_mode=False)
        text = printed.getvalue()
        if code == _REFUSED and not text:
            text = progress.getvalue()
        return int(code or 0), self._workspace.relative(text)

    def _show(self, line: str, ran: tuple[int, str]) -> None:
        code, text = ran
        print(f"$ {line}\n{text}[exit code {code}]")
