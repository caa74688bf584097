"""The table of messages that a tail keeps up to date: its metrics, and its note for ``tail --status``."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from reput.errors import OutputError
from reput.watch.note import TableNote

if TYPE_CHECKING:
    from reput.watch.metrics import TableMetrics

_LOG = logging.getLogger(__name__)


class TableWatch:
    """Reports on the table of a running tail.

    Args:
        root: the output; the note of an earlier tail is replaced.
        table: the table's directory.
        metrics: None without.
    """

    def __init__(self, root: Path, table: Path, metrics: TableMetrics | None) -> None:
        self._root = root
        self._metrics = metrics
        self._note = TableNote(str(table.absolute()))
        self._note.write(root)

    def succeeded(self) -> None:
        """See :class:`reput.catalog.beside.Watch`."""
        self._write(replace(self._note, last_success_ms=int(time.time() * 1000)))
        if self._metrics is not None:
            self._metrics.succeeded()

    def failed(self, error: BaseException) -> None:
        """See :class:`reput.catalog.beside.Watch`."""
        failures = self._note.failures + 1
        self._write(replace(self._note, failures=failures, last_failure=" ".join(str(error).split())))
        if self._metrics is not None:
            self._metrics.failed()

    def _write(self, note: TableNote) -> None:
        self._note = note
        try:
            note.write(self._root)
        except OutputError as error:  # without its note the table is still good
            _LOG.warning("%s", error)


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The status of the table of the last tail.

    Attributes:
        note: the tail's note about it.
        offset: physical offset up to which it holds the log; None before its first commit, or if it can't be
            read.
        lag_bytes: of the log that are committed in the output and not in the table; None if it can't be read.
        problem: why it can't be read.
    """

    note: TableNote
    offset: int | None = None
    lag_bytes: int | None = None
    problem: str | None = None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "table": self.note.table,
            "offset": self.offset,
            "lag_bytes": self.lag_bytes,
            "last_success_ms": self.note.last_success_ms,
            "failures": self.note.failures,
            "last_failure": self.note.last_failure,
            "problem": self.problem,
        }


def look(root: Path, start: int, committed: int) -> TableStatus | None:
    """The status of the table that an output's last tail kept; None if it kept none.

    Args:
        root: the output.
        start: physical offset where the output begins.
        committed: and up to which it has the log.
    """
    note = TableNote.read(root)
    if note is None:
        return None
    from reput.catalog.table import Table

    try:
        offset = Table(Path(note.table)).cursor
    except OutputError as error:
        return TableStatus(note, problem=str(error))
    return TableStatus(note, offset, max(committed - (start if offset is None else offset), 0))
