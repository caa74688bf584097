"""Rebuilds whose executors are on several hosts: every byte is the broker's, whatever becomes of a host.

`make test` has hosts that share a directory of one kernel; `make hosts` has them on GlusterFS as well, where
each has a page cache of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from deltalake import DeltaTable

import reput
from reput.format import names
from reput.store.compare import compare
from tests.compat.jars import cache_dir, jars
from tests.hosts import clock, gluster, network
from tests.hosts.network import OWN, PROJECT, SHARED
from tests.hosts.place import BATCH, Place, place
from tests.hosts.standalone import Cluster, cluster
from tests.hosts.submitting import Submitted, await_text
from tests.rebuilds import tree

pytestmark = [
    pytest.mark.proof,
    pytest.mark.spark,
    pytest.mark.skipif(network.why_not() is not None, reason=f"NOT TESTED: {network.why_not()}"),
]

#: Of the broker that runs on a host.
_RELEASE = "5.5.0"
_ONE_PROCESS = "each queue file and index file is written by one process"
#: jobs/tail.py, with each batch done as one of a backlog: by tasks on the executors.
_LARGE = """
import sys
from reput.cli import main
from reput.output import writer

writer._INLINE_BYTES = 0
main(["tail", *sys.argv[1:]])
"""


@dataclass
class Standalone:
    """The hosts, and Spark's standalone cluster on them."""

    place: Place
    spark: Cluster

    def submit(self, job: str, *words: str, **settings: str) -> Submitted:
        return self.spark.begin(PROJECT / "jobs" / f"{job}.py", words, **settings)

    def rebuild(self, out: str, *more: str) -> Submitted:
        store, options = f"{SHARED}/store", self.place.options
        return self.submit("rebuild", store, *options, "--out", f"{SHARED}/{out}", *self.place.several, *more)


