"""The index of a tail: small batches put by one process, and by tasks in between, come to the same bytes."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.errors import OutputError
from reput.format import names
from reput.format.indexfile import HEADER_LENGTH, IndexHeader
from reput.output import index_files, writer
from reput.output.index_files import BatchIndex, IndexBuilder, LiveIndex
from reput.output.log_changes import roll_back
from reput.replay.spills import Spill
from reput.replay.state import State
from reput.replay.target import Target
from reput.store import files
from reput.store.system import System
from tests import slow_rebuild
from tests.crash import Dying, LosingPower, died
from tests.laid_out import Spec, lay_out, store_of
from tests.levels import examples
from tests.local import (
    NoLedger,
    Runner,
    Store,
    index_of,
    open_store,
    opened_output,
    outputs,
    parts_of,
    rebuild_locally,
    target_of,
)
from tests.memory import scratch
from tests.property.test_build import key_rows

#: A message: how many ms after the one before it, and its key hashes.
Message = tuple[int, list[int]]
LIVE, TASKS = "live", "tasks"


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as path:
        yield path


@pytest.fixture(autouse=True)
def real_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "system", System())


class Output:
    """An output of which only the index is written, and what its journal would say."""

    def __init__(self, root: Path, messages: list[Message], **settings: Any) -> None:
        (root / "store").mkdir(parents=True)
        self.store: Store = open_store(root / "store", **settings)
        self.root = root / "out"
        self.target: Target = target_of(self.store, self.root)
        self.known: list[tuple[str, IndexHeader]] = []
        self.done = 0
        self.live = LiveIndex(self.target)
        self._rows: list[tuple[int, int, list[int]]] = []
        time = 1_700_000_000_000
        for number, (later, keys) in enumerate(messages):
            time += later
            self._rows.append((number * 100, time, keys))

    def start(self) -> None:
        """Take back what was not committed, as the start of a tail does, and say that one is under way."""
        files.make_dirs(self.root)
        roll_back(self.target, State(cursor=0, index=list(self.known)))
        files.make_dirs(self.target.scratch)
        self.live = LiveIndex(self.target)

    def put(self, end: int, how: str, *, commit: bool = True) -> None:
        """One batch, of the messages up to the ``end``-th."""
        rows = self._rows[self.done : end]
        if not rows:
            return
        index: BatchIndex
        if how == LIVE:
            index = self.live.batch(self.known)
        else:
            self.live.release()
            target = replace(self.target, flush_in_tasks=True)
            index = IndexBuilder(
                target,
                self.known,
                lambda tasks, kept: [index_files.build(target, one, kept) for one in tasks],
            )
        middle = len(rows) // 2
        for part in (rows[:middle], rows[middle:]):
            if part:
                index.offer(self._spill(part, how), part[0][1])
        index.finish(rows[-1][0])
        if commit:
            self.known = sorted({**dict(self.known), **index.changed}.items())
            self.done = end
            if any(keys for _, _, keys in rows):
                self._check_for_readers()

    def stop(self) -> None:
        self.live.release()
        self.target.scratch.rmdir()

    def _check_for_readers(self) -> None:
        """The last file's header is the committed one, and no slot leads past it."""
        name, header = self.known[-1]
        data = (self.root / names.INDEX / name).read_bytes()
        if header.index_count == 1:
            return
        counts_keys = self.store.settings.dialect.counts_keys
        assert data.startswith(header.encode(counts_keys=counts_keys))
        slots = np.frombuffer(data, ">i4", self.store.settings.max_hash_slot_num, HEADER_LENGTH)
        assert slots.max() < header.index_count

    def _spill(self, rows: list[tuple[int, int, list[int]]], how: str) -> Spill | None:
        with_keys = key_rows([row for row in rows if row[2]])
        if not len(with_keys.position):
            return None
        if how == LIVE:
            return Spill("", len(with_keys.key_hash), (with_keys,))
        path = self.root.with_name(f"spill-{rows[0][0]}")
        with path.open("wb") as file:
            file.write(np.array([len(with_keys.position), len(with_keys.key_hash), -1], np.int64).data)
            for column in with_keys:
                file.write(np.ascontiguousarray(column).data)
        return Spill(str(path), len(with_keys.key_hash))

    def expected(self) -> list[bytes]:
        """The files by putting one key after the other."""
        sizes = slow_rebuild.Settings(
            version=self.store.settings.dialect.name,
            slots=self.store.settings.max_hash_slot_num,
            entries=self.store.settings.max_index_num,
        )
        series = slow_rebuild.Index(sizes)
        for position, time, keys in self._rows[: self.done]:
            series._last()
            for key in keys:
                series._last().put_hash(key, slow_rebuild.Message(position, 100, "T", 0, 0, 0, time, {}))
        return [file.content() for file in series.all_files]

    def check(self) -> None:
        assert index_of(self.root) == self.expected()
        assert [f"{names.INDEX}/{name}" for name, _ in self.known] == sorted(outputs(self.root))


