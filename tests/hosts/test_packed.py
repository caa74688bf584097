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

from reput.spark.jars import delta_jars
from reput.store.compare import compare
from reput.words import MANIFEST
from tests.golden.store import GoldenStore, unpack
from tests.hosts import bare, elf, network
from tests.hosts.network import OWN, PROJECT, SHARED, Host
from tests.hosts.standalone import cluster
from tests.rebuilds import environment
from tests.schemas import hold

pytestmark = [pytest.mark.slow, pytest.mark.proof]

needs_root = pytest.mark.skipif(network.why_not() is not None, reason=f"NOT TESTED: {network.why_not()}")
_ENVIRONMENT = OWN / "environment"
#: What a host has to bring, besides glibc: wheels are made for that. The last two are asked for by modules of
#: numba's that do without.
_OF_HOSTS = {"libgcc_s.so.1", "libstdc++.so.6", "libz.so.1", "libgomp.so.1.0.0", "libtbb.so.12"}
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
#: Modules with libraries of their own, and packages with compiled modules.
_MODULES = (
    *("ctypes", "hashlib", "ssl", "zlib"),
    *("deltalake", "mmh3", "numba", "numpy", "pandas", "pyarrow.dataset", "pyarrow.parquet", "pyspark.sql"),
    *("obstore", "prometheus_client", "rocksdict", "reput.cli"),
)
#: Prints how many kernels numba compiled.
_COMPILED = """
from numba.core import event

compiled = event.RecordingListener()
event.register("numba:compile", compiled)
from reput.{} import {} as load

load()
print(len([one for _, one in compiled.buffer if one.is_start]))
"""
_ALL, _SOME = _COMPILED.format("replay.runner", "load_kernels"), _COMPILED.format("log.walk_kernel", "load")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packed")


def pack(work: Path, name: str, *options: str) -> tuple[Path, dict[str, Any]]:
    """An archive, and what the command says of it."""
    archive = work / name / "reput-env.tar.gz"
    archive.parent.mkdir()
    words = ["pack", "--out", str(archive), "--json", *options]
    done = subprocess.run(
        [sys.executable, "-m", "reput.cli", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hold(words, done.stdout)
    assert list(archive.parent.iterdir()) == [archive]
    return archive, json.loads(done.stdout)


@pytest.fixture(scope="module")
def packed(work: Path) -> tuple[Path, dict[str, Any]]:
    """For a cluster."""
    return pack(work, "cluster")


@pytest.fixture(scope="module")
def light(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without Spark, unpacked."""
    root = tmp_path_factory.mktemp("light")
    subprocess.run(["tar", "-xf", pack(work, "light", "--light")[0], "-C", root], check=True)
    return root


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
    assert not {"idlelib", "ensurepip", "tkinter", "tests", "pytest"} & directories
    assert sorted(path.name for path in (unpacked / "jars").iterdir()) == sorted(
        jar.name for jar in delta_jars(fetch=False)
    )
    assert (unpacked / "share" / "reput" / "conf" / "delta.conf").is_file()
    assert not list(unpacked.rglob("*.pth"))


@pytest.mark.parametrize("machine", _MACHINES)
@pytest.mark.parametrize("options", [[], ["--light"]])
def test_wheels_decide_which_hosts_will_do(machine: str, options: list[str], tmp_path: Path) -> None:
    """For all of RHEL 8 and Debian 10 on, whatever this host has; for another machine, too."""
    archive, said = pack(tmp_path, "it", "--machine", machine, *options)
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    assert (said["machine"], said["least_glibc"]) == (machine, "2.28")
    files = {path: path.name for path in tmp_path.rglob("*") if path.is_file()}
    names = set(files.values())
    facts = {path: found for path in files if (found := elf.read(path)) is not None}
    assert len(facts) > 50
    for path, found in facts.items():
        assert found.machine == _MACHINES[machine], path
        assert found.glibc <= (2, 28), path
        foreign = {name for name in found.needed if not elf.is_glibc(name)} - names
        assert foreign <= _OF_HOSTS, path
        assert all(one is not None for one in found.directories(path.relative_to(tmp_path).as_posix())), path


@needs_root
@pytest.mark.skipif(shutil.which("debootstrap") is None, reason="NOT TESTED: needs Debian's debootstrap")
@pytest.mark.parametrize("release", ["bullseye", "bookworm"])
def test_on_a_debian_without_python(release: str, light: Path, golden: GoldenStore, tmp_path: Path) -> None:
    """Unpack, run, done: on a system of its own, with an older glibc than this one."""
    root = tmp_path / release
    subprocess.run(["debootstrap", "--variant=minbase", release, root], check=True, stdout=subprocess.DEVNULL)
    assert not list(root.glob("usr/bin/python*"))
    shutil.copytree(light, root / "opt" / "reput")
    shutil.copytree(golden.root, root / "store")
    conf = golden.write_broker_conf(tmp_path / "broker.conf").read_text().replace(str(golden.root), "/store")
    (root / "broker.conf").write_text(conf)
    inside = [
        "unshare",
        "-mpnf",
        "sh",
        "-c",
        'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"',
        str(root),
    ]

    def reput(*words: str) -> str:
        """Without a network: nothing is fetched."""
        command = [*inside, "/opt/reput/bin/reput", *words]
        done = subprocess.run(
            command,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    store = ("/store", "--broker-conf", "/broker.conf", "--rocketmq-version", "5.3.3")
    assert "start it" in reput("check", "--quick", *store)
    assert json.loads(reput("check", *store, "--json"))["exit_code"] == 0
    assert len(reput("dump", "commitlog", "/store", "--limit", "3").splitlines()) == 3
    assert json.loads(reput("query", *store, "--offset", "0", "--json"))
    reput("export", *store, "-o", "/saved.jsonl")
    assert len((root / "saved.jsonl").read_text().splitlines()) > 100


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
