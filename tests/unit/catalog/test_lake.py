"""One table of many stores, in a directory: whose messages they are, and who may touch them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction
from deltalake.exceptions import CommitFailedError

from reput.catalog import Cataloged, CatalogOptions, update
from reput.catalog.rows import schema
from reput.catalog.table import Broker, File, Table, broker_of
from reput.catalog.update import Catalog, catalog_many, outdated
from reput.config.settings import StoreSettings
from reput.errors import (
    LogWentBackError,
    OutputError,
    ReputError,
    SettingsError,
    StoreError,
    StoreInUseError,
    UnsupportedError,
)
from reput.format import names
from reput.format.commitlog import Record
from reput.newer_python import UTC
from tests.golden.store import unpack
from tests.here import Here
from tests.rebuilds import run as reput
from tests.stores import LogWriter, move_to_host

_DAY_MS = 86_400_000


def store_of(place: Path, days: tuple[int, ...], host: int, segment_size: int = 4096) -> LogWriter:
    """A store with ten messages for each of some days ago, and a broker.conf beside it."""
    log = LogWriter(place / "store", segment_size)
    noon = int(datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0).timestamp() * 1000)
    for number, day in enumerate(days):
        for each in range(10):
            at = noon - day * _DAY_MS + each
            add(log, "Orders", number * 10 + each, at, host)
    (place / "broker.conf").write_text(f"mappedFileSizeCommitLog={segment_size}\n")
    return log


def add(log: LogWriter, topic: str, queue_offset: int, at: int, host: int) -> None:
    log.append(
        Record(
            topic=topic.encode(),
            queue_id=0,
            queue_offset=queue_offset,
            physical_offset=0,
            store_timestamp=at,
            born_timestamp=at,
            body=b"body",
            store_host=(f"10.0.0.{host}", 10911),
        )
    )


def options(log: LogWriter, table: Path, name: str | None = "broker-a", **more: Any) -> CatalogOptions:
    conf = log.root.parent / "broker.conf"
    whose = {"cluster": "east", "broker": name} if name else {}
    return CatalogOptions(log.root, table, conf, "5.3.3", **{**whose, **more})


def cataloged(wanted: CatalogOptions) -> Cataloged:
    return update.catalog(wanted, Here)


def held(table: Path) -> list[tuple[str, str, int, date]]:
    query = 'SELECT cluster, broker, "physicalOffset" AS at, day FROM held ORDER BY cluster, broker, at'
    rows = pa.table(QueryBuilder().register("held", DeltaTable(str(table))).execute(query).read_all())
    return [tuple(row.values()) for row in rows.to_pylist()]


def places(log: LogWriter) -> list[int]:
    return [record.physical_offset for record in log.records]


def of(table: Path, name: str) -> list[int]:
    return [at for _, broker, at, _ in held(table) if broker == name]


# --- whose messages ---------------------------------------------------------------------------------------


def test_messages_of_many_stores_lie_apart(tmp_path: Path) -> None:
    table = tmp_path / "table"
    logs = {name: store_of(tmp_path / name, (2, 1, 0), number) for number, name in enumerate("abc")}
    for name, log in logs.items():
        assert cataloged(options(log, table, f"broker-{name}")).messages == 30
    for name, log in logs.items():
        assert of(table, f"broker-{name}") == places(log)
        add(log, "Orders", 30, int(time.time() * 1000), 1)
        done = cataloged(options(log, table, f"broker-{name}"))
        assert (done.added, done.messages, done.commits) == (1, 31, 1)
    delta = DeltaTable(str(table))
    assert delta.metadata().partition_columns == ["cluster", "broker", "day"]
    assert delta.schema().fields[0].name == "cluster"
    assert {path.split("table/")[1].partition("/day=")[0] for path in delta.file_uris()} == {
        f"cluster=east/broker=broker-{name}" for name in "abc"
    }
    assert Table(table, Broker("east", "broker-a")).brokers() == [
        Broker("east", f"broker-{name}") for name in "abc"
    ]


def test_a_brokers_own_file_says_who_it_is(tmp_path: Path) -> None:
    log = store_of(tmp_path / "a", (0,), 1)
    conf = log.root.parent / "broker.conf"
    sizes = conf.read_text()

    def proven(text: str, cluster: str | None = None, broker: str | None = None) -> Broker:
        conf.write_text(sizes + text)
        return broker_of(StoreSettings.load(log.root, conf, "5.3.3"), cluster, broker)

    both = "brokerClusterName=east\nbrokerName=broker-a\n"
    assert proven(both) == proven(both, "east", "broker-a") == Broker("east", "broker-a")
    assert proven("brokerName=b\n", "west") == Broker("west", "b")
    for text, cluster, broker, expected in (
        ("", None, None, "nothing says which cluster"),
        ("brokerClusterName=east\n", None, None, "nothing says which broker"),
        ("brokerName=b\n", None, None, "nothing says which cluster"),
        ("brokerClusterName=\nbrokerName=b\n", None, None, "nothing says which cluster"),
        (both, "west", None, "expected west, found east"),
        (both, None, "broker-b", "expected broker-b, found broker-a"),
        (both.replace("east", "e'st"), None, None, "a name that the table can't have"),
        ("", "east", "a b", "a name that the table can't have"),
        ("", "east", "x" * 128, "a name that the table can't have"),
    ):
        with pytest.raises(SettingsError, match=expected):
            proven(text, cluster, broker)


def test_names_that_paths_cannot_have_are_kept_apart(tmp_path: Path) -> None:
    table = tmp_path / "table"
    names_ = ("a/b", "a:b", "a%2Fb", "..", "größe", "a;DROP")
    logs = [store_of(tmp_path / str(number), (0,), number) for number in range(len(names_))]
    for name, log in zip(names_, logs, strict=True):
        assert cataloged(options(log, table, name)).messages == 10
    for name in names_:
        assert len(of(table, name)) == 10
        assert Table(table, Broker("east", name)).messages == 10
    assert len({Broker("east", name).application for name in names_}) == len(names_)
    assert not (tmp_path / "day").exists()


@pytest.mark.parametrize("name", ["a:b", "a%41b", "é+ü", "a/b=c", "a&b#c?", "x*[y]"])
def test_names_that_paths_cannot_have_survive_all_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Steps back, merges and removals: deltalake itself writes files then, and escapes their paths."""
    table = tmp_path / "table"
    log = store_of(tmp_path / "a", (40, 40, 0), 1)
    at = places(log)
    cataloged(options(log, table, name))
    mine = Table(table, Broker("east", name))
    mine.step_back(at[15])
    assert of(table, name) == at[:15]
    again = cataloged(options(log, table, name))
    assert (again.added, again.messages, of(table, name)) == (15, 30, at)
    monkeypatch.setattr(update, "MANY", 2)
    assert cataloged(options(log, table, name)).clustered == ()
    add(log, "Orders", 30, log.records[0].store_timestamp + 100, 1)
    merged = cataloged(options(log, table, name))
    assert (len(merged.clustered), of(table, name)) == (1, places(log))
    add(log, "Orders", 31, int(time.time() * 1000), 1)
    done = cataloged(options(log, table, name, retain_days=30))
    assert (done.retired, done.messages) == (21, 11)
    assert of(table, name) == [at for at in places(log)[20:] if at != places(log)[30]]
    assert cataloged(options(log, table, name, retain_days=30)).retired == 0


