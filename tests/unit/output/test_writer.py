"""The batch writer: which part of a batch it takes, what it leaves, what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reput.errors import OutputError
from reput.format import commitlog, names
from reput.format.checkpoint import StoreCheckpoint
from reput.format.commitlog import Record
from reput.job.options import GIB, RebuildOptions
from reput.job.rebuilding import bytes_per_batch
from reput.output.batch import Sent
from reput.output.journal import Journal
from reput.output.writer import BatchWriter, Progress
from reput.replay.part_result import PartResult
from reput.scan.rules import Part
from tests.laid_out import Spec, lay_out, store_of
from tests.local import (
    NoLedger,
    Runner,
    Store,
    opened_output,
    outputs,
    parts_of,
    queues,
    rebuild_locally,
    target_of,
    tree,
    units,
    write_store,
)
from tests.memory import scratch


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: thousands of flushes are not what is tested here."""
    with scratch() as place:
        yield place


LOG = lay_out([Spec(keys=2, topic=number % 2, later=1000) for number in range(12)], segment_size=700)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_of(tmp_path / "store", LOG, "5.5.0")


@contextmanager
def writing(
    store: Store, out: Path, runner: Any = None, listener: Callable[[Progress], None] = lambda _progress: None
) -> Iterator[tuple[BatchWriter, Journal]]:
    target = target_of(store, out)
    with opened_output(target, store.log) as journal:
        writer = BatchWriter(target, journal, store.log, runner or Runner(), listener)
        writer._ledger = NoLedger()  # type: ignore[assignment]
        yield writer, journal


@pytest.fixture
def expected(store: Store, tmp_path: Path) -> dict[str, bytes]:
    rebuild_locally(store, tmp_path / "expected")
    return outputs(tmp_path / "expected")


