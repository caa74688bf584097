"""``reput rebuild`` and ``check`` with several stores, each with its own exit code."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from reput.config.settings import StoreSettings
from reput.diagnosis.check import Diagnosis
from reput.errors import SettingsError, StoreError
from reput.format import names
from reput.job import many
from reput.job.many import Job, Once, Place, Result, StoreEntry, plan_checks, plan_rebuilds, run_many, worst
from reput.job.options import RebuildOptions
from reput.spark.command import Command as RemoteCommand
from reput.spark.command import Ended
from reput.verify.plan import VerifyOptions
from reput.verify.report import Report
from tests.rebuilds import Command, assert_same, environment, give_settings, golden

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
    words = ["rebuild", empty, *(store.root for store in stores), "--out-root", out]
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


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("master", [[], ["--master", "local[2]"]], ids=["processes", "spark"])
def test_one_store_is_harmed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: list[str]
) -> None:
    """Without --master each is a process of its own, without Spark; the same is said."""
    monkeypatch.setenv("PYTHONPATH", str(environment()["PYTHONPATH"]))
    reput = Command(monkeypatch, lambda: request.getfixturevalue("spark"))
    sound, harmed = (golden(f"5.3.3-{name}", tmp_path / name) for name in ("restart", "mixed"))
    queue = min(path for path in (harmed.root / names.CONSUME_QUEUE).rglob("0" * 20))
    with queue.open("r+b") as file:
        file.write(b"\xff")
    for store in (sound, harmed):
        give_settings(store)
    words = ["check", sound.root, harmed.root, "--broker-conf", "{store}/../broker.conf", "--at-once", "2"]
    words += master

    done = reput(*words, "--json")
    assert done.code == 3, done.stderr
    told = json.loads(done.stdout)
    assert [
        (one["exit_code"], one["verdict"], Path(one["store"]), one["host"]) for one in told["stores"]
    ] == [(0, "start", sound.root, None), (3, "mend", harmed.root, None)]
    assert told["stores"][0]["findings"] == []
    assert {one["path"] for one in told["stores"][1]["findings"]} == {str(queue)}
    assert reput.sessions == bool(master)

    shown = reput(*words, "--rocketmq-version", "5.3.3")
    assert shown.code == 3
    head, titles, *lines = shown.stdout.splitlines()
    assert head == "Checked 2 of 2 stores"
    assert titles.split()[0] == "code"
    assert [line.split()[0] for line in lines] == ["0", "3", "found", "next"]
    assert lines[2].startswith(f"  found      {harmed.root}: mend it first: ")
    assert f"reput mend {harmed.root} " in lines[3]


def test_what_ends_a_store_here_is_that_stores_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter([Ended(-9, "", ("reput: checking",)), Ended(0, "", ())])
    monkeypatch.setattr(RemoteCommand, "__call__", lambda _command: next(ends))
    done = Command(monkeypatch, no_spark)("check", "/a", "/b")
    assert done.code == 2
    assert "/a: reput check ended without a result; " in done.stdout
    assert "found ended by SIGKILL; reput: checking. Run it for this store alone" in done.stdout
    assert "/b: reput check ended without a result; " in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("check /a /b --quick --queue T", "--quick, --queue can't be given for several stores"),
        ("check /a --history /h --proofs /p", "--proofs can't be given for several stores"),
        ("check h:/a --against /b", "--against can't be given for several stores"),
        ("check stores.toml --quick", "--quick can't be given for several stores"),
        ("check /a --force", "--force is about the page; expected --out FILE with it"),
        (
            "check /a /b --all",
            "--all and --digest say how much of earlier proofs is believed; expected --history",
        ),
        ("rebuild /a /b", "where the outputs of several stores go is not clear; expected --out-root DIR"),
        ("rebuild /a --at-once 2 --out-root /o --in-place", "--in-place can't be given for several stores"),
        (
            "rebuild /a /b --out /o --convert --queue T --catalog /c --catalog-bodies --dry-run",
            "--out, --convert, --queue, --catalog, --catalog-bodies, --dry-run can't be given for several",
        ),
    ],
)
def test_what_fits_one_store_or_several_alone(monkeypatch: pytest.MonkeyPatch, words: str, said: str) -> None:
    done = Command(monkeypatch, no_spark)(*words.split())
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"reput: {said}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 1), 1), ((3, 1), 3), ((3, 5, 0), 5), ((5, 4, 3), 4), ((4, 2, 5), 2), ((0,), 0)]
)
def test_the_worst_is_what_an_operator_has_most_to_do_with(codes: tuple[int, ...], code: int) -> None:
    assert worst(codes) == code


def test_a_host_needs_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    reput = Command(monkeypatch, no_spark)
    for command in (("check",), ("rebuild", "--out-root", "/out")):
        done = reput(*command, "node-2:/store", "--master", "local[2]", "--json")
        assert done.code == 2
        assert json.loads(done.stdout)["error"] == "a store on a host needs a Spark executor there"
    assert reput("check", "node-2:store").code == 2


@pytest.mark.parametrize("code", range(6))
def test_what_comes_from_hosts(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is that of the worst, and each store's facts are those of its host."""
    settings = StoreSettings.load(golden("5.3.3-tiny", tmp_path).root, None, None)
    compared = Report(start=0, end=9, broker_running=False, messages=1234)
    facts = Diagnosis(settings, [], report=compared).to_dict()
    error = StoreError("no log", path="/s/commitlog", next_step="Mount it").document()
    ran: list[tuple[str, ...]] = []

    class Hosts:
        def __init__(self, _context: object) -> None: ...

        def run(self, host: str, function: Callable[[int], RemoteCommand]) -> Ended:
            made = function(4)
            ran.append((host, *made.words))
            document = error if host == "b" and code == 2 else facts
            found = code if host == "b" else 0
            whole = {"command": "check", "schema_version": 2, **document, "exit_code": found}
            return Ended(found, json.dumps(whole), ())

    monkeypatch.setattr("reput.spark.on_host.HostRunner", Hosts)
    reput = Command(monkeypatch, lambda: cast("SparkSession", SimpleNamespace(sparkContext=None)))
    words = ("check", "a:/s", "B:/s", "--master", "spark://m:1", "-c", "/{host}/conf", "--no-index")
    done = reput(*words, "--json")
    assert done.code == code, done.stderr
    first, second = json.loads(done.stdout)["stores"]
    assert (first["host"], first["messages"], first["exit_code"]) == ("a", 1234, 0)
    assert (second["host"], second["store"], second["exit_code"]) == ("b", "/s", code)
    assert second.get("message") == (None if code != 2 else "on host b: /s/commitlog: no log. Mount it")
    assert ran == [
        (
            host,
            "check",
            "/s",
            "--broker-conf",
            f"/{host}/conf",
            *("--no-index", "--master", "local[4]", "--json"),
        )
        for host in "ab"
    ]
    rows = reput(*words).stdout.splitlines()[2:4]
    assert [(row.split()[0], row.split()[-1]) for row in rows] == [("0", "a:/s"), (str(code), "b:/s")]


