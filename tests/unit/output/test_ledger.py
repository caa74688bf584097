"""The Delta ledger: each batch of the journal once, and made anew where it isn't what the journal says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from reput.errors import Finding, OutputError
from reput.format import names
from reput.format.indexfile import IndexHeader
from reput.output import journal
from reput.output.delta_table import Table
from reput.output.journal import Journal
from reput.output.ledger import APPLICATION, Ledger, merged, rows
from reput.replay.state import FILLED, HIDDEN, KEPT, Batch, Opening, QueueState, Salvaged
from reput.store import files
from tests.crash import Dying, LosingPower, died
from tests.memory import scratch


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: thousands of flushes are not what is tested here."""
    with scratch() as place:
        yield place


def batch(number: int, **changes: Any) -> Batch:
    facts: dict[str, Any] = {
        "start": number * 100,
        "end": number * 100 + 100,
        "batch_id": 7,
        "messages": 5,
        "bytes": 100,
        "last_position": number * 100 + 80,
        "last_timestamp": 1_700_000_000_000 + number,
        "last_unit_timestamp": 1_700_000_000_000 + number,
        "queues": {("T", 0): QueueState(0, 5 * number + 5, number * 100 + 100, 5, 100)},
    }
    return Batch(**{**facts, **changes})


BATCHES = [batch(number) for number in range(3)]


def journal_of(root: Path, batches: list[Batch]) -> Journal:
    """A journal of these batches, gone on with if there is one."""
    path = root / names.REPUT / names.JOURNAL
    if not path.exists():
        path.parent.mkdir(parents=True)
        Journal.create(path, Opening("/store", "fingerprint", 0), None)
    opened = Journal.open(path)
    for one in batches[opened.state.batches :]:
        opened.append(one)
    return opened


def catch_up(root: Path, batches: list[Batch]) -> Ledger:
    """A run that commits batches up to these."""
    one = Ledger(root)
    with journal_of(root, batches) as opened:
        one.catch_up(opened)
    return one


def contents(root: Path) -> list[dict[str, Any]]:
    found = DeltaTable(str(root / names.LEDGER)).to_pyarrow_table().to_pylist()
    return sorted(found, key=str)


def expected(batches: list[Batch]) -> list[dict[str, Any]]:
    return sorted((row for one in batches for row in rows(one).to_pylist()), key=str)


def identity(root: Path) -> str:
    """Changes when the table is made anew."""
    return str(DeltaTable(str(root / names.LEDGER)).metadata().id)


def test_every_fact_of_a_batch_has_a_row() -> None:
    finding = Finding("bad-size", "segment", 3, 9, "more", "less", "passed over", "T", 0, 4, 2)
    header = IndexHeader(1, 2, 3, 4, 5, 6)
    full = batch(0, index=[("20231114221320000", header)], findings=[finding])
    kinds = {row["kind"]: row for row in rows(full).to_pylist()}
    assert kinds.keys() == {"batch", "queue", "index", "finding"}
    assert {row["batch_end"] for row in kinds.values()} == {100}
    assert (kinds["batch"]["batch_start"], kinds["batch"]["messages"], kinds["batch"]["bytes"]) == (0, 5, 100)
    queue = kinds["queue"]
    assert (queue["topic"], queue["queue_id"], queue["first_offset"], queue["next_offset"]) == ("T", 0, 0, 5)
    index = kinds["index"]
    assert (index["file"], index["begin_timestamp"], index["end_offset"]) == ("20231114221320000", 1, 4)
    assert index["index_count"] == 6
    found = kinds["finding"]
    assert (found["finding"], found["begin_offset"], found["end_offset"]) == ("bad-size", 3, 9)
    assert (found["expected"], found["found"], found["queue_offset"], found["count"]) == (
        "more",
        "less",
        4,
        2,
    )


def test_retention_has_rows_of_its_own() -> None:
    """Where the log begins, where queues begin, which index files went."""
    done = batch(
        3,
        messages=0,
        queues={("T", 0): QueueState(4, 15, 300), ("U", 1): QueueState(7, 7, 200)},
        log_start=250,
        dropped_index=["20231114221320000"],
    )
    found = [row for row in rows(done).to_pylist() if row["kind"] == "retention"]
    facts = [
        (row["begin_offset"], row["topic"], row["queue_id"], row["first_offset"], row["file"])
        for row in found
    ]
    assert facts == [
        (250, None, None, None, None),
        (None, "T", 0, 4, None),
        (None, "U", 1, 7, None),
        (None, None, None, None, "20231114221320000"),
    ]


