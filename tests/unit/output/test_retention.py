"""Retention: crashes between its steps, messages that expired unread, a log that expires under a tail."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable

from reput.errors import OutputError
from reput.format import names
from reput.format.checkpoint import StoreCheckpoint
from reput.format.consumequeue import UNIT, UNIT_LENGTH
from reput.output.log_changes import last_standing, step_back
from reput.output.writer import BatchWriter
from reput.replay.state import State
from reput.store import files
from reput.store.system import System
from tests.crash import FEWER, Dying, LosingPower, died
from tests.expiry import cleaned, expire, min_offsets, read_to
from tests.laid_out import RESTART, Spec, lay_out, store_of
from tests.levels import sampled
from tests.local import (
    NoLedger,
    Runner,
    Store,
    first_place,
    in_log_order,
    kinds,
    opened_output,
    outputs,
    parts_of,
    queues,
    rebuild_locally,
    target_of,
    tree,
    units,
)
from tests.memory import scratch

#: Queue files hold 5 units, index files 8 keys. TopicA:1 ends with a full file, B:0 in the middle of one.
EARLY = [Spec(queue=1)] * 5 + [Spec(topic=1, keys=2)] * 13 + [Spec(keys=2)] * 8
LOG = EARLY + [Spec(keys=1, lmq=("%LMQ%a",)), Spec(queue=3)] * 16 + [Spec(queue=1)] + [Spec(keys=3)] * 9
SEGMENT = 700


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as path:
        yield path


@pytest.fixture
def store(place: Path) -> Store:
    return store_of(place / "store", lay_out(LOG, segment_size=SEGMENT), "5.5.0")


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Callable[[System], None]:
    return lambda one: monkeypatch.setattr(files, "system", one)


def ready(store: Store, out: Path) -> int:
    """An output that has read the log up to a segment's end, and then that log without its head."""
    end = 6 * SEGMENT
    read_to(store, out, end)
    expire(store, 5)
    return end


def read_rest(store: Store, out: Path) -> State:
    """Go on in two batches, and then once more, as after a clean end."""
    read_to(store, out, 8 * SEGMENT)
    rebuild_locally(store, out)
    return rebuild_locally(store, out)


@pytest.fixture
def expected(store: Store, place: Path) -> dict[str, bytes]:
    """What stays of a whole rebuild when its log has lost five segments."""
    rebuild_locally(store, place / "expected")
    everything = outputs(place / "expected")
    kept = cleaned(everything, 5 * SEGMENT)
    assert len({path for path in everything if path.startswith(names.INDEX)} - kept.keys()) > 1
    assert "consumequeue/TopicA/0/00000000000000000000" not in kept
    assert "consumequeue/TopicA/1/00000000000000000000" not in kept, "its last file once, all of it expired"
    assert "consumequeue/B/0/00000000000000000200" in kept, "its last file"
    return {**kept, names.CHECKPOINT: everything[names.CHECKPOINT]}


def check(out: Path, state: State, expected: dict[str, bytes]) -> None:
    assert outputs(out) == expected
    assert {queue: known.first for queue, known in state.queues.items()} == min_offsets(
        expected, state.log_start
    )
    assert {path.name for path in (out / names.REPUT).iterdir()} <= {"journal", "lock", "tasks.lock"}


def copied(place: Path, out: Path) -> Path:
    copy = place / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(out, copy)
    return copy


