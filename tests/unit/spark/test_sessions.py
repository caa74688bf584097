"""What is said of Spark's failures and of Java, without either."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from reput.doctor import spark_check
from reput.errors import SparkError
from reput.source import register
from reput.spark import java
from reput.spark import sessions as spark
from reput.spark.java import check_spark
from reput.spark.runner import SparkRunner


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (
            Exception(
                "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: Broken pipe "
                "SQLSTATE: XXKST\n\tat org.apache.spark.Nowhere"
            ),
            "Broken pipe",
        ),
        (
            Exception(
                "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback\n  File x\n"
                "reput.errors.StoreError: /s/commitlog: it can't be read; found Permission denied\n"
            ),
            "/s/commitlog: it can't be read; found Permission denied",
        ),
        (Exception("[JAVA_GATEWAY_EXITED] Java gateway process exited"), "Java gateway process exited"),
        (ConnectionRefusedError(111, "Connection refused"), "its JVM is gone: killed, or out of memory"),
        (Py4JNetworkError("Answer from Java side is empty"), "its JVM is gone: killed, or out of memory"),
        (
            Py4JError("An error occurred while calling o134.isActive"),
            "its JVM is gone: killed, or out of memory",
        ),
        (
            Exception("An error occurred while calling o1.x.\n: java.lang.Oops: a bug\n\tat y"),
            "java.lang.Oops: a bug",
        ),
        (Exception(), "Exception"),
    ],
)
def test_failures_in_a_sentence(error: Exception, found: str) -> None:
    said = spark.spark_error(error)
    assert said.found == found
    assert "run the same command again" in str(said)


LOST = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task "
    "0.3 in stage 1.0 (TID 7) ({} executor {}): org.apache.spark.api.python.PythonException: {}"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            LOST.format("10.0.0.2", "1", "EOFError"),
            "on host 10.0.0.2: Spark failed; found org.apache.spark.api.python.PythonException: EOFError",
        ),
        (
            LOST.format("fd00::2", "12", "EOFError"),
            "on host fd00::2: Spark failed; found org.apache.spark.api.python.PythonException: EOFError",
        ),
        (
            LOST.format("this", "driver", "EOFError"),
            "Spark failed; found org.apache.spark.api.python.PythonException: EOFError",
        ),
        (LOST.format("fd00::2", "12", "MemoryError"), "on host fd00::2: Spark failed; found MemoryError"),
        (
            LOST.format("10.0.0.2", "1", "reput.errors.StoreError: on host far: /s: it can't be read"),
            "Spark failed; found on host far: /s: it can't be read",
        ),
    ],
)
def test_failures_of_tasks_name_their_host(text: str, said: str) -> None:
    assert str(spark.spark_error(Exception(text))).startswith(said)


def test_a_workers_python_without_reput_is_said_in_its_words() -> None:
    """Spark begins the error's text with an empty line."""
    said = (
        "\nError from python worker:\n  /usr/bin/python3: Error\n  No module named 'reput'\n"
        "PYTHONPATH was:\n  /x/pyspark.zip\norg.apache.spark.SparkException: EOFException occurred"
    )
    text = LOST.replace("api.python.PythonException", "SparkException").format("10.0.0.2", "1", said)
    error = spark.spark_error(Exception(f"An error occurred while calling o1.x.\n: {text}"))
    assert str(error).startswith("on host 10.0.0.2: Python can't run reput; found No module named 'reput'. ")
    assert "PYSPARK_PYTHON" in (error.next_step or "")


@pytest.mark.parametrize("said", ["", "ERROR All masters are unresponsive! Giving up.\n"])
def test_a_master_that_does_not_answer_is_named(said: str) -> None:
    stopped = Exception("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n")
    error = spark._start_error(stopped, said)
    assert str(error).startswith("Spark doesn't start; expected a master that answers, found none")
    assert "spark.authenticate" in (error.next_step or "")


def test_what_nothing_foresees_in_a_task_is_said_with_its_place() -> None:
    """The last exception of a chain: what Python said to Spark, without Spark's words around it."""
    stack = (
        'Traceback (most recent call last):\n  File "/a/worker.py", line 7, in main\n    process()\n'
        '  File "/x/reput/scan/part.py", line 12, in scan\n    return found[key]\n           ~~~~~^^^^^\n'
        '  File "/x/other.py", line 3, in __getitem__\n    raise KeyError(key)\n{}\n'
    )
    first = (
        stack.format("ValueError: before") + "\nDuring handling of the above exception, another occurred:\n\n"
    )
    text = LOST.format("10.0.0.2", "1", first + stack.format("KeyError: 'Orders'") + "\n\tat org.apache.X\n")
    error = spark.spark_error(Exception(text))
    assert error.found == "KeyError: 'Orders' (/x/other.py line 3, called by /x/reput/scan/part.py line 12)"
    assert error.host == "10.0.0.2"
    assert error.problem == "reput failed in a way that it doesn't foresee"
    assert "REPUT_TRACEBACK=1" in (error.next_step or "")


FASTER = {"spark.python.unix.domain.socket.enabled", "spark.hadoop.fs.file.impl"}


