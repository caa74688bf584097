"""What a table lacks of a log with damage and gaps: it is said, and taken in once it is back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from reput.catalog import Cataloged, CatalogOptions, appending, update
from reput.catalog.lacking import LackingFiles
from reput.catalog.rows import schema
from reput.catalog.table import Broker, Table
from reput.cli.output import cataloged_apart
from reput.config.settings import StoreSettings
from reput.errors import Finding, OutputError
from reput.job.options import RebuildOptions
from reput.job.rebuilding import rebuild
from reput.log.segments import Segment, cut, discover
from reput.source import messages
from tests.golden.store import unpack
from tests.here import Here
from tests.levels import tried
from tests.rebuilds import run

_ALL = 1 << 40


class _Store:
    """A store whose log can be damaged and made whole again, and a table of its messages."""

    def __init__(self, directory: Path, name: str = "5.3.3-mixed") -> None:
        store = unpack(name, directory / "store")
        self.version = name.partition("-")[0]
        self.root, self.conf, self.table = store.root, store.write_broker_conf(), directory / "table"
        self.settings = StoreSettings.load(self.root, self.conf, self.version, dledger=True)
        self.log = discover(self.settings)
        self.whole = {one.path: one.path.read_bytes() for one in self.log.segments}
        parts = cut(self.log, self.log.start, self.log.end, _ALL, None)
        names = ("physicalOffset", "size")
        rows = [batch for part in parts for batch in messages.read(part, self.settings, names)]
        columns = pa.Table.from_batches(rows)
        self.places: list[int] = columns.column("physicalOffset").to_pylist()
        self.sizes: list[int] = columns.column("size").to_pylist()

    @property
    def words(self) -> list[str | Path]:
        """Those of a command that say what the store is."""
        return [self.root, "--broker-conf", self.conf, "--rocketmq-version", self.version]

    def segment(self, number: int) -> Segment:
        return self.log.segments[number]

    def overwrite(self, place: int, data: bytes) -> None:
        found = next(one for one in reversed(self.log.segments) if one.base <= place)
        with found.path.open("r+b") as file:
            file.seek(place - found.base)
            file.write(data[: found.base + found.length - place])

    def mend(self) -> None:
        for path, data in self.whole.items():
            path.write_bytes(data)

    def damage(self) -> int:
        """Damage one message in the middle of the third segment; its number."""
        number = next(at for at, place in enumerate(self.places) if place > self.segment(2).base) + 10
        self.overwrite(self.places[number] + 4, b"\xff" * 4)
        return number

    def options(self, **changed: object) -> CatalogOptions:
        options = CatalogOptions(self.root, self.table, self.conf, self.version, optimize=False)
        return replace(options, **changed)  # type: ignore[arg-type]

    def catalog(self, **changed: object) -> Cataloged:
        return update.catalog(self.options(**changed), Here)

    def held(self, broker: Broker | None = None) -> list[int]:
        found = Table(self.table, broker).between(0, _ALL).column("physicalOffset").to_pylist()
        return [int(place) for place in found]


@pytest.fixture
def store(tmp_path: Path) -> _Store:
    return _Store(tmp_path)


def _kinds(findings: tuple[Finding, ...]) -> list[tuple[str, int, int]]:
    return [(one.kind, one.offset, one.end) for one in findings]


def _of_log(findings: list[Finding]) -> list[str]:
    """Those that are about a range of the log in which nothing is taken."""
    return sorted(
        str(one)
        for one in findings
        if one.topic is None and one.offset < one.end and "passed over" in one.outcome
    )


@pytest.mark.slow
def test_the_command_says_what_the_table_lacks_until_it_has_it(store: _Store) -> None:
    number = store.damage()
    gone = store.segment(5)
    gone.path.unlink()
    words: list[str | Path] = ["catalog", *store.words, "--table", store.table]
    first = run(*words)
    assert first.code == 1
    damaged = store.places[number], store.places[number] + store.sizes[number]
    assert "  lacks      2 ranges of the log; do what `reput check` says" in first.stdout
    assert f"at physical offset {damaged[0]} to {damaged[1]}: bad-magic: expected magic" in first.stdout
    gap = gone.base, gone.base + gone.length
    assert f"at physical offset {gap[0]} to {gap[1]}: missing-segments: expected" in first.stdout
    assert "the table lacks 2 more ranges of the log" in first.stderr

    again = run(*words, "--json")
    document = json.loads(again.stdout)
    assert (again.code, document["exit_code"], document["added"]) == (1, 1, 0)
    said = [(one["kind"], one["physical_offset"], one["physical_end"]) for one in document["findings"]]
    assert said == [("bad-magic", *damaged), ("missing-segments", *gap)]
    assert "more range" not in again.stderr  # it was said once

    store.mend()
    back = run(*words)
    assert (back.code, "lacks" in back.stdout) == (0, False)
    assert store.held() == store.places
    assert run(*words).code == 0


def test_the_table_and_a_rebuild_name_the_same_ranges(store: _Store, tmp_path: Path) -> None:
    store.damage()
    store.segment(5).path.unlink()
    # A segment without its end.
    place = store.places[next(at for at, one in enumerate(store.places) if one > store.segment(3).base) + 20]
    store.overwrite(place, bytes(store.segment(3).base + store.segment(3).length - place))
    done = store.catalog()
    options = RebuildOptions(store.root, tmp_path / "out", store.conf, rocketmq_version=store.version)
    rebuilt = rebuild(options, None)
    assert len(done.findings) == 3
    assert sorted(map(str, done.findings)) == _of_log(rebuilt.findings)
    # In a later run it says the same.
    assert store.catalog().findings == done.findings


@pytest.mark.slow
@pytest.mark.parametrize("name", ["5.3.3-mixed", "5.5.0-property-crc", "5.5.0-dledger"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_damaged_both_say_the_same(name: str, seed: int, tmp_path: Path) -> None:
    store, random = _Store(tmp_path, name), Random(seed)
    for number in random.sample(range(len(store.places) - 10), 6):
        # A wrong CRC counts where nothing whole follows.
        at = random.choice([0, 4, 20, 60, store.sizes[number] - 12])
        store.overwrite(store.places[number] + at, random.randbytes(random.choice([1, 4, 300])))
        store.overwrite(store.places[number + 1] + 4, random.randbytes(4))
    options = RebuildOptions(store.root, tmp_path / "out", store.conf, rocketmq_version=store.version)
    assert sorted(map(str, store.catalog().findings)) == _of_log(rebuild(options, None).findings)


def test_damage_behind_the_last_message_is_kept_without_new_commits(store: _Store) -> None:
    """Though what stands there is read again each time, and other damage is before it."""
    number = store.damage()
    cursor = store.catalog().end
    last = max(at for at, place in enumerate(store.places) if place < cursor - 2000)
    shutil.rmtree(store.table)
    place = store.places[last]
    store.overwrite(place, b"\xff" * 30)
    end = store.places[last + 1]
    with update.Catalog(store.options()) as table:
        done = table.advance(Here, lambda: end)
        assert [one.offset for one in done.findings] == [store.places[number], place]
        for _ in range(2):
            again = table.advance(Here, lambda: end)
            assert (again.commits, again.findings) == (0, done.findings)
    with update.Catalog(store.options()) as table:
        assert table.advance(Here, lambda: end).commits == 0
    store.mend()
    assert store.catalog().exit_code == 0
    assert store.held() == store.places


@pytest.mark.parametrize("back", [0, 1, 3])
def test_a_tail_that_was_begun_anew_moves_no_cursor_back(store: _Store, back: int) -> None:
    """Before where the table ends there is nothing new: what it lacks there stays lacking."""
    number = store.damage()
    at = next(at for at, place in enumerate(store.places) if place > store.segment(4).base) + 10
    start, cursor = store.places[at], store.places[at + 4]
    store.overwrite(start, b"\xff" * (cursor - start))
    with update.Catalog(store.options()) as table:
        done = table.advance(Here, lambda: cursor)
        lacks = Table(store.table).lacks
        assert lacks == ((store.places[number], store.places[number + 1]), (start, cursor))
        for anew in (0, store.places[at - back], store.places[at + back]):
            again = table.advance(Here, lambda anew=anew: anew)  # type: ignore[misc]
            assert (again.end, again.commits, again.findings) == (cursor, 0, done.findings)
        assert Table(store.table).lacks == lacks
        store.mend()
        for end in (store.places[at + 2], store.places[-1]):
            table.advance(Here, lambda end=end: end)  # type: ignore[misc]
    assert store.catalog().exit_code == 0
    assert store.held() == store.places


@pytest.mark.slow
@pytest.mark.parametrize("name", ["5.3.3-mixed", "5.5.0-dledger"])
@pytest.mark.parametrize("seed", tried(0, 3, more=[1, 2, 4, 5]))
def test_each_message_is_there_once_when_all_is_back(
    name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the log is cut into parts and commits, and if it comes back piece by piece."""
    store, random = _Store(tmp_path, name), Random(seed)
    monkeypatch.setattr(appending, "_LEAST_PART", 4096)
    kinds: list[Callable[[int], bytes]] = [bytes, lambda size: b"\xff" * size, random.randbytes]
    numbers = random.sample(range(1, len(store.places) - 1), 8)
    for number in numbers:
        place = store.places[number] + random.choice([0, 4, 20, 60])
        store.overwrite(place, random.choice(kinds)(random.choice([4, 100, 900, 9000])))
    for segment in random.sample(store.log.segments[1:-1], min(2, len(store.log.segments) - 2)):
        segment.path.unlink()
    each = random.choice([10_000, 70_000, 1 << 30])
    done = store.catalog(max_bytes_per_trigger=each)
    first = store.held()
    assert set(first) < set(store.places)
    missing = set(store.places) - set(first)
    lead = 48 if store.log.entries else 0
    for place in missing:
        if place < done.end:
            assert any(one.offset <= place - lead < one.end for one in done.findings), place
    assert _kinds(store.catalog(max_bytes_per_trigger=each).findings) == _kinds(done.findings)
    paths = list(store.whole)
    for path in random.sample(paths, len(paths)):
        path.write_bytes(store.whole[path])
        done = store.catalog(max_bytes_per_trigger=each)
    assert store.held() == store.places
    assert done.findings == ()
    assert Table(store.table).lacks == ()


