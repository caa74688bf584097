"""The journal: what was appended is read back, what was cut short is cut off, what is damaged is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.build.placement import place
from reput.errors import Finding, JournalError, OutputError
from reput.format.indexfile import IndexHeader
from reput.output import journal
from reput.output.journal import Journal
from reput.replay import state as state_module
from reput.replay.state import Batch, Opening, QueueState, State
from reput.store import files
from tests.crash import Dying, Failing, LosingPower, died
from tests.memory import scratch


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: thousands of flushes are not what is tested here."""
    with scratch() as place:
        yield place


OPENING = Opening("/store", "fingerprint", 300)
FIRST = Batch(
    start=300,
    end=500,
    batch_id=0,
    messages=2,
    bytes=200,
    last_position=400,
    last_timestamp=11,
    last_unit_timestamp=10,
    last_unit_position=300,
    queues={
        ("T", 0): QueueState(3, 5, 500, 2, 200),
        ('"Thema \u00e9\U0001f600', -1): QueueState(0, 8, 400, 1, 90, -7, (310, 90, -5)),
    },
    index=[("20260101000000000", IndexHeader(1, 2, 3, 4, 5, 6))],
    findings=[Finding("bad-size", "/log", 320, 330, "a", "b", "c", "T", 0, 4, 2)],
    without_unit={"../x": 2},
    breaks=[320],
)
#: As versions before snapshots wrote it.
OLD_OPENING = b'{"format":1,"store":"/store","fingerprint":"fingerprint","start":300,"settings":{}}'
OLD_FIRST = (
    b'{"start":300,"end":500,"batch_id":0,"messages":2,"bytes":200,"last_position":400,"last_timestamp":11,'
    b'"last_unit_timestamp":10,"queues":[["T",0,3,5,500,2,200,0],'
    b'["\\"Thema \\u00e9\\ud83d\\ude00",-1,0,8,400,1,90,-7]],"index":[["20260101000000000",'
    b'"00000000000000010000000000000002000000000000000300000000000000040000000500000006"]],'
    b'"findings":[{"kind":"bad-size","path":"/log","offset":320,"end":330,"expected":"a","found":"b",'
    b'"outcome":"c","topic":"T","queue_id":0,"queue_offset":4,"count":2}],"without_unit":{"../x":2},'
    b'"breaks":[320],"last_unit_position":300}'
)
SECOND = Batch(
    start=500,
    end=600,
    batch_id=1,
    messages=1,
    bytes=100,
    last_position=500,
    last_timestamp=12,
    last_unit_timestamp=12,
    last_unit_position=500,
    queues={("T", 0): QueueState(3, 6, 600, 1, 100)},
    index=[("20260101000000000", IndexHeader(1, 2, 3, 4, 5, 9)), ("20260101000000001", IndexHeader())],
    without_unit={"../x": 1, "..": 1},
    breaks=[550],
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    with Journal.create(path, OPENING, None) as created:
        created.append(FIRST)
        created.append(SECOND)
    return path


def test_what_was_appended_is_read_back(path: Path) -> None:
    before = path.read_bytes()
    assert journal.read(path) == (OPENING, [FIRST, SECOND])
    with Journal.open(path) as opened:
        assert (opened.opening, opened.batches) == (OPENING, [FIRST, SECOND])
    assert path.read_bytes() == before


def test_batches_add_up(path: Path) -> None:
    with Journal.open(path) as opened:
        state = opened.state
    assert (state.cursor, state.messages, state.bytes, state.batches) == (600, 3, 300, 2)
    assert (state.last_position, state.last_timestamp, state.last_unit_position) == (500, 12, 500)
    assert state.queues == {**FIRST.queues, **SECOND.queues}
    assert state.index == SECOND.index
    assert state.findings == FIRST.findings
    assert state.without_unit == {"../x": 3, "..": 1}
    assert state.breaks == [550]


def test_a_new_journal_begins_where_the_log_does(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal", OPENING, None) as created:
        assert created.state.cursor == 300
        assert created.batches == []


def ends_of(path: Path) -> list[int]:
    """Where each record ends."""
    data, at, ends = path.read_bytes(), 0, []
    while at < len(data):
        at += 8 + int.from_bytes(data[at : at + 4], "big")
        ends.append(at)
    return ends


def test_a_last_record_cut_at_every_length_was_never_committed(path: Path) -> None:
    data = path.read_bytes()
    _opening, first, second = ends_of(path)
    for length in range(first, second):
        for tail in (b"", bytes(400), b"\xff" * 9)[length % 3 :]:
            path.write_bytes(data[:length] + tail)
            with Journal.open(path) as opened:
                assert opened.batches == [FIRST]
                opened.append(SECOND)
            assert journal.read(path) == (OPENING, [FIRST, SECOND])


def test_every_flipped_bit_is_noticed(path: Path) -> None:
    """In the last record it is a batch that was never committed; before it, nothing can be trusted."""
    data = path.read_bytes()
    opening, first, second = ends_of(path)
    for at in range(second):
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        path.write_bytes(broken)
        if at >= first:
            assert journal.read(path) == (OPENING, [FIRST])
            continue
        with pytest.raises(JournalError) as caught:
            Journal.open(path)
        assert caught.value.path == str(path)
        if at >= opening:
            assert caught.value.offset == opening
            assert caught.value.found == f"another whole record at {first}"
            assert "remove the output and rebuild it" in str(caught.value)
        assert path.read_bytes() == broken


@pytest.mark.parametrize(
    ("data", "found"), [(b"", "none"), (b"\0" * 100, "none"), (b"not a journal", "none")]
)
def test_something_else(tmp_path: Path, data: bytes, found: str) -> None:
    path = tmp_path / "journal"
    path.write_bytes(data)
    with pytest.raises(JournalError, match="this isn't a journal that can be continued") as caught:
        Journal.open(path)
    assert (caught.value.expected, caught.value.found) == ("an opening record of format 1 or 2", found)
    assert path.read_bytes() == data


def test_a_journal_of_another_format(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(journal.frame({"format": 3}))
    with pytest.raises(JournalError, match=r"found 3.*A newer reput wrote it: continue with that version"):
        Journal.open(path)
    path.write_bytes(journal.frame({"format": 0}))
    with pytest.raises(JournalError, match=r"found 0.*Choose another output directory"):
        Journal.open(path)


def test_a_batch_with_something_that_a_later_version_tells(path: Path) -> None:
    """As a reput of before ``salvaged`` meets a journal that has it."""
    whole = path.read_bytes()
    *_, last = (payload for _, payload in journal.whole_frames(whole))
    payload = {**json.loads(last), "unheard_of": [1]}
    path.write_bytes(whole[: -journal.length_of(last)] + journal.frame(payload))
    for reading in (Journal.open, journal.read, journal.read_state):
        with pytest.raises(JournalError, match=r"unheard_of.*Continue with the version that wrote it"):
            reading(path)


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="can't be read; found No such file"):
        Journal.open(tmp_path / "journal")


def test_a_record_that_cannot_be_written_is_not_committed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = Batch(600, 700, 2, 1, 100, 600, 13, 13)
    with Journal.open(path) as opened:
        monkeypatch.setattr(files, "system", Failing(1))
        with pytest.raises(OutputError):
            opened.append(third)
        monkeypatch.undo()
        assert opened.state.cursor == 600
        opened.append(third)
    assert journal.read(path)[1] == [FIRST, SECOND, third]


def test_a_journal_of_a_version_before_snapshots(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(
        b"".join(
            len(payload).to_bytes(4, "big") + crc32(payload).to_bytes(4, "big") + payload
            for payload in (OLD_OPENING, OLD_FIRST)
        )
    )
    queues = {queue: replace(state, lone_zero=None) for queue, state in FIRST.queues.items()}
    first = replace(FIRST, queues=queues)
    with Journal.open(path) as opened:
        assert (opened.batches, committed_at(opened, 1)) == ([first], 0)
        opened.append(SECOND)
    assert journal.read(path) == (OPENING, [first, SECOND])


def committed_at(opened: Journal, number: int) -> float:
    """When a batch was committed, s by the wall clock; 0 if an earlier version did."""
    return opened._kept[opened._place(number)].committed / 1000


def moved(records_: list[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """A journal's records with one removed, two neighbours swapped, or one twice; not what ends cut short."""
    for at in range(len(records_) - 1):
        yield f"{at} removed", records_[:at] + records_[at + 1 :]
        yield f"{at} swapped", [*records_[:at], records_[at + 1], records_[at], *records_[at + 2 :]]
    for at in range(len(records_)):
        yield f"{at} twice", [*records_[: at + 1], *records_[at:]]


def test_each_batch_begins_where_the_one_before_it_ended(tmp_path: Path, short: None) -> None:
    """Also those without messages, which move nothing, and behind a snapshot."""
    path = tmp_path / "journal"
    with Journal.create(path, OPENING, None) as created:
        created.append(FIRST)
        for number in range(2, 7):
            created.append(numbered(number))
            if number == 5:
                still = replace(numbered(number), start=created.state.cursor, end=created.state.cursor)
                created.append(still)
                created.step_back(6, replace(still, findings=FIRST.findings))
        assert created.first_number == 5
        batches = [created.batch(number) for number in range(5, 8)]
    data, ends = path.read_bytes(), ends_of(path)
    head = ends[1]
    kept = [data[start:end] for start, end in pairwise(ends[1:])]
    assert len(kept) == len(batches) >= 3
    for what, mixed in moved(kept):
        path.write_bytes(data[:head] + b"".join(mixed))
        before = path.read_bytes()
        with pytest.raises(JournalError, match="the journal's batches don't follow one another") as caught:
            Journal.open(path)
        assert (caught.value.offset or 0) >= head, what
        assert "begins at physical offset" in str(caught.value.expected)
        assert caught.value.next_step
        for read in (journal.read, journal.read_state):
            with pytest.raises(JournalError, match="don't follow one another"):
                read(path)
        assert path.read_bytes() == before
    path.write_bytes(data)
    assert journal.read(path) == (OPENING, batches)


def test_batches_without_numbers_are_known_by_where_they_begin(tmp_path: Path) -> None:
    """As versions before numbers wrote them."""
    path = tmp_path / "journal"
    done = [numbered(number) for number in range(1, 6)]
    with Journal.create(path, OPENING, None) as created:
        for one in done:
            created.append(one)
    opening, *rest = ends_of(path)
    data = path.read_bytes()
    old = []
    for start, end in pairwise([opening, *rest]):
        payload = json.loads(data[start + 8 : end])
        del payload["number"]
        old.append(journal.frame(payload))
    path.write_bytes(data[:opening] + b"".join(old))
    assert journal.read(path) == (OPENING, done)
    for _, mixed in moved(old):
        path.write_bytes(data[:opening] + b"".join(mixed))
        with pytest.raises(JournalError, match="don't follow one another"):
            journal.read(path)


# --- kept short ------------------------------------------------------------------------------------------


def keep_short(patch: pytest.MonkeyPatch) -> None:
    """Rewrite whenever more than two batches are kept."""
    patch.setattr(journal, "KEEP_BATCHES", 2)
    patch.setattr(journal, "KEEP_SECONDS", 0)
    patch.setattr(journal, "_WORTH_IT", -(1 << 40))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_short(monkeypatch)


def slowly(batches: list[Batch]) -> State:
    """The state from all batches at once."""
    state = State(cursor=OPENING.start, log_start=OPENING.start, batches=len(batches))
    index = {}
    for one in batches:
        state.queues |= one.queues
        index |= dict(one.index)
        for name in one.dropped_index:
            index.pop(name, None)
        for topic, count in one.without_unit.items():
            state.without_unit[topic] = state.without_unit.get(topic, 0) + count
        state.log_start = one.log_start or state.log_start
        state.dropped_index_timestamp = one.dropped_index_timestamp or state.dropped_index_timestamp
        state.last_record = one.last_record or state.last_record
    state.index = sorted(index.items())
    state.findings = [finding for one in batches for finding in one.findings]
    state.breaks = sorted({at for one in batches for at in one.breaks})[-1:]
    state.messages = sum(one.messages for one in batches)
    state.bytes = sum(one.bytes for one in batches)
    for last in batches[-1:]:
        state.cursor = last.end
        state.last_position, state.last_timestamp = last.last_position, last.last_timestamp
        state.last_unit_position = last.last_unit_position
        state.last_unit_timestamp = last.last_unit_timestamp
    return state


NUMBERS = st.integers(0, 1 << 62)
NAMES = st.sampled_from(["1", "2", "3"])
BATCHES = st.builds(
    Batch,
    *[NUMBERS] * 8,
    queues=st.dictionaries(
        st.tuples(st.text(max_size=2), st.integers(-1, 2)), st.builds(QueueState, *[NUMBERS] * 6), max_size=3
    ),
    index=st.lists(
        st.tuples(NAMES, st.builds(IndexHeader, *[st.integers(0, 1 << 30)] * 6)),
        max_size=2,
        unique_by=lambda p: p[0],
    ),
    findings=st.lists(
        st.builds(Finding, *[st.text(max_size=2)] * 2, *[NUMBERS] * 2, *[st.just("x")] * 3), max_size=2
    ),
    without_unit=st.dictionaries(st.text(max_size=2), NUMBERS, max_size=2),
    breaks=st.lists(NUMBERS, max_size=2),
    last_unit_position=st.integers(-1, 99),
    log_start=st.sampled_from([0, 301, 302]),
    dropped_index=st.lists(NAMES, max_size=2),
    dropped_index_timestamp=st.integers(0, 3),
    last_record=st.sampled_from(["", "ab", "cd"]),
)
STEPS = st.lists(st.one_of(BATCHES, st.integers(0, 5), st.just("open")), max_size=12)


@pytest.mark.slow
@settings(deadline=None)
@given(STEPS)
def test_like_a_list_of_batches(steps: list[Batch | int | str]) -> None:
    """Whenever it is rewritten, opened again or stepped back."""
    with scratch() as place, pytest.MonkeyPatch.context() as patch:
        keep_short(patch)
        path = place / "journal"
        opened = Journal.create(path, OPENING, None)
        done: list[Batch] = []
        for step in steps:
            if isinstance(step, Batch):
                cursor = opened.state.cursor
                done.append(replace(step, start=cursor, end=cursor + step.end % 1000))
                opened.append(done[-1])
            elif isinstance(step, str):
                with opened:
                    opened = Journal.open(path)
            else:
                number = max(len(done) - step, opened.first_number - 1)
                assert opened.state_after(number) == slowly(done[:number])
                assert opened.step_back(number) == slowly(done[:number])
                del done[number:]
            kept = done[opened.first_number - 1 :]
            assert opened.batches == kept
            assert journal.read(path) == (OPENING, kept)
            assert opened.state == journal.read_state(path)[1] == slowly(done)
        opened.__exit__(None, None, None)


def numbered(number: int) -> Batch:
    """A batch that a journal may have as its ``number``-th."""
    return replace(
        SECOND,
        batch_id=number,
        start=300 if number == 1 else number * 100 + 300,
        end=number * 100 + 400,
        last_position=number * 100 + 300,
        breaks=[],
    )


def other(number: int) -> Batch:
    """Another one."""
    return replace(numbered(number), messages=77)


def test_cut_behind_a_snapshot(tmp_path: Path, short: None) -> None:
    """Batches can be cut off, the snapshot can't: it was flushed before it was there."""
    path = tmp_path / "journal"
    done = [FIRST, *(numbered(number) for number in range(2, 8))]
    with Journal.create(path, OPENING, None) as created:
        for one in done:
            created.append(one)
        assert created.first_number == 5
    data = path.read_bytes()
    opening, snapshot, *ends = ends_of(path)
    assert len(ends) == 3
    for length in range(opening, len(data)):
        path.write_bytes(data[:length])
        if length < snapshot:
            with pytest.raises(JournalError) as caught:
                Journal.open(path)
            assert caught.value.offset == opening
            continue
        whole = sum(end <= length for end in ends)
        with Journal.open(path) as opened:
            assert opened.batches == done[4 : 4 + whole]
            assert opened.state == slowly(done[: 4 + whole])
    path.write_bytes(data)


def test_batches_of_some_time_are_kept(tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "KEEP_SECONDS", 10)
    now = 1_700_000_000.0
    monkeypatch.setattr(journal.time, "time", lambda: now)
    with Journal.create(tmp_path / "journal", OPENING, None) as created:
        for number in range(1, 101):
            now = 1_700_000_000.0 + number
            created.append(numbered(number))
            assert created.first_number <= max(1, number - 9)
            assert committed_at(created, number) == now
        assert created.first_number > 80
        now -= 1_000_000  # somebody set the clock back: nothing is lost by that
        for number in range(101, 111):
            created.append(numbered(number))
        assert created.first_number > 90
        with pytest.raises(IndexError):
            created.batch(created.first_number - 1)
        with pytest.raises(IndexError):
            created.step_back(created.first_number - 2)
        with pytest.raises(IndexError):
            created.state_after(111)


def committing(path: Path, acknowledged: list[Batch]) -> None:
    """Batches with a rewriting at every few of them, and a step back."""
    with Journal.open(path) as opened:
        for number in range(2, 9):
            opened.append(numbered(number))
            acknowledged.append(numbered(number))
        opened.step_back(7)
        acknowledged.pop()
        opened.append(other(8))
        acknowledged.append(other(8))


def check_kept(path: Path, acknowledged: list[Batch]) -> None:
    """All that was acknowledged is there, and nothing else than what was under way."""
    state = journal.read_state(path)[1]
    under_way = [
        [*acknowledged, numbered(len(acknowledged) + 1)],
        [*acknowledged, other(8)],
        acknowledged[:7],
        acknowledged,
    ]
    assert state in [slowly(done) for done in under_way]
    with Journal.open(path) as opened:
        opened.append(numbered(state.batches + 1))
        assert journal.read_state(path)[1] == opened.state


def test_killed_at_every_step(tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for last in range(1, 999):
        path = tmp_path / str(last) / "journal"
        path.parent.mkdir()
        with Journal.create(path, OPENING, None) as created:
            created.append(FIRST)
        acknowledged = [FIRST]
        monkeypatch.setattr(files, "system", Dying(last))
        was_killed = died(lambda: committing(path, acknowledged))  # noqa: B023
        monkeypatch.setattr(files, "system", Dying())
        check_kept(path, acknowledged)
        if not was_killed:
            break
    assert last > 40


@pytest.mark.parametrize("seed", range(60))
def test_power_lost(tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with Journal.create(root / "journal", OPENING, None) as created:
        created.append(FIRST)
    acknowledged = [FIRST]
    losing = LosingPower(root, seed + 1)
    monkeypatch.setattr(files, "system", losing)
    died(lambda: committing(root / "journal", acknowledged))
    losing.lose(Random(seed))
    monkeypatch.setattr(files, "system", Dying())
    check_kept(root / "journal", acknowledged)


def test_a_failed_rewriting_ends_it(tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the new file is there or the old one isn't known then: nothing more is committed to either."""
    lost = 0
    for last in range(1, 60):
        path = tmp_path / str(last)
        with Journal.create(path, OPENING, None) as opened:
            done = 0
            monkeypatch.setattr(files, "system", Failing(last))
            try:
                for done in range(8):
                    opened.append(numbered(done + 1))
            except OutputError:
                if opened._is_lost:
                    lost += 1
                    with pytest.raises(OutputError, match="could not be rewritten before"):
                        opened.append(numbered(done + 1))
            monkeypatch.setattr(files, "system", Dying())
        assert journal.read_state(path)[1].batches in (done, done + 1)
    assert lost > 10


@pytest.mark.parametrize("count", [0, 2, 9], ids=["begun", "few", "behind a snapshot"])
def test_a_store_that_was_moved(tmp_path: Path, short: None, count: int) -> None:
    path = tmp_path / "journal"
    done = [FIRST, *(numbered(number) for number in range(2, count + 2))] if count else []
    with Journal.create(path, OPENING, None) as opened:
        for one in done:
            opened.append(one)
        first = opened.first_number
        for store in ("/a much longer place than the one before", "/s"):
            opened.move_store(store)
            assert journal.read_state(path) == (replace(OPENING, store=store), opened.state)
            assert opened.batches == journal.read(path)[1] == done[first - 1 :]
        assert opened.state_after(first - 1) == slowly(done[: first - 1])
        opened.append(numbered(len(done) + 1))
    with Journal.open(path) as opened:
        assert opened.opening == replace(OPENING, store="/s")
        assert opened.state == slowly([*done, numbered(len(done) + 1)])
        if count:
            opened.step_back(opened.state.batches - 1)
            assert opened.state == slowly(done)


# --- what a state leaves out -----------------------------------------------------------------------------


def test_findings_beyond_a_bound_become_one_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "MAX_FINDINGS", 6)
    state = State(cursor=0)
    for at in range(20):
        finding = Finding("ab"[at % 2], "s", at, at + 1, "x", "y", "z", "T", 0, at)
        state.add(replace(SECOND, findings=[finding]))
        assert len(state.findings) <= 6
        assert sum(finding.count for finding in state.findings) == at + 1
        assert state.findings[-1] == finding
    first = state.findings[0]
    assert (first.kind, first.offset, first.topic, first.count) == ("a", 0, None, 8)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 400), max_size=4),
    st.integers(0, 400),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=6),
    st.lists(st.integers(400, 700), max_size=2),
    st.integers(-2, 3),
)
def test_the_last_break_is_enough(
    before: list[int], end: int, rows: list[tuple[int, int]], new: list[int], shift: int
) -> None:
    """For a queue that ended anywhere before the cursor, 400 here, and goes on after it."""
    position, offset, at, due = [], [], 400, 10
    for jump, gap in rows:
        position.append(at)
        at += 91 + gap
        due += jump
        offset.append(due)
    columns = np.array(offset, np.int64), np.array(position, np.int64), np.full(len(rows), 91, np.int32)
    found = [
        place(*columns, 2, 10, end, shift, sorted([*breaks, *new]))
        for breaks in (before, sorted(before)[-1:])
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["../../elsewhere", "/etc/passwd", "..", ""])
def test_an_index_file_is_in_the_output(tmp_path: Path, name: str) -> None:
    """A record with a right CRC, by somebody who wants a file removed."""
    path = tmp_path / "journal"
    forged = replace(FIRST, dropped_index=[name])
    path.write_bytes(
        journal.opening_frame(Opening("/store", "f" * 64, FIRST.start), None)
        + journal.batch_frame(forged, 1, 0)
    )
    with pytest.raises(JournalError, match="no name of an index file"):
        Journal.open(path)
