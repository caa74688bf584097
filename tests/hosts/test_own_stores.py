"""Stores on hosts of their own, all at one path: each is rebuilt and verified there, and nowhere else."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from reput.format import names
from reput.output.journal import read_state
from reput.store.compare import compare
from tests.golden.store import GoldenStore, unpack
from tests.hosts import network
from tests.hosts.network import OWN, PROJECT, Host
from tests.hosts.standalone import Cluster, cluster
from tests.hosts.submitting import Submitted

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(network.why_not() is not None, reason=f"NOT TESTED: {network.why_not()}"),
]

_STORE, _CONF = f"{OWN}/data/store", f"{OWN}/data/broker.conf"
_STORES = {"node-2": "5.3.3-mixed", "node-3": "5.3.3-restart", "node-4": "5.3.3-property-crc"}
#: On the driver's host, at the same path.
_DECOY = "5.3.3-no-keys"
_NEVER = (1_000_000_000, 2_000_000_000)
_EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass
class Place:
    """Hosts of which each but the first has a worker, and all have a store at one path."""

    hosts: list[Host]
    spark: Cluster
    stores: dict[str, GoldenStore]
    decoy: Path
    submitted: list[Submitted] = field(default_factory=list)

    def host(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def submit(self, job: str, *places: str, **settings: str) -> Submitted:
        words = [*places, "--json", "--at-once", "4", "--rocketmq-version", "5.3.3", "--broker-conf", _CONF]
        if job == "rebuild":
            words += ["--max-bytes-per-trigger", "70k"]
        self.submitted.append(self.spark.begin(PROJECT / "jobs" / f"{job}.py", words, **settings))
        return self.submitted[-1]

    def rebuild(self, out: str, *places: str) -> Submitted:
        return self.submit("rebuild", *places, "--out-root", f"{OWN}/{out}/{{host}}")

    def out(self, out: str, name: str, as_named: str | None = None) -> Path:
        return self.host(name).own / out / (as_named or name) / "store"

    def assert_sound(self, out: str, name: str, as_named: str | None = None) -> None:
        found = compare(self.stores[name].root, self.out(out, name, as_named))
        assert found.differences == ()
        assert found.queue_bytes > 0
        assert found.index_bytes > 0

    def batches(self, out: str, name: str) -> int:
        journal = self.out(out, name) / names.REPUT / names.JOURNAL
        return read_state(journal)[1].batches if journal.exists() else 0

    def wait_for_batches(self, out: str, name: str, count: int, submitted: Submitted) -> None:
        deadline = time.monotonic() + 240
        while self.batches(out, name) < count:
            assert submitted.process.poll() is None, submitted.said
            assert time.monotonic() < deadline, submitted.said
            time.sleep(0.02)

    def commands(self) -> list[psutil.Process]:
        """The commands that tasks have started, and their JVMs."""
        found = []
        for process in (process for host in self.hosts for process in host.processes()):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                line = process.cmdline()
                ours = str(OWN) in " ".join(line) or "local[" in " ".join(line)
                if ours and ("reput.cli.bound" in line or "pyspark-shell" in line):
                    found.append(process)
        return found

    def assert_no_command_runs(self) -> None:
        deadline = time.monotonic() + 30
        while (left := self.commands()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []

    def executor(self, name: str) -> psutil.Process:
        address = self.host(name).address
        (found,) = [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(_EXECUTOR in word for word in process.info["cmdline"] or ())
            and address in process.info["cmdline"]
        ]
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    work = tmp_path_factory.mktemp("own")
    (shared := work / "shared").mkdir()
    with network.hosts(work, shared, 4) as made:
        stores = {}
        for host in made:
            data = host.own / "data"
            golden = unpack(_STORES.get(host.name, _DECOY), data / "store")
            conf = golden.write_broker_conf(data / "broker.conf")
            conf.write_text(conf.read_text().replace(str(golden.root), _STORE))
            stores[host.name] = golden
        decoy = made[0].own / "data"
        unread = [decoy, *decoy.rglob("*")]
        for path in unread:
            os.utime(path, _NEVER)
        with cluster(made, 3) as spark:
            yield Place(made, spark, stores, decoy)
        # Whoever reads there gives it another time.
        for path in unread:
            assert path.stat().st_atime_ns == _NEVER[0] * 10**9, path


def _by_host(stdout: str) -> dict[str, Any]:
    return {one["host"]: one for one in json.loads(stdout)["stores"]}


@pytest.mark.proof
def test_each_store_is_rebuilt_where_it_lies(place: Place) -> None:
    code, stdout = (submitted := place.rebuild("plain", *(f"{name}:{_STORE}" for name in _STORES))).wait()
    assert code == 0, submitted.said
    found = _by_host(stdout)
    assert list(found) == list(_STORES)
    for name in _STORES:
        place.assert_sound("plain", name)
        assert found[name]["store"] == _STORE
        assert found[name]["output"] == f"{OWN}/plain/{name}/store"
        assert found[name]["exit_code"] == 0
        for other in (*place.hosts,):
            assert (other.own / "plain").exists() is (other.name in _STORES)
            if other.name != name:
                assert not (other.own / "plain" / name).exists()
    place.assert_no_command_runs()


@pytest.mark.proof
def test_a_store_is_harmed_and_a_host_has_no_executor(place: Place) -> None:
    """The driver's own host has none; its store, at the same path, isn't taken for another's."""
    queue = place.stores["node-3"].root / names.CONSUME_QUEUE
    lost = min(path for path in queue.rglob("0" * 20) if any(path.read_bytes()[:20]))
    with lost.open("r+b") as file:
        held = file.read(20)
        file.seek(0)
        file.write(bytes(20))
    address = place.host("node-4").address
    stores = (f"{address}:{_STORE}", f"node-2:{_STORE}", f"node-3:{_STORE}", f"node-1:{_STORE}")
    night = (*stores, "--history", f"{OWN}/history")
    code, stdout = (submitted := place.submit("check", *night)).wait()
    with lost.open("r+b") as file:
        file.write(held)
    assert code == 2, submitted.said
    found = _by_host(stdout)
    codes = {name: one["exit_code"] for name, one in found.items()}
    assert codes == {address: 0, "node-2": 0, "node-3": 3, "node-1": 2}
    assert [one["path"] for one in found["node-3"]["findings"]] == [
        str(lost).replace(str(place.stores["node-3"].root), _STORE)
    ]
    assert found["node-1"]["error"] == "no executor is on this host"
    assert found["node-1"]["path"] == _STORE
    # The next night: what was proven went to each host and came back.
    code, stdout = (submitted := place.submit("check", *night)).wait()
    assert code == 2, submitted.said
    later = _by_host(stdout)
    assert {name: one["exit_code"] for name, one in later.items()} == {**codes, "node-3": 0}
    for name in (address, "node-2", "node-3"):
        assert later[name]["remembered"]["segments_skipped"] > 0
        assert later[name]["remembered"]["requests"] is None
        assert later[name]["messages"] == found[name]["messages"]
    place.assert_no_command_runs()


