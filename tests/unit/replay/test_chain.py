"""Which results of scanned parts count, and what is scanned again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reput.format import commitlog
from reput.format.commitlog import Record
from reput.replay.part_result import Chain, ScannedPart, Verdict
from reput.scan import output
from reput.scan.output import Status
from reput.scan.part import PartOutcome, scan_part
from reput.scan.rules import Part, Rules
from reput.scan.table import QueueTable
from tests.local import kinds
from tests.property.logs import lay_out

RULES = Rules(True, True, True, False, False, True, True, True, False, np.ones(18, np.int64))
RECORD = Record(b"T", b"0123456789", store_timestamp=1000)
LENGTH = len(lay_out([RECORD]))
SIZE = 1000


class Log:
    """Segments of 1000 bytes, and their parts."""

    def __init__(self, place: Path, *segments: bytes) -> None:
        self.segments = [segment.ljust(SIZE, b"\0") for segment in segments]
        self.paths = [place / f"{number:020d}" for number in range(len(segments))]
        for path, data in zip(self.paths, self.segments, strict=True):
            path.write_bytes(data)

    def part(self, start: int, end: int, exact: bool | None = None, after: int = 0) -> Part:
        number = start // SIZE
        return Part(
            str(self.paths[number]),
            number * SIZE,
            SIZE,
            SIZE,
            start,
            end,
            start % SIZE == 0 if exact is None else exact,
            number == len(self.segments) - 1,
            after,
        )

    def scan(self, part: Part) -> ScannedPart:
        data = np.frombuffer(self.segments[part.base // SIZE], np.uint8)
        out, outcome = output.output(), PartOutcome()
        for _ in scan_part(part, data, RULES, QueueTable(), out, outcome):
            pass
        messages = int(out.counts[output.MESSAGES])
        last = int(out.counts[output.LAST_TIMESTAMP])
        return ScannedPart(part, outcome, messages, last)

    def chain(self, *parts: Part) -> tuple[Chain, list[Verdict]]:
        chain = Chain(parts[0].start, 0)
        return chain, [chain.judge(self.scan(part)) for part in parts]


def records(count: int, base: int = 0, blank: bool = False) -> bytes:
    data = lay_out([RECORD] * count, base)
    return data + commitlog.encode_blank(SIZE - len(data)) if blank else data


FITS = Verdict(True)


def test_parts_that_join(tmp_path: Path) -> None:
    log = Log(tmp_path, records(6))
    chain, verdicts = log.chain(log.part(0, 250), log.part(250, 400), log.part(400, 1000))
    assert verdicts == [FITS] * 3
    assert (chain.finish(), chain.findings) == (6 * LENGTH, [])


def test_a_part_inside_one_message(tmp_path: Path) -> None:
    log = Log(tmp_path, lay_out([RECORD, Record(b"T", b"x" * 500), RECORD]))
    chain, verdicts = log.chain(log.part(0, 200), log.part(200, 400), log.part(400, 1000))
    assert verdicts == [FITS] * 3
    assert chain.finish() == len(lay_out([RECORD, Record(b"T", b"x" * 500), RECORD]))


def fooled(tmp_path: Path) -> Log:
    """A message's body holds a record of its own place, and a part begins before it."""
    fake = commitlog.encode(Record(b"fake", b"x", physical_offset=LENGTH + 88))
    return Log(tmp_path, lay_out([RECORD, replace(RECORD, body=fake), RECORD]))


def test_a_wrong_guess_is_scanned_again(tmp_path: Path) -> None:
    log = fooled(tmp_path)
    one, two = log.part(0, 150), log.part(150, 1000)
    wrong = log.scan(two)
    assert wrong.outcome.first == LENGTH + 88
    chain = Chain(0, 0)
    assert chain.judge(log.scan(one)) == FITS
    cursor = chain.cursor
    verdict = chain.judge(wrong)
    assert not verdict.accepted
    assert verdict.again == log.part(cursor, 1000, exact=True, after=1000)
    assert chain.judge(log.scan(verdict.again)) == FITS
    assert chain.finish() == cursor + LENGTH
    assert chain.findings == []


def test_a_wrong_guess_in_a_part_that_holds_no_message(tmp_path: Path) -> None:
    log = fooled(tmp_path)
    _, (first, second) = log.chain(log.part(0, 150), log.part(150, 250))
    assert (first, second) == (FITS, Verdict(False, None))


def test_what_follows_a_blank_is_nothing(tmp_path: Path) -> None:
    data = bytearray(records(2, blank=True))
    stale = commitlog.encode(Record(b"stale", physical_offset=500))
    data[500 : 500 + len(stale)] = stale
    log = Log(tmp_path, bytes(data), records(1, base=SIZE))
    chain, verdicts = log.chain(log.part(0, 400), log.part(400, 1000), log.part(1000, 2000))
    assert verdicts == [FITS, Verdict(False, None), FITS]
    assert (chain.finish(), chain.findings) == (SIZE + LENGTH, [])


