"""``reput doctor``: each check says what is wrong when it is, and how to mend it."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import Result
from typer.testing import CliRunner

from bench.sizing import MEASURED
from reput import doctor as checks
from reput.cli import app as cli
from reput.config.settings import StoreSettings
from reput.doctor import (
    Check,
    Status,
    cache_check,
    encoding,
    java_check,
    machine_checks,
    maps,
    memory,
    open_files,
    python,
    room,
    scratch,
    spark_check,
    store_checks,
    worst,
)
from reput.errors import SparkError
from reput.log.segments import discover
from reput.spark.jars import delta_jars
from tests.golden.store import GoldenStore, unpack
from tests.rebuilds import broker_conf, broker_lock, give_settings, golden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIB = 1 << 30


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    store = golden("5.5.0-lost-head", tmp_path)
    give_settings(store)
    return store


def checked(store: GoldenStore, *, conf: bool = True, version: str | None = "5.5.0") -> dict[str, Check]:
    found = store_checks(store.root, broker_conf(store) if conf else None, version)
    return {check.name: check for check in found}


def test_what_each_limit_says() -> None:
    for check, status in (
        (python((3, 11)), Status.OK),
        (python((3, 9)), Status.WRONG),
        (encoding("utf-8", "UTF-8"), Status.OK),
        (encoding("utf-8", "ascii"), Status.WARNING),
        (encoding("ascii", "utf-8"), Status.WRONG),
        (memory(8 * GIB), Status.OK),
        (memory(int(1.5 * GIB), 2), Status.WARNING),
        (memory(GIB - 1, 1), Status.WRONG),
        (memory(3 * GIB, 8), Status.OK),
        (memory(3 * GIB, 16), Status.WARNING),
        (open_files(None, 1024), Status.OK),
        (open_files(None, 256), Status.WARNING),
        (open_files(20_000, 1024), Status.WARNING),
        (open_files(20_000, 20_001), Status.OK),
        (open_files(20_000, resource.RLIM_INFINITY), Status.OK),
        (maps(None, 65_530), Status.OK),
        (maps(None, 1000), Status.WARNING),
        (maps(66_000, 65_530), Status.WARNING),
        (maps(65_000, 65_530), Status.OK),
    ):
        assert check.status is status, check
        assert (check.next_step is None) == (status is Status.OK)
    assert "`ulimit -n 2000000`" in (open_files(1_000_000, 1024).next_step or "")


def test_a_place_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(checks.tempfile, "gettempdir", lambda: str(tmp_path))
    assert scratch().status is Status.OK
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{elsewhere},{tmp_path}")
    monkeypatch.setattr(checks, "free_bytes", lambda path: GIB if path == tmp_path else 1)
    assert (scratch().status, str(elsewhere) in scratch().found) == (Status.WARNING, True)
    assert "SPARK_LOCAL_DIRS" in (scratch().next_step or "")
    assert cache_check(tmp_path / "not" / "there").found.endswith(
        "nothing compiled yet: the first run takes longer"
    )
    (tmp_path / "kernel.nbi").touch()
    assert cache_check(tmp_path).found.endswith("1 kernel compiled so far")
    monkeypatch.setattr(checks.os, "access", lambda *_: False)
    assert scratch().status is cache_check(tmp_path).status is Status.WRONG
    assert "NUMBA_CACHE_DIR" in (cache_check(tmp_path / "not" / "there").next_step or "")


@pytest.mark.parametrize(
    ("release", "status"),
    [("17.0.9", "ok"), ("21", "ok"), ("23.0.1", "warning"), ("1.8.0_392", "wrong"), ("", "wrong")],
)
def test_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, status: str) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    (tmp_path / "release").write_text(f'JAVA_VERSION="{release}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert type(checks.java()[0]) is str, "it goes into the key of the class archive, as JSON"
    check = java_check()
    assert (check.status, str(java) in check.found) == (status, True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert java_check().found == f"no bin/java in JAVA_HOME={tmp_path / 'nowhere'}"


def test_delta_is_looked_for_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jar = delta_jars(fetch=False)[0]
    assert jar.is_relative_to(tmp_path)
    assert checks.delta().status is Status.OK, "a fresh clone is well without it"
    assert "It is fetched then" in checks.delta().found
    jar.parent.mkdir(parents=True)
    jar.touch()
    assert checks.delta() == Check("delta", Status.OK, str(jar))


def test_what_lies_beside_the_package_in_a_clone() -> None:
    root = Path(__file__).parents[3]
    assert checks.beside() == root
    assert checks.shipped() == Check("files", Status.OK, f"jobs, conf and notebooks in {root}")


def test_every_check_of_the_machine_comes_once() -> None:
    names = [check.name for check in machine_checks()]
    assert len(names) == len(set(names)) == 14
    assert worst([]) is Status.OK
    assert (
        worst(Check("", status, "") for status in (Status.WRONG, Status.WARNING, Status.OK)) is Status.WRONG
    )


def test_what_memory_goes_by_is_that_of_the_plan_and_the_page() -> None:
    assert checks._MEMORY_FIXED == MEASURED.memory_fixed
    assert checks._MEMORY_PER_CORE == MEASURED.memory_per_core
    page = (Path(__file__).parents[3] / "docs" / "data" / "benchmark.md").read_text(encoding="utf-8")
    warm = re.findall(r"^\| reput, warm +\| +[0-9.]+ \| +2 \|.* ([0-9.]+) MiB \|$", page, re.MULTILINE)
    assert len(warm) == 2
    assert 0 <= checks._MEMORY_NEEDED - max(map(float, warm)) * (1 << 20) < GIB / 8
    tails = re.findall(r"^\|.* ms \| [0-9,]+ \| [0-9. ]*\| ([0-9.]+) GiB \|$", page, re.MULTILINE)
    assert len(tails) == 5, "rows of tails in docs/data/benchmark.md"
    assert checks._MEMORY_TAIL == int(max(map(float, tails)) * GIB)


def test_units_of_batch_queues_and_segments_made_ahead_count_as_what_they_are(tmp_path: Path) -> None:
    store = golden("5.3.3-batch-queue", tmp_path)
    conf, root = broker_conf(store), store.root
    without = room_of(root, conf, store.version)
    store.write_topics_json()
    assert room_of(root, conf, store.version) > without
    segments = sorted((root / "commitlog").iterdir())
    size = segments[-1].stat().st_size
    with_batches = room_of(root, conf, store.version)
    (root / "commitlog" / f"{int(segments[-1].name) + size:020d}").write_bytes(bytes(size))
    assert room_of(root, conf, store.version) == with_batches


def room_of(root: Path, conf: Path, version: str) -> int:
    """What the check asks for, in bytes."""
    settings = StoreSettings.load(root, conf, version)
    asked: list[int] = []

    def noted(number: int) -> str:
        asked.append(number)
        return str(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reput.doctor.human", noted)
        room(settings, discover(settings), None)
    return asked[0]


def test_a_sound_store(store: GoldenStore) -> None:
    found = checked(store)
    assert {check.status for check in found.values()} == {Status.OK}
    assert list(found) == [
        *("settings", "version", "evidence", "log", "readable", "in-use", "config"),
        *("open-files-of-store", "maps-of-store", "room"),
    ]


def test_settings_that_are_not_there_are_not_ok(store: GoldenStore) -> None:
    (store.root / "config" / "topics.json").write_text("")
    found = checked(store)["config"]
    assert (found.status, "config/topics.json: an empty file" in found.found) == (Status.WARNING, True)
    shutil.rmtree(store.root / "config")
    found = checked(store)["config"]
    assert (found.status, "config: no such directory" in found.found) == (Status.WARNING, True)


def test_settings_and_version(store: GoldenStore, tmp_path: Path) -> None:
    without = checked(store, conf=False, version=None)
    assert without["settings"].status is Status.OK
    assert "queue files of 1,000 bytes: 24 of 24" in without["settings"].found
    assert without["version"].status is Status.OK
    assert "the checkpoint has a logicsPhysicalOffset (5.5 or later)" in without["evidence"].found
    assert checked(store, version="4.9.7")["version"].status is Status.WRONG
    old = golden("4.9.7-lost-head", tmp_path / "old")
    assert checked(old, version=None)["version"].found == (
        "4.9 is assumed; 4.7.1 to 4.9: hashSlotCount of index/20261121103557943 counts slots and "
        "config/delayOffset.json has no dataVersion, 4.9 assumed"
    )
    assert checked(old, version="4.9.7")["version"].status is Status.OK
    assert checked(old, version="5.3.3")["version"].status is Status.WRONG
    broker_conf(old).write_text("")
    other = checked(old, version=None)["settings"]
    assert other.status is Status.WRONG
    assert "the store shows queue files of 1,000 bytes: 24 of 24" in other.found
    assert "-c FILE" in (other.next_step or "")


def test_defaults_are_a_warning_and_a_file_nearby_is_offered(tmp_path: Path) -> None:
    store = golden("5.3.3-no-index", tmp_path)
    check = checked(store, conf=False, version=None)["settings"]
    assert check.status is Status.WARNING
    assert "RocketMQ's default, 5,000,000 slots and 20,000,000 entries" in check.found
    assert str(broker_conf(store)) in (check.next_step or "")


def test_what_is_no_store_and_no_settings(store: GoldenStore, tmp_path: Path) -> None:
    assert [check.name for check in store_checks(store.root, tmp_path / "none.conf", None)] == ["settings"]
    (nothing,) = store_checks(tmp_path / "nothing", None, None)
    assert (nothing.name, nothing.status) == ("log", Status.WRONG)
    assert nothing.next_step is not None
    assert nothing.next_step not in nothing.found


def test_a_broker_on_it_a_missing_segment_and_a_broken_file(store: GoldenStore) -> None:
    (store.root / "config").mkdir(exist_ok=True)
    (store.root / "config" / "topics.json").write_text("{")
    (store.root / "config" / "topics.json.bak").write_text("{")
    first = min((store.root / "commitlog").iterdir())
    (store.root / "commitlog" / "00000000000000000000").write_bytes(first.read_bytes())
    with broker_lock(store.root) as pid:
        found = checked(store)
    assert (found["in-use"].status, str(pid) in found["in-use"].found) == (Status.WARNING, True)
    assert (found["log"].status, "missing-segments" in found["log"].found) == (Status.WARNING, True)
    assert (found["config"].status, "topics.json" in found["config"].found) == (Status.WRONG, True)


def test_a_file_that_may_not_be_read_and_no_room(store: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = min((store.root / "commitlog").iterdir())
    may = os.access
    monkeypatch.setattr("reput.doctor.os.access", lambda path, mode: Path(path) != closed and may(path, mode))
    monkeypatch.setattr("reput.doctor.free_bytes", lambda _: 1 << 20)
    found = checked(store)
    assert (found["readable"].status, str(closed) in found["readable"].found) == (Status.WRONG, True)
    assert (found["room"].status, "--out" in (found["room"].next_step or "")) == (Status.WRONG, True)


def test_spark_that_does_not_start() -> None:
    def refused() -> SparkSession:
        raise SparkError("Spark failed", found="no port", next_step="Mend it")

    def broken() -> SparkSession:
        raise RuntimeError("[SOME_ERROR] of Spark's own")

    assert spark_check(refused) == Check(
        "spark", Status.WRONG, "Spark failed; found no port. Mend it", "Mend it"
    )
    assert "of Spark's own" in spark_check(broken).found


def doctor(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["doctor", *map(str, words)])


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of the tests may lack something."""
    monkeypatch.setattr("reput.doctor.machine_checks", lambda: [Check("java", Status.OK, "Java 17")])


