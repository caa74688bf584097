"""The settled end of a live log: never past a byte that may change, and never short of what is certain."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.config.settings import StoreSettings
from reput.errors import LogWentBackError
from reput.format import commitlog, names, properties
from reput.format.commitlog import Record
from reput.log import walk, walk_kernel
from reput.log.end import is_written_out
from reput.log.live import LiveEnd, LiveLog
from reput.log.segments import discover
from tests.broker_memory import BrokerMemory
from tests.levels import examples
from tests.property.logs import segments, with_property_crc
from tests.stores import LogWriter

NOW = 1_700_000_000_000
SHAPES = {
    "4.9": Record(topic=b"orders", body=b"body" * 9, properties=b"KEYS\x01k\x02TAGS\x01paid"),
    "5.x": Record(topic=b"orders", body=b"body" * 9, properties=b"KEYS\x01k\x02TAGS\x01paid\x02"),
    "no properties": Record(topic=b"orders", body=b"body"),
    "no body": Record(topic=b"orders", properties=b"TAGS\x01paid\x02"),
    "a body of zeros": Record(topic=b"orders", body=bytes(300), properties=b"a\x01\0\0\0\0\0\0\0\0b\x02"),
    "nothing": Record(topic=b"o", queue_offset=0),
    "long": Record(topic=b"orders", body=b"x" * 1500, properties=b"KEYS\x01" + b"k" * 900 + b"\x02"),
}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A log, and its end as it is found."""

    def __init__(self, root: Path, segment_size: int = 4096) -> None:
        self.log = LogWriter(root / "store", segment_size)
        self.log.preallocate(0)
        self.settings = StoreSettings.load(self.log.root, None, None)
        self.clock = Clock()
        self.restart()

    def restart(self, exact: int | None = None, timestamp: int = 0) -> None:
        self.live = LiveEnd(
            self.settings, exact=exact, timestamp=timestamp, clock=self.clock, nap=lambda _: None
        )

    def end(self, floor: int | None = None) -> int:
        return self.live.find(discover(self.settings), floor).offset

    def rest(self) -> int:
        """The end once the log has stayed as it is for long."""
        self.end()
        self.clock.now += 3
        return self.end()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    one = Watched(tmp_path)
    yield one
    one.live.close()


def message(number: int, **fields: object) -> Record:
    fields = {"store_timestamp": NOW + number, **fields}
    return Record(topic=b"orders", body=b"body %04d" % number, queue_offset=number, **fields)  # type: ignore[arg-type]


# A record that is being written.


@pytest.mark.parametrize("shape", SHAPES)
def test_no_prefix_of_a_record_is_taken_and_the_whole_is_at_once(watched: Watched, shape: str) -> None:
    log = watched.log
    log.append(message(1))
    assert watched.rest() == log.end
    whole = commitlog.encode(replace(SHAPES[shape], physical_offset=log.end, store_timestamp=NOW + 5))
    for count in range(1, len(whole), 1 if len(whole) < 500 else 17):
        log.overwrite(log.end, whole[:count])
        if any(whole[count:]):
            assert watched.end() == log.end, f"after {count} of {len(whole)} bytes"
    log.overwrite(log.end, whole)
    assert watched.end() == log.end + len(whole)


@pytest.mark.parametrize("block", [8, 64, 512])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_hole_in_a_record_is_taken(tmp_path: Path, shape: str, block: int) -> None:
    """Every aligned block is missing once, and appears while the reader naps or doesn't."""
    watched = Watched(tmp_path)
    log = watched.log
    log.append(message(1))
    start = log.end
    assert watched.rest() == start
    whole = commitlog.encode(replace(SHAPES[shape], physical_offset=start, store_timestamp=NOW + 5))
    size = len(whole)
    for at in range(start - start % block, start + size, block):
        first, stop = max(at, start), min(at + block, start + size)
        hole = whole[: first - start] + bytes(stop - first) + whole[stop - start :]
        log.overwrite(start, bytes(size))
        watched.restart(exact=start)
        assert watched.end() == start
        log.overwrite(start, hole)
        watched.live._nap = lambda _, first=first, data=whole[first - start : stop - start]: log.overwrite(
            first, data
        )
        found = watched.end()
        seen = watched.log.root.joinpath(names.COMMIT_LOG, names.offset_name(0)).read_bytes()
        assert found == start or seen[start : start + size] == whole, f"{first} to {stop}"
        log.overwrite(start, whole)
        assert watched.end() == start + size
    watched.live.close()


