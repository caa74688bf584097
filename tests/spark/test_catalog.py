"""The table of messages: each once, whatever ends a run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import reput
from tests.golden.store import unpack
from tests.rebuilds import environment

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("has_delta")]

#: Runs over a log that grows, is left after a commit that Spark never heard of, and then goes back.
_SCRIPT = """
import json, os, shutil, sys
from dataclasses import replace
from pathlib import Path
from reput.catalog import appending
from reput.catalog import CatalogOptions
from reput.catalog.rows import columns
from reput.catalog.update import catalog
from reput.catalog.table import Table
from reput.errors import LogWentBackError, OutputError, ReputError, SettingsError
from reput.source import read
from reput.spark.runner import SparkRunner
from reput.spark.sessions import session

store, whole, table, conf = (Path(word) for word in sys.argv[1:])
options = CatalogOptions(store, table, conf, "5.3.3", max_bytes_per_trigger=40_000, optimize=False)
said = {}

def spark():
    return session("a test", "local[2]", delta=True)

def run(**changed):
    return catalog(replace(options, **changed), lambda: SparkRunner(spark().sparkContext)).to_dict()

# Left right after the second commit.
commit = appending.Appending._commit
def leave(self, *given):
    commit(self, *given)
    if self.commits == 2:
        raise RuntimeError("left")
appending.Appending._commit = leave
try:
    run()
except BaseException as error:
    said["left by"] = type(error).__name__
appending.Appending._commit = commit
said["left at"] = Table(table).cursor

said["second"] = run(max_bytes_per_trigger=100_000)
segments = sorted((whole / "commitlog").iterdir())
for segment in segments:
    shutil.copy(segment, store / "commitlog" / segment.name)
said["grown"] = run(optimize=True, max_bytes_per_trigger=1 << 30)
said["again"] = run(optimize=True)

log = read(spark(), whole, columns(bodies=False), brokerConf=str(conf), rocketmqVersion="5.3.3")
held = spark().read.format("delta").load(str(table))
said["rows"] = [held.count(), held.select("physicalOffset").distinct().count(), log.count()]
# Maps can't be compared as sets; their texts can.
def text(frame):
    return frame.withColumn("properties", frame["properties"].cast("string"))
texts = [text(held.drop("day")), text(log)]
said["differ"] = [texts[0].exceptAll(texts[1]).count(), texts[1].exceptAll(texts[0]).count()]
said["columns"] = held.columns
said["days"] = [row[0] for row in spark().sql(f"SHOW PARTITIONS delta.`{table}`").collect()] != []

def refused(**changed):
    try:
        run(**changed)
    except ReputError as error:
        return type(error).__name__
said["bodies"] = refused(bodies=True)
spark().range(3).write.format("delta").save(str(table) + "-other")
said["other"] = refused(table=Path(str(table) + "-other"))
said["inside"] = refused(table=store / "commitlog" / "table")

# A quiet broker's log, gone on with inside a record: its last messages come all the same.
appending.is_broker_running = lambda root: True
live = Path(str(table) + "-live")
appending.Appending._commit = leave
try:
    run(table=live)
except Exception:
    pass
appending.Appending._commit = commit
said["inside a record"] = Table(live).cursor
said["live"] = run(table=live, max_bytes_per_trigger=1 << 30)
appending.is_broker_running = lambda root: False

log = sorted((store / "commitlog").iterdir())
for segment in log[2:]:
    segment.unlink()
said["cut at"] = int(log[2].name)
said["cut"] = run()
said["held"] = spark().read.format("delta").load(str(table)).agg({"physicalOffset": "max"}).first()[0]
before = spark().read.format("delta").option("versionAsOf", said["cut"]["removed_after"][0]).load(str(table))
said["had"] = before.count()
for segment in sorted((whole / "commitlog").iterdir()):
    shutil.copy(segment, store / "commitlog" / segment.name)
said["regrown"] = run(max_bytes_per_trigger=1 << 30)
held = spark().read.format("delta").load(str(table))
said["once"] = [held.count(), held.select("physicalOffset").distinct().count()]

