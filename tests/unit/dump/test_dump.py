"""Dumps of the commit log: the records and the damage that a slow twin sees, whatever is asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from reput.config.settings import StoreSettings
from reput.dump import commitlog as dump
from reput.dump import places
from reput.dump.commitlog import Blank, Block, Event, LogExtent, Reader, Unwritten, follow, of_log
from reput.dump.damage import Damage
from reput.dump.places import LogPlace
from reput.dump.wanted import Transaction, Wanted
from reput.errors import LogWentBackError, StoreError, UnsupportedError
from reput.format import commitlog, names, properties
from reput.format.commitlog import Record
from reput.log import live
from reput.log.segments import CommitLog, Segment
from reput.query.message import Message
from reput.scan.rules import rules
from reput.statistics import By, Tally, groups_of, total_of
from reput.words import snake_case
from tests.levels import examples
from tests.property.logs import lay_out, lay_out_entries, segments
from tests.slow_dump import segment_events

SETTINGS = StoreSettings.load(Path("store"), None, None)
RULES = rules(SETTINGS, index=False)
MOST = dump.MOST_OFFSET


def seen(events: Iterable[Event]) -> list[tuple[object, ...]]:
    """Events as the twin has them."""
    found: list[tuple[object, ...]] = []
    for event in events:
        if isinstance(event, Block):
            found += [
                ("row", one.record.physical_offset, one.record.physical_offset + one.size)
                for one in event.messages()
            ]
        elif isinstance(event, Damage):
            found.append(("damage", event.kind, event.offset, event.end))
        elif isinstance(event, Blank):
            found.append(("blank", event.offset))
        else:
            found.append(("unwritten", event.offset))
    return found


def dumped(
    base: int,
    data: bytes,
    *,
    last: bool = True,
    entries: bool = False,
    wanted: Wanted | None = None,
    start: int = 0,
    end: int = MOST,
) -> list[tuple[object, ...]]:
    with TemporaryDirectory() as directory:
        path = Path(directory, names.offset_name(base))
        path.write_bytes(data)
        reader = Reader(SETTINGS, entries=entries, wanted=wanted or Wanted(), start=start, end=end)
        return seen(reader.segment(Segment(path, base, len(data)), len(data), last=last))


def expected(base: int, data: bytes, *, last: bool = True, entries: bool = False) -> list[tuple[object, ...]]:
    told = list(segment_events(base, data, RULES._replace(entries=entries or None), last=last))
    return [event[:4] if event[0] == "damage" else event for event in told]


@pytest.fixture(autouse=True)
def no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "_LOOK_AGAIN_SECONDS", 0)


@given(segments(damaged=True), st.booleans())
@settings(max_examples=examples(120))
def test_a_segment_is_what_the_slow_twin_sees(segment: tuple[int, np.ndarray], last: bool) -> None:
    base, data = segment[0], segment[1].tobytes()
    assert dumped(base, data, last=last) == expected(base, data, last=last)


@given(segments(), st.booleans())
@settings(max_examples=examples(50))
def test_a_sound_segment_is_what_the_slow_twin_sees(segment: tuple[int, np.ndarray], last: bool) -> None:
    base, data = segment[0], segment[1].tobytes()
    assert dumped(base, data, last=last) == expected(base, data, last=last)


@given(segments(damaged=True, entries=True), st.booleans())
@settings(max_examples=examples(60))
def test_so_is_one_that_dledger_wrote(segment: tuple[int, np.ndarray], last: bool) -> None:
    base, data = segment[0], segment[1].tobytes()
    assert dumped(base, data, last=last, entries=True) == expected(base, data, last=last, entries=True)


@given(segments(damaged=True), st.integers(-20, 1500), st.integers(0, 900))
@settings(max_examples=examples(80))
def test_a_range_holds_the_records_that_begin_in_it_and_the_damage_that_touches_it(
    segment: tuple[int, np.ndarray], first: int, length: int
) -> None:
    base, data = segment[0], segment[1].tobytes()
    start = max(base + first, 0)
    end = start + length
    told = [
        event
        for event in segment_events(base, data, RULES, last=False)
        if event[0] != "unwritten" and _touches(event, start, end)
    ]
    found = dumped(base, data, last=False, start=start, end=end)
    assert found == [event[:4] if event[0] == "damage" else event for event in told]


def _touches(event: tuple[object, ...], start: int, end: int) -> bool:
    if event[0] != "damage":
        return start <= int(str(event[1])) < end
    _, _, offset, stop, taken = event
    assert isinstance(offset, int)
    assert isinstance(stop, int)
    return offset < end and (offset >= start or (stop > start and not taken))


def _several(entries: bool) -> st.SearchStrategy[tuple[bool, list[tuple[int, np.ndarray]]]]:
    parts = st.lists(segments(damaged=True, entries=entries), min_size=1, max_size=3)
    return st.tuples(st.just(entries), parts)


@given(st.booleans().flatmap(_several))
@settings(max_examples=examples(40))
def test_a_log_ends_where_its_last_record_does(log: tuple[bool, list[tuple[int, np.ndarray]]]) -> None:
    entries, parts = log
    rows, found = [], []
    with TemporaryDirectory() as directory:
        for number, (base, array) in enumerate(parts):
            data = array.tobytes()
            path = Path(directory, str(number))
            path.write_bytes(data)
            found.append(Segment(path, base, len(data)))
            told = segment_events(base, data, RULES._replace(entries=entries or None), last=True)
            rows += [(number, *event[1:]) for event in told if event[0] == "row"]
        size = max(segment.length for segment in found)
        extent = of_log(LogPlace(SETTINGS, CommitLog(tuple(found), size, entries=entries), can_grow=True))
        if not rows:
            assert (extent.start, extent.end) == (found[0].base, found[0].base)
            return

        def time(number: int, start: int) -> int:
            return commitlog.decode(parts[number][1].tobytes(), start - found[number].base).store_timestamp

        (first, begun, _), (last, final, end) = rows[0], rows[-1]
        assert extent == LogExtent(found[0].base, end, time(first, begun), time(last, final))


@pytest.mark.parametrize("junk", [b"", b"x" * 100])
def test_a_log_may_begin_with_segments_that_are_holes(tmp_path: Path, junk: bytes) -> None:
    data = lay_out(records(3, 10), 1 << 16)
    write_log(tmp_path, (0, junk), (1 << 16, data))
    for base in (0, 1 << 16, 1 << 17):
        with (tmp_path / "commitlog" / names.offset_name(base)).open("ab") as file:
            file.truncate(1 << 16)
    extent = of_log(places.log_place(tmp_path, None, None))
    assert extent == LogExtent(0, (1 << 16) + len(data), 10, 12)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("broken", [0, 4, 90, 4096])
@pytest.mark.parametrize("size", [4096, 4000, 4200])
def test_a_hole_of_a_file_is_as_good_as_zeros(tmp_path: Path, size: int, broken: int, last: bool) -> None:
    """Whether the last record ends before the hole, where it begins, or in it; ``broken``: bytes of it."""
    data = lay_out([Record(b"t", b"", store_timestamp=5)])
    data = lay_out([Record(b"t", bytes(size - 2 * len(data)), store_timestamp=5), Record(b"t")])
    data = data[: len(data) - 91 + broken] if broken else data
    path = tmp_path / names.offset_name(0)
    told = []
    for is_sparse in (False, True):
        path.write_bytes(data if is_sparse else data.ljust(1 << 16, b"\0"))
        os.truncate(path, 1 << 16)
        reader = Reader(SETTINGS, entries=False, wanted=Wanted())
        told.append(seen(reader.segment(Segment(path, 0, 1 << 16), 1 << 16, last=last)))
        place = LogPlace(SETTINGS, CommitLog((Segment(path, 0, 1 << 16),), 1 << 16), can_grow=True)
        told[-1].append(("ends", of_log(place).end))
    assert path.stat().st_blocks * 512 < 1 << 15
    assert told[0] == told[1]


_VALUES = ["TopicA", "TopicB", "%RETRY%group", "a", "key", "x", ""]
_wanted = st.builds(
    Wanted,
    topics=st.lists(st.sampled_from(_VALUES), max_size=2).map(tuple),
    queues=st.lists(
        st.tuples(st.sampled_from(_VALUES), st.sampled_from([None, 0, 1, 7, -1])), max_size=2
    ).map(tuple),
    queue_start=st.none() | st.integers(-1, 3),
    queue_end=st.none() | st.integers(0, 6),
    tags=st.none() | st.frozensets(st.sampled_from(_VALUES[3:]), min_size=1, max_size=2),
    key=st.none() | st.sampled_from(_VALUES[3:]),
    uniq_key=st.none() | st.sampled_from(_VALUES[3:]),
    transaction=st.none() | st.sampled_from(Transaction),
    body_size_over=st.none() | st.integers(0, 40),
    since=st.none() | st.integers(0, 1 << 41),
    until=st.none() | st.integers(0, 1 << 41),
)


def is_wanted(wanted: Wanted, record: Record) -> bool:
    """The same of one record, slowly."""
    values = properties.parse(record.properties)
    keys = values.get(b"KEYS", b"").split(b" ")
    uniq_key = values.get(b"UNIQ_KEY")
    state = {0: "none", 4: "prepared", 8: "commit", 12: "rollback"}[record.sys_flag & 12]
    places_wanted = [(topic, None) for topic in wanted.topics] + list(wanted.queues)
    return all(
        [
            wanted.since is None or record.store_timestamp >= wanted.since,
            wanted.until is None or record.store_timestamp < wanted.until,
            wanted.queue_start is None or record.queue_offset >= wanted.queue_start,
            wanted.queue_end is None or record.queue_offset < wanted.queue_end,
            wanted.transaction is None or wanted.transaction.value == state,
            wanted.body_size_over is None or len(record.body) > wanted.body_size_over,
            wanted.tags is None or values.get(b"TAGS", b"") in [tag.encode() for tag in wanted.tags],
            wanted.uniq_key is None or (uniq_key or b"") == wanted.uniq_key.encode(),
            wanted.key is None or wanted.key.encode() in [*keys, uniq_key or b""],
            not places_wanted
            or any(
                record.topic == topic.encode() and queue_id in (None, record.queue_id)
                for topic, queue_id in places_wanted
            ),
        ]
    )


@given(segments(), _wanted)
@example(
    (0, np.frombuffer(lay_out([Record(b"a", properties=b"KEYS\x01x  key")]), np.uint8)), Wanted(key="key")
)
@example((0, np.frombuffer(lay_out([Record(b"a", properties=b"KEYS\x01keys")]), np.uint8)), Wanted(key="key"))
@settings(max_examples=examples(80))
def test_filters_by_columns_are_filters_record_by_record(
    segment: tuple[int, np.ndarray], wanted: Wanted
) -> None:
    assume(wanted.key != "")  # an empty word is no key, and the command line takes none
    base, data = segment[0], segment[1].tobytes()
    told = []
    for event in segment_events(base, data, RULES, last=False):
        if event[0] == "row" and is_wanted(wanted, commitlog.decode(data, int(str(event[1])) - base)):
            told.append(event)
    found = [event for event in dumped(base, data, last=False, wanted=wanted) if event[0] == "row"]
    assert found == told


@given(st.lists(segments(), max_size=3))
@settings(max_examples=examples(25))
def test_sums_by_topic_are_those_of_the_records(parts: list[tuple[int, np.ndarray]]) -> None:
    sums = Tally(By.TOPIC)
    told: dict[str, list[tuple[int, int]]] = {}
    everything = []
    for base, array in parts:
        data = array.tobytes()
        with TemporaryDirectory() as directory:
            path = Path(directory, names.offset_name(base))
            path.write_bytes(data)
            reader = Reader(SETTINGS, entries=False, wanted=Wanted())
            for event in reader.segment(Segment(path, base, len(data)), len(data), last=False):
                if isinstance(event, Block):
                    sums.add(event.data, event.base, event.frames, event.rows)
                    for one in event.messages():
                        told.setdefault(one.topic, []).append((one.size, one.record.store_timestamp))
                        everything.append((one.size, one.record.store_timestamp))
    assert len(told) == len(groups_of([sums], By.TOPIC))
    for one in groups_of([sums], By.TOPIC):
        sizes = [size for size, _ in told[one.topic or ""]]
        times = [time for _, time in told[one.topic or ""]]
        assert (one.messages, one.bytes, one.least, one.most) == (
            len(sizes),
            sum(sizes),
            min(sizes),
            max(sizes),
        )
        assert (one.first_time, one.last_time) == (min(times), max(times))
    total = total_of([sums])
    if not everything:
        assert total is None
        return
    assert total is not None
    assert (total.messages, total.bytes) == (len(everything), sum(size for size, _ in everything))
    assert (total.first_time, total.last_time) == (
        min(time for _, time in everything),
        max(time for _, time in everything),
    )
    assert (total.least, total.most) == (min(everything)[0], max(everything)[0])


def test_many_topics_are_added_up() -> None:
    data = lay_out([Record(b"topic-%d" % (number % 700), b"x" * (number % 3)) for number in range(2000)])
    sums = Tally(By.TOPIC)
    with TemporaryDirectory() as directory:
        path = Path(directory, names.offset_name(0))
        path.write_bytes(data)
        for event in Reader(SETTINGS, entries=False, wanted=Wanted()).segment(
            Segment(path, 0, len(data)), len(data), last=True
        ):
            if isinstance(event, Block):
                sums.add(event.data, event.base, event.frames, event.rows)
    assert len(groups_of([sums], By.TOPIC)) == 700
    assert {one.messages for one in groups_of([sums], By.TOPIC)} == {2, 3}
    total = total_of([sums])
    assert total is not None
    assert (total.messages, total.bytes) == (2000, len(data))


def write_log(directory: Path, *parts: tuple[int, bytes]) -> Path:
    log = directory / "commitlog"
    log.mkdir(exist_ok=True)
    for base, data in parts:
        (log / names.offset_name(base)).write_bytes(data)
    return log


def records(count: int, first_time: int, **fields: object) -> list[Record]:
    return [
        replace(Record(b"t", b"%d" % number, store_timestamp=first_time + number), **fields)
        for number in range(count)
    ]


def read_log(path: Path, wanted: Wanted | None = None) -> list[tuple[object, ...]]:
    place = places.log_place(path, None, None)
    reader = Reader(place.settings, entries=place.log.entries, wanted=wanted or Wanted())
    return seen(reader.log(place.log, followed=place.followed))


def test_a_path_is_a_store_a_directory_or_a_segment_wherever_it_is(tmp_path: Path) -> None:
    def part(base: int) -> bytes:
        data = lay_out(records(3, base), base)
        return data + commitlog.encode_blank(1000 - len(data))

    log = write_log(tmp_path, (0, part(0)), (1000, part(1000)))
    told = read_log(tmp_path)
    assert [event[0] for event in told] == ["row"] * 3 + ["blank"] + ["row"] * 3 + ["blank"]
    assert read_log(log) == told
    second = [event for event in told if int(str(event[1])) >= 1000]
    assert read_log(log / names.offset_name(1000)) == second
    for name in ("copied.bin", "9" * 20, names.offset_name((1 << 63) - 1)):
        copy = tmp_path / name
        copy.write_bytes(part(1000))
        assert read_log(copy) == second
        copy.unlink()
    (tmp_path / "cut").write_bytes(part(1000)[150:])
    with pytest.raises(StoreError, match=r"can't be told where this file begins in the log.*20 digits"):
        read_log(tmp_path / "cut")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(StoreError, match="the segment is empty"):
        read_log(tmp_path / "empty")
    with pytest.raises(StoreError, match="there is nothing here"):
        read_log(tmp_path / "nothing")


def test_a_segment_is_the_last_one_unless_its_successor_lies_beside_it(tmp_path: Path) -> None:
    cut = lay_out(records(3, 0)).ljust(1000, b"\0")
    log = write_log(tmp_path, (0, cut), (1000, bytes(1000)))
    assert read_log(log / names.offset_name(0))[-1][0] == "unwritten"
    write_log(tmp_path, (1000, lay_out(records(1, 9), 1000)))
    assert read_log(log / names.offset_name(0))[-1][:2] == ("damage", "unwritten-range")


@pytest.mark.parametrize("name", ["index", "consumequeue", "commitlog"])
def test_a_store_may_be_called_like_a_part_of_one(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    root.mkdir()
    write_log(root, (0, lay_out(records(2, 0))))
    assert [event[0] for event in read_log(root)] == ["row", "row"]


def test_entries_of_dledger_are_known_without_broker_conf(tmp_path: Path) -> None:
    data = lay_out_entries([(one, False) for one in records(3, 0)], 0, True, 0)
    log = write_log(tmp_path, (0, data))
    told = read_log(log)
    assert [event[0] for event in told] == ["row", "row", "row", "blank"]
    copy = tmp_path / "copied"
    copy.write_bytes(data)
    assert read_log(copy) == told
    place = places.log_place(log, None, None)
    with pytest.raises(UnsupportedError, match="isn't followed"):
        next(follow(place.settings, Wanted(), 0, MOST, entries=place.log.entries))


def test_segments_of_other_times_are_left_out(tmp_path: Path) -> None:
    parts = []
    for number, base in enumerate(range(0, 4000, 1000)):
        data = lay_out(records(3, 100 * number), base)
        parts.append((base, data + commitlog.encode_blank(1000 - len(data))))
    write_log(tmp_path, *parts)
    told = [event for event in read_log(tmp_path, Wanted(since=101, until=202)) if event[0] == "row"]
    assert [int(str(event[1])) // 1000 for event in told] == [1, 1, 2, 2]
    # What the times of segments rule out isn't read: a look at the first record is all.
    for until, last in ((201, 2), (200, 1)):
        whole = read_log(tmp_path, Wanted(since=101, until=until))
        assert [event[1] // 1000 for event in whole if event[0] == "blank"][-1] == last  # type: ignore[operator]
        assert whole[0] == told[0]


def test_gaps_and_lengths_are_shown_in_their_place(tmp_path: Path) -> None:
    def part(base: int) -> bytes:
        data = lay_out(records(2, base), base)
        return data + commitlog.encode_blank(1000 - len(data))

    write_log(tmp_path, (0, part(0)), (1000, part(1000)), (3000, part(3000)))
    told = read_log(tmp_path)
    gap = ("damage", "missing-segments", 2000, 3000)
    assert told.index(gap) == 6
    assert len(told) == 10


def test_half_a_record_that_somebody_writes_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lay_out(records(3, 0))
    half = whole[:-20].ljust(2000, b"\0")
    log = write_log(tmp_path, (0, half))
    assert read_log(tmp_path)[-1][:2] == ("damage", "torn-tail")
    path = log / names.offset_name(0)

    def finished(_seconds: float) -> None:
        with path.open("r+b") as file:
            file.write(whole)

    monkeypatch.setattr(dump._changes, "__kwdefaults__", {"nap": finished})
    assert [event[0] for event in read_log(tmp_path)] == ["row", "row"]


def test_properties_that_somebody_writes_are_not_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lay_out(records(2, 0, properties=b"TAGS\x01a\x02"))
    log = write_log(tmp_path, (0, whole[:-3].ljust(2000, b"\0")))
    assert [event[:2] for event in read_log(tmp_path)][2:3] == [("damage", "torn-properties")]
    path = log / names.offset_name(0)

    def finished(_seconds: float) -> None:
        with path.open("r+b") as file:
            file.write(whole)

    monkeypatch.setattr(dump._changes, "__kwdefaults__", {"nap": finished})
    assert "damage" not in [event[0] for event in read_log(tmp_path)]


@pytest.mark.usefixtures("short_rest")
def test_a_log_is_followed_as_far_as_it_is_settled(tmp_path: Path) -> None:
    first = lay_out(records(2, 10))
    path = write_log(tmp_path, (0, first.ljust(1000, b"\0"))) / names.offset_name(0)
    place = places.log_place(tmp_path, None, None)
    events = follow(place.settings, Wanted(), 0, MOST, entries=False)

    def look() -> list[tuple[object, ...]]:
        found = []
        for event in events:
            if event is None:
                break
            found += seen([event])
        return found

    told = look()
    while len(told) < 2:
        told += look()
    assert [event[0] for event in told] == ["row", "row"]
    assert look() == []
    more = lay_out(records(2, 20), len(first))
    with path.open("r+b") as file:
        file.write(first + more)
    told = look()
    while len(told) < 2:
        told += look()
    assert [event[1] for event in told] == [len(first), len(first) + len(more) // 2]
    end = len(first) + len(more)
    with path.open("r+b") as file:
        file.seek(end)
        file.write(commitlog.encode_blank(1000 - end))
    write_log(tmp_path, (1000, lay_out(records(1, 30), 1000).ljust(1000, b"\0")))
    told = look()
    while ("row", 1000, 1000 + len(first) // 2) not in told:
        told += look()
    assert [event[0] for event in told] == ["blank", "row"]
    path.with_name(names.offset_name(1000)).write_bytes(bytes(1000))
    with pytest.raises(LogWentBackError):
        look()


@pytest.mark.parametrize("start", [0, None])
def test_a_broker_that_starts_is_waited_for(tmp_path: Path, start: int | None) -> None:
    log = write_log(tmp_path)
    with pytest.raises(StoreError, match="the commit log is empty"):
        places.log_place(tmp_path, None, None)
    place = places.log_place(tmp_path, None, None, may_be_empty=True)
    assert place.log.segments == ()
    events = follow(place.settings, Wanted(), start, MOST, entries=place.log.entries)
    assert next(events) is None
    (log / names.offset_name(0)).write_bytes(lay_out(records(2, 10)).ljust(1000, b"\0"))
    found = next(event for event in events if event is not None)
    assert [event[0] for event in seen([found])] == ["row"]


def write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def followed(events: Iterator[Event | None], looks: int = 8) -> list[tuple[object, ...]]:
    """What is shown until nothing new came so many times."""
    told = []
    while looks:
        event = next(events)
        if event is None:
            looks -= 1
        else:
            told += seen([event])
    return told


@pytest.fixture
def short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What settles a record that nothing follows (docs/internals/live-log.md, rules 3 and 5); quick looks."""
    monkeypatch.setattr(live, "_REST_SECONDS", 0.02)
    monkeypatch.setattr(live, "_LIST_SECONDS", 0.005)
    monkeypatch.setattr(dump, "_WAIT_SECONDS", 0.005)


