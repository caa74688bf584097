"""What is refused: before Spark is started, with exit code 2, a message that helps, and nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from reput.format import names
from reput.store import system
from reput.store.lock import OutputLock
from tests.golden.store import GoldenStore
from tests.rebuilds import (
    Command,
    Outcome,
    broker_conf,
    broker_lock,
    environment,
    golden,
    run,
    tree,
    without_root_powers,
    words,
)


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-no-keys", tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def assert_refused(outcome: Outcome, *said: str) -> None:
    assert outcome.code == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("reput: ")
    assert outcome.stderr.count("\n") == 1, "one line, no stack trace"
    for text in said:
        assert text in outcome.stderr


@pytest.mark.parametrize("where", [[], ["--out", "x", "--in-place"]])
def test_either_out_or_in_place(reput: Command, store: GoldenStore, where: list[str]) -> None:
    assert_refused(
        reput(*words(store, *where)), "either --out DIR or --in-place", "both" if where else "neither"
    )


def test_no_store(reput: Command, tmp_path: Path, out: Path) -> None:
    assert_refused(reput("rebuild", tmp_path / "gone", "--out", out), str(tmp_path / "gone"), "found nothing")
    (tmp_path / "file").touch()
    assert_refused(reput("rebuild", tmp_path / "file", "--out", out), "found a file")
    assert_refused(reput("rebuild", tmp_path / "file" / "x", "--out", out), "found nothing")
    assert not out.exists()


def test_no_log(reput: Command, tmp_path: Path, out: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    assert_refused(reput("rebuild", store, "--out", out), "commitlog", "No such file or directory", "STORE")
    (store / names.COMMIT_LOG).mkdir()
    assert_refused(
        reput("rebuild", store, "--out", out), "the commit log is empty", "segments named by 20 digits"
    )
    assert not out.exists()


def test_output_not_empty(reput: Command, store: GoldenStore, out: Path) -> None:
    out.mkdir()
    (out / "holiday.jpg").touch()
    assert_refused(reput(*words(store, "--out", out)), "not empty", "holiday.jpg", "another directory")
    assert [path.name for path in out.iterdir()] == ["holiday.jpg"]


def test_output_is_a_file_or_below_one(reput: Command, store: GoldenStore, out: Path) -> None:
    out.write_text("mine")
    assert_refused(reput(*words(store, "--out", out)), str(out))
    assert_refused(reput(*words(store, "--out", out / "x" / "y")), "there is a file", f"found {out}.")
    assert out.read_text() == "mine"


@pytest.mark.parametrize("place", [".", "commitlog", "commitlog/out", "consumequeue/out", "index"])
def test_output_inside_the_store(reput: Command, store: GoldenStore, place: str) -> None:
    before = tree(store.root)
    outcome = reput(*words(store, "--out", store.root / place))
    assert_refused(outcome, "--in-place" if place == "." else "Choose a directory elsewhere")
    assert tree(store.root) == before


def test_output_inside_the_store_by_a_link(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store.root)
    assert_refused(reput(*words(store, "--out", tmp_path / "link")), "--in-place")
    assert_refused(
        reput(*words(store, "--out", tmp_path / "link" / "commitlog" / "out")), "isn't written into the store"
    )


def test_a_link_in_the_output(reput: Command, store: GoldenStore, out: Path, tmp_path: Path) -> None:
    """Refused before Spark, whether or not there is something to take back."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "0").mkdir(parents=True)
    (elsewhere / "0" / f"{0:020d}").write_bytes(b"mine")
    (out / names.REPUT).mkdir(parents=True)
    (out / names.CONSUME_QUEUE).mkdir()
    link = out / names.CONSUME_QUEUE / "Linked"
    link.symlink_to(elsewhere)
    before, untouched = tree(elsewhere), tree(out)
    said = (f"reput: {link}: a symbolic link is in the way", f"found a link to {elsewhere}")
    assert_refused(reput(*words(store, "--out", out)), *said)
    assert tree(out) == untouched
    link.unlink()
    (out / names.REPUT).rmdir()
    (out / names.REPUT).symlink_to(elsewhere)
    assert_refused(reput(*words(store, "--out", out)), f"{out / names.REPUT}: a symbolic link is in the way")
    assert_refused(reput("tail", "--stop", out), f"{out / names.REPUT}: a symbolic link is in the way")
    assert tree(elsewhere) == before


