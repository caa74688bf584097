"""The table of messages: each once, whatever ends a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.store import unpack
from tests.rebuilds import environment

pytestmark = pytest.mark.spark

#: Runs over a log that grows, is left after a commit that Spark never heard of, and then goes back.
_SCRIPT = """
import json, os, shutil, sys
from dataclasses import replace
from pathlib import Path
from reput import catalog as module
from reput.catalog import CatalogOptions, catalog
from reput.errors import LogWentBackError, OutputError, ReputError, SettingsError
from reput.source import read
from reput.spark import session

store, whole, table, conf = (Path(word) for word in sys.argv[1:])
options = CatalogOptions(store, table, conf, "5.3.3", max_bytes_per_trigger=40_000, optimize=False)
said = {}

def spark():
    return session("a test", "local[2]", delta=True)

def run(**changed):
    return catalog(replace(options, **changed), spark).to_dict()

# Left right after the second commit: Spark's checkpoint has never heard of it.
commit = module._Run._commit
def leave(self, rows, batch):
    commit(self, rows, batch)
    if self.commits == 2:
        raise RuntimeError("left")
module._Run._commit = leave
try:
    run()
except BaseException as error:
    said["left by"] = type(error).__name__
module._Run._commit = commit
said["left at"] = module._cursor(table)

said["second"] = run(max_bytes_per_trigger=100_000)
segments = sorted((whole / "commitlog").iterdir())
for segment in segments:
    shutil.copy(segment, store / "commitlog" / segment.name)
said["grown"] = run(optimize=True)
said["again"] = run(optimize=True)

log = read(spark(), whole, module.columns(options), brokerConf=str(conf), rocketmqVersion="5.3.3")
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
module.is_broker_running = lambda root: True
live = Path(str(table) + "-live")
module._Run._commit = leave
try:
    run(table=live)
except Exception:
    pass
module._Run._commit = commit
said["inside a record"] = module._cursor(live)
said["live"] = run(table=live)
module.is_broker_running = lambda root: False

log = sorted((store / "commitlog").iterdir())
for segment in log[2:]:
    segment.unlink()
said["cut"] = refused()
for segment in sorted((whole / "commitlog").iterdir())[6:]:
    shutil.copy(segment, store / "commitlog" / segment.name)
for segment in log[:2]:
    segment.unlink()
early = Path(str(table) + "-early")
shutil.copytree(table, early)
from delta.tables import DeltaTable
DeltaTable.forPath(spark(), str(early)).delete("physicalOffset >= 100000")
said["expired"] = refused(table=early)
said["with a gap"] = run(table=early, allow_gap=True)
print(json.dumps(said))
"""


def test_each_message_is_there_once(tmp_path: Path) -> None:
    """In a process of its own: the session of the other tests has no Delta, and can't get it any more."""
    whole, store = unpack("5.3.3-mixed", tmp_path / "whole"), unpack("5.3.3-mixed", tmp_path / "a store")
    conf = whole.write_broker_conf()
    for segment in sorted((store.root / "commitlog").iterdir())[4:]:
        segment.unlink()
    words = [str(path) for path in (store.root, whole.root, tmp_path / "a table", conf)]
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout.strip().splitlines()[-1])
    assert 0 < said["left at"] <= 80_000 < said["second"]["end"]
    assert said["second"]["start"] == said["left at"]
    assert said["second"]["commits"] > 0
    assert said["grown"]["start"] == said["second"]["end"]
    assert said["grown"]["messages"] == 847
    assert (said["again"]["added"], said["again"]["commits"]) == (0, 0)
    assert said["rows"] == [847, 847, 847]
    assert said["differ"] == [0, 0]
    assert said["days"]
    assert "body" not in said["columns"]
    assert said["columns"][-1] == "day"
    assert (said["bodies"], said["other"], said["cut"]) == (
        "SettingsError",
        "OutputError",
        "LogWentBackError",
    )