def shown(tmp_path: Path, start: int | None, end: int = MOST) -> Iterator[Event | None]:
    return follow(places.log_place(tmp_path, None, None).settings, Wanted(), start, end, entries=False)


@pytest.mark.usefixtures("short_rest")
def test_the_last_record_of_a_quiet_log_is_shown_when_it_has_rested(tmp_path: Path) -> None:
    data = lay_out(records(3, 10))
    write_log(tmp_path, (0, data.ljust(1000, b"\0")))
    started = time.monotonic()
    told = []
    for event in shown(tmp_path, 0):
        told += seen([event] if event is not None else [])
        if len(told) == 2:
            assert time.monotonic() - started < 60
        if len(told) == 3:
            break
    assert [event[1] for event in told] == [0, len(data) // 3, len(data) // 3 * 2]
    assert time.monotonic() - started > 0.02


@pytest.mark.usefixtures("short_rest")
@pytest.mark.parametrize("quiet", [True, False])
def test_from_the_end_on_only_what_was_not_there_is_shown(tmp_path: Path, *, quiet: bool) -> None:
    """Neither when the last record that was there has rested, nor when another one settles it."""
    data = lay_out(records(6, 10))
    one = len(data) // 6
    path = write_log(tmp_path, (0, data[: 3 * one].ljust(1000, b"\0"))) / names.offset_name(0)
    events = shown(tmp_path, None, len(data))
    assert next(events) is None
    if quiet:
        time.sleep(0.03)
        assert followed(events) == []
    write_at(path, 3 * one, data[3 * one :])
    assert [event[1] for event in seen(event for event in events if event is not None)] == [
        3 * one, 4 * one, 5 * one,
    ]  # fmt: skip


@pytest.mark.usefixtures("short_rest")
def test_another_record_in_the_place_of_the_last_one_is_news(tmp_path: Path) -> None:
    """A broker died over it, and the next one writes there."""
    data = lay_out(records(3, 10))
    one = len(data) // 3
    path = write_log(tmp_path, (0, data.ljust(1000, b"\0"))) / names.offset_name(0)
    events = shown(tmp_path, None)
    assert next(events) is None
    write_at(path, 2 * one, lay_out(records(2, 20), 2 * one))
    assert [event[1] for event in followed(events, 30)] == [2 * one, 3 * one]


@pytest.mark.usefixtures("short_rest")
def test_what_expired_before_it_was_shown_is_said(tmp_path: Path) -> None:
    def part(base: int, *, closed: bool = True) -> bytes:
        data = lay_out(records(3, base), base)
        return data + (commitlog.encode_blank(1000 - len(data)) if closed else bytes(1000 - len(data)))

    log = write_log(tmp_path, *((base, part(base, closed=base < 3000)) for base in range(0, 4000, 1000)))
    events = shown(tmp_path, 0)
    told = seen([next(event for event in events if event is not None)])
    for base in (0, 1000):  # while a reader that is slow reads the first one
        (log / names.offset_name(base)).unlink()
    told += followed(events, 40)
    assert [event[1] // 1000 for event in told if event[0] == "row"] == [0] * 3 + [2] * 3 + [3] * 3  # type: ignore[operator]
    assert [event for event in told if event[0] == "damage"] == [("damage", "expired-unread", 1000, 2000)]
    # And while nothing is read at all: the log goes on without what was read last.
    for base in (4000, 5000):
        write_log(tmp_path, (base, part(base)))
    write_log(tmp_path, (6000, part(6000, closed=False)))
    for base in (2000, 3000, 4000):
        (log / names.offset_name(base)).unlink()
    told = followed(events, 40)
    (damage,) = [event for event in told if event[0] == "damage"]
    assert (damage[1], damage[3]) == ("expired-unread", 5000)
    assert [event[1] // 1000 for event in told if event[0] == "row"] == [5] * 3 + [6] * 3  # type: ignore[operator]


@pytest.mark.usefixtures("short_rest")
def test_a_gap_is_said_once_while_a_log_is_followed(tmp_path: Path) -> None:
    def part(base: int) -> bytes:
        data = lay_out(records(2, base), base)
        return data + commitlog.encode_blank(1000 - len(data))

    write_log(tmp_path, *((base, part(base)) for base in (0, 1000, 3000)))
    write_log(tmp_path, (4000, lay_out(records(2, 4000), 4000).ljust(1000, b"\0")))
    told = followed(shown(tmp_path, 0), 40)
    assert [event[1:] for event in told if event[0] == "damage"] == [("missing-segments", 2000, 3000)]
    assert sum(event[0] == "row" for event in told) == 8


@pytest.mark.usefixtures("short_rest")
def test_following_may_begin_behind_the_end(tmp_path: Path) -> None:
    data = lay_out(records(6, 10))
    one = len(data) // 6
    path = write_log(tmp_path, (0, data[: 2 * one].ljust(1000, b"\0"))) / names.offset_name(0)
    events = shown(tmp_path, 4 * one)
    assert followed(events, 20) == []
    write_at(path, 2 * one, data[2 * one :])
    assert [event[1] for event in followed(events, 20)] == [4 * one, 5 * one]


def test_a_row_has_the_columns_of_the_data_source() -> None:
    from reput.source.columns import MESSAGE_COLUMNS

    one = Record(b"t", b"\xff", b"KEYS\x01a b\x02TAGS\x01x", body_crc=0xFFFFFFFF)
    message = Message(one, 100)
    found = message.to_dict()
    more = ("body_size", "offset_msg_id", "batch")
    assert [snake_case(name) for name in MESSAGE_COLUMNS][:-1] == [name for name in found if name not in more]
    assert (found["keys"], found["tags"], found["uniq_key"], found["body_crc"]) == (["a", "b"], "x", None, -1)
    assert message.body_to_dict() == {"body_base64": "/w=="}
    assert Message(replace(one, body="é".encode()), 100).body_to_dict() == {"body": "é"}


def test_unwritten_says_how_far(tmp_path: Path) -> None:
    data = lay_out(records(1, 0), zeros=30)
    path = write_log(tmp_path, (0, data))
    reader = Reader(SETTINGS, entries=False, wanted=Wanted())
    *_, end = reader.segment(Segment(path / names.offset_name(0), 0, len(data)), len(data), last=True)
    assert end == Unwritten(len(data) - 30, len(data))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(topics=("a",)), [0, 3]),
        (Wanted(topics=("ab", "b")), [1, 2]),
        (Wanted(queues=(("a", 3),)), [3]),
        (Wanted(queues=(("a", None),), queue_start=1, queue_end=3), [3]),
        (Wanted(tags=frozenset({"x", "y"})), [0]),
        (Wanted(key="k"), [0, 2]),
        (Wanted(key="kk"), [1]),
        (Wanted(uniq_key="k"), [2]),
        (Wanted(transaction=Transaction.NONE), [0, 1, 2]),
        (Wanted(transaction=Transaction.ROLLBACK), [3]),
        (Wanted(since=11, until=13), [1, 2]),
        (Wanted(topics=("a",), since=11), [3]),
        (Wanted(topics=("nothing",)), []),
    ],
)
def test_texts_are_compared_whole_and_conditions_hold_together(wanted: Wanted, found: list[int]) -> None:
    log = [
        Record(b"a", properties=b"TAGS\x01x\x02KEYS\x01j k", store_timestamp=10),
        Record(b"ab", properties=b"TAGS\x01xy\x02KEYS\x01kk", store_timestamp=11, queue_offset=1),
        Record(b"b", properties=b"UNIQ_KEY\x01k", store_timestamp=12, queue_offset=2),
        Record(b"a", queue_id=3, queue_offset=2, sys_flag=12, store_timestamp=13),
    ]
    data = lay_out(log)
    starts = [event[1] for event in segment_events(0, data, RULES, last=True) if event[0] == "row"]
    told = [event[1] for event in dumped(0, data, wanted=wanted)]
    assert told == [starts[number] for number in found]


def test_a_topic_is_found_however_it_is_spelled() -> None:
    log = [
        Record(topic) for topic in (b"caf\xe9", b"cafe", b"caf\xff", "caf\ufffd".encode(), "caf\xe9".encode())
    ]
    data = lay_out(log)
    starts = [event[1] for event in segment_events(0, data, RULES, last=True) if event[0] == "row"]

    def found(topic: str) -> list[object]:
        return [event[1] for event in dumped(0, data, wanted=Wanted(topics=(topic,)))]

    assert found("caf\ufffd") == [starts[0], starts[2], starts[3]]
    assert found("caf\xe9") == [starts[4]]
    assert found("caf\udcff") == [starts[2]]  # these very bytes, as a shell gives them


def test_a_record_in_an_entry_begins_behind_the_header() -> None:
    data = lay_out_entries([(one, False) for one in records(3, 0)], 0, True, 0)
    _, second, _third, _ = dumped(0, data, entries=True)
    start = int(str(second[1]))
    for first, count in ((start - 47, 3), (start, 3), (start + 1, 2)):
        assert len(dumped(0, data, entries=True, start=first)) == count
    assert dumped(0, data, entries=True, start=start, end=start + 1) == [second]