@pytest.mark.parametrize("grows", [False, True])
def test_what_a_cut_left_is_not_taken_after_a_restart(watched: Watched, grows: bool) -> None:
    """A message of the same size was committed where the log was cut; older ones are behind it."""
    log = watched.log
    log.append(*(message(number) for number in range(10)))
    size = log.end // 10
    log.end = 4 * size
    log.append(message(4, store_timestamp=NOW + 1000))
    watched.restart(exact=log.end, timestamp=NOW + 1000)
    assert watched.rest() == 5 * size
    if grows:
        log.append(message(5, store_timestamp=NOW + 1001), message(6, store_timestamp=NOW + 1002))
        assert watched.rest() == 7 * size
    watched.restart(exact=5 * size)
    assert watched.rest() == 10 * size if not grows else 7 * size, "without the time nothing shows it"


def test_a_record_that_ends_in_a_zero_waits_for_the_next_or_for_rest(watched: Watched) -> None:
    log = watched.log
    assert watched.end() == 0
    log.append(message(1, properties=b"a\x01b\0"))
    assert watched.end() == 0
    log.append(message(2))
    assert watched.end() == log.end
    log.append(message(3, properties=b"a\x01b\0"))
    before = log.records[-1].physical_offset
    assert watched.end() == before
    watched.clock.now += 1.9
    assert watched.end() == before
    watched.clock.now += 0.2
    assert watched.end() == log.end


def test_a_crc_of_all_bytes_is_proof_enough(watched: Watched) -> None:
    log = watched.log
    record = replace(message(1), physical_offset=0, properties=b"TAGS\x01a\x02" + bytes(20))
    whole = with_property_crc(commitlog.encode(record)[:-20])
    log.overwrite(0, whole)
    assert watched.end() == len(whole)  # at the first look, with nothing known of what was there before


def test_a_last_record_at_the_first_look_waits_for_rest_unless_somebody_took_it(watched: Watched) -> None:
    log = watched.log
    log.append(message(1), message(2))
    last = log.records[-1].physical_offset
    assert watched.end() == last
    watched.restart()
    assert watched.end(floor=log.end) == log.end
    watched.restart()
    assert watched.end(floor=last + 1) == log.end
    watched.restart(exact=log.end)
    assert watched.end() == log.end


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 1 << 32), block=st.sampled_from([1, 8, 64, 512]))
@pytest.mark.slow
def test_bytes_that_appear_in_any_order_are_never_taken_too_soon(seed: int, block: int) -> None:
    chance = random.Random(seed)
    with TemporaryDirectory() as directory:
        broker = BrokerMemory(Path(directory), chance, block=block)
        store = StoreSettings.load(broker.root, None, None)
        live = LiveEnd(store, clock=Clock(), nap=broker.nap)
        shapes = list(SHAPES.values())
        before = live.find(discover(store)).offset
        for number in range(chance.randint(1, 25)):
            many = chance.choice([1, 1, 1, 2])
            fields = {"queue_offset": number, "store_timestamp": NOW + number}
            broker.put(*(replace(chance.choice(shapes), **fields) for _ in range(many)))
            for _ in range(chance.randint(0, 6)):
                broker.issue(chance.choice([1, 10, 91, 300, 5000]))
                end = live.find(discover(store)).offset
                assert broker.is_final(end), f"{end} was handed out"
                assert end >= before
                before = end
        broker.issue(1 << 20)
        broker.nap()
        live.find(discover(store))
        assert live.find(discover(store)).offset == broker.end
        live.close()


# What is left over from before the broker's last start.


def leave(watched: Watched, *, torn: bool) -> list[int]:
    """A log of eight records that was cut before the fourth, which is damaged; returns where each begins."""
    log = watched.log
    log.append(*(message(number) for number in range(8)))
    places = [record.physical_offset for record in log.records]
    if torn:
        log.overwrite(places[3] + 60, bytes(places[4] - places[3] - 60))
    log.end = places[3]
    return places


def test_records_behind_damage_are_held_until_the_log_goes_on_behind_them(watched: Watched) -> None:
    places = leave(watched, torn=True)
    end = len(commitlog.encode(message(0))) * 8
    assert watched.rest() == places[3]
    watched.log.end = end
    watched.log.append(message(100), message(101))
    watched.clock.now += 1
    assert watched.end() == watched.log.end