@pytest.mark.parametrize(
    ("master", "faster"),
    [
        ("local[*]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://host:7077", True),
        ("yarn", False),
        ("k8s://https://host:6443", False),
        (None, False),
    ],
)
def test_settings_that_not_every_master_takes(master: str | None, faster: bool) -> None:
    assert FASTER.isdisjoint(spark._settings(master)) != faster
    assert (FASTER <= spark._settings(master).keys()) == faster


@pytest.mark.parametrize(
    ("words", "master"),
    [
        ("--master yarn pyspark-shell", "yarn"),
        ("--name x --master='local[2]' pyspark-shell", "local[2]"),
        ("--conf spark.ui.enabled=false pyspark-shell", None),
        ("", None),
    ],
)
def test_the_master_that_was_told(words: str, master: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", words)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert spark._submitted_master() == master


def test_spark_submit_reads_only_what_every_master_takes() -> None:
    path = Path(__file__).parents[3] / "conf" / "spark-defaults.conf"
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    told = {line[0]: line[1] for line in lines if not line[0].startswith("#")}
    assert told
    assert FASTER.isdisjoint(told)
    assert not any(name.startswith(("spark.master", "spark.yarn.", "spark.kubernetes.")) for name in told)


@pytest.mark.parametrize(
    ("release", "accepted"),
    [
        ('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\n', True),
        ('JAVA_VERSION="21"\n', True),
        ('JAVA_VERSION="16.0.2"\n', False),
        ('JAVA_VERSION="1.8.0_412"\n', False),
    ],
)
def test_the_release_file_tells_the_version(
    release: str, accepted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    (tmp_path / "release").write_text(release)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if accepted:
        check_spark()
        return
    with pytest.raises(SparkError, match=r"can't run on this Java; expected Java 17 or later"):
        check_spark()


def test_workers_load_what_is_installed_and_not_archives() -> None:
    """Spark's archives are left out of the path, everything else stays, in its order."""
    script = Path(spark.__file__).with_name("worker_python.sh")
    path = ":".join(
        [
            "/opt/spark/python/lib/pyspark.zip",
            "/opt/spark/python/lib/py4j-0.10.9.9-src.zip",
            "/opt/a place",
            "/opt/spark/jars/spark-core_2.13-4.2.0.jar",
            "/opt/other.zip",
        ]
    )
    told = subprocess.run(
        [script, "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])", "a b", ""],
        env={"PYTHONPATH": path, "REPUT_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "/opt/a place:/opt/other.zip ['a b', '']\n"


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_waits_for_a_jvm_that_starts_unless_it_comes_again(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*_: object, **__: object) -> None:
        for _number in range(times):
            signal.raise_signal(signal.SIGINT)
        started.append(True)

    started: list[bool] = []
    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            spark._gateway(None, spark._JvmOutput())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert started == [True] * (times == 1)


@pytest.mark.parametrize(
    ("found", "is_wanted"), [("4.2.0", True), ("4.2.9-SNAPSHOT", True), ("4.1.1", False)]
)
def test_a_cluster_of_another_spark_is_refused(
    found: str, is_wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "version", lambda name: {"pyspark": "4.2.0"}[name])
    if is_wanted:
        java.check_version(found)
        return
    with pytest.raises(SparkError) as refused:
        java.check_version(found)
    assert (refused.value.expected, refused.value.found) == ("Spark 4.2", found)


def test_a_spark_home_of_another_spark_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark would start its JVM, and fail at the first class that it hasn't got."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.9.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_ENV_LOADED", raising=False)
    with pytest.raises(SparkError, match=r"isn't made for this Spark; expected Spark 4\.\d, found 3\.5\.9\."):
        check_spark()
    check_spark(own=True)


def test_an_older_spark_is_refused_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its spark-submit puts its PySpark before the one that came with reput."""
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    expected = r"expected Spark 4\.0\.1 to 4\.2, which have pyspark\.\S+, found Spark 3\.5\.9\. Give another"

    def start() -> NoReturn:
        raise ModuleNotFoundError(name="pyspark.core")

    assert re.search(expected, spark_check(start).found)
    older: Any = SimpleNamespace()
    with pytest.raises(SparkError, match=expected):
        register(older)


def test_without_jars_spark_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `reput pack` leaves PySpark, and where SPARK_HOME names something else."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_ENV_LOADED", raising=False)
    with pytest.raises(SparkError, match="no jars of Spark") as refused:
        check_spark()
    assert refused.value.path == str(tmp_path / "jars")


def test_a_cluster_that_runs_nothing_is_a_failure_of_sparks(tmp_path: Path) -> None:
    """YARN gives no executor of 8 cores where 4 are its maximum; reput's first job finds out."""

    def parallelize(*_: object) -> object:
        raise Py4JError(
            "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
            ": org.apache.spark.SparkException: Job 0 cancelled because SparkContext was shut down"
        )

    context: Any = SimpleNamespace(
        master="yarn", defaultParallelism=1, addJobTag=lambda _: None, parallelize=parallelize
    )
    with pytest.raises(
        SparkError, match=r"Spark failed; found .*Job 0 cancelled because SparkContext was shut"
    ):
        SparkRunner(context).other_hosts(tmp_path)
