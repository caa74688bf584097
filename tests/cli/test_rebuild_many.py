"""``reput rebuild-many``: many stores in one session, each with its own output and exit code."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.errors import SettingsError, StoreError
from reput.job import many
from reput.job.many import plan_many, rebuild_many
from reput.job.options import RebuildOptions
from tests.rebuilds import Command, assert_same, golden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def no_spark() -> SparkSession:
    raise AssertionError("Spark was to be started")


@pytest.mark.spark
def test_each_store_has_its_output_and_none_waits_for_anothers_trouble(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reput = Command(monkeypatch, lambda: spark)
    stores = [golden(f"5.5.0-{name}", tmp_path / name) for name in ("mixed", "no-keys")]
    empty = tmp_path / "empty" / "store"
    empty.mkdir(parents=True)
    (tmp_path / "empty" / "broker.conf").touch()
    out = tmp_path / "out"
    words = ["rebuild-many", empty, *(store.root for store in stores), "--out-root", out]
    words += ["--broker-conf", "{store}/../broker.conf", "--rocketmq-version", "5.5.0", "--at-once", "2"]

    done = reput(*words, "--json")
    assert done.code == 2, done.stderr
    told = json.loads(done.stdout)
    assert told["exit_code"] == 2
    assert [(one["exit_code"], Path(one["store"])) for one in told["stores"]] == [
        (2, empty),
        *((0, store.root) for store in stores),
    ]
    refused = told["stores"][0]
    assert refused["error"]
    assert str(empty) in refused["message"]
    for store, one in zip(stores, told["stores"][1:], strict=True):
        place = out / store.root.parent.name / "store"
        assert Path(one["output"]) == place
        assert_same(store.root, place)
    assert reput.sessions == 1
    assert not (out / "empty").exists()

    shown = reput(*words)
    assert shown.code == 2
    failed = [line for line in shown.stdout.splitlines() if line.startswith("  failed     ")]
    assert len(failed) == 1
    assert str(empty) in failed[0]
    code, _seconds, store = shown.stdout.splitlines()[2].split()
    assert (code, store) == ("2", str(empty))

    again = reput(*words[:1], *words[2:])
    assert again.code == 0, again.stderr
    head, titles, *rows = again.stdout.splitlines()
    assert head == f"Rebuilt 2 of 2 stores into {out}"
    assert titles.split() == ["code", "messages", "log", "queues", "index", "findings", "seconds", "store"]
    assert [row.split()[-1] for row in rows] == [str(store.root) for store in stores]
    assert "exit code 0, 1 store left" in again.stderr
    assert reput.sessions == 1, "all is done already"


@pytest.mark.parametrize(
    ("stores", "outputs"),
    [
        (["/b/a/store", "/b/c/store"], ["/out/a/store", "/out/c/store"]),
        (["/b/1", "/b/2", "/b/x/3"], ["/out/1", "/out/2", "/out/x/3"]),
        (["/b/a/store/"], ["/out/store"]),
        (["/b/a/../c"], ["/out/c"]),
    ],
)
def test_outputs_lie_as_the_stores_do(stores: list[str], outputs: list[str]) -> None:
    common = RebuildOptions(store=Path(), broker_conf=Path("{store}/conf"), rocketmq_version="5.3")
    found = plan_many(list(map(Path, stores)), Path("/out"), common)
    assert [one.out for one in found] == list(map(Path, outputs))
    assert [one.broker_conf for one in found] == [one.store / "conf" for one in found]
    assert {one.rocketmq_version for one in found} == {"5.3"}


@pytest.mark.parametrize(
    ("stores", "problem"),
    [
        (["/a/b", "/c", "/a/b/"], "a store is named twice"),
        (["/a/b/c", "/d", "/a/b"], "is inside another one"),
    ],
)
def test_stores_in_each_other_are_refused(stores: list[str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        plan_many(list(map(Path, stores)), Path("/out"), RebuildOptions(store=Path()))


@pytest.mark.parametrize("at_once", [1, 2])
def test_nothing_that_ends_a_thread_hangs_the_run(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def rebuild(options: RebuildOptions, start_spark: object) -> None:
        raise {"exit": SystemExit(3), "end": GeneratorExit, "stop": KeyboardInterrupt}[options.store.name]

    monkeypatch.setattr(many, "rebuild", rebuild)
    stores = [RebuildOptions(store=Path(name)) for name in ("exit", "end", "stop")]
    found = rebuild_many(stores, no_spark, at_once)
    assert [one.exit_code for one in found] == [2] * 3
    assert [str(one.to_dict()["found"]).split(" (")[0] for one in found] == [
        "SystemExit: 3",
        "GeneratorExit: ",
        "KeyboardInterrupt: ",
    ]

    told: list[Path] = []
    monkeypatch.setattr(many, "_rebuilt", rebuild)  # what nothing in the thread catches
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    found = rebuild_many(stores, no_spark, at_once, lambda outcome: told.append(outcome.options.store))
    assert [one.exit_code for one in found] == [2] * 3
    assert "its thread ended without a result" in str(found[0].to_dict()["message"])
    assert told == [one.store for one in stores]


def test_a_name_between_a_store_and_one_in_it_hides_nothing() -> None:
    with pytest.raises(SettingsError, match="is inside another one"):
        plan_many([Path("/a/b"), Path("/a/b-c"), Path("/a/b/c")], Path("/out"), RebuildOptions(store=Path()))


def test_as_many_at_once_as_asked_for_and_in_the_order_given(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=60)
    begun: list[Path] = []

    def rebuild(options: RebuildOptions, start_spark: object) -> None:
        begun.append(options.store)
        if options.store.name != "3":
            both.wait()  # passes only when two are under way
        raise StoreError("no good", path=options.store) if options.store.name != "2" else KeyError("bug")

    monkeypatch.setattr(many, "rebuild", rebuild)
    stores = [RebuildOptions(store=Path(f"/{number}")) for number in range(4)] + [RebuildOptions(Path("/x"))]
    stores = [stores[0], stores[1], stores[2], stores[4], stores[3]]
    told: list[Path] = []
    found = rebuild_many(stores, no_spark, 2, lambda outcome: told.append(outcome.options.store))
    assert [one.options for one in found] == stores
    assert set(told) == set(begun) == {one.store for one in stores}
    assert [one.exit_code for one in found] == [2] * 5
    errors = [str(one.to_dict()["message"]) for one in found]
    assert "no good" in errors[0]
    assert "reput failed in a way that it doesn't foresee" in errors[2]
    assert "KeyError: 'bug'" in errors[2]
