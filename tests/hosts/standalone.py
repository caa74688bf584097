"""A Spark standalone cluster over hosts: master and driver on the first, a worker on each other one."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts.network import CONF, OWN, PROJECT, Host
from tests.hosts.submitting import HOME, IMPATIENT, JAVA_OPTIONS, Submitted, spark_submit, start_daemon

_PORT = 7077


@dataclass(slots=True)
class Cluster:
    """The cluster.

    Attributes:
        driver: the host of master and drivers.
        user: who runs drivers; and workers, if nobody else is named.
        workers: hosts with a worker.
    """

    driver: Host
    user: int
    _environment: dict[str, str]
    workers: list[Host] = field(default_factory=list)
    _submitted: int = 0

    @property
    def master(self) -> str:
        """The master's URL."""
        return f"spark://{self.driver.address}:{_PORT}"

    def add(self, host: Host, *, user: int | None = None, **environment: str) -> subprocess.Popen[str]:
        """Start a worker with one core on a host, and return it when it is registered."""
        words = ["--cores", "1", "--memory", "1g", "--work-dir", str(OWN / "work"), self.master]
        ready = "Successfully registered with master"
        by = self.user if user is None else user
        host.run("install", "-d", "-o", str(by), "-g", str(by), OWN / "work")
        started = self._start(host, "worker", "worker.Worker", words, ready, by, environment)
        self.workers.append(host)
        return started

    def begin(
        self,
        script: Path,
        words: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        **settings: str,
    ) -> Submitted:
        """Start spark-submit in client mode on the driver's host."""
        self._submitted += 1
        log = self.driver.own / f"driver-{self._submitted}.log"
        options = ["--master", self.master]
        around = {**self._of(self.driver), **(environment or {})}
        return spark_submit(self.driver, log, options, script, words, settings, around, self.user)

    def start_master(self) -> None:
        """Start the master, and return when it listens."""
        words = ["--port", str(_PORT)]
        ready = "Starting Spark master at"
        self._start(self.driver, "master", "master.Master", words, ready, self.user, {})

    def _start(
        self,
        host: Host,
        name: str,
        main: str,
        words: Sequence[str],
        ready: str,
        user: int,
        environment: dict[str, str],
    ) -> subprocess.Popen[str]:
        bound = ("--host", host.address, "--webui-port", "0")
        command = [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{main}", *bound, *words]
        return start_daemon(host, name, command, ready, {**self._of(host), **environment}, user)

    def _of(self, host: Host) -> dict[str, str]:
        return {**self._environment, "SPARK_LOCAL_IP": host.address}


@contextmanager
def cluster(hosts: Sequence[Host], workers: int, user: int = 0, **environment: str) -> Iterator[Cluster]:
    """Start a cluster: the driver's host is the first, the next ones have a worker.

    Args:
        hosts: all of them.
        workers: how many have one.
        user: see :class:`Cluster`.
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
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": str(len(hosts)),
        "spark.worker.timeout": "15",
        **IMPATIENT,
    }
    defaults = conf / "spark-defaults.conf"
    defaults.touch(mode=0o600)
    defaults.write_text("".join(f"{key} {value}\n" for key, value in settings.items()), encoding="utf-8")
    os.chown(defaults, user, user)
    running = Cluster(
        hosts[0],
        user,
        {
            "SPARK_HOME": str(HOME),
            "SPARK_CONF_DIR": str(CONF),
            "SPARK_LOCAL_DIRS": "/tmp",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{JAVA_OPTIONS} -Dspark.worker.timeout=15",
            "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(PROJECT / "lib"),
            **environment,
        },
    )
    running.start_master()
    for host in hosts[1 : 1 + workers]:
        running.add(host)
    yield running
