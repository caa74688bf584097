"""Lines on stdout, and how a command ends."""

from __future__ import annotations

import io
import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import typer

from reput.cli.dump.nothing import Nothing
from reput.cli.dump.text import damage_line
from reput.cli.output import Output, inline, let_go_of_stdout, told, unwritten
from reput.dump.damage import Damage
from reput.errors import ReputError
from reput.remote import with_urls
from reput.store.reading import unreadable
from reput.words import SCHEMA_VERSION


class Lines:
    """Lines on stdout, many at a time; whether any of them says damage."""

    _MANY = 512

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.damaged = False
        self._waiting: list[str] = []
        self._colours = not as_json and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._colours = self._colours and os.environ.get("TERM") != "dumb"
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")

    def show(self, event: Any, text: Callable[[Any], str]) -> None:
        """A line for something that has a ``to_dict``; ``text`` makes one for people."""
        if isinstance(event, Damage):
            self.damaged = True
            text = damage_line
        if self.as_json:
            self.record(event.to_dict())
        else:
            self.put(text(event), red=isinstance(event, Damage))

    def record(self, facts: Mapping[str, object]) -> None:
        """A line of JSON."""
        self.put(json.dumps({"schema_version": SCHEMA_VERSION, **facts}))

    def put(self, line: str, *, red: bool = False) -> None:
        """A line; no text of a store can end it or steer a terminal."""
        line = inline(line)
        self._waiting.append(f"\x1b[31m{line}\x1b[0m" if red and self._colours else line)
        if len(self._waiting) >= self._MANY:
            self.flush()

    def flush(self) -> None:
        """Let everything be seen.

        Raises:
            BrokenPipeError: nobody reads any more.
            SystemExit: the lines can't be written, to a full disk for instance; 2.
        """
        waiting, self._waiting = self._waiting, []
        try:
            if waiting:
                sys.stdout.write(with_urls("\n".join(waiting)) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            unwritten(error)

    def wait(self) -> None:
        """Let everything be seen before more is waited for.

        Raises:
            BrokenPipeError: nobody reads any more, which is told without a line to be written.
            SystemExit: as :meth:`flush`.
        """
        self.flush()
        try:
            descriptor = sys.stdout.fileno()
        except (OSError, ValueError):
            return  # it is no file
        end = select.poll()
        end.register(descriptor, 0)
        if any(what & select.POLLERR for _, what in end.poll(0)):
            raise BrokenPipeError

    def nothing(self, nothing: Nothing, *, quiet: bool) -> None:
        """Why nothing is shown: to stderr, with ``--json`` as a line as well.

        Args:
            quiet: only where a range lies beside all that there is, so that it can't be said to be sound.
        """
        if quiet and not nothing.is_outside:
            return
        if self.as_json:
            self.record({"type": "nothing", **nothing.facts, "message": nothing.text})
        self.flush()
        told(nothing.text)

    def error(self, error: ReputError) -> None:
        """Why the command was refused or failed: to stderr, with ``--json`` as a line as well."""
        with suppress(OSError):
            if self.as_json:
                self.record({"type": "error", **error.document()})
            self.flush()
        told(error)


@contextmanager
def dumping(as_json: bool) -> Iterator[Lines]:
    """Run a command; ends it with its exit code. Who closes the pipe has seen enough, and that is no error.

    Raises:
        typer.Exit: always.
    """
    lines = Lines(as_json=as_json)
    with Output(as_json, interrupted="nothing was changed", failed=lines.error):
        try:
            yield lines
            lines.flush()
        except BrokenPipeError:
            let_go_of_stdout()
        except OSError as error:  # in looking what is there; who reads a file says more
            if error.filename is None:
                raise
            raise unreadable("this", error.filename, error) from error
    raise typer.Exit(1 if lines.damaged else 0)
