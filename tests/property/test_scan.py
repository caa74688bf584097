"""The kernel is the reference, only faster: same stops, same units, same keys, same remarks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reput.config.settings import StoreSettings
from reput.errors import Finding
from reput.format import commitlog
from reput.format.commitlog import Record
from reput.log import walk, walk_kernel
from reput.log.walk import Frame
from reput.scan import kernel, output
from reput.scan.frames import ROWS, FrameWalk, frames, has_stored_crc, which_crc
from reput.scan.output import OutputArrays, Status, Stop
from reput.scan.part import PartOutcome, is_blank_but_for_its_magic, missing_range, scan_part, wrong_end
from reput.scan.rules import Part, Rules
from reput.scan.rules import rules as rules_of
from reput.scan.table import QueueTable
from tests import slow_scan
from tests.levels import examples
from tests.property.logs import lay_out, lay_out_entries, segments

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
    largest_record=st.just(commitlog.LARGEST_RECORD),
)


@settings(max_examples=examples(400), deadline=None)
@given(segments(any_time=True), rules)
def test_sound_segments_scan_alike(segment: tuple[int, np.ndarray], rules: Rules) -> None:
    base, data = segment
    assert scan_with(kernel, base, data, rules) == scan_with(slow_scan, base, data, rules)


@settings(max_examples=examples(400), deadline=None)
@given(segments(damaged=True, any_time=True), rules)
def test_damaged_segments_scan_alike(segment: tuple[int, np.ndarray], rules: Rules) -> None:
    base, data = segment
    assert scan_with(kernel, base, data, rules) == scan_with(slow_scan, base, data, rules)


@settings(max_examples=examples(200), deadline=None)
@given(segments(damaged=True, any_time=True), st.integers(0, 200), st.booleans())
def test_searches_and_walks_agree(segment: tuple[int, np.ndarray], start: int, v2: bool) -> None:
    base, data = segment
    start = min(start, len(data))
    found = kernel.find_record(data, base, start, len(data), v2)
    assert found == slow_scan.find_record(data, base, start, len(data), v2)
    stop, last, count = kernel.chain(data, base, start, len(data), v2)
    places = []
    while (at := places[-1][1] if places else start) < stop.position:
        places.append((at, at + int.from_bytes(data[at : at + 4].tobytes(), "big")))
    assert (last, count) == (places[-1][0] if places else -1, len(places))
    assert kernel.walk(data, base, start, len(data), v2) == slow_scan.walk(data, base, start, len(data), v2)


# --- Records in DLedger's entries ------------------------------------------------------------------------

entry_rules = rules.map(lambda switches: switches._replace(entries=True))


@settings(max_examples=examples(200), deadline=None)
@given(segments(entries=True), entry_rules)
def test_sound_entries_scan_alike(segment: tuple[int, np.ndarray], rules: Rules) -> None:
    base, data = segment
    assert scan_with(kernel, base, data, rules) == scan_with(slow_scan, base, data, rules)


@settings(max_examples=examples(300), deadline=None)
@given(segments(damaged=True, entries=True), entry_rules)
def test_damaged_entries_scan_alike(segment: tuple[int, np.ndarray], rules: Rules) -> None:
    base, data = segment
    assert scan_with(kernel, base, data, rules) == scan_with(slow_scan, base, data, rules)


@settings(max_examples=examples(100), deadline=None)
@given(segments(any_time=True), rules)
def test_a_log_from_before_dledger_scans_as_ever(segment: tuple[int, np.ndarray], rules: Rules) -> None:
    base, data = segment
    # Zeros aside, for no record of a sound log begins as an entry does.
    assert scan_with(kernel, base, data, rules) == scan_with(kernel, base, data, rules._replace(entries=True))


@settings(max_examples=examples(200), deadline=None)
@given(segments(damaged=True, entries=True), st.integers(0, 200), st.booleans())
def test_searches_and_walks_over_entries_agree(segment: tuple[int, np.ndarray], start: int, v2: bool) -> None:
    base, data = segment
    start = min(start, len(data))
    found = kernel.find_record(data, base, start, len(data), v2, True)
    assert found == slow_scan.find_record(data, base, start, len(data), v2, True)
    assert kernel.walk(data, base, start, len(data), v2, True) == slow_scan.walk(
        data, base, start, len(data), v2, True
    )
    assert walk_kernel.walk(data, base, start, 0, v2, 0, 5, True) == walk.walk(
        data.data, base, start, 0, v2, 0, 5, True
    )


@settings(max_examples=examples(200), deadline=None)
@given(segments(damaged=True, entries=True), st.integers(1, 3))
def test_columns_hold_the_records_of_entries(segment: tuple[int, np.ndarray], rows: int) -> None:
    base, data = segment
    going = FrameWalk(
        data,
        base,
        len(data),
        len(data),
        last=False,
        topic_length_v2=True,
        is_whole=lambda position: has_stored_crc(data.data, position),
        entries=True,
    )
    found, out = [], frames(rows)
    for count in going.blocks(len(data), out, 1 << 20):
        found += [
            (int(out.position[row]), int(out.size[row]), int(out.store_timestamp[row]))
            for row in range(count)
        ]
    assert found == _records_of(base, data)


def _records_of(base: int, data: np.ndarray) -> list[tuple[int, int, int]]:
    """Position, size and storeTimestamp of each record that counts, found one by one."""
    view, position, found = data.data, 0, []
    while 0 <= position < len(data):
        here = walk.frame(view, base, position, True, True)
        if isinstance(here, Frame):
            behind = walk.frame(view, base, position + here.size, True, True)
            if isinstance(behind, Frame) or behind is Status.BLANK or has_stored_crc(view, here.record):
                record = commitlog.decode(view, here.record)
                found.append((here.record, here.size - here.header, record.store_timestamp))
                position += here.size
                continue
            here = Status.BAD_CRC
        if here is Status.BLANK or is_blank_but_for_its_magic(
            data, position, len(data), here, last=False, entries=True
        ):
            break
        position = slow_scan.find_record(data, base, position + 1, len(data), True, True)
    return found


SETTINGS = StoreSettings.load(Path("store"), None, "5.3.3")
_STORED = Record(b"T", b"body", store_timestamp=1000)
_LATE = Record(commitlog.SCHEDULE_TOPIC, b"body", b"DELAY\x01x\x02", store_timestamp=3000)


def _left_by_a_truncation() -> tuple[int, np.ndarray]:
    """A message that can't be dispatched, damage, and a record that is older than that message alone."""
    data = bytearray(lay_out([_STORED, _LATE, _STORED, replace(_STORED, store_timestamp=2000)]))
    data[len(lay_out([_STORED, _LATE])) + commitlog.MAGIC] ^= 1
    return 0, np.frombuffer(bytes(data), np.uint8)


