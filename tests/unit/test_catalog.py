"""Where a table of messages and its log part; which days are clustered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from reput.catalog import standing
from reput.catalog.compaction import MOST_FILES, Clustered, due
from reput.catalog.standing import Standing, stand
from reput.catalog.table import APPLICATION, DAY, KNOWN_BY, File, Table
from reput.errors import LogWentBackError, OutputError, StoreError
from reput.format import commitlog
from reput.query.log import LogReader
from reput.settings import StoreSettings
from reput.source import messages
from reput.source.parts import cut
from reput.store.segments import discover
from tests.golden.store import unpack

_TODAY = date(2026, 11, 22)


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
        rows = self.rows.slice(start, stop - start)
        days = pa.array([_TODAY] * len(rows), pa.date32())
        write_deltalake(
            str(self.path),
            rows.append_column(DAY, days),
            partition_by=[DAY],
            mode="overwrite",
            commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION, cursor)]),
        )
        return Table(self.path)

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
    monkeypatch.setattr(standing, "WINDOW", window)
    table = held.hold(0, 300, held.place(300))
    _write_over(held, range(number, 300))
    place = held.place(number)
    went_back = stand(table, held.settings, allow_gap=False)
    assert went_back == Standing(after=place - 1, begin=held.place(number - 1), gone_from=place)
    table.step_back(place)
    assert (table.cursor, table.messages, table.last()) == (place, number, held.place(number - 1))
    assert stand(table, held.settings, allow_gap=False).gone_from is None


def test_old_messages_behind_a_new_one_prove_nothing(held: _Held) -> None:
    table = held.hold(0, 300, held.place(300))
    _write_over(held, [200])
    assert stand(table, held.settings, allow_gap=False).gone_from == held.place(200)


def test_a_longer_record_takes_away_all_that_it_lies_over(held: _Held) -> None:
    table = held.hold(0, 300, held.place(300))
    numbers = [
        number
        for number, (one, two) in enumerate(pairwise(held.places[:299]))
        if number > 200 and held.segment(one)[0] == held.segment(two)[0]
    ]
    number = numbers[0]
    place = held.place(number) + 40  # in the middle of a record of the table
    record = replace(
        LogReader(held.settings).message(held.place(number)).record,  # type: ignore[union-attr]
        physical_offset=place,
    )
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


@pytest.mark.parametrize("numbers", [[299], [290, 299], [250]])
def test_damage_in_the_log_takes_nothing_out_of_a_table(held: _Held, numbers: list[int]) -> None:
    table = held.hold(0, 300, held.place(300))
    for number in numbers:
        held.overwrite(held.place(number), b"\xff" * 20)
    found = stand(table, held.settings, allow_gap=False)
    assert (found.after, found.gone_from) == (held.place(299), None)
    assert found.begin in held.places
    assert found.begin <= held.place(299)


def test_a_log_without_any_of_the_tables_messages_is_another_one(held: _Held, tmp_path: Path) -> None:
    table = held.hold(0, 300, held.place(300))
    other = unpack("5.3.3-restart", tmp_path / "other")
    settings = StoreSettings.load(other.root, other.write_broker_conf(), "5.3.3")
    with pytest.raises(LogWentBackError, match="none of the table's messages"):
        stand(table, settings, allow_gap=True)


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


def _file(name: str, day: int | None, size: int) -> File:
    return File(name, None if day is None else date(2026, 11, day), size, 1, 0)


def test_a_day_is_clustered_when_it_pays() -> None:
    new = [_file("a", 1, 100)]
    assert list(due(new, frozenset())) == [date(2026, 11, 1)]
    assert list(due(new, frozenset("a"))) == []
    assert list(due([*new, _file("b", 1, 49)], frozenset("a"))) == []
    assert list(due([*new, _file("b", 1, 50)], frozenset("a"))) == [date(2026, 11, 1)]
    many = [_file(f"b{number}", 1, 0) for number in range(MOST_FILES)]
    assert list(due([*new, *many[1:]], frozenset("a"))) == []
    assert list(due([*new, *many], frozenset("a"))) == [date(2026, 11, 1)]
    assert list(due([_file("n", None, 100)], frozenset())) == []
    # A day that is over gets its rest clustered, and then never again.
    over = [*new, _file("b", 1, 1), _file("c", 2, 100)]
    assert list(due(over, frozenset("ac"))) == [date(2026, 11, 1)]


def test_what_is_clustered_is_noted_and_forgotten_with_its_file(tmp_path: Path) -> None:
    a, b, c = (_file(name, 1, 1) for name in "abc")
    Clustered(tmp_path).note([a], [a, b])
    assert Clustered(tmp_path).files == {"b"}
    Clustered(tmp_path).note([a, b], [a, c])
    assert Clustered(tmp_path).files == {"c"}
    (tmp_path / "clustered.json").write_text("{")
    assert Clustered(tmp_path).files == frozenset()
