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
