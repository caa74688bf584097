"""Writing a range of queues as a file of sorted keys: one task a share, from the runs of all parts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.build import rocksdb_units
from reput.build.placement import Breaks, Oddity, keep
from reput.build.rocksdb_units import UnitRows
from reput.errors import Finding
from reput.format.rocksdbqueue import Unit, parse_unit_key
from reput.output.scan_task import attempt_directory
from reput.replay.placing import CREATED_AGAIN, MOST_HIDDEN, QUEUE_RESTARTED
from reput.replay.state import FILLED, HIDDEN, Salvaged
from reput.replay.target import Target
from reput.replay.unit_runs import ROW, Rows, RunReader
from reput.rocksdb.writing import write_sorted

_BLOCK = 1 << 17  # units that are packed at once

_OUTCOMES = {
    "repeated-queue-offset": "the last one has the unit; the others can only be read by physical offset",
    QUEUE_RESTARTED: CREATED_AGAIN,
    "missing-queue-offsets": "the hole was filled with the unit after it, so that consumers lose no message",
    "queue-offset-jump": "it stands at its own queueOffset; the places before have no unit, as in a broker's "
    "database",
}


@dataclass(frozen=True, slots=True)
class Share:
    """A range of keys."""

    number: int  # shares are numbered as their keys ascend
    first: bytes  # the prefix of its first queue's keys
    stop: bytes | None  # the prefix of the first queue behind it; None for the end
    #: half-open range of queueOffsets, where a queue has several shares: its units are all
    #: consecutive; None for all
    offsets: tuple[int, int] | None = None


class Ends(NamedTuple):
    """The ends of queues, or of a part of one."""

    prefixes: list[bytes]  # of their keys
    #: int64[queues, 2], physicalOffset and queueOffset of the first message that has a unit
    first: NDArray[np.int64]
    last: NDArray[np.int64]  # int64[queues, 2], the same of the last message


@dataclass(frozen=True, slots=True)
class Written:
    """What a task wrote."""

    path: Path | None  # the file; None where there was nothing to write
    units: int  # how many
    ends: Ends  # the queues' ends
    end: int  # physical offset after the last message, -1 without one
    findings: list[Finding] = field(default_factory=list)  # what was odd; ``path`` of each is empty
    #: holes that were filled, and messages without a unit
    salvaged: list[Salvaged] = field(default_factory=list)


def write(
    target: Target, share: Share, runs: Sequence[str], breaks: Breaks, *, from_zero: bool, scratch: Path
) -> Written:
    """Write one share into a new file below ``scratch``.

    Args:
        runs: in log order.
        breaks: where the log isn't whole.
        from_zero: the log begins at physical offset 0: nothing of it has expired.
    """
    found = placed(target, share, runs, breaks, from_zero=from_zero)
    if found is None:
        return Written(None, 0, Ends([], np.empty((0, 2), np.int64), np.empty((0, 2), np.int64)), -1)
    path = attempt_directory(scratch) / "queues.sst"
    write_sorted(path, _pairs(found), compressed=True)
    return Written(path, len(found.row), found.ends(), found.end, found.findings, found.salvaged)


def placed(
    target: Target, share: Share, runs: Sequence[str], breaks: Breaks, *, from_zero: bool
) -> Placed | None:
    """Where the units of a share stand; None without any.

    Args:
        runs, breaks, from_zero: as in :func:`write`.
    """
    prefixes, rank, rows = _gathered(runs, share)
    if not len(rows):
        return None
    order = np.argsort(rank, kind="stable")
    return Placed(target, prefixes, rank[order], rows[order], breaks, from_zero=from_zero)


def _gathered(runs: Sequence[str], share: Share) -> tuple[list[bytes], NDArray[np.int64], Rows]:
    """The queues of a share, and of each of its units in log order, which queue's it is, and the unit."""
    found: list[tuple[list[bytes], NDArray[np.int64], Rows]] = []
    for path in runs:
        with RunReader(path) as run:
            queues = run.queues()
            begin = bisect_left(queues.prefixes, share.first)
            end = len(queues.prefixes) if share.stop is None else bisect_left(queues.prefixes, share.stop)
            if begin >= end:
                continue
            first, stop = int(queues.first[begin]), int(queues.stop[end - 1])
            if share.offsets is not None:
                base = int(queues.first_offset[begin])
                low, high = (min(max(offset - base, 0), stop - first) for offset in share.offsets)
                first, stop = first + low, first + high
            rows = run.rows(first, stop)
            counts = (
                (queues.stop - queues.first)[begin:end] if share.offsets is None else np.array([len(rows)])
            )
            found.append((queues.prefixes[begin:end], counts, rows))
    prefixes = sorted({prefix for here, _, _ in found for prefix in here})
    ranks = {prefix: number for number, prefix in enumerate(prefixes)}
    rank = [np.repeat([ranks[prefix] for prefix in here], counts) for here, counts, _ in found]
    if not found:
        return [], np.empty(0, np.int64), np.empty(0, ROW)
    return prefixes, np.concatenate(rank), np.concatenate([rows for _, _, rows in found])


