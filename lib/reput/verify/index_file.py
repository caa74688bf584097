"""One index file by itself: its header, its slots and chains, and where its entries point. No Spark.

Source: ``IndexFile.putKey``, ``IndexFile.selectPhyOffset``, ``IndexHeader`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.derived.files import in_order
from reput.derived.index import IndexFile
from reput.format import indexfile, names
from reput.format.indexfile import FIRST_ORDINAL, IndexHeader
from reput.verify.report import INDEX, Difference
from reput.verify.units import BLOCK, Blocks, pieces

#: Blocks that a task reads at once.
BLOCKS_AT_ONCE = 256

#: Problems of one kind in one file that are listed one by one.
MOST_PROBLEMS = 64
#: The kind of a hashSlotCount that another release than the one at hand leaves.
COUNTED_OTHERWISE = "counted-otherwise"
_BROKEN, _CYCLE, _HASH = range(3)


@dataclass(frozen=True, slots=True)
class IndexInfo(IndexFile):
    """An index file as its header tells."""

    number: int  # of the store's files in order, from 0 on
    header: IndexHeader  # as on disk
    previous_end: int  # endTimestamp of the file before it, ms; -1 where it is the first one
    previous_position: int  # its endPhyOffset; -1 without one

    @property
    def end(self) -> int:
        """The ordinal after the last entry that the header and the file's length allow."""
        return self.end_of(self.header)

    def problem(
        self, kind: str, offset: int, expected: str, found: str, first: int = 0, end: int = 0, count: int = 1
    ) -> Difference:
        """What is wrong in it; see :class:`reput.verify.report.Difference`."""
        return Difference(kind, self.path, INDEX, expected, found, first, end, count, offset)


def index_files(
    root: Path,
    slots: int,
    entries: int,
    known: Callable[[str], IndexHeader | None] = lambda _path: None,
) -> list[IndexInfo]:
    """The index files of a store, in the broker's order, which is that of their names."""
    found: list[IndexInfo] = []
    previous = position = -1
    for entry in in_order(root / names.INDEX):
        if entry.what is None:
            file = entry.place, slots, entries, entry.length
            header = known(entry.place) or IndexFile(*file).read_header()
            found.append(IndexInfo(*file, len(found), header, previous, position))
            previous, position = header.end_timestamp, header.end_physical_offset
    return found


def stray_directories(root: Path) -> list[Difference]:
    """Directories among the index files: a broker fails on them, or loads none of the files behind."""
    return [
        Difference("index-stray-directory", entry.place, INDEX, "files only", "a directory")
        for entry in in_order(root / names.INDEX)
        if entry.is_dir
    ]


def path_for(infos: Sequence[IndexInfo], position: int, nowhere: str) -> str:
    """The file that a message's keys belong in, by its physical offset; ``nowhere`` where all end before."""
    return next((info.path for info in infos if info.header.end_physical_offset >= position), nowhere)


def gap_of(infos: Sequence[IndexInfo], first: int, end: int) -> tuple[IndexInfo, IndexInfo] | None:
    """The two files next to each other between which keys belong, where a third one is missing."""
    for before, behind in pairwise(infos):
        low, high = before.header.end_physical_offset, behind.header.begin_physical_offset
        # The keys of one message may be in two files. Those at the very end of a file may be its own.
        if before.end > FIRST_ORDINAL and low <= first < high and low < end - 1 <= high:
            return before, behind
    return None


def blocks(info: IndexInfo, first: int) -> Blocks:
    """Where entries from a block on point to."""
    start = FIRST_ORDINAL + first * BLOCK
    count = min(info.end - start, BLOCK * BLOCKS_AT_ONCE)
    return Blocks.of(info.read(start, count)["position"].astype(np.int64))