@pytest.mark.parametrize("looked", [False, True])
def test_the_head_expires_while_a_batch_is_begun_ahead(
    looked: bool, store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun with the old first queueOffsets must not be committed over the new ones."""
    monkeypatch.setattr("reput.output.writer._INLINE_BYTES", 0)
    out = place / "out"
    read_to(store, out, 6 * SEGMENT)
    log = store.log
    with opened_output(target_of(store, out), log) as journal:
        writer = BatchWriter(target_of(store, out), journal, log, Runner(), look=lambda: store.log)
        writer._ledger = NoLedger()  # type: ignore[assignment]
        writer.begin()
        writer.begin_backlog(2 * SEGMENT, 300)
        assert writer._ahead is not None
        writer._ahead.finish()
        expire(store, 5)
        if looked:  # as a tail does every few seconds
            writer.write([], -1)
        writer.write(parts_of(log, 6 * SEGMENT, 8 * SEGMENT, 300, 6 * SEGMENT), 0)
        assert journal.state.cursor == 8 * SEGMENT
        firsts = {queue: known.first for queue, known in journal.state.queues.items()}
        assert firsts == min_offsets(outputs(out), journal.state.log_start)
        writer.close()
    rebuild_locally(store, out)


@pytest.mark.slow
def test_killed_at_every_call(
    store: Store, place: Path, system: Callable[[System], None], expected: dict[str, bytes]
) -> None:
    ready(store, place / "out")
    counting = Dying()
    system(counting)
    check(copied(place, place / "out"), read_rest(store, place / "copy"), expected)
    for last in sampled(range(1, counting.calls + 1, 2)):
        out = copied(place, place / "out")
        system(Dying(last))
        assert died(partial(read_rest, store, out)) or last > counting.calls - FEWER
        system(System())
        check(out, read_rest(store, out), expected)


@pytest.mark.slow
def test_what_is_in_log_order_follows_too(
    store: Store, place: Path, system: Callable[[System], None]
) -> None:
    store = in_log_order(store, "B")
    rebuild_locally(store, place / "whole")
    everything = outputs(place / "whole")
    expected = {**cleaned(everything, 5 * SEGMENT), names.CHECKPOINT: everything[names.CHECKPOINT]}
    gone = {path.partition("/")[0] for path in everything.keys() - expected.keys()}
    assert gone >= {names.CONSUME_QUEUE, names.CONSUME_QUEUE_EXT, names.BATCH_CONSUME_QUEUE}
    ready(store, place / "out")
    counting = Dying()
    system(counting)
    check(copied(place, place / "out"), read_rest(store, place / "copy"), expected)
    for last in sampled(range(1, counting.calls + 1, 11)):
        out = copied(place, place / "out")
        system(Dying(last))
        assert died(partial(read_rest, store, out)) or last > counting.calls - FEWER
        system(System())
        check(out, read_rest(store, out), expected)


def test_a_batch_topic_that_was_created_anew_keeps_what_the_log_holds(place: Path) -> None:
    """Its queueOffsets begin at 0 again, behind greater ones."""
    log = [Spec(topic=1)] * 30 + [Spec(topic=1, jump=RESTART)] + [Spec(topic=1)] * 12
    laid = lay_out(log, segment_size=SEGMENT)
    store = in_log_order(store_of(place / "store", laid, "5.5.0"), "B")
    out = place / "out"
    rebuild_locally(store, out)
    everything = outputs(out)
    expire(store, 2)
    for _ in range(3):
        state = rebuild_locally(store, out)
    kept = cleaned(everything, 2 * SEGMENT)
    assert len(kept) < len(everything) - 1
    assert outputs(out).keys() == kept.keys() | {names.CHECKPOINT}
    (queue,) = state.queues.values()
    assert queue.first > queue.next > 0
    assert queue.held == len(log)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_power_lost_at_any_call(
    store: Store, place: Path, system: Callable[[System], None], expected: dict[str, bytes], seed: int
) -> None:
    ready(store, place / "out")
    counting = Dying()
    system(counting)
    read_to(store, copied(place, place / "out"), 8 * SEGMENT)
    random = Random(seed)
    for _ in range(25):
        out = copied(place, place / "out")
        for _ in range(random.choice([1, 2])):
            losing = LosingPower(out, random.randint(1, counting.calls))
            system(losing)
            died(lambda: read_to(store, out, 8 * SEGMENT))  # noqa: B023
            losing.lose(random)
        system(System())
        check(out, read_rest(store, out), expected)


def test_a_tail_follows_while_it_runs(store: Store, place: Path, expected: dict[str, bytes]) -> None:
    """Also when nothing new was written; the checkpoint keeps the time of the last full index file."""
    out = place / "out"
    target, log = target_of(store, out), store.log
    files.make_dirs(out)
    with opened_output(target, log) as journal:
        writer = BatchWriter(target, journal, log, Runner(), look=lambda: store.log)
        writer._ledger = NoLedger()  # type: ignore[assignment]
        writer.begin()
        for segment in range(9):
            end = min((segment + 1) * SEGMENT, log.end)
            writer.write(parts_of(store.log, segment * SEGMENT, end, 300, journal.state.cursor), segment)
            if segment in (2, 5, 8):
                expire(store, {2: 1, 5: 2, 8: 2}[segment])
                before = tree(out)
                writer.write([], segment)
                assert tree(out) != before
                before = tree(out)
                writer.write([], segment)
                assert tree(out) == before
        writer.write(parts_of(store.log, 9 * SEGMENT, log.end, 300, journal.state.cursor), 9)
        writer.finish()
        writer.close()
        assert [batch.log_start for batch in journal.batches if batch.log_start] == [
            SEGMENT,
            3 * SEGMENT,
            5 * SEGMENT,
        ]
    # The full file that was its queue's last one when the log's start moved goes with the next look.
    assert outputs(out).keys() - expected.keys() == {"consumequeue/TopicA/1/00000000000000000000"}
    check(out, rebuild_locally(store, out), expected)


def test_the_checkpoint_outlives_the_full_index_files(store: Store, place: Path) -> None:
    state = rebuild_locally(store, place / "out")
    full = state.index[-2][1]
    end = lay_out(LOG, segment_size=SEGMENT).segments[-1][0] + SEGMENT
    (store.root / names.COMMIT_LOG / names.offset_name(end)).write_bytes(bytes(SEGMENT))
    expire(store, len(store.log.segments) - 1)
    state = rebuild_locally(store, place / "out")
    assert len(state.index) == 1
    checkpoint = StoreCheckpoint.decode((place / "out" / names.CHECKPOINT).read_bytes())
    assert checkpoint.index_msg_timestamp == full.end_timestamp


def test_the_ledger_says_what_went(store: Store, place: Path) -> None:
    out = place / "out"
    rebuild_locally(store, out, ledger=True)
    before = {path for path in outputs(out) if path.startswith(names.INDEX)}
    expire(store, 5)
    rebuild_locally(store, out, ledger=True)
    rows = DeltaTable(str(out / names.LEDGER)).to_pyarrow_table().to_pylist()
    told = [row for row in rows if row["kind"] == "retention"]
    assert [row["begin_offset"] for row in told if row["begin_offset"]] == [5 * SEGMENT]
    assert {f"index/{row['file']}" for row in told if row["file"]} == before - outputs(out).keys() != set()
    assert [row["first_offset"] for row in told if row["topic"] == "B"] == [13]


def test_a_file_that_is_missing_is_an_error(store: Store, place: Path) -> None:
    out = place / "out"
    ready(store, out)
    (path,) = (out / names.CONSUME_QUEUE / "TopicA" / "0").glob("*0000")
    path.unlink()
    before = tree(out)
    with pytest.raises(OutputError, match="a consume queue's file is gone") as caught:
        rebuild_locally(store, out)
    assert caught.value.path == str(path)
    assert tree(out) == before


def unread(store: Store, place: Path) -> tuple[State, State]:
    """A run up to two segments, one after nine have expired, and a rebuild of what was left then."""
    read_to(store, place / "out", 2 * SEGMENT)
    expire(store, 9)
    rebuild_locally(store, place / "out")
    state = rebuild_locally(store, place / "out")
    return state, rebuild_locally(store, place / "fresh")


def test_what_expired_unread_is_told_and_queues_begin_anew(store: Store, place: Path) -> None:
    state, fresh = unread(store, place)
    (finding,) = state.findings
    assert (finding.kind, finding.offset, finding.end) == ("expired-unread", 2 * SEGMENT, 9 * SEGMENT)
    assert state.cursor == fresh.cursor
    out, made = queues(place / "out"), queues(place / "fresh")
    for path, data in made.items():
        assert out.pop(path) == data
    # Where nothing came after it, a queue keeps its last file, and with it its next queueOffset.
    left = {path.rpartition("/")[0] for path in out}
    assert left == {f"{topic}/{queue}" for topic, queue in state.queues.keys() - fresh.queues.keys()} != set()
    for queue, known in state.queues.items():
        if queue in fresh.queues:
            assert (known.first, known.next) == (fresh.queues[queue].first, fresh.queues[queue].next)
        else:
            assert (
                known.first
                == known.next
                == first_place(place / "out", *queue) + len(units(place / "out", *queue))
            )


def test_every_unit_that_consumers_can_get_leads_to_its_message(store: Store, place: Path) -> None:
    state, _ = unread(store, place)
    starts = set(lay_out(LOG, segment_size=SEGMENT).starts)
    for queue, known in state.queues.items():
        first = first_place(place / "out", *queue)
        positions = [position for position, _, _ in units(place / "out", *queue)][known.first - first :]
        assert len(positions) == known.next - known.first
        assert set(positions) <= {start for start in starts if start >= 9 * SEGMENT}
        assert positions == sorted(set(positions)), "none twice"


@pytest.mark.parametrize("seed", range(3))
def test_killed_while_it_passes_over_what_expired(
    store: Store, place: Path, system: Callable[[System], None], seed: int
) -> None:
    read_to(store, place / "out", 2 * SEGMENT)
    expire(store, 9)
    counting = Dying()
    system(counting)
    state = rebuild_locally(store, copied(place, place / "out"))
    expected = outputs(place / "copy")
    random = Random(seed)
    for _ in range(20):
        out = copied(place, place / "out")
        model = random.choice([Dying(random.randint(1, counting.calls)), None])
        losing = LosingPower(out, random.randint(1, counting.calls))
        system(model or losing)
        died(lambda: rebuild_locally(store, out, ends=[10 * SEGMENT]))  # noqa: B023
        if model is None:
            losing.lose(random)
        system(System())
        again = rebuild_locally(store, out)
        assert outputs(out) == expected
        assert again.queues.keys() == state.queues.keys()
        assert kinds(again.findings) == ["expired-unread"]


def test_the_log_may_expire_faster_than_it_is_read(store: Store, place: Path) -> None:
    """Several times, with a queue's message here and there: it begins anew as often as some were lost."""
    for segments in (1, 3, 2, 3):
        read_to(store, place / "out", store.log.start + SEGMENT // 2)
        expire(store, segments)
    state = rebuild_locally(store, place / "out")
    assert set(kinds(state.findings)) == {"expired-unread"}
    fresh = rebuild_locally(store, place / "fresh")
    for queue, known in fresh.queues.items():
        assert (state.queues[queue].first, state.queues[queue].next) == (known.first, known.next)
        data = b"".join(UNIT.pack(*unit) for unit in units(place / "out", *queue))
        first = first_place(place / "out", *queue)
        wanted = b"".join(UNIT.pack(*unit) for unit in units(place / "fresh", *queue))
        skip = (known.first - first_place(place / "fresh", *queue)) * UNIT_LENGTH
        assert data[(known.first - first) * UNIT_LENGTH :] == wanted[skip:]


def test_stepping_back_takes_no_removal_back(store: Store, place: Path) -> None:
    """The broker cuts its log, and what was placed of it goes; what had expired stays gone."""
    out = place / "out"
    read_to(store, out, 8 * SEGMENT)
    read_to(store, out, store.log.end)
    expire(store, 5)
    rebuild_locally(store, out)
    whole = LOG[: lay_out(LOG, segment_size=SEGMENT).starts.index(8 * SEGMENT)]
    cut = store_of(
        place / "cut", lay_out([*whole, Spec(queue=1), Spec(keys=2)], segment_size=SEGMENT), "5.5.0"
    )
    rebuild_locally(cut, place / "fresh")
    expected = outputs(place / "fresh")
    expire(store, len(store.log.segments))
    for path in sorted((cut.root / names.COMMIT_LOG).iterdir())[5:]:
        path.rename(store.root / names.COMMIT_LOG / path.name)
    target = target_of(store, out)
    with opened_output(target, store.log) as journal:
        number = last_standing(journal, store.log)
        assert number is not None
        assert (journal.state_after(number).log_start, journal.state.log_start) == (0, 5 * SEGMENT)
        step_back(target, journal, store.log, number)
        assert journal.state.log_start == 5 * SEGMENT
    rebuild_locally(store, out)
    state = rebuild_locally(store, out)
    check(out, state, {**cleaned(expected, 5 * SEGMENT), names.CHECKPOINT: expected[names.CHECKPOINT]})
    assert kinds(state.findings) == ["log-went-back"]
