"""The journal: what was appended is read back, what was cut short is cut off, what is damaged is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.errors import Finding, JournalError, OutputError
from reput.format.indexfile import IndexHeader
from reput.sink import journal, records
from reput.sink.journal import Batch, Journal, Opening, QueueState
from reput.store import files
from tests.crash import Failing
from tests.property.test_rebuild import scratch


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
    with pytest.raises(JournalError, match="no journal that can be continued") as caught:
        Journal.open(path)
    assert (caught.value.expected, caught.value.found) == ("an opening record of format 1 or 2", found)
    assert path.read_bytes() == data


def test_a_journal_of_another_format(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(records.frame({"format": 3}))
    with pytest.raises(JournalError, match="found 3"):
        Journal.open(path)


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