def test_records_behind_a_cut_are_never_taken_while_they_are_written_over(watched: Watched) -> None:
    places = leave(watched, torn=True)
    log = watched.log
    assert watched.rest() == places[3]
    for number in range(100, 104):
        whole = commitlog.encode(message(number, physical_offset=log.end))
        for count in range(len(whole)):
            log.overwrite(log.end, whole[:count])
            watched.clock.now += 0.1
            assert watched.end() <= log.end, f"record {number} after {count} bytes"
        log.append(message(number))
        watched.clock.now += 0.3
        assert watched.end() <= log.end
    assert watched.rest() == log.end
    log.append(message(104), message(105))
    assert watched.rest() == log.end


def test_older_records_after_newer_ones_are_what_a_cut_left(watched: Watched) -> None:
    leave(watched, torn=False)
    log = watched.log
    log.append(message(100))
    assert watched.rest() == log.end
    log.append(message(101))
    assert watched.end() <= log.end
    assert watched.rest() == log.end


def test_a_clock_that_was_set_back_holds_nothing_up(watched: Watched) -> None:
    log = watched.log
    assert watched.end() == 0
    log.append(message(100), message(1))
    assert watched.end() == log.end
    watched.restart()
    assert watched.end(floor=log.end) == log.end
    watched.restart()
    assert watched.rest() == log.records[1].physical_offset
    log.append(message(2))
    watched.end()
    assert watched.rest() == log.end


def test_a_record_over_a_half_written_one_of_a_dead_broker(watched: Watched) -> None:
    log = watched.log
    log.append(message(1))
    assert watched.rest() == log.end
    dead = commitlog.encode(message(2, physical_offset=log.end, properties=b"KEYS\x01" + b"d" * 50 + b"\x02"))
    new = commitlog.encode(message(2, physical_offset=log.end, properties=b"KEYS\x01" + b"n" * 30 + b"\x02"))
    assert watched.end() == log.end
    log.overwrite(log.end, dead[:-3])
    assert watched.end() == log.end
    for count in range(len(new)):
        log.overwrite(log.end, new[:count] + dead[count:-3])
        watched.clock.now += 0.1
        assert watched.end() == log.end, count
    log.overwrite(log.end, new + dead[len(new) : -3])
    assert watched.end() == log.end
    assert watched.rest() == log.end + len(new)


# Damage that is certain.


def test_damage_that_appears_is_passed_when_a_later_record_follows(watched: Watched) -> None:
    log = watched.log
    log.append(message(1))
    assert watched.rest() == log.end
    at = log.end
    log.append(message(2), message(3))
    log.overwrite(at, b"\xff" * 20)
    assert watched.end() == at
    assert watched.rest() == log.end
    at = log.end
    log.append(message(4))
    log.overwrite(at, b"\xff" * 20)
    assert watched.rest() == at


def test_a_segment_ends_when_the_next_one_begins(watched: Watched) -> None:
    log = watched.log
    log.append(message(1))
    assert watched.rest() == log.end
    log.preallocate(4096)
    assert watched.end() == log.end
    log.overwrite(log.end, b"\xff" * 30)
    assert watched.rest() == log.end
    log.overwrite(4096 - 100, commitlog.encode_blank(100))
    assert watched.rest() == log.end
    held, log.end = log.end, 4096
    log.append(message(2))
    # What leads to the closing record is no record: it may be part of a body that is still being written.
    assert watched.end() == held
    watched.clock.now += 10.1
    assert watched.end() == log.end


def test_a_closing_record_in_a_body_ends_no_segment(watched: Watched) -> None:
    """A broker with buffers has begun the next segment; this one's last message holds a closing record."""
    buffered = Buffered(watched)
    log = watched.log
    at = buffered.held + 88 + 20
    body = b"x" * 20 + commitlog.encode_blank(4096 - at)[:8] + b"y" * 100
    whole = commitlog.encode(replace(message(77), body=body, physical_offset=buffered.held))
    assert whole[108:112] == (4096 - at).to_bytes(4, "big")
    for count in (120, len(whole) - 1, len(whole)):
        log.overwrite(buffered.held, whole[:count])
        watched.restart()
        assert watched.rest() <= buffered.held + len(whole)
    assert watched.end() == buffered.held + len(whole)


def test_a_blank_is_no_end_of_a_segment_before_the_next_begins(watched: Watched) -> None:
    log = watched.log
    log.append(message(1))
    assert watched.rest() == log.end
    log.overwrite(log.end, commitlog.encode_blank(4096 - log.end))
    assert watched.end() == log.end
    assert watched.end(floor=4096) == 4096
    log.preallocate(4096)
    assert watched.end() == log.end
    log.end = 4096
    log.append(message(2))
    assert watched.end() == log.end


