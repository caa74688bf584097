"""Upkeep of the ledger: the same facts in fewer files, whatever moment a crash or a commit picks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.errors import OutputError
from reput.format import names
from reput.format.indexfile import IndexHeader
from reput.output import delta_table, ledger
from reput.output.delta_table import LOG, Table
from reput.output.ledger import APPLICATION, Ledger, LedgerUpkeep, merged, rows, step
from reput.replay.state import Batch, QueueState
from reput.store import files
from tests.crash import Dying, Failing, LosingPower, died
from tests.memory import scratch
from tests.unit.output.test_ledger import batch, catch_up, contents, expected, identity, journal_of


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: thousands of flushes are not what is tested here."""
    with scratch() as place:
        yield place


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is due after a few batches."""
    monkeypatch.setattr(ledger, "BATCHES", 3)
    monkeypatch.setattr(ledger, "FILES", 2)
    monkeypatch.setattr(ledger, "COMMITS", 5)
    monkeypatch.setattr(delta_table, "RETENTION_SECONDS", 0)


def tidy_up(one: Ledger) -> None:
    upkeep = LedgerUpkeep(one)
    upkeep.work()
    assert upkeep.failure is None


def batch_of(number: int) -> Batch:
    return batch(number, index=[("20231114221320000", IndexHeader(index_count=number))])


def batches_of(count: int) -> list[Batch]:
    return [batch_of(number) for number in range(count)]


def data_files(root: Path) -> set[str]:
    return {path.name for path in (root / names.LEDGER).glob("*.parquet")}


def test_the_same_rows_in_fewer_files(tmp_path: Path, often: None) -> None:
    batches = batches_of(50)
    one = Ledger(tmp_path)
    with journal_of(tmp_path, []) as opened:
        for number, each in enumerate(batches):
            opened.append(each)
            one.catch_up(opened)
            tidy_up(one)
            if number % 7 == 0:
                assert contents(tmp_path) == expected(batches[: number + 1])
        assert contents(tmp_path) == expected(batches)
        assert one.table is not None
        ranges = sorted((file.first, file.last) for file in one.table.files.values())
        assert [first for first, _ in ranges] == [1, *(last + 1 for _, last in ranges[:-1])]
        assert ranges[0] == (1, 6)
        assert ranges[-1][1] == 50
        # What was replaced goes with the next look, the log up to the last checkpoint, too.
        step(one.table)
        assert data_files(tmp_path) == set(one.table.files)
        assert len(list((one.path / LOG).iterdir())) < 12
    before = identity(tmp_path)
    catch_up(tmp_path, batches_of(51))
    assert contents(tmp_path) == expected(batches_of(51))
    assert identity(tmp_path) == before


def test_a_failed_step_leaves_no_file_that_nothing_names(
    tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call of a commit, or of what tidies up, the disk refuses: what a version names stays."""
    batches = batches_of(12)
    failed = 0
    for last in range(1, 40):
        root = tmp_path / str(last)
        root.mkdir()
        one = Ledger(root)
        with journal_of(root, []) as opened:
            for each in batches[:11]:
                opened.append(each)
                one.catch_up(opened)
            opened.append(batches[11])
            for work in (partial(one.catch_up, opened), LedgerUpkeep(one).work):
                failing = Failing(last)
                monkeypatch.setattr(files, "system", failing)
                with suppress(OutputError):
                    work()
                monkeypatch.setattr(files, "system", Dying())
                failed += failing.calls >= last
                table = Table.open(one.path, APPLICATION, clean=False)
                assert table is not None
                assert data_files(root) <= {*table.files, *table._removed}
                assert set(table.files) <= data_files(root)
            again = Ledger(root)
            again.catch_up(opened)
            tidy_up(again)
            assert contents(root) == expected(batches)
    assert failed > 20


def test_files_of_many_batches_in_between_are_taken_along(tmp_path: Path, often: None) -> None:
    """Catching up at a start commits many batches at once, between files of one."""
    count = 0
    for more in (2, 30, 1, 1, 4, 1, 1, 1):
        count += more
        one = catch_up(tmp_path, batches_of(count))
        tidy_up(one)
    assert contents(tmp_path) == expected(batches_of(count))
    assert one.table is not None
    assert len(one.table.files) <= 5


