"""A host that has the loopback and reaches nothing: jobs, and SQL on a ledger with jars from a folder."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from reput.spark.jars import delta_jars
from reput.store.compare import compare
from tests.golden.store import GoldenStore, unpack
from tests.hosts import network
from tests.rebuilds import environment

ROOT = Path(__file__).parents[2]
pytestmark = [
    *(pytest.mark.slow, pytest.mark.spark, pytest.mark.proof, pytest.mark.usefixtures("has_delta")),
    pytest.mark.skipif(network.why_not() is not None, reason=f"NOT TESTED: {network.why_not()}"),
]
_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_QUESTION = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
question = f"SELECT sum(units) FROM delta.`{sys.argv[1]}/ledger` WHERE kind = 'queue'"
print(json.dumps(spark.sql(question).first()[0]))
"""


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    return unpack("5.3.3-mixed", tmp_path_factory.mktemp("golden"))


def start(home: Path, *words: str | Path) -> subprocess.Popen[str]:
    """A command where only the loopback is, of a user who has fetched nothing."""
    return subprocess.Popen(
        ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *map(str, words)],
        env=environment(
            HOME=str(home),
            XDG_CACHE_HOME=None,
            SPARK_CONF_DIR=str(ROOT / "conf"),
            PYSPARK_PYTHON=sys.executable,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    """What it printed."""
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stdout + stderr
    return stdout


def alone(home: Path, *words: str | Path) -> str:
    return end(start(home, *words))


def test_jobs_and_sql_reach_nothing(golden: GoldenStore, tmp_path: Path) -> None:
    store = (golden.root, "--broker-conf", golden.write_broker_conf(), "--rocketmq-version", "5.3.3")
    reput = (sys.executable, "-m", "reput.cli")
    for name, words in {
        "rebuild": (*reput, "rebuild"),
        "submitted": (_SUBMIT, ROOT / "jobs" / "rebuild.py"),
    }.items():
        alone(tmp_path, *words, *store, "--out", tmp_path / name, "--json")
        found = compare(golden.root, tmp_path / name)
        assert (found.differences, found.queue_bytes > 0) == ((), True), name
    following = start(tmp_path, *reput, "tail", *store, "--out", tmp_path / "tail")
    deadline = time.monotonic() + 120
    while not (tmp_path / "tail").is_dir() or compare(golden.root, tmp_path / "tail").differences:
        assert following.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.5)
    alone(tmp_path, *reput, "tail", "--stop", tmp_path / "tail")
    end(following)
    catalog = alone(tmp_path, *reput, "catalog", *store, "--table", tmp_path / "messages", "--json")
    assert json.loads(catalog)["added"] > 0
    folder = tmp_path / "jars"
    folder.mkdir()
    for jar in delta_jars():
        (folder / jar.name).symlink_to(jar)
    (tmp_path / "ask.py").write_text(_QUESTION)
    settings = ("--properties-file", ROOT / "conf" / "delta.conf", "--conf", f"spark.jars={folder}/*.jar")
    said = alone(tmp_path, _SUBMIT, *settings, tmp_path / "ask.py", tmp_path / "rebuild")
    assert json.loads(said.strip().splitlines()[-1]) > 0
