"""Committed offsets of which none lies outside of its queue; all else of their file stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from reput.config.kept import parse
from reput.errors import SettingsError, UnsupportedError
from reput.lag.report import Flag, LagReport, QueueLag
from reput.store import files
from reput.store.reading import read_file, unreadable
from reput.store.temporary import write_alone

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_TABLE, _LMQ_TABLE = "offsetTable", "lmqOffsetTable"


def write_corrected(report: LagReport, file: Path) -> LagReport:
    """Write the offsets that a report is of to a new file, those outside of their queue moved to its end.

    Nothing is written where no offset lies outside. Returns the report, which says what was written. Offsets
    that have changed meanwhile raise SettingsError, those in RocksDB UnsupportedError.
    """
    file = files.new_file(file)
    moved = sum(_outside(row) for row in report.rows)
    if moved and report.offsets.is_dir():
        raise UnsupportedError(
            "offsets in RocksDB can't be corrected by a file",
            path=report.offsets,
            expected="a file of committed offsets",
            found="a RocksDB",
            next_step="Start the broker, and reset the groups that the report names: "
            "mqadmin resetOffsetByTime, or skipAccumulatedMessage",
        )
    if moved:
        try:
            data = read_file(report.offsets)
        except OSError as error:
            raise unreadable("the file of committed offsets", report.offsets, error) from error
        write_alone(file, corrected(data, report.rows, report.offsets))
    return replace(report, corrected=file if moved else None, moved=moved)


def corrected(data: bytes, rows: Iterable[QueueLag], path: Path) -> bytes:
    """The file with a queue's min offset in place of one before it, and its max in place of one past it.

    Only ``rows`` outside of a queue that is there count. Raises SettingsError where an offset isn't found in
    its place, or isn't what it was.
    """
    wanted = {(f"{row.topic}@{row.group}", row.queue_id): row for row in rows if _outside(row)}
    text = data.decode("utf-8", "surrogateescape")
    pieces, end, left = [], 0, dict(wanted)
    for key, queue_id, start, stop in _offsets(text):
        row = left.pop((key, queue_id), None)
        if row is not None:
            if text[start:stop] != str(row.committed):
                raise SettingsError(
                    "the committed offsets have changed meanwhile",
                    path=path,
                    expected=f"{key}, queue {queue_id}: {row.committed}",
                    found=text[start:stop],
                    next_step="Stop the broker, or copy the file first, and run the command again",
                )
            low, high = row.min_offset, row.max_offset
            pieces += [text[end:start], str(min(max(row.committed or 0, low), high))]
            end = stop
    if left:
        (key, queue_id), _ = left.popitem()
        raise SettingsError(
            "an offset isn't where it should be in the file", path=path, expected=f"{key}, queue {queue_id}"
        )
    changed = "".join([*pieces, text[end:]]).encode("utf-8", "surrogateescape")
    parse(changed)
    return changed


def _outside(row: QueueLag) -> bool:
    """Whether it is committed, its queue is there, and has no place for it."""
    there = row.committed is not None and Flag.NO_QUEUE not in row.flags
    return there and not row.min_offset <= (row.committed or 0) <= row.max_offset


def _offsets(text: str) -> Iterator[tuple[str, int, int, int]]:
    """Each committed offset: its key, its queue id, and where the number stands."""
    path: list[str | None] = []
    name: str | None = None
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word in "{[":
            path.append(name)
            name = None
        elif word in "}]":
            path.pop()
            name = None
        elif word == ",":
            name = None
        elif word == ":":
            continue
        elif name is None:
            name = _string(word)
        elif path[1:2] == [_TABLE] and len(path) == 3 and name.lstrip("+-").isdecimal():
            yield path[2] or "", int(name), *_number(token)
        elif path[1:2] == [_LMQ_TABLE] and len(path) == 2:
            yield name, 0, *_number(token)


def _number(token: re.Match[str]) -> tuple[int, int]:
    """Where a number stands; fastjson takes it from a string, too."""
    return (token.start() + 1, token.end() - 1) if token[0].startswith('"') else token.span()


def _string(word: str) -> str:
    if not word.startswith('"'):
        return word
    found = parse(word.encode("utf-8", "surrogateescape"))
    return found if isinstance(found, str) else word