@pytest.mark.slow
def test_the_oldest_batches_are_told_as_one(
    tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "FULL_FILES", 2)
    one = Ledger(tmp_path)
    with journal_of(tmp_path, []) as opened:
        for number in range(60):
            opened.append(batch_of(number))
            one.catch_up(opened)
            tidy_up(one)
            found = contents(tmp_path)
            told = [row for row in found if row["kind"] == "batch"]
            assert sum(row["messages"] for row in told) == 5 * (number + 1)
            assert sum(row["count"] or 1 for row in told) == number + 1
            queues = [row for row in found if row["kind"] == "queue"]
            assert (
                sum(row["units"] for row in queues)
                == max(row["next_offset"] for row in queues)
                == 5 * (number + 1)
            )
            assert len(found) < 70
        assert max(row["count"] or 0 for row in told) == 48
    before = identity(tmp_path)
    catch_up(tmp_path, batches_of(61))
    assert identity(tmp_path) == before


def test_readers_keep_what_they_have_for_a_while(
    tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "RETENTION_SECONDS", 300)
    one = catch_up(tmp_path, batches_of(3))
    reader = DeltaTable(str(one.path))
    for count in range(4, 20):
        with journal_of(tmp_path, batches_of(count)) as opened:
            one.catch_up(opened)
        tidy_up(one)
    assert sorted(reader.to_pyarrow_table().to_pylist(), key=str) == expected(batches_of(3))
    assert DeltaTable(str(one.path)).transaction_version(APPLICATION) == 19
    monkeypatch.setattr(delta_table, "RETENTION_SECONDS", 0)
    tidy_up(catch_up(tmp_path, batches_of(20)))
    assert contents(tmp_path) == expected(batches_of(20))


PREPARED = 19


def prepared(root: Path) -> None:
    """A ledger for which merging twice, telling as one and a checkpoint are due."""
    one = Ledger(root)
    with journal_of(root, []) as opened:
        for count in range(1, PREPARED + 1):
            opened.append(batch_of(count - 1))
            one.catch_up(opened)
            if count < 12:
                tidy_up(one)


