"""Rebuilds over several hosts by a user that isn't root, and with a worker of yet another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from reput.format import names
from tests.hosts import gluster, network
from tests.hosts.network import PROJECT, SHARED, USER
from tests.hosts.place import BATCH, Place, place
from tests.hosts.standalone import Cluster, cluster
from tests.hosts.submitting import Submitted

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(network.why_not() is not None, reason=f"NOT TESTED: {network.why_not()}"),
    pytest.mark.skipif(gluster.why_not() is not None, reason=f"NOT TESTED: {gluster.why_not()}"),
    pytest.mark.proof,
]

#: Every system has it, with a line in /etc/passwd.
_NOBODY = 65534


@dataclass
class AsUser:
    """The hosts, and a cluster of :data:`USER`'s on them."""

    place: Place
    spark: Cluster

    def rebuild(self, out: str) -> Submitted:
        words = (f"{SHARED}/store", *self.place.options, "--out", f"{SHARED}/{out}", "--json")
        return self.spark.begin(PROJECT / "jobs" / "rebuild.py", [*words, "--max-bytes-per-trigger", BATCH])


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsUser]:
    with place(tmp_path_factory.mktemp("hosts"), 4, on_gluster=True) as made:
        made.hosts[0].run("install", "-d", "-o", str(USER), "-g", str(USER), SHARED / "own")
        with cluster(made.hosts, 2, USER) as spark:
            yield AsUser(made, spark)


def test_nobody_is_root(on: AsUser) -> None:
    code, stdout = (submitted := on.rebuild("own/out")).wait()
    assert code == 0, submitted.said
    assert json.loads(stdout)["findings"] == []
    assert json.loads(stdout)["batches"] > 3
    on.place.assert_sound("own/out")
    out = on.place.shared / "own" / "out"
    assert {path.lstat().st_uid for path in (out, *out.rglob("*"))} == {USER}


def test_a_worker_of_another_user(on: AsUser) -> None:
    """It can't write what the driver owns: refused, by its host's name; comes last."""
    (on.place.hosts[0].own.parent / "conf" / "spark-defaults.conf").chmod(0o644)
    on.spark.add(on.place.hosts[3], user=_NOBODY)
    code, stdout = (submitted := on.rebuild("own/refused")).wait()
    assert code == 2, submitted.said
    found = json.loads(stdout)
    assert found["host"] == on.place.hosts[3].name
    out = on.place.shared / "own" / "refused"
    assert on.place.batches("own/refused") == 0
    assert not list((out / names.CONSUME_QUEUE).rglob("0*"))
