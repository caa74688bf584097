"""Processes of a Spark standalone cluster: started, awaited, and stopped by their ids.

Everything listens on the loopback, on free ports, and requires a secret that only this user can read: without
one, anybody who can connect to the master could run code as its owner.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reput.caches import kernels_can_be_cached
from reput.errors import SparkError
from reput.spark.java import check_spark

LOOPBACK = "127.0.0.1"
_WAIT_SECONDS = 180.0
_STOP_SECONDS = 15.0
_MASTER_READY = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER_READY = re.compile(r"Successfully registered with master (spark://\S+)")
_ERROR_LINES = 15
#: For JVMs that live for seconds, which should spend little time on optimizing code.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Their lines say where the master listens and when a worker is registered.
logger.master.name = org.apache.spark.deploy.master.Master
logger.master.level = info
logger.worker.name = org.apache.spark.deploy.worker.Worker
logger.worker.level = info
# "Unable to load native-hadoop library": the pip package has none, and nothing here needs it.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The result of a spark-submit.

    Attributes:
        exit_code: of spark-submit, which in client mode is the job's own.
        stdout: what the job printed.
        stderr: what it and Spark printed there, if that was piped.
        tasks: finished tasks by executor.
    """

    exit_code: int
    stdout: str
    stderr: str
    tasks: Mapping[str, int]


class Job:
    """A spark-submit that was started; made by :meth:`Cluster.begin`.

    Attributes:
        pid: of spark-submit.
    """

    def __init__(self, process: subprocess.Popen[str], events: Path, before: frozenset[Path]) -> None:
        self._process = process
        self._events = events
        self._before = before
        self.pid = process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def wait(self, timeout: float | None = None) -> Submitted:
        """Wait for its end.

        One job at a time: the tasks that are counted are those of all jobs that were started after it.

        Args:
            timeout: seconds to wait, None without limit.

        Raises:
            SparkError: it still runs then.
        """
        try:
            stdout, said = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise SparkError(f"a job of the cluster hasn't ended after {timeout:.0f} s") from None
        logs = sorted(set(self._events.iterdir()) - self._before)
        return Submitted(self._process.returncode, stdout, said or "", finished_tasks(logs))

    def stop(self) -> None:
        """End it at once, if it still runs: for a tail that is as safe as a crash."""
        _stop(self._process)


@dataclass(frozen=True, slots=True)
class _Started:
    """A process of the cluster, which leads a process group of its own, and its log."""

    name: str
    process: subprocess.Popen[str]
    log: Path


