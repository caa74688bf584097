"""Where a table of messages and its log part; which files are merged, and which are removed."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType

from reput.catalog import Cataloged, CatalogOptions, appending, rows, update
from reput.catalog.appending import Appending, Standing, stand
from reput.catalog.hold import remove_unnamed
from reput.catalog.rows import columns
from reput.catalog.table import APPLICATION, DAY, KNOWN_BY, File, Table, known_by
from reput.catalog.update import LARGE, MANY, MOST_LOG, MOST_ROWS, SMALL, Catalog, due
from reput.cli.output import cataloged_apart
from reput.config.settings import StoreSettings
from reput.errors import (
    LogWentBackError,
    OutputError,
    SegmentGoneError,
    SettingsError,
    StoreError,
    StoreInUseError,
)
from reput.format import commitlog, names
from reput.format.commitlog import Record
from reput.job.options import RebuildOptions
from reput.log.segments import CommitLog, cut, discover
from reput.query.log import LogReader
from reput.replay.runner import Processes
from reput.source import messages
from reput.store import files
from reput.store.lock import OutputLock
from tests.golden.store import unpack
from tests.here import Here as _Here
from tests.stores import LogWriter

_TODAY = date(2026, 11, 22)
_FIRST = date(2026, 11, 1)


class _Held:
    """A store, and a table of its messages up to an offset."""

    def __init__(self, store: Path, conf: Path, table: Path, version: str = "5.3.3") -> None:
        self.settings = StoreSettings.load(store, conf, version, dledger=True)
        self.path = table
        log = discover(self.settings)
        parts = cut(log, log.start, log.end, 1 << 40, None)
        batches = [batch for part in parts for batch in messages.read(part, self.settings, KNOWN_BY)]
        self.rows = pa.Table.from_batches(batches)
        self.places = self.rows.column("physicalOffset").to_pylist()

    def hold(self, start: int, stop: int, cursor: int) -> Table:
        """A table of the messages with these numbers."""
        self.add(self.rows.slice(start, stop - start), cursor)
        return Table(self.path)

    def add(self, rows: pa.Table, cursor: int) -> None:
        """Add rows to the table, in one commit with the cursor."""
        days = pa.array([_TODAY] * len(rows), pa.date32())
        write_deltalake(
            str(self.path),
            rows.append_column(DAY, days),
            partition_by=[DAY],
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION, cursor)]),
        )

    def place(self, number: int) -> int:
        return int(self.places[number])

    def segment(self, place: int) -> tuple[Path, int]:
        """The segment that a record lies in, and where in it."""
        found = next(one for one in reversed(discover(self.settings).segments) if one.base <= place)
        return found.path, place - found.base

    def overwrite(self, place: int, data: bytes) -> None:
        path, position = self.segment(place)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(data)


@pytest.fixture
def held(tmp_path: Path) -> _Held:
    store = unpack("5.3.3-mixed", tmp_path / "store")
    return _Held(store.root, store.write_broker_conf(), tmp_path / "table")


def test_a_new_table_begins_where_the_log_does(held: _Held) -> None:
    table = Table(held.path)
    assert (table.cursor, table.version, table.columns, table.files()) == (None, -1, (), [])
    assert stand(table, held.settings, allow_gap=False) == Standing(after=-1, begin=0)


def test_a_table_that_the_log_agrees_with_is_gone_on_with(held: _Held) -> None:
    table = held.hold(0, 300, held.place(300))
    assert (table.messages, table.last()) == (300, held.place(299))
    assert stand(table, held.settings, allow_gap=False) == Standing(
        after=held.place(299), begin=held.place(299)
    )


def test_entries_of_dledger_begin_before_their_records(tmp_path: Path) -> None:
    store = unpack("5.5.0-dledger", tmp_path / "store")
    held = _Held(store.root, store.write_broker_conf(), tmp_path / "table", "5.5.0")
    table = held.hold(0, 100, held.place(100))
    begin = held.place(99) - 48
    assert stand(table, held.settings, allow_gap=False) == Standing(after=held.place(99), begin=begin)


def _write_over(held: _Held, numbers: Iterable[int]) -> None:
    for number in numbers:
        message = LogReader(held.settings).message(held.place(number))
        assert message is not None
        other = replace(message.record, store_timestamp=message.record.store_timestamp + 5)
        held.overwrite(held.place(number), commitlog.encode(other))


@pytest.mark.parametrize(("number", "window"), [(299, 1000), (250, 1000), (1, 1000), (1, 1 << 20)])
def test_a_log_that_was_written_anew_went_back_to_there(
    held: _Held, number: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appending, "WINDOW", window)
    table = held.hold(0, 300, held.place(300))
    _write_over(held, range(number, 300))
    place = held.place(number)
    went_back = stand(table, held.settings, allow_gap=False)
    assert went_back == Standing(held.place(number - 1), held.place(number - 1), gone_from=place)
    table.step_back(place)
    assert (table.cursor, table.messages, table.last()) == (place, number, held.place(number - 1))
    assert stand(table, held.settings, allow_gap=False).gone_from is None


def _end_in(held: _Held, number: int) -> int:
    """Delete the segments behind that of a message; how many messages there are then."""
    base = held.place(number) - held.segment(held.place(number))[1]
    for segment in discover(held.settings).segments:
        if segment.base > base:
            segment.path.unlink()
    return sum(place < base + discover(held.settings).segment_size for place in held.places)


@pytest.mark.parametrize("most", [3000, 1 << 30])
@pytest.mark.parametrize("behind", ["nothing", "a segment made ahead", "messages of the table"])
def test_old_messages_that_fill_windows_behind_new_ones_prove_nothing(
    held: _Held, behind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker deletes the segments behind the place where it cuts its log, and wipes nothing before them."""
    monkeypatch.setattr(appending, "WINDOW", 1000)
    monkeypatch.setattr(appending, "MOST_WINDOW", most)
    length = held.segment(held.place(300))[0].stat().st_size
    end = _end_in(held, 300)
    first = next(number for number in range(300, 0, -1) if held.segment(held.place(number))[1] == 0) + 3
    assert held.place(end - 1) - held.place(first + 2) > 3 * 3000
    table = held.hold(0, end + (20 if behind == "messages of the table" else 0), held.place(end))
    if behind != "nothing":
        base = held.place(first) - held.segment(held.place(first))[1] + length
        (held.settings.commit_log_dirs[0] / f"{base:020d}").write_bytes(bytes(length))
    _write_over(held, [first, first + 1])
    found = stand(table, held.settings, allow_gap=False)
    assert found == Standing(held.place(first - 1), held.place(first - 1), gone_from=held.place(first))


