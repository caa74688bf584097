"""Index entries against the keys of the messages that they should point to. No Spark.

Order in the files doesn't matter here, so that one damaged entry doesn't make all others look wrong: a part
of the log is compared with the entries that point into it, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.build.index import KeyRows
from reput.format.indexfile import (
    FIRST_ORDINAL,
    KEY_HASH,
    MAX_TIME_DIFF,
    PHYSICAL_OFFSET,
    TIME_DIFF,
)
from reput.verify.index_file import BLOCK, MOST_PROBLEMS, IndexInfo
from reput.verify.report import Difference
from reput.verify.sums import Sum, mixed_entries, sums_by
from reput.verify.units import pieces

#: A place in all files: the file's number above these bits, the ordinal below.
_ORDINAL_BITS = 31
#: Fewer messages without entries of their tags may as well have lost them.
_MOST_BY_DAMAGE = 8


class BlockRun(NamedTuple):
    """Blocks [first, end) of a file whose positions reach into a range of the log."""

    info: IndexInfo
    first: int
    end: int


class Entries(NamedTuple):
    """Index entries that point into one range of the log, in the order of files and ordinals.

    Attributes:
        place: int64[entries], file number << 31 | ordinal.
        hash: int64[entries].
        position: int64[entries], physical offset.
        seconds: int64[entries], timeDiff.
    """

    place: NDArray[np.int64]
    hash: NDArray[np.int64]
    position: NDArray[np.int64]
    seconds: NDArray[np.int64]

    @property
    def number(self) -> NDArray[np.int64]:
        """Which file has it, int64[entries]."""
        return self.place >> _ORDINAL_BITS

    @property
    def ordinal(self) -> NDArray[np.int64]:
        """Its ordinal there, int64[entries]."""
        return self.place & ((1 << _ORDINAL_BITS) - 1)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys of messages that have no entry.

    Attributes:
        first, end: physical offsets: of the first message, and one above that of the last.
        count: keys.
        hash: of the first.
        at_start, at_end: the part's first and last key are among them.
    """

    first: int
    end: int
    count: int
    hash: int
    at_start: bool = False
    at_end: bool = False


@dataclass(slots=True)
class EntriesCompared:
    """What came of a part's keys and entries.

    Attributes:
        missing: keys without entry.
        problems: entries that are wrong.
        duplicates: entries of messages that are indexed twice in a row, as a restarted broker does.
        first_duplicate: physical offset of the first such message, -1.
        sums: of the entries, by the number of their file; empty where they weren't asked for.
    """

    missing: list[KeyRange] = field(default_factory=list)
    problems: list[Difference] = field(default_factory=list)
    duplicates: int = 0
    first_duplicate: int = -1
    sums: dict[int, Sum] = field(default_factory=dict)

    @property
    def wrong(self) -> int:
        """How many keys and entries don't fit."""
        return sum(one.count for one in self.missing) + sum(one.count for one in self.problems)


def read_entries(runs: Sequence[BlockRun], start: int, end: int) -> Entries:
    """The entries of some blocks that point into [start, end) of the log.

    Raises:
        OSError: a file can't be read.
    """
    nothing = np.zeros(0, np.int64)
    columns = [Entries(nothing, nothing, nothing, nothing)]
    for info, first, stop in runs:
        ordinal = FIRST_ORDINAL + first * BLOCK
        count = min(FIRST_ORDINAL + stop * BLOCK, info.end) - ordinal
        words = info.read(ordinal, count)
        position = words["position"].astype(np.int64)
        inside = np.flatnonzero((position >= start) & (position < end))
        # Mostly they lie side by side, and needn't be picked one by one.
        side_by_side = len(inside) and int(inside[-1] - inside[0]) + 1 == len(inside)
        rows = slice(inside[0], inside[-1] + 1) if side_by_side else inside
        columns.append(
            Entries(
                (info.number << _ORDINAL_BITS) + ordinal + inside,
                words["hash"][rows].astype(np.int64),
                position[rows],
                words["seconds"][rows].astype(np.int64),
            )
        )
    if len(columns) == 2:
        return columns[1]
    return Entries(*(np.concatenate(each) for each in zip(*columns, strict=True)))