def test_one_name_for_two_logs_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table"
    one, other = store_of(tmp_path / "a", (1, 0), 1), LogWriter(tmp_path / "b" / "store", 4096)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "broker.conf").write_text("mappedFileSizeCommitLog=4096\n")
    for number in range(25):
        add(other, "Payments-of-another-broker", number, int(time.time() * 1000) + number, 2)
    cataloged(options(one, table))
    before = DeltaTable(str(table)).version()
    with pytest.raises(LogWentBackError) as refused:
        cataloged(options(other, table))
    said = str(refused.value)
    assert "broker-a of east, with a message of Orders of the broker at 10.0.0.1" in said
    assert "found" in said
    assert "its own cluster and broker" in said
    assert DeltaTable(str(table)).version() == before
    assert cataloged(options(other, table, "broker-b")).messages == 25
    assert of(table, "broker-a") == places(one)


def test_one_log_under_two_names_is_refused(tmp_path: Path) -> None:
    """Also when the table has lost its first messages, or another log begins with like ones."""
    table = tmp_path / "table"
    log, like = (store_of(tmp_path / str(host), (40, 0), host, 1200) for host in (1, 2))
    cataloged(options(log, table))
    version = DeltaTable(str(table)).version()
    with pytest.raises(StoreError) as refused:
        cataloged(options(log, table, "broker-A"))
    said = str(refused.value)
    assert "the table holds this log under another name" in said
    assert "for broker-A of east, found the same message, of the broker at 10.0.0.1:10911" in said
    assert "give the names broker-a of east" in said
    assert DeltaTable(str(table)).version() == version
    assert cataloged(options(like, table, "broker-A")).messages == 20
    assert cataloged(options(log, table, retain_days=30)).messages == 10
    with pytest.raises(StoreError, match="another name"):
        cataloged(options(log, table, "broker-c"))
    assert len(held(table)) == 30