class _Rows:
    """A table in memory."""

    def __init__(self, rows: pa.Table, cursor: int) -> None:
        self.rows, self.cursor = rows, cursor
        self._places = np.asarray(rows.column("physicalOffset"))

    def last(self) -> int | None:
        return int(self._places[-1]) if len(self._places) else None

    def first(self, start: int) -> int:
        return int(self._places[self._places >= start][0])

    def between(self, start: int, end: int) -> pa.Table:
        low, high = np.searchsorted(self._places, [start, end])
        return self.rows.slice(low, high - low)


def _scanned(settings: StoreSettings) -> pa.Table:
    log = discover(settings)
    parts = cut(log, log.start, log.end, 1 << 40, None)
    batches = [batch for part in parts for batch in messages.read(part, settings, KNOWN_BY)]
    return known_by(pa.Table.from_batches(batches))


def _append(log: LogWriter, random: Random, count: int) -> None:
    """Messages of a few lengths, so that new ones often end where old ones did."""
    for _ in range(count):
        time = (log.records[-1].store_timestamp if log.records else 0) + 1
        body = b"%d" % random.randrange(10) * random.choice([20, 20, 20, 60, 90])
        log.append(Record(b"T", body, queue_offset=0, store_timestamp=time))


def _cut(log: LogWriter, place: int) -> None:
    """As ``MappedFileQueue.truncateDirtyFiles`` does; a broker then makes two segments ahead of time."""
    log.end = place
    base = place - place % log.segment_size
    for path in (log.root / "commitlog").iterdir():
        if int(path.name) > base:
            path.unlink()
    for ahead in (1, 2):
        log.preallocate(base + ahead * log.segment_size)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_broker_cuts_and_writes_the_table_has_each_message_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of the table and what is added to it then are the log's messages, as a scan finds them."""
    random = Random(seed)
    monkeypatch.setattr(appending, "WINDOW", random.choice([200, 700, 3000]))
    monkeypatch.setattr(appending, "MOST_WINDOW", random.choice([200, 1500, 1 << 30]))
    log = LogWriter(tmp_path, segment_size=2000)
    _append(log, random, random.randrange(20, 80))
    settings = StoreSettings.load(tmp_path, None, "5.3.3")
    rows = _scanned(settings)
    table = _Rows(rows, log.end)
    for _ in range(random.randrange(1, 4)):
        places = _scanned(settings).column("physicalOffset").to_pylist()
        kept = [place for place in places if place < log.end]
        _cut(log, random.choice(kept[1:]))
        _append(log, random, random.choice([1, 2, 5, random.randrange(60)]))
    if int(rows.column("physicalOffset")[1].as_py()) >= log.end:
        pytest.fail("a log that has nothing of the table is another test's")
    found = stand(table, settings, allow_gap=False)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(appending, "_same_start", lambda *_: 0)
        assert stand(table, settings, allow_gap=False) == found  # type: ignore[arg-type]
    gone = table.cursor if found.gone_from is None else found.gone_from
    left = [row for row in rows.to_pylist() if row["physicalOffset"] < gone]
    now = _scanned(settings).to_pylist()
    added = [row for row in now if row["physicalOffset"] > found.after]
    assert left + added == now
    assert found.begin in {row["physicalOffset"] for row in now}
    assert found.begin <= found.after + 1


def test_old_messages_behind_a_new_one_prove_nothing(held: _Held) -> None:
    table = held.hold(0, 300, held.place(300))
    _write_over(held, [200])
    assert stand(table, held.settings, allow_gap=False).gone_from == held.place(200)


