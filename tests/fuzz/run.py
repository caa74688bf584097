"""Runs changes in processes of their own, so that a crash or a hang is a failed case and not a lost run."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests.fuzz.cases import Cases
from tests.fuzz.changes import Change
from tests.fuzz.specimen import Specimen
from tests.memory import memory

#: A change may take so long, s; to start and compile, a process may take longer.
CASE_SECONDS, START_SECONDS = 60.0, 900.0
_MOST_FAILURES = 200

Asked = tuple[str, Change]
#: What a process says: number of the case, seconds, what was seen, why it failed.
_Answer = tuple[int, float, Counter[str], str | None]


@dataclass(slots=True)
class Result:
    """What came of many cases.

    Attributes:
        cases: by part.
        told: what was seen, by part and name.
        failures: (the change, why).
        longest: seconds, and the change.
    """

    cases: Counter[str] = field(default_factory=Counter)
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)
    longest: tuple[float, str] = (0.0, "")

    def add(self, asked: Asked, seconds: float, told: Counter[str], failure: str | None) -> None:
        """One more case."""
        part, change = asked
        self.cases[part] += 1
        for name, count in told.items():
            self.told[part, name] += count
        if failure is not None:
            self.failures.append((str(change), failure))
        self.longest = max(self.longest, (seconds, str(change)))


def run(
    version: str,
    asked: list[Asked],
    processes: int,
    said: Callable[[Result], None] = lambda _result: None,
    *,
    only: str | None = None,
) -> Result:
    """Run changes on the store of a release.

    Args:
        asked: the changes, each with the part of the store that it concerns.
        processes: how many work at once.
        said: is called after every case.
        only: see :class:`tests.fuzz.cases.Cases`.
    """
    result = Result()
    shares = [_Share(version, asked[number::processes], only) for number in range(processes)]
    try:
        while working := [share for share in shares if share.is_working]:
            ready = wait([share.pipe for share in working], timeout=0.5)
            for share in working:
                share.look(result, share.pipe in ready)
            said(result)
            if len(result.failures) > _MOST_FAILURES:
                break
    finally:
        for share in shares:
            share.close()
    return result


class _Share:
    """The cases of one process, which is started again where it was when it dies."""

    def __init__(self, version: str, asked: list[Asked], only: str | None) -> None:
        self._version = version
        self._only = only
        self._asked = asked
        self._done = 0
        self._place: Path | None = None
        if asked:
            self._start()

    @property
    def is_working(self) -> bool:
        return self._done < len(self._asked)

    def _start(self) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="reput-fuzz-", dir=memory()))
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe(duplex=False)
        rest = self._asked[self._done :]
        self._process = context.Process(
            target=_work,
            args=(self._version, self._place, rest, self._done, theirs, self._only),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        self._limit = time.monotonic() + START_SECONDS

    def look(self, result: Result, ready: bool) -> None:
        """Take an answer, or see that none comes."""
        if ready:
            try:
                number, seconds, told, failure = self.pipe.recv()
            except EOFError:
                self._process.join()
                self._fail(result, f"the process ended with {_ending(self._process.exitcode)}")
                return
            if number >= 0:
                result.add(self._asked[number], seconds, told, failure)
                self._done = number + 1
            self._limit = time.monotonic() + CASE_SECONDS
        elif time.monotonic() > self._limit:
            self._fail(result, f"no answer within {CASE_SECONDS:.0f} s")

    def _fail(self, result: Result, why: str) -> None:
        self.close()
        result.add(self._asked[self._done], 0.0, Counter(), why)
        self._done += 1
        if self.is_working:
            self._start()

    def close(self) -> None:
        """End the process, and remove what it had."""
        if self._place is None:
            return
        self._process.kill()
        self._process.join()
        self.pipe.close()
        shutil.rmtree(self._place, ignore_errors=True)
        self._place = None


def _ending(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


def _work(
    version: str, place: Path, asked: list[Asked], first: int, pipe: Connection, only: str | None
) -> None:
    """What a process does: says that it is ready, then one answer a case."""
    os.setsid()
    cases = Cases(Specimen.make(version, place), only=only)
    # Kernels are compiled, or loaded, by the first case.
    for each in asked[:1]:
        _answer(cases, -1, each)
    pipe.send((-1, 0.0, Counter(), None))
    for number, each in enumerate(asked, first):
        pipe.send(_answer(cases, number, each))


def _answer(cases: Cases, number: int, asked: Asked) -> _Answer:
    started = time.perf_counter()
    told: Counter[str] = Counter()
    failure = None
    try:
        told = cases.run(*asked)
    except AssertionError as error:
        failure = str(error)
    except Exception:  # noqa: BLE001 - whatever it is, it is no error of reput's: that's what is looked for
        failure = traceback.format_exc()
    return number, time.perf_counter() - started, told, failure
