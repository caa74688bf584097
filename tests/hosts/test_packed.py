"""`reput pack`: what is in the archive, and what it does on a host that has no Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.pack import MANIFEST
from reput.pack.check import check
from reput.store.compare import compare
from tests.golden.store import GoldenStore, unpack
from tests.hosts import bare, network
from tests.hosts.network import OWN, PROJECT, SHARED, Host
from tests.hosts.place import long
from tests.hosts.standalone import cluster
from tests.rebuilds import environment
from tests.schemas import hold

pytestmark = [pytest.mark.slow, long]

needs_root = pytest.mark.skipif(network.why_not() is not None, reason=f"NOT TESTED: {network.why_not()}")
_ENVIRONMENT = OWN / "environment"
#: Modules with libraries that a bare host lacks, and packages with compiled modules.
_MODULES = (
    *("bz2", "ctypes", "hashlib", "lzma", "sqlite3", "ssl", "zlib"),
    *("deltalake", "mmh3", "numba", "numpy", "pandas", "pyarrow.dataset", "pyarrow.parquet", "pyspark.sql"),
    *("prometheus_client", "reput.cli"),
)
#: Prints how many kernels numba compiled.
_COMPILED = """
from numba.core import event

compiled = event.RecordingListener()
event.register("numba:compile", compiled)
import reput.{} as kernels