def test_a_batch_is_processed_from_the_cursor_on(
    store: Store, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    """Batch numbers and what Spark believes play no part: repeats, overlaps and gaps come out even."""
    end = store.log.end
    with writing(store, tmp_path / "out") as (writer, journal):
        for start, stop in [(0, 300), (0, 300), (100, 500), (900, 1200), (0, 200), (0, end), (700, end)]:
            writer.write(parts_of(store.log, start, stop, 150, start), 0)
        batches = journal.batches
    assert outputs(tmp_path / "out") == expected
    assert [batch.start for batch in batches] == [0, *(batch.end for batch in batches[:-1])]
    assert sum(batch.messages for batch in batches) == 12
    assert len(batches) == 4


def test_parts_may_come_in_any_order(store: Store, tmp_path: Path, expected: dict[str, bytes]) -> None:
    with writing(store, tmp_path / "out") as (writer, _):
        writer.write(parts_of(store.log, 0, store.log.end, 100, 0)[::-1], 0)
    assert outputs(tmp_path / "out") == expected


def test_nothing_new_changes_nothing(store: Store, tmp_path: Path) -> None:
    rebuild_locally(store, tmp_path / "out")
    before = tree(tmp_path / "out")
    with writing(store, tmp_path / "out") as (writer, journal):
        writer.write(parts_of(store.log, 0, store.log.end, 1000, 0), 9)
        writer.write([], 10)
        writer.finish()
        assert journal.state.batches == 1
    assert tree(tmp_path / "out") == before


def test_progress_is_told_part_by_part(store: Store, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with writing(
        store,
        tmp_path / "out",
        listener=lambda progress: seen.append((progress.bytes_done, progress.messages)),
    ) as (writer, journal):
        writer.write(parts_of(store.log, 0, store.log.end, 200, 0), 0)
        assert len(seen) > 4
        assert seen == sorted(seen)
        assert seen[-1][1] == journal.state.messages == 12
        assert set(writer.stages.seconds) >= {"scan", "index", "flush", "journal", "checkpoint"}


class Broken(Runner):
    """A task fails: by an error that it returns, or one that it raises."""

    def __init__(self, after: int, error: Exception, *, returned: bool) -> None:
        super().__init__()
        self.left, self.error, self.returned = after, error, returned

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        results = super().map(function, items)
        self.left -= 1
        if self.left >= 0:
            return results
        if self.returned:
            return [*results[:-1], self.error]
        raise self.error


@pytest.mark.parametrize("returned", [True, False])
@pytest.mark.parametrize("after", [0, 3, 8])
def test_a_task_that_fails_commits_nothing(
    store: Store, tmp_path: Path, expected: dict[str, bytes], after: int, returned: bool
) -> None:
    error = OutputError("the disk is full", path="/disk") if returned else RuntimeError("executor lost")
    out = tmp_path / "out"
    with writing(store, out, Broken(after, error, returned=returned)) as (writer, journal):
        with pytest.raises(type(error)) as caught:
            writer.write(parts_of(store.log, 0, store.log.end, 150, 0), 0)
        assert caught.value is error
        assert journal.state.batches == 0
    rebuild_locally(store, out)
    assert outputs(out) == expected


def test_committed_units_are_not_written_over(tmp_path: Path) -> None:
    """A later batch repeats a queueOffset below the queue's first, and one in its middle."""
    records = [
        Record(b"T", b"body", queue_offset=offset, store_timestamp=1000) for offset in (20, 21, 22, 3, 21, 23)
    ]
    length = len(commitlog.encode(records[0]))
    data = b"".join(
        commitlog.encode(_placed(record, number * length)) for number, record in enumerate(records)
    )
    store = write_store(tmp_path / "store", [(0, data.ljust(1000, b"\0"))])
    for ends in ((), (3 * length,), (3 * length, 4 * length), (3 * length, 5 * length)):
        out = tmp_path / str(len(ends)) / str(sum(ends))
        rebuild_locally(store, out, ends=ends)
        assert set(queues(out)) == {"T/0/00000000000000000400"}
        assert [position for position, _, _ in units(out, "T")] == [
            0,
            length,
            2 * length,
            5 * length,
        ]


def _placed(record: Record, position: int) -> Record:
    return replace(record, physical_offset=position)


@pytest.mark.parametrize(("version", "offset"), [("4.9.7", False), ("5.3.3", False), ("5.5.0", True)])
@pytest.mark.parametrize("abort_present", [True, False])
def test_the_store_checkpoint(tmp_path: Path, version: str, offset: bool, abort_present: bool) -> None:
    store = store_of(tmp_path / "store", LOG, version)
    state = rebuild_locally(store, tmp_path / "out", abort_present=abort_present)
    checkpoint = StoreCheckpoint.decode((tmp_path / "out" / names.CHECKPOINT).read_bytes())
    last = 1_700_000_000_000 + 12_000
    full = [header for _, header in state.index]
    assert len(full) > 1
    assert checkpoint.physic_msg_timestamp == checkpoint.logics_msg_timestamp == last
    assert checkpoint.index_msg_timestamp == full[-1 if abort_present else -2].end_timestamp
    assert bool(checkpoint.logics_physical_offset) == offset
    assert checkpoint.master_flushed_offset == checkpoint.confirm_physical_offset == 0


def test_an_output_of_some_queues_or_without_index_has_no_checkpoint(store: Store, tmp_path: Path) -> None:
    rebuild_locally(store, tmp_path / "out", index=False)
    assert not (tmp_path / "out" / names.CHECKPOINT).exists()
    assert not (tmp_path / "out" / names.INDEX).exists()


def test_a_guess_that_was_wrong_leaves_no_queue_behind(tmp_path: Path) -> None:
    laid = lay_out([Spec(), Spec(fake=2, keys=3), Spec()], segment_size=1100)
    store = store_of(tmp_path / "store", laid, "5.5.0")
    scanned: list[PartResult] = []

    class Watching(Runner):
        def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
            results = super().map(function, items)
            taken = [one.taken() for one in results if isinstance(one, Sent) and not one.path]
            scanned.extend(result for result in taken if isinstance(result, PartResult))
            return results

    with writing(store, tmp_path / "out", Watching()) as (writer, _):
        writer.write(parts_of(store.log, 0, store.log.end, 60, 0), 0)
    assert any("fake" in result.queues.topics for result in scanned)
    assert not (tmp_path / "out" / names.CONSUME_QUEUE / "fake").exists()


class CountingRunner(Runner):
    """Remembers the parts that it scanned."""

    def __init__(self) -> None:
        super().__init__()
        self.scanned: list[Part] = []

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        self.scanned += [item for item in items if isinstance(item, Part)]
        return super().map(function, items)


def test_a_batch_begun_ahead_is_not_scanned_again(
    store: Store, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    parts = parts_of(store.log, 0, store.log.end, 700, 0)
    runner = CountingRunner()
    with writing(store, tmp_path / "out", runner) as (writer, journal):
        writer.begin_ahead(parts)
        assert journal.batches == [], "nothing is committed ahead"
        writer.write(parts, 0)
        assert len(journal.batches) == 1
        assert writer.progress.messages == 12
    assert outputs(tmp_path / "out") == expected
    assert len(runner.scanned) == len(parts)


@pytest.mark.parametrize("stop", [300, 900])
def test_what_was_begun_ahead_in_vain_is_undone(
    stop: int, store: Store, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    end = store.log.end
    with writing(store, tmp_path / "out") as (writer, journal):
        writer.begin_ahead(parts_of(store.log, 0, end, 150, 0))
        writer.write(parts_of(store.log, 0, stop, 150, 0), 0)
        committed = journal.state.last_position
        index = list((tmp_path / "out" / names.INDEX).iterdir())
        assert {path.name for path in index} == {name for name, _ in journal.state.index}
        assert committed < stop
        writer.write(parts_of(store.log, stop, end, 150, None), 1)
        assert sum(batch.messages for batch in journal.batches) == 12
        assert writer.progress.messages == 12
    assert outputs(tmp_path / "out") == expected


def test_after_a_run_ended_nothing_begun_ahead_writes_any_more(store: Store, tmp_path: Path) -> None:
    with writing(store, tmp_path / "out", runner := CountingRunner()) as (writer, journal):
        writer.begin_ahead(parts_of(store.log, 0, store.log.end, 150, 0))
        writer.stop_ahead()
        done = len(runner.scanned)
        after = tree(tmp_path / "out")
        assert journal.batches == []
        assert (tmp_path / "out" / names.REPUT / names.SCRATCH).exists(), "the next run has to roll back"
        writer.stop_ahead()
        assert (len(runner.scanned), tree(tmp_path / "out")) == (done, after)


def tail_of(store: Store, out: Path, journal: Journal) -> BatchWriter:
    """A writer that follows, whose batches are all large."""
    log = store.log
    writer = BatchWriter(target_of(store, out), journal, log, Runner(), look=lambda: log)
    writer._ledger = NoLedger()  # type: ignore[assignment]
    return writer


@pytest.mark.parametrize(("beyond", "is_sure"), [(-700, True), (0, True), (1, False)])
def test_a_tail_begins_ahead_where_the_log_does_not_change(
    beyond: int, is_sure: bool, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput.output.writer._INLINE_BYTES", 0)
    with opened_output(target_of(store, tmp_path / "out"), store.log) as journal:
        writer = tail_of(store, tmp_path / "out", journal)
        writer.begin_backlog(store.log.segments[-1].base + beyond, 150)
        assert (writer._ahead is not None) == is_sure
        writer.stop_ahead()


def test_a_tail_that_ends_before_its_first_batch_leaves_nothing_begun(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput.output.writer._INLINE_BYTES", 0)
    out = tmp_path / "out"
    with opened_output(target_of(store, out), store.log) as journal:
        writer = tail_of(store, out, journal)
        writer.begin_backlog(700, 150)
        assert writer._ahead is not None
        writer._ahead.finish()
        assert list((out / names.INDEX).iterdir())
        writer.close()
        assert journal.batches == []
        assert not (out / names.REPUT / names.SCRATCH).exists()
        assert list((out / names.INDEX).iterdir()) == []
        assert all(not any(path.read_bytes()) for path in (out / names.CONSUME_QUEUE).rglob("0*"))


def test_what_fails_ahead_fails_the_batch(store: Store, tmp_path: Path) -> None:
    class Broken(Runner):
        def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
            return [OutputError("the output can't be written", path="here") for _ in items]

    parts = parts_of(store.log, 0, store.log.end, 150, 0)
    with writing(store, tmp_path / "out", Broken()) as (writer, journal):
        writer.begin_ahead(parts)
        with pytest.raises(OutputError, match="here"):
            writer.write(parts, 0)
        assert journal.batches == []


@pytest.mark.parametrize(
    ("total", "written", "wanted", "batch"),
    [
        (4300, 4300, 4096, 4300),
        (4400, 4400, 4096, 2200),
        (8192, 8192, 4096, 4096),
        (5120, 4300, 4096, 5120),  # what is allocated and not written costs no batch
        (9216, 8500, 4096, 4250),
        (1024, 340, 64, 68),
        (1, 1, 4096, 1),
        (0, 0, 4096, 1),
        (7, 7, 1, 1),
        (10, 10, 4, 4),
        (100, 0, 4, 100),
    ],
)
def test_batches_are_equal_and_few(total: int, written: int, wanted: int, batch: int) -> None:
    assert bytes_per_batch(total, written, wanted) == batch


@pytest.mark.parametrize(
    ("slots", "log_bytes", "part_bytes"),
    [
        (1, 100, 128 << 20),
        (2, 2 * GIB - 1, 128 << 20),
        (2, 2 * GIB, 256 << 20),
        (4, 100 * GIB, 256 << 20),
        (5, 100 * GIB, 128 << 20),
        (500, 100 * GIB, 128 << 20),
    ],
)
def test_parts_are_large_while_each_slot_has_four_of_a_batch(
    slots: int, log_bytes: int, part_bytes: int
) -> None:
    options = RebuildOptions(Path("store"))
    assert options.for_slots(slots, log_bytes).part_bytes == part_bytes
    assert replace(options, part_bytes=97).for_slots(slots, log_bytes).part_bytes == 97
