"""Jobs on many stores: some at a time; a failure doesn't stop the others."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from reput.errors import ReputError, Result, SettingsError
from reput.job.options import RebuildOptions
from reput.job.store_list import Place, StoreEntry
from reput.remote.client import check_here, url_of
from reput.unforeseen import unforeseen
from reput.verify.plan import VerifyOptions

REFUSED = 2
#: Exit codes from good to bad, by what an operator has to do: nothing; nothing more; mend; find out what a
#: start would do; put right by hand what stops it; find out why reput was refused or failed.
_BAD = (0, 1, 3, 5, 4, REFUSED)
_STORE, _HOST = "{store}", "{host}"
#: No host is called so.
_URLS = ":"
_Made = TypeVar("_Made")
_Options = TypeVar("_Options", RebuildOptions, VerifyOptions)
Options: TypeAlias = RebuildOptions | VerifyOptions


@dataclass(frozen=True, slots=True)
class Job:
    """A job on one store."""

    place: Place  # the store's
    options: Options  # of the job; their paths are on the store's host
    cluster: str | None = None  # cluster, broker: what the store is called, where that was said
    broker: str | None = None

    @property
    def is_check(self) -> bool:
        """Nothing is written."""
        return isinstance(self.options, VerifyOptions)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one store."""

    job: Job  # what was requested
    result: Result | ReputError  # of the job, or why it was refused or failed
    seconds: float  # wall time, while others ran

    @property
    def exit_code(self) -> int:
        """The exit code of ``reput rebuild`` or ``reput check`` for this store alone."""
        return REFUSED if isinstance(self.result, ReputError) else self.result.exit_code

    def to_dict(self) -> dict[str, object]:
        """The outcome as a JSON-ready mapping: the result's, or the error's."""
        place, options = self.job.place, self.job.options
        facts: dict[str, object] = {
            "exit_code": self.exit_code,
            "store": place.url or str(place.path),
            "host": place.host,
            "seconds": self.seconds,
        }
        if isinstance(options, RebuildOptions):
            facts["output"] = str(options.out)
        if not isinstance(self.result, ReputError):
            return {"next_steps": [], **self.result.to_dict(), **facts}
        return {**facts, **self.result.document(), "host": self.result.host or place.host}


def badness(code: int) -> int:
    """How bad an exit code is, among those of other stores; 0 where nothing is to be done."""
    return _BAD.index(code)


def worst(codes: Iterable[int]) -> int:
    """The exit code of several stores, of which there is one at least."""
    return max(codes, key=badness)


def plan_rebuilds(stores: Sequence[StoreEntry], out_root: Path, common: RebuildOptions) -> list[Job]:
    """A rebuild of each store; outputs lie below ``out_root`` as a host's stores in their common directory.

    ``/brokers/a/store`` and ``/brokers/b/store`` go to ``a/store`` and ``b/store``, a single one to its name.
    What is on a host isn't looked at.

    What is said of a store itself comes before the ``common`` options. In ``out_root`` and the path of
    broker.conf ``{host}`` stands for each store's host; in the latter ``{store}`` for its path.

    A store that is named twice, is inside another one or lies elsewhere is refused.
    """
    jobs = []
    for entry in stores:
        if (url := entry.place.url) is not None:
            check_here(url)
    for entry, below in _apart(stores):
        options = replace(
            common,
            store=entry.place.path,
            out=_filled("--out-root", out_root, entry.place) / below,
            conf_by_hand=common.conf_by_hand or entry.broker_conf is not None,
            version_by_hand=common.version_by_hand or entry.rocketmq_version is not None,
        )
        jobs.append(Job(entry.place, _said(options, entry)))
    return jobs


def plan_checks(stores: Sequence[StoreEntry], common: VerifyOptions) -> list[Job]:
    """A check of each store; ``{store}`` and ``{host}`` in the path of broker.conf as for rebuilds."""
    return [
        Job(
            entry.place,
            _said(replace(common, store=entry.place.path), entry),
            entry.cluster,
            entry.broker,
        )
        for entry, _ in _apart(stores)
    ]


def _apart(stores: Sequence[StoreEntry]) -> Iterator[tuple[StoreEntry, Path]]:
    """Each store, and where it lies below the common directory of its host's stores."""
    # Where a path on a host leads is that host's affair: it was made absolute without a look at any.
    entries = [
        replace(one, place=Place(Path(os.path.abspath(one.place.path)))) if one.place.is_here else one
        for one in stores
    ]
    places = [one.place for one in entries]
    parents: dict[str | None, Path] = {}
    for where in {_where(one) for one in places}:
        paths = sorted(one.path for one in places if _where(one) == where)
        for path, other in pairwise(paths):
            if other.is_relative_to(path):
                raise SettingsError(
                    "a store is named twice" if path == other else "a store is inside another one",
                    path=other if where != _URLS else url_of(other),
                    found=str(path) if where != _URLS else url_of(path),
                    next_step="Name each store once",
                    host=None if where == _URLS else where,
                )
        parents[where] = Path(os.path.commonpath([path.parent for path in paths]))
    for entry in entries:
        yield entry, entry.place.path.relative_to(parents[_where(entry.place)])