def test_several_segments_may_pass_between_two_looks(watched: Watched) -> None:
    log = watched.log
    assert watched.end() == 0
    for number in range(300):
        log.append(message(number))
    assert watched.end() == log.end > 5 * 4096


# A broker without a free buffer: a later segment is in its file before the end of an earlier one.


class Buffered:
    """A log of which the segments from one on appear later than the one behind them.

    Attributes:
        late: what is still in the broker's buffers, in the order in which it is written to the files.
        held: where the first of it goes.
        end: the log's.
    """

    def __init__(self, watched: Watched, *, empty: int = 0) -> None:
        """``empty``: how many whole segments are missing, too."""
        log = self.log = watched.log
        log.append(*(message(number) for number in range(20)))
        self.held = log.end
        while log.end < 4096 * (empty + 1):
            log.append(message(len(log.records)))
        log.append(message(len(log.records)))
        self.end = log.end
        self.late = []
        for base in range(0, 4096 * (empty + 1), 4096):
            data = log.preallocate(base).read_bytes()
            start = max(self.held - base, 0)
            self.late.append((base + start, data[start:]))
            log.overwrite(base + start, bytes(4096 - start))

    def write(self, most: int) -> None:
        """Write some of what is late; ``held`` is then where the record begins that is cut."""
        offset, data = self.late.pop(0)
        self.log.overwrite(offset, data[:most])
        if data[most:]:
            self.late.insert(0, (offset + most, data[most:]))
        starts = [record.physical_offset for record in self.log.records]
        self.held = max(start for start in starts if start <= offset + min(most, len(data)))


@pytest.mark.parametrize("seen", [False, True], ids=["at the first look", "later"])
@pytest.mark.parametrize("empty", [0, 2])
def test_a_segments_end_that_is_written_after_the_next_ones_begin_is_waited_for(
    watched: Watched, empty: int, seen: bool
) -> None:
    if seen:
        assert watched.end() == 0
    buffered = Buffered(watched, empty=empty)
    for most in (1, 40, 100, 500, 10_000):
        watched.rest()  # the last record before a part that isn't there, at the first look
        for _ in range(9):
            watched.clock.now += 0.7
            assert watched.end() == buffered.held
        buffered.write(most)
    while buffered.late:
        assert watched.end() == buffered.late[0][0]
        buffered.write(10_000)
    assert watched.rest() == buffered.end


@pytest.mark.parametrize("stands", [b"", b"\xff" * 30, commitlog.encode(message(20))[:60]])
def test_a_segments_end_that_never_comes_is_passed_after_ten_seconds(watched: Watched, stands: bytes) -> None:
    buffered = Buffered(watched)
    watched.log.overwrite(buffered.held, stands)
    watched.rest()
    assert watched.live.held_before == 4096
    watched.clock.now += 6.9
    assert watched.end() == buffered.held
    assert watched.live.is_uncertain
    watched.clock.now += 3.2
    assert watched.live.stirs()
    assert watched.end() > 4096
    assert watched.rest() == buffered.end
    assert watched.live.held_before is None
    watched.restart()
    assert watched.end(floor=buffered.end) == buffered.end  # an earlier reader has waited


def test_any_change_of_the_file_begins_the_ten_seconds_anew(watched: Watched) -> None:
    buffered = Buffered(watched)
    path = watched.log.preallocate(0)
    watched.rest()
    for number in range(5):
        watched.clock.now += 9
        os.utime(path, ns=(number, number))
        assert watched.end() == buffered.held
    watched.clock.now += 10
    assert watched.live.stirs()
    assert watched.end() > 4096


def test_segments_that_are_missing_wait_together(watched: Watched) -> None:
    buffered = Buffered(watched, empty=2)
    watched.rest()
    assert watched.end() == buffered.held
    watched.clock.now += 9.9
    assert watched.end() == buffered.held
    watched.clock.now += 0.2
    assert watched.end() >= 3 * 4096
    assert watched.rest() == buffered.end


def untouched_for_long(watched: Watched) -> None:
    for path in (watched.log.root / names.COMMIT_LOG).iterdir():
        os.utime(path, (NOW / 1000, NOW / 1000))


