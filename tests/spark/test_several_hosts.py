"""Tasks that share no page cache: the same bytes, and nothing that counts is ever written by two of them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reput.errors import OtherHostError
from reput.format import names
from reput.job import RebuildOptions, rebuild
from reput.output import batch, whole_queues
from reput.spark.runner import SparkRunner
from reput.store import system as systems
from reput.store.compare import compare
from tests.levels import tried
from tests.rebuilds import Command, broker_conf, golden, tree, words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def reput(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Command:
    return Command(monkeypatch, lambda: request.getfixturevalue("spark"))


@pytest.mark.parametrize(
    ("name", "bytes_at_once"),
    tried(
        ("5.3.3-mixed", "150k"),
        ("5.3.3-batch-queue", "100k"),
        more=[
            ("5.5.0-restart", "4g"),
            ("4.9.7-recreated-topic", "100k"),
            ("4.9.7-lost-head", "4g"),
            ("5.3.3-odd-properties", "50k"),
            ("4.9.7-filter-bit-maps", "100k"),
        ],
    ),
)
def test_the_brokers_bytes(reput: Command, tmp_path: Path, name: str, bytes_at_once: str) -> None:
    store, out = golden(name, tmp_path), tmp_path / "out"
    shared = tmp_path / "shared"
    batches = ("--max-bytes-per-trigger", bytes_at_once, "--json")
    one = reput(*words(store, "--out", shared, "--single-host", *batches))
    several = reput(*words(store, "--out", out, "--several-hosts", *batches))
    said = "each queue file and index file is written by one process"
    assert said in several.stderr
    assert said not in one.stderr
    assert several.code == one.code, several.stderr
    kept = (names.LEDGER, names.REPUT)
    assert tree(out, *kept) == tree(shared, *kept)
    found = compare(store.root, out)
    assert (found.differing_bytes == 0) is (compare(store.root, shared).differing_bytes == 0)
    if several.code == 0:
        assert found.differences == ()
    told, other = json.loads(several.stdout), json.loads(one.stdout)
    assert told["findings"] == other["findings"]
    assert {"queue files"} <= set(told["stages"])
    assert not (out / names.REPUT / names.SCRATCH).exists()


def test_tasks_change_no_file_that_has_its_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file that is opened for writing by a task is new, and lies below a directory of that attempt."""
    store, out, opened = golden("5.3.3-mixed", tmp_path), tmp_path / "out", tmp_path / "opened"
    opened.mkdir()
    monkeypatch.setattr(SparkRunner, "map", _noting(SparkRunner.map, opened))
    options = RebuildOptions(
        store.root,
        out,
        broker_conf(store),
        store.version,
        max_bytes_per_trigger=100_000,
        part_bytes=40_000,
        single_host=False,
    )
    rebuild(options, lambda: spark)
    assert compare(store.root, out).differences == ()
    found = [line.split(" ", 1) for path in opened.iterdir() for line in path.read_text().splitlines()]
    assert len(found) > 50
    scratch = out / names.REPUT / names.SCRATCH
    paths = [path for _, path in found]
    assert len(set(paths)) == len(paths), "no name is used twice"
    for flags, path in found:
        batch, own, name = Path(path).relative_to(scratch).parts
        assert int(flags) & os.O_EXCL, path
        assert "" not in (batch, own, name)


def _noting(run: Any, directory: Path) -> Any:
    def map_noting(self: SparkRunner, function: Any, items: list[object]) -> list[object]:
        return run(self, _Noted(function, directory), items)

    return map_noting


class _Noted:
    """Runs a function in a worker, and notes each file that it opens for writing."""

    def __init__(self, function: Any, directory: Path) -> None:
        self.function, self.directory = function, directory

    def __call__(self, item: object) -> object:
        noted: list[str] = []

        class Noting(systems.System):
            def open(self, path: Path, flags: int) -> int:
                noted.append(f"{flags} {path}")
                return super().open(path, flags)

        from reput.store import files

        before, files.system = files.system, Noting()
        try:
            return self.function(item)
        finally:
            files.system = before
            if noted:
                name = secrets.token_hex(8)
                (self.directory / name).write_text("".join(f"{line}\n" for line in noted))


