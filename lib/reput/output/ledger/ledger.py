"""The Delta ledger: what every batch did, as a table for people and Spark SQL.

``ledger/`` in the output, one Delta table with a row per batch, per queue that the batch changed, per index
file, per finding and per step of retention. It is derived from the journal: a batch is committed to it once,
under the transaction ``reput`` with the batch's number in the journal, from 1 on, as version, and whatever is
missing is written from the journal at the next start. (The end offset can't be the version: a batch that only
found damage at the log's end moves no offset.)

:mod:`reput.output.ledger.ledger_upkeep` keeps it small beside the stream.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from reput.errors import OutputError
from reput.format import names
from reput.output.journal.journal import Journal
from reput.output.ledger.delta_table import Table, TableError
from reput.output.ledger.ledger_rows import SCHEMA, rows, state_rows
from reput.replay.state import Batch
from reput.store import files
from reput.store.system_errors import shortage_in

APPLICATION = "reput"

#: Levels of the table's files: one batch; several; no longer merged with others; batches summed up as one.
LEVEL_BATCH, LEVEL_SOME, LEVEL_FULL, LEVEL_AS_ONE = range(4)

#: Batches that are committed at once when many are missing.
_BATCHES_AT_ONCE = 256


class Ledger:
    """The ledger under one output directory.

    Attributes:
        path: its directory.
        upkeep: held by what works on the table's old files, so that the table isn't recreated meanwhile.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / names.LEDGER
        self.upkeep = threading.Lock()
        self._table: Table | None = None
        self._journal: Journal | None = None
        self._steps_back = 0
        self._last: Batch | None = None

    @property
    def table(self) -> Table | None:
        """The table, once :meth:`catch_up` has opened it."""
        return self._table

    def version(self) -> int:
        """How many of the journal's batches the ledger has; nothing is changed.

        Raises:
            OSError: it can't be read.
        """
        table = self._table or Table.open(self.path, APPLICATION, clean=False)
        return 0 if table is None else table.transaction

    def catch_up(self, journal: Journal) -> None:
        """Commit those of the journal's batches that the ledger doesn't have.

        A ledger that disagrees with the journal is recreated; this is checked the first time, after the
        journal has stepped back, and when another process wrote to it. Batches that the journal no longer
        keeps one by one are then summed up.
        """
        with self._reporting():
            try:
                self._open(journal)
                self._commit_missing(journal)
            except TableError:
                self._journal = None
                self._open(journal)
                self._commit_missing(journal)

    def _open(self, journal: Journal) -> None:
        """Open the table that belongs to the journal; leaves None where there are no batches yet."""
        table = self._table
        known = self._journal is journal and table is not None
        if known and self._steps_back == journal.steps_back:
            return
        if not (known and self._goes_on(journal)):
            self._table = None
            with self.upkeep:
                self._table = self._sound(journal)
                if self._table is None:
                    files.remove_tree(self.path)
        self._journal, self._steps_back = journal, journal.steps_back

    def _goes_on(self, journal: Journal) -> bool:
        """Whether the journal still has the batch that was committed last, under its number."""
        number = self._table.transaction if self._table is not None else 0
        if not journal.first_number <= number <= journal.state.batches:
            return False
        return journal.batch(number) == self._last

    def _sound(self, journal: Journal) -> Table | None:
        """The table, if all its files are there and its last rows are those of the journal's batch."""
        try:
            table = Table.open(self.path, APPLICATION)
            if table is None or not journal.first_number <= table.transaction <= journal.state.batches:
                return None
            done = 0
            newest = None
            for file in sorted(table.files.values(), key=lambda file: file.first):
                if file.first != done + 1 or (self.path / file.name).stat().st_size != file.size:
                    return None
                newest, done = file, file.last
            if newest is None or done != table.transaction:
                return None
            batch = journal.batch(done)
            wanted = rows(batch)
            if not table.read_end(newest, wanted.num_rows).cast(SCHEMA).equals(wanted):
                return None
        except (OSError, pa.ArrowException):
            return None
        self._last = batch
        return table

    def _commit_missing(self, journal: Journal) -> None:
        batches = journal.state.batches
        table = self._table
        if table is None:
            if not batches:
                return
            table = Table.create(self.path, APPLICATION, SCHEMA)
            summed = journal.first_number - 1
            if summed:
                rest = state_rows(journal.state_after(summed), journal.opening.start)
                table.append(rest, 1, summed, LEVEL_AS_ONE)
                self._table = table
        while table.transaction < batches:
            first = table.transaction + 1
            last = min(batches, table.transaction + _BATCHES_AT_ONCE)
            found = [journal.batch(number) for number in range(first, last + 1)]
            data = pa.concat_tables([rows(batch) for batch in found]) if len(found) > 1 else rows(found[0])
            level = LEVEL_BATCH if first == last else LEVEL_SOME
            table.append(data, first, last, level)
            self._last = found[-1]
            self._table = table

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # TableError, too, which has no number
            short = shortage_in(str(error), [self.path])
            again = "Fix the cause and run the same command again; the journal has the batch"
            raise OutputError(
                "the ledger can't be written",
                path=self.path,
                found=str(error),
                next_step=(short and short.next_step) or again,
            ) from error
