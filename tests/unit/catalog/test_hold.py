"""Who writes a broker's messages to a table in an object store, and what a run leaves there."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from reput.catalog import hold
from reput.catalog.hold import RemoteHold
from reput.catalog.table import Broker, Table, Written
from reput.errors import StoreInUseError
from reput.remote.client import Objects, objects
from tests.unit.catalog.test_lake import cataloged, options, store_of

_BROKER = Broker("east", "broker-a")
_YEAR = 365 * 86_400.0


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with messages of a broker; its log is in a directory, which holds don't look at."""
    cataloged(options(store_of(tmp_path / "a", (0,), 1), tmp_path / "table"))
    return Table(tmp_path / "table", _BROKER)


@pytest.fixture
def kept(table: Table, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """An object store in memory, for what is beside the table."""
    store = MemoryStore()
    monkeypatch.setattr("reput.remote.client.object_store", lambda _: store)
    monkeypatch.setattr("reput.remote.client._clients", {})
    return objects(table.url)


def _note(kept: Objects) -> dict[str, Any]:
    [(name, _)] = kept.names(".reput")
    found = kept.get(name)
    assert found is not None
    return dict(json.loads(found.data))


def test_a_run_removes_what_it_has_written_and_never_named(table: Table, kept: Objects) -> None:
    day = f"{_BROKER.directory}/day=2026-11-24"
    with RemoteHold(table, _BROKER) as held:
        token = held.begin()
        twice, named, merged = (f"{day}/part-{token}-{number}.parquet" for number in range(3))
        for name in (twice, named, merged, f"{day}/part-of-another-run-1.parquet"):
            kept.put(name, b"rows")
        # Both are in some version of the table; readers of an earlier one may need the second.
        table.named |= {named, merged}
    left = [name for name, _ in kept.names(day)]
    assert sorted(left) == sorted([named, merged, f"{day}/part-of-another-run-1.parquet"])
    assert (_note(kept)["token"], _note(kept)["left"]) == (None, {})


def test_what_a_run_that_fails_has_written_is_left_to_the_next(table: Table, kept: Objects) -> None:
    held = RemoteHold(table, _BROKER).__enter__()
    name = f"{_BROKER.directory}/day=2026-11-24/part-{held.begin()}-1.parquet"
    kept.put(name, b"rows")
    held.__exit__(RuntimeError, RuntimeError(), None)
    assert kept.get(name) is not None
    with RemoteHold(table, _BROKER) as later:
        later.clean()
    assert kept.get(name) is None


def test_a_table_knows_the_files_that_it_has_named(table: Table) -> None:
    """Also those of a commit that failed: nothing says for sure that it did."""
    [file] = table.files()
    again = Written(file.path.replace("part-", "part-0"), str(file.day), file.size, file.rows, "{}")
    table.replace([file], [again])
    assert table.named == {again.path}


def test_a_dead_run_whose_clock_was_ahead_is_dead_after_its_silence(
    table: Table, kept: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(hold, "_process", lambda pid: {"host": "b", "name": "b", "pid": pid, "started": "1"})
        patch.setattr("reput.catalog.hold.time.time", lambda: began + _YEAR)
        dead = RemoteHold(table, _BROKER).__enter__()
    said = r"on b, which gave a sign of life (\d+) s ago.*in (\d+) s"
    with pytest.raises(StoreInUseError, match=said) as refused:
        RemoteHold(table, _BROKER).__enter__()
    silent, left = map(int, re.findall(said, str(refused.value))[0])
    assert 599 <= silent + left <= 601
    assert silent < 60, "a slow disk at most"
    with monkeypatch.context() as patch:
        patch.setattr("reput.catalog.hold.time.time", lambda: began + hold.DEAD_SECONDS + 30)
        with RemoteHold(table, _BROKER):
            assert _note(kept)["left"].keys() == {dead.begin()}
