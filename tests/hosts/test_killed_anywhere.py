"""A host is killed at a moment drawn by chance, again and again: every byte is the broker's in the end."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.hosts import gluster, network
from tests.hosts.network import PROJECT, SHARED
from tests.hosts.place import BATCH, Place, place
from tests.hosts.standalone import Cluster, cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(network.why_not() is not None, reason=f"NOT TESTED: {network.why_not()}"),
    pytest.mark.skipif(gluster.why_not() is not None, reason=f"NOT TESTED: {gluster.why_not()}"),
    pytest.mark.proof,
]

_KILLS = 3


def test_a_host_is_killed_at_any_moment(tmp_path: Path) -> None:
    """The driver's host and two with executors; for each that was killed another one joins."""
    with place(tmp_path, 2 + _KILLS, on_gluster=True) as on, cluster(on.hosts, 2) as spark:
        seconds = _rebuild(on, spark, "undisturbed", None)
        print(f"undisturbed: {seconds:.1f} s")
        for number in range(_KILLS):
            # In each third of the time once.
            after = random.uniform(number, number + 1) / _KILLS * seconds
            _rebuild(on, spark, f"killed-{number}", after)
            if number + 1 < _KILLS:
                spark.add(on.hosts[3 + number])


def _rebuild(on: Place, spark: Cluster, out: str, after: float | None) -> float:
    """Rebuild, and kill a host so many seconds after the executors began; how long it took from there."""
    store, options = f"{SHARED}/store", on.options
    words = [store, *options, "--out", f"{SHARED}/{out}", "--max-bytes-per-trigger", BATCH]
    submitted = spark.begin(PROJECT / "jobs" / "rebuild.py", words)
    submitted.wait_for("written by one process")
    began = time.monotonic()
    if after is not None:
        time.sleep(after)
        killed = spark.workers.pop(random.randrange(len(spark.workers)))
        print(f"{out}: {killed.name} killed after {after:.1f} s and {on.batches(out)} batches")
        killed.kill()
    code, _ = submitted.wait()
    seconds = time.monotonic() - began
    assert code == 0, submitted.said
    on.assert_sound(out)
    return seconds