def keys_of(chunks: Sequence[KeyRows]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(position, storeTimestamp, hash) of each key, int64[keys], in the broker's order."""
    nothing = np.zeros(0, np.int64)
    return (
        np.concatenate([nothing, *(np.repeat(rows.position, rows.keys) for rows in chunks)]),
        np.concatenate([nothing, *(np.repeat(rows.timestamp, rows.keys) for rows in chunks)]),
        np.concatenate([nothing, *(rows.key_hash for rows in chunks)]),
    )


def compare_entries(
    chunks: Sequence[KeyRows],
    runs: Sequence[BlockRun],
    start: int,
    end: int,
    infos: Sequence[IndexInfo],
    *,
    summed: bool = False,
) -> EntriesCompared:
    """Compare the keys of a range [start, end) of the log with the entries that point into it.

    Args:
        chunks: the keys, in log order.
        runs: the blocks that may hold such entries.
        infos: all index files, by number.
        summed: with the entries' sums.

    Raises:
        OSError: a file can't be read.
    """
    entries = read_entries(runs, start, end)
    position, timestamp, key_hash = keys_of(chunks)
    result = EntriesCompared(sums=sums_by(entries.number, mixed_entries(entries, infos)) if summed else {})
    if (
        len(position) == len(entries.place)
        and (position == entries.position).all()
        and (key_hash == entries.hash).all()
    ):
        _check_times(timestamp, entries, infos, result)
        return result
    if not len(entries.place):
        result.missing = _missing(np.arange(len(position)), position, key_hash)
        return result
    # A key and an entry by one number each: the rank of the position above the hash.
    known = position[np.flatnonzero(np.diff(position, prepend=-1))]
    rank = np.searchsorted(known, entries.position)
    at_message = rank < len(known)
    at_message[at_message] = known[rank[at_message]] == entries.position[at_message]
    wanted = np.searchsorted(known, position) << 32 | key_hash
    there = np.where(at_message & (entries.hash >= 0), rank << 32 | np.maximum(entries.hash, 0), -1)

    # The n-th of equal keys belongs to the n-th of equal entries.
    keys = _paired(wanted, there)
    result.missing = _missing(np.flatnonzero(keys < 0), position, key_hash)
    paired = np.flatnonzero(keys >= 0)
    matched = Entries(*(column[keys[paired]] for column in entries))
    _check_times(timestamp[paired], matched, infos, result)

    unpaired = np.ones(len(there), bool)
    unpaired[keys[paired]] = False
    left = np.flatnonzero(unpaired)
    if not len(left):
        return result
    at_key = (there[left] >= 0) & np.isin(there[left], wanted)
    twice, strange = left[at_key], left[~at_key]
    legal = _adjacent(twice, entries, infos)
    result.duplicates = int(legal.sum())
    if result.duplicates:
        result.first_duplicate = int(entries.position[twice[legal]].min())
    _tell(result, "index-duplicate", twice[~legal], entries, infos, "one entry for a key of a message")
    _tell(result, "dangling-entry", strange, entries, infos, "a message with a key of this hash")
    return result


@dataclass(slots=True)
class TwoCompared:
    """What came of two stores' entries that point into one range of the log.

    Attributes:
        only_first, only_second: keys that the other one has no entry for.
        duplicates: entries that one store has more of than the other.
    """

    only_first: list[KeyRange] = field(default_factory=list)
    only_second: list[KeyRange] = field(default_factory=list)
    duplicates: int = 0


def compare_two(
    runs: Sequence[BlockRun], other_runs: Sequence[BlockRun], start: int, end: int
) -> TwoCompared:
    """Compare the keys that two stores index, whatever files and places their entries have.

    Args:
        runs, other_runs: the blocks of each that may hold entries which point into [start, end) of the log.

    Raises:
        OSError: a file can't be read.
    """
    first, second = read_entries(runs, start, end), read_entries(other_runs, start, end)
    result = TwoCompared()
    if len(first.place) == len(second.place) and (
        (first.position == second.position).all() and (first.hash == second.hash).all()
    ):
        return result
    known = np.unique(np.concatenate([first.position, second.position]))
    left, right = (
        np.searchsorted(known, one.position) << 32 | one.hash & 0xFFFFFFFF for one in (first, second)
    )
    for one, values, others, told in (
        (first, left, right, result.only_first),
        (second, right, left, result.only_second),
    ):
        rows = np.flatnonzero(~np.isin(values, others))
        rows = rows[np.argsort(one.position[rows], kind="stable")]
        told += _missing(rows, one.position, one.hash)
    _, counts = np.unique(left[np.isin(left, right)], return_counts=True)
    _, others_counts = np.unique(right[np.isin(right, left)], return_counts=True)
    result.duplicates = int(np.abs(counts - others_counts).sum())
    return result


@dataclass(frozen=True, slots=True)
class TagsOtherwise:
    """Messages of a part whose tags are indexed as by another release: not, or although this one doesn't.

    Attributes:
        count: messages.
        end: physical offset above that of the last.
        to_end: no message behind them has tags.
    """

    count: int
    end: int
    to_end: bool

    @classmethod
    def of(
        cls,
        own: EntriesCompared,
        other: EntriesCompared,
        keys: Sequence[KeyRows],
        other_keys: Sequence[KeyRows],
    ) -> TagsOtherwise | None:
        """Compare a part by this release's keys, and by those of releases that treat tags otherwise.

        Returns:
            None where more than that is wrong: these aren't the part's first messages with tags, or are too
            few to tell an upgrade from damage.
        """
        position, other_position = keys_of(keys)[0], keys_of(other_keys)[0]
        with_tags = len(position) > len(other_position)
        full, plain = (own, other) if with_tags else (other, own)
        if full.problems or plain.missing:
            return None
        tags = abs(len(position) - len(other_position))
        lacking = sum(one.count for one in full.missing)
        if with_tags:
            count, end = lacking, full.missing[-1].end
        else:
            count = tags - lacking
            end = full.missing[0].first if lacking else int(position[-1]) + 1
        before = abs(int(np.searchsorted(position, end)) - int(np.searchsorted(other_position, end)))
        return cls(count, end, count == tags) if count == before and count >= _MOST_BY_DAMAGE else None


def _nth(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many equal values stand before each, int64[values]."""
    order = np.argsort(values, kind="stable")
    inordered = values[order]
    starts = np.flatnonzero(np.append(True, inordered[1:] != inordered[:-1])) if len(values) else order
    lengths = np.diff(np.append(starts, len(values)))
    nth = np.empty(len(values), np.int64)
    nth[order] = np.arange(len(values)) - np.repeat(starts, lengths)
    return nth


def _paired(wanted: NDArray[np.int64], there: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each wanted value the row of ``there`` that is the same one, -1 if missing."""
    if not len(there):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(there, kind="stable")
    values = there[order]
    at = np.searchsorted(values, wanted, side="left") + _nth(wanted)
    inside = at < len(values)
    rows = np.where(inside, at, 0)
    return np.where(inside & (values[rows] == wanted), order[rows], -1)


def _missing(
    rows: NDArray[np.int64], position: NDArray[np.int64], key_hash: NDArray[np.int64]
) -> list[KeyRange]:
    return [
        KeyRange(
            first=int(position[piece[0]]),
            end=int(position[piece[-1]]) + 1,
            count=len(piece),
            hash=int(key_hash[piece[0]]),
            at_start=int(piece[0]) == 0,
            at_end=int(piece[-1]) == len(position) - 1,
        )
        for piece in pieces(rows, rows, MOST_PROBLEMS)
    ]


def joined(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Ranges, ascending, as one that begins with the first and ends with the last."""
    if not ranges:
        return []
    count = sum(one.count for one in ranges)
    return [replace(ranges[0], end=ranges[-1].end, count=count, at_end=ranges[-1].at_end)]


def joined_problems(problems: Sequence[Difference]) -> list[Difference]:
    """The problems, with the dangling entries of a file as one."""
    found: dict[str, Difference] = {}
    others = []
    for one in problems:
        if one.kind != "dangling-entry":
            others.append(one)
            continue
        known = found.get(one.path)
        found[one.path] = (
            one
            if known is None
            else replace(
                known,
                first=min(known.first, one.first),
                end=max(known.end, one.end),
                count=known.count + one.count,
            )
        )
    return [*others, *found.values()]


def _adjacent(rows: NDArray[np.int64], entries: Entries, infos: Sequence[IndexInfo]) -> NDArray[np.bool_]:
    """Which of some entries that are too many belong to messages whose entries all lie side by side.

    After a restart a broker dispatches the last indexed message again (``IndexService.buildIndex`` passes
    over what lies before the index's endPhyOffset only), so that its keys stand there twice in a row.
    """
    legal = np.zeros(len(rows), bool)
    if not len(rows):
        return legal
    # Ordinals of all files in one row: the files before it have so many entries.
    before = np.cumsum([0, *(info.end - FIRST_ORDINAL for info in infos)])
    flat = before[entries.number] + entries.ordinal - FIRST_ORDINAL
    for at in np.unique(entries.position[rows])[:MOST_PROBLEMS].tolist():
        mine = np.sort(flat[entries.position == at])
        if int(mine[-1] - mine[0]) + 1 == len(mine):
            legal |= entries.position[rows] == at
    return legal


def _check_times(
    timestamp: NDArray[np.int64],
    entries: Entries,
    infos: Sequence[IndexInfo],
    result: EntriesCompared,
) -> None:
    """Compare timeDiff, and what headers say of their first and last entry, with the messages' times."""
    if not len(entries.place):
        return
    number, ordinal = entries.number, entries.ordinal
    files = np.flatnonzero(np.bincount(number)).tolist()
    for file in files:
        info = infos[file]
        mine = number == file if len(files) > 1 else slice(None)
        begin = info.header.begin_timestamp
        time = timestamp[mine]
        expected = (
            np.clip((time - begin) // 1000, 0, MAX_TIME_DIFF) if begin > 0 else np.zeros(len(time), np.int64)
        )
        found = entries.seconds[mine]
        # The first entry's was taken against the end of the file before it, which may have gone.
        first = ordinal[mine] == FIRST_ORDINAL
        if first.any():
            previous = info.previous_end
            if previous > 0:
                expected[first] = np.clip((time[first] - previous) // 1000, 0, MAX_TIME_DIFF)
            elif previous < 0:
                expected[first] = found[first]
            else:
                expected[first] = 0
        wrong = np.flatnonzero(found != expected)
        if len(wrong):
            at = int(np.arange(len(number))[mine][wrong[0]])
            result.problems.append(
                info.problem(
                    "index-time",
                    info.entry_offset(int(ordinal[at])) + TIME_DIFF,
                    f"timeDiff {int(expected[wrong[0]])}",
                    str(int(found[wrong[0]])),
                    first=int(ordinal[at]),
                    end=int(ordinal[mine][wrong[-1]]) + 1,
                    count=len(wrong),
                )
            )
        result.problems += _header_problems(info, ordinal[mine], entries.position[mine], time)


def _header_problems(
    info: IndexInfo,
    ordinal: NDArray[np.int64],
    position: NDArray[np.int64],
    timestamp: NDArray[np.int64],
) -> Iterator[Difference]:
    """Where a header doesn't say of its file's first and last entry what their messages say."""
    header = info.header
    for side, at, rows, stored in (
        ("begin", 0, ordinal == FIRST_ORDINAL, (header.begin_timestamp, header.begin_physical_offset)),
        ("end", 8, ordinal == info.end - 1, (header.end_timestamp, header.end_physical_offset)),
    ):
        if rows.any():
            right = int(timestamp[rows][0]), int(position[rows][0])
            for name, place, expected, found in zip(
                ("Timestamp", "PhyOffset"), (at, at + 16), right, stored, strict=True
            ):
                if expected != found:
                    yield info.problem("index-header", place, f"{side}{name} {expected}", str(found))


def _tell(
    result: EntriesCompared,
    kind: str,
    rows: NDArray[np.int64],
    entries: Entries,
    infos: Sequence[IndexInfo],
    expected: str,
) -> None:
    at = KEY_HASH if kind == "index-duplicate" else PHYSICAL_OFFSET
    number, ordinal = entries.number, entries.ordinal
    for piece in pieces(rows, entries.place[rows], MOST_PROBLEMS):
        first, last = int(ordinal[piece[0]]), int(ordinal[piece[-1]])
        info = infos[number[piece[0]]]
        found = f"hash {int(entries.hash[piece[0]])} at physical offset {int(entries.position[piece[0]])}"
        span = {"first": first, "end": max(last, first) + 1, "count": len(piece)}
        result.problems.append(info.problem(kind, info.entry_offset(first) + at, expected, found, **span))