@pytest.fixture(
    scope="module",
    params=[
        "one-kernel",
        pytest.param(
            "glusterfs",
            marks=[
                pytest.mark.proof,
                pytest.mark.skipif(gluster.why_not() is not None, reason=f"NOT TESTED: {gluster.why_not()}"),
            ],
        ),
    ],
)
def on(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    jars(_RELEASE)  # hosts have no way out to fetch them
    on_gluster = request.param == "glusterfs"
    with (
        place(tmp_path_factory.mktemp("hosts"), 4, on_gluster=on_gluster) as made,
        cluster(made.hosts, 2) as spark,
    ):
        yield Standalone(made, spark)


def test_every_byte_is_the_brokers(on: Standalone) -> None:
    submitted = on.rebuild("plain", "--json", "--max-bytes-per-trigger", BATCH)
    code, stdout = submitted.wait()
    assert code == 0, submitted.said
    on.place.assert_sound("plain")
    assert _ONE_PROCESS in submitted.said
    assert json.loads(stdout)["findings"] == []
    assert json.loads(stdout)["batches"] > 3


@pytest.mark.proof
def test_a_driver_is_killed_and_its_tasks_go_on(on: Standalone) -> None:
    """What they write later, below the directories of the run that is over, changes nothing."""
    words = ("--max-bytes-per-trigger", BATCH)
    submitted = on.rebuild("killed-driver", *words)
    on.place.wait_for_batches("killed-driver", 2, submitted)
    os.killpg(submitted.process.pid, signal.SIGKILL)
    submitted.process.wait()
    code, _ = (again := on.rebuild("killed-driver", *words)).wait()
    assert code == 0, again.said
    on.place.assert_sound("killed-driver")
    assert on.place.batches("killed-driver") > 3


@pytest.mark.proof
def test_a_cable_is_out_for_a_while(on: Standalone) -> None:
    """A worker that comes back after its run is over changes nothing."""
    submitted = on.rebuild("cut", "--max-bytes-per-trigger", BATCH)
    on.place.wait_for_batches("cut", 1, submitted)
    on.place.hosts[2].cut()
    try:
        code, _ = submitted.wait()
        assert code == 0, submitted.said
        on.place.assert_sound("cut")
        before = tree(on.place.shared / "cut")
    finally:
        on.place.hosts[2].mend()
    time.sleep(5)
    assert tree(on.place.shared / "cut") == before


@pytest.mark.proof
def test_a_cable_is_out_for_a_moment(on: Standalone) -> None:
    """It is in again before anybody has missed that host."""
    submitted = on.rebuild("moment", "--max-bytes-per-trigger", BATCH)
    on.place.wait_for_batches("moment", 1, submitted)
    on.place.hosts[2].cut()
    time.sleep(4)
    on.place.hosts[2].mend()
    code, _ = submitted.wait()
    assert code == 0, submitted.said
    on.place.assert_sound("moment")


@pytest.mark.proof
def test_a_worker_that_joins_late(on: Standalone) -> None:
    submitted = on.rebuild("late", "--max-bytes-per-trigger", BATCH)
    on.place.wait_for_batches("late", 1, submitted)
    on.spark.add(on.place.hosts[3])
    code, _ = submitted.wait()
    assert code == 0, submitted.said
    on.place.assert_sound("late")


@pytest.mark.proof
def test_a_store_is_checked(on: Standalone) -> None:
    """The harmed one has a name of its own: a file that hosts have read before may be stale for them."""
    first = on.place.hosts[0]
    code, stdout = (sound := on.submit("check", f"{SHARED}/store", *on.place.options, "--json")).wait()
    assert code == 0, sound.said
    assert json.loads(stdout)["findings"] == []
    shutil.copytree(first.own / "store", first.own / "harmed")
    lost = first.own / "harmed" / names.CONSUME_QUEUE / "Orders" / "0" / names.offset_name(0)
    with lost.open("r+b") as file:
        file.write(bytes(20))
    first.run("cp", "-a", OWN / "harmed", SHARED)
    code, stdout = (harmed := on.submit("check", f"{SHARED}/harmed", *on.place.options, "--json")).wait()
    assert code == 3, harmed.said
    assert {(one["topic"], one["queue_id"]) for one in json.loads(stdout)["findings"]} == {("Orders", 0)}


@pytest.mark.proof
def test_many_stores(on: Standalone) -> None:
    stores = []
    for name in ("a", "b"):
        on.place.hosts[0].run("mkdir", SHARED / name)
        on.place.hosts[0].run("cp", "-a", OWN / "store", SHARED / name)
        stores.append(f"{SHARED}/{name}/store")
    words = (*on.place.options, "--out-root", f"{SHARED}/many", "--at-once", "2", *on.place.several)
    code, _ = (submitted := on.submit("rebuild", *stores, *words)).wait()
    assert code == 0, submitted.said
    for name in ("a", "b"):
        on.place.assert_sound(f"many/{name}/store")


@pytest.mark.proof
def test_a_tail_follows(on: Standalone) -> None:
    """Its first batch is a backlog, which tasks do; the next ones are the driver's."""
    words = (
        f"{SHARED}/store",
        *on.place.options,
        "--out",
        f"{SHARED}/tailed",
        "--max-bytes-per-trigger",
        BATCH,
    )
    script = on.place.hosts[0].own / "large.py"
    script.write_text(_LARGE, encoding="utf-8")
    submitted = on.spark.begin(OWN / "large.py", [*words, *on.place.several])
    on.place.wait_for_batches("tailed", 3, submitted)
    on.place.hosts[0].run(
        sys.executable,
        "-m",
        "reput.cli",
        "tail",
        "--stop",
        SHARED / "tailed",
        PYTHONPATH=str(PROJECT / "lib"),
    )
    code, _ = submitted.wait()
    assert code == 0, submitted.said
    assert _ONE_PROCESS in submitted.said
    code, _ = (rest := on.rebuild("tailed")).wait()
    assert code == 0, rest.said
    on.place.assert_sound("tailed")


@pytest.mark.proof
def test_a_tail_follows_a_broker(on: Standalone) -> None:
    """Tasks do each batch. One that doesn't see yet what the broker wrote is refused; the tail goes on."""
    first = on.place.hosts[0]
    store, out = on.place.shared / "live", on.place.shared / "followed"
    conf = f"{SHARED}/live.conf"
    words = (f"{SHARED}/live", "--broker-conf", conf, "--rocketmq-version", _RELEASE, *on.place.several)
    log = first.own / "broker.log"
    with log.open("w", encoding="utf-8") as said:
        broker = first.start(
            [sys.executable, "-m", "tests.hosts.broker", _RELEASE, words[0], conf, "180", "40"],
            log=said,
            PYTHONPATH=f"{PROJECT}/lib:{PROJECT}",
            XDG_CACHE_HOME=str(cache_dir().parents[1]),
        )
    await_text(log, "ready", broker)
    (first.own / "large.py").write_text(_LARGE, encoding="utf-8")
    tail = on.spark.begin(OWN / "large.py", [*words, "--out", f"{SHARED}/followed"])
    on.place.wait_for_batches("followed", 1, tail)
    assert broker.poll() is None, "the broker stopped before the tail had begun"
    deadline = time.monotonic() + 600
    while broker.poll() is None or compare(store, out).differences:
        assert time.monotonic() < deadline, tail.said
        if tail.process.poll() is not None:
            assert tail.process.returncode == 2, tail.said
            assert "doesn't see the store that the driver sees" in tail.said
            tail = on.spark.begin(OWN / "large.py", [*words, "--out", f"{SHARED}/followed"])
        time.sleep(0.5)
    assert broker.returncode == 0, log.read_text(encoding="utf-8")
    stop = [sys.executable, "-m", "reput.cli", "tail", "--stop", f"{SHARED}/followed"]
    first.run(*stop, PYTHONPATH=str(PROJECT / "lib"))
    code, _ = tail.wait()
    assert code == 0, tail.said
    found = compare(store, out)
    assert found.differences == ()
    assert found.queue_bytes > 0


@pytest.mark.proof
def test_clocks_are_five_minutes_off(on: Standalone) -> None:
    """A worker's is ahead, the driver's behind; there is no worker like that afterwards."""
    if (why := clock.why_not()) is not None:
        pytest.skip(f"NOT TESTED: {why}")
    ahead = on.spark.add(on.place.hosts[3], **clock.off_by("+300s"))
    words = (f"{SHARED}/store", *on.place.options, "--out", f"{SHARED}/off", *on.place.several)
    job = PROJECT / "jobs" / "rebuild.py"
    more = ("--json", "--max-bytes-per-trigger", BATCH)
    submitted = on.spark.begin(job, [*words, *more], environment=clock.off_by("-300s"))
    code, stdout = submitted.wait()
    # With libfaketime, time.sleep() of Python 3.11 fails: without --several-hosts no task can run there.
    os.killpg(ahead.pid, signal.SIGTERM)
    ahead.wait()
    assert code == 0, submitted.said
    assert json.loads(stdout)["findings"] == []
    on.place.assert_sound("off")


@pytest.mark.proof
def test_a_table_of_messages(on: Standalone) -> None:
    words = (f"{SHARED}/store", "--table", f"{SHARED}/table", *on.place.options, "--bodies", "--json")
    for _ in range(2):
        submitted = on.submit("catalog", *words, "--max-bytes-per-trigger", BATCH)
        code, _ = submitted.wait()
        assert code == 0, submitted.said
        held = DeltaTable(on.place.shared / "table").to_pyarrow_table(columns=["physicalOffset", "body"])
        rows = sorted(zip(*(held[name].to_pylist() for name in ("physicalOffset", "body")), strict=True))
        log = reput.open(on.place.golden.root, rocketmq_version="5.3.3")
        assert rows == [(one.record.physical_offset, one.record.body) for one in log.messages()]


@pytest.mark.proof
def test_a_host_is_killed(on: Standalone) -> None:
    """Its first process goes, and with it all others; comes last: it doesn't come back."""
    submitted = on.rebuild("killed-host", "--max-bytes-per-trigger", BATCH)
    on.place.wait_for_batches("killed-host", 1, submitted)
    on.place.hosts[1].kill()
    code, _ = submitted.wait()
    assert code == 0, submitted.said
    on.place.assert_sound("killed-host")
