"""The index files against the keys of the log's messages, or against another store's.

Order in the files doesn't matter here, so that one damaged entry doesn't make all others look wrong: a part
of the log is compared with the entries that point into it, wherever they lie.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.build.index import KeyRows
from reput.format import names
from reput.format.indexfile import (
    FIRST_ORDINAL,
    KEY_HASH,
    MAX_TIME_DIFF,
    PHYSICAL_OFFSET,
    TIME_DIFF,
)
from reput.newer_python import Self
from reput.replay.runner import Runner
from reput.verify.explain import REMARKS, Explainer
from reput.verify.index_file import (
    COUNTED_OTHERWISE,
    MOST_PROBLEMS,
    IndexInfo,
    block_starts,
    blocks,
    check_chains,
    gap_of,
    index_files,
    path_for,
    stray_directories,
)
from reput.verify.plan import Plan
from reput.verify.report import INDEX, ONLY_FIRST, ONLY_SECOND, Difference, Note, Report, of_two
from reput.verify.units import BLOCK, Blocks, Sum, mixed, pieces, runs_of, sums_by
from reput.verify.waves import in_waves

if TYPE_CHECKING:
    from reput.verify.plan import Pair
    from reput.verify.proofs import Remembering
    from reput.verify.run import LogRead
    from reput.verify.tasks import PartChecked

_LONG_MAX = (1 << 63) - 1
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
    """Index entries that point into one range of the log, in the order of files and ordinals."""

    place: NDArray[np.int64]  # int64[entries], file number << 31 | ordinal
    hash: NDArray[np.int64]  # int64[entries]
    position: NDArray[np.int64]  # int64[entries], physical offset
    seconds: NDArray[np.int64]  # int64[entries], timeDiff

    @classmethod
    def of(cls, info: IndexInfo, ordinals: NDArray[np.int64], words: NDArray[np.void]) -> Self:
        """Entries of a file, as it has them."""
        columns = (words[name].astype(np.int64) for name in ("hash", "position", "seconds"))
        return cls((info.number << _ORDINAL_BITS) + ordinals, *columns)

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
    """Keys of messages that have no entry."""

    first: int  # first, end: physical offsets: of the first message, and one above that of the last
    end: int
    count: int  # keys
    hash: int  # of the first
    at_start: bool = False  # at_start, at_end: the part's first and last key are among them
    at_end: bool = False


@dataclass(slots=True)
class EntriesCompared:
    """What came of a part's keys and entries."""

    missing: list[KeyRange] = field(default_factory=list)  # keys without entry
    problems: list[Difference] = field(default_factory=list)  # entries that are wrong
    duplicates: int = 0  # entries of messages that are indexed twice in a row, as a restarted broker does
    first_duplicate: int = -1  # physical offset of the first such message, -1
    #: of the entries, by the number of their file; empty where they weren't asked for
    sums: dict[int, Sum] = field(default_factory=dict)

    @property
    def wrong(self) -> int:
        """How many keys and entries don't fit."""
        return sum(one.count for one in self.missing) + sum(one.count for one in self.problems)


def read_entries(runs: Sequence[BlockRun], start: int, end: int) -> Entries:
    """The entries of some blocks that point into [start, end) of the log."""
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
        columns.append(Entries.of(info, ordinal + inside, words[rows]))
    if len(columns) == 2:
        return columns[1]
    return Entries(*(np.concatenate(each) for each in zip(*columns, strict=True)))


def mixed_entries(entries: Entries, infos: Sequence[IndexInfo]) -> NDArray[np.uint64]:
    """One number for each entry and what headers say of it, uint64[entries]: see :func:`sums_by`.

    A file's beginTimestamp is in all of them: their times count from it, also when its first entry's segment
    has expired. That entry's own counts from the end of the file before.
    """
    ordinals, numbers = entries.ordinal, entries.number
    found = mixed(ordinals, entries.hash, entries.position, entries.seconds)
    for number in set(numbers[runs_of(numbers)].tolist()):
        info = infos[number]
        header = info.header
        begin = header.begin_timestamp
        found[numbers == number] += mixed(np.array([begin]))
        for ordinal, said in (
            (FIRST_ORDINAL, (1, begin, header.begin_physical_offset, info.previous_end)),
            (info.end - 1, (2, header.end_timestamp, header.end_physical_offset)),
        ):
            rows = np.flatnonzero(ordinals == ordinal)
            rows = rows[numbers[rows] == number]
            found[rows] += mixed(*(np.full(len(rows), one, np.int64) for one in said))
    return found


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
    """Compare the keys of a range [start, end) of the log with the entries that point into it."""
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
    wanted, there, keys = _rows_of(position, key_hash, entries)
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
    """What came of two stores' entries that point into one range of the log."""

    #: only_first, only_second: keys that the other one has no entry for
    only_first: list[KeyRange] = field(default_factory=list)
    only_second: list[KeyRange] = field(default_factory=list)
    duplicates: int = 0  # entries that one store has more of than the other


