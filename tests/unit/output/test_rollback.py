"""A run that ends at any call to the operating system is gone on with, and comes to the same bytes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from reput.errors import JournalError, OutputError, ReputError
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.job.plan import output_root
from reput.output import batch, journal
from reput.output.log_changes import roll_back
from reput.replay.state import State
from reput.store import file_system, files
from reput.store.file_system import FileSystem
from reput.store.system import System
from tests.crash import FEWER, Dying, Failing, KilledError, LosingPower, died
from tests.laid_out import RESTART, Damage, Spec, lay_out, store_of
from tests.levels import sampled
from tests.local import (
    JOURNAL,
    Store,
    directories,
    in_log_order,
    opened_output,
    outputs,
    rebuild_locally,
    target_of,
    tree,
    units,
)
from tests.memory import scratch

ENDS = (300, 700, 1500)
PART_BYTES = 200

#: Several segments, index files and queues; a hole, a repeat, a queue created anew; bodies that fool a guess.
LOG = [
    Spec(keys=2),
    Spec(keys=3, tags=True, lmq=("%LMQ%a", "plain")),
    Spec(queue=1, fake=2, keys=1),
    Spec(topic=1, body=80),
    Spec(keys=1, jump=2),
    Spec(transaction=4, keys=1),
    Spec(topic=4, delay="3"),
    Spec(keys=2, jump=-4),
    Spec(topic=1, keys=4, lmq=("%LMQ%a",)),
    Spec(queue=1, keys=1, fake=1),
    Spec(topic=1, jump=RESTART, keys=3),
    Spec(topic=1, keys=2),
    Spec(keys=2),
    Spec(topic=1, keys=1, lmq=("%LMQ%a", "%LMQ%a")),
]


@pytest.fixture
def place() -> Any:
    with scratch() as path:
        yield path


@pytest.fixture
def store(place: Path) -> Store:
    laid = lay_out(LOG, segment_size=800)
    laid.segments = Damage(0.52, 40, 0).apply(laid.segments)
    return store_of(place / "store", laid, "5.5.0")


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Callable[[System], None]:
    return lambda one: monkeypatch.setattr(files, "system", one)


def known(state: State) -> dict[str, object]:
    """What the journal says in the end, whatever the batches were."""
    queues = {
        queue: (facts.first, facts.next, facts.end, facts.shift, facts.appended)
        for queue, facts in state.queues.items()
    }
    facts = {"queues": queues, "index": state.index, "cursor": state.cursor}
    return {**facts, "messages": state.messages, "bytes": state.bytes, "without": state.without_unit}


@pytest.fixture
def expected(store: Store, place: Path) -> tuple[dict[str, bytes], dict[str, object]]:
    state = rebuild_locally(store, place / "expected", part_bytes=PART_BYTES, ends=ENDS)
    # An uninterrupted run's own way of cutting the log leaves no trace either.
    assert outputs(place / "expected") == _outputs_of_one_batch(store, place)
    assert {"queue-restarted", "queue-offset-jump", "repeated-queue-offset"} <= {
        finding.kind for finding in state.findings
    }
    assert len(state.index) > 2
    return outputs(place / "expected"), known(state)


def _outputs_of_one_batch(store: Store, place: Path) -> dict[str, bytes]:
    rebuild_locally(store, place / "one")
    return outputs(place / "one")


def check(out: Path, state: State, expected: tuple[dict[str, bytes], dict[str, object]]) -> None:
    assert outputs(out) == expected[0]
    assert known(state) == expected[1]
    assert {path.name for path in (out / names.REPUT).iterdir()} <= {"journal", "lock", "tasks.lock"}
    assert not [path for path in directories(out) if "tmp" in path]


def ways(number: int) -> dict[str, Any]:
    """How the run that goes on cuts the log: not as the one before."""
    return [
        {"part_bytes": PART_BYTES, "ends": ENDS},
        {"part_bytes": 1 << 20},
        {"part_bytes": 97, "ends": (100, 500, 900, 1000, 1700)},
    ][number % 3]


def flush_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many files are, wherever the tests' files are: also put aside by tasks, but a part's first queue."""
    monkeypatch.setattr(batch, "_FEW_QUEUES", 1)
    monkeypatch.setattr(file_system, "MANY", 1)
    monkeypatch.setattr(FileSystem, "why_not", lambda _self: None)