@pytest.mark.slow
def test_what_mending_has_closed_is_not_lacking_any_more(store: _Store) -> None:
    """So does what check advises end: nothing can bring these messages back."""
    store.damage()
    store.segment(5).path.unlink()
    assert store.catalog().exit_code == 1
    assert run("mend", *store.words, "--apply").code in (0, 1)
    done = store.catalog()
    assert (done.exit_code, done.added, Table(store.table).lacks) == (0, 0, ())
    shutil.rmtree(store.table)
    assert store.catalog().exit_code == 0


def test_what_expires_is_not_lacking_any_more(store: _Store) -> None:
    store.damage()
    assert store.catalog().exit_code == 1
    for segment in store.log.segments[:2]:
        segment.path.unlink()
    assert store.catalog().exit_code == 1
    store.segment(2).path.unlink()
    assert store.catalog().exit_code == 0
    assert Table(store.table).lacks == ()


def test_a_log_that_goes_back_takes_with_it_what_was_lacking(store: _Store) -> None:
    number = store.damage()
    store.catalog()
    table = Table(store.table)
    start, end = store.places[number], store.places[number] + store.sizes[number]
    assert table.lacks == ((start, end),)
    table.step_back(end - 1)
    assert table.lacks == ((start, end - 1),)
    table.step_back(start)
    assert table.lacks == ()