def compare_two(
    runs: Sequence[BlockRun], other_runs: Sequence[BlockRun], start: int, end: int
) -> TwoCompared:
    """Compare the keys that two stores index, whatever files and places their entries have."""
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
    """Messages of a part whose tags are indexed as by another release: not, or although this one doesn't."""

    count: int  # messages
    end: int  # physical offset above that of the last

    @classmethod
    def of(
        cls,
        keys: Sequence[KeyRows],
        other_keys: Sequence[KeyRows],
        entries: Entries,
        infos: Sequence[IndexInfo],
    ) -> tuple[TagsOtherwise, KeyRows] | None:
        """Such messages, and the part's keys with their tags as the index has them; None where none is sure.

        Damage leaves something in an entry's place, and hardly ever takes those of tags alone: tags are only
        another release's in a run of messages that have other entries, between runs of its own, and entries
        only lack where those of the part lie side by side.

        Args:
            keys, other_keys: the part's by this release, and by those that treat tags otherwise.
            entries: those that point into the part.
        """
        (position, timestamp, key_hash), (other_position, *_) = keys_of(keys), keys_of(other_keys)
        with_tags, plain_position = len(position) > len(other_position), other_position
        if not with_tags:
            (position, timestamp, key_hash), (plain_position, *_) = keys_of(other_keys), keys_of(keys)
        flat = np.sort(_flat(entries, infos))
        if not len(flat) or not len(position) or (with_tags and int(flat[-1] - flat[0]) + 1 > len(flat)):
            return None
        there = _rows_of(position, key_hash, entries)[-1] >= 0
        first = np.flatnonzero(np.diff(position, prepend=-1))
        last = np.append(first[1:], len(position)) - 1  # where a message's tags are, if it has any
        plain = np.searchsorted(plain_position, position[first], "right")
        plain -= np.searchsorted(plain_position, position[first])
        # Of a message without any entry, the index was lost.
        told = (last - first + 1 > plain) & (np.logical_or.reduceat(there, first) | (plain == 0))
        at = last[told]
        otherwise = there[at] != with_tags
        begins = np.flatnonzero(np.diff(otherwise, prepend=~otherwise[:1]))
        if not otherwise.any():
            return None
        is_run = np.add.reduceat((plain[told] > 0).astype(np.int64), begins) >= _MOST_BY_DAMAGE
        if not is_run[otherwise[begins]].all() or not is_run[1:-1].all():
            return None
        indexed = np.ones(len(position), bool)
        indexed[last[last - first + 1 > plain]] = with_tags
        indexed[at[otherwise]] = not with_tags
        rows = position[indexed], timestamp[indexed], np.ones(int(indexed.sum()), np.int32)
        found = cls(int(otherwise.sum()), int(position[at[otherwise][-1]]) + 1)
        return found, KeyRows(*rows, key_hash[indexed].astype(np.int32))


