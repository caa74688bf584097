"""Retention against a slow look at all files, for logs that expire segment by segment."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.expiry import cleaned, expire, min_offsets, read_to
from tests.laid_out import Spec, lay_out, store_of
from tests.levels import examples
from tests.local import outputs, rebuild_locally
from tests.memory import scratch

specs = st.builds(
    Spec,
    topic=st.sampled_from([0, 0, 0, 1, 1, 2]),
    queue=st.sampled_from([0, 0, 0, 1]),
    keys=st.integers(0, 3),
    body=st.integers(0, 60),
    lmq=st.sampled_from([(), (), ("%LMQ%a",)]),
    transaction=st.sampled_from([0, 0, 0, 4]),
)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(specs, min_size=1, max_size=60),
    st.sampled_from([0, 22_000]),
    st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 3)), max_size=4),
)
@example([Spec()] * 5 + [Spec(topic=1)] * 20 + [Spec()] * 8, 0, [(2000, 3), (2500, 0)])
def test_what_stays_is_what_a_look_at_every_unit_says(
    log: list[Spec], base: int, steps: list[tuple[int, int]]
) -> None:
    """A step reads up to an offset, or all that expires with it, and then segments expire."""
    laid = lay_out(log, segment_size=600, base=base)
    with scratch() as place:
        whole = store_of(place / "whole", laid, "5.5.0")
        rebuild_locally(whole, place / "expected")
        store = store_of(place / "store", laid, "5.5.0")
        expired = 0
        for end, count in sorted(steps):
            expired = min(expired + count, len(laid.segments) - 1)
            start = laid.segments[expired][0]
            read_to(store, place / "out", min(max(base + end, start), laid.end))
            expire(store, (start - store.log.start) // 600)
        rebuild_locally(store, place / "out")
        state = rebuild_locally(store, place / "out")
        everything, log_start = outputs(place / "expected"), store.log.start
        found = outputs(place / "out")
        assert found.pop("checkpoint") == everything["checkpoint"]
        assert found == cleaned(everything, log_start)
        assert {queue: known.first for queue, known in state.queues.items()} == min_offsets(
            everything, log_start
        )
        assert state.findings == []
        assert state.log_start == log_start
