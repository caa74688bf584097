"""Executors that don't see what the driver sees: workers of a cluster with mounts of their own.

Each worker is a host for all that counts here: it has a name of its own, and other directories under some of
the driver's paths. That takes mount and UTS namespaces, which only root may make.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.format import names
from reput.output.journal import read_state
from tests.cluster import Cluster
from tests.cluster.standalone import _WORKER_READY, _await
from tests.golden.store import GoldenStore, unpack
from tests.live import live_store

pytestmark = [pytest.mark.spark, pytest.mark.proof]

LIB = Path(__file__).parents[2] / "lib"

#: Directories of the driver's that worker-b, or both workers, have others in place of.
NEITHER, ONE, COPY = "neither", "one", "copy"


def through(name: str, *mounts: str) -> list[str]:
    """The words that start a process as a host of that name, after some mount commands of its own."""
    script = " && ".join([f"hostname {name}", *mounts, 'exec "$@"'])
    return ["unshare", "--mount", "--uts", "sh", "-c", script, "sh"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    asked = subprocess.run([*through("probe"), "true"], capture_output=True, text=True, check=False)
    if asked.returncode:
        pytest.fail(
            "these tests make mount and UTS namespaces, so run them as root, in a container with "
            f"CAP_SYS_ADMIN: {asked.stderr}"
        )
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def golden(work: Path) -> GoldenStore:
    """A store of which worker-b has a copy as old as its segments, when nothing was written to them."""
    store = unpack("5.3.3-mixed", work / COPY / "store")
    store.write_broker_conf(work / "broker.conf")
    return store


@pytest.fixture(scope="module")
def cluster(work: Path, golden: GoldenStore) -> Iterator[Cluster]:
    for name in (NEITHER, ONE):
        (work / name).mkdir()
    shutil.copytree(golden.root, work / ONE / "store")
    shutil.copytree(work / COPY, work / "older")
    # Whichever task comes to worker-b, it meets another file than the driver has.
    for segment in (work / "older" / "store" / names.COMMIT_LOG).iterdir():
        size = segment.stat().st_size
        with segment.open("r+b") as file:
            file.truncate(0)
            file.truncate(size)
    tmpfs = f"mount -t tmpfs tmpfs {work / NEITHER}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(LIB))
        hosts = [
            through("worker-a", tmpfs),
            through(
                "worker-b",
                tmpfs,
                f"mount -t tmpfs tmpfs {work / ONE}",
                f"mount --bind {work / 'older'} {work / COPY}",
            ),
        ]
        with Cluster(work, through=hosts) as running:
            yield running


@pytest.fixture(scope="module")
def sound(work: Path, golden: GoldenStore) -> Path:
    """A store that all see."""
    shutil.copytree(golden.root, work / "sound" / "store")
    return work / "sound" / "store"


#: One application, since each costs three JVMs: the commands one after the other, then reads of two stores.
APPLICATION = """
import contextlib, io, json, sys
from pathlib import Path
from pyspark.errors import PySparkException
from reput.cli import main
from reput.source import read
from reput.spark.sessions import session, spark_error

asked = json.loads(Path(sys.argv[1]).read_text())
spark = session("hosts", settings={
    "spark.task.maxFailures": "1",
    # Both workers have a task: none is given out before both are there.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
})
answers = {}
for name, words in asked["commands"].items():
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            main(words)
        except SystemExit as ended:
            answers[name] = {"code": ended.code, **json.loads(said.getvalue())}
for path in asked["reads"]:
    try:
        answers[path] = read(spark, path, ["topic"], rocketmqVersion="5.3.3").repartition(1).count()
    except PySparkException as error:
        answers[path] = str(spark_error(error))