@pytest.mark.parametrize(
    ("stores", "outputs"),
    [
        (["/b/a/store", "/b/c/store"], ["/out/a/store", "/out/c/store"]),
        (["/b/1", "/b/2", "/b/x/3"], ["/out/1", "/out/2", "/out/x/3"]),
        (["/b/a/store/"], ["/out/store"]),
        (["/b/a/../c"], ["/out/c"]),
        (["h:/b/a/store", "h:/b/c/store", "i:/b/c/store"], ["/out/a/store", "/out/c/store", "/out/store"]),
    ],
)
def test_outputs_lie_as_the_stores_do(stores: list[str], outputs: list[str]) -> None:
    common = RebuildOptions(store=Path(), broker_conf=Path("{store}/conf"), rocketmq_version="5.3")
    found = [one.options for one in plan_rebuilds(list(map(StoreEntry.parse, stores)), Path("/out"), common)]
    assert [one.out for one in found if isinstance(one, RebuildOptions)] == list(map(Path, outputs))
    assert [one.broker_conf for one in found] == [one.store / "conf" for one in found]
    assert {one.rocketmq_version for one in found} == {"5.3"}


def test_what_is_on_a_host_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where a link leads, or whether something is there."""
    (tmp_path / "link").symlink_to("/elsewhere")
    for name in ("stat", "lstat", "readlink", "listdir", "scandir", "getcwd"):
        monkeypatch.setattr(os, name, None)
    places = [StoreEntry.parse(f"h:{tmp_path}/link/../store"), StoreEntry.parse("i:/s")]
    common = RebuildOptions(store=Path(), broker_conf=Path("/c/{host}.conf"))
    jobs = plan_rebuilds(places, Path("/out/{host}"), common)
    assert [(one.options.store, one.options.broker_conf) for one in jobs] == [
        (tmp_path / "store", Path("/c/h.conf")),
        (Path("/s"), Path("/c/i.conf")),
    ]
    assert [one.options.out for one in jobs if isinstance(one.options, RebuildOptions)] == [
        Path("/out/h/store"),
        Path("/out/i/s"),
    ]


@pytest.mark.parametrize(
    ("stores", "problem"),
    [
        (["/a/b", "/c", "/a/b/"], "a store is named twice"),
        (["/a/b/c", "/d", "/a/b"], "is inside another one"),
        (["h:/a", "H:/a/"], "a store is named twice"),
    ],
)
def test_stores_in_each_other_are_refused(stores: list[str], problem: str) -> None:
    places = list(map(StoreEntry.parse, stores))
    with pytest.raises(SettingsError, match=problem):
        plan_rebuilds(places, Path("/out"), RebuildOptions(store=Path()))
    with pytest.raises(SettingsError, match=problem):
        plan_checks(places, VerifyOptions(Path()))


def test_one_path_on_two_hosts_is_two_stores() -> None:
    entries = [StoreEntry.parse(one) for one in ("h:/a", "i:/a", "/a")]
    found = plan_checks(entries, VerifyOptions(Path()))
    assert [one.place for one in found] == [one.place for one in entries]


def test_a_name_between_a_store_and_one_in_it_hides_nothing() -> None:
    places = [StoreEntry(Place(Path(one))) for one in ("/a/b", "/a/b-c", "/a/b/c")]
    with pytest.raises(SettingsError, match="is inside another one"):
        plan_checks(places, VerifyOptions(Path()))


@pytest.mark.parametrize(
    ("store", "out", "conf", "problem"),
    [
        ("h:/a", "out", None, "--out-root is a path on h"),
        ("h:/a", "/out", "broker.conf", "--broker-conf is a path on h"),
        ("/a", "/out/{host}", None, "{host} in --out-root stands for a store's host"),
        ("/a", "/out", "/{host}.conf", "{host} in --broker-conf stands for a store's host"),
    ],
)
def test_paths_that_mean_nothing_there(store: str, out: str, conf: str | None, problem: str) -> None:
    common = RebuildOptions(store=Path(), broker_conf=None if conf is None else Path(conf))
    with pytest.raises(SettingsError, match=re.escape(problem)):
        plan_rebuilds([StoreEntry.parse(store)], Path(out), common)


def jobs_of(*stores: str) -> list[Job]:
    return [Job(place, VerifyOptions(place.path)) for place in map(Place.parse, stores)]


@pytest.mark.parametrize("at_once", [1, 2])
def test_nothing_that_ends_a_thread_hangs_the_run(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(job: Job, *_: object) -> Result:
        raise {"exit": SystemExit(3), "end": GeneratorExit, "stop": KeyboardInterrupt}[job.place.path.name]

    jobs = jobs_of("exit", "end", "stop")
    found = run_many(jobs, work, at_once)
    assert [one.exit_code for one in found] == [2] * 3
    assert [str(one.to_dict()["found"]).split(" (")[0] for one in found] == [
        "SystemExit: 3",
        "GeneratorExit",
        "KeyboardInterrupt",
    ]

    told: list[Place] = []
    monkeypatch.setattr(many, "_done", work)  # what nothing in the thread catches
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    found = run_many(jobs, work, at_once, lambda outcome: told.append(outcome.job.place))
    assert [one.exit_code for one in found] == [2] * 3
    assert "its thread ended without a result" in str(found[0].to_dict()["message"])
    assert told == [one.place for one in jobs]


def test_as_many_at_once_as_asked_for_and_in_the_order_given() -> None:
    both = threading.Barrier(2, timeout=60)
    begun: list[Place] = []

    def work(job: Job) -> Result:
        begun.append(job.place)
        if job.place.path.name != "3":
            both.wait()  # passes only when two are under way
        raise StoreError("no good", path=job.place.path) if job.place.path.name != "2" else KeyError("bug")

    jobs = jobs_of("/0", "/1", "/2", "/x", "/3")
    told: list[Place] = []
    found = run_many(jobs, work, 2, lambda outcome: told.append(outcome.job.place))
    assert [one.job for one in found] == jobs
    assert set(told) == set(begun) == {one.place for one in jobs}
    assert [one.exit_code for one in found] == [2] * 5
    errors = [str(one.to_dict()["message"]) for one in found]
    assert "no good" in errors[0]
    assert "reput failed in a way that it doesn't foresee" in errors[2]
    assert "KeyError: 'bug'" in errors[2]


def test_on_a_host_one_at_a_time_while_others_go_ahead() -> None:
    both = threading.Barrier(2, timeout=60)
    lock, under_way, begun = threading.Lock(), set[str | None](), list[str]()

    def work(job: Job) -> Result:
        with lock:
            assert job.place.host not in under_way
            under_way.add(job.place.host)
            begun.append(str(job.place))
        if job.place.path == Path("/1"):
            both.wait()  # passes only when both hosts' first ones are under way
        with lock:
            under_way.remove(job.place.host)
        raise StoreError("no good")

    run_many(jobs_of("a:/1", "a:/2", "a:/3", "b:/1"), work, 4)
    assert set(begun[:2]) == {"a:/1", "b:/1"}
    assert begun[2:] == ["a:/2", "a:/3"]


def test_what_threads_share_is_made_once() -> None:
    made: list[int] = []
    once = Once(lambda: made.append(1) or len(made))
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: once(), range(8))) == {1}
    assert made == [1]
