"""``reput report``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.report.page import is_report
from tests.rebuilds import Command, broker_conf, broker_lock, golden, overwrite, record_starts, tree
from tests.report.made import Elements, hostile_store
from tests.stores import LogWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_page_about_a_sound_store(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    before = tree(store.root)
    page = tmp_path / "report.html"
    done = reput(
        "report", store.root, "-o", page, "--broker-conf", broker_conf(store), "--rocketmq-version", "5.3.3"
    )
    assert done.code == 0
    assert done.stdout.startswith(f"{store.root}: start it: nothing is wrong for RocketMQ 5.3.3\n")
    assert "  next " not in done.stdout
    assert f"Wrote {page}: " in done.stdout
    assert "reading the commit log" in done.stderr
    assert is_report(page)
    assert str(store.root) in "".join(Elements(page.read_bytes()).texts["span"])
    assert tree(store.root) == before
    again = reput("report", store.root, "-o", page, "--broker-conf", broker_conf(store))
    assert again.code == 0


def test_damage_and_json(reput: Command, tmp_path: Path) -> None:
    store = golden("4.9.7-mixed", tmp_path)
    size = int(str(store.config["mappedFileSizeCommitLog"]))
    overwrite(store.root, size, record_starts(store.root, size)[5], b"\xff" * 30)
    words = ["report", store.root, "--broker-conf", broker_conf(store), "--rocketmq-version", "4.9.7"]
    done = reput(*words, "--json")
    assert done.code == 3
    facts = json.loads(done.stdout)
    assert (facts["exit_code"], facts["schema_version"], facts["verdict"]) == (3, 2, "mend")
    assert "bad-magic" in [one["kind"] for one in facts["findings"]]
    check = json.loads(reput("check", *words[1:], "--json").stdout)
    for key in ("exit_code", "verdict", "summary", "findings", "notes", "next_steps", "starting"):
        assert facts[key] == check[key]
    assert any(one["kind"] == "corrupt" for one in facts["log"]["stretches"])
    page = tmp_path / "report.html"
    done = reput(*words, "--out", page, "--lang", "zh", "--json")
    assert done.code == 3
    timed = {"made_ms": 0, "seconds": 0}
    assert {**json.loads(done.stdout), **timed} == {**facts, **timed}, "JSON is never translated"
    shown = Elements(page.read_bytes())
    assert "bad-magic" in shown.texts["code"]
    assert any(text.startswith("先修复: ") for text in shown.texts["span"])


def test_a_live_store_where_people_read_chinese(
    reput: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    store = golden("5.5.0-crash", tmp_path)
    page = tmp_path / "report.html"
    with broker_lock(store.root):
        done = reput(
            "report",
            store.root,
            "-o",
            page,
            "--broker-conf",
            broker_conf(store),
            "--rocketmq-version",
            "5.5.0",
        )
    assert done.code == 0
    text = page.read_text(encoding="utf-8")
    assert re.search("进程 [0-9]+.* 正在使用它", text)
    assert ": let it run: " in done.stdout, "what is printed is English, as of all commands"


def test_a_store_without_broker_conf_or_config(reput: Command, tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "store", 1000)
    log.preallocate(0)
    done = reput("report", tmp_path / "store", "-o", tmp_path / "report.html")
    assert done.code == 0
    assert "without a broker.conf" in (tmp_path / "report.html").read_text()


def test_an_empty_store(reput: Command, tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    done = reput("report", tmp_path / "store", "-o", tmp_path / "report.html")
    assert done.code == reput("check", tmp_path / "store").code
    assert "the commit log is empty" in done.stdout
    assert (tmp_path / "report.html").exists()


def test_hostile_names_steer_no_terminal(reput: Command, tmp_path: Path) -> None:
    words = ("-o", tmp_path / "report.html", "--rocketmq-version", "5.5.0")
    done = reput("report", hostile_store(tmp_path / "store"), *words)
    assert done.code == 3
    assert "\x1b" not in done.stdout
    assert "\x00" not in done.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "where the page goes is not clear"),
        (["-o", "store/report.html"], "a report isn't written into the store"),
        (["-o", "other.txt"], "there is a file already, and it is no report"),
        (["-o", "gone/report.html"], "the directory isn't there"),
    ],
)
def test_refusals(
    reput: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    LogWriter(tmp_path / "store", 1000).preallocate(0)
    (tmp_path / "other.txt").write_text("mine")
    before = tree(tmp_path)
    done = reput("report", "store", *words)
    assert done.code == 2
    assert problem in done.stderr
    assert tree(tmp_path) == before


def test_no_store(reput: Command, tmp_path: Path) -> None:
    done = reput("report", tmp_path / "nothing", "-o", tmp_path / "report.html")
    assert (done.code, list(tmp_path.iterdir())) == (2, [])


@pytest.mark.spark
def test_on_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark: SparkSession) -> None:
    store = golden("5.3.3-tiny", tmp_path)
    command = Command(monkeypatch, lambda: spark)
    file = next(path for path in sorted((store.root / "consumequeue").rglob("*")) if path.is_file())
    with file.open("r+b") as data:
        data.seek(16)
        data.write(b"\x55")
    page = tmp_path / "report.html"
    words = ("--broker-conf", broker_conf(store), "--rocketmq-version", "5.3.3")
    done = command("report", store.root, "-o", page, "--master", "local[2]", *words)
    assert (done.code, command.sessions) == (3, 1)
    text = page.read_text()
    assert "tags" in text
    assert "mend" in text