def test_a_longer_record_takes_away_all_that_it_lies_over(held: _Held) -> None:
    table = held.hold(0, 300, held.place(300))
    numbers = [
        number
        for number, (one, two) in enumerate(zip(held.places[:298], held.places[2:], strict=False))
        if number > 200 and held.segment(one)[0] == held.segment(two)[0]
    ]
    number = numbers[0]
    place = held.place(number) + 40  # in the middle of a record of the table, up to the end of the next one
    record = replace(
        LogReader(held.settings).message(held.place(number)).record,  # type: ignore[union-attr]
        physical_offset=place,
    )
    room = held.place(number + 2) - place - len(commitlog.encode(record))
    record = replace(record, properties=record.properties + b"x\x01" + b"y" * (room - 3) + b"\x02")
    held.overwrite(held.place(number), b"\0" * 40 + commitlog.encode(record))
    assert stand(table, held.settings, allow_gap=False).gone_from == held.place(number)


def test_a_log_that_ends_before_the_tables_messages_was_cut(held: _Held) -> None:
    table = held.hold(0, 300, held.place(300))
    segments = discover(held.settings).segments
    path, position = held.segment(held.place(260))
    for segment in segments:
        if segment.base > held.place(260):
            segment.path.unlink()
    held.overwrite(held.place(260), bytes(path.stat().st_size - position))
    assert stand(table, held.settings, allow_gap=False).gone_from == held.place(260)


@pytest.mark.parametrize("numbers", [[299], [290, 299], [250], [0, 1, 299]])
@pytest.mark.parametrize("window", [1000, 1 << 20])
def test_damage_in_the_log_takes_nothing_out_of_a_table(
    held: _Held, numbers: list[int], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appending, "WINDOW", window)
    table = held.hold(0, 300, held.place(300))
    for number in numbers:
        held.overwrite(held.place(number), b"\xff" * 20)
    found = stand(table, held.settings, allow_gap=False)
    assert (found.after, found.gone_from) == (held.place(299), None)
    assert found.begin in held.places
    assert found.begin <= held.place(299)


@pytest.mark.parametrize("byte", [15, 27])
def test_a_bit_that_no_checksum_guards_makes_no_other_message(held: _Held, byte: int) -> None:
    """queueId and queueOffset."""
    table = held.hold(0, 300, held.place(300))
    path, position = held.segment(held.place(250))
    with path.open("rb") as file:
        file.seek(position + byte)
        value = file.read(1)[0]
    held.overwrite(held.place(250) + byte, bytes([value ^ 1]))
    held.overwrite(held.place(249), b"\xff" * 20)
    assert stand(table, held.settings, allow_gap=False).gone_from is None


def test_a_message_that_is_damaged_before_another_one_stays(held: _Held) -> None:
    table = held.hold(0, 300, held.place(300))
    held.overwrite(held.place(249), b"\xff" * 20)
    _write_over(held, range(250, 300))
    found = stand(table, held.settings, allow_gap=False)
    assert found == Standing(held.place(248), held.place(248), gone_from=held.place(250))


def test_what_somebody_deleted_from_a_table_stays_deleted(held: _Held) -> None:
    held.hold(0, 300, held.place(300))
    deleted = [held.place(number) for number in (0, 1, 200, 298)]
    DeltaTable(str(held.path)).delete(f'"physicalOffset" IN ({", ".join(map(str, deleted))})')
    found = stand(Table(held.path), held.settings, allow_gap=False)
    assert found == Standing(after=held.place(299), begin=held.place(299))


def test_what_somebody_deleted_from_a_tables_end_comes_back(held: _Held) -> None:
    """Else a message that was written in the place of a lost one would be missing."""
    table = held.hold(0, 298, held.place(300))
    found = stand(table, held.settings, allow_gap=False)
    assert found == Standing(after=held.place(297), begin=held.place(297))


def test_the_place_of_a_blank_that_got_messages_gives_them(held: _Held) -> None:
    """The log's messages before the first one that is gone, which the table lacks, are new."""
    table = held.hold(0, 300, held.place(300))
    _write_over(held, range(250, 300))
    # The table lacks 248 and 249, as if a BLANK had stood there when it was written.
    table.step_back(held.place(248))
    held.add(held.rows.slice(250, 50), held.place(300))
    found = stand(Table(held.path), held.settings, allow_gap=False)
    assert (found.after, found.gone_from) == (held.place(247), held.place(250))


def test_a_log_without_any_of_the_tables_messages_is_another_one(held: _Held, tmp_path: Path) -> None:
    table = held.hold(0, 300, held.place(300))
    other = unpack("5.3.3-restart", tmp_path / "other")
    settings = StoreSettings.load(other.root, other.write_broker_conf(), "5.3.3")
    with pytest.raises(LogWentBackError, match="none of the table's messages"):
        stand(table, settings, allow_gap=True)


