"""What earlier versions wrote is gone on with: an output, its journal and ledger, a table, a history."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from reput.format import names
from reput.job import TailOptions
from reput.output.journal import read_state
from reput.store.compare import compare
from tests.earlier.kept import DIRECTORY, NAMES, Earlier, harm, unpacked
from tests.rebuilds import Command
from tests.spark.test_tail import tailing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", params=NAMES)
def earlier(request: pytest.FixtureRequest) -> Iterator[Earlier]:
    with unpacked(request.param) as found:
        yield found


@pytest.fixture
def reput(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(monkeypatch, lambda: spark)


def rows(table: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return found


def test_every_one_is_tried() -> None:
    assert sorted(path.name for path in DIRECTORY.iterdir() if (path / "manifest.json").exists()) == sorted(
        NAMES
    )


def test_a_tail_goes_on_with_an_output_that_was_killed(
    earlier: Earlier, reput: Command, spark: SparkSession
) -> None:
    out, live = earlier.place / "tailed", earlier.live
    journal = out / names.REPUT / names.JOURNAL
    before = read_state(journal)[1]
    assert before.cursor >= earlier.known
    assert (out / names.REPUT / names.SCRATCH).exists()
    status = json.loads(reput("tail", "--status", out, "--json").stdout)
    assert (status["state"], status["messages"]) == ("died", before.messages)

    live.finish()
    options = TailOptions(
        store=live.root, out=out, broker_conf=earlier.place / "broker.conf", rocketmq_version="5.5.0"
    )
    end = earlier.golden.manifest["log"]["end"]
    with tailing(options, spark) as running:
        running.wait(lambda: running.state.cursor >= end)
    assert running.error is None
    found = compare(earlier.golden.root, out)
    assert found.differences == ()
    assert found.queue_files
    assert found.index_files

    after = read_state(journal)[1]
    assert after.batches > before.batches
    ledger = rows(out / "ledger")
    batches = sorted(row["batch_end"] for row in ledger if row["kind"] == "batch")
    assert len(batches) == len(set(batches)) == after.batches
    assert sum(row["messages"] for row in ledger if row["kind"] == "batch") == after.messages
    queues = [row for row in ledger if row["kind"] == "queue"]
    last = {
        (row["topic"], row["queue_id"]): row["next_offset"]
        for row in sorted(queues, key=lambda row: row["batch_end"])
    }
    assert last == {queue: found.next for queue, found in after.queues.items()}


def test_a_table_of_messages_goes_on(earlier: Earlier, reput: Command) -> None:
    table, live = earlier.place / "messages", earlier.live
    before = rows(table)
    assert max(row["physicalOffset"] for row in before) < earlier.known
    live.finish()
    done = reput("catalog", live.root, "--table", table, "--no-optimize", *earlier.conf)
    assert done.code == 0, done.stderr
    after = rows(table)
    offsets = [row["physicalOffset"] for row in after]
    assert len(offsets) == len(set(offsets))
    assert set(offsets) == set(live.starts)
    kept = {row["physicalOffset"]: row for row in after}
    assert all(kept[row["physicalOffset"]] == row for row in before)


def test_a_history_a_digest_and_a_swap_go_on(earlier: Earlier, reput: Command) -> None:
    store, history = earlier.store, earlier.place / "history"
    (first,) = rows(history / "runs")
    proofs = earlier.place / "store.proofs"
    compared = reput(
        "dump", "digest", store, "--against", earlier.place / "store.digest", *earlier.conf, "--json"
    )
    (differing,) = json.loads(compared.stdout)["findings"]  # made before the store was harmed
    harmed = store / earlier.facts["harmed"]
    assert harmed.is_relative_to(differing["path"])

    # Undone, the store has the queues and the index of the whole log again.
    undone = reput("undo", store)
    assert undone.code == 0, undone.stderr
    found = compare(earlier.golden.root, store)
    assert found.differences == ()
    shutil.rmtree(store / names.COMMIT_LOG)
    shutil.copytree(earlier.golden.root / names.COMMIT_LOG, store / names.COMMIT_LOG)
    assert harm(store) == harmed

    night = reput("check", earlier.place / "stores.toml", "--history", history)
    assert night.code == 3, night.stderr
    last = max(rows(history / "runs"), key=lambda row: row["time"])
    assert last["place"] == first["place"] == str(store)
    assert last["growth"] == last["log_end"] - first["log_end"] > 0
    (now,) = last["finding_list"]  # what led past the log's end does so no more
    (then,) = (one for one in first["finding_list"] if one["path"] == str(harmed))
    assert now["first_seen"] == then["first_seen"] < f"{last['time']:%Y-%m-%dT%H:%M:%S}"
    assert now["path"] == then["path"]

    again = reput("check", store, *earlier.conf, "--proofs", proofs, "--json")
    assert again.code == 3, again.stderr
    (finding,) = json.loads(again.stdout)["findings"]
    assert finding["first_seen"].startswith(then["first_seen"][:10])
