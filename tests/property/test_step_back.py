"""A log that its broker cut, and perhaps wrote on otherwise: in the end, only a finding tells of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reput.errors import LogWentBackError
from reput.format import names
from reput.log.segments import discover
from reput.output.journal import Journal
from reput.output.log_changes import last_standing, step_back
from reput.output.writer import BatchWriter
from reput.replay.state import State
from reput.store.lock import OutputLock
from tests.laid_out import Run, Spec, lay_out, runs, specs, store_of
from tests.levels import examples
from tests.local import Runner, Store, opened_output, outputs, rebuild_locally, target_of
from tests.memory import scratch

SEGMENT_SIZE = 1500


@settings(max_examples=examples(100), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(specs, min_size=1, max_size=10),
    st.lists(specs, max_size=8),
    st.lists(specs, max_size=8),
    st.integers(1, 40),
    st.sampled_from(["4.7.0", "4.9.7", "5.5.0"]),
    runs,
)
def test_it_ends_in_the_same_bytes(
    kept: list[Spec], gone: list[Spec], new: list[Spec], batch: int, version: str, run: Run
) -> None:
    long_topics = not version.startswith("4.")
    before, after = (
        lay_out([*kept, *rest], segment_size=SEGMENT_SIZE, long_topics=long_topics) for rest in (gone, new)
    )
    with scratch() as place:
        store = store_of(place / "store", before, version)
        ends = [end for end in before.starts[1:] if end % batch == 0 or batch == 1]
        rebuild_locally(store, place / "out", part_bytes=run.part_bytes, ends=[*ends, before.end])
        shutil.rmtree(place / "store")
        store = store_of(place / "store", after, version)
        number = stepped_back(store, place / "out")
        state = rebuild_locally(store, place / "out", part_bytes=run.part_bytes, ends=run.ends)
        fresh = rebuild_locally(store, place / "fresh", part_bytes=run.part_bytes)
        assert outputs(place / "out") == outputs(place / "fresh")
    assert known(state) == known(fresh)
    told = [finding.kind for finding in state.findings if finding.kind == "log-went-back"]
    assert len(told) == (number is not None)


@pytest.mark.parametrize("body", [77, 40], ids=["other lengths", "the same lengths"])
def test_old_messages_behind_the_brokers_new_end(body: int) -> None:
    """The broker has lost message 4, and has written one in its place: those after it are as they were."""
    kept = [Spec(body=40) for _ in range(4)]
    new = [Spec(body=body, later=60_000), *(Spec(body=9) for _ in range(9))]
    before = lay_out([*kept, *(Spec(body=40) for _ in range(6))], segment_size=4000)
    after = lay_out([*kept, *new], segment_size=4000)
    with scratch() as place:
        store = store_of(place / "store", before, "5.5.0")
        rebuild_locally(store, place / "out", ends=before.starts[2::2])
        (path,) = (store.root / names.COMMIT_LOG).iterdir()
        written = after.starts[5]
        path.write_bytes(after.segments[0][1][:written] + before.segments[0][1][written:])
        assert stepped_back(store, place / "out") == 2
        path.write_bytes(after.segments[0][1])
        state = rebuild_locally(store, place / "out")
        fresh = rebuild_locally(store, place / "fresh")
        assert outputs(place / "out") == outputs(place / "fresh")
    assert known(state) == known(fresh)


def stepped_back(store: Store, out: Path) -> int | None:
    """Step back as far as the log went; the number of the last batch that stands, None if all do."""
    target = target_of(store, out)
    path = target.root / names.REPUT / names.JOURNAL
    with OutputLock(target.root), Journal.open(path) as journal:
        number = last_standing(journal, store.log)
        assert number is not None
        if number == journal.state.batches:
            return None
        step_back(target, journal, store.log, number)
        return number


def known(state: State) -> object:
    """What a state says that depends on the log alone."""
    queues = {queue: (facts.first, facts.next, facts.end) for queue, facts in state.queues.items()}
    return queues, state.index, state.messages, state.cursor, state.last_position, state.last_record


@pytest.mark.parametrize("body", [77, 40], ids=["other lengths", "the same lengths"])
def test_a_log_that_grew_past_the_cursor_before_the_cut_was_seen(body: int) -> None:
    """Nothing of it is committed, and the next start takes what is the log's now."""
    kept = [Spec(body=40) for _ in range(4)]
    before = lay_out([*kept, *(Spec(body=40) for _ in range(3))], segment_size=4000)
    after = lay_out([*kept, *(Spec(body=body, later=60_000) for _ in range(9))], segment_size=4000)
    with scratch() as place:
        out = place / "out"
        out.mkdir()
        store = store_of(place / "store", before, "5.5.0")
        target = target_of(store, out)
        with opened_output(target, discover(store.settings)) as journal:
            writer = BatchWriter(
                target, journal, discover(store.settings), Runner(), look=lambda: discover(store.settings)
            )
            writer.begin()
            writer.write_to(before.end, 0)
            (path,) = (store.root / names.COMMIT_LOG).iterdir()
            path.write_bytes(after.segments[0][1])
            with pytest.raises(LogWentBackError):
                writer.write_to(after.end, 1)
            assert journal.state.cursor == before.end
            writer.abandon()
        assert stepped_back(store, out) is not None
        rebuild_locally(store, out)
        rebuild_locally(store, place / "fresh")
        assert outputs(out) == outputs(place / "fresh")