class Placed:
    """Where the units of a share stand.

    Args:
        prefixes: the queues' keys.
        rank: int64[rows], ascending, which queue's a row is.
        rows: in log order within a queue.

    Attributes:
        prefixes: as given.
        queue, row, offset: int64[units], in the order of keys: whose unit it is, from which row, and where.
        findings: what was odd; ``path`` of each is empty.
        salvaged: holes that were filled, and messages without a unit.
    """

    def __init__(
        self,
        target: Target,
        prefixes: list[bytes],
        rank: NDArray[np.int64],
        rows: Rows,
        breaks: Breaks,
        *,
        from_zero: bool,
    ) -> None:
        self._target = target
        self.findings: list[Finding] = []
        self.salvaged: list[Salvaged] = []
        self.prefixes = prefixes
        self._rows = rows
        starts = self._starts = np.searchsorted(rank, np.arange(len(prefixes) + 1))
        self._last = starts[1:] - 1  # row of each queue's last message
        jumps = np.diff(rows["offset"]) != 1
        jumps[starts[1:-1] - 1] = False
        odd = np.zeros(len(prefixes), np.bool_)
        odd[rank[1:][jumps]] = True
        if breaks.unproven:
            for begin, end in breaks.unproven:
                odd[np.unique(rank[(rows["position"] >= begin) & (rows["position"] < end)])] = True
        if from_zero and breaks.places:
            odd |= (rows["offset"][starts[:-1]] > 0) & (rows["position"][starts[:-1]] >= breaks.places[0])
        pieces: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        done = 0
        for number in np.flatnonzero(odd).tolist():
            first, stop = int(starts[number]), int(starts[number + 1])
            kept = keep(
                rows["offset"][first:stop],
                rows["position"][first:stop],
                rows["size"][first:stop],
                breaks,
                from_zero=from_zero,
            )
            pieces.append((rank[done:first], np.arange(done, first), rows["offset"][done:first]))
            pieces.append((np.full(len(kept.row), number, np.int64), kept.row + first, kept.offset))
            self._last[number] = first + kept.last if kept.last >= 0 else -1
            self._report(number, rows[first:stop], kept.oddities, kept.hidden)
            done = stop
        pieces.append((rank[done:], np.arange(done, len(rows)), rows["offset"][done:]))
        self.queue, self.row, self.offset = (np.concatenate(each) for each in zip(*pieces, strict=True))

    @property
    def end(self) -> int:
        """Physical offset after the last message."""
        return int((self._rows["position"] + self._rows["size"]).max())

    def ends(self) -> Ends:
        """The queues' ends."""
        numbers, first = np.unique(self.queue, return_index=True)
        last = self._last[numbers]
        rows = self._rows
        return Ends(
            [self.prefixes[number] for number in numbers.tolist()],
            np.stack([rows["position"][self.row[first]], self.offset[first]], axis=1),
            np.stack([rows["position"][last], rows["offset"][last]], axis=1),
        )

    def block(self, begin: int, stop: int) -> NDArray[np.uint8]:
        """The keys and values of units [begin, stop), of queues whose prefixes are equally long."""
        queue, rows = self.queue[begin:stop], self._rows[self.row[begin:stop]]
        first = int(queue[0])
        return rocksdb_units.pack(
            self.prefixes[first : int(queue[-1]) + 1],
            UnitRows(
                queue - first,
                self.offset[begin:stop],
                rows["position"],
                rows["size"],
                rows["tags"],
                rows["timestamp"],
            ),
        )

    def blocks(self, most: int) -> Iterator[NDArray[np.uint8]]:
        """The keys and values of all units, ascending, at most so many at once: of one length each."""
        widths = np.array([len(prefix) for prefix in self.prefixes])[self.queue]
        changes = (np.flatnonzero(np.diff(widths)) + 1).tolist()
        for begin, stop in zip([0, *changes], [*changes, len(widths)], strict=True):
            for at in range(begin, stop, most):
                yield self.block(at, min(at + most, stop))

    def others(self, number: int, queue_offset: int) -> Iterator[Unit]:
        """The units of all messages of a queue, by its number, that have a queueOffset."""
        rows = self._rows[self._starts[number] : self._starts[number + 1]]
        for row in rows[rows["offset"] == queue_offset]:
            yield Unit(*(int(row[name]) for name in ("position", "size", "tags", "timestamp")))

    def _report(self, number: int, rows: Rows, oddities: list[Oddity], hidden: NDArray[np.int64]) -> None:
        key = parse_unit_key(self.prefixes[number] + bytes(8))
        if key is None:
            return
        topic, queue_id = key.topic.decode("utf-8", "replace"), key.queue_id
        summed: dict[str, Finding] = {}
        for oddity in oddities:
            row = rows[oddity.row]
            position, size = int(row["position"]), int(row["size"])
            if oddity.kind == "queue-offset-jump" and self._target.selection.is_batch(topic):
                continue  # a record of many messages takes as many queueOffsets
            if oddity.kind == "missing-queue-offsets":
                self.salvaged.append(
                    Salvaged(
                        FILLED, oddity.after, position, topic, queue_id, oddity.queue_offset, oddity.count
                    )
                )
            elif oddity.kind in summed:
                first = summed[oddity.kind]
                summed[oddity.kind] = replace(first, count=first.count + oddity.count)
                continue
            is_hole = oddity.kind == "missing-queue-offsets"
            summed[f"{oddity.kind} {oddity.queue_offset}" if is_hole else oddity.kind] = Finding(
                kind=oddity.kind,
                path="",
                offset=position,
                end=position + size,
                expected=f"the queueOffset that is due, {oddity.expected}",
                found=str(int(row["offset"])),
                outcome=_OUTCOMES[oddity.kind],
                topic=topic,
                queue_id=queue_id,
                queue_offset=oddity.queue_offset,
                count=oddity.count,
            )
        self.findings += summed.values()
        for row_number in hidden[:MOST_HIDDEN].tolist():
            row = rows[row_number]
            begin, size = int(row["position"]), int(row["size"])
            self.salvaged.append(Salvaged(HIDDEN, begin, begin + size, topic, queue_id, int(row["offset"])))
        if len(hidden):
            first_row, last_row = rows[hidden[0]], rows[hidden[-1]]
            self.findings.append(
                Finding(
                    kind="unproven-message",
                    path="",
                    offset=int(first_row["position"]),
                    end=int(last_row["position"]) + int(last_row["size"]),
                    expected="a queueOffset between those of the proven messages before and behind",
                    found=f"{int(first_row['offset'])}, of what may be part of a message's body",
                    outcome="no unit was written; it can only be read by physical offset",
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=int(first_row["offset"]),
                    count=len(hidden),
                )
            )


def _pairs(placed: Placed) -> Iterator[tuple[Any, ...]]:
    """The keys and values of all units, ascending."""
    for block in placed.blocks(_BLOCK):
        yield from rocksdb_units.pairs(block)