_messages = st.lists(
    st.tuples(st.integers(0, 3000), st.lists(st.integers(0, 40) | st.integers(0, 2**31 - 1), max_size=5)),
    min_size=1,
    max_size=25,
)
_steps = st.lists(st.tuples(st.integers(1, 8), st.sampled_from([LIVE, LIVE, TASKS, "failed", "restart"])))


@settings(max_examples=examples(80), deadline=None)
@given(_messages, _steps, st.integers(2, 12), st.sampled_from(["4.7.0", "4.9.7", "5.5.0"]))
def test_any_mixture_of_batches_comes_to_the_same_bytes(
    messages: list[Message], steps: list[tuple[int, str]], entries: int, version: str
) -> None:
    """Live batches, task-built ones, ones that are given up and done again, crashes between them."""
    with scratch() as place:
        output = Output(place, messages, max_index_num=entries, version=version)
        output.start()
        for count, how in [*steps, (len(messages), LIVE)]:
            end = min(output.done + count, len(messages))
            if how == "failed":
                output.put(end, LIVE, commit=False)
            elif how == "restart":
                output.put(end, LIVE)
                output.live.abandon()
                output.start()
            else:
                output.put(end, how)
        output.stop()
        output.check()


MESSAGES: list[Message] = [
    (number * 37 % 2000, [number * 7919 % 50 + key for key in range(number % 4)]) for number in range(33)
]
#: Messages 16 and 32 have no key, and come when a file is full.
ENDS = (3, 4, 11, 12, 17, 30, 31, 33)


def _run(output: Output, random: Random | None = None) -> None:
    output.start()
    for end in ENDS:
        how = random.choice([LIVE, LIVE, TASKS]) if random else LIVE
        output.put(end, how)
    output.stop()