def test_two_stores_of_one_command_with_one_name_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "table"
    logs = [store_of(tmp_path / name, (0,), 1) for name in "ab"]
    with pytest.raises(SettingsError, match="two stores say that they are one broker's") as refused:
        catalog_many([options(log, table, many=True) for log in logs], Here)
    assert all(str(log.root) in str(refused.value) for log in logs)
    assert not table.exists()


def test_a_store_that_is_refused_stops_no_other(tmp_path: Path) -> None:
    table = tmp_path / "table"
    log, unnamed = (store_of(tmp_path / name, (0,), 1) for name in "ab")
    stores = [
        options(unnamed, table, None, many=True),
        replace(options(log, table, "gone", many=True), store=tmp_path / "gone"),
        options(log, table, many=True),
    ]
    told: list[tuple[str, int]] = []
    outcomes = catalog_many(
        stores,
        Here,
        told=lambda one, left: told.append((one.store, left)),
    )
    results = [one.result for one in outcomes]
    assert [isinstance(one, ReputError) for one in results] == [True, True, False]
    assert [one.to_dict()["exit_code"] for one in outcomes] == [2, 2, 0]
    assert [left for _, left in told] == [2, 1, 0]
    assert of(table, "broker-a") == places(log)


# --- kinds of tables ---------------------------------------------------------------------------------------


def test_a_table_stays_of_its_kind(tmp_path: Path) -> None:
    one, other = store_of(tmp_path / "a", (0,), 1), store_of(tmp_path / "b", (0,), 2)
    single, many = tmp_path / "single", tmp_path / "many"
    assert cataloged(options(one, single, None)).cluster is None
    assert "cluster" not in Table(single).columns
    for more in ({"cluster": "east", "broker": "a"}, {"many": True}, {"retain_days": 3}):
        with pytest.raises(SettingsError, match="one of one store, without the columns"):
            cataloged(options(other, single, None, **more))
    assert cataloged(options(one, single, None)).messages == 10
    cataloged(options(one, many))
    with pytest.raises(SettingsError, match="nothing says which cluster"):
        cataloged(options(other, many, None))
    with pytest.raises(UnsupportedError, match="one of many stores"), Catalog(options(one, many, None)):
        pass
    for broker, table in ((None, many), (Broker("east", "broker-a"), single)):
        with pytest.raises(OutputError, match="the table was begun otherwise"):
            Table(table, broker)
    with pytest.raises(SettingsError, match="expected no bodies, found bodies"):
        cataloged(options(other, many, "broker-b", bodies=True))
    assert cataloged(options(other, tmp_path / "bodies", "broker-b", bodies=True)).messages == 10
    assert "body" in Table(tmp_path / "bodies", Broker("east", "broker-b")).columns


