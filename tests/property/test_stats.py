"""Counting agrees with the messages that the data source takes, on sound and on damaged logs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.scan.rules import Part
from reput.source import messages
from reput.statistics import By, Span, count
from tests.levels import examples
from tests.local import write_store
from tests.memory import scratch
from tests.property.logs import segments

_DELAYS = {"DELAY", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_DELAY_MS"}


def key_of(row: dict[str, Any], by: By) -> tuple[object, ...]:
    return {
        By.TOPIC: (row["topic"],),
        By.QUEUE: (row["topic"], row["queueId"]),
        By.TAG: (row["topic"], row["tags"]),
        By.HOUR: (),
        By.HOST: (row["bornHost"].rpartition(":")[0].strip("[]"),),
    }[by]


@settings(max_examples=examples(100))
@given(segments(damaged=True) | segments(), st.sampled_from(list(By)), st.floats(0, 1))
def test_it_counts_what_the_source_reads(
    segment: tuple[int, np.ndarray[Any, np.dtype[np.uint8]]], by: By, share: float
) -> None:
    base, data = segment
    if not len(data):
        return
    start = base + int(share * share * len(data))
    with scratch() as root:
        store = write_store(root, [(base, data.tobytes())], version="5.5.0")
        path = str(next((root / "commitlog").iterdir()))
        part = Part(path, base, len(data), len(data), start, base + len(data), False, True)
        rows = [row for batch in messages.read(part, store.settings) for row in batch.to_pylist()]
        found = count(store.settings, by, span=Span(start=start))
    number, size, delayed, retries = (Counter[tuple[object, ...]]() for _ in range(4))
    for row in rows:
        key = key_of(row, by)
        number[key] += 1
        size[key] += row["size"]
        delayed[key] += bool(_DELAYS & dict(row["properties"]).keys())
        retries[key] += row["reconsumeTimes"] > 0
    counted = [Counter[tuple[object, ...]]() for _ in range(4)]
    for group in found.groups:
        key = {
            By.TOPIC: (group.topic,),
            By.QUEUE: (group.topic, group.queue_id),
            By.TAG: (group.topic, group.tag),
            By.HOUR: (),
            By.HOST: (group.host,),
        }[by]
        for counter, value in zip(
            counted, (group.messages, group.bytes, group.delayed, group.retries), strict=True
        ):
            counter[key] += value
    assert counted == [number, size, delayed, retries]
    assert (0 if found.total is None else found.total.messages) == len(rows)