for segment in log[:6]:
    segment.unlink()
early = Path(str(table) + "-early")
shutil.copytree(table, early)
Table(early).step_back(100_000)
said["expired"] = refused(table=early)
said["with a gap"] = run(table=early, allow_gap=True, max_bytes_per_trigger=1 << 30)
print(json.dumps(said))
"""

#: A run that is killed at the ``number``-th call of a function, before its work or after it.
_KILLED = """
import os, signal, sys
from pathlib import Path
from reput.catalog import update
from reput.catalog import CatalogOptions
from reput.catalog.update import catalog
from reput.catalog.table import Table
from reput.spark.runner import SparkRunner
from reput.spark.sessions import session

store, table, conf = (Path(word) for word in sys.argv[1:4])
name, number, before = sys.argv[4], int(sys.argv[5]), sys.argv[6] == "before"
update.MANY = 8
calls = []
if name:
    work = getattr(Table, name)
    def killed(self, *values, **named):
        calls.append(name)
        if not before:
            # The commit is made, and nothing is flushed yet.
            self._flush = lambda: os.kill(os.getpid(), signal.SIGKILL) if len(calls) == number else None
        elif len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        work(self, *values, **named)
        self.refresh()
    setattr(Table, name, killed)
options = CatalogOptions(store, table, conf, "5.3.3", max_bytes_per_trigger=40_000)
done = catalog(options, lambda: SparkRunner(session("a test", "local[2]").sparkContext))
print("ended", done.commits, done.clustered)
"""

#: Tables of an earlier release, gone on with.
_EARLIER = """
import json, sys
from dataclasses import replace
from pathlib import Path
from reput.catalog import update
from reput.catalog import CatalogOptions
from reput.catalog.rows import columns
from reput.catalog.update import catalog
from reput.source import read
from reput.spark.runner import SparkRunner
from reput.spark.sessions import session

store, tables, conf = (Path(word) for word in sys.argv[1:])
update.MANY = 4
said = {}

def spark():
    return session("a test", "local[2]", delta=True)

def text(frame):
    return frame.withColumn("properties", frame["properties"].cast("string"))

for name in ("plain", "bodies"):
    bodies = name == "bodies"
    table = tables / name
    before = spark().read.format("delta").load(str(table))
    schema, count = before.schema, before.count()
    options = CatalogOptions(store, table, conf, "5.3.3", bodies=bodies, optimize=False)
    done = catalog(options, lambda: SparkRunner(spark().sparkContext))
    held = spark().read.format("delta").load(str(table))
    later = held.where(f"physicalOffset >= {done.end - 50_000}")
    files = [len(held.inputFiles()), len(later.inputFiles())]
    merged = catalog(replace(options, optimize=True), lambda: SparkRunner(spark().sparkContext))
    held = spark().read.format("delta").load(str(table))
    log = read(spark(), store, columns(bodies=bodies), brokerConf=str(conf), rocketmqVersion="5.3.3")
    texts = [text(held.drop("day")), text(log)]
    said[name] = {
        "same schema": held.schema == schema,
        "before": count,
        "added": done.added,
        "clustered": list(merged.clustered),
        "differ": [texts[0].exceptAll(texts[1]).count(), texts[1].exceptAll(texts[0]).count()],
        "files": files,
    }
print(json.dumps(said))
"""

#: A rebuild and a tail that keep a table up to date; the tail's log grows, and then goes back.
_PIPELINE = """
import json, shutil, sys, threading
from pathlib import Path
from reput.catalog import update
from reput.errors import SettingsError
from reput.format import names
from reput.job.options import RebuildOptions, TailOptions
from reput.job.rebuilding import rebuild
from reput.job.tail import tail
from reput.output.journal import read_state
from reput.spark.runner import SparkRunner
from reput.spark.sessions import session
from reput.job.status import look

store, whole, place, conf = (Path(word) for word in sys.argv[1:])
update.EVERY_SECONDS = 0.2
said = {}

def spark():
    return session("a test", "local[2]", delta=True)