Path(sys.argv[2]).write_text(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(cluster: Cluster, work: Path, golden: GoldenStore, sound: Path) -> dict[str, Any]:
    """What each command printed as JSON, and how it ended; of each store that was read, what came of that."""

    def words(command: str, store: Path, *more: str) -> list[str]:
        own = work / f"{command}-{store.parent.name}.conf"
        own.write_text((work / "broker.conf").read_text().replace(str(golden.root), str(store)))
        settings = ("--broker-conf", str(own), "--rocketmq-version", golden.version)
        return [command, str(store), *more, *settings, "--json"]

    commands = {
        "no output": words("rebuild", sound, "--out", str(work / NEITHER / "out"), "--no-index"),
        "no log": words("rebuild", work / ONE / "store", "--out", str(work / "out")),
        "no queues": words("check", work / ONE / "store"),
        "no table": words("catalog", sound, "--table", str(work / NEITHER / "table")),
    }
    script, asked, told = work / "hosts.py", work / "asked.json", work / "told.json"
    script.write_text(APPLICATION, encoding="utf-8")
    reads = [str(sound), str(work / COPY / "store")]
    asked.write_text(json.dumps({"commands": commands, "reads": reads}), encoding="utf-8")
    done = cluster.submit(script, [str(asked), str(told)], stderr=subprocess.PIPE)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def test_an_output_that_no_executor_shares_is_refused(answers: dict[str, Any], work: Path) -> None:
    out, found = work / NEITHER / "out", answers["no output"]
    assert (found["code"], found["exit_code"]) == (2, 2)
    assert found.get("host") in ("worker-a", "worker-b"), found
    assert found["path"] == str(out)
    assert "doesn't see the output that the driver sees" in found["message"]
    assert found["message"].startswith(f"on host {found['host']}: ")
    state = read_state(out / names.REPUT / names.JOURNAL)[1]
    assert (state.batches, state.queues) == (0, {})
    assert not list((out / names.REPUT).glob(f"{names.SHARED}*"))


def test_a_store_that_an_executor_does_not_see_is_refused(answers: dict[str, Any], work: Path) -> None:
    found = answers["no log"]
    assert (found["code"], found["host"]) == (2, "worker-b")
    assert found["error"] == "this host doesn't have a file of the store that the driver has"
    assert Path(found["path"]).parent == work / ONE / "store" / names.COMMIT_LOG
    assert read_state(work / "out" / names.REPUT / names.JOURNAL)[1].batches == 0


def test_derived_files_that_an_executor_does_not_see_are_not_verified(answers: dict[str, Any]) -> None:
    found = answers["no queues"]
    assert (found["code"], found["host"]) == (2, "worker-b")
    assert "doesn't see the store that the driver sees" in found["message"]


def test_a_batch_read_names_the_host(answers: dict[str, Any], work: Path, sound: Path) -> None:
    assert answers[str(sound)] > 0
    part = answers[str(work / COPY / "store")]
    assert "on host worker-b: " in part
    assert "doesn't see the store that the driver sees" in part


def test_a_table_that_no_executor_shares_is_refused(answers: dict[str, Any], work: Path) -> None:
    found, table = answers["no table"], work / NEITHER / "table"
    assert found["code"] == 2
    assert "this host doesn't see the output that the driver sees" in found["message"]
    assert "on host worker-" in found["message"]
    assert list((table / "_delta_log").glob("*.json")) == [], "nothing was committed"


TAIL = """
import sys
from reput.cli import main
from reput.output import writer

writer._INLINE_BYTES = 0
main(["tail", *sys.argv[1:]])
"""


def test_a_worker_that_joins_later_proves_the_output_too(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert work  # there are namespaces
    monkeypatch.setenv("PYTHONPATH", str(LIB))
    live = live_store("5.5.0-mixed", tmp_path)
    options = live.options
    assert options.out is not None
    live.grow(live.share(0.3))
    script = tmp_path / "tail.py"
    script.write_text(TAIL, encoding="utf-8")
    where = tmp_path / "cluster"
    where.mkdir()
    late = through("late", f"mount -t tmpfs tmpfs {options.out}")
    with Cluster(where, 1, through=[(), late]) as cluster:
        words = [str(options.store), "--out", str(options.out), "--broker-conf", str(options.broker_conf)]
        job = cluster.begin(
            script,
            [*words, "--rocketmq-version", "5.5.0", "--json"],
            settings={"spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "0.5"},
            stderr=subprocess.PIPE,
        )
        journal = options.out / names.REPUT / names.JOURNAL
        deadline = time.monotonic() + 300
        while not journal.exists() or read_state(journal)[1].cursor < live.share(0.3):
            assert not job.has_ended, job.wait()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        before = read_state(journal)[1]
        _await(cluster._start_worker(2), _WORKER_READY)
        os.killpg(cluster.pids["worker-1"], signal.SIGTERM)
        live.grow(live.share(0.6))
        done = job.wait(180)
    assert done.exit_code == 2, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["host"] == "late"
    assert found["path"] == str(options.out)
    state = read_state(journal)[1]
    assert before.cursor <= state.cursor <= live.reached
