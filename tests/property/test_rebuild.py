"""The whole rebuild, without Spark, against a slow one that shares nothing with it: every file, every byte.

Logs are cut into parts and batches of any size, so that most parts begin in the middle of a message, and
messages are made to fool the guess at where the next record begins.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from reput.output import index_files
from reput.replay.state import State
from tests import slow_rebuild
from tests.laid_out import (
    NOW,
    VERSIONS,
    Damage,
    Run,
    Spec,
    lay_out,
    odd_specs,
    runs,
    specs,
    specs_of_any_time,
    store_of,
)
from tests.levels import examples
from tests.local import first_place, index_of, outputs, queues, rebuild_locally, tree, units
from tests.memory import scratch


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(specs_of_any_time, max_size=14),
    st.sampled_from(VERSIONS),
    st.sampled_from([1100, 2000]),
    st.sampled_from([0, 22_000]),
    st.booleans(),
    runs,
)
@example([Spec()] * 7 + [Spec(fake=2)], "4.9.7", 1100, 0, False, Run(41, (1,)))
@example(
    [Spec(keys=2, at=at, topic=4, delay="18") for at in ((1 << 63) - 1, -(1 << 63), 1, (1 << 63) - 2)],
    "5.3.3", 1100, 0, False, Run(),
)  # fmt: skip
def test_every_byte_is_that_of_the_slow_rebuild(
    log: list[Spec], version: str, segment_size: int, base: int, multi_dispatch: bool, run: Run
) -> None:
    laid = lay_out(log, segment_size=segment_size, base=base, long_topics=not version.startswith("4."))
    slow = slow_rebuild.rebuild(
        laid.segments,
        slow_rebuild.Settings(version=version, multi_dispatch=multi_dispatch, lmq=True),
    )
    with scratch() as place:
        store = store_of(place / "store", laid, version, multi_dispatch)
        before = tree(store.root)
        ends = tuple(base + end for end in run.ends)
        state = rebuild_locally(
            store,
            place / "out",
            part_bytes=run.part_bytes,
            ends=ends,
            flush_in_tasks=run.flush_in_tasks,
            several_hosts=run.several_hosts,
        )
        assert tree(store.root) == before
        assert queues(place / "out") == slow.queues
        assert index_of(place / "out") == slow.index
    assert state.messages == slow.messages
    if not slow.odd:
        assert state.findings == []
    assert state.cursor == laid.end


def told(state: State) -> Counter[tuple[str, str | None, int | None]]:
    """What was found, without where: a batch groups what is odd about a queue."""
    counts: Counter[tuple[str, str | None, int | None]] = Counter()
    for finding in state.findings:
        counts[finding.kind, finding.topic, finding.queue_id] += finding.count
    return counts


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(odd_specs, max_size=16), st.booleans(), runs)
@example(
    [
        *(Spec(), Spec(), Spec(body=8), Spec(jump=-1, stray=True)),
        *(Spec(), Spec(jump=-1, stray=True), Spec(jump=-2), Spec(jump=1)),
    ],
    False,
    Run(41),
)
def test_odd_queue_offsets_are_placed_by_the_rules(log: list[Spec], gap: bool, run: Run) -> None:
    """Holes, repeats, jumps and queues created anew, with and without a segment missing in between."""
    laid = lay_out(log, segment_size=500)
    segments = laid.segments
    if gap and len(segments) > 2:
        segments = [segments[0], *segments[2:]]
    slow = slow_rebuild.rebuild(segments, slow_rebuild.Settings())
    if slow.doubted:  # what a later batch shows of a message changes nothing that is committed
        run = replace(run, ends=())
    with scratch() as place:
        store = store_of(place / "store", replace(laid, segments=segments), "5.5.0", multi_dispatch=False)
        state = rebuild_locally(
            store, place / "out", part_bytes=run.part_bytes, ends=run.ends, several_hosts=run.several_hosts
        )
        assert queues(place / "out") == slow.queues
    altered = [finding for finding in state.findings if finding.kind == "altered-message"]
    assert {finding.offset for finding in altered} == slow.altered
    left = [finding for finding in state.findings if finding.topic and finding not in altered]
    assert {(finding.topic, finding.queue_id) for finding in left} == slow.odd


damages = st.builds(
    Damage,
    at=st.floats(0, 1),
    length=st.sampled_from([1, 1, 1, 8, 150, 700]),
    byte=st.sampled_from([None, None, 0, 0, 0xFF]),
)


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(specs, max_size=12),
    st.sampled_from(VERSIONS),
    st.lists(damages, max_size=2),
    st.sampled_from([0, 0, 1, 50, 400]),
    runs,
    runs,
)
def test_parts_and_batches_leave_no_trace(
    log: list[Spec], version: str, damage: list[Damage], cut: int, one: Run, other: Run
) -> None:
    """Not in the files, not in their names, not in what is known of the queues, whatever the log is like."""
    laid = lay_out(log, segment_size=1200, long_topics=not version.startswith("4."))
    for harm in damage:
        laid.segments = harm.apply(laid.segments)
    if cut:
        base, data = laid.segments[-1]
        laid.segments[-1] = base, data[: max(len(data) - cut, 1)]
    found = []
    # A time in the future, which only damage brings, counts as now in the name of an index file.
    clock = patch.object(index_files.time, "time", lambda: NOW / 1000 + 1e6)
    with scratch() as place, clock:
        store = store_of(place / "store", laid, version)
        for number, run in enumerate((one, other)):
            out = place / str(number)
            state = rebuild_locally(
                store, out, part_bytes=run.part_bytes, ends=run.ends, several_hosts=run.several_hosts
            )
            known = {queue: (facts.first, facts.next, facts.end) for queue, facts in state.queues.items()}
            found.append((outputs(out), known, state.index, told(state), state.messages, state.cursor))
    assert found[0] == found[1]


plain_specs = st.builds(
    Spec,
    topic=st.sampled_from([0, 1]),
    keys=st.integers(0, 2),
    body=st.integers(0, 60),
    later=st.sampled_from([0, 1, 5000]),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(plain_specs, min_size=1, max_size=12), damages, st.integers(1, 700), runs)
@example([Spec()] * 6, Damage(at=0.0, byte=0), 392, Run(41))  # the queue's first file isn't at 0
def test_damage_costs_the_messages_that_it_touches(
    log: list[Spec], damage: Damage, length: int, run: Run
) -> None:
    """Every other one is in its queue, and in its own place."""
    laid = lay_out(log, segment_size=600, stale=False)
    whole = laid.segments
    harm = replace(damage, length=length, byte=damage.byte or 0)
    laid.segments = harm.apply(whole)
    before, after = (b"".join(data for _, data in segments) for segments in (whole, laid.segments))
    touched = [at for at, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    with scratch() as place:
        store = store_of(place / "store", laid, "5.5.0")
        state = rebuild_locally(
            store, place / "out", part_bytes=run.part_bytes, ends=run.ends, several_hosts=run.several_hosts
        )
        found = {
            (topic, position): offset
            for topic, _ in state.queues
            for offset, (position, _, _) in enumerate(
                units(place / "out", topic), first_place(place / "out", topic)
            )
        }
    assert touched or not state.findings
    for base, data in whole:
        for message in slow_rebuild.read(base, data, slow_rebuild.Settings()):
            if not any(message.position <= at < message.end for at in touched):
                assert found[message.topic, message.position] == message.queue_offset