@pytest.mark.slow
def test_killed_at_every_step(tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is sound at any moment, and goes on without being made anew."""
    origin = tmp_path / "origin"
    prepared(origin)
    before = identity(origin)
    monkeypatch.setattr(ledger, "FULL_FILES", 1)
    for last in range(1, 999):
        root = tmp_path / str(last)
        shutil.copytree(origin, root)
        one = catch_up(root, batches_of(PREPARED))
        with monkeypatch.context() as patch:
            patch.setattr(files, "system", Dying(last))
            was_killed = died(lambda: tidy_up(one))  # noqa: B023
        assert sum(row["messages"] or 0 for row in contents(root)) == 5 * PREPARED
        again = catch_up(root, batches_of(PREPARED + 1))
        assert identity(root) == before
        assert again.table is not None
        assert data_files(root) <= {*again.table.files, *again.table._removed}
        assert not list((root / names.LEDGER).rglob("*.tmp"))
        shutil.rmtree(root)
        if not was_killed:
            break
    assert last > 30


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_power_lost_in_upkeep(
    tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    origin = tmp_path / "origin"
    prepared(origin)
    before = identity(origin)
    for round_number in range(12):
        root = tmp_path / str(round_number)
        shutil.copytree(origin, root)
        one = catch_up(root, batches_of(PREPARED))
        losing = LosingPower(root, random.randint(1, 60))
        with monkeypatch.context() as patch:
            patch.setattr(files, "system", losing)
            died(lambda: tidy_up(one))  # noqa: B023
        losing.lose(random)
        assert contents(root) == expected(batches_of(PREPARED))
        catch_up(root, batches_of(PREPARED + 1))
        assert contents(root) == expected(batches_of(PREPARED + 1))
        assert identity(root) == before


@pytest.mark.slow
def test_beside_a_stream(tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_SECONDS", 0.001)
    one = Ledger(tmp_path)
    batches = batches_of(250)
    with journal_of(tmp_path, []) as opened, LedgerUpkeep(one) as upkeep:
        for each in batches[:200]:
            opened.append(each)
            one.catch_up(opened)
        opened.step_back(150)
        for each in batches[200:]:
            opened.append(each)
            one.catch_up(opened)  # the first makes it anew
    assert upkeep.failure is None
    assert contents(tmp_path) == expected([*batches[:150], *batches[200:]])
    assert one.table is not None
    tidy_up(one)
    assert len(one.table.files) < 60


def test_a_failure_is_told_and_harms_nothing(
    tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_SECONDS", 0.001)
    monkeypatch.setattr(ledger, "_SECONDS_AFTER_FAILURE", 0.001)
    one = Ledger(tmp_path)
    with journal_of(tmp_path, []) as opened:
        for each in batches_of(6):
            opened.append(each)
            one.catch_up(opened)
    assert one.table is not None
    victim = one.path / next(iter(one.table.files))
    victim.rename(tmp_path / "away")
    with LedgerUpkeep(one) as upkeep:
        wait_until(lambda: upkeep.failure is not None)
        assert victim.name in str(upkeep.failure)
        (tmp_path / "away").rename(victim)
        wait_until(lambda: upkeep.failure is None)
    assert contents(tmp_path) == expected(batches_of(6))


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# --- told as one -----------------------------------------------------------------------------------------

QUEUES = st.dictionaries(
    st.tuples(st.sampled_from("TU"), st.integers(0, 2)),
    st.builds(
        QueueState,
        st.integers(0, 9),
        st.integers(9, 20),
        st.integers(0, 99),
        st.integers(0, 5),
        st.integers(0, 9),
    ),
    max_size=3,
)
INDEX = st.lists(
    st.tuples(st.sampled_from(["1", "2", "3"]), st.builds(IndexHeader, index_count=st.integers(1, 9))),
    max_size=2,
    unique_by=lambda pair: pair[0],
)


@st.composite
def some_batches(draw: st.DrawFn) -> list[Batch]:
    found = []
    for number in range(draw(st.integers(1, 6))):
        findings = [
            ledger.Finding("bad-size", "s", at, at + 1, "a", "b", "c", "T", 0, at)
            for at in range(draw(st.integers(0, 3)))
        ]
        retained = draw(st.booleans())
        dropped = [f"0{number}"] if retained and draw(st.booleans()) else []
        found.append(
            batch(
                number,
                queues=draw(QUEUES),
                index=draw(INDEX),
                findings=findings,
                log_start=number if retained else 0,
                dropped_index=dropped,
            )
        )
    return found


def slowly_merged(batches: list[Batch]) -> list[dict[str, Any]]:
    """What rows of many batches are as one, from the batches themselves."""
    last: dict[object, dict[str, Any]] = {}
    for each in batches:
        for row in rows(each).to_pylist():
            key: object = (row["kind"], row["topic"], row["queue_id"], row["file"])
            if row["kind"] == "finding":
                key = len(last)
            elif row["kind"] == "retention" and row["file"]:
                key = "dropped"
                row["count"] = 1
            elif row["kind"] == "batch":
                row["count"] = 1
            before = last.get(key)
            if before is not None and (row["kind"] in ("batch", "queue") or key == "dropped"):
                for name in ("messages", "bytes", "units", "count"):
                    row[name] = None if row[name] is None else row[name] + before[name]
                row["batch_start"] = before["batch_start"]
            last[key] = row
    return sorted(last.values(), key=str)


@pytest.mark.slow
@settings(deadline=None)
@given(some_batches(), st.integers(0, 6))
def test_told_as_one_like_its_slow_twin(batches: list[Batch], cut: int) -> None:
    """Also when some were told as one before."""
    older, newer = batches[:cut], batches[cut:]
    parts = [rows(each) for each in newer]
    if older:
        parts.insert(0, merged(pa.concat_tables([rows(each) for each in older])))
    found = merged(pa.concat_tables(parts))
    assert sorted(found.to_pylist(), key=str) == slowly_merged(batches)


def test_too_many_findings_become_one_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_FINDINGS", 6)
    findings = [ledger.Finding("ab"[at % 2], "s", at, at + 1, "x", "y", "z", "T", 0, at) for at in range(10)]
    table = merged(rows(batch(0, findings=findings)))
    found = [row for row in table.to_pylist() if row["kind"] == "finding"]
    assert [
        (row["finding"], row["begin_offset"], row["end_offset"], row["count"], row["topic"]) for row in found
    ] == [
        ("a", 0, 7, 4, None),
        ("b", 1, 6, 3, None),
        ("b", 7, 8, 1, "T"),
        ("a", 8, 9, 1, "T"),
        ("b", 9, 10, 1, "T"),
    ]
