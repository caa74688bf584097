"""Scanning the log ahead of a walk, on several processors.

A walk goes from record to record, so it can't begin in the middle. But where a segment is sound, a scan that
begins at some whole record further on finds what the walk will find there. The walk takes such a piece only
when it arrives at the very place where the piece begins; else it goes on by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from reput.broker.files import StoreFile
from reput.broker.written import written_ranges
from reput.log.segments import map_segment
from reput.newer_python import Self
from reput.scan import kernel, output
from reput.scan.output import OutputArrays
from reput.scan.rules import Rules
from reput.scan.status import Status
from reput.scan.table import QueueTable

#: Bytes of a segment. A piece with what it yields is in memory at once.
PIECE = 64 << 20
_MOST_THREADS = 4


class Range(NamedTuple):
    """A part of a segment that is going to be walked; positions in the segment, half open."""

    segment: StoreFile
    start: int
    end: int


class Piece(NamedTuple):
    """What a scan found.

    Attributes:
        start: position in the segment where it began, -1 if no record begins in the piece.
        status, position: where it stopped, and why.
        found: what it yields, in log order.
        table: numbers of topics and queues in that.
    """

    start: int
    status: Status
    position: int
    found: list[OutputArrays]
    table: QueueTable


class Ahead:
    """Scans pieces before they are asked for; a context manager.

    Args:
        ranges: what will be walked, in order.
        rules: what the walk scans with.
        new_table: gives an empty table.
    """

    def __init__(self, ranges: Sequence[Range], rules: Rules, new_table: Callable[[], QueueTable]) -> None:
        self._rules = rules
        self._new_table = new_table
        threads = min(os.cpu_count() or 1, _MOST_THREADS)
        wanted = sum(one.end - one.start for one in ranges) >= 2 * PIECE
        self._todo = [(one, number) for one in ranges for number in _pieces(one)] if wanted else []
        self._place = {(one.segment.base, number): at for at, (one, number) in enumerate(self._todo)}
        self._begun: dict[int, Future[Piece]] = {}
        self._next = 0
        self._window = threads + 1
        self._pool = ThreadPoolExecutor(threads, "reput-scan")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def at(self, base: int, position: int) -> Piece | None:
        """The piece that begins at a position of the segment at ``base``; it is given once."""
        at = self._place.get((base, position // PIECE))
        if at is None:
            return None
        for passed in [one for one in self._begun if one < at]:
            self._begun.pop(passed).cancel()
        self._next = max(self._next, at)
        while self._next < min(at + self._window, len(self._todo)):
            self._begun[self._next] = self._pool.submit(self._scan, *self._todo[self._next])
            self._next += 1
        future = self._begun.pop(at, None)
        piece = None if future is None else future.result()
        return piece if piece is not None and piece.start == position else None

    def _scan(self, wanted: Range, number: int) -> Piece:
        data = map_segment(wanted.segment.path, wanted.end)
        base, stop = wanted.segment.base, min((number + 1) * PIECE, len(data))
        start = max(number * PIECE, wanted.start)
        if start > wanted.start:
            start = kernel.find_record(data, base, start, stop, self._rules.topic_length_v2)
        piece = Piece(start, Status.END, start, [], self._new_table())
        while start >= 0:
            piece.found.append(output.output())
            status, start = kernel.scan(data, base, start, stop, self._rules, piece.table, piece.found[-1])
            if status is not Status.FULL:
                return piece._replace(status=status, position=start)
        return piece


def _pieces(wanted: Range) -> list[int]:
    """Numbers of the pieces of a range in which something was written."""
    found: set[int] = set()
    for start, end in written_ranges(wanted.segment, wanted.start, wanted.end):
        found.update(range(start // PIECE, -(-end // PIECE)))
    return sorted(found)
