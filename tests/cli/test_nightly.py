"""``reput check --history``: a fleet night by night, with real stores and a real Delta table."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from reput.cli.many import command, result
from reput.diagnosis.nightly import Again
from reput.format import names
from reput.job.history import History
from reput.job.many import Job, Place
from reput.verify import proofs
from reput.verify.plan import VerifyOptions
from tests.golden.store import GoldenStore
from tests.levels import tried
from tests.rebuilds import Command, environment, golden, run, start, without_root_powers

NAMES = ("5.3.3-mixed", "5.5.0-restart", "4.9.7-mixed")


def fleet(directory: Path) -> tuple[list[GoldenStore], Path]:
    stores = [golden(name, directory / name) for name in NAMES]
    text = 'cluster = "north"\nbroker_conf = "{store}/../broker.conf"\n'
    for number, store in enumerate(stores):
        text += f'[[store]]\nplace = "{store.root.relative_to(directory)}"\nbroker = "broker-{number}"\n'
        text += f'rocketmq_version = "{store.version}"\n'
    (directory / "stores.toml").write_text(text)
    return stores, directory / "stores.toml"


def rows(history: Path) -> list[dict[str, Any]]:
    table = DeltaTable(str(history / "runs")).to_pyarrow_table()
    return sorted(table.to_pylist(), key=lambda row: row["time"])


def a_day_later(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Files that were written just now are old, in processes that are begun here, too."""
    monkeypatch.setattr(proofs, "RACY_NS", -(10**18))
    directory.mkdir()
    (directory / "sitecustomize.py").write_text("from reput.verify import proofs; proofs.RACY_NS = -(10**18)")
    monkeypatch.setenv("PYTHONPATH", f"{directory}:{environment()['PYTHONPATH']}")


@pytest.mark.proof
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("master", tried([], more=[["--master", "local[2]"]]))
def test_night_by_night(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: list[str]
) -> None:
    a_day_later(monkeypatch, tmp_path / "later")
    reput = Command(monkeypatch, lambda: request.getfixturevalue("spark"))
    stores, listed = fleet(tmp_path)
    history, page = tmp_path / "history", tmp_path / "fleet.html"
    words = ["check", listed, "--history", history, "--out", page, "--at-once", "2", *master]

    first = reput(*words)
    assert first.code == 0, first.stderr
    assert "0 bytes of log as it was" in first.stdout
    assert len(rows(history)) == 3

    second = reput(*words, "--json")
    assert second.code == 0, second.stderr
    told = json.loads(second.stdout)
    read = [one["remembered"] for one in told["stores"]]
    assert all(one["segments"] - one["segments_skipped"] == 1 for one in read)
    assert all(one["bytes_read"] == 65536 for one in read)
    last = rows(history)[3:]
    assert {row["run"] for row in last} == {told["run"]}
    assert {(row["cluster"], row["growth"], row["verdict"]) for row in last} == {("north", 0, "start")}
    assert sum(row["bytes_skipped"] for row in last) == sum(one["bytes_skipped"] for one in read) > 0
    text = page.read_text()
    assert "3 stores: nothing is wrong." in text
    assert "broker-1, north" in text
    assert text.count('class="trend"') == 3
    assert "http" not in text.replace("http-equiv", "")

    # A bit of a queue turns, and a store isn't mounted.
    harmed, _, gone = (store.root for store in stores)
    queue = min((harmed / names.CONSUME_QUEUE).rglob("0" * 20))
    data = bytearray(queue.read_bytes())
    data[7] ^= 1
    queue.write_bytes(data)
    gone.rename(gone.with_name("away"))
    third = reput(*words)
    assert third.code == 2
    assert f"failed     {gone}: there is no store here" in third.stdout
    found = {row["place"]: row for row in rows(history)[6:]}
    assert [found[str(one.root)]["exit_code"] for one in stores] == [3, 0, 2]
    (finding,) = found[str(harmed)]["finding_list"]
    assert (finding["kind"], finding["path"]) == ("wrong-unit", str(queue))
    assert "Check the STORE argument" in page.read_text()
    assert "3 stores: 1 not checked, 1 to be mended." in page.read_text()

    # The next night tells it again, as seen before; the store that came back isn't read again.
    gone.with_name("away").rename(gone)
    fourth = reput(*words)
    assert fourth.code == 3
    found = {row["place"]: row for row in rows(history)[9:]}
    assert found[str(harmed)]["finding_list"] == [finding]
    assert found[str(gone)]["segments_skipped"] == read[2]["segments_skipped"]
    assert found[str(harmed)]["segments_skipped"] == read[0]["segments_skipped"]

    # Mended, it is gone.
    data[7] ^= 1
    queue.write_bytes(data)
    assert reput(*words, "--digest").code == 0
    quiet = reput("-q", *words, "--all")
    assert (quiet.code, quiet.stderr) == (0, "")
    assert {row["segments_skipped"] for row in rows(history)[15:]} == {0}

    # Killed when all was done but its end: nothing is checked, and the same is said.
    monkeypatch.setattr(History, "end", lambda _: None)
    before = reput(*words)
    known, sessions = rows(history), reput.sessions
    again = reput(*words)
    assert (again.code, before.code) == (0, 0), again.stderr
    assert "3 stores had their rows already" in again.stdout
    assert (rows(history), reput.sessions) == (known, sessions)
    assert "3 stores: nothing is wrong." in page.read_text()

    # One store alone, with its own file.
    alone = [
        *("check", harmed, "--broker-conf", harmed.parent / "broker.conf"),
        *("--rocketmq-version", "5.3.3", "--proofs", tmp_path / "proofs", "--json"),
    ]
    for skipped in (0, 7):
        done = reput(*alone)
        assert done.code == 0, done.stderr
        assert json.loads(done.stdout)["remembered"]["segments_skipped"] == skipped
    assert reput(*alone, "--queue", "Orders").code == 2
    other = reput("check", stores[1].root, *alone[2:])
    assert other.code == 2
    assert str(harmed) in other.stderr.replace("\n", "")
    assert str(stores[1].root) in other.stderr.replace("\n", "")


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    stores, listed = fleet(tmp_path)
    history = tmp_path / "history"
    words = ["check", listed, "--history", history]
    (tmp_path / "tmp").mkdir()
    process = start(*words, env=environment(TMPDIR=str(tmp_path / "tmp")))
    log = history / "runs" / "_delta_log"
    deadline = time.monotonic() + 150
    while not (log / f"{0:020d}.json").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = [row["place"] for row in rows(history)]
    assert 1 <= len(before) < 3
    done = run(*words, "--json")
    assert done.code == 0, done.stderr
    assert f"goes on: {3 - len(before)} store" in done.stderr
    told = json.loads(done.stdout)
    assert [bool(one.get("resumed")) for one in told["stores"]] == [
        str(store.root) in before for store in stores
    ]
    found = rows(history)
    assert [(row["run"], row["place"]) for row in found] == [
        (told["run"], str(store.root)) for store in stores
    ]