class Cluster:
    """A standalone master and workers with one core each, for one ``with`` statement.

    The applications that it runs take a core of every worker: one executor a worker.

    Args:
        work: an existing directory for configuration, logs and what executors put down; it should be the
            caller's alone, and is left as it is.
        workers: how many.
        through: for each worker in turn the words before its command, such as ``unshare --mount``.

    Attributes:
        master: the master's URL, once entered.
    """

    def __init__(self, work: Path, workers: int = 2, through: Sequence[Sequence[str]] = ((),)) -> None:
        self._work = work.absolute()
        self._workers = workers
        self._through = through
        self._started: list[_Started] = []
        self._jobs: list[subprocess.Popen[str]] = []
        self._environment: dict[str, str] = {}
        self.master = ""

    def __enter__(self) -> Cluster:
        """Start, and return when all workers are registered.

        Raises:
            SparkError: there is no Java, or a process ended or wasn't ready after three minutes.
        """
        check_spark(own=True)
        try:
            self._environment = self._prepare()
            master = self._start("master", "master.Master", "--port", "0")
            self.master = _await(master, _MASTER_READY)
            workers = [self._start_worker(number) for number in range(1, self._workers + 1)]
            for worker in workers:
                _await(worker, _WORKER_READY)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name: ``master``, ``worker-1`` and so on."""
        return {started.name: started.process.pid for started in self._started}

    def submit(
        self,
        script: Path,
        arguments: Sequence[str],
        *,
        settings: Mapping[str, str] | None = None,
        stderr: int | None = None,
    ) -> Submitted:
        """Run ``spark-submit SCRIPT ARGUMENTS`` in client mode, to its end; see :meth:`begin`."""
        job = self.begin(script, arguments, settings=settings, stderr=stderr)
        try:
            return job.wait()
        finally:
            job.stop()

    def begin(
        self,
        script: Path,
        arguments: Sequence[str],
        *,
        settings: Mapping[str, str] | None = None,
        stderr: int | None = None,
    ) -> Job:
        """Start ``spark-submit SCRIPT ARGUMENTS`` in client mode; it is ended with the cluster.

        The job's working directory is not the caller's: paths have to be absolute.

        Args:
            settings: Spark settings, as by ``--conf``.
            stderr: as for :class:`subprocess.Popen`; None is the caller's own. A pipe is only read by
                :meth:`Job.wait`.
        """
        events = self._work / "events"
        options = [word for key, value in (settings or {}).items() for word in ("--conf", f"{key}={value}")]
        before = frozenset(events.iterdir())
        process = subprocess.Popen(
            [self._bin("spark-submit"), "--master", self.master, *options, str(script), *arguments],
            cwd=self._work / "driver",
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        self._jobs.append(process)
        return Job(process, events, before)

    def stop(self) -> None:
        """Stop what was started, the last first; a second call has no effect."""
        try:
            while self._jobs:
                _stop(self._jobs[-1])
                self._jobs.pop()
            while self._started:
                _stop(self._started[-1].process)
                self._started.pop()
        except BaseException:
            # Interrupted again: kill all of them at once.
            for process in (*self._jobs, *(started.process for started in self._started)):
                _kill(process)
            raise

    def _prepare(self) -> dict[str, str]:
        """Write the configuration; returns the environment of all processes."""
        for name in ("conf", "driver", "events", "local", "logs"):
            (self._work / name).mkdir()
        conf = self._work / "conf"
        (conf / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
        # The caller's settings of Spark and Hadoop are for other clusters.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SPARK_", "PYSPARK_", "HADOOP_", "YARN_"))
        }
        if "PYTHONPATH" in environment:
            # Each process has its own working directory: a relative path would lead elsewhere.
            places = environment["PYTHONPATH"].split(os.pathsep)
            environment["PYTHONPATH"] = os.pathsep.join(str(Path(place).absolute()) for place in places)
        environment |= {
            "SPARK_HOME": str(_spark_home()),
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self._work / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA_OPTIONS,
            "SPARK_LAUNCHER_OPTS": _JAVA_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
        }
        defaults = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_hex(32),
            "spark.network.crypto.enabled": "true",
            "spark.master.rest.enabled": "false",
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
            "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            # Begin when every worker has its executor: otherwise the first may do all of a small job.
            "spark.cores.max": str(self._workers),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{_WAIT_SECONDS:.0f}s",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{self._work / 'events'}",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        }
        if not kernels_can_be_cached():
            cache = str(self._work / "numba")
            environment["NUMBA_CACHE_DIR"] = defaults["spark.executorEnv.NUMBA_CACHE_DIR"] = cache
        text = "".join(f"{key} {value}\n" for key, value in defaults.items())
        secret = conf / "spark-defaults.conf"
        secret.touch(mode=0o600)
        secret.write_text(text, encoding="utf-8")
        return environment

    def _start_worker(self, number: int) -> _Started:
        name = f"worker-{number}"
        options = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._work / name)]
        through = self._through[(number - 1) % len(self._through)]
        return self._start(name, "worker.Worker", *options, self.master, through=through)

    def _start(self, name: str, kind: str, *arguments: str, through: Sequence[str] = ()) -> _Started:
        log = self._work / "logs" / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    *through,
                    self._bin("spark-class"),
                    f"org.apache.spark.deploy.{kind}",
                    *("--host", LOOPBACK, "--webui-port", "0"),
                    *arguments,
                ],
                cwd=self._work,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                # Ctrl-C on the terminal must only reach this process, which stops the others in order.
                start_new_session=True,
            )
        started = _Started(name, process, log)
        self._started.append(started)
        return started

    @staticmethod
    def _bin(name: str) -> str:
        return str(_spark_home() / "bin" / name)


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _await(started: _Started, pattern: re.Pattern[str]) -> str:
    """The first group of ``pattern``, once the process has printed it."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        ended = started.process.poll() is not None
        said = started.log.read_text(encoding="utf-8", errors="replace")
        if found := pattern.search(said):
            return found[1]
        if ended or time.monotonic() > deadline:
            what = (
                f"ended with {started.process.returncode}"
                if ended
                else f"isn't ready after {_WAIT_SECONDS:.0f} s"
            )
            raise SparkError(
                f"the cluster's {started.name} {what}",
                path=started.log,
                found="\n".join(["", *said.splitlines()[-_ERROR_LINES:]]),
                next_step="Fix the cause and try again",
            )
        time.sleep(0.05)


def _stop(process: subprocess.Popen[str]) -> None:
    """End a process and the group that it leads: by SIGTERM for a worker to end executors, or SIGKILL."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        _kill(process)
    except BaseException:
        _kill(process)
        raise


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finished_tasks(logs: Sequence[Path]) -> dict[str, int]:
    """Finished tasks by executor, from Spark's event logs."""
    counts: Counter[str] = Counter()
    for log in logs:
        with log.open(encoding="utf-8") as lines:
            for line in lines:
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskEnd":
                    counts[event["Task Info"]["Executor ID"]] += 1
    return dict(sorted(counts.items()))