def test_a_task_that_outlived_its_run_changes_nothing(reput: Command, tmp_path: Path) -> None:
    """Its directory is gone, or nobody reads it any more."""
    store, out = golden("5.3.3-mixed", tmp_path), tmp_path / "out"
    late = out / names.REPUT / names.SCRATCH / "an-earlier-batch"
    command = words(store, "--out", out, "--several-hosts")
    assert reput(*command, "--json").code == 0
    before = tree(out)
    with pytest.raises(Exception, match="an-earlier-batch"):
        batch.attempt_directory(late)
    assert tree(out) == before
    late.mkdir(parents=True)
    (late / "0").write_bytes(b"late")
    assert reput(*command, "--json").code == 0
    assert compare(store.root, out).differences == ()
    assert tree(out, names.REPUT, names.LEDGER) == {
        name: digest
        for name, digest in before.items()
        if name.split("/")[0] not in (names.REPUT, names.LEDGER)
    }


@pytest.mark.parametrize("harm", tried("cut", more=["zeros"]))
def test_what_a_task_reads_is_what_another_wrote(
    reput: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """A file system that loses what was flushed doesn't make wrong bytes."""
    store, out = golden("5.3.3-mixed", tmp_path), tmp_path / "out"
    real = whole_queues.file_parts

    def file_parts(accepted: Any, *more: Any) -> Any:
        (path, *_) = {result.placed.path for result in accepted if result.placed is not None}
        with open(path, "r+b") as file:
            if harm == "cut":
                file.truncate(10)
            else:
                file.write(bytes(20))
        return real(accepted, *more)

    monkeypatch.setattr(whole_queues, "file_parts", file_parts)
    refused = reput(*words(store, "--out", out, "--several-hosts"))
    assert refused.code == 2
    assert "units that another task has written can't be read back; expected " in refused.stderr
    monkeypatch.undo()
    assert (
        json.loads(reput(*words(store, "--out", out, "--several-hosts", "--json")).stdout)["findings"] == []
    )
    assert compare(store.root, out).differences == ()


def test_an_executor_that_comes_from_another_host(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run begins again, the other way, from what is committed."""
    store, out = golden("5.3.3-mixed", tmp_path), tmp_path / "out"
    monkeypatch.setattr("reput.spark.runner.is_local", lambda _context: False)
    real, calls = batch.scan_and_place, []

    def scan(target: Any, part: Any, floors: Any) -> Any:
        calls.append(target.several_hosts)
        if len(calls) == 2:
            raise OtherHostError("an executor has come", path=target.root, host="node-b")
        return real(target, part, floors)

    monkeypatch.setattr(SparkRunner, "_run", lambda _self, function, items: [function(one) for one in items])
    monkeypatch.setattr(batch, "scan_and_place", scan)
    said: list[str] = []
    options = RebuildOptions(
        store.root,
        out,
        broker_conf(store),
        store.version,
        max_bytes_per_trigger=150_000,
        part_bytes=100_000,
    )
    rebuild(options, lambda: spark, announce=said.append)
    assert compare(store.root, out).differences == ()
    assert calls[:2] == [False, False]
    assert calls[-1] is True
    assert said == [
        f"executors on {os.uname().nodename}: each queue file and index file is written by one process"
    ]


def test_executors_that_do_not_share_the_drivers_pages(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, out = golden("5.5.0-tiny", tmp_path), tmp_path / "out"
    monkeypatch.setattr("reput.spark.runner.is_local", lambda _context: False)
    monkeypatch.setattr("reput.spark.runner.page_cache", lambda _directory: "another kernel")
    said: list[str] = []
    options = RebuildOptions(store.root, out, broker_conf(store), store.version)
    rebuild(options, lambda: spark, announce=said.append)
    assert compare(store.root, out).differences == ()
    (line,) = said
    assert line.startswith(f"executors on {os.uname().nodename}: ")
    shutil.rmtree(out)
    said.clear()
    monkeypatch.undo()
    rebuild(options, lambda: spark, announce=said.append)
    assert said == []
