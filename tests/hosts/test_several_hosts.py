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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from reput.format import names
from reput.output.journal.journal import read_state
from reput.store.compare import compare
from tests.golden.store import GoldenStore, unpack
from tests.hosts import gluster, network
from tests.hosts.network import OWN, PROJECT, SHARED, Host
from tests.hosts.standalone import Cluster, Submitted, cluster
from tests.rebuilds import tree

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(network.why_not() is not None, reason=f"NOT TESTED: {network.why_not()}"),
]

_EVERYTHING = os.environ.get("REPUT_HOSTS") == "1"
#: What takes minutes is left to `make hosts`.
long = pytest.mark.skipif(not _EVERYTHING, reason="run by `make hosts`")
_ONE_PROCESS = "each queue file and index file is written by one process"
_BATCH = "70k"
#: jobs/tail.py, with each batch done as one of a backlog: by tasks on the executors.
_LARGE = """
import sys
from reput.cli import main
from reput.output import writer

writer._INLINE_BYTES = 0
main(["tail", *sys.argv[1:]])
"""


@dataclass
class Place:
    """Hosts with a cluster, and what they share.

    Attributes:
        shared: the shared directory, as the test sees it.
    """

    hosts: list[Host]
    spark: Cluster
    shared: Path
    golden: GoldenStore
    has_own_caches: bool
    outputs: int = 0

    def submit(self, job: str, *words: str, **settings: str) -> Submitted:
        return self.spark.begin(PROJECT / "jobs" / f"{job}.py", words, **settings)

    def rebuild(self, out: str, *more: str) -> Submitted:
        return self.submit("rebuild", f"{SHARED}/store", *self._options, "--out", f"{SHARED}/{out}", *more)

    @property
    def _options(self) -> Sequence[str]:
        return ("--broker-conf", f"{SHARED}/broker.conf", "--rocketmq-version", self.golden.version)

    def batches(self, out: str) -> int:
        journal = self.shared / out / names.REPUT / names.JOURNAL
        return read_state(journal)[1].batches if journal.exists() else 0

    def wait_for_batches(self, out: str, count: int, submitted: Submitted) -> None:
        deadline = time.monotonic() + 240
        while self.batches(out) < count:
            assert submitted.process.poll() is None, submitted.said
            assert time.monotonic() < deadline, submitted.said
            time.sleep(0.02)

    def assert_sound(self, out: str) -> None:
        found = compare(self.golden.root, self.shared / out)
        assert found.differences == ()
        assert found.queue_bytes > 0
        assert found.index_bytes > 0


@pytest.fixture(
    scope="module",
    params=[
        "one-kernel",
        pytest.param(
            "glusterfs",
            marks=[
                long,
                pytest.mark.skipif(gluster.why_not() is not None, reason=f"NOT TESTED: {gluster.why_not()}"),
            ],
        ),
    ],
)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    work = tmp_path_factory.mktemp("hosts")
    shared = work / "shared"
    shared.mkdir()
    golden = unpack("5.3.3-mixed", work / "store")
    conf = golden.write_broker_conf(work / "broker.conf")
    conf.write_text(conf.read_text().replace(str(golden.root), f"{SHARED}/store"))
    with network.hosts(work, shared, 4) as made:
        on_gluster = request.param == "glusterfs"
        volume = gluster.volume(made) if on_gluster else None
        if volume is not None:
            volume.__enter__()
            shared = made[0].own / "brick"
        shutil.copytree(golden.root, made[0].own / "store")
        shutil.copy(conf, made[0].own / "broker.conf")
        made[0].run("cp", "-a", OWN / "store", OWN / "broker.conf", SHARED)
        with cluster(made, 2) as spark:
            yield Place(made, spark, shared, golden, on_gluster)


def test_every_byte_is_the_brokers(place: Place) -> None:
    submitted = place.rebuild("plain", "--json", "--max-bytes-per-trigger", _BATCH, *_several(place))
    code, stdout = submitted.wait()
    assert code == 0, submitted.said
    place.assert_sound("plain")
    assert _ONE_PROCESS in submitted.said
    assert json.loads(stdout)["findings"] == []
    assert json.loads(stdout)["batches"] > 3


def _several(place: Place) -> Sequence[str]:
    """On one kernel hosts do share a page cache, and have to be told that they don't count on it."""
    return () if place.has_own_caches else ("--several-hosts",)


