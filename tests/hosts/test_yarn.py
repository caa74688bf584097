"""Rebuilds on YARN over several hosts, by Hadoop's real daemons: every byte is the broker's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.hosts import gluster, network
from tests.hosts.network import PROJECT, SHARED
from tests.hosts.place import BATCH, Place, long, place
from tests.hosts.submitting import Submitted
from tests.hosts.yarn import Yarn, cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(network.why_not() is not None, reason=f"NOT TESTED: {network.why_not()}"),
    pytest.mark.skipif(gluster.why_not() is not None, reason=f"NOT TESTED: {gluster.why_not()}"),
    long,
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