def test_rows_that_somebody_deleted_stay_deleted_when_others_come_back(store: _Store) -> None:
    store.damage()
    store.catalog()
    from deltalake import DeltaTable

    deleted = store.places[3]
    DeltaTable(str(store.table)).delete(f'"physicalOffset" = {deleted}')
    store.mend()
    assert store.catalog().added == 1
    assert store.held() == [place for place in store.places if place != deleted]


class _Counting(Here):
    """Counts tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = 0

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        self.tasks += len(items)
        return super().map(function, items)


def test_many_ranges_of_a_segment_are_one_task(store: _Store) -> None:
    """And rows between them are neither doubled nor brought back."""
    damaged = store.places[:-1:3]
    for place in damaged:
        store.overwrite(place + 4, b"\xff" * 4)
    first = store.catalog()
    assert len(first.findings) > 100
    assert store.held() == [place for place in store.places if place not in damaged]
    from deltalake import DeltaTable

    deleted = store.places[4]
    DeltaTable(str(store.table)).delete(f'"physicalOffset" = {deleted}')
    store.overwrite(store.places[7] + 4, b"\xff" * 4)  # the table has it
    counting = _Counting()
    again = update.catalog(store.options(), lambda: counting)
    assert (again.commits, len(again.findings)) == (0, len(first.findings))
    assert counting.tasks <= len(store.log.segments) + 1
    store.mend()
    done = update.catalog(store.options(), lambda: counting)
    assert (done.exit_code, done.added) == (0, len(damaged))
    assert store.held() == [place for place in store.places if place != deleted]


def test_ranges_far_from_each_other_are_tasks_of_their_own(
    store: _Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies between them is not read; but in the last segment all is, from its begin."""
    monkeypatch.setattr(appending, "_LEAST_PART", 100)
    base, last = store.segment(2).base, store.log.segments[-1]
    lacks = ((base - 10, base + 5), (base + 50, base + 60), (base + 160, base + 170))
    behind = ((last.base + 100, last.base + 110), (last.base + 900, last.base + 910))
    parts = [
        (one.start, one.end, one.exact)
        for one in appending._lacked(store.log, (*lacks, *behind))
        if one.start >= base
    ]
    assert parts == [
        (base, base + 60, True),
        (base + 160, base + 170, True),
        (last.base + 100, last.base + 910, False),
    ]


