"""spark-submit against a real master and workers: bytes, exit codes, settings, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from reput.caches import kernels_can_be_cached
from reput.errors import SparkError, StoreError
from reput.format import names
from reput.output.journal import read_state
from reput.replay.state import State
from reput.store.compare import compare
from tests.cluster import Cluster
from tests.cluster.standalone import Submitted
from tests.cluster.trial import JOB, default_store, open_store
from tests.compat import story
from tests.golden.store import GoldenStore, unpack
from tests.live import live_store

pytestmark = pytest.mark.spark

LIB = Path(__file__).parents[2] / "lib"
ARCHIVE = Path(__file__).parents[1] / "golden" / "5.3.3-mixed" / "store.tar.xz"

#: jobs/tail.py, with each batch done as one of a backlog: by tasks on the executors.
LARGE = """
import sys
from reput.cli import main
from reput.output import writer

writer._INLINE_BYTES = 0
main(["tail", *sys.argv[1:]])
"""

#: One application, since each costs three JVMs: scripts of jobs/ one after the other, a look at its executors
#: and a rebuild, whose exit code is its own.
APPLICATION = """
import contextlib, io, json, os, runpy, sys, time
from pathlib import Path
from reput.spark.runner import SparkRunner
from reput.spark.sessions import session

def look(_):
    time.sleep(0.3)  # so that no executor does it all
    return {
        "daemon": sys.modules["__main__"].__spec__.name,
        "kernels": "reput.scan.kernel" in sys.modules,
        "directory": os.getcwd(),
    }

asked = json.loads(Path(sys.argv[1]).read_text())
told, began = {}, time.time()
for name, (job, words) in asked["jobs"].items():
    began, said = time.time(), io.StringIO()
    sys.argv = [job, *words]
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(job, run_name="__main__")
    except SystemExit as ended:
        told[name] = {"code": ended.code, "json": said.getvalue(), "seconds": [began, time.time()]}
spark = session("probe")
runner = SparkRunner(spark.sparkContext)
told["probe"] = {
    "seen": runner.map(look, list(range(4))),
    "slots": runner.slots,
    "is_local": runner.is_local,
    "conf": {key: value for key, value in spark.sparkContext.getConf().getAll() if "secret" not in key},
}
Path(asked["told"]).write_text(json.dumps(told))
job, words = asked["last"]
sys.argv = [job, *words]
runpy.run_path(job, run_name="__main__")
"""


def processes_under(directory: Path) -> list[psutil.Process]:
    """Spark's and RocketMQ's processes with files below ``directory``, whoever their parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            conf, line = process.environ().get("SPARK_CONF_DIR", ""), process.cmdline()
            if Path(conf).is_relative_to(directory) or f"-Duser.home={directory}/" in " ".join(line):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def running_under(directory: Path) -> list[str]:
    """What they were started with."""
    found = []
    for process in processes_under(directory):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
    return found


def addresses(directory: Path) -> set[str]:
    """Where they listen."""
    found = set()
    for process in processes_under(directory):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            listening = (one for one in process.net_connections() if one.status == psutil.CONN_LISTEN)
            found |= {one.laddr.ip.removeprefix("::ffff:") for one in listening}
    return found


def assert_nothing_runs(directory: Path) -> None:
    deadline = time.monotonic() + 60
    while (left := running_under(directory)) and time.monotonic() < deadline:
        time.sleep(0.1)  # a Python daemon ends when it sees that its executor did
    assert left == []


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(work: Path) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(LIB))
        # Another session of this test run, or the shell, may have left words about other clusters.
        patch.setenv("SPARK_HOME", "/nowhere")
        patch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[7] pyspark-shell")
        patch.setenv("HADOOP_CONF_DIR", "/nowhere")
        with Cluster(work) as running:
            pids = running.pids
            assert list(pids) == ["master", "worker-1", "worker-2"]
            yield running
        assert not any(psutil.pid_exists(pid) for pid in pids.values())
        assert_nothing_runs(work)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    store = unpack("5.3.3-mixed", tmp_path_factory.mktemp("golden") / "store")
    store.write_broker_conf(store.root.with_name("broker.conf"))
    return store