def _rows_of(
    position: NDArray[np.int64], key_hash: NDArray[np.int64], entries: Entries
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Keys and entries by one number each, and for each key the row of its entry, -1 if missing."""
    # The rank of the position above the hash.
    known = position[np.flatnonzero(np.diff(position, prepend=-1))]
    rank = np.searchsorted(known, entries.position)
    at_message = rank < len(known)
    at_message[at_message] = known[rank[at_message]] == entries.position[at_message]
    wanted = np.searchsorted(known, position) << 32 | key_hash
    there = np.where(at_message & (entries.hash >= 0), rank << 32 | np.maximum(entries.hash, 0), -1)
    # The n-th of equal keys belongs to the n-th of equal entries.
    return wanted, there, _paired(wanted, there)


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
    flat = _flat(entries, infos)
    for at in np.unique(entries.position[rows])[:MOST_PROBLEMS].tolist():
        mine = np.sort(flat[entries.position == at])
        if int(mine[-1] - mine[0]) + 1 == len(mine):
            legal |= entries.position[rows] == at
    return legal


def _flat(entries: Entries, infos: Sequence[IndexInfo]) -> NDArray[np.int64]:
    """Ordinals of all files in one row: the files before it have so many entries."""
    before = np.cumsum([0, *(info.end - FIRST_ORDINAL for info in infos)])
    return before[entries.number] + entries.ordinal - FIRST_ORDINAL


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


@dataclass(slots=True)
class IndexMap:
    """The index files, and where in the log their entries point to."""

    infos: tuple[IndexInfo, ...] = ()  # by number
    blocks: list[Blocks] = field(default_factory=list)  # of each file

    @property
    def keys(self) -> int:
        """Entries that the files hold."""
        return sum(info.end - FIRST_ORDINAL for info in self.infos)

    def runs(self, start: int, end: int) -> tuple[BlockRun, ...]:
        """The blocks that may hold entries which point into [start, end) of the log."""
        found = zip(self.infos, self.blocks, strict=True)
        return tuple(BlockRun(info, *run) for info, of in found for run in of.reaching(start, end))


def find_entries(
    runner: Runner,
    infos: Sequence[IndexInfo],
    known: Callable[[IndexInfo], Blocks | None] = lambda _info: None,
) -> IndexMap:
    """Read all index files once, so that each part of the log finds the entries that point into it."""
    found = [known(info) or Blocks.of(np.zeros(0, np.int64)) for info in infos]
    starts = [(info, first) for info in infos if known(info) is None for first in block_starts(info)]
    tasks = [partial(blocks, info, first) for info, first in starts]
    for (info, _), more in zip(starts, in_waves(runner, tasks), strict=True):
        found[info.number] = found[info.number].then(more)
    return IndexMap(tuple(infos), found)


class IndexCheck:
    """The index side of one run. Without files until :meth:`find`, and for good where none is looked at.

    Attributes:
        map: the files, and where in the log their entries point to.
    """

    def __init__(self, plan: Plan, runner: Runner) -> None:
        self._plan = plan
        self._runner = runner
        self.map = IndexMap()
        self._entries = EntriesCompared()
        self._strays: list[Difference] = []
        self._chains: list[Difference] = []  # what is wrong with the files' chains
        self._sound: set[str] = set()
        self._counted_otherwise = 0
        self._other_tags, self._other_tags_end = 0, 0

    def find(self, proven: Remembering | None, _held: ExitStack) -> None:
        """See :class:`reput.verify.run.Form`."""
        settings = self._plan.settings
        infos: list[IndexInfo] = []
        if self._plan.index:
            known = (lambda _path: None) if proven is None else proven.header_of
            slots, entries = settings.max_hash_slot_num, settings.max_index_num
            infos = index_files(settings.root, slots, entries, known)
            self._strays = stray_directories(settings.root)
        if proven is None:
            self.map = find_entries(self._runner, infos)
            return
        proven.compare(self._runner, infos)
        self.map = find_entries(self._runner, infos, proven.blocks_of)
        self._sound = {info.path for info in infos if proven.is_sound(info)}

    @contextmanager
    def following_chains(self) -> Iterator[None]:
        """Follow the chains of all index files meanwhile; no further once the block has failed."""
        ended = threading.Event()
        with ThreadPoolExecutor(1, "reput-chains") as pool:
            # Each file's chains are one task's work: it is begun first, beside the log's.
            following = pool.submit(self._follow_chains, ended)
            try:
                yield
                self._chains = following.result()
            finally:
                ended.set()

    @property
    def unsound(self) -> set[str]:
        """The files whose chains are wrong."""
        return {one.path for one in self._chains}

    def _follow_chains(self, ended: threading.Event) -> list[Difference]:
        problems: list[Difference] = []
        plan = self._plan
        counts_keys, log_start = plan.settings.dialect.counts_keys, plan.log.start
        tasks = [
            partial(check_chains, info, counts_keys=counts_keys, running=plan.running, log_start=log_start)
            for info in self.map.infos
            if info.path not in self._sound
        ]
        with closing(in_waves(self._runner, tasks)) as results:
            for found in results:
                problems += found
                if ended.is_set():
                    break
        return problems

    def add(self, checked: PartChecked) -> None:
        """See :class:`reput.verify.run.Form`."""
        entries, tags = checked.entries, checked.tags
        if entries is None:
            return
        if tags is not None:
            self._other_tags += tags.count
            self._other_tags_end = tags.end
        self._add_entries(entries)

    def compare(self, log: LogRead, _proven: object) -> None:
        """Compare entries that point to where no part was."""
        infos = self.map.infos
        tasks = [
            partial(compare_entries, (), runs, start, end, infos)
            for start, end in log.uncovered()
            if (runs := self.map.runs(start, end))
        ]
        for compared in in_waves(self._runner, tasks):
            self._add_entries(compared)

    def _add_entries(self, compared: EntriesCompared) -> None:
        known = self._entries
        missing = compared.missing
        if known.missing and missing and known.missing[-1].at_end and missing[0].at_start:
            known.missing[-1] = joined([known.missing[-1], missing[0]])[0]
            missing = missing[1:]
        known.missing += missing
        known.problems += compared.problems
        if compared.duplicates and known.first_duplicate < 0:
            known.first_duplicate = compared.first_duplicate
        known.duplicates += compared.duplicates

    def findings(self, explainer: Explainer) -> Iterator[Difference | Note]:
        """See :class:`reput.verify.run.Form`."""
        broken = [one for one in self._chains if one.kind != COUNTED_OTHERWISE]
        self._counted_otherwise = len(self._chains) - len(broken)
        dangling, missing = self._entries.problems, self._entries.missing
        gaps = (gap_of(self.map.infos, one.first, one.end) for one in missing)
        behind = {gap[1].path for gap in gaps if gap is not None}
        # The time of a file's first entry counts from the end of the file before.
        alone = "index-time", FIRST_ORDINAL, 1
        dangling = [
            one for one in dangling if one.path not in behind or (one.kind, one.first, one.count) != alone
        ]
        yield from [*self._strays, *broken, *dangling]
        yield from (self._missing(explainer, one) for one in missing)
        yield from self._notes()

    def _missing(self, explainer: Explainer, keys: KeyRange) -> Difference:
        """Keys without entry."""
        infos, directory = self.map.infos, str(self._plan.settings.root / names.INDEX)
        cause, path = None, path_for(infos, keys.first, infos[-1].path if infos else directory)
        gap = gap_of(infos, keys.first, keys.end)
        if not infos:
            cause = "index-lost"
        elif keys.first >= infos[-1].header.end_physical_offset:
            cause = "index-short"
        elif keys.end <= infos[0].header.begin_physical_offset:
            cause = "index-begins-late"
        elif gap is not None:
            cause, path = "index-file-missing", directory
        between = [Path(one.path).name for one in gap or ()]
        message = explainer.message(keys.first)
        whose = "" if message is None else f" of message {message[2]} of {message[0]}:{message[1]}"
        return Difference(
            "missing-entry",
            path,
            INDEX,
            f"an entry of hash {keys.hash}{whose}",
            "none",
            first=keys.first,
            end=keys.end,
            count=keys.count,
            cause=cause,
            remark=None if cause is None else REMARKS[cause].format(*between),
        )

    def _notes(self) -> Iterator[Note]:
        """What is odd and legal."""
        if self._entries.duplicates:
            yield Note(
                "indexed-twice",
                f"{self._entries.duplicates:,} index entries stand twice in a row, first of the message at "
                f"{self._entries.first_duplicate}: a broker that is started indexes its last message again",
                count=self._entries.duplicates,
            )
        if self._counted_otherwise:
            yield Note(
                COUNTED_OTHERWISE,
                f"hashSlotCount of {self._counted_otherwise:,} index files is that of a store that was "
                "upgraded: up to 4.7.0 it counts keys, from 4.7.1 on slots; no release reads it",
                count=self._counted_otherwise,
            )
        if self._other_tags:
            of = f"{self._other_tags:,} messages before {self._other_tags_end}"
            tags = self._plan.settings.dialect.index_tags
            yield Note(
                "tags-not-indexed" if tags else "tags-indexed",
                f"{of} have no index entry of their tags, as before 5.4: a query by tag doesn't find them"
                if tags
                else f"{of} have index entries of their tags, as from 5.4 on: earlier ones don't use them",
                count=self._other_tags,
            )

    @property
    def end_timestamp(self) -> int:
        """The greatest endTimestamp of a file, ms; an index that isn't looked at is taken at its word."""
        headers = [info.header for info in self.map.infos]
        nothing = 0 if self._plan.index else _LONG_MAX
        return max((header.end_timestamp for header in headers), default=nothing)


# --- two stores -------------------------------------------------------------------------------------------


def compare_index(pair: Pair, runner: Runner, report: Report) -> None:
    """Compare the keys that two stores' index files have of the messages that both logs have."""
    maps = left, right = [
        find_entries(runner, index_files(settings.root, settings.max_hash_slot_num, settings.max_index_num))
        for settings in pair.stores
    ]
    report.index_files, report.index_entries = len(left.infos), left.keys
    if left.infos or right.infos:
        # They depend on where a file begins, which each broker decides by itself.
        text = "slots, chains, timeDiff and headers of index files"
        report.not_checked.append(Note("index", text))
    tasks = [
        partial(compare_two, left.runs(start, end), right.runs(start, end), start, end)
        for start, end in pair.parts()
    ]
    duplicates = 0
    for compared in in_waves(runner, tasks):
        duplicates += compared.duplicates
        for kind, ranges in ((ONLY_FIRST, compared.only_first), (ONLY_SECOND, compared.only_second)):
            at = kind == ONLY_SECOND
            nowhere = str(pair.stores[at].root / names.INDEX)
            for one in ranges:
                paths = [path_for(maps[at].infos, one.first, nowhere)] * 2
                said = [f"an entry of hash {one.hash} for the message at {one.first}", "none"]
                span = one.first, one.end, one.count
                report.findings.append(of_two(kind, paths, INDEX, said[:: -1 if at else 1], span))
    if duplicates:
        text = f"{duplicates:,} index entries stand more often in one store than in the other: "
        text += "a broker that is started indexes its last message again"
        report.notes.append(Note("indexed-twice", text, count=duplicates))
