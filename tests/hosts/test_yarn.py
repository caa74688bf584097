"""Rebuilds on YARN over several hosts, by Hadoop's real daemons: every byte is the broker's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.hosts import gluster, network
from tests.hosts.network import PROJECT, SHARED
from tests.hosts.place import BATCH, Place, place
from tests.hosts.submitting import Submitted
from tests.hosts.yarn import Yarn, cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(network.why_not() is not None, reason=f"NOT TESTED: {network.why_not()}"),
    pytest.mark.skipif(gluster.why_not() is not None, reason=f"NOT TESTED: {gluster.why_not()}"),
    pytest.mark.proof,
]


@dataclass
class OnYarn:
    """The hosts, and YARN on them."""

    place: Place
    yarn: Yarn

    def rebuild(self, out: str, *more: str, mode: str = "client", **settings: str) -> Submitted:
        words = (f"{SHARED}/store", *self.place.options, "--out", f"{SHARED}/{out}", *more)
        return self.yarn.begin(PROJECT / "jobs" / "rebuild.py", words, mode=mode, **settings)


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnYarn]:
    with (
        place(tmp_path_factory.mktemp("hosts"), 4, on_gluster=True) as made,
        cluster(made.hosts, 3) as yarn,
    ):
        yield OnYarn(made, yarn)


def test_the_driver_is_where_it_was_submitted(on: OnYarn) -> None:
    submitted = on.rebuild("client", "--json", "--max-bytes-per-trigger", BATCH)
    code, stdout = submitted.wait()
    assert code == 0, submitted.said
    on.place.assert_sound("client")
    assert json.loads(stdout)["findings"] == []
    assert "is written by one process" in submitted.said


def test_the_driver_is_where_yarn_wants_it(on: OnYarn) -> None:
    submitted = on.rebuild("cluster", "--max-bytes-per-trigger", BATCH, mode="cluster")
    code, _ = submitted.wait()
    assert code == 0, submitted.said
    on.place.assert_sound("cluster")
    assert "Rebuilt" in on.yarn.said_by_containers()


def test_what_is_refused_is_said_by_the_driver(on: OnYarn) -> None:
    """Wherever it is; spark-submit knows only that it failed."""
    words = (f"{SHARED}/nothing", *on.place.options, "--out", f"{SHARED}/refused")
    job = PROJECT / "jobs" / "rebuild.py"
    submitted = on.yarn.begin(job, words, mode="cluster", **{"spark.yarn.maxAppAttempts": "1"})
    code, _ = submitted.wait()
    assert code == 1, submitted.said
    assert f"reput: {SHARED}/nothing" in on.yarn.said_by_containers("stderr")
    assert not (on.place.shared / "refused").exists()
    code, _ = (again := on.yarn.begin(job, words)).wait()
    assert code == 2
    assert f"reput: {SHARED}/nothing" in again.said


def test_the_drivers_host_is_killed(on: OnYarn) -> None:
    """YARN starts another driver, which goes on; comes last: the host doesn't come back."""
    submitted = on.rebuild("killed-driver", "--max-bytes-per-trigger", BATCH, mode="cluster")
    on.place.wait_for_batches("killed-driver", 1, submitted)
    application = max(log.name for host in on.yarn.workers for log in (host.own / "yarn-logs").iterdir())
    host = next(
        host
        for host in on.yarn.workers
        if list((host.own / "yarn-logs" / application).glob("container_*_01_000001"))
    )
    host.kill()
    code, _ = submitted.wait(600)
    assert code == 0, submitted.said
    on.place.assert_sound("killed-driver")