@pytest.mark.proof
def test_an_executor_is_killed_and_comes_back(place: Place) -> None:
    submitted = place.rebuild("back", f"node-3:{_STORE}", f"node-2:{_STORE}")
    place.wait_for_batches("back", "node-2", 1, submitted)
    place.executor("node-2").kill()
    code, stdout = submitted.wait()
    assert code == 0, submitted.said + stdout
    for name in ("node-2", "node-3"):
        place.assert_sound("back", name)
    place.assert_no_command_runs()


@pytest.mark.proof
def test_a_driver_is_interrupted(place: Place) -> None:
    """What its tasks have started ends, and the same command continues."""
    submitted = place.rebuild("interrupted", f"node-2:{_STORE}")
    place.wait_for_batches("interrupted", "node-2", 1, submitted)
    assert place.commands()
    os.killpg(submitted.process.pid, signal.SIGINT)
    submitted.wait()
    place.assert_no_command_runs()
    assert place.batches("interrupted", "node-2") >= 1
    code, stdout = (again := place.rebuild("interrupted", f"node-2:{_STORE}")).wait()
    assert code == 0, again.said
    assert json.loads(stdout)["stores"][0]["new_messages"] < json.loads(stdout)["stores"][0]["messages"]
    place.assert_sound("interrupted", "node-2")


@pytest.mark.proof
def test_a_host_is_killed(place: Place) -> None:
    """Comes last: it doesn't come back."""
    shutil.rmtree(place.host("node-2").own / "plain", ignore_errors=True)
    submitted = place.rebuild("killed", f"node-2:{_STORE}", f"node-3:{_STORE}")
    place.wait_for_batches("killed", "node-2", 1, submitted)
    place.host("node-2").kill()
    code, stdout = submitted.wait()
    assert code == 2, submitted.said
    found = _by_host(stdout)
    assert found["node-2"]["error"] == "the executor on this host has ended, and no other came"
    assert re.search(r"on host node-2: .*", found["node-2"]["message"])
    assert found["node-3"]["exit_code"] == 0
    place.assert_sound("killed", "node-3")
