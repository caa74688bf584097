"""``reput verify`` as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rebuilds import LIB, broker_conf, environment, golden, run

pytestmark = pytest.mark.spark


def test_a_store_and_its_json(tmp_path: Path) -> None:
    store = golden("5.3.3-crash", tmp_path)
    done = run(
        "verify",
        store.root,
        "--broker-conf",
        broker_conf(store),
        "--rocketmq-version",
        store.version,
        "--master",
        "local[2]",
        "--json",
    )
    assert done.code == 0
    report = json.loads(done.stdout)
    assert report["findings"] == []
    assert (report["messages"], report["queues"]) == (353, 44)
    assert "starting Spark" in done.stderr


def test_ivy_is_not_asked_where_its_jars_are_named(tmp_path: Path) -> None:
    """As docs/cluster.md says."""
    jars = sorted(Path.home().glob(".ivy2*/jars/io.delta_*-4.4.0.jar"))
    if len(jars) < 5:
        pytest.skip("NOT TESTED: Ivy has no jars of Delta Lake here")
    root = Path(LIB).parent
    submit = Path(sys.executable).with_name("spark-submit")
    named = ["--conf", "spark.jars.packages=", "--jars", ",".join(map(str, jars[-5:]))]
    done = subprocess.run(
        [submit, "--master", "local[1]", *named, root / "jobs" / "verify.py", "/nothing/here", "--json"],
        capture_output=True,
        text=True,
        env={**environment(), "SPARK_CONF_DIR": str(root / "conf"), "PYSPARK_PYTHON": sys.executable},
        check=False,
    )
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == "there is no store here"
    assert "::" not in done.stderr
    assert "io.delta" not in done.stderr


def test_the_job_is_the_command() -> None:
    job = Path(LIB).parent / "jobs" / "verify.py"
    done = subprocess.run(
        [sys.executable, job, "/nothing/here", "--json"],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == "there is no store here"
