"""Rebuilds of many stores in one Spark session: some at a time; a failure doesn't stop the others."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from reput.errors import ReputError, SettingsError
from reput.job.options import RebuildOptions
from reput.job.run import rebuild
from reput.job.summary import Summary
from reput.unforeseen import unforeseen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = 2
_STORE = "{store}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one store.

    Attributes:
        options: what was requested.
        result: of the rebuild, or why it was refused or failed.
        seconds: wall time, while others ran.
    """

    options: RebuildOptions
    result: Summary | ReputError
    seconds: float

    @property
    def exit_code(self) -> int:
        """The exit code of ``reput rebuild`` for this store alone."""
        return self.result.exit_code if isinstance(self.result, Summary) else REFUSED

    def to_dict(self) -> dict[str, object]:
        """The outcome as a JSON-ready mapping: the summary's, or the error's."""
        facts: dict[str, object] = {
            "exit_code": self.exit_code,
            "store": str(self.options.store),
            "output": str(self.options.out),
            "seconds": self.seconds,
        }
        if isinstance(self.result, Summary):
            return {**self.result.to_dict(), **facts}
        return {**facts, **self.result.document()}


def plan_many(stores: Sequence[Path], out_root: Path, common: RebuildOptions) -> list[RebuildOptions]:
    """The options of each store; outputs are below ``out_root`` as stores are below their common directory.

    ``/brokers/a/store`` and ``/brokers/b/store`` go to ``a/store`` and ``b/store``, a single one to its name.

    Args:
        stores: any paths.
        common: options for all; ``{store}`` in the path of broker.conf stands for each store's path.

    Raises:
        SettingsError: a store is named twice, or is inside another one.
    """
    places = [Path(os.path.abspath(store)) for store in stores]
    for one, other in pairwise(sorted(places)):
        if other.is_relative_to(one):
            raise SettingsError(
                "a store is named twice" if one == other else "a store is inside another one",
                path=other,
                found=str(one),
                next_step="Name each store once",
            )
    parent = Path(os.path.commonpath([place.parent for place in places]))
    conf = common.broker_conf
    return [
        replace(
            common,
            store=place,
            out=out_root / place.relative_to(parent),
            broker_conf=None if conf is None else Path(str(conf).replace(_STORE, str(place))),
        )
        for place in places
    ]


def rebuild_many(
    stores: Sequence[RebuildOptions],
    start_spark: Callable[[], SparkSession],
    at_once: int = 1,
    listener: Callable[[Outcome], None] = lambda _outcome: None,
) -> list[Outcome]:
    """Rebuild each store, ``at_once`` at a time, in the order given; a failure doesn't stop the others.

    An interrupt only ends the waiting: the caller's process has to end, too, as after a crash.

    Args:
        start_spark: returns the session; called at most once, when there is something to do.
        listener: gets each outcome as soon as it is known, one at a time.

    Returns:
        The outcomes in the order of ``stores``.
    """
    todo: queue.SimpleQueue[tuple[int, RebuildOptions]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Outcome] | None] = queue.SimpleQueue()
    for numbered in enumerate(stores):
        todo.put(numbered)
    once = _SharedSession(start_spark)

    def work() -> None:
        try:
            while True:
                number, options = todo.get_nowait()
                done.put((number, _rebuilt(options, once)))
        except queue.Empty:
            pass
        finally:
            done.put(None)  # whatever ended it, this thread has no more results

    threads = min(at_once, len(stores))
    for number in range(threads):
        # Not joined: an interrupt doesn't wait for rebuilds under way.
        threading.Thread(target=work, name=f"reput-rebuild-{number}", daemon=True).start()
    outcomes: dict[int, Outcome] = {}
    while threads and len(outcomes) < len(stores):
        ended = done.get()
        if ended is None:
            threads -= 1
            continue
        number, outcome = ended
        outcomes[number] = outcome
        listener(outcome)
    for number, options in enumerate(stores):
        if number not in outcomes:
            lost = ReputError("its thread ended without a result", path=options.store)
            outcomes[number] = Outcome(options, lost, 0.0)
            listener(outcomes[number])
    return [outcomes[number] for number in sorted(outcomes)]


class _SharedSession:
    """One session for all threads, started by the first that needs it."""

    def __init__(self, start_spark: Callable[[], SparkSession]) -> None:
        self._start = start_spark
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def __call__(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                self._session = self._start()
            return self._session


def _rebuilt(options: RebuildOptions, start_spark: Callable[[], SparkSession]) -> Outcome:
    began = time.perf_counter()
    result: Summary | ReputError
    try:
        result = rebuild(options, start_spark)
    except ReputError as refused:
        result = refused
    except BaseException as bug:  # noqa: BLE001 - of one store, an exit too: the others continue
        result = unforeseen(bug, options.store)
    return Outcome(options, result, time.perf_counter() - began)
