"""Keeping the ledger small while a stream writes it.

A tail commits a file a batch. Here these are merged, :data:`BATCHES` into one, then :data:`FILES` of those
into one; the oldest of the results are summed up as one batch, so that neither files nor rows grow without
bound. The log gets checkpoints, and what was replaced is removed after a while. Each step is a commit of its
own, made when what it names is on disk, so that a crash at any moment leaves a sound table.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType

import pyarrow as pa

from reput.output.ledger.delta_table import DataFile, Table
from reput.output.ledger.ledger import LEVEL_AS_ONE, LEVEL_BATCH, LEVEL_FULL, LEVEL_SOME, Ledger
from reput.output.ledger.ledger_rows import SCHEMA, merged

#: Files of one batch that are merged to one.
BATCHES = 64

#: Merged files that are merged once more.
FILES = 16

#: With this many rows, fewer files are merged.
ROWS = 1 << 18

#: Files, and rows in them, in which batches are kept one by one; older ones are summed up as one batch.
FULL_FILES = 64
FULL_ROWS = 10_000_000

#: Commits from one checkpoint to the next.
COMMITS = 200

_SECONDS = 1.0
_SECONDS_AFTER_FAILURE = 30.0


class LedgerUpkeep:
    """Maintains a ledger in a thread of its own, from start to stop. Use it as a context manager.

    Attributes:
        failure: why the last try failed, None if it didn't. The ledger is sound anyway; the step is retried.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: Exception | None = None

    def __enter__(self) -> LedgerUpkeep:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="reput-ledger-upkeep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the step that is under way."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def work(self) -> None:
        """Do all that is due now; may be called without a thread, at the end of a run with few commits."""
        try:
            while not self._stop.is_set():
                with self._ledger.upkeep:
                    table = self._ledger.table
                    if table is None or not step(table):
                        break
            self.failure = None
        except Exception as error:  # noqa: BLE001 - whatever it is, stream and thread continue
            logging.getLogger(__name__).warning("the ledger can't be tidied up: %s", error)
            self.failure = error

    def _run(self) -> None:
        while not self._stop.wait(_SECONDS if self.failure is None else _SECONDS_AFTER_FAILURE):
            self.work()


def step(table: Table) -> bool:
    """Do one step that is due; returns whether there was one.

    Raises:
        OSError, ReputError, pyarrow.ArrowException: the table can't be read or written.
    """
    table.clean_up()
    live = sorted(table.files.copy().values(), key=lambda file: file.first)
    for level, enough in ((LEVEL_BATCH, BATCHES), (LEVEL_SOME, FILES)):
        due = _due(live, level, enough)
        if due:
            _merge(table, due, level + 1)
            return True
    full = [at for at, file in enumerate(live) if file.level == LEVEL_FULL]
    if len(full) > FULL_FILES or (len(full) > 1 and sum(live[at].rows for at in full) > FULL_ROWS):
        _sum_up(table, live[: full[0] + 1])
        return True
    if table.version - table.checkpointed >= COMMITS:
        table.checkpoint()
        return True
    return False


def _due(live: list[DataFile], level: int, enough: int) -> list[DataFile]:
    """The oldest files up to a level that are to be merged into one; none if none are due.

    Files are in the order of their batches, so files of lower levels in between are merged, too: catching up
    at a start writes one file of many batches.
    """
    start = 1 + max((at for at, file in enumerate(live) if file.level > level), default=-1)
    count = rows = 0
    for end, file in enumerate(live[start:], start + 1):
        count += file.level == level
        rows += file.rows
        if count == enough or rows >= ROWS:
            return live[start:end]
    return []


def _merge(table: Table, due: list[DataFile], level: int) -> None:
    rows = pa.concat_tables([table.read(file).cast(SCHEMA) for file in due])
    new = table.write(rows, due[0].first, due[-1].last, level)
    table.replace(due, new, data_change=False)


def _sum_up(table: Table, due: list[DataFile]) -> None:
    rows = merged(pa.concat_tables([table.read(file).cast(SCHEMA) for file in due]))
    new = table.write(rows, due[0].first, due[-1].last, LEVEL_AS_ONE)
    table.replace(due, new, data_change=True)