@settings(max_examples=examples(300), deadline=None)
@given(segments(damaged=True, any_time=True), st.booleans(), st.sampled_from([0, 1 << 40]))
@example(_left_by_a_truncation(), True, 0)
def test_columns_hold_what_the_scan_takes_and_what_no_broker_dispatches(
    segment: tuple[int, np.ndarray], last: bool, before: int
) -> None:
    base, data = segment
    part = Part("segment", base, len(data), len(data), base, base + len(data), True, last, before)
    out, outcome = output.output(), PartOutcome()
    for _ in scan_part(part, data, rules_of(SETTINGS), QueueTable(), out, outcome):
        pass
    undispatched = {
        one.offset - base: one.end - one.offset
        for one in outcome.findings
        if one.kind in ("bad-delay", "bad-inner-batch")
    }
    skipped: list[Finding] = []

    def skip(status: Status, position: int, end: int, outcome: str) -> None:
        if status is Status.BAD_CRC:
            status = which_crc(data.data, position)
        skipped.append(missing_range(part, data, base + position, base + end, status, outcome))

    columns, going = frames(64), FrameWalk.over(part, data, SETTINGS, before, skipped=skip)
    going.advance(len(data), columns, len(data) + 1)
    rows = int(columns.counts[ROWS])
    sizes = dict(zip(columns.position[:rows].tolist(), columns.size[:rows].tolist(), strict=True))
    assert undispatched.items() <= sizes.items()
    assert rows == int(out.counts[output.MESSAGES]) + len(undispatched)
    assert sum(sizes.values()) == int(out.counts[output.BYTES]) + sum(undispatched.values())
    assert going.timestamp == (before if outcome.newest is None else outcome.newest)
    # Both say the same of what they pass over; where the log ends, the scan says nothing yet.
    said = [one for one in outcome.findings if one.outcome.startswith("passed over")]
    end = wrong_end(part, data, outcome.end, outcome.status, rest_is_zero=outcome.rest_is_zero)
    if last:
        skipped = [one for one in skipped if one.offset < outcome.end]
    assert skipped == [*said, *([] if last or end is None else [end])]


@given(
    st.integers(0, 40),
    st.integers(0, 20),
    st.integers(-12, 140),
    st.sampled_from([0, 64]),
    st.sampled_from([0, 1 << 40]),
    st.booleans(),
)
def test_a_part_begins_at_its_first_record_whatever_zeros_lead_there(
    zeros: int, start: int, stop: int, behind: int, base: int, entries: bool
) -> None:
    place = base + zeros
    laid = lay_out_entries([(_STORED, False)], place, False, 0) if entries else lay_out([_STORED], place)
    data = np.frombuffer(bytes(zeros) + laid + bytes(behind), np.uint8)
    stop = min(max(zeros + stop, start), len(data))
    part = Part("segment", base, len(data), len(data), base + start, base + stop, False, True, 0)
    out, outcome = output.output(), PartOutcome()
    rules = rules_of(SETTINGS)._replace(entries=True) if entries else rules_of(SETTINGS)
    for _ in scan_part(part, data, rules, QueueTable(), out, outcome):
        pass
    found = slow_scan.find_record(data, base, start, stop, True, entries)
    assert outcome.first == (-1 if found < 0 else base + found)
    if found < 0:
        assert outcome.rest_is_zero == (not data[start:stop].any())