@long
def test_a_driver_is_killed_and_its_tasks_go_on(place: Place) -> None:
    """What they write later, below the directories of the run that is over, changes nothing."""
    words = ("--max-bytes-per-trigger", _BATCH, *_several(place))
    submitted = place.rebuild("killed-driver", *words)
    place.wait_for_batches("killed-driver", 2, submitted)
    os.killpg(submitted.process.pid, signal.SIGKILL)
    submitted.process.wait()
    code, _ = (again := place.rebuild("killed-driver", *words)).wait()
    assert code == 0, again.said
    place.assert_sound("killed-driver")
    assert place.batches("killed-driver") > 3


@long
def test_a_cable_is_out_for_a_while(place: Place) -> None:
    """A worker that comes back after its run is over changes nothing."""
    submitted = place.rebuild("cut", "--max-bytes-per-trigger", _BATCH, *_several(place))
    place.wait_for_batches("cut", 1, submitted)
    place.hosts[2].cut()
    try:
        code, _ = submitted.wait()
        assert code == 0, submitted.said
        place.assert_sound("cut")
        before = tree(place.shared / "cut")
    finally:
        place.hosts[2].mend()
    time.sleep(5)
    assert tree(place.shared / "cut") == before


@long
def test_a_worker_that_joins_late(place: Place) -> None:
    submitted = place.rebuild("late", "--max-bytes-per-trigger", _BATCH, *_several(place))
    place.wait_for_batches("late", 1, submitted)
    place.spark.add(place.hosts[3])
    code, _ = submitted.wait()
    assert code == 0, submitted.said
    place.assert_sound("late")


@long
def test_a_store_is_verified(place: Place) -> None:
    words = (f"{SHARED}/store", *place._options, "--json")
    code, stdout = (sound := place.submit("verify", *words)).wait()
    assert code == 0, sound.said
    assert json.loads(stdout)["findings"] == []
    lost = place.shared / "store" / names.CONSUME_QUEUE / "Orders" / "0" / names.offset_name(0)
    with lost.open("r+b") as file:
        held = file.read(20)
        file.seek(0)
        file.write(bytes(20))
    code, stdout = (harmed := place.submit("verify", *words)).wait()
    with lost.open("r+b") as file:
        file.write(held)
    assert code == 1, harmed.said
    assert {(one["topic"], one["queue_id"]) for one in json.loads(stdout)["findings"]} == {("Orders", 0)}


@long
def test_many_stores(place: Place) -> None:
    stores = []
    for name in ("a", "b"):
        place.hosts[0].run("mkdir", SHARED / name)
        place.hosts[0].run("cp", "-a", OWN / "store", SHARED / name)
        stores.append(f"{SHARED}/{name}/store")
    words = (*place._options, "--out-root", f"{SHARED}/many", "--at-once", "2", *_several(place))
    code, _ = (submitted := place.submit("rebuild_many", *stores, *words)).wait()
    assert code == 0, submitted.said
    for name in ("a", "b"):
        place.assert_sound(f"many/{name}/store")


@long
def test_a_tail_follows(place: Place) -> None:
    """Its first batch is a backlog, which tasks do; the next ones are the driver's."""
    words = (
        f"{SHARED}/store",
        *place._options,
        "--out",
        f"{SHARED}/tailed",
        "--max-bytes-per-trigger",
        _BATCH,
    )
    script = place.hosts[0].own / "large.py"
    script.write_text(_LARGE, encoding="utf-8")
    submitted = place.spark.begin(OWN / "large.py", [*words, *_several(place)])
    place.wait_for_batches("tailed", 3, submitted)
    place.hosts[0].run(
        sys.executable, "-m", "reput.cli", "stop", SHARED / "tailed", PYTHONPATH=str(PROJECT / "lib")
    )
    code, _ = submitted.wait()
    assert code == 0, submitted.said
    assert _ONE_PROCESS in submitted.said
    code, _ = (rest := place.rebuild("tailed", *_several(place))).wait()
    assert code == 0, rest.said
    place.assert_sound("tailed")


def test_a_host_is_killed(place: Place) -> None:
    """Its first process goes, and with it all others; comes last: it doesn't come back."""
    submitted = place.rebuild("killed-host", "--max-bytes-per-trigger", _BATCH, *_several(place))
    place.wait_for_batches("killed-host", 1, submitted)
    place.hosts[1].kill()
    code, _ = submitted.wait()
    assert code == 0, submitted.said
    place.assert_sound("killed-host")