def test_whole_segments_behind_a_held_one_are_not_walked_before_their_turn(watched: Watched) -> None:
    for number in range(300):
        watched.log.append(message(number))
    start = max(record.physical_offset for record in watched.log.records if record.physical_offset < 4096)
    watched.log.overwrite(start, bytes(4096 - start))
    untouched_for_long(watched)
    walked: set[int] = set()
    open_segment = watched.live._open
    watched.live._open = lambda segment, size: (  # type: ignore[method-assign]
        walked.add(segment.base) or open_segment(segment, size)  # type: ignore[func-returns-value]
    )
    watched.rest()
    watched.clock.now += 5
    assert watched.end() == start
    assert walked == {0}
    watched.clock.now += 6
    assert watched.rest() == watched.log.end > 5 * 4096
    assert walked == {0, watched.log.end // 4096 * 4096}


def test_what_comes_to_a_later_segment_begins_its_ten_seconds_anew(watched: Watched) -> None:
    buffered = Buffered(watched, empty=2)
    watched.rest()
    watched.clock.now += 5
    watched.end()
    offset, data = buffered.late[1]
    watched.log.overwrite(offset, data[:700])
    held = max(
        record.physical_offset for record in watched.log.records if record.physical_offset <= 4096 + 700
    )
    watched.end()
    watched.clock.now += 5.1
    assert 4096 < watched.end() <= held
    watched.clock.now += 4.8
    assert 4096 < watched.end() <= held
    watched.clock.now += 0.2
    assert watched.end() > 3 * 4096


def test_a_segment_has_ten_seconds_once_the_one_before_it_is_written_out(watched: Watched) -> None:
    """Buffers are written in order: the later one's turn comes after."""
    buffered = Buffered(watched, empty=1)
    watched.rest()
    for _ in range(3):
        watched.clock.now += 9
        buffered.write(30)
        watched.end()
    watched.clock.now += 9
    offset, data = buffered.late.pop(0)
    watched.log.overwrite(offset, data)
    assert watched.rest() == 4096
    watched.clock.now += 6.9
    assert watched.end() == 4096
    watched.clock.now += 0.2
    assert watched.end() > 2 * 4096


def test_a_blank_is_looked_for_only_when_something_changed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffered = Buffered(watched)
    watched.rest()
    asked: list[int] = []

    def written_out(descriptor: int, length: int) -> bool:
        asked.append(descriptor)
        return is_written_out(descriptor, length)

    monkeypatch.setattr("reput.log.live.is_written_out", written_out)
    for _ in range(50):
        assert watched.end() == buffered.held
    assert asked == []
    watched.log.overwrite(buffered.held, commitlog.encode_blank(4096 - buffered.held))
    assert watched.end() > 4096
    assert asked == []


@pytest.mark.parametrize(
    "stands",
    [b"", b"\xff" * 30, commitlog.encode(message(20))[:60]],
    ids=["zeros", "damage", "half a record"],
)
def test_a_segment_that_was_passed_by_time_and_is_written_after_all_is_an_error(
    watched: Watched, stands: bytes
) -> None:
    buffered = Buffered(watched)
    log = watched.log
    # The later segment has begun, and holds no record yet: nothing there tells that the log went back.
    log.overwrite(4096, bytes(4096))
    log.overwrite(4096, commitlog.encode(message(20, physical_offset=4096))[:40])
    log.overwrite(buffered.held, stands)
    watched.rest()
    watched.clock.now += 10.1
    assert watched.end() == 4096
    assert watched.rest() == 4096
    # A broker that died, cut its log, and its successor, which has come to the same segment.
    log.end = buffered.held
    log.append(message(77))
    with pytest.raises(LogWentBackError) as raised:
        watched.end()
    assert raised.value.offset is not None
    assert buffered.held <= raised.value.offset < buffered.held + 100


def test_a_passed_segment_whose_blank_comes_after_all_is_no_error(watched: Watched) -> None:
    buffered = Buffered(watched)
    log = watched.log
    whole = log.preallocate(4096).read_bytes()
    log.overwrite(4096, whole[:40] + bytes(4056))
    watched.rest()
    watched.clock.now += 10.1
    assert watched.end() == 4096
    log.overwrite(buffered.held, commitlog.encode_blank(4096 - buffered.held))
    log.overwrite(4096, whole)
    assert watched.rest() == buffered.end


def test_bytes_that_come_to_a_held_segment_stir(watched: Watched) -> None:
    buffered = Buffered(watched)
    watched.rest()
    assert watched.end() == buffered.held
    assert not watched.live.stirs()
    buffered.write(200)
    assert watched.live.stirs()


def test_segments_that_are_written_out_are_not_walked_at_the_first_look(watched: Watched) -> None:
    for number in range(300):
        watched.log.append(message(number))
    untouched_for_long(watched)
    walked: list[int] = []
    walk = watched.live._walk
    watched.live._walk = lambda tail, *rest, **more: (
        walked.append(tail.segment.base)
        or walk(  # type: ignore[method-assign,func-returns-value]
            tail, *rest, **more
        )
    )
    assert watched.rest() == watched.log.end > 5 * 4096
    assert set(walked) == {watched.log.end // 4096 * 4096}


def test_a_run_to_the_end_waits_for_all_segments_that_have_begun(watched: Watched) -> None:
    class Hasty(Clock):
        def __call__(self) -> float:
            self.now += 0.5
            return self.now

    buffered = Buffered(watched, empty=2)
    log = LiveLog(watched.settings)
    log._end = LiveEnd(watched.settings, clock=Hasty(), nap=lambda _: None)
    assert log.settle(0.0) >= 3 * 4096
    log._end.close()
    while buffered.late:
        buffered.write(10_000)
    log = LiveLog(watched.settings)
    assert log.settle(0.0) == watched.log.records[-1].physical_offset
    log._end.close()


@pytest.mark.parametrize("left", [8, 9, 4095, 4096, 5000, 300_000])
def test_a_segments_blank_is_found_whatever_stands_behind_it(tmp_path: Path, left: int) -> None:
    size = 1 << 20
    blank = commitlog.encode_blank(left)[: commitlog.BLANK_LENGTH]
    magic = blank[4:]
    path = tmp_path / "segment"
    for rest in (b"\0", b"old ", magic, commitlog.encode_blank(4000)[:8]):
        behind = (rest * left)[: left - len(blank)]
        for whole, expected in ((bytes(size - left) + blank + behind, True), (bytes(size), False)):
            path.write_bytes(whole)
            with path.open("rb") as file:
                assert is_written_out(file.fileno(), size) is expected
    path.write_bytes(bytes(size - left) + commitlog.encode_blank(left + 1)[:left])
    with path.open("rb") as file:
        assert not is_written_out(file.fileno(), size)


# A log that isn't what it was.


def test_a_log_that_goes_back_is_an_error(watched: Watched) -> None:
    log = watched.log
    log.append(*(message(number) for number in range(4)))
    assert watched.rest() == log.end
    end = log.end
    log.overwrite(log.records[2].physical_offset, bytes(end - log.records[2].physical_offset))
    with pytest.raises(LogWentBackError, match="the commit log has gone back") as raised:
        watched.end()
    assert raised.value.offset == log.records[3].physical_offset
    watched.restart()
    with pytest.raises(LogWentBackError) as raised:
        watched.end(floor=end)
    assert raised.value.offset is not None
    assert raised.value.offset <= log.records[2].physical_offset


def test_a_log_that_was_cut_and_grew_otherwise_is_an_error(watched: Watched) -> None:
    log = watched.log
    log.append(*(message(number) for number in range(4)))
    assert watched.rest() == log.end
    log.end = log.records[1].physical_offset
    log.append(*(message(number) for number in range(50, 60)))
    with pytest.raises(LogWentBackError):
        watched.end()


def test_a_deleted_segment_is_a_cut_at_the_end_and_expiry_at_the_head(watched: Watched) -> None:
    log = watched.log
    assert watched.end() == 0
    log.append(*(message(number) for number in range(60)))
    assert watched.end() == log.end > 4096
    first, second = (log.root / names.COMMIT_LOG / names.offset_name(base) for base in (0, 4096))
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(LogWentBackError):
        watched.end()
    second.write_bytes(kept)
    watched.restart()
    assert watched.end(floor=log.end) == log.end
    first.unlink()
    assert watched.end() == log.end
    second.unlink()
    log.end = 8192
    log.append(message(100), message(101))
    assert watched.rest() == log.end


# The fast walk.


@settings(max_examples=examples(300), deadline=None)
@given(segment=segments(damaged=True), trusted=st.integers(0, 900), v2=st.booleans(), most=st.integers(0, 9))
@pytest.mark.slow
def test_both_walks_agree(segment: tuple[int, np.ndarray], trusted: int, v2: bool, most: int) -> None:
    base, data = segment
    for top in (0, NOW):
        slow = walk.walk(data.data, base, 0, trusted, v2, top, most)
        assert walk_kernel.walk(data, base, 0, trusted, v2, top, most) == slow


def test_properties_are_parsed_as_the_scan_does() -> None:
    assert properties.parse(SHAPES["a body of zeros"].properties) == {b"a": bytes(8) + b"b"}