def _where(place: Place) -> str | None:
    return place.host if place.url is None else _URLS


def _said(options: _Options, entry: StoreEntry) -> _Options:
    """Options for a store: what is said of it itself, else of all."""
    conf = entry.broker_conf or options.broker_conf
    return replace(
        options,
        broker_conf=None if conf is None else _filled("--broker-conf", conf, entry.place),
        rocketmq_version=entry.rocketmq_version or options.rocketmq_version,
    )


def _filled(option: str, path: Path, place: Place) -> Path:
    """A path for a store, made from one for all."""
    text = str(path)
    if place.url is not None and _STORE in text:
        raise SettingsError(
            f"{_STORE} in {option} stands for a path",
            path=place.url,
            expected="a file here, for each store in an object store or HDFS",
            found=text,
        )
    if place.host is None and _HOST in text:
        raise SettingsError(
            f"{_HOST} in {option} stands for a store's host",
            path=str(place),
            expected="HOST:/PATH",
            found="a store without a host",
        )
    filled = Path(text.replace(_STORE, str(place.path)).replace(_HOST, place.host or ""))
    if place.host is not None and not filled.is_absolute():
        raise SettingsError(
            f"{option} is a path on {place.host}, where no directory is the current one",
            expected="an absolute path",
            found=text,
        )
    return filled


def run_many(
    jobs: Sequence[Job],
    work: Callable[[Job], Result],
    at_once: int = 1,
    listener: Callable[[Outcome], None] = lambda _outcome: None,
) -> list[Outcome]:
    """Do each job, ``at_once`` at a time and one at a time on a host; a failure doesn't stop the others.

    They begin in the order given, which is that of the result, except that one whose host is busy lets others
    go ahead. An interrupt only ends the waiting: the caller's process has to end, too, as after a crash.

    ``work`` is called in threads; ``listener`` gets each outcome as soon as it is known, one at a time.
    """
    todo = _Todo(jobs)
    done: queue.SimpleQueue[tuple[int, Outcome] | None] = queue.SimpleQueue()

    def work_off() -> None:
        try:
            while (number := todo.take()) is not None:
                with todo.held(number):
                    done.put((number, _done(jobs[number], work)))
        finally:
            done.put(None)  # whatever ended it, this thread has no more results

    threads = min(at_once, len(jobs))
    for number in range(threads):
        # Not joined: an interrupt doesn't wait for jobs under way.
        threading.Thread(target=work_off, name=f"reput-store-{number}", daemon=True).start()
    outcomes: dict[int, Outcome] = {}
    while threads and len(outcomes) < len(jobs):
        ended = done.get()
        if ended is None:
            threads -= 1
            continue
        number, outcome = ended
        outcomes[number] = outcome
        listener(outcome)
    for number, job in enumerate(jobs):
        if number not in outcomes:
            lost = ReputError("its thread ended without a result", path=job.place.path, host=job.place.host)
            outcomes[number] = Outcome(job, lost, 0.0)
            listener(outcomes[number])
    return [outcomes[number] for number in sorted(outcomes)]


class Once(Generic[_Made]):
    """What all threads share, such as a session: made by the first that needs it."""

    def __init__(self, make: Callable[[], _Made]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[_Made] = []

    def __call__(self) -> _Made:
        """It; what making it raises is raised each time."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]


class _Todo:
    """The jobs that no thread has taken yet, and the hosts that are at work."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._hosts = [job.place.host for job in jobs]
        self._left = list(range(len(jobs)))
        self._busy: set[str] = set()
        self._changed = threading.Condition()

    def take(self) -> int | None:
        """The next job whose host is idle, as soon as there is one; None when all are taken."""
        with self._changed:
            while self._left:
                for number in self._left:
                    host = self._hosts[number]
                    if host not in self._busy:
                        self._left.remove(number)
                        if host is not None:
                            self._busy.add(host)
                        return number
                self._changed.wait()
        return None

    @contextmanager
    def held(self, number: int) -> Iterator[None]:
        """Keep the host of a job that was taken until the block ends."""
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(self._hosts[number] or "")
                self._changed.notify_all()


def _done(job: Job, work: Callable[[Job], Result]) -> Outcome:
    began = time.perf_counter()
    result: Result | ReputError
    try:
        result = work(job)
    except ReputError as refused:
        result = refused
    except BaseException as bug:  # noqa: BLE001 - of one store, an exit too: the others continue
        result = unforeseen(bug, job.place.path)
    return Outcome(job, result, time.perf_counter() - began)