def arguments(golden: GoldenStore, store: Path, out: Path) -> list[str]:
    conf = golden.root.with_name("broker.conf")
    where = [str(store), "--out", str(out), "--broker-conf", str(conf)]
    return [*where, "--rocketmq-version", golden.version, "--json"]


@dataclass(frozen=True)
class Done:
    """What an application did.

    Attributes:
        submitted: its end, which is its last job's.
        told: by job what it printed, and how it ended; what was seen of the executors.
        tasks: by job, finished tasks by executor.
        place: a directory with ``out`` of the first job, and ``mended``, the store of the next ones.
        lost: the directory of a queue that this store had lost.
    """

    submitted: Submitted
    told: dict[str, Any]
    tasks: dict[str, Counter[str]]
    place: Path
    lost: str


@pytest.fixture(scope="module")
def done(cluster: Cluster, work: Path, golden: GoldenStore, tmp_path_factory: pytest.TempPathFactory) -> Done:
    place = tmp_path_factory.mktemp("applied")
    mended, damaged = place / "mended", place / "damaged"
    shutil.copytree(golden.root, mended)
    lost = max((mended / names.CONSUME_QUEUE / "Orders").iterdir())
    shutil.rmtree(lost)
    conf = place / "broker.conf"
    text = golden.root.with_name("broker.conf").read_text(encoding="utf-8")
    conf.write_text(text.replace(str(golden.root), str(mended)), encoding="utf-8")
    words = [str(mended), "--broker-conf", str(conf), "--rocketmq-version", golden.version, "--json"]
    shutil.copytree(golden.root / names.COMMIT_LOG, damaged / names.COMMIT_LOG)
    segment = min((damaged / names.COMMIT_LOG).iterdir())
    with segment.open("r+b") as file:
        file.seek(4)
        file.write(b"\0\0\0\0")  # the first record's magic

    jobs, rebuild = LIB.parent / "jobs", str(JOB)
    asked = {
        "jobs": {
            "rebuild": [rebuild, arguments(golden, golden.root, place / "out")],
            "check": [str(jobs / "check.py"), words],
            "mend": [str(jobs / "mend.py"), [*words, "--apply"]],
        },
        "told": str(place / "told.json"),
        "last": [rebuild, arguments(golden, damaged, place / "of damaged")],
    }
    script = work / "application.py"
    script.write_text(APPLICATION, encoding="utf-8")
    (place / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    before = set((work / "events").iterdir())
    submitted = cluster.submit(
        script, [str(place / "asked.json")], settings={"spark.sql.shuffle.partitions": "3"}
    )
    told = json.loads((place / "told.json").read_bytes())
    (log,) = set((work / "events").iterdir()) - before
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    ended = [event["Task Info"] for event in events if event["Event"] == "SparkListenerTaskEnd"]
    tasks = {
        name: Counter(
            task["Executor ID"]
            for task in ended
            if told[name]["seconds"][0] <= task["Launch Time"] / 1000 <= told[name]["seconds"][1]
        )
        for name in asked["jobs"]
    }
    return Done(submitted, told, tasks, place, lost.name)


@pytest.mark.proof
def test_two_workers_write_the_brokers_bytes(done: Done, golden: GoldenStore) -> None:
    told = done.told["rebuild"]
    assert told["code"] == 0, told
    found = compare(golden.root, done.place / "out")
    assert found.differences == ()
    assert found.differing_bytes == 0
    assert found.queue_bytes > 0
    assert found.index_bytes > 0
    assert json.loads(told["json"])["findings"] == []
    assert len(done.tasks["rebuild"]) == 2, "both workers' executors had tasks"


@pytest.mark.proof
def test_settings_count_on_executors_and_findings_are_exit_code_1(cluster: Cluster, done: Done) -> None:
    assert done.submitted.exit_code == 1, done.submitted.stdout
    assert json.loads(done.submitted.stdout)["findings"]
    assert len(done.submitted.tasks) == 2
    told = done.told["probe"]
    assert told["is_local"] is False
    assert told["slots"] == 2
    for seen in told["seen"]:
        assert seen["daemon"] == "reput.spark.worker_daemon"
        assert seen["kernels"]
    assert len({seen["directory"] for seen in told["seen"]}) == 2
    conf = told["conf"]
    assert conf["spark.master"] == cluster.master
    assert conf["spark.speculation"] == "false"
    assert conf["spark.sql.shuffle.partitions"] == "3", "the operator's word counts"
    assert conf["spark.executor.memory"] == "512m"


@pytest.mark.proof
def test_a_tail_follows_and_is_stopped(cluster: Cluster, work: Path, tmp_path: Path) -> None:
    live = live_store("5.5.0-mixed", tmp_path)
    options = live.options
    assert options.out is not None
    script = work / "large.py"
    script.write_text(LARGE, encoding="utf-8")
    words = [str(options.store), "--out", str(options.out), "--broker-conf", str(options.broker_conf)]
    live.grow(live.share(0.2))
    with ThreadPoolExecutor(1) as thread:
        submitted = thread.submit(cluster.submit, script, [*words, "--rocketmq-version", "5.5.0", "--json"])
        try:
            for part in (0.2, 0.5, 0.8):
                live.grow(live.share(part) + 50)
                reach(options.out, lambda state, part=part: state.cursor >= live.share(part), submitted)
            live.finish()
            reach(options.out, lambda state: state.messages == len(live.starts), submitted)
        finally:  # else the thread would wait for ever
            stopped = subprocess.run(
                [sys.executable, "-m", "reput.cli", "tail", "--stop", str(options.out)],
                env={**os.environ, "PYTHONPATH": str(LIB)},
                check=False,
            )
        done = submitted.result(180)
    assert stopped.returncode == 0
    assert done.exit_code == 0, done.stdout
    assert json.loads(done.stdout)["findings"] == []
    assert compare(live.whole.root, options.out).differences == ()
    assert not (options.out / names.REPUT / names.SCRATCH).exists()


@pytest.mark.proof
@pytest.mark.compat
def test_the_whole_story(cluster: Cluster, tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    code = story.run(
        cluster,
        tmp_path,
        version="5.3.3",
        seconds=1,
        rate=100,
        tell=lambda who, what: told.append((who, what)),
    )
    assert code == 0, told
    assert list(dict.fromkeys(who for who, _ in told if who)) == ["broker", "producer", "tail", "check"]
    assert told[-1] == ("check", "0 bytes differ")
    found = compare(tmp_path / "store", tmp_path / "derived")
    assert found.queue_files >= 7
    assert found.index_files >= 1
    (sent,) = (what for who, what in told if who == "producer" and what.startswith("stopped after "))
    assert read_state(tmp_path / "derived" / names.REPUT / names.JOURNAL)[1].messages == int(
        sent.split()[2].replace(",", "")
    )


def reach(out: Path, holds: Callable[[State], bool], submitted: Future[Submitted]) -> None:
    """Wait until what is committed is so far."""
    journal = out / names.REPUT / names.JOURNAL
    deadline = time.monotonic() + 300
    while not journal.exists() or not holds(read_state(journal)[1]):
        assert not submitted.done(), submitted.result()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.proof
def test_a_store_is_checked_and_mended(done: Done, golden: GoldenStore) -> None:
    checked, mended = done.told["check"], done.told["mend"]
    assert (checked["code"], mended["code"]) == (3, 0), (checked, mended)
    for name in ("check", "mend"):
        assert done.tasks[name], "on the executors"
    assert len(done.tasks["check"] + done.tasks["mend"]) == 2, "both workers' executors had tasks"
    wrong = [one for one in json.loads(checked["json"])["findings"] if one["effect"] == "lacks"]
    assert {f"{one['topic']}/{one['queue_id']}" for one in wrong} == {f"Orders/{done.lost}"}

    assert compare(golden.root, done.place / "mended").differences == ()


def test_a_refusal_is_exit_code_2_and_stdout_holds_json_alone(
    cluster: Cluster, work: Path, golden: GoldenStore
) -> None:
    ended = cluster.submit(JOB, arguments(golden, golden.root, golden.root), stderr=subprocess.PIPE)
    assert ended.exit_code == 2
    assert json.loads(ended.stdout)["exit_code"] == 2
    assert "reput: " in ended.stderr
    assert "the output is the store itself" in ended.stderr
    assert ended.tasks == {}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("number", "words", "until"),
    [
        (signal.SIGINT, ["tests.compat.story"], "spark-submit"),
        (signal.SIGTERM, ["tests.cluster", str(ARCHIVE)], "is up"),
    ],
)
def test_a_signal_stops_everything(
    tmp_path: Path, number: signal.Signals, words: list[str], until: str
) -> None:
    places = f"{LIB}{os.pathsep}{LIB.parent}"
    process = subprocess.Popen(
        [sys.executable, "-m", *words, "--workers", "1"],
        env={**os.environ, "PYTHONPATH": places, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Where these tests run in the background of a script, Ctrl-C is ignored, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no other thread yet
    )
    with process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(until in line for line in lines)
        assert addresses(tmp_path) == {"127.0.0.1"}
        process.send_signal(number)
        process.stdout.read()
    assert process.returncode == 128 + number
    assert_nothing_runs(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_java_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(SparkError, match=r"Java"), Cluster(tmp_path):
        pytest.fail("started without Java")


def test_a_master_that_ends_is_told_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cluster.standalone._JAVA_OPTIONS", "-XX:NoSuchOption")
    with pytest.raises(SparkError, match=r"(?s)master ended with 1.*NoSuchOption"), Cluster(tmp_path):
        pytest.fail("started with a JVM that can't")
    assert_nothing_runs(tmp_path)


def test_the_default_store_is_a_whole_one(tmp_path: Path) -> None:
    store = default_store(tmp_path)
    assert (store.root / names.COMMIT_LOG).is_dir()
    assert store.has_output
    assert store.broker_conf is not None
    assert store.rocketmq_version is not None
    arguments = store.arguments(tmp_path / "out")
    assert arguments[:3] == [str(store.root), "--out", str(tmp_path / "out")]
    assert arguments[3:] == [
        *("--broker-conf", str(store.broker_conf)),
        *("--rocketmq-version", store.rocketmq_version),
    ]


def test_a_store_is_a_directory_or_an_archive(tmp_path: Path) -> None:
    packed = open_store(ARCHIVE, tmp_path)
    assert packed.rocketmq_version == "5.3.3"
    assert packed.broker_conf is not None
    assert "maxIndexNum=" in packed.broker_conf.read_text()
    plain = open_store(packed.root, tmp_path, Path("broker.conf"), "4.9")
    assert plain.root == packed.root
    assert plain.broker_conf == Path.cwd() / "broker.conf"
    assert plain.rocketmq_version == "4.9"
    with pytest.raises(StoreError, match="no store here"):
        open_store(tmp_path / "none", tmp_path / "elsewhere")


def test_executors_get_a_place_for_kernels_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr("reput.caches.can_write", lambda directory: directory == tmp_path)
    assert not kernels_can_be_cached()
    prepared = Cluster(tmp_path)._prepare()
    assert prepared["NUMBA_CACHE_DIR"] == str(tmp_path / "numba")
    defaults = (tmp_path / "conf" / "spark-defaults.conf").read_text()
    assert f"spark.executorEnv.NUMBA_CACHE_DIR {tmp_path / 'numba'}\n" in defaults
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert kernels_can_be_cached()


def test_only_the_owner_can_read_the_secret(tmp_path: Path) -> None:
    Cluster(tmp_path)._prepare()
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    assert defaults.stat().st_mode & 0o077 == 0
    assert "spark.authenticate true\n" in defaults.read_text()