def test_what_a_table_lacks_is_in_one_file_that_no_vacuum_takes(store: _Store) -> None:
    """Without it nobody could tell which messages to look for again: that is refused."""
    store.damage()
    store.catalog()
    (file,) = (store.table / "_reput").iterdir()
    from deltalake import DeltaTable

    DeltaTable(str(store.table)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    data = file.read_bytes()
    for spoilt in (b"", data[:-1]):
        file.write_bytes(spoilt)
        with pytest.raises(OutputError, match="what the table lacks of the log isn't what it was"):
            store.catalog()
    file.write_bytes(data)
    store.segment(5).path.unlink()
    store.overwrite(store.places[0] + 4, b"\xff" * 4)  # the table has it
    shutil.rmtree(store.table)
    store.catalog()
    assert len(list((store.table / "_reput").iterdir())) == 1
    store.mend()
    assert store.catalog().exit_code == 0
    assert list((store.table / "_reput").iterdir()) == []


def test_a_run_that_was_taken_over_removes_no_newer_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, columns, clean = tmp_path / "table", schema(bodies=False, many=False), LackingFiles.clean
    table.mkdir()
    late = Table(table)
    late.append([], 100, columns, lacks=((10, 20),))

    def taken_over(*given: Any) -> None:
        monkeypatch.setattr(LackingFiles, "clean", clean)
        Table(table).append([], 300, columns, lacks=((10, 20), (250, 260)))
        clean(*given)

    monkeypatch.setattr(LackingFiles, "clean", taken_over)
    late.append([], 200, columns, lacks=((10, 20), (150, 160)))
    assert Table(table).lacks == ((10, 20), (250, 260))


def test_of_many_stores_each_has_what_its_rows_lack(store: _Store, tmp_path: Path) -> None:
    number = store.damage()
    other = _Store(tmp_path / "other", "5.5.0-mixed")
    names = {"cluster": "east", "table": store.table, "many": True}
    wanted = [store.options(broker="a", **names), other.options(broker="b", **names)]
    outcomes = update.catalog_many(wanted, Here)
    assert [(one.exit_code, one.to_dict()["exit_code"]) for one in outcomes] == [(1, 1), (0, 0)]
    start = store.places[number]
    lacking = Table(store.table, Broker("east", "a")).lacks
    assert lacking == ((start, start + store.sizes[number]),)
    assert Table(store.table, Broker("east", "b")).lacks == ()
    store.mend()
    assert [one.exit_code for one in update.catalog_many(wanted, Here)] == [0, 0]
    assert store.held(Broker("east", "a")) == store.places


def test_a_table_beside_a_rebuild_says_it_too(store: _Store, tmp_path: Path) -> None:
    """Also where the rebuild has nothing more to do."""
    number = store.damage()
    options = RebuildOptions(
        store.root, tmp_path / "out", store.conf, rocketmq_version=store.version, catalog=store.table
    )
    for _ in range(2):
        done = rebuild(options, None).catalog
        assert done is not None
        start = store.places[number]
        assert _kinds(done.findings) == [("bad-magic", start, start + store.sizes[number])]
        assert cataloged_apart(done) == [
            "  lacks      1 range of the log; do what `reput check` says, then run the same command again"
        ]


@pytest.mark.parametrize("count", [1, 5])
def test_what_was_damaged_when_it_was_held_comes_once(tmp_path: Path, count: int) -> None:
    store = _Store(tmp_path)
    segments = store.log.segments
    aside = tmp_path / "later"
    aside.mkdir()
    for segment in segments[3:]:
        segment.path.rename(aside / segment.path.name)
    words = ["catalog", *store.words, "--table", store.table]
    assert run(*words).code == 0
    for segment in segments[3:]:
        (aside / segment.path.name).rename(segment.path)
    last = max(at for at in store.places if at < segments[2].base + segments[2].length)
    start = store.places[store.places.index(last) - count + 1]
    store.overwrite(start, b"\xff" * (last + 8 - start))
    assert run(*words).code == 1
    store.mend()
    assert run(*words).code == 0
    assert sorted(store.held()) == sorted(store.places)