def block_starts(info: IndexInfo) -> range:
    """The blocks that calls of :func:`blocks` begin with to cover a file."""
    count = -(-(info.end - FIRST_ORDINAL) // BLOCK)
    return range(0, count, BLOCKS_AT_ONCE)


def check_chains(
    info: IndexInfo, *, counts_keys: bool, running: bool = False, log_start: int = 0
) -> list[Difference]:
    """Follow what putting the file's hashes does to its slots and chains, and compare.

    ``running``: a broker may have put more keys since the file's header was read. ``log_start``: messages
    before this physical offset have expired.
    """
    problems = list(_header_problems(info, log_start))
    slots = np.zeros(info.slots, np.int32)
    at_once = BLOCK * BLOCKS_AT_ONCE
    for ordinal in range(FIRST_ORDINAL, info.end, at_once):
        words = info.read(ordinal, min(at_once, info.end - ordinal))
        key_hash, previous = words["hash"].astype(np.int32), words["previous"].astype(np.int32)
        bad = np.empty((MOST_PROBLEMS + 1, 4), np.int64)
        counts = np.zeros(3, np.int64)
        used = int(_follow(key_hash, previous, ordinal, slots, bad, counts))
        problems += _chain_problems(info, bad[:used].tolist(), counts.tolist())
    problems += _slot_problems(info, slots, running=running)
    used, keys = int(np.count_nonzero(slots)), max(info.end - FIRST_ORDINAL, 0)
    expected, stored = keys if counts_keys else used, info.header.slot_count
    if expected != stored:
        # A broker goes on in the file that it finds, by its own way of counting; none reads the field. Where
        # more is wrong, nothing says that an upgrade did it.
        kind = COUNTED_OTHERWISE if used <= stored <= keys and not problems else "index-header"
        problems.append(info.problem(kind, 32, f"hashSlotCount {expected}", str(stored)))
    return problems[: 8 * MOST_PROBLEMS]


def _header_problems(info: IndexInfo, log_start: int) -> Iterator[Difference]:
    header = info.header
    first = info.read(FIRST_ORDINAL, min(info.end - FIRST_ORDINAL, 1))["position"].astype(np.int64)
    if not 0 <= header.index_count <= info.entries:
        expected = f"indexCount from 0 to {info.entries}"
        yield info.problem("index-header", 36, expected, str(header.index_count))
    if header.index_count > FIRST_ORDINAL and header.begin_physical_offset < info.previous_position:
        # A broker indexes no message before the last file's endPhyOffset, and reads the files by their names.
        expected = f"beginPhyOffset of at least {info.previous_position}, where the file before it ends"
        yield info.problem("index-header", 16, expected, str(header.begin_physical_offset))
    elif len(first) and header.begin_physical_offset != first[0] < log_start:
        # No message is left that says so; with one, its keys are compared.
        expected = f"beginPhyOffset {first[0]}"
        yield info.problem("index-header", 16, expected, str(header.begin_physical_offset))
    if info.length != info.full_length:
        expected, found = f"{info.full_length} bytes", f"{info.length} bytes"
        yield info.problem("index-file-length", 0, expected, found)


def _slot_problems(info: IndexInfo, slots: NDArray[np.int32], *, running: bool) -> list[Difference]:
    found = info.read_slots(0, info.slots)
    stored = np.pad(found, (0, info.slots - len(found)))
    wrong = np.flatnonzero(stored != slots)
    if running:
        newer = (_known_before(info, int(stored[slot])) == slots[slot] for slot in wrong)
        wrong = wrong[~np.fromiter(newer, np.bool_, len(wrong))]
    return [
        info.problem(
            "index-slot",
            info.slot_offset(int(piece[0])),
            f"entry {int(slots[piece[0]])} in slot {piece[0]}",
            f"entry {int(stored[piece[0]])}",
            first=int(piece[0]),
            end=int(piece[-1]) + 1,
            count=len(piece),
        )
        for piece in pieces(wrong, wrong, MOST_PROBLEMS)
    ]


def _known_before(info: IndexInfo, ordinal: int) -> int:
    """The first entry on the way down a chain that the file's header knew of; -1 where none is met."""
    while ordinal >= info.end:
        entries = info.read(ordinal, int(ordinal < info.entries))
        previous = int(entries[0]["previous"]) if len(entries) else -1
        ordinal = previous if previous < ordinal else -1
    return ordinal


@njit(cache=CACHED, nogil=True, _nrt=False)
def _follow(key_hash, previous, first_ordinal, slots, bad, counts):  # type: ignore[no-untyped-def]
    """Put hashes; rows of ``bad`` get (kind, ordinal, expected, found); ``counts`` are by kind."""
    used = 0
    for row in range(len(key_hash)):
        ordinal = first_ordinal + row
        value = key_hash[row]
        kind = -1
        expected = np.int64(0)
        if value < 0:
            # Not what a broker writes; a query never asks for it, and which slot it lies in can't be told.
            kind = _HASH
            found = np.int64(value)
        else:
            slot = value % len(slots)
            expected = np.int64(slots[slot])
            found = np.int64(previous[row])
            slots[slot] = np.int32(ordinal)
            if found != expected:
                kind = _CYCLE if found >= ordinal else _BROKEN
        if kind >= 0:
            counts[kind] += 1
            if used < len(bad):
                bad[used, 0], bad[used, 1], bad[used, 2], bad[used, 3] = kind, ordinal, expected, found
                used += 1
    return used


_CHAIN_KINDS = {_BROKEN: "index-chain", _CYCLE: "index-cycle", _HASH: "index-hash"}


def _chain_problems(info: IndexInfo, rows: list[list[int]], counts: list[int]) -> list[Difference]:
    """One problem each, and where there are more than are listed, the last of a kind stands for the rest."""
    problems: list[Difference] = []
    told = [0, 0, 0]
    last: dict[int, int] = {}
    for kind, ordinal, expected, found in rows:
        wanted = "a hash that isn't negative" if kind == _HASH else f"prevIndex {expected}"
        told[kind] += 1
        last[kind] = len(problems)
        place = info.entry_offset(ordinal) + (0 if kind == _HASH else indexfile.PREVIOUS)
        problems.append(info.problem(_CHAIN_KINDS[kind], place, wanted, str(found), ordinal, ordinal + 1))
    for kind, at in last.items():
        more = counts[kind] - told[kind]
        if more:
            one = problems[at]
            problems[at] = replace(one, end=info.end, count=one.count + more)
    return problems