@pytest.mark.parametrize("name", [names.CONSUME_QUEUE, names.INDEX, names.REPUT])
def test_a_link_in_a_store_that_is_rebuilt_in_place(
    reput: Command, store: GoldenStore, tmp_path: Path, name: str
) -> None:
    """Its queues may be on another disk: they can't be exchanged with new ones there."""
    elsewhere = tmp_path / "other disk"
    path = store.root / name
    if path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.mkdir()
    (elsewhere / "staging").mkdir()
    (elsewhere / "staging" / "mine").touch()
    path.symlink_to(elsewhere)
    before = tree(tmp_path, names.LOCK)
    said = "a symbolic link is in the way" if name == names.REPUT else "a symbolic link can't be swapped"
    outcome = reput(*words(store, "--in-place"))
    assert_refused(
        outcome, f"{path}: {said}", f"found a link to {elsewhere}", "--out" if name != names.REPUT else ""
    )
    assert tree(tmp_path, names.LOCK) == before


def test_a_path_that_is_not_utf8(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    """py4j can't take it to the JVM. Every other path will do: tests/spark/test_rebuild.py has an odd one."""
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    assert_refused(reput(*words(store, "--out", odd / "out")), "since it is not UTF-8", "choose another one")
    assert not odd.exists()
    conf = store.root.parent / "broker.conf"
    store.root.rename(odd)
    for where in (["--in-place"], ["--out", tmp_path / "out"]):
        outcome = reput("rebuild", odd, "--broker-conf", conf, "--rocketmq-version", store.version, *where)
        assert_refused(outcome, "since it is not UTF-8")


@pytest.mark.slow
def test_output_that_cannot_be_written(store: GoldenStore, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    try:
        outcome = run(*words(store, "--out", closed / "out"), preexec_fn=without_root_powers)
    finally:
        closed.chmod(0o755)
    assert_refused(outcome, str(closed), "Permission denied", "mode 0555", "run the same command again")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mappedFileSizeConsumeQueue=6m", "a whole number"),
        ("maxHashSlotNum=0", "out of range"),
        ("messageDelayLevel=1s 5x", "'5x'"),
        ("messageIndexEnable=yes", "true or false"),
        ("mappedFileSizeCommitLog=1024", "mappedFileSizeCommitLog"),
    ],
)
def test_broker_conf(reput: Command, store: GoldenStore, out: Path, line: str, said: str) -> None:
    with broker_conf(store).open("a") as file:
        file.write(line + "\n")
    assert_refused(reput(*words(store, "--out", out)), said, line.partition("=")[0])
    assert not out.exists()


def test_broker_conf_missing(reput: Command, store: GoldenStore, out: Path) -> None:
    broker_conf(store).unlink()
    assert_refused(reput(*words(store, "--out", out)), str(broker_conf(store)), "No such file")


def test_unknown_version(reput: Command, store: GoldenStore, out: Path) -> None:
    assert_refused(reput("rebuild", store.root, "--out", out, "--rocketmq-version", "3.2"), "3.2", "4.9")


@pytest.mark.parametrize("queue", ["", ":3", "orders:", "orders:x", "orders:-1", "orders:3.0"])
def test_queue_syntax(reput: Command, store: GoldenStore, out: Path, queue: str) -> None:
    assert_refused(reput(*words(store, "--out", out, "--queue", queue)), "TOPIC or TOPIC:ID, e.g. orders:3")


@pytest.mark.parametrize("size", ["", "0", "4x", "g", "-1", "1.5g"])
def test_size_syntax(reput: Command, store: GoldenStore, out: Path, size: str) -> None:
    assert_refused(
        reput(*words(store, "--out", out, "--max-bytes-per-trigger", size)), "--max-bytes-per-trigger"
    )


def test_known_topics_only_without_topics(reput: Command, store: GoldenStore, out: Path) -> None:
    assert_refused(reput(*words(store, "--out", out, "--known-topics-only")), "topics.json", "no such file")