def test_zeros_up_to_the_end(tmp_path: Path) -> None:
    log = Log(tmp_path, records(1))
    chain, verdicts = log.chain(log.part(0, 400), log.part(400, 700), log.part(700, 1000))
    assert verdicts == [FITS] * 3
    assert (chain.finish(), chain.findings) == (LENGTH, [])


def test_something_after_zeros_is_a_torn_tail_or_the_log_goes_on(tmp_path: Path) -> None:
    log = Log(tmp_path, records(1).ljust(800, b"\0") + b"noise")
    chain, verdicts = log.chain(log.part(0, 400), log.part(400, 700), log.part(700, 1000))
    assert verdicts[:2] == [FITS, FITS]
    again = verdicts[2].again
    assert again == log.part(LENGTH, 1000, exact=True, after=1000)
    assert chain.judge(log.scan(again)) == FITS
    assert chain.finish() == LENGTH
    assert kinds(chain.findings) == ["torn-tail"]


def test_a_message_that_cant_be_dispatched_is_newer_than_what_a_truncation_left(tmp_path: Path) -> None:
    late = Record(commitlog.SCHEDULE_TOPIC, b"x", b"DELAY\x01x\x02", store_timestamp=3000)
    begin = len(lay_out([RECORD, late]))
    data = bytearray(lay_out([RECORD, late, RECORD, replace(RECORD, store_timestamp=2000)]))
    data[begin + commitlog.MAGIC] ^= 1
    log = Log(tmp_path, bytes(data))
    chain, verdicts = log.chain(log.part(0, begin), log.part(begin, 1000))
    again = verdicts[1].again
    assert again == log.part(begin, 1000, exact=True, after=3000)
    assert chain.judge(log.scan(again)) == FITS
    assert (chain.finish(), chain.last_timestamp, chain.newest) == (begin, 1000, 3000)
    assert kinds(chain.findings) == ["bad-delay", "torn-tail"]


@pytest.mark.parametrize("end", [150, 400])
def test_damage_that_goes_on_into_the_next_part(tmp_path: Path, end: int) -> None:
    data = bytearray(records(5))
    data[LENGTH : 3 * LENGTH] = b"\xee" * (2 * LENGTH)
    log = Log(tmp_path, bytes(data))
    chain = Chain(0, 0)
    assert chain.judge(log.scan(log.part(0, end))) == FITS
    second = chain.judge(log.scan(log.part(end, 1000)))
    if second.again is not None:
        assert second.again.start == chain.cursor == LENGTH
        assert chain.judge(log.scan(second.again)) == FITS
    assert chain.finish() == 5 * LENGTH
    (finding,) = chain.findings
    assert (finding.kind, finding.offset, finding.end) == ("bad-magic", LENGTH, 3 * LENGTH)
    assert chain.breaks == [LENGTH]


def test_a_segment_without_its_end(tmp_path: Path) -> None:
    log = Log(tmp_path, records(2), records(1, base=SIZE))
    chain, verdicts = log.chain(log.part(0, 1000), log.part(1000, 2000))
    assert verdicts == [FITS, FITS]
    (finding,) = chain.findings
    assert (finding.kind, finding.offset, finding.end) == ("unwritten-range", 2 * LENGTH, SIZE)
    assert chain.breaks == [2 * LENGTH]


def test_a_batch_that_ends_inside_a_segment_says_nothing_of_its_end(tmp_path: Path) -> None:
    data = bytearray(records(2))
    data[LENGTH:] = b"\xee" * LENGTH
    log = Log(tmp_path, bytes(data))
    chain, _ = log.chain(log.part(0, 300))
    assert (chain.finish(), chain.findings) == (LENGTH, [])


def test_the_time_before_a_segment_tells_what_is_stale(tmp_path: Path) -> None:
    """Damage at a last segment's beginning, then messages older than those before it."""
    old = Record(b"T", b"0123456789", store_timestamp=10)
    second = b"\xee" * LENGTH + lay_out([old], SIZE + LENGTH)
    log = Log(tmp_path, records(2, blank=True), second)
    chain = Chain(0, 0)
    assert chain.judge(log.scan(log.part(0, 1000))) == FITS
    verdict = chain.judge(log.scan(log.part(1000, 2000)))
    assert verdict == Verdict(False, log.part(1000, 2000, after=1000))
    assert verdict.again is not None
    result = log.scan(verdict.again)
    assert result.outcome.status is Status.BAD_MAGIC
    assert chain.judge(result) == FITS
    assert chain.finish() == SIZE
    assert kinds(chain.findings) == ["torn-tail"]