def test_the_operator_learns_why_many_files_are_flushed_one_by_one(
    store: Store,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: tuple[dict[str, bytes], dict[str, object]],
) -> None:
    monkeypatch.setattr(file_system, "MANY", 1)
    monkeypatch.setattr(FileSystem, "why_not", lambda _self: "a broker runs on this file system")
    said: list[str] = []
    out = place / "out"
    check(out, rebuild_locally(store, out, announce=said.append), expected)
    assert len(said) == 1
    assert said[0].endswith(" files are flushed one by one: a broker runs on this file system")


class DiskFails(System):
    """Each flush of the whole file system fails as on a broken disk."""

    def sync_file_system(self, fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("how", [{}, {"flush_in_tasks": True}, {"several_hosts": True}])
def test_nothing_is_committed_when_the_file_system_was_not_flushed(
    store: Store,
    place: Path,
    system: Callable[[System], None],
    expected: tuple[dict[str, bytes], dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, bool],
) -> None:
    """By the driver, by tasks on other hosts, and where each file has one writer."""
    flush_as_a_whole(monkeypatch)
    out = place / "out"
    system(DiskFails())
    with pytest.raises(OutputError, match="can't flush the file system") as refused:
        rebuild_locally(store, out, part_bytes=PART_BYTES, ends=ENDS, **how)
    assert "EIO" in str(refused.value)
    assert journal.read_state(out / names.REPUT / names.JOURNAL)[1].batches == 0
    system(System())
    check(out, rebuild_locally(store, out, part_bytes=PART_BYTES, ends=ENDS, **how), expected)


def calls_of(store: Store, out: Path, system: Callable[[System], None]) -> int:
    counting = Dying()
    system(counting)
    rebuild_locally(store, out, part_bytes=PART_BYTES, ends=ENDS)
    return counting.calls


@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.slow
def test_killed_at_every_call(
    store: Store,
    place: Path,
    system: Callable[[System], None],
    expected: tuple[dict[str, bytes], dict[str, object]],
    first: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if first > 1:
        flush_as_a_whole(monkeypatch)
    calls = calls_of(store, place / "count", system)
    for last in sampled(range(first, calls + 1, 7)):
        out = place / str(last)
        system(Dying(last))
        run = partial(rebuild_locally, store, out, part_bytes=PART_BYTES, ends=ENDS)
        assert died(run) or last > calls - FEWER
        system(System())
        check(out, rebuild_locally(store, out, **ways(last)), expected)


@pytest.mark.slow
def test_killed_again_and_again(
    store: Store,
    place: Path,
    system: Callable[[System], None],
    expected: tuple[dict[str, bytes], dict[str, object]],
) -> None:
    """Also while what was left over is taken back."""
    calls = calls_of(store, place / "count", system)
    for seed in range(25):
        random = Random(seed)
        out = place / str(seed)
        for _ in range(4):
            system(Dying(random.choice([random.randint(1, 30), random.randint(1, calls)])))
            died(lambda: rebuild_locally(store, out, **ways(random.randint(0, 2))))  # noqa: B023
        system(System())
        check(out, rebuild_locally(store, out, **ways(seed)), expected)


@pytest.mark.slow
def test_every_call_refused_once(
    store: Store,
    place: Path,
    system: Callable[[System], None],
    expected: tuple[dict[str, bytes], dict[str, object]],
) -> None:
    """A disk that fails ends the run with an error that says where, never with another one."""
    for last in sampled(range(1, calls_of(store, place / "count", system) + 1, 5)):
        out = place / str(last)
        failing = Failing(last)
        system(failing)
        with suppress(ReputError):
            rebuild_locally(store, out, part_bytes=PART_BYTES, ends=ENDS)
        system(System())
        check(out, rebuild_locally(store, out, **ways(last)), expected)


@pytest.mark.slow
def test_killed_when_a_queue_begins_anew_between_two_batches(
    place: Path, system: Callable[[System], None]
) -> None:
    """The new incarnation's first message was the last of a batch; the next batch drops its old place."""
    laid = lay_out([Spec(), Spec(), Spec(), Spec(jump=RESTART), Spec(), Spec()], segment_size=2000)
    store = store_of(place / "store", laid, "5.5.0")
    ends = (laid.starts[4],)
    counting = Dying()
    system(counting)
    rebuild_locally(store, place / "count", ends=ends)
    wanted = outputs(place / "count")
    assert units(place / "count", "TopicA")[0][0] == laid.starts[3]
    for last in sampled(range(1, counting.calls + 1)):
        out = place / str(last)
        system(Dying(last))
        assert died(partial(rebuild_locally, store, out, ends=ends)) or last > counting.calls - FEWER
        system(System())
        rebuild_locally(store, out, ends=ends)
        assert outputs(out) == wanted


@pytest.mark.parametrize(("seed", "whole"), [(seed, seed % 2 == 1) for seed in range(8)])
@pytest.mark.slow
def test_power_lost_at_any_call(
    store: Store,
    place: Path,
    system: Callable[[System], None],
    expected: tuple[dict[str, bytes], dict[str, object]],
    seed: int,
    whole: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was not flushed is there, or not, or in part: nothing that was committed depends on it.

    Files are flushed one by one, or all of the file system's at once.
    """
    if whole:
        flush_as_a_whole(monkeypatch)
    calls = calls_of(store, place / "count", system)
    random = Random(seed)
    for round_number in range(15):
        out = place / str(round_number)
        out.mkdir()
        for _ in range(random.choice([1, 1, 2])):
            losing = LosingPower(out, random.randint(1, calls))
            system(losing)
            died(lambda: rebuild_locally(store, out, **ways(random.randint(0, 2))))  # noqa: B023
            losing.lose(random)
        system(System())
        check(out, rebuild_locally(store, out, **ways(round_number)), expected)


@pytest.mark.slow
def test_each_batch_is_in_the_ledger_once(
    store: Store,
    place: Path,
    system: Callable[[System], None],
    expected: tuple[dict[str, bytes], dict[str, object]],
) -> None:
    """Killed before, in and after commits to the ledger."""
    counting = Dying()
    system(counting)
    rebuild_locally(store, place / "count", part_bytes=PART_BYTES, ends=ENDS, ledger=True)
    for last in sampled(range(20, counting.calls, 41)):
        out = place / str(last)
        system(Dying(last))
        run = partial(rebuild_locally, store, out, part_bytes=PART_BYTES, ends=ENDS, ledger=True)
        assert died(run) or last > counting.calls - FEWER
        system(Dying())
        state = rebuild_locally(store, out, ledger=True, **ways(last))
        check(out, state, expected)
        rows = DeltaTable(str(out / names.LEDGER)).to_pyarrow_table().to_pylist()
        batches = sorted(
            (row["batch_start"], row["batch_end"], row["messages"]) for row in rows if row["kind"] == "batch"
        )
        starts = [0, *(end for _, end, _ in batches)]
        assert [start for start, _, _ in batches] == starts[:-1]
        assert starts[-1] == state.cursor
        assert sum(messages for _, _, messages in batches) == state.messages
        assert len(batches) == state.batches


def test_nothing_is_taken_back_after_a_clean_end(store: Store, place: Path) -> None:
    rebuild_locally(store, place / "out")
    before = tree(place / "out")
    target = target_of(store, place / "out")
    with opened_output(target, store.log) as journal:
        roll_back(target, journal.state)
    assert tree(place / "out") == before


def test_what_was_never_committed_is_taken_back(store: Store, place: Path) -> None:
    """Units past a queue's end, queues and index files that the journal doesn't name, late index entries."""
    out = place / "out"
    rebuild_locally(store, out)
    before = outputs(out)
    target = target_of(store, out)
    queue = out / names.CONSUME_QUEUE / "%LMQ%a" / "0"
    *_, last = sorted(queue.iterdir())
    first_free = len(units(out, "%LMQ%a")) * UNIT_LENGTH % 100
    assert first_free, "the last file has room"
    with last.open("r+b") as file:
        file.seek(first_free)
        file.write(b"\1" * UNIT_LENGTH)
    (queue / names.offset_name(100_000)).write_bytes(bytes(100))
    stray = out / names.CONSUME_QUEUE / "stray" / "5"
    stray.mkdir(parents=True)
    (stray / names.offset_name(0)).write_bytes(b"\1" * 100)
    (out / names.INDEX / "20990101000000000").write_bytes(b"\1" * 8)
    *_, index = [path for path in sorted((out / names.INDEX).iterdir()) if path.name < "2099"]
    data = bytearray(index.read_bytes())
    data[:8], data[40:44], data[-1] = b"\1" * 8, b"\0\0\0\5", 7
    index.write_bytes(data)
    target.scratch.mkdir()
    with opened_output(target, store.log) as journal:
        roll_back(target, journal.state)
    assert outputs(out) == before
    assert not target.scratch.exists()
    assert "consumequeue/stray" not in directories(out)


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "with consumequeue_ext"])
def test_a_journal_with_records_moved_is_refused(store: Store, place: Path, ordered: bool) -> None:
    if ordered:
        store = in_log_order(store, "B")
    out = place / "out"
    rebuild_locally(store, out, part_bytes=PART_BYTES, ends=ENDS)
    path = out / names.REPUT / JOURNAL
    data = path.read_bytes()
    ends = [at + journal.length_of(payload) for at, payload in journal.whole_frames(data)]
    head, *batches = [data[start:end] for start, end in pairwise([0, *ends])]
    assert len(batches) == len(ENDS) + 1
    before = tree(out)
    for number in range(len(batches)):
        removed = [*batches[:number], *batches[number + 1 :]]
        twice = [*batches[: number + 1], *batches[number:]]
        swapped = [*batches[:number], *reversed(batches[number : number + 2]), *batches[number + 2 :]]
        for mixed in (removed, twice, swapped):
            if mixed == batches[: len(mixed)]:
                continue  # the last ones gone, as a crash may leave it
            path.write_bytes(head + b"".join(mixed))
            with pytest.raises(JournalError, match="don't follow one another") as caught:
                rebuild_locally(store, out, part_bytes=PART_BYTES)
            assert "which begins at physical offset" in str(caught.value.expected)
            assert "from" in str(caught.value.found)
            path.write_bytes(data)
            assert tree(out) == before
    # With its last record gone it is one that was never committed.
    path.write_bytes(head + b"".join(batches[:-1]))
    wanted = outputs(out)
    rebuild_locally(store, out, part_bytes=PART_BYTES)
    assert outputs(out) == wanted


def test_a_batch_that_failed_leaves_the_journal_as_it_was(
    store: Store, place: Path, system: Callable[[System], None]
) -> None:
    out = place / "out"
    rebuild_locally(store, out, ends=ENDS)
    calls = calls_of(store, place / "count", system)
    system(Dying(calls // 2))
    with suppress(KilledError):
        rebuild_locally(store, place / "other", part_bytes=PART_BYTES, ends=ENDS)
    system(System())
    with opened_output(target_of(store, place / "other"), store.log) as journal:
        state = journal.state
        starts = [0, *(batch.end for batch in journal.batches)]
        assert [batch.start for batch in journal.batches] == starts[:-1]
        assert state.cursor == starts[-1] < rebuild_locally(store, out).cursor


def test_a_selection_of_queues_leaves_the_rest_alone(place: Path) -> None:
    from reput.replay.target import Selection

    store = store_of(
        place / "store", lay_out([replace(spec, fake=0) for spec in LOG], segment_size=800), "5.5.0"
    )
    selection = Selection.parse(["B:0", "%LMQ%a"])
    state = rebuild_locally(store, place / "out", selection=selection, index=False, part_bytes=PART_BYTES)
    assert set(state.queues) == {("B", 0), ("%LMQ%a", 0)}
    assert {path.split("/")[1] for path in outputs(place / "out")} == {"B", "%LMQ%a"}


#: Each kind of place in an output that has all kinds.
IN_AN_OUTPUT = (
    "consumequeue",
    "consumequeue/Linked",
    "consumequeue/TopicA",
    "consumequeue/TopicA/0",
    "consumequeue/TopicA/7",
    "consumequeue/TopicA/0/00000000000000000000",
    "consumequeue/TopicA/0/00000000000000000900",
    "consumequeue_ext",
    "consumequeue_ext/TopicA/0",
    "batchconsumequeue",
    "batchconsumequeue/B/0",
    "index",
    "index/20991231235959999",
    "ledger",
    "ledger/_delta_log",
    "lost-and-found",
    "lost-and-found/x",
    "checkpoint",
    ".reput",
    ".reput/journal",
    ".reput/lock",
    ".reput/scratch",
    ".reput/scratch/1.rows",
)


def without_locks(place: Path) -> dict[str, bytes]:
    """All files but for what a writer notes in its own locks."""
    own = {f"out/{names.REPUT}/{name}" for name in ("lock", "tasks.lock")}
    return {name: data for name, data in tree(place).items() if name not in own}


@pytest.mark.parametrize("linked", IN_AN_OUTPUT)
def test_nothing_behind_a_link_is_changed(place: Path, linked: str) -> None:
    """After a kill, when what the journal doesn't know is taken back."""
    store = in_log_order(store_of(place / "store", lay_out(LOG, segment_size=800), "5.5.0"), "B")
    out = place / "out"
    rebuild_locally(store, out, part_bytes=PART_BYTES, ends=ENDS, ledger=True)
    (out / names.REPUT / names.SCRATCH).mkdir()
    path = out / linked
    # As if it were all reput's: with queues, files and names that a roll-back clears or removes.
    elsewhere = place / "elsewhere"
    if path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.mkdir()
    if elsewhere.is_dir():
        for name in ("0/00000000000000000000", "00000000000000000000", "lock", "scratch/x", "stop"):
            (elsewhere / name).parent.mkdir(exist_ok=True)
            (elsewhere / name).write_bytes(b"mine" * 25)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(elsewhere)
    before = without_locks(place), directories(place)
    with pytest.raises(OutputError) as caught:
        rebuild_locally(store, out, part_bytes=PART_BYTES)
    assert caught.value.problem == "a symbolic link is in the way: what it leads to isn't the output's"
    assert (caught.value.path, caught.value.found) == (str(path), f"a link to {elsewhere}")
    assert (without_locks(place), directories(place)) == before
    with pytest.raises(OutputError, match="a symbolic link is in the way"):
        output_root(out, store.settings)


def test_an_output_may_be_a_link(store: Store, place: Path) -> None:
    rebuild_locally(store, place / "expected", part_bytes=PART_BYTES, ends=ENDS)
    (place / "disk").mkdir()
    (place / "out").symlink_to(place / "disk")
    assert output_root(place / "out", store.settings) == place / "out"
    rebuild_locally(store, place / "out", part_bytes=PART_BYTES, ends=ENDS[:1])
    (place / "out" / names.REPUT / names.SCRATCH).mkdir()
    rebuild_locally(store, place / "out", part_bytes=PART_BYTES)
    assert outputs(place / "out") == outputs(place / "disk") == outputs(place / "expected")


def test_a_directory_that_is_no_queue_is_left_alone(store: Store, place: Path) -> None:
    out = place / "out"
    state = rebuild_locally(store, out)
    kept = next((out / names.CONSUME_QUEUE).iterdir()) / "notes"
    kept.mkdir()
    target = target_of(store, out)
    target.scratch.mkdir(parents=True)
    roll_back(target, state)
    assert kept.is_dir()
    assert not target.scratch.exists()