# --- several writers ---------------------------------------------------------------------------------------


def _between(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Do something once, right after a run has looked at the table and before it commits."""
    left = [then]
    commit = Table._insist

    def late(self: Table, *given: Any) -> None:
        if left and self.version >= 0:
            left.pop()()
        commit(self, *given)

    monkeypatch.setattr(Table, "_insist", late)


def test_others_commits_are_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends, merges and removals of one store beside appends of another one."""
    table = tmp_path / "table"
    one, other = store_of(tmp_path / "a", (1, 0), 1), store_of(tmp_path / "b", (0,), 2)
    cataloged(options(other, table, "broker-b"))

    def more() -> None:
        add(other, "Orders", len(other.records), int(time.time() * 1000), 2)
        assert cataloged(options(other, table, "broker-b", optimize=False)).added == 1

    with monkeypatch.context() as patch:
        _between(patch, more)
        cataloged(options(one, table, max_bytes_per_trigger=500, optimize=False))
    monkeypatch.setattr(update, "MANY", 2)
    with monkeypatch.context() as patch:
        _between(patch, more)
        assert cataloged(options(one, table)).clustered
    with monkeypatch.context() as patch:
        _between(patch, more)
        assert cataloged(options(one, table, retain_days=1)).retired == 0
    with monkeypatch.context() as patch:
        _between(patch, more)
        (one.root / "commitlog" / names.offset_name(0)).write_bytes(
            (one.root / "commitlog" / names.offset_name(0)).read_bytes()[:2000] + bytes(4096 - 2000)
        )
        assert cataloged(options(one, table)).removed > 0
    assert of(table, "broker-b") == places(other)
    ours = of(table, "broker-a")
    assert ours == [at for at in places(one) if at in ours]


def test_a_second_run_of_one_store_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table"
    log, other = store_of(tmp_path / "a", (0,), 1), store_of(tmp_path / "b", (0,), 2)
    with Catalog(options(log, table), either=True):
        with pytest.raises(StoreInUseError, match="another run writes to the table"):
            cataloged(options(log, table))
        assert cataloged(options(other, table, "broker-b")).messages == 10
    assert cataloged(options(log, table)).messages == 10


def test_a_run_that_another_host_overtook_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where locks don't meet, the commit itself tells: for the same store it fails, and for good."""
    table = tmp_path / "table"
    log = store_of(tmp_path / "a", (1, 0), 1)
    cataloged(options(log, table))
    add(log, "Orders", 20, int(time.time() * 1000), 1)

    def overtake() -> None:
        delta = DeltaTable(str(table))
        delta.create_write_transaction(
            [],
            "append",
            delta.schema(),
            ["cluster", "broker", "day"],
            commit_properties=CommitProperties(
                app_transactions=[Transaction(Broker("east", "broker-a").application, log.end + 1)]
            ),
        )

    _between(monkeypatch, overtake)
    with pytest.raises(OutputError, match="another run has written to the table meanwhile"):
        cataloged(options(log, table))
    assert len(held(table)) == 20


def test_a_commit_whose_answer_is_lost_is_known_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one without files, of log that held no message."""
    table = tmp_path / "table"
    log = store_of(tmp_path / "a", (0,), 1)
    cataloged(options(log, table))
    mine = Table(table, Broker("east", "broker-a"))
    before, version = mine.cursor or 0, mine.version
    real = DeltaTable.create_write_transaction

    def lost(self: DeltaTable, *given: Any, **named: Any) -> None:
        monkeypatch.undo()
        real(self, *given, **named)
        raise CommitFailedError("lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    mine.append([], before + 1000, schema(bodies=False, many=True))
    assert (mine.cursor, mine.version) == (before + 1000, version + 1)


def test_two_runs_that_merge_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """deltalake would take both for good, and each message would be there twice."""
    table = tmp_path / "table"
    log = store_of(tmp_path / "a", (0,), 1)
    cataloged(options(log, table, max_bytes_per_trigger=500, optimize=False))
    broker = Broker("east", "broker-a")
    mine, theirs = Table(table, broker), Table(table, broker)
    assert len(mine.files()) > 1
    theirs.remove(theirs.files()[:1])
    with pytest.raises(OutputError, match="changed the table meanwhile"):
        mine.replace(mine.files(), ())
    assert len(Table(table, broker).files()) == len(mine.files())


def test_only_files_of_this_store_are_cleaned_up(tmp_path: Path) -> None:
    table = tmp_path / "table"
    logs = {name: store_of(tmp_path / name, (0,), number) for number, name in enumerate("ab")}
    left = []
    for name, log in logs.items():
        cataloged(options(log, table, f"broker-{name}"))
        broker = Broker("east", f"broker-{name}")
        mark = table / names.REPUT / "brokers" / broker.digest / names.REPUT / "catalog-files"
        mark.write_text("0123456789abcdef")
        left.append(table / broker.directory / "day=2026-11-01" / "part-0123456789abcdef-1.parquet")
        left[-1].parent.mkdir()
        left[-1].write_bytes(b"left")
    add(logs["a"], "Orders", 10, int(time.time() * 1000), 1)
    cataloged(options(logs["a"], table))
    assert [path.exists() for path in left] == [False, True]
    assert len(held(table)) == 21


# --- a log that went back ----------------------------------------------------------------------------------


def test_only_rows_of_the_log_that_went_back_are_taken_out(tmp_path: Path) -> None:
    table = tmp_path / "table"
    whole = [unpack("5.3.3-mixed", tmp_path / name / "store") for name in "ab"]
    move_to_host(whole[1].root, 2)
    wanted = [
        CatalogOptions(
            store.root, table, store.write_broker_conf(), "5.3.3", cluster="east", broker=f"broker-{name}"
        )
        for name, store in zip("ab", whole, strict=True)
    ]
    for one in wanted:
        assert cataloged(one).messages == 847
    for segment in sorted((whole[0].root / "commitlog").iterdir())[2:]:
        segment.unlink()
    done = cataloged(wanted[0])
    assert 0 < done.removed == 847 - done.messages
    assert len(of(table, "broker-b")) == 847
    again = cataloged(wanted[1])
    assert (again.added, again.removed, again.messages) == (0, 0, 847)


# --- retention ----------------------------------------------------------------------------------------


def test_days_that_are_over_go_and_do_not_come_back(tmp_path: Path) -> None:
    table = tmp_path / "table"
    logs = {name: store_of(tmp_path / name, (9, 3, 2, 0), number) for number, name in enumerate("ab")}
    for name, log in logs.items():
        cataloged(options(log, table, f"broker-{name}"))
    done = cataloged(options(logs["a"], table, retain_days=2))
    assert (done.retired, done.messages, done.added) == (20, 20, 0)
    today = datetime.now(UTC).date()
    assert {day for _, name, _, day in held(table) if name == "broker-a"} == {
        today - timedelta(days=2),
        today,
    }
    assert of(table, "broker-b") == places(logs["b"])
    again = cataloged(options(logs["a"], table, retain_days=2))
    assert (again.retired, again.added, again.messages) == (0, 0, 20)
    without = cataloged(options(logs["a"], table))
    assert (without.added, without.messages) == (0, 20)


def test_the_last_message_of_a_quiet_store_stays(tmp_path: Path) -> None:
    """Else the next run would take the log for one that the table has nothing of, and add all of it."""
    table = tmp_path / "table"
    log = store_of(tmp_path / "a", (40, 30), 1)
    done = cataloged(options(log, table, retain_days=7))
    assert (done.added, done.retired, done.messages) == (20, 10, 10)
    again = cataloged(options(log, table, retain_days=7))
    assert (again.added, again.retired, again.messages) == (0, 0, 10)
    add(log, "Orders", 20, int(time.time() * 1000), 1)
    later = cataloged(options(log, table, retain_days=7))
    assert (later.added, later.retired, later.messages) == (1, 10, 1)


def test_a_log_that_went_back_before_what_retention_left(tmp_path: Path) -> None:
    table = tmp_path / "table"
    log, other = store_of(tmp_path / "a", (40, 30), 1), store_of(tmp_path / "b", (0,), 2)
    cataloged(options(other, table, "broker-b"))
    cataloged(options(log, table))
    assert cataloged(options(log, table, retain_days=30)).messages == 10
    segment = log.root / "commitlog" / names.offset_name(0)
    segment.write_bytes(segment.read_bytes()[: places(log)[5]].ljust(4096, b"\0"))
    with pytest.raises(
        LogWentBackError, match=r"before all that --retain has left of it, see docs/catalog\.md"
    ):
        cataloged(options(log, table))
    DeltaTable(str(table)).delete("cluster = 'east' AND broker = 'broker-a'")
    done = cataloged(options(log, table))
    assert (done.added, done.messages) == (5, 5)
    assert of(table, "broker-a") == places(log)[:5]
    assert of(table, "broker-b") == places(other)


def test_a_store_on_another_host_is_refused_as_one(tmp_path: Path) -> None:
    done = reput("catalog", "host-b:/data/store", "--table", tmp_path / "table")
    assert done.code == 2
    assert "host-b:/data/store: a catalog reads stores of this host, or at a URL" in done.stderr


def test_a_clock_that_is_ahead_empties_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Days are counted from the newest message of any store, also for one that is quiet."""
    table = tmp_path / "table"
    quiet, log = store_of(tmp_path / "a", (20, 10), 1), store_of(tmp_path / "b", (3, 0), 2)
    cataloged(options(log, table, "broker-b"))

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(days=365)

    with monkeypatch.context() as patch:
        patch.setattr("reput.catalog.update.datetime", Ahead)
        assert cataloged(options(log, table, "broker-b", retain_days=5)).retired == 0
        assert cataloged(options(quiet, table, retain_days=15)).retired == 10
    assert of(table, "broker-b") == places(log)
    assert of(table, "broker-a") == places(quiet)[10:]


def test_files_are_removed_a_week_after_they_were_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    log = store_of(tmp_path / "a", (9, 3, 0), 1)
    cataloged(options(log, table))
    unnamed = next(table.glob("cluster=*/broker=*/day=*")) / "part-of-a-run-that-writes.parquet"
    unnamed.write_bytes(b"will be named soon")
    os.utime(unnamed, (1, 1))
    files = {path.name for path in table.glob("cluster=*/**/*.parquet")}
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr("reput.catalog.table.time.time", lambda: now - 8 * 86_400)
        assert cataloged(options(log, table, retain_days=5)).retired == 10
    assert cataloged(options(log, table, retain_days=1)).vacuumed == 1
    left = {path.name for path in table.glob("cluster=*/**/*.parquet")}
    assert len(files - left) == 1  # the day that was retired just now has a week
    assert unnamed.name in left


def test_which_files_are_outdated() -> None:
    today = date(2026, 11, 24)

    def file(days: int | None, last: int | None) -> File:
        return File("f", None if days is None else today - timedelta(days=days), 1, 1, last)

    files = [file(9, 1), file(8, 2), file(7, 3), file(None, 4), file(9, None), file(30, 5)]
    for newest in (None, today, today + timedelta(days=9), today - timedelta(days=1)):
        assert outdated(files, 7, newest, today) == files[:2]
    assert outdated(files, 7, today - timedelta(days=2), today) == files[:1]
    assert outdated([], 7, today, today) == []