@pytest.mark.usefixtures("sound")
def test_the_command(store: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--broker-conf", broker_conf(store), "--rocketmq-version", "5.5.0", "--no-spark")
    shown = doctor(store.root, *options)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[0] == f"Checked this machine and {store.root}: 11 ok"
    assert doctor(store.root, "--no-spark").exit_code == 0, "what isn't given is shown"
    other = ("--broker-conf", "/dev/null", "--no-spark")
    document = json.loads(doctor(store.root, *other, "--json").stdout)
    assert (document["exit_code"], document["status"]) == (1, "wrong")
    (wrong,) = (check for check in document["checks"] if check["status"] == "wrong")
    assert wrong["name"] == "settings"
    assert f"-> {wrong['next_steps'][0]}" in doctor(store.root, *other).stdout
    for words in (("--out", "/tmp"), ("--broker-conf", "x"), ("--no-spark", "--master", "local[1]")):
        assert doctor(*words).exit_code == 2
    monkeypatch.setattr(cli, "start_spark", lambda *_: pytest.fail("Spark was to be started"))
    monkeypatch.setattr(
        "reput.doctor.machine_checks", lambda: [Check("java", Status.WRONG, "none", "Install")]
    )
    assert "not tried: there is no Java for it" in doctor().stdout


def test_databases_of_a_store_can_be_opened_or_are_named(tmp_path: Path) -> None:
    store = unpack("5.5.0-rocksdb-settings-v1", tmp_path / "store")
    found = {check.name: check for check in store_checks(store.root, None, "5.5.0")}
    assert found["rocksdb-of-store"] == Check("rocksdb-of-store", Status.OK, "5 databases can be read")
    assert found["config"].status is Status.OK
    assert "config/topics.json is stale: counter 3, and config/topics has 10" in found["config"].found
    next((store.root / "config" / "topics").glob("MANIFEST-*")).unlink()
    found = {check.name: check for check in store_checks(store.root, None, "5.5.0")}
    for name in ("rocksdb-of-store", "config"):
        assert found[name].status is Status.WRONG
        assert "MANIFEST" in found[name].found
