"""The report's counting kernel against counting messages one by one."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reput.config.settings import StoreSettings
from reput.format import commitlog, javastring, names
from reput.format.commitlog import Record
from reput.log.segments import discover
from reput.report.gather import GatherOptions, gather
from reput.report.log_scan import BUCKETS, EARLIEST, MOST_SHOWN, WIDTHS, Tally, scan_log, traffic
from reput.report.page import render
from tests.levels import examples
from tests.property.logs import segments
from tests.stores import LogWriter

LATEST = EARLIEST + 16 * 365 * 86_400_000

_SPANS = (100, 100_000, 86_400_000, LATEST - EARLIEST)


@st.composite
def messages(draw: st.DrawFn) -> list[tuple[bytes, int, int]]:
    """(topic, storeTimestamp, bytes of the body), in no order of time."""
    span = draw(st.sampled_from(_SPANS))
    start = draw(st.integers(EARLIEST, LATEST - span))
    times = st.one_of(
        st.integers(start, start + span), st.sampled_from([0, -5, EARLIEST - 1, LATEST + 1, 1 << 61])
    )
    topics = st.sampled_from([b"A", b"B", b"\xff", *(b"topic-%d" % number for number in range(12))])
    return draw(st.lists(st.tuples(topics, times, st.integers(0, 700)), min_size=1, max_size=40))


@given(messages(), st.lists(st.integers(EARLIEST, LATEST), max_size=3))
@example([(b"\xff", EARLIEST, 0)], [])
@example([(b"A", EARLIEST, 1), (b"A", LATEST, 1)], [EARLIEST])
@settings(max_examples=examples(60))
def test_kernel_counts_as_one_counts_one_by_one(
    drawn: list[tuple[bytes, int, int]], times: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = LogWriter(Path(directory), 2000)
        for number, (topic, time, size) in enumerate(drawn):
            log.append(
                Record(topic=topic, body=bytes(size), properties=b"", queue_id=0, queue_offset=number,
                       store_timestamp=time)
            )  # fmt: skip
        store = StoreSettings.load(Path(directory), None, None)
        found = discover(store)
        scan = scan_log(store, found, found.end, Tally(LATEST, tuple(times)))
    sizes = [len(commitlog.encode(record)) for record in log.records]
    dated = [
        (record.topic, record.store_timestamp, size)
        for record, size in zip(log.records, sizes, strict=True)
        if EARLIEST <= record.store_timestamp <= LATEST
    ]

    assert (scan.messages, scan.bytes) == (len(drawn), sum(sizes))
    topics, over_time, histogram = traffic(scan)
    by_topic = Counter(javastring.decode(topic) for topic, _, _ in drawn)
    assert {one.topic: one.messages for one in topics} == by_topic
    assert sum(one.bytes for one in topics) == sum(sizes)
    for one in topics:
        of_topic = [time for topic, time, _ in dated if javastring.decode(topic) == one.topic]
        assert (one.first_time, one.last_time) == (
            (min(of_topic), max(of_topic)) if of_topic else (None, None)
        )

    assert scan.tally.without_time == len(drawn) - len(dated)
    for (time, reached), (_, offset) in zip(
        scan.tally.counts.vouched.tolist(), zip(times, times, strict=True), strict=True
    ):
        assert time == offset
        ends = [
            record.physical_offset + size
            for record, size in zip(log.records, sizes, strict=True)
            if record.store_timestamp <= time
        ]
        assert reached == (ends[-1] if ends else -1)
    if over_time is None:
        assert not dated
    else:
        _assert_same_traffic(scan.tally, over_time, dated)

    assert histogram is not None
    bounds = histogram.bounds
    assert histogram.counts == tuple(
        sum(low <= size < high for size in sizes) for low, high in itertools.pairwise(bounds)
    )
    assert (histogram.least, histogram.most) == (min(sizes), max(sizes))
    exact = sorted(sizes)[-(-len(sizes) // 2) - 1]
    assert 0.8 * exact <= histogram.p50 <= 1.26 * exact


def _assert_same_traffic(tally: Tally, found, dated: list[tuple[bytes, int, int]]) -> None:  # type: ignore[no-untyped-def]
    times = [time for _, time, _ in dated]
    fitting = [width for width in WIDTHS if max(times) // width - min(times) // width < BUCKETS]
    assert found.width_ms == fitting[0]
    assert found.start_ms == min(times) // found.width_ms * found.width_ms
    buckets = (max(times) - found.start_ms) // found.width_ms + 1
    shown = [one.topic for one in found.series if one.topic is not None]
    assert len(shown) <= MOST_SHOWN + 1
    for one in found.series:
        of_series = [
            (time, size)
            for topic, time, size in dated
            if (
                javastring.decode(topic) == one.topic
                if one.topic is not None
                else javastring.decode(topic) not in shown
            )
        ]
        counts, sizes = [0] * buckets, [0] * buckets
        for time, size in of_series:
            counts[(time - found.start_ms) // found.width_ms] += 1
            sizes[(time - found.start_ms) // found.width_ms] += size
        assert (list(one.messages), list(one.bytes)) == (counts, sizes)


@given(segments(damaged=True), st.booleans())
@settings(max_examples=examples(60))
def test_any_log_has_a_page_whose_numbers_fit(drawn: tuple[int, np.ndarray], unwritten: bool) -> None:
    base, data = drawn
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "commitlog"
        log.mkdir()
        (log / names.offset_name(base)).write_bytes(data.tobytes() + bytes(100 * unwritten))
        facts = gather(GatherOptions(Path(directory), at=LATEST))
    page = render(facts)
    assert page.endswith(b"</html>")
    if facts.log is None:
        assert not data.any()
        return
    # Two walks over the log count the same messages.
    assert facts.log.messages == sum(one.messages for one in facts.topics)
    assert facts.log.bytes == sum(one.bytes for one in facts.topics)
    assert facts.log.messages == sum(one.messages or 0 for one in facts.log.segments)
    if facts.traffic is not None:
        dated = sum(sum(one.messages) for one in facts.traffic.series)
        assert facts.log.messages == dated + facts.traffic.without_time
    ends = [(one.start, one.end) for one in facts.log.stretches]
    assert all(start < end for start, end in ends)
    assert [end for _, end in ends[:-1]] == [start for start, _ in ends[1:]]
    assert (ends[0][0], ends[-1][1]) == (0, facts.log.allocated)