def test_each_batch_is_committed_once(tmp_path: Path) -> None:
    one = Ledger(tmp_path)
    assert one.version() == 0
    with journal_of(tmp_path, []) as opened:
        one.catch_up(opened)
        assert not one.path.exists()
        for each in BATCHES[:2]:
            opened.append(each)
            one.catch_up(opened)
            one.catch_up(opened)
        assert one.version() == 2
    other = catch_up(tmp_path, BATCHES)
    catch_up(tmp_path, BATCHES)
    assert contents(tmp_path) == expected(BATCHES)
    table = DeltaTable(str(one.path))
    assert (table.version(), table.transaction_version("reput"), other.version()) == (2, 3, 3)


def test_the_next_run_goes_on_with_it(tmp_path: Path) -> None:
    """However the queues are ordered in memory, and in the journal."""
    queues = {(topic, number): QueueState(0, 5, 90, 5, 100) for number in (1, 0) for topic in "TUS"}
    batches = [batch(0, queues=queues), batch(1, queues=queues, log_start=50)]
    catch_up(tmp_path, batches[:1])
    before = identity(tmp_path)
    catch_up(tmp_path, batches)
    catch_up(tmp_path, batches)
    assert identity(tmp_path) == before


def test_many_that_are_missing_come_at_once(tmp_path: Path) -> None:
    batches = [batch(number) for number in range(600)]
    one = catch_up(tmp_path, batches)
    assert contents(tmp_path) == expected(batches)
    assert one.table is not None
    assert [(file.first, file.last) for file in one.table.files.values()] == [
        (1, 256),
        (257, 512),
        (513, 600),
    ]


def test_batches_that_move_nothing_count_too(tmp_path: Path) -> None:
    """One that only found damage at the log's end has the end offset of the one before."""
    finding = Finding("torn-tail", "segment", 300, 300, "a record", "zeros", "the end")
    batches = [*BATCHES, batch(3, start=300, end=300, messages=0, queues={}, findings=[finding])]
    catch_up(tmp_path, BATCHES)
    for _ in range(2):
        catch_up(tmp_path, batches)
        assert contents(tmp_path) == expected(batches)


def newest(root: Path, pattern: str) -> Path:
    return max((root / names.LEDGER).rglob(pattern), key=lambda path: (path.stat().st_mtime_ns, path.name))


def cut_log(root: Path) -> None:
    path = newest(root, "*.json")
    path.write_bytes(path.read_bytes()[:40])


def empty_log(root: Path) -> None:
    newest(root, "*.json").write_bytes(b"")


def zero_log(root: Path) -> None:
    path = newest(root, "*.json")
    path.write_bytes(bytes(path.stat().st_size))


def lose_data(root: Path) -> None:
    newest(root, "*.parquet").unlink()


def cut_data(root: Path) -> None:
    path = newest(root, "*.parquet")
    path.write_bytes(path.read_bytes()[:-9])


def zero_data(root: Path) -> None:
    path = newest(root, "*.parquet")
    path.write_bytes(bytes(path.stat().st_size))


def lose_the_log(root: Path) -> None:
    for path in (root / names.LEDGER).rglob("*.json"):
        path.unlink()


def name_something_outside(root: Path) -> None:
    """What is named as removed long ago would be unlinked."""
    path = newest(root, "*.json")
    remove = {"path": "../victim", "deletionTimestamp": 1, "dataChange": False, "size": 1}
    path.write_bytes(path.read_bytes() + json.dumps({"remove": remove}).encode() + b"\n")


def by_another_writer(root: Path) -> None:
    """What versions before this one wrote: a table without what this one asks for."""
    shutil.rmtree(root / names.LEDGER)
    write_deltalake(str(root / names.LEDGER), rows(BATCHES[0]), partition_by=["kind"])