def _calls(place: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    counting = Dying()
    monkeypatch.setattr(files, "system", counting)
    _run(Output(place / "count", MESSAGES))
    return counting.calls


def test_killed_at_every_call(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of entries, header and slots, and where one batch goes on to several new files."""
    for last in range(1, _calls(place, monkeypatch) + 1):
        output = Output(place / str(last), MESSAGES)
        monkeypatch.setattr(files, "system", Dying(last))
        assert died(lambda: _run(output))  # noqa: B023
        monkeypatch.setattr(files, "system", System())
        output.live.abandon()
        _run(output, Random(last))
        output.check()


@pytest.mark.slow
def test_power_lost_at_any_call(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots and header of the last file are worth nothing then; all else has to be there."""
    for last in range(1, _calls(place, monkeypatch) + 1, 2):
        random = Random(last)
        # Slots of more than a page: those beside the entries are flushed with them.
        output = Output(place / str(last), MESSAGES, max_hash_slot_num=3000)
        output.root.mkdir()
        for _ in range(random.choice([1, 1, 2])):
            losing = LosingPower(output.root, last if output.done == 0 else random.randint(1, last))
            monkeypatch.setattr(files, "system", losing)
            died(lambda: _run(output, random if random.random() < 0.5 else None))  # noqa: B023
            monkeypatch.setattr(files, "system", System())
            output.live.abandon()
            losing.lose(random)
        losing = LosingPower(output.root)
        monkeypatch.setattr(files, "system", losing)
        _run(output, random)
        losing.lose(random)  # after a clean end nothing is lost any more
        output.check()


def test_a_batch_writes_no_more_than_its_keys_need(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries and header by pwrite, the slots that change by the map, one flush of the entries' pages."""
    calls: list[tuple[str, int]] = []

    class Watching(System):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            calls.append(("pwrite", len(data)))
            return super().pwrite(fd, data, offset)

        def store_in_map(self, mapped: Any, at: Any, values: Any) -> None:
            calls.append(("slots", len(at)))
            super().store_in_map(mapped, at, values)

        def sync(self, fd: int, data_only: bool) -> None:
            calls.append(("sync", 0))

        def sync_map(self, fd: int, mapping: Any, offset: int, length: int) -> None:
            calls.append(("flush", length // mmap.PAGESIZE))
            super().sync_map(fd, mapping, offset, length)

    messages = [(1, [number]) for number in range(90)]
    output = Output(place, messages, max_index_num=1000, max_hash_slot_num=9000)
    output.start()
    output.put(50, LIVE)
    monkeypatch.setattr(files, "system", Watching())
    output.put(90, LIVE)
    (flushed,) = [pages for name, pages in calls if name == "flush"]
    assert flushed <= 1
    assert [call for call in calls if call[0] != "flush"] == [
        ("pwrite", 20 * 20),
        ("pwrite", 20 * 20),
        ("pwrite", HEADER_LENGTH),
        ("slots", 40),
    ]


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_a_file_that_is_taken_away_is_an_error(place: Path, way: str) -> None:
    output = Output(place, MESSAGES, max_index_num=1000)
    output.start()
    output.put(10, LIVE)
    path = output.root / names.INDEX / output.known[-1][0]
    path.rename(place / "away")
    if way == "replaced":
        path.write_bytes((place / "away").read_bytes())
    with pytest.raises(OutputError, match="the index file that is being written"):
        output.put(20, LIVE)
    with pytest.raises(OutputError, match="the index file that is being written"):
        output.stop()
    output.live.abandon()
    if way == "removed":
        with pytest.raises(OutputError, match="names is missing"):
            output.start()
    (place / "away").rename(path)
    output.start()
    output.put(33, LIVE)
    output.stop()
    output.check()


def test_a_failed_flush_is_not_tried_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(place, MESSAGES, max_index_num=1000)
    output.start()
    output.put(10, LIVE)

    class Broken(System):
        def sync_map(self, fd: int, mapping: Any, offset: int, length: int) -> None:
            raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(files, "system", Broken())
    with pytest.raises(OutputError, match=r"can't flush \d+ bytes"):
        output.put(20, LIVE)
    monkeypatch.setattr(files, "system", System())
    with pytest.raises(OutputError, match="can't flush"):
        output.put(20, LIVE)
    with pytest.raises(OutputError, match="can't flush"):
        output.stop()


def test_without_space_for_the_slots_there_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a signal later, when they are written through the map."""
    output = Output(place, MESSAGES)
    output.start()

    class Full(System):
        def allocate(self, fd: int, offset: int, length: int) -> None:
            raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(files, "system", Full())
    with pytest.raises(OutputError, match="can't reserve"):
        output.put(20, LIVE)
    monkeypatch.setattr(files, "system", System())
    output.start()
    output.put(33, LIVE)
    output.stop()
    output.check()


@pytest.mark.parametrize("bound", [0, 400, 1 << 20])
def test_a_tail_writes_what_a_rebuild_writes(
    place: Path, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    """All batches by tasks, all here, and one or the other by their size."""
    store = store_of(place / "store", lay_out([Spec(keys=3) for _ in range(30)], segment_size=900), "5.5.0")
    rebuild_locally(store, place / "expected")
    monkeypatch.setattr(writer, "_INLINE_BYTES", bound)
    target = target_of(store, place / "out")
    files.make_dirs(target.root)
    log = store.log
    with opened_output(target, log) as journal:
        tail = writer.BatchWriter(target, journal, log, Runner(), look=lambda: log)
        tail._ledger = NoLedger()  # type: ignore[assignment]
        start = journal.state.cursor
        for end in (150, 300, 1000, 1100, 2000, log.end):
            tail.write(parts_of(log, start, end, 200, journal.state.cursor), 0)
            start = end
        tail.finish()
        tail.close()
        assert len(journal.state.index) > 3
    assert outputs(target.root) == outputs(place / "expected")
    assert not target.scratch.exists()
