"""The Delta ledger: each batch of the journal once, and made anew where it isn't what the journal says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from reput.errors import Finding, OutputError
from reput.format import names
from reput.format.indexfile import IndexHeader
from reput.sink import ledger
from reput.sink.journal import Batch, QueueState
from reput.sink.ledger import Ledger
from reput.store import files
from tests.crash import LosingPower, died


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


def contents(root: Path) -> list[dict[str, Any]]:
    found = DeltaTable(str(root / names.LEDGER)).to_pyarrow_table().to_pylist()
    return sorted(found, key=str)


def expected(batches: list[Batch]) -> list[dict[str, Any]]:
    return sorted((row for one in batches for row in ledger.rows(one).to_pylist()), key=str)


def test_every_fact_of_a_batch_has_a_row() -> None:
    finding = Finding("bad-size", "segment", 3, 9, "more", "less", "passed over", "T", 0, 4, 2)
    header = IndexHeader(1, 2, 3, 4, 5, 6)
    full = batch(0, index=[("20231114221320000", header)], findings=[finding])
    kinds = {row["kind"]: row for row in ledger.rows(full).to_pylist()}
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


def test_each_batch_is_committed_once(tmp_path: Path) -> None:
    one = Ledger(tmp_path)
    assert one.version() == 0
    one.catch_up([])
    assert not one.path.exists()
    one.catch_up(BATCHES[:1])
    one.catch_up(BATCHES[:2])
    one.catch_up(BATCHES[:2])
    assert one.version() == 2
    other = Ledger(tmp_path)
    other.catch_up(BATCHES)
    other.catch_up(BATCHES)
    assert contents(tmp_path) == expected(BATCHES)
    table = DeltaTable(str(one.path))
    assert (table.version(), table.transaction_version("reput")) == (2, 3)


def test_batches_that_move_nothing_count_too(tmp_path: Path) -> None:
    """One that only found damage at the log's end has the end offset of the one before."""
    finding = Finding("torn-tail", "segment", 300, 300, "a record", "zeros", "the end")
    batches = [*BATCHES, batch(3, start=300, end=300, messages=0, queues={}, findings=[finding])]
    Ledger(tmp_path).catch_up(BATCHES)
    for _ in range(2):
        Ledger(tmp_path).catch_up(batches)
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


@pytest.mark.parametrize("harm", [cut_log, empty_log, zero_log, lose_data, cut_data, zero_data, lose_the_log])
def test_a_torn_ledger_is_made_anew(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    Ledger(tmp_path).catch_up(BATCHES[:2])
    harm(tmp_path)
    Ledger(tmp_path).catch_up(BATCHES)
    assert contents(tmp_path) == expected(BATCHES)


def test_a_ledger_of_another_journal_is_made_anew(tmp_path: Path) -> None:
    Ledger(tmp_path).catch_up(BATCHES)
    Ledger(tmp_path).catch_up(BATCHES[:1])
    assert contents(tmp_path) == expected(BATCHES[:1])
    others = [batch(0, messages=9), batch(1)]
    Ledger(tmp_path).catch_up(others)
    assert contents(tmp_path) == expected(others)


def test_a_ledger_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / names.LEDGER).mkdir()
    Ledger(tmp_path).catch_up(BATCHES[:1])
    one = Ledger(tmp_path)
    one.catch_up(BATCHES[:1])
    log = one.path / "_delta_log"
    log.rename(tmp_path / "moved")
    log.write_bytes(b"in the way")
    with pytest.raises(OutputError, match="the ledger can't be written") as caught:
        one.catch_up(BATCHES)
    assert caught.value.path == str(one.path)
    assert "the journal has the batch" in str(caught.value)


@pytest.mark.parametrize("seed", range(4))
def test_power_lost_in_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random = Random(seed)
    for round_number in range(6):
        root = tmp_path / str(round_number)
        root.mkdir()
        losing = LosingPower(root, random.randint(2, 40))
        monkeypatch.setattr(files, "system", losing)
        died(lambda: Ledger(root).catch_up(BATCHES))  # noqa: B023
        losing.lose(random)
        monkeypatch.undo()
        Ledger(root).catch_up(BATCHES)
        assert contents(root) == expected(BATCHES)
