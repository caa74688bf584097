"""Which days of a table are to be compacted and clustered.

That writes a day anew, so it has to pay: a day is due when what came since is half as much as what is
clustered already, in so many files that they slow a query down, or when the day is over. A day is thus
written a few times, however often a table is brought up to date. What is clustered is noted beside the table;
without the note, a day is clustered once more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path

from reput.catalog.table import File
from reput.store import files

#: Files that aren't clustered yet, of one day, that make it due.
MOST_FILES = 1024
_NOTE = "clustered.json"


class Clustered:
    """The files that were clustered."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NOTE
        try:
            noted = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            noted = []
        self.files = frozenset(str(name) for name in noted) if isinstance(noted, list) else frozenset[str]()

    def note(self, before: Iterable[File], after: Iterable[File]) -> None:
        """Remember the files that a clustering has made.

        Args:
            before: the table's files when it began.
            after: when it had ended.

        Raises:
            OutputError: the note can't be written.
        """
        live = list(after)
        known = self.files | {file.path for file in live} - {file.path for file in before}
        self.files = frozenset(file.path for file in live if file.path in known)
        files.write_atomically(self._path, json.dumps(sorted(self.files)).encode())


def due(live: Iterable[File], clustered: frozenset[str], today: date | None = None) -> Iterator[date]:
    """The days that are due, in order.

    Args:
        live: the table's files.
        clustered: the paths of those that are clustered.
        today: in UTC; None for what the clock says. Messages of later days don't make a day be over.
    """
    today = datetime.now(UTC).date() if today is None else today
    days: dict[date, list[File]] = {}
    for file in live:
        if file.day is not None:
            days.setdefault(file.day, []).append(file)
    newest = max((day for day in days if day <= today), default=today)
    for day in sorted(days):
        rest = [file for file in days[day] if file.path not in clustered]
        done = sum(file.size for file in days[day]) - sum(file.size for file in rest)
        if rest and (2 * sum(file.size for file in rest) >= done or len(rest) >= MOST_FILES or day < newest):
            yield day
