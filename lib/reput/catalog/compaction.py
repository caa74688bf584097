"""Which of a table's files are to be merged, and which are older than the table is to keep.

A file's rows are in order from the first, so that only many small files are worth writing anew: those that a
run adds every few minutes. Larger ones are left as they are. A row is thus written a few times, whatever a
day gets, and a run merges about as much as has come since the last merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta

from reput.catalog.table import File
from reput.newer_python import UTC

#: Bytes: a smaller file is to be merged, and so large a merged file gets.
SMALL, LARGE = 4 << 20, 16 << 20
#: Of a merged file; they are in memory together.
MOST_ROWS = 1 << 19
#: Bytes of log between the first file's end and the last one's: in memory rows are as large as there, and in
#: files bodies may be a small part of that.
MOST_LOG = 128 << 20
#: Small files of one day that make it due before it is over.
MANY = 16


def due(live: Iterable[File], today: date | None = None) -> Iterator[list[File]]:
    """The files that are to become one, by day and in log order.

    Args:
        live: the table's files.
        today: in UTC; None for what the clock says. Messages of later days don't make a day be over.
    """
    today = datetime.now(UTC).date() if today is None else today
    days: dict[date | None, list[tuple[int, File]]] = {}
    newest = date.min
    for file in live:
        if file.day is not None and file.day <= today:
            newest = max(newest, file.day)
        if file.size < SMALL and file.last is not None:
            days.setdefault(file.day, []).append((file.last, file))
    for day, small in sorted(days.items(), key=lambda one: one[0] or date.min):
        if len(small) < MANY and (day is None or day >= newest):
            continue
        merged: list[File] = []
        for _, file in sorted(small, key=lambda one: one[0]):
            with_it = [*merged, file]
            is_large = (
                sum(one.size for one in with_it) > LARGE
                or sum(one.rows for one in with_it) > MOST_ROWS
                or (file.last or 0) - (with_it[0].last or 0) > MOST_LOG
            )
            if merged and is_large:
                yield from [merged] if len(merged) > 1 else []
                merged = []
            merged.append(file)
        yield from [merged] if len(merged) > 1 else []


def outdated(live: Iterable[File], days: int, newest: date | None, today: date | None = None) -> list[File]:
    """The files of days that a table shall not keep any more.

    Messages without a day are kept, and so is the file with a store's last message: without it nobody could
    tell whether the log is still the one that the table holds.

    Args:
        live: a store's files.
        days: before today, that are kept; before the day after ``newest``, if that is earlier. Else a clock
            that is ahead would empty the table.
        newest: day that the table has messages of, whoever's; None without any.
        today: in UTC; None for what the clock says.
    """
    files = list(live)
    today = datetime.now(UTC).date() if today is None else today
    if newest is not None:
        today = min(today, newest + timedelta(days=1))
    first = today - timedelta(days=days)
    last = max((file.last for file in files if file.last is not None), default=None)
    return [
        file
        for file in files
        if file.day is not None and file.day < first and file.last is not None and file.last != last
    ]