def places(table):
    rows = spark().read.format("delta").load(str(table)).select("physicalOffset").collect()
    return sorted(row[0] for row in rows)

def no_spark():
    raise AssertionError("a session for nothing")

built = RebuildOptions(store, place / "built", conf, "5.3.3", catalog=place / "table")
said["rebuilt"] = rebuild(built, spark).to_dict()
said["again"] = rebuild(built, no_spark).to_dict()
for wrong in ({"catalog": place / "built" / "table"}, {"queues": ("Plain",)}):
    from dataclasses import replace
    try:
        rebuild(replace(built, **wrong), no_spark)
    except SettingsError as error:
        said.setdefault("refused", []).append(error.problem)

stopping, moves, catalogs = threading.Event(), [], []
segments = sorted((whole / "commitlog").iterdir())
there = sorted((store / "commitlog").iterdir())
table = place / "followed"

def move(writer):
    at = writer.state.cursor
    if not moves and writer.state.messages == said["rebuilt"]["messages"]:
        moves.append(at)
        for segment in segments:
            shutil.copy(segment, store / "commitlog" / segment.name)
    elif len(moves) == 1 and at > moves[0]:
        threading.Thread(target=cut, args=[at]).start()
        moves.append(at)
    elif len(moves) == 2:
        moves.append(at)
        stopping.set()

def cut(at):
    # Only once the table has what is going to be cut.
    from reput.catalog.table import Table
    while (Table(table).cursor or 0) < at:
        stopping.wait(0.1)
    catalogs.append(places(table))
    for segment in segments[6:]:
        (store / "commitlog" / segment.name).unlink()
    end = store / "commitlog" / segments[5].name
    said["cut at"] = int(end.name) + 5_000
    with end.open("r+b") as file:
        file.seek(5_000)
        file.write(bytes(end.stat().st_size - 5_000))
    journal = place / "tailed" / names.REPUT / names.JOURNAL
    while read_state(journal)[1].cursor > said["cut at"]:
        stopping.wait(0.1)
    stopping.set()

