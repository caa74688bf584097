"""A ``reput`` command as a process of its own: one of several stores here, or a task on another host.

There is no Spark session in a task's worker: the process has one, of master ``local``. It ends with the
process that started it, see :mod:`reput.cli.bound`. Light commands load this alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from reput.caches import temporary

#: Of the executor's Spark, with which the process would take itself for a part of that; and what stands in
#: for options: those are given by the driver.
_NOT_PASSED_ON = ("SPARK_", "PYSPARK_", "PYTHON_WORKER_", "REPUT_BROKER_CONF", "REPUT_ROCKETMQ_VERSION")
_PASSED_ON = frozenset({"SPARK_HOME", "SPARK_LOCAL_DIRS"})
_LAST_LINES = 3
_CLIENT = Path(__file__).with_name("fork_client.py")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int  # its exit code; negative: the signal that ended it
    stdout: str  # all of it
    last_lines: tuple[str, ...]  # the last ones of stderr
    kept: bytes | None = None  # what is in the file that it was given; None without one


@dataclass(frozen=True, slots=True)
class Command:
    """Runs a command on the host of its caller."""

    words: tuple[str, ...]  # behind ``reput``
    variables: Mapping[str, str]  # more of its environment
    option: str | None = None  # it is given a file by this option, which it may replace; None: it isn't
    content: bytes | None = None  # what is in that file at first; None: there is none
    silent: bool = False  # what it says on stderr isn't handed on
    server: str | None = None  # where a fork server listens; None: it loads everything itself

    def __call__(self) -> Ended:
        """Run it to its end; what it says goes to this process's stderr, too, unless it is to be silent."""
        if self.option is None:
            return self._run(self.words)
        with temporary("reput-command-") as directory:
            path = directory / "given"
            if self.content is not None:
                path.write_bytes(self.content)
            ended = self._run((*self.words, self.option, str(path)))
            return replace(ended, kept=path.read_bytes() if path.exists() else None)

    def _run(self, words: tuple[str, ...]) -> Ended:
        stdin, held = os.pipe()  # closed when this process ends, whatever ends it
        errors, stderr = os.pipe()
        last: deque[str] = deque(maxlen=_LAST_LINES)
        reader = threading.Thread(target=_hand_on, args=(errors, last, self.silent), daemon=True)
        reader.start()
        try:
            try:
                process = subprocess.Popen(
                    [*self._python(), "-m", "reput.cli.bound", *words],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env={**_environment(), **self.variables, **self._forking()},
                    start_new_session=True,  # or what Spark sends to its worker's group would end it at once
                )
            finally:
                os.close(stdin)
                os.close(stderr)
            stdout, _ = process.communicate()
        finally:
            os.close(held)
        reader.join(1.0)
        return Ended(process.returncode, stdout.decode(errors="replace"), tuple(last))

    def _python(self) -> list[str]:
        return [sys.executable] if self.server is None else [sys.executable, "-I", "-S", str(_CLIENT)]

    def _forking(self) -> dict[str, str]:
        """What the environment has for a fork server's client; no module comes from where it runs."""
        safe = {"PYTHONSAFEPATH": "1"}
        if self.server is None:
            return safe
        return {**safe, "REPUT_FORK_SERVER": self.server, "REPUT_PYTHON": sys.executable}


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON or not name.startswith(_NOT_PASSED_ON)
    }


def _hand_on(errors: int, last: deque[str], silent: bool) -> None:
    with os.fdopen(errors, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.strip():
                last.append(line.strip())
            if not silent:
                sys.stderr.write(line)
                sys.stderr.flush()