@pytest.mark.proof
@pytest.mark.spark
@pytest.mark.slow
def test_what_a_task_on_a_host_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs go there and come back; what it says is what the driver makes a row of."""
    monkeypatch.setenv("PYTHONPATH", str(environment()["PYTHONPATH"]))
    store = golden("5.3.3-restart", tmp_path)
    options = VerifyOptions(store.root, broker_conf=store.root.parent / "broker.conf")
    job = Job(Place(store.root, "broker-a"), replace(options, rocketmq_version="5.3.3"))
    left: proofs.Proofs | None = None
    for skipped in (0, 2):
        ended = command(job, 2, Again(left))()
        document = result(job, ended)
        assert document.exit_code == 0
        assert document.facts["remembered"]["segments_skipped"] == skipped  # type: ignore[index]
        assert ended.kept is not None
        left = proofs.Proofs.decode(ended.kept, store.root)
    anew = result(job, command(job, 2, Again(left, everything=True))())
    assert anew.facts["remembered"]["segments_skipped"] == 0  # type: ignore[index]


def test_what_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    stores, listed = fleet(tmp_path)
    history = tmp_path / "history"
    history.mkdir()
    history.chmod(0o555)
    done = run("check", listed, "--history", history, env=environment(), preexec_fn=without_root_powers)
    assert done.code == 2
    assert str(history) in done.stderr
    assert "Permission denied" in done.stderr
    assert not list(history.iterdir())
    inside = run("check", listed, "--history", stores[0].root / "history")
    assert inside.code == 2
    assert "a history isn't written into the store" in inside.stderr
    page = run("check", listed, "-o", stores[0].root / "page.html")
    assert "a report isn't written into the store" in page.stderr
    without = run("check", listed, "--all")
    assert without.code == 2
    assert "--history DIR" in without.stderr
