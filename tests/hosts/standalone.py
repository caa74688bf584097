"""A Spark standalone cluster over hosts: master and driver on the first, a worker on each other one."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.hosts.network import CONF, OWN, PROJECT, Host

#: Where Spark is.
HOME = Path(pyspark.__file__).parent
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_WAIT_SECONDS = 120.0
_PORT = 7077


@dataclass(slots=True)
class Cluster:
    """The cluster.

    Attributes:
        driver: the host of master and drivers.
        workers: hosts with a worker.
    """

    driver: Host
    _environment: dict[str, str]
    workers: list[Host] = field(default_factory=list)
    _submitted: int = 0

    @property
    def master(self) -> str:
        """The master's URL."""
        return f"spark://{self.driver.address}:{_PORT}"

    def add(self, host: Host) -> None:
        """Start a worker with one core on a host, and return when it is registered."""
        words = [
            "worker.Worker",
            "--cores",
            "1",
            "--memory",
            "1g",
            "--work-dir",
            str(OWN / "work"),
            self.master,
        ]
        self._daemon(host, "worker", words, "Successfully registered with master")
        self.workers.append(host)

    def begin(self, script: Path, words: Sequence[str | Path], **settings: str) -> Submitted:
        """Start spark-submit in client mode on the driver's host."""
        self._submitted += 1
        log = self.driver.own / f"driver-{self._submitted}.log"
        options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        command = [HOME / "bin" / "spark-submit", "--master", self.master, *options, script, *words]
        with log.open("w", encoding="utf-8") as said:
            process = self.driver.start(command, log=said, stdout=subprocess.PIPE, **self._of(self.driver))
        return Submitted(process, log)

    def start_master(self) -> None:
        """Start the master, and return when it listens."""
        self._daemon(
            self.driver, "master", ["master.Master", "--port", str(_PORT)], "Starting Spark master at"
        )

    def _daemon(self, host: Host, name: str, words: Sequence[str], ready: str) -> None:
        log = host.own / f"{name}.log"
        command = [
            HOME / "bin" / "spark-class",
            f"org.apache.spark.deploy.{words[0]}",
            *("--host", host.address, "--webui-port", "0"),
            *words[1:],
        ]
        with log.open("w", encoding="utf-8") as said:
            process = host.start(command, log=said, **self._of(host))
        deadline = time.monotonic() + _WAIT_SECONDS
        while not re.search(ready, text := log.read_text(encoding="utf-8", errors="replace")):
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.05)

    def _of(self, host: Host) -> dict[str, str]:
        return {**self._environment, "SPARK_LOCAL_IP": host.address}


@dataclass(slots=True)
class Submitted:
    """A spark-submit that was started."""

    process: subprocess.Popen[str]
    log: Path

    @property
    def said(self) -> str:
        """What it wrote to stderr."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = 300.0) -> tuple[int, str]:
        """Its exit code and stdout."""
        stdout, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, stdout

    def wait_for(self, pattern: str, seconds: float = 120.0) -> None:
        """Return when it has said something."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.said):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)


@contextmanager
def cluster(hosts: Sequence[Host], workers: int, **environment: str) -> Iterator[Cluster]:
    """Start a cluster: the driver's host is the first, the next ones have a worker.

    Args:
        hosts: all of them.
        workers: how many have one.
        environment: more variables of all processes.
    """
    conf = hosts[0].own.parent / "conf"
    log4j = (PROJECT / "conf" / "log4j2.properties").read_text(encoding="utf-8")
    names = ("master.Master", "worker.Worker")
    loggers = "".join(
        f"logger.{number}.name = org.apache.spark.deploy.{name}\nlogger.{number}.level = info\n"
        for number, name in enumerate(names)
    )
    (conf / "log4j2.properties").write_text(log4j + loggers, encoding="utf-8")
    settings = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(32),
        "spark.master.rest.enabled": "false",
        "spark.driver.host": hosts[0].address,
        "spark.driver.bindAddress": hosts[0].address,
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": str(len(hosts)),
        # A host that is gone is missed soon.
        "spark.network.timeout": "20s",
        "spark.network.timeoutInterval": "5s",
        "spark.executor.heartbeatInterval": "2s",
        "spark.worker.timeout": "15",
    }
    defaults = conf / "spark-defaults.conf"
    defaults.touch(mode=0o600)
    defaults.write_text("".join(f"{key} {value}\n" for key, value in settings.items()), encoding="utf-8")
    running = Cluster(
        hosts[0],
        {
            "SPARK_HOME": str(HOME),
            "SPARK_CONF_DIR": str(CONF),
            "SPARK_LOCAL_DIRS": "/tmp",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_JAVA_OPTIONS} -Dspark.worker.timeout=15",
            "SPARK_LAUNCHER_OPTS": _JAVA_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(PROJECT / "lib"),
            **environment,
        },
    )
    running.start_master()
    for host in hosts[1 : 1 + workers]:
        running.add(host)
    yield running
