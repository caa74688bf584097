"""The kernel is the reference, only faster: same stops, same units, same keys, same remarks."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.format import commitlog
from reput.scan import kernel, output, reference
from reput.scan.output import OutputArrays, Stop
from reput.scan.rules import Rules
from reput.scan.table import QueueTable
from tests.property.logs import segments

LEVELS = np.array([1000, 5000, 7_200_000], np.int64)


class Seen(NamedTuple):
    stop: Stop
    columns: dict[str, list[int]]
    queues: dict[tuple[bytes, int], dict[str, int]]
    topics: dict[bytes, tuple[int, int]]


def scan_with(scanner: ModuleType, base: int, data: np.ndarray, rules: Rules, start: int = 0) -> Seen:
    table = QueueTable(excludes_lmq=lambda topic: topic.startswith(b"%RETRY%"), capacity=4)
    out = output.output()
    stop = scanner.scan(data, base, start, len(data), rules, table, out)
    return Seen(stop, columns(out), queues(table), topics(table))


def columns(out: OutputArrays) -> dict[str, list[int]]:
    filled = {
        "unit": out.counts[output.UNITS],
        "row": out.counts[output.ROWS],
        "key": out.counts[output.KEYS],
        "remark": out.counts[output.REMARKS],
    }
    result = {
        name: getattr(out, name)[: filled[name.split("_")[0]]].tolist()
        for name in out._fields
        if name != "counts"
    }
    result["counts"] = out.counts[: output.NAME_START].tolist()
    return result


def queues(table: QueueTable) -> dict[tuple[bytes, int], dict[str, int]]:
    result = {}
    for number in range(int(table.queue_count[0])):
        if table.queues.units[number]:
            name = table.topic_names[table.queues.topic[number]]
            facts = {
                field: int(getattr(table.queues, field)[number])
                for field in table.queues._fields
                if field not in ("slots", "topic", "queue_id") and not field.startswith("odd")
            }
            if table.queues.irregular[number]:
                facts["odd"] = int(table.queues.odd_position[number])
            result[name, int(table.queues.queue_id[number])] = facts
    return result


def topics(table: QueueTable) -> dict[bytes, tuple[int, int]]:
    """Topics in the order they were met, with what they lost to TOPIC_NO_UNITS."""
    return {
        name: (int(table.topics.without_unit[number]), int(table.topics.first_position[number]))
        for number, name in enumerate(table.topic_names)
        if table.topics.without_unit[number]
    }


rules = st.builds(
    Rules,
    topic_length_v2=st.booleans(),
    index_keys=st.booleans(),
    index_tags=st.booleans(),
    multi_dispatch=st.booleans(),
    lmq_queue_zero=st.booleans(),
    lmq_rejects_slash=st.booleans(),
    inner_batch=st.booleans(),
    check_crc=st.booleans(),
    property_crc_only=st.booleans(),
    delay_levels=st.just(LEVELS),
)


@settings(max_examples=400, deadline=None)
@given(segments(), rules)
def test_sound_segments_scan_alike(segment: tuple[int, np.ndarray], rules: Rules) -> None:
    base, data = segment
    assert scan_with(kernel, base, data, rules) == scan_with(reference, base, data, rules)


@settings(max_examples=400, deadline=None)
@given(segments(damaged=True), rules)
def test_damaged_segments_scan_alike(segment: tuple[int, np.ndarray], rules: Rules) -> None:
    base, data = segment
    assert scan_with(kernel, base, data, rules) == scan_with(reference, base, data, rules)


@settings(max_examples=200, deadline=None)
@given(segments(damaged=True), st.integers(0, 200), st.booleans())
def test_searches_and_walks_agree(segment: tuple[int, np.ndarray], start: int, v2: bool) -> None:
    base, data = segment
    start = min(start, len(data))
    found = kernel.find_record(data, base, start, len(data), v2)
    assert found == reference.find_record(data, base, start, len(data), v2)
    times = []
    while found >= 0:
        times.append((found, commitlog.decode(data.data, found).store_timestamp))
        after = found + int.from_bytes(data[found : found + 4].tobytes(), "big")
        found = kernel.find_record(data, base, after, len(data), v2)
    for not_before in {0, *(time for _, time in times), *(time + 1 for _, time in times)}:
        expected = next((at for at, time in times if time >= not_before), -1)
        assert kernel.find_record_since(data, base, start, len(data), v2, not_before) == expected
    assert kernel.walk(data, base, start, len(data), v2) == reference.walk(data, base, start, len(data), v2)