kernels.load()
print(len([one for _, one in compiled.buffer if one.is_start]))
"""
_ALL, _SOME = (_COMPILED.format(module) for module in ("replay.kernels", "log.walk_kernel"))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packed")


@pytest.fixture(scope="module")
def packed(work: Path) -> tuple[Path, dict[str, Any]]:
    """The archive, and what the command says of it."""
    archive = work / "reput-env.tar.gz"
    words = ["pack", "--out", str(archive), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "reput.cli", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hold(words, done.stdout)
    assert list(work.iterdir()) == [archive]
    return archive, json.loads(done.stdout)


@pytest.fixture(scope="module")
def unpacked(packed: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xf", packed[0], "-C", root], check=True)
    return root


def test_only_files_without_an_owner(packed: tuple[Path, dict[str, Any]]) -> None:
    archive, said = packed
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    names = [one.name for one in members]
    assert names == sorted(names, key=lambda name: name.split("/"))
    assert {one.type for one in members} == {tarfile.REGTYPE}
    assert {(one.uid, one.gid, one.uname, one.gname) for one in members} == {(0, 0, "", "")}
    assert (said["files"], said["unpacked_bytes"]) == (len(members), sum(one.size for one in members))
    assert said["bytes"] == archive.stat().st_size
    assert not [name for name in names if name.startswith("/") or ".." in name.split("/")]


def test_what_is_in_it(packed: tuple[Path, dict[str, Any]], unpacked: Path) -> None:
    said = packed[1]
    facts = json.loads((unpacked / MANIFEST).read_text())
    assert facts == {name: said[name] for name in facts}
    assert {"pyspark", "numba", "pyarrow", "deltalake", "reput"} <= set(facts["packages"])
    assert not {"pytest", "mypy", "jupyterlab", "pip"} & set(facts["packages"])
    directories = {path.name for path in unpacked.rglob("*") if path.is_dir()}
    assert not {"jars", "idlelib", "ensurepip", "tkinter", "tests", "pytest"} & directories
    assert not list(unpacked.rglob("*.pth"))


def test_all_that_files_need_is_in_it(packed: tuple[Path, dict[str, Any]], unpacked: Path) -> None:
    assert ".".join(map(str, check(unpacked, "bin/python"))) == packed[1]["least_glibc"]


def test_no_compiled_module_names_the_place_where_it_was_made(work: Path, unpacked: Path) -> None:
    compiled = list(unpacked.rglob("*.pyc"))
    assert len(compiled) > 1000
    wrong = [path for path in compiled if os.fsencode(work.parent) in path.read_bytes()]
    assert wrong == []


def test_kernels_are_not_compiled_again(unpacked: Path) -> None:
    """They are for the processor that packed; for another one numba compiles them."""
    python = unpacked / "bin" / "python"
    here = subprocess.run([python, "-c", _ALL], env={}, capture_output=True, text=True, check=False)
    assert here.stdout == "0\n", here.stderr
    found = subprocess.run(
        [python, "-c", "import llvmlite.binding as b; print(b.get_host_cpu_features().flatten())"],
        env={},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    other = {"NUMBA_CPU_FEATURES": found.replace("+adx", "-adx").replace("+bmi2", "-bmi2")}
    assert other["NUMBA_CPU_FEATURES"] != found
    there = subprocess.run([python, "-c", _SOME], env=other, capture_output=True, text=True, check=False)
    assert int(there.stdout) > 0, there.stderr


def test_without_jars_what_needs_spark_says_so(unpacked: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [unpacked / "bin" / "reput", "rebuild", tmp_path, "--out", tmp_path / "out"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there are no jars of Spark" in done.stderr
    assert "--with-spark" in done.stderr


@pytest.fixture(scope="module")
def golden(work: Path) -> GoldenStore:
    return unpack("5.3.3-mixed", work / "golden")


@pytest.fixture(scope="module")
def hosts(
    packed: tuple[Path, dict[str, Any]], golden: GoldenStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Host]]:
    """A host with the archive unpacked for a driver, and one that has no Python; both share a store."""
    place = tmp_path_factory.mktemp("hosts")
    shared = place / "shared"
    shared.mkdir()
    shutil.copytree(golden.root, shared / "store")
    conf = golden.write_broker_conf(shared / "broker.conf")
    conf.write_text(conf.read_text().replace(str(golden.root), f"{SHARED}/store"))
    with network.hosts(place, shared, 2) as made:
        for host in made:
            shutil.copy(packed[0], host.own)
            (host.own / "environment").mkdir()
        bare.make_bare(made[1])
        yield made


@needs_root
def test_on_a_host_that_has_no_python(hosts: list[Host]) -> None:
    host = hosts[1]
    assert bare.pythons(host) == []
    host.run("tar", "-xf", OWN / "reput-env.tar.gz", "-C", _ENVIRONMENT)
    try:
        loaded = f"import sys, {', '.join(_MODULES)}; print(sys.prefix, *sys.path)"
        prefix, *path = host.run(_ENVIRONMENT / "bin" / "python", "-c", loaded).split()
        assert prefix == str(_ENVIRONMENT)
        assert all(one.startswith(f"{prefix}/") for one in path)
        assert host.run(_ENVIRONMENT / "bin" / "python", "-c", _ALL) == "0\n"
        reput = _ENVIRONMENT / "bin" / "reput"
        store = (f"{SHARED}/store", "--broker-conf", f"{SHARED}/broker.conf", "--rocketmq-version", "5.3.3")
        assert len(host.run(reput, "dump", "commitlog", *store, "--limit", "3", "--json").splitlines()) == 3
        assert json.loads(host.run(reput, "check", *store, "--json"))["exit_code"] == 0
    finally:
        shutil.rmtree(host.own / "environment")
        (host.own / "environment").mkdir()


@needs_root
@pytest.mark.spark
def test_a_rebuild_whose_worker_has_no_python(hosts: list[Host], golden: GoldenStore) -> None:
    driver, worker = hosts
    # Spark runs Python for planning on the driver's host, too, by the same relative path.
    driver.before = ["env", "--chdir", str(OWN)]
    driver.run("tar", "-xf", OWN / "reput-env.tar.gz", "-C", _ENVIRONMENT)
    python = {
        "PYSPARK_PYTHON": "./environment/bin/python",
        "PYSPARK_DRIVER_PYTHON": str(_ENVIRONMENT / "bin" / "python"),
        "PYTHONPATH": "",
    }
    words = (f"{SHARED}/store", "--broker-conf", f"{SHARED}/broker.conf", "--rocketmq-version", "5.3.3")
    with cluster(hosts, 1, **python) as spark:
        submitted = spark.begin(
            PROJECT / "jobs" / "rebuild.py",
            [*words, "--out", f"{SHARED}/out", "--several-hosts", "--json"],
            **{"spark.archives": f"{OWN}/reput-env.tar.gz#environment"},
        )
        code, stdout = submitted.wait()
        assert code == 0, submitted.said
    assert json.loads(stdout)["findings"] == []
    found = compare(golden.root, worker.own.parent / "shared" / "out")
    assert found.differences == ()
    assert found.queue_bytes > 0
    assert found.index_bytes > 0
    assert bare.pythons(worker) == []