@pytest.mark.parametrize(
    "harm",
    [
        cut_log,
        empty_log,
        zero_log,
        lose_data,
        cut_data,
        zero_data,
        lose_the_log,
        name_something_outside,
        by_another_writer,
    ],
)
def test_a_torn_ledger_is_made_anew(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    catch_up(tmp_path, BATCHES[:1])
    catch_up(tmp_path, BATCHES[:2])
    before = identity(tmp_path)
    harm(tmp_path)
    catch_up(tmp_path, BATCHES)
    assert contents(tmp_path) == expected(BATCHES)
    assert identity(tmp_path) != before


@pytest.mark.parametrize("others", [BATCHES[:1], [batch(0), batch(1), batch(2, messages=9)]])
def test_a_ledger_of_another_journal_is_made_anew(tmp_path: Path, others: list[Batch]) -> None:
    catch_up(tmp_path, BATCHES)
    (tmp_path / names.REPUT / names.JOURNAL).unlink()
    (tmp_path / names.REPUT).rmdir()
    catch_up(tmp_path, others)
    assert contents(tmp_path) == expected(others)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_journal_that_stepped_back(tmp_path: Path, number: int, restarted: bool) -> None:
    """Whether the ledger was ahead of the journal, or has as many batches, but others."""
    one = catch_up(tmp_path, BATCHES)
    with journal_of(tmp_path, BATCHES) as opened:
        one.catch_up(opened)
        opened.step_back(number)
        after = BATCHES[:number]
        for each in [batch(7), batch(8)][: 3 - number]:
            after = [*after, each]
            opened.append(each)
        (Ledger(tmp_path) if restarted else one).catch_up(opened)
    assert contents(tmp_path) == expected(after)


def test_a_step_back_to_what_the_ledger_has(tmp_path: Path) -> None:
    one = catch_up(tmp_path, BATCHES[:2])
    before = identity(tmp_path)
    with journal_of(tmp_path, BATCHES[:2]) as opened:
        one.catch_up(opened)
        opened.append(BATCHES[2])
        opened.step_back(2)
        opened.append(batch(9))
        one.catch_up(opened)
    assert contents(tmp_path) == expected([*BATCHES[:2], batch(9)])
    assert identity(tmp_path) == before


SALVAGED = [
    Salvaged(KEPT, 10, 30, file="00000000000000000010-20"),
    Salvaged(FILLED, 10, 30, "T", 0, 4, 2),
    Salvaged(HIDDEN, 40, 60, "T", 0, 3),
]


def test_what_was_salvaged_has_rows() -> None:
    one = rows(batch(0, salvaged=SALVAGED))
    facts = [
        tuple(row[name] for name in ("kind", "begin_offset", "end_offset", "bytes", "queue_offset", "count"))
        for row in one.to_pylist()[2:]
    ]
    assert facts == [
        ("kept", 10, 30, 20, None, 1),
        ("filled", 10, 30, None, 4, 2),
        ("hidden", 40, 60, 20, 3, 1),
    ]
    assert one.to_pylist()[2]["file"] == "lost-and-found/00000000000000000010-20"
    both = merged(pa.concat_tables([merged(one), rows(batch(1))]))
    assert both.to_pylist()[2:] == one.to_pylist()[2:]


def test_made_anew_from_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the journal does not keep one by one is told as a state, and readers find the same last facts."""
    monkeypatch.setattr(journal, "KEEP_BATCHES", 5)
    monkeypatch.setattr(journal, "KEEP_SECONDS", 0)
    monkeypatch.setattr(journal, "_WORTH_IT", 0)
    finding = Finding("bad-size", "segment", 3, 9, "more", "less", "passed over")
    batches = [
        batch(number, index=[("20231114221320000", IndexHeader(index_count=number))]) for number in range(40)
    ]
    batches[3] = batch(
        3, queues={("U", 1): QueueState(2, 6, 400, 4, 80)}, findings=[finding], salvaged=SALVAGED
    )
    batches[4] = batch(4, log_start=100, dropped_index=["20231114221319000"])
    with journal_of(tmp_path, batches) as opened:
        told = opened.first_number - 1
        assert told > 20
        Ledger(tmp_path).catch_up(opened)
    found = contents(tmp_path)
    kinds = {
        kind: [row for row in found if row["kind"] == kind and row["batch_end"] == told * 100]
        for kind in ("batch", "queue", "index", "finding", "retention", "kept", "filled", "hidden")
    }
    assert [len(kinds[kind]) for kind in ("kept", "filled", "hidden")] == [1, 1, 1]
    (one,) = kinds["batch"]
    assert (one["batch_start"], one["messages"], one["bytes"], one["count"]) == (
        0,
        told * 5,
        told * 100,
        told,
    )
    assert [(row["topic"], row["next_offset"], row["units"]) for row in kinds["queue"]] == [
        ("T", told * 5, told * 5),
        ("U", 6, 4),
    ]
    assert [row["index_count"] for row in kinds["index"]] == [told - 1]
    assert [row["finding"] for row in kinds["finding"]] == ["bad-size"]
    assert [row["begin_offset"] for row in kinds["retention"]] == [100]
    assert [row for row in found if row["batch_end"] > told * 100] == expected(batches[told:])
    before = identity(tmp_path)
    catch_up(tmp_path, [*batches, batch(40)])
    assert identity(tmp_path) == before
    assert expected([batch(40)])[0] in contents(tmp_path)


def test_stepped_back_to_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is left to be told one by one."""
    monkeypatch.setattr(journal, "KEEP_BATCHES", 5)
    monkeypatch.setattr(journal, "KEEP_SECONDS", 0)
    monkeypatch.setattr(journal, "_WORTH_IT", 0)
    one = Ledger(tmp_path)
    with journal_of(tmp_path, [batch(number) for number in range(40)]) as opened:
        one.catch_up(opened)
        told = opened.step_back(opened.first_number - 1).batches
        for _ in range(2):
            one.catch_up(opened)
            assert (one.version(), len(contents(tmp_path))) == (told, 2)
        before = identity(tmp_path)
        opened.append(batch(told))
        one.catch_up(opened)
        assert (one.version(), identity(tmp_path)) == (told + 1, before)


def test_somebody_else_wrote(tmp_path: Path) -> None:
    """An entry in the log that changes nothing is taken over; a table that lacks our marks is made anew."""
    with journal_of(tmp_path, BATCHES[:1]) as opened:
        one = Ledger(tmp_path)
        one.catch_up(opened)
        before = identity(tmp_path)
        DeltaTable(str(one.path)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        opened.append(BATCHES[1])
        one.catch_up(opened)
        assert (contents(tmp_path), identity(tmp_path)) == (expected(BATCHES[:2]), before)
        DeltaTable(str(one.path)).optimize.compact()
        opened.append(BATCHES[2])
        one.catch_up(opened)
    assert contents(tmp_path) == expected(BATCHES)
    assert identity(tmp_path) != before


def test_a_ledger_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / names.LEDGER).mkdir()
    one = catch_up(tmp_path, BATCHES[:1])
    log = one.path / "_delta_log"
    log.rename(tmp_path / "moved")
    log.write_bytes(b"in the way")
    with journal_of(tmp_path, BATCHES) as opened:
        one._journal = opened
        with pytest.raises(OutputError) as caught:
            one.catch_up(opened)
    assert str(caught.value.path).startswith(str(one.path))


def test_killed_at_every_step_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is a sound table at any moment: it is gone on with, not made anew."""
    with journal_of(tmp_path, BATCHES) as opened:
        for last in range(1, 99):
            root = tmp_path / str(last)
            shutil.copytree(tmp_path / names.REPUT, root / names.REPUT)
            monkeypatch.setattr(files, "system", Dying(last))
            was_killed = died(lambda: Ledger(root).catch_up(opened))  # noqa: B023
            monkeypatch.undo()
            begun = Table.open(root / names.LEDGER, APPLICATION)
            before = begun and identity(root)
            Ledger(root).catch_up(opened)
            assert contents(root) == expected(BATCHES)
            if begun and begun.transaction:
                assert identity(root) == before
            if not was_killed:
                break
        assert last > 10


@pytest.mark.parametrize("seed", range(4))
def test_power_lost_in_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random = Random(seed)
    with journal_of(tmp_path, BATCHES) as opened:
        for round_number in range(6):
            root = tmp_path / str(round_number)
            root.mkdir()
            losing = LosingPower(root, random.randint(2, 40))
            monkeypatch.setattr(files, "system", losing)
            died(lambda: Ledger(root).catch_up(opened))  # noqa: B023
            losing.lose(random)
            monkeypatch.undo()
            Table.open(root / names.LEDGER, APPLICATION)  # no TableError
            Ledger(root).catch_up(opened)
            assert contents(root) == expected(BATCHES)
