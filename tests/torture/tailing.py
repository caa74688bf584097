"""``reput tail`` as a process tree that can be watched, stopped and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import TracebackType

from reput.format import names
from reput.job.status import RunNote
from reput.newer_python import Self
from tests.torture import processes
from tests.torture.steps import Doom

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_LAST = 8000


class Tailing:
    """One run of a command over an output, from its start to its end.

    Args:
        arguments: what follows ``reput``.
        out: the output.
        log: where stdout and stderr go.
        doom: how it is to work, and the step at which it stops; ``out`` and ``fired`` are filled in.
    """

    def __init__(
        self, arguments: Sequence[str | Path], out: Path, log: Path, doom: Doom | None = None
    ) -> None:
        self.out = out
        self.started, self._started_at = time.monotonic(), time.time()
        self._is_left_alone = self._has_planned = False
        self._stopper: subprocess.Popen[bytes] | None = None
        self._reput = out / names.REPUT
        self._began = self._journal_length()
        self.mark = uuid.uuid4().hex
        self._log = log
        self._fired = log.with_suffix(".fired")
        self._fired.unlink(missing_ok=True)
        doom = replace(doom or Doom("", ""), out=str(out), fired=str(self._fired))
        self._environment = {
            **os.environ,
            processes.MARK: self.mark,
            "REPUT_TORTURE_DOOM": doom.encode(),
            "PYTHONPATH": os.pathsep.join(map(str, (_HERE / "inside", _ROOT / "lib", _ROOT))),
        }
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "reput.cli", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @property
    def phase(self) -> str:
        """How far the run has come, as its files tell."""
        if not self._has_planned:
            offsets = self._reput / names.SPARK_CHECKPOINT / "offsets"
            try:
                newest = max((path.stat().st_mtime for path in offsets.glob("[0-9]*")), default=0.0)
            except OSError:
                return "start-up"
            if newest < self._started_at:
                return "start-up"
            self._has_planned = True
        length = self._journal_length()
        self._began = self._began or length  # a journal that is new has its opening now
        return "steady state" if length > self._began else "first batch"

    @property
    def fired(self) -> bool:
        """Whether the run came to the step at which it stops."""
        return self._fired.exists()

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait_ended(self, timeout: float) -> int:
        """The exit code.

        Raises:
            TimeoutError: it runs on.
        """
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"it still runs after {timeout:.0f} s:\n{self.said()}") from error

    @property
    def can_be_stopped(self) -> bool:
        """Whether the run has begun, so that somebody may ask it to end."""
        note = RunNote.read(self.out)
        return note is not None and note.pid == self.process.pid

    def stop(self, random: Random) -> None:
        """Ask it to end, in one of the ways that there are; returns at once."""
        ways = ["stop"]
        if self.phase != "start-up":
            ways += ["SIGTERM", "SIGINT"]
        way = random.choice(ways)
        if way != "stop":
            self.process.send_signal(signal.Signals[way])
            return
        with self._log.open("ab") as file:
            self._stopper = subprocess.Popen(
                [sys.executable, "-m", "reput.cli", "tail", "--stop", self.out],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )

    def kill(self) -> int:
        """Kill all of it, at one moment; returns how many processes that were."""
        count = processes.kill_marked(self.mark)
        self.process.wait()
        processes.wait_gone(self.mark)
        return count

    def kill_part(self, *, driver: bool) -> None:
        """Kill the Python driver alone, or the JVM alone; the rest ends as it can."""
        others = processes.marked(self.mark) - {self.process.pid}
        if driver:
            self._is_left_alone = True
            self.process.kill()
            self.process.wait()
            return
        for process in others:
            if processes.name_of(process) == "java":
                processes.kill(process)

    def said_at_last(self) -> str:
        """What it printed, and where its threads are."""
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)
        return self.said()

    def clean_up(self) -> None:
        """Whatever has become of it: nothing of it is left."""
        self.kill()
        if self._stopper is not None:
            self._stopper.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_left_alone:
            self.clean_up()

    def said(self) -> str:
        """The end of what it printed."""
        return self._log.read_bytes()[-_LAST:].decode(errors="replace")

    def _journal_length(self) -> int:
        try:
            return (self._reput / names.JOURNAL).stat().st_size
        except OSError:
            return 0