def test_another_log_is_told_by_the_tables_first_message_that_it_should_have(
    held: _Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what lies between that and the segment that the log ends in, nothing is read."""
    monkeypatch.setattr(appending, "WINDOW", 1000)
    monkeypatch.setattr(appending, "_PROBE", 1000)
    segments = discover(held.settings).segments
    begin = sum(place < segments[2].base for place in held.places) + 5
    table = held.hold(begin, 800, held.place(800))
    _write_over(held, range(800))
    read: list[tuple[int, int]] = []
    in_log = appending._in_log

    def counted(settings: StoreSettings, log: CommitLog, start: int, end: int, lead: int) -> pa.Table:
        read.append((start, end))
        return in_log(settings, log, start, end, lead)

    monkeypatch.setattr(appending, "_in_log", counted)
    with pytest.raises(LogWentBackError, match="none of the table's messages"):
        stand(table, held.settings, allow_gap=True)
    assert read == [(segments[-1].base, held.place(799) + 1), (held.place(begin), held.place(begin) + 1000)]


def test_nothing_before_a_table_is_held_against_the_log(held: _Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose messages are all damaged or another log's."""
    table = held.hold(500, 520, held.place(520))
    _write_over(held, range(500, 520))
    started: list[int] = []
    in_log = appending._in_log

    def counted(settings: StoreSettings, log: CommitLog, start: int, end: int, lead: int) -> pa.Table:
        started.append(start)
        return in_log(settings, log, start, end, lead)

    monkeypatch.setattr(appending, "_in_log", counted)
    monkeypatch.setattr(appending, "WINDOW", 1000)
    with pytest.raises(LogWentBackError, match="none of the table's messages"):
        stand(table, held.settings, allow_gap=True)
    assert min(started) == held.place(500)


def test_a_message_that_a_segments_end_lies_over_is_gone(tmp_path: Path) -> None:
    """A BLANK is no message, and damage it isn't, either."""
    log = LogWriter(tmp_path, segment_size=1000)
    record = Record(b"T", b"x" * 20, store_timestamp=1)
    while log.segment_size - log.end % log.segment_size > 2 * len(commitlog.encode(record)):
        log.append(record)
    log.append(record)
    settings = StoreSettings.load(tmp_path, None, "5.3.3")
    table = _Rows(_scanned(settings), log.end)
    place = log.records[-1].physical_offset
    _cut(log, place)
    log.append(replace(record, body=b"y" * 400, store_timestamp=2))
    found = stand(table, settings, allow_gap=False)  # type: ignore[arg-type]
    assert found.gone_from == place


def test_what_expired_is_told_once_it_is_allowed(held: _Held) -> None:
    table = held.hold(0, 20, held.place(20))
    segments = discover(held.settings).segments
    for segment in segments[:3]:
        segment.path.unlink()
    begin = segments[3].base
    with pytest.raises(StoreError, match="--allow-gap"):
        stand(table, held.settings, allow_gap=False)
    expected = Standing(after=held.place(19), begin=begin, expired=begin - held.place(20))
    assert stand(table, held.settings, allow_gap=True) == expected


def test_no_gap_is_none(held: _Held) -> None:
    """The broker deleted segments that hold nothing after the table's last message."""
    segments = discover(held.settings).segments
    begin = segments[3].base
    count = sum(place < begin for place in held.places)
    table = held.hold(0, count, begin)
    for segment in segments[:3]:
        segment.path.unlink()
    assert stand(table, held.settings, allow_gap=False) == Standing(after=held.place(count - 1), begin=begin)


def test_a_gap_to_a_log_that_is_older_is_another_store(held: _Held) -> None:
    table = held.hold(0, 20, held.place(20))
    segments = discover(held.settings).segments
    for segment in segments[:3]:
        segment.path.unlink()
    place = next(place for place in held.places if place >= segments[3].base)
    record = LogReader(held.settings).message(place).record  # type: ignore[union-attr]
    held.overwrite(
        place, commitlog.encode(replace(record, store_timestamp=record.store_timestamp - 86_400_000))
    )
    with pytest.raises(LogWentBackError, match="older than the table's last one"):
        stand(table, held.settings, allow_gap=True)


def test_stepping_back_moves_the_cursor_though_nothing_is_taken_out(held: _Held) -> None:
    table = held.hold(0, 20, held.place(25))
    table.step_back(held.place(20))
    assert (table.cursor, table.messages) == (held.place(20), 20)
    assert DeltaTable(str(held.path)).transaction_version(APPLICATION) == held.place(20)


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"a": [1]}))
    with pytest.raises(OutputError, match="another table is in the way"):
        Table(tmp_path)


def test_a_table_whose_file_is_gone_is_told_as_such(held: _Held) -> None:
    table = held.hold(0, 20, held.place(20))
    for file in table.files():
        (held.path / file.path).unlink()
    with pytest.raises(OutputError, match="the table can't be read"):
        table.between(0, 1000)


def test_a_disk_that_is_full_at_a_commit_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object, **_named: object) -> None:
        raise OSError("Generic LocalFileSystem error\n\u21b3 No space left on device (os error 28)")

    monkeypatch.setattr("deltalake.transaction.create_table_with_add_actions", full)
    with pytest.raises(OutputError, match="Free space on the file system") as raised:
        Table(tmp_path / "table").append([], 0, pa.schema([("body", pa.binary())]))
    assert raised.value.path == str(tmp_path / "table")