followed = TailOptions(store, place / "tailed", conf, "5.3.3", catalog=table)
said["followed"] = tail(followed, spark, stopping, move).to_dict()
said["status"] = look(place / "tailed").to_dict()["catalog"]
said["moves"] = moves
said["had"] = len(catalogs[0])
said["held"] = places(table)
print(json.dumps(said))
"""


def test_each_message_is_there_once(tmp_path: Path) -> None:
    said = _said(_SCRIPT, tmp_path, tmp_path / "a table")
    assert 0 < said["left at"] <= 80_000 < said["second"]["end"]
    assert said["second"]["start"] == said["left at"]
    assert said["second"]["commits"] > 1
    assert said["grown"]["start"] == said["second"]["end"]
    assert said["grown"]["messages"] == 847
    assert (said["again"]["added"], said["again"]["commits"]) == (0, 0)
    assert said["rows"] == [847, 847, 847]
    assert said["differ"] == [0, 0]
    assert said["days"]
    assert "body" not in said["columns"]
    assert said["columns"][-1] == "day"
    assert (said["bodies"], said["other"]) == ("SettingsError", "OutputError")
    cut = said["cut"]
    assert (cut["added"], cut["messages"]) == (0, 847 - cut["removed"])
    assert 0 < cut["removed"] < 847
    assert said["held"] < said["cut at"]
    assert said["had"] == 847
    assert (said["regrown"]["added"], said["once"]) == (cut["removed"], [847, 847])
    assert said["inside"] == "OutputError"
    assert said["inside a record"] < said["live"]["end"]
    assert said["live"]["messages"] == 847
    assert said["expired"] == "StoreError"
    assert said["with a gap"]["added"] > 0
    assert said["with a gap"]["expired"] > 0
    assert said["with a gap"]["removed"] == 0


@pytest.mark.proof
def test_rebuild_and_tail_keep_a_table(tmp_path: Path) -> None:
    said = _said(_PIPELINE, tmp_path, tmp_path)
    rebuilt, again, followed = said["rebuilt"], said["again"], said["followed"]
    assert rebuilt["catalog"]["messages"] == rebuilt["catalog"]["added"] == rebuilt["messages"] > 100
    assert (again["catalog"]["added"], again["catalog"]["commits"]) == (0, 0)
    assert [text.split()[0] for text in said["refused"]] == ["catalog", "a"]
    assert said["had"] == 847
    assert followed["end"] <= said["cut at"]
    assert (
        len(said["held"]) == len(set(said["held"])) == followed["messages"] == followed["catalog"]["messages"]
    )
    assert max(said["held"]) < said["cut at"]
    assert followed["catalog"]["removed"] >= 847 - followed["messages"] > 0
    status = said["status"]
    assert (status["table"], status["offset"]) == (followed["catalog"]["table"], followed["end"])
    assert (status["lag_bytes"], status["failures"], status["problem"]) == (0, 0, None)
    assert status["last_success_ms"] > 0


@pytest.mark.proof
@pytest.mark.parametrize(("name", "number"), [("append", 3), ("replace", 1)])
def test_a_run_that_is_killed_is_gone_on_with(name: str, number: int, tmp_path: Path) -> None:
    """When files are written and no commit names them, and when one does and nothing else knows of it."""
    store = unpack("5.3.3-mixed", tmp_path / "store")
    conf, table = store.write_broker_conf(), tmp_path / "table"

    def run(*moment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _KILLED, str(store.root), str(table), str(conf), *moment],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    for when in ("before", "after"):
        killed = run(name, str(number), when)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        on_disk = {str(path.relative_to(table)) for path in table.glob("*=*/*.parquet")}
        named = _named(table)
        # Killed before, it leaves files that nobody knows; after, at most those of tasks that were ahead.
        assert (named < on_disk) if when == "before" else (named <= on_disk)
    ended = run("", "0", "")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert {str(path.relative_to(table)) for path in table.glob("*=*/*.parquet")} == _named(table)
    assert not (table / ".reput" / "catalog-files").exists()
    log = reput.open(store.root, rocketmq_version="5.3.3", broker_conf=conf)
    held = DeltaTable(str(table)).to_pyarrow_table(columns=["physicalOffset"])
    places = sorted(held.column("physicalOffset").to_pylist())
    assert places == [one.record.physical_offset for one in log.messages()]


def _named(table: Path) -> set[str]:
    """The files that some commit names: they are the table's, or were."""
    entries = (table / "_delta_log").glob("*.json")
    lines = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    return {line["add"]["path"] for line in lines if "add" in line}


@pytest.mark.proof
def test_a_table_of_an_earlier_release_is_gone_on_with(tmp_path: Path) -> None:
    """Spark wrote it, with times as INT96; its files are merged with new ones."""
    with tarfile.open(Path(__file__).with_name("tables-by-spark.tar.xz")) as packed:
        packed.extractall(tmp_path / "tables", filter="data")
    store = unpack("5.3.3-mixed", tmp_path / "store")
    words = [str(path) for path in (store.root, tmp_path / "tables", store.write_broker_conf())]
    said = _printed(_EARLIER, *words)
    for name, of_table in said.items():
        assert of_table["same schema"]
        assert 0 < of_table["before"] == 847 - of_table["added"] < 847
        assert of_table["clustered"]
        assert of_table["differ"] == [0, 0]
        every, later = of_table["files"]
        assert later < every, name


def _said(script: str, directory: Path, table: Path) -> dict[str, Any]:
    """What a script prints in a process of its own: the tests' session has no Delta, and can't get it."""
    whole, store = unpack("5.3.3-mixed", directory / "whole"), unpack("5.3.3-mixed", directory / "a store")
    conf = whole.write_broker_conf()
    for segment in sorted((store.root / "commitlog").iterdir())[4:]:
        segment.unlink()
    return _printed(script, *(str(path) for path in (store.root, whole.root, table, conf)))


def _printed(script: str, *words: str) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-c", script, *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    said: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return said
