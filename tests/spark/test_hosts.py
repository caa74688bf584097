"""Executors that don't see what the driver sees: workers of a cluster with mounts of their own.

Each worker is a host for all that counts here: it has a name of its own, and other directories under some of
the driver's paths. That takes mount and UTS namespaces, which only root may make.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.cluster import Cluster
from reput.cluster.standalone import Submitted
from reput.format import names
from reput.sink.journal import read_state
from tests.golden.store import GoldenStore, unpack

pytestmark = pytest.mark.spark

LIB = Path(__file__).parents[2] / "lib"
JOBS = LIB.parent / "jobs"

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
    """A store that worker-b has an older copy of, of the same names and sizes."""
    store = unpack("5.3.3-mixed", work / COPY / "store")
    store.write_broker_conf(work / "broker.conf")
    return store


@pytest.fixture(scope="module")
def cluster(work: Path, golden: GoldenStore) -> Iterator[Cluster]:
    for name in (NEITHER, ONE):
        (work / name).mkdir()
    shutil.copytree(golden.root, work / ONE / "store")
    shutil.copytree(work / COPY, work / "older")
    last = max((work / "older" / "store" / names.COMMIT_LOG).iterdir())
    with last.open("r+b") as file:  # as it was before its broker wrote to it
        file.truncate(0)
        file.truncate(golden_size := max((golden.root / names.COMMIT_LOG).iterdir()).stat().st_size)
    assert golden_size
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


def submit(cluster: Cluster, job: str, golden: GoldenStore, store: Path, *words: str) -> Submitted:
    conf = golden.root.parents[1] / "broker.conf"
    own = conf.with_name(f"{store.parent.name}.conf")
    own.write_text(conf.read_text().replace(str(golden.root), str(store)))
    arguments = [
        str(store),
        *words,
        "--broker-conf",
        str(own),
        "--rocketmq-version",
        golden.version,
        "--json",
    ]
    return cluster.submit(JOBS / f"{job}.py", arguments, stderr=subprocess.PIPE)


def refused(done: Submitted) -> dict[str, object]:
    assert done.exit_code == 2, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("index", [[], ["--no-index"]])
def test_an_output_that_no_executor_shares_is_refused(
    cluster: Cluster, work: Path, golden: GoldenStore, index: list[str]
) -> None:
    store = work / "sound" / "store"
    if not store.exists():
        shutil.copytree(golden.root, store)
    out = work / NEITHER / f"out{len(index)}"
    found = refused(submit(cluster, "rebuild", golden, store, "--out", str(out), *index))
    assert found["host"] in ("worker-a", "worker-b")
    assert found["path"] == str(out)
    assert "doesn't see the output that the driver sees" in str(found["message"])
    assert str(found["message"]).startswith(f"on host {found['host']}: ")
    state = read_state(out / names.REPUT / names.JOURNAL)[1]
    assert (state.batches, state.queues) == (0, {})
    assert not list((out / names.REPUT).glob(f"{names.SHARED}*"))
