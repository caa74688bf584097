"""How far messages were sent, in a file that survives a kill.

A line is appended, and flushed, whenever a broker has acknowledged all that went before. Half a last line is
what a kill left, and doesn't count. The first line says what is sent and where to: another run has another
position. The file is locked while a run uses it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from reput.errors import OutputError, StoreInUseError
from reput.newer_python import Self
from reput.store import files


@dataclass(frozen=True, slots=True)
class Reached:
    """What is acknowledged.

    Attributes:
        next: where the next message begins: byte of a file, or physical offset of a store's log.
        last: where the last one that was dealt with begins; -1 without one.
        fingerprint: SHA-256 of that one's bytes.
        sent: messages that were sent so far.
        left_out: messages that were left out so far.
        done: all were.
    """

    next: int = 0
    last: int = -1
    fingerprint: str = ""
    sent: int = 0
    left_out: int = 0
    done: bool = False


class Position:
    """The file; a context manager.

    Args:
        path: the file; made when something is written.
        run: what is sent, and where to: it has to be the same when a run goes on.

    Raises:
        OutputError: it is none, or another run's, or can't be read or written.
        StoreInUseError: another run uses it now.
    """

    def __init__(self, path: Path, run: Mapping[str, object]) -> None:
        self.path = path
        self.reached = Reached()
        self._run = dict(run)
        self._fd = -1
        self._end = 0

    def __enter__(self) -> Self:
        with files.reporting("the position can't be kept", self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with files.reporting("the position can't be kept", self.path):
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise StoreInUseError(
                        "another run sends these messages now",
                        path=self.path,
                        next_step="Wait for its end, or name another file with --position",
                    ) from None
                with os.fdopen(os.dup(self._fd), "rb") as file:
                    data = file.read()
            self._take(data)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def reach(self, reached: Reached) -> None:
        """Keep how far the messages are sent; returns when it is on the disk."""
        lines = [] if self._end else [self._run]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in (*lines, asdict(reached)))
        files.pwrite_all(self._fd, data, self._end)
        files.fsync_file(self._fd)
        if not self._end:
            files.fsync_dir(self.path.absolute().parent)
        self._end += len(data)
        self.reached = reached

    def _take(self, data: bytes) -> None:
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            if not b'{"reput": "resend'.startswith(data[:16]):
                raise self._foreign("something else")
            return
        try:
            first, *more = (json.loads(line) for line in whole.splitlines())
            reached = Reached(**more[-1]) if more else Reached()
            if any(
                type(getattr(reached, name)) is not type(value) for name, value in asdict(Reached()).items()
            ):
                raise ValueError
            if not -1 <= reached.last <= reached.next:
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise self._foreign("something else") from None
        if not isinstance(first, dict):
            raise self._foreign("something else")
        different = [
            f"{name} {value!r}, and there {first.get(name)!r}"
            for name, value in self._run.items()
            if first.get(name) != value
        ]
        if different:
            raise OutputError(
                "this position is of another run",
                path=self.path,
                expected="the same messages, sent to the same place by the same options",
                found="; ".join(different),
                next_step="Name another file with --position; then all messages are sent",
            )
        self.reached = reached
        self._end = len(whole)
        with files.reporting("the position can't be kept", self.path):
            os.ftruncate(self._fd, self._end)

    def _foreign(self, found: str) -> OutputError:
        return OutputError(
            "this file holds no position",
            path=self.path,
            expected="one that reput resend wrote",
            found=found,
            next_step="Name another file with --position",
        )

    def _close(self) -> None:
        if self._fd >= 0:
            if not self._end and os.fstat(self._fd).st_size == 0:
                self.path.unlink(missing_ok=True)  # nothing was sent
            os.close(self._fd)
            self._fd = -1
