"""What has to hold of a tail's output: at any moment of what is committed, and of all of it at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from reput.format import names
from reput.format.checkpoint import StoreCheckpoint
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import ENTRY_LENGTH, FIRST_ORDINAL, HEADER_LENGTH, SLOT_LENGTH
from reput.output.journal import read_state
from reput.replay.state import State
from reput.store.compare import compare
from tests.torture.generator import SIZES

_SLOTS = int(str(SIZES["maxHashSlotNum"]))
_FIRST_ENTRY = HEADER_LENGTH + _SLOTS * SLOT_LENGTH
_QUEUE_FILE = int(str(SIZES["mappedFileSizeConsumeQueue"]))
#: How long the real store may take to derive what the tail has derived already, s.
_STORE_LAG = 60.0


class WrongError(AssertionError):
    """The output isn't what the real store has."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was compared, and how much of it was equal.

    Attributes:
        queue_bytes, index_bytes: compared.
        cursor: up to which physical offset.
        batches: committed so far.
    """

    queue_bytes: int
    index_bytes: int
    cursor: int
    batches: int


def state_of(out: Path) -> State | None:
    """What the journal says; None before there is one."""
    path = out / names.REPUT / names.JOURNAL
    if not path.exists():
        return None
    return read_state(path)[1]


def check_committed(store: Path, out: Path) -> Checked:
    """Compare everything that the journal names with what the store, which goes on, has in these places.

    Raises:
        WrongError: a byte differs.
    """
    state = state_of(out)
    if state is None:
        return Checked(0, 0, 0, 0)
    queue_bytes = index_bytes = 0
    for (topic, queue_id), queue in state.queues.items():
        directory = names.queue_directory(Path(), topic, queue_id)
        start, stop = queue.first * UNIT_LENGTH, queue.next * UNIT_LENGTH
        for base in range(start - start % _QUEUE_FILE, stop, _QUEUE_FILE):
            name = directory / names.offset_name(base)
            _check_range(store / name, out / name, max(start - base, 0), min(stop - base, _QUEUE_FILE))
        queue_bytes += stop - start
    theirs, ours = _index_files(store), [out / names.INDEX / name for name, _ in state.index]
    for number, (_, header) in enumerate(state.index):
        start = _FIRST_ENTRY + FIRST_ORDINAL * ENTRY_LENGTH
        stop = _FIRST_ENTRY + header.index_count * ENTRY_LENGTH
        if number + 1 < len(state.index):
            start, stop = 0, ours[number].stat().st_size
        if start < stop:
            _wait_for_file(theirs, number, store)
            _check_range(theirs[number], ours[number], start, stop)
        index_bytes += stop - start
    return Checked(queue_bytes, index_bytes, state.cursor, state.batches)


def check_all(store: Path, out: Path, *, clean: bool = True) -> Checked:
    """Compare all of a stopped tail's output with a store that was shut down; the log itself counts, too.

    Args:
        clean: the store's checkpoint is that of a clean stop of a store that was never killed.

    Raises:
        WrongError: a byte differs, the checkpoint is another one, or the ledger isn't what the journal says.
    """
    found = compare(store, out)
    if found.differences or found.empty_directories:
        lines = "\n".join([*found.differences, *found.empty_directories])
        raise WrongError(f"{found.differing_bytes} bytes differ:\n{lines}")
    state = state_of(out)
    if state is None:
        raise WrongError("there is no journal")
    if not found.queue_bytes or not found.index_bytes:
        raise WrongError("there was nothing to compare")
    if (out / names.REPUT / names.SCRATCH).exists():
        raise WrongError("scratch is still there after a clean stop")
    check_ledger(out, state)
    if clean:
        _check_checkpoint(store, out, state)
    return Checked(found.queue_bytes, found.index_bytes, state.cursor, state.batches)


def check_ledger(out: Path, state: State) -> None:
    """Each batch is in the ledger once; older ones may be told as one.

    Raises:
        WrongError: it isn't.
    """
    table = DeltaTable(str(out / names.LEDGER))
    rows = table.to_pyarrow_table(filters=[("kind", "=", "batch")]).to_pylist()
    batches = sorted((row["batch_start"], row["batch_end"], row["messages"]) for row in rows)
    ends = [end for _, end, _ in batches]
    starts = [start for start, _, _ in batches]
    problems = [
        what
        for what, holds in (
            ("a batch is there twice, or missing", starts[1:] == ends[:-1]),
            (f"{len(batches)} batches, not {state.batches}", len(batches) <= state.batches),
            ("its transaction isn't the last batch's", table.transaction_version("reput") == state.batches),
            (f"it ends at {ends[-1:]}, not {state.cursor}", ends[-1:] == [state.cursor]),
            ("its messages aren't the journal's", sum(row[2] for row in batches) == state.messages),
        )
        if not holds
    ]
    if problems:
        raise WrongError(f"the ledger: {', '.join(problems)}")


def _check_checkpoint(store: Path, out: Path, state: State) -> None:
    """The fields as a broker leaves them.

    The broker's depend on which of its flushes ran last: only indexMsgTimestamp, which decides what its
    recovery deletes, is always that of the last full index file. The others may be behind, never ahead.
    """
    ours = StoreCheckpoint.decode((out / names.CHECKPOINT).read_bytes())
    theirs = StoreCheckpoint.decode((store / names.CHECKPOINT).read_bytes())
    full = [header for _, header in state.index[:-1]]
    wanted = StoreCheckpoint(
        physic_msg_timestamp=state.last_timestamp,
        logics_msg_timestamp=state.last_unit_timestamp,
        index_msg_timestamp=full[-1].end_timestamp if full else 0,
        logics_physical_offset=ours.logics_physical_offset,
    )
    if ours != wanted or theirs.index_msg_timestamp != ours.index_msg_timestamp:
        raise WrongError(f"the checkpoint: expected {wanted}, found {ours}; the store's own is {theirs}")
    if (
        theirs.physic_msg_timestamp > ours.physic_msg_timestamp
        or theirs.logics_msg_timestamp > ours.logics_msg_timestamp
        or theirs.logics_physical_offset > ours.logics_physical_offset
    ):
        raise WrongError(f"the checkpoint {ours} is behind the store's own {theirs}")


def _index_files(root: Path) -> list[Path]:
    return sorted((root / names.INDEX).iterdir()) if (root / names.INDEX).is_dir() else []


def _wait_for_file(files: list[Path], number: int, store: Path) -> None:
    deadline = time.monotonic() + _STORE_LAG
    while len(files) <= number:
        if time.monotonic() > deadline:
            raise WrongError(f"the store has no index file {number + 1}")
        time.sleep(0.05)
        files[:] = _index_files(store)


def _check_range(theirs: Path, ours: Path, start: int, stop: int) -> None:
    deadline = time.monotonic() + _STORE_LAG
    while (right := _read(theirs, start, stop)) != (left := _read(ours, start, stop)):
        if time.monotonic() > deadline:
            at = next(i for i in range(stop - start) if left[i : i + 1] != right[i : i + 1])
            raise WrongError(
                f"{ours}: byte {start + at} of {start} to {stop}: "
                f"expected {right[at : at + 20].hex(' ')}, found {left[at : at + 20].hex(' ')}"
            )
        time.sleep(0.05)


def _read(path: Path, start: int, stop: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)
    except FileNotFoundError:
        return b""