def test_batch_queue(reput: Command, store: GoldenStore, out: Path) -> None:
    config = store.root / names.CONFIG / "topics.json"
    config.parent.mkdir()
    config.write_text('{"topicConfigTable": {"Batches": {"attributes": {"queue.type": "BatchCQ"}}}}')
    with broker_conf(store).open("a") as file:
        file.write("mapperFileSizeBatchConsumeQueue=100\n")
    outcome = reput(*words(store, "--out", out))
    assert_refused(outcome, "mapperFileSizeBatchConsumeQueue=100", "multiple of 46")


def test_running_broker(reput: Command, store: GoldenStore) -> None:
    before = tree(store.root)
    with broker_lock(store.root) as pid:
        outcome = reput(*words(store, "--in-place"))
    assert_refused(outcome, "in use", f"process {pid}", "Stop the broker")
    assert tree(store.root) == before


def test_starting_broker(reput: Command, store: GoldenStore) -> None:
    """It has opened its lock file, and is changing the store before it locks it."""
    script = "import sys; file = open(sys.argv[1], 'r+b'); print('open', flush=True); sys.stdin.read()"
    (store.root / names.LOCK).touch()
    broker = subprocess.Popen(
        ["python3", "-c", script, store.root / names.LOCK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline() == "open\n"
        assert_refused(reput(*words(store, "--in-place")), "in use", f"process {broker.pid}")
    finally:
        broker.communicate()


def test_another_reput(reput: Command, store: GoldenStore, out: Path) -> None:
    with OutputLock(out):
        assert_refused(
            reput(*words(store, "--out", out)), "another reput writes here", f"process {os.getpid()}"
        )


@pytest.mark.parametrize("in_place", [True, False])
def test_no_room(
    reput: Command, store: GoldenStore, out: Path, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(store.root)
    monkeypatch.setattr(system, "free_bytes", lambda _path: 1 << 20)
    outcome = reput(*words(store, *(["--in-place"] if in_place else ["--out", out])))
    assert_refused(outcome, "no room for the rebuild", "found 1.0 MiB free", "Free ")
    assert tree(store.root) == before
    assert not out.exists()


def test_as_json(reput: Command, tmp_path: Path) -> None:
    outcome = reput("rebuild", tmp_path / "gone", "--out", tmp_path / "out", "--json")
    assert outcome.code == 2
    told = json.loads(outcome.stdout)
    assert told["exit_code"] == 2
    assert told["path"] == str(tmp_path / "gone")
    assert told["expected"] == "a directory with commitlog/"
    assert "there is no store here" in outcome.stderr


def test_what_is_not_foreseen_is_no_result(
    reput: Command, store: GoldenStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 says that the work was done."""

    def bug(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("reput.job.rebuild", bug)
    outcome = reput(*words(store, "--out", out, "--json"))
    assert outcome.code == 2
    assert json.loads(outcome.stdout)["found"].startswith("ZeroDivisionError: a bug (")
    assert outcome.stderr.count("\n") == 1
    monkeypatch.setenv("REPUT_TRACEBACK", "1")
    assert "Traceback" in reput(*words(store, "--out", out)).stderr


@pytest.mark.parametrize("arguments", [["rebuild"], ["rebuild", "x", "--bogus"], ["bogus"]])
def test_wrong_usage(reput: Command, arguments: list[str]) -> None:
    outcome = reput(*arguments)
    assert outcome.code == 2
    assert outcome.stdout == ""
    assert "Usage" in outcome.stderr


@pytest.mark.parametrize(
    ("java", "said"),
    [
        (None, "no java on PATH, and no JAVA_HOME"),
        ("gone", "no bin/java in JAVA_HOME"),
        ('echo openjdk version \\"11.0.2\\" 2019-01-15 >&2', "Java 11"),
        ('echo java version \\"1.8.0_201\\" >&2', "Java 8"),
        ("echo nothing", "of unknown version"),
    ],
)
def test_java(store: GoldenStore, tmp_path: Path, out: Path, java: str | None, said: str) -> None:
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    if java not in (None, "gone"):
        program = home / "bin" / "java"
        program.write_text(f"#!/bin/sh\n{java}\n")
        program.chmod(0o755)
    env = environment(PATH=str(tmp_path), JAVA_HOME=None if java is None else str(home))
    outcome = run(*words(store, "--out", out), env=env)
    assert_refused(outcome, said, "Java 17 or later", "JAVA_HOME")
    assert not out.exists()