def _file(number: int, day: int | None, size: int) -> File:
    return File(f"{number}", None if day is None else date(2026, 11, day), size, 1, number)


def _due(live: list[File], today: date | None = None) -> list[list[int]]:
    return [[int(file.path) for file in group] for group in due(live, today)]


def test_small_files_are_merged_when_there_are_many() -> None:
    many = [_file(number, 1, 100) for number in range(MANY)]
    assert _due(many[1:], _FIRST) == []
    # In log order, whatever the order in which they are listed, and up to a size.
    assert _due(many[::-1], _FIRST) == [list(range(MANY))]
    large = [_file(number, 1, SMALL - 1) for number in range(MANY)]
    assert [len(group) for group in due(large)] == [LARGE // (SMALL - 1)] * 4
    rows = [replace(file, rows=MOST_ROWS // 8) for file in many]
    assert [len(group) for group in due(rows)] == [8, 8]
    spread = [replace(file, last=(file.last or 0) * (MOST_LOG // 4)) for file in many]
    assert {len(group) for group in due(spread)} <= {5, 1}, "of the log, too"
    # A larger one stays as it is, and so does one of which nobody knows where it lies in the log.
    assert _due([*many[1:], _file(99, 1, SMALL)], _FIRST) == []
    assert _due([*many[1:], replace(many[0], last=None)], _FIRST) == []
    assert _due([_file(number, None, 100) for number in range(MANY)]) == [list(range(MANY))]


def test_a_day_that_is_over_gets_its_rest_merged() -> None:
    live = [_file(0, 1, 100), _file(1, 1, 100), _file(2, 2, 100), _file(3, 2, 100)]
    assert _due(live, date(2026, 11, 2)) == [[0, 1]]
    # A message of tomorrow, by a clock that is wrong, doesn't make today be over.
    assert _due(live, date(2026, 11, 1)) == []
    # Never again.
    assert _due([_file(1, 1, 200), *live[2:]], date(2026, 11, 2)) == []


def _written(held: _Held, name: str) -> Path:
    path = held.path / f"{DAY}=2026-11-22" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"PAR1")
    return path


def test_files_that_no_commit_came_to_name_are_removed(held: _Held) -> None:
    """Those of the run that was killed, and no others."""
    held.hold(0, 20, held.place(20))
    (named,) = Table(held.path).files()
    token = Path(named.path).name.split("-")[1]
    mark = held.path / ".reput" / "catalog-files"
    mark.parent.mkdir()
    mark.write_text(token)
    left = [_written(held, f"part-{token}-{number}.parquet") for number in range(2)]
    other = _written(held, "part-0123456789abcdef-0.parquet")
    remove_unnamed(Table(held.path))
    assert not any(path.exists() for path in [*left, mark])
    assert other.exists()
    assert Table(held.path).between(0, 1 << 40).num_rows == 20
    remove_unnamed(Table(held.path))  # without a mark, nothing is looked for


def test_tasks_that_still_write_are_waited_for(held: _Held) -> None:
    held.hold(0, 20, held.place(20))
    with OutputLock(held.path).shared():
        (held.path / ".reput" / "catalog-files").write_text("0123456789abcdef")
        with pytest.raises(StoreInUseError, match="still write"):
            remove_unnamed(Table(held.path), 0.1)
    remove_unnamed(Table(held.path), 0.1)


@pytest.mark.parametrize("name", ["a%20b", "a\\b", "a\tb", "a\udcff", "file:///table"])
def test_what_delta_lake_takes_for_another_name_is_refused(held: _Held, name: str) -> None:
    table = Path(name) if ":" in name else held.path.parent / name
    with pytest.raises(SettingsError, match=r"leaves as it is|no store can be read from here"):
        Catalog(CatalogOptions(held.settings.root, table))
    assert not table.exists()


def test_a_table_in_or_around_the_store_is_refused(held: _Held) -> None:
    store = held.settings.root
    for table in (store, store / "commitlog" / "table", store.parent):
        with pytest.raises(OutputError, match="store"):
            Catalog(CatalogOptions(store, table, held.settings.broker_conf, "5.3.3"))


def test_a_table_and_an_output_lie_beside_each_other(tmp_path: Path) -> None:
    """Whatever links lead there; a link to itself leads nowhere, and is no reason to fail."""
    (tmp_path / "out" / "here").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "out")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for table, out in (("out/here", "out"), ("link/new", "out"), ("out", "link/here"), ("out", "link")):
        with pytest.raises(SettingsError, match="can't be inside each other"):
            RebuildOptions(tmp_path, tmp_path / out, catalog=tmp_path / table).to_catalog()
    for table in ("output", "loop", "loop/table"):
        options = RebuildOptions(tmp_path, tmp_path / "out", catalog=tmp_path / table).to_catalog()
        assert options is not None
        assert options.table == tmp_path / table


class _Comparing:
    """Counts how often a table and its log are compared, and stands for Spark: appends the rows itself."""

    def __init__(self, held: _Held, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = held
        self.count = 0
        self.options = CatalogOptions(
            held.settings.root, held.path, held.settings.broker_conf, "5.3.3", optimize=False
        )
        monkeypatch.setattr(update, "stand", self._stand)
        monkeypatch.setattr(Appending, "append", self._append)

    def _stand(self, table: Table, settings: StoreSettings, *, allow_gap: bool) -> Standing:
        self.count += 1
        return stand(table, settings, allow_gap=allow_gap)

    def _append(self, _spark: object, standing: Standing, end: int) -> None:
        if standing.gone_from is None:
            assert standing == stand(Table(self.held.path), self.held.settings, allow_gap=False)
        rows = self.held.rows.filter(pc.greater(self.held.rows.column("physicalOffset"), standing.after))
        self.held.add(rows.filter(pc.less(rows.column("physicalOffset"), end)), end)
        self.ran.commits += 1

    def advance(self, catalog: Catalog, number: int) -> Cataloged:
        """Up to the message with this number."""
        made = Appending.__init__

        def keep(ran: Appending, *args: object) -> None:
            self.ran = ran
            made(ran, *args)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Appending, "__init__", keep)
            return catalog.advance(lambda: None, lambda: self.held.place(number))  # type: ignore[arg-type,return-value]


@pytest.fixture
def comparing(held: _Held, monkeypatch: pytest.MonkeyPatch) -> _Comparing:
    held.hold(0, 300, held.place(300))
    return _Comparing(held, monkeypatch)


def _touch(held: _Held) -> None:
    """Do as if the broker had written."""
    path = discover(held.settings).segments[-1].path
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def test_a_run_compares_once_unless_the_log_was_written_to(comparing: _Comparing) -> None:
    with Catalog(comparing.options) as catalog:
        catalog.check()
        assert comparing.advance(catalog, 400).added == 100
        assert comparing.advance(catalog, 400).added == 0
        assert comparing.count == 1
        _touch(comparing.held)
        assert comparing.advance(catalog, 450).added == 50
        assert comparing.count == 2


def test_a_run_that_is_told_compares_once(comparing: _Comparing) -> None:
    """As that of a tail does, whatever is written to the log, unless somebody else changed the table."""
    held = comparing.held
    with update.CatalogBeside(comparing.options) as table:
        table.check(held.place(300))
        assert table.reached() == held.place(300)
        for number in range(350, 600, 50):
            _touch(held)
            assert comparing.advance(table, number).added == 50
            assert table.reached() == held.place(number)
        assert comparing.count == 1
        table.went_back(held.place(520))
        done = comparing.advance(table, 540)
        assert (done.removed, done.added) == (30, 20)
        assert comparing.advance(table, 560).added == 20
        assert comparing.count == 1
        DeltaTable(str(held.path)).delete(f'"physicalOffset" = {held.place(7)}')
        assert comparing.advance(table, 570).added == 10
        assert comparing.count == 2


def test_a_run_whose_tail_was_begun_anew_compares_until_it_is_past_the_table(
    held: _Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells it that the log went back behind where the tail is."""
    compared: list[int] = []

    def counted(table: Table, settings: StoreSettings, *, allow_gap: bool) -> Standing:
        compared.append(1)
        return stand(table, settings, allow_gap=allow_gap)

    monkeypatch.setattr(update, "stand", counted)
    with Catalog(_options(held, optimize=False), is_told=True) as catalog:

        def advance(number: int) -> Cataloged:
            _touch(held)
            return catalog.advance(_Here, lambda: held.place(number))

        assert advance(300).added == 300
        assert advance(150).commits == 0
        _write_over(held, range(250, len(held.places)))
        done = advance(200)
        assert (done.removed, done.end) == (50, held.place(250))
        assert advance(400).added == 150
        before = len(compared)
        advance(400)
        assert advance(420).added == 20
        assert len(compared) == before
    found = Table(held.path).between(0, 1 << 40)
    assert found.equals(_scanned(held.settings).slice(0, 420))


def test_a_run_that_failed_compares_again(comparing: _Comparing, monkeypatch: pytest.MonkeyPatch) -> None:
    with Catalog(comparing.options, is_told=True) as catalog:
        catalog.check()
        with monkeypatch.context() as patch:
            patch.setattr(comparing, "held", None)
            with pytest.raises(AttributeError):
                comparing.advance(catalog, 350)
        assert comparing.advance(catalog, 350).added == 50
        assert comparing.count == 2


def test_a_run_whose_last_message_expires_compares_again(comparing: _Comparing) -> None:
    held = comparing.held
    with Catalog(comparing.options, is_told=True) as catalog:
        catalog.check()
        for segment in discover(held.settings).segments:
            if segment.base <= held.place(299):
                segment.path.unlink()
        with pytest.raises(StoreError, match="--allow-gap"):
            comparing.advance(catalog, 600)


def _options(held: _Held, **changed: object) -> CatalogOptions:
    options = CatalogOptions(held.settings.root, held.path, held.settings.broker_conf, "5.3.3")
    return replace(options, **changed)  # type: ignore[arg-type]


def test_a_run_adds_what_the_log_holds(held: _Held) -> None:
    said: list[tuple[int, int, int]] = []
    options = _options(held, max_bytes_per_trigger=50_000)
    done = update.catalog(options, _Here, lambda *one: said.append(one))
    assert done.messages == done.added == len(held.places)
    assert done.commits > 5
    assert said[-1] == (said[-1][2], len(held.places), done.end)
    table = Table(held.path)
    assert table.between(0, 1 << 40).column("physicalOffset").to_pylist() == held.places
    again = update.catalog(options, _Here)
    assert (again.added, again.commits) == (0, 0)


def test_files_are_passed_over_by_place_topic_and_time(held: _Held) -> None:
    """By what the table's log says of them, which is Spark's to use as well."""
    update.catalog(_options(held, max_bytes_per_trigger=20_000, optimize=False), _Here)
    delta = DeltaTable(str(held.path))
    every = set(delta.file_uris())
    assert len(every) > 8
    held_rows = delta.to_pyarrow_table(columns=["topic", "storeTimestamp"])
    last, late = (max(held_rows.column(name).to_pylist()) for name in ("topic", "storeTimestamp"))
    for where in (f'"physicalOffset" < {held.place(20)}', f"\"storeTimestamp\" >= '{late.isoformat()}'"):
        found = delta.file_uris(file_pruning_predicate=where)
        assert 0 < len(found) < len(every), where
    assert delta.file_uris(file_pruning_predicate=f"topic > '{last}'") == []


def test_a_run_merges_small_files(held: _Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "MANY", 8)
    options = _options(held, max_bytes_per_trigger=20_000)
    done = update.catalog(options, _Here)
    table = Table(held.path)
    (file,) = table.files()
    assert file.day is not None
    assert done.clustered == (file.day.isoformat(),)
    assert (table.cursor, table.messages) == (done.end, len(held.places))
    assert table.between(0, 1 << 40).column("physicalOffset").to_pylist() == held.places
    # What they replaced is there for those who read an earlier version, and the rows didn't change.
    assert DeltaTable(str(held.path), version=done.commits - 1).to_pyarrow_table().num_rows == done.messages
    entry = held.path / "_delta_log" / f"{table.version:020d}.json"
    changes = [json.loads(line) for line in entry.read_text().splitlines()]
    assert [one[kind]["dataChange"] for one in changes for kind in one.keys() & {"add", "remove"}] == [
        False
        for _ in range(len(changes) - 2)  # the cursor, and what the commit says of itself
    ]


def test_processes_of_this_host_go_on_after_a_failure(held: _Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the next store, and with merging what was added."""
    monkeypatch.setattr(update, "MANY", 2)
    options = _options(held, max_bytes_per_trigger=20_000)

    def fail(*_: int) -> None:
        raise OutputError("no room")

    with Processes(2) as processes:
        with pytest.raises(OutputError, match="no room"):
            update.catalog(options, lambda: processes, fail)
        done = update.catalog(options, lambda: processes)
    assert done.clustered
    assert done.messages == len(held.places)


def test_a_table_that_somebody_changed_is_not_merged(held: _Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the column would be lost."""
    monkeypatch.setattr(update, "MANY", 2)
    held.hold(0, 300, held.place(300))
    DeltaTable(str(held.path)).alter.add_columns([Field("mine", PrimitiveType("string"))])
    monkeypatch.setattr(Table, "columns", (*columns(bodies=False), "mine", DAY))
    done = update.catalog(_options(held, max_bytes_per_trigger=50_000), _Here)
    assert (done.messages, done.clustered) == (len(held.places), ())


def test_rows_that_somebody_deletes_meanwhile_stay_deleted(
    held: _Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was merged before that isn't put in their place, and doesn't stay."""
    monkeypatch.setattr(update, "MANY", 2)
    update.catalog(_options(held, max_bytes_per_trigger=20_000, optimize=False), _Here)

    jobs: list[str] = []

    def delete() -> None:
        jobs.append("adding" if not jobs else "merging")
        if jobs[-1] == "merging":
            DeltaTable(str(held.path)).delete(f'"physicalOffset" = {held.place(7)}')

    spark = _Here(delete)
    assert update.catalog(_options(held), lambda: spark).clustered == ()
    table = Table(held.path)
    assert table.messages == len(held.places) - 1
    live = {held.path / file.path for file in table.files()}
    assert not {path for path in live if not path.exists()}
    assert (held.path / ".reput" / "catalog-files").exists() is False


def test_segments_that_expire_while_they_are_read_are_told(
    held: _Held, caplog: pytest.LogCaptureFixture
) -> None:
    first, *_ = discover(held.settings).segments
    options = _options(held, optimize=False)
    spark = _Here(lambda: first.path.unlink(missing_ok=True))
    done = update.catalog(options, lambda: spark)
    assert done.expired == first.length
    assert done.messages == sum(place >= first.length for place in held.places)
    assert "has expired; messages from 0 to" in caplog.text


def test_a_segment_that_is_gone_from_the_middle_is_an_error(held: _Held) -> None:
    segment = discover(held.settings).segments[3]
    spark = _Here(lambda: segment.path.unlink(missing_ok=True))
    with pytest.raises(SegmentGoneError):
        update.catalog(_options(held), lambda: spark)
    assert not (held.path / ".reput" / "catalog-files").exists()
    assert list(held.path.glob("*=*/*.parquet")) == []


def test_a_full_disk_leaves_the_table_as_it_is(held: _Held, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rows.pq, "write_table", full)
    with pytest.raises(OutputError, match="No space left"):
        update.catalog(_options(held), _Here)
    assert Table(held.path).version == -1


def test_a_file_that_is_damaged_is_not_merged(held: _Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "MANY", 2)
    update.catalog(_options(held, max_bytes_per_trigger=20_000, optimize=False), _Here)
    table = Table(held.path)
    (held.path / table.files()[0].path).write_bytes(b"PAR1 and no more")
    at_end = Standing(after=held.places[-1], begin=held.places[-1])
    monkeypatch.setattr(update, "stand", lambda *_, **__: at_end)
    with pytest.raises(OutputError, match="isn't what it was"):
        update.catalog(_options(held), _Here)
    assert Table(held.path).version == table.version


def test_two_runs_do_not_share_a_table(held: _Held) -> None:
    options = CatalogOptions(held.settings.root, held.path, held.settings.broker_conf, "5.3.3")
    with Catalog(options), pytest.raises(StoreInUseError, match="until it is stopped"):
        Catalog(options).__enter__()


def test_a_run_whose_files_another_one_has_removed_commits_nothing(held: _Held) -> None:
    """As on hosts whose locks don't meet: the other one takes it for dead."""

    def other() -> None:
        (held.path / names.REPUT / "catalog-files").unlink(missing_ok=True)

    with pytest.raises(OutputError, match="another run writes to the table"):
        update.catalog(_options(held), lambda: _Here(other))
    assert Table(held.path).cursor is None
    assert update.catalog(_options(held), _Here).messages == len(held.places)


def test_what_is_written_anew_by_a_step_back_is_flushed(held: _Held, monkeypatch: pytest.MonkeyPatch) -> None:
    table = held.hold(0, 40, held.place(40))
    flushed: list[Path] = []
    real = files.fsync_file
    monkeypatch.setattr(
        files,
        "fsync_file",
        lambda fd: (flushed.append(files.path_of(fd)), real(fd)),  # type: ignore[func-returns-value]
    )
    table.step_back(held.place(20))
    (file,) = table.files()
    assert held.path / file.path in flushed
    assert held.path / "_delta_log" / f"{table.version:020d}.json" in flushed


def test_what_another_process_commits_meanwhile_is_no_damage(held: _Held) -> None:
    one, other = held.hold(0, 40, held.place(40)), Table(held.path)
    other.step_back(held.place(20))
    with pytest.raises(
        OutputError, match="another run has written to the table meanwhile; expected messages"
    ):
        one.step_back(held.place(10))


def test_runs_are_told_as_one() -> None:
    first = Cataloged("t", 10, 20, 1, 2, (5,), 3, 100, 1, ("2026-11-21",), 1.0)
    second = Cataloged("t", 15, 30, 1, 4, (9,), 7, 103, 2, ("2026-11-20",), 2.0)
    days = ("2026-11-20", "2026-11-21")
    assert first.then(second) == Cataloged("t", 10, 30, 2, 6, (5, 9), 10, 103, 3, days, 3.0)
    assert cataloged_apart(first.then(second)) == [
        "  taken out  6 messages that the log doesn't hold any more; the table has them in version 5, 9",
        "  unread     2 bytes that the broker had deleted before they were cataloged",
    ]
    assert cataloged_apart(Cataloged("t", 0, 0, 0, 0, (), 0, 0, 0, (), 0.0)) == []


class _Steps:
    """Stands for a table that is a step behind, and whose second step fails."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int | None]] = []

    def advance(self, _spark: object, committed: Callable[[], int], most: int | None) -> Cataloged:
        self.asked.append((committed(), most))
        if len(self.asked) == 2:
            raise OutputError("no room")
        return Cataloged("t", 0, 10 * len(self.asked), 0, 0, (), 1, 1, 1, (), 0.0)


class _Told:
    """Stands for who watches a table."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def succeeded(self) -> None:
        self.told.append("succeeded")

    def failed(self, error: BaseException) -> None:
        self.told.append(str(error))


def test_a_table_beside_a_tail_goes_on_after_a_failure(
    held: _Held, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(update, "EVERY_SECONDS", 0.01)
    options = CatalogOptions(held.settings.root, held.path, held.settings.broker_conf, "5.3.3")
    with update.CatalogBeside(options) as table:
        steps = _Steps()
        monkeypatch.setattr(table, "advance", steps.advance)
        watch = _Told()
        table.start(_Here(), lambda: 30, watch)
        while len(steps.asked) < 3:
            time.sleep(0.01)
        done = table.finish()
    assert set(steps.asked) == {(30, update.MOST_BYTES)}
    assert "stays behind: no room" in caplog.text
    assert (done.end, done.added) == (10 * len(steps.asked), len(steps.asked) - 1)
    assert watch.told[:3] == ["succeeded", "no room", "succeeded"]
    assert len(watch.told) == len(steps.asked)
