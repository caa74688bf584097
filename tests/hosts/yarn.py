"""YARN over hosts, by Hadoop's own daemons: ResourceManager on the first, a NodeManager on each other one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from tests.compat.jars import hadoop_jars, java_executable
from tests.hosts.network import CONF, OWN, PROJECT, SHARED, Host
from tests.hosts.submitting import HOME, IMPATIENT, JAVA_OPTIONS, Submitted, spark_submit, start_daemon

_SERVER = "org.apache.hadoop.yarn.server"
#: Room for a driver and two executors on one host.
_MEGABYTES = 6144


@dataclass(slots=True)
class Yarn:
    """The cluster.

    Attributes:
        driver: the host of the ResourceManager, where applications are submitted.
        workers: hosts with a NodeManager.
    """

    driver: Host
    _environment: dict[str, str]
    _daemons: str
    workers: list[Host] = field(default_factory=list)
    _submitted: int = 0

    def start_resource_manager(self) -> None:
        """Start the ResourceManager, and return when it listens."""
        self._start(self.driver, "resourcemanager.ResourceManager", "Transitioned to active state")

    def add(self, host: Host) -> None:
        """Start a NodeManager on a host, and return when it is registered."""
        self._start(host, "nodemanager.NodeManager", "Registered with ResourceManager")
        self.workers.append(host)

    def begin(
        self, script: Path, words: Sequence[str | Path], *options: str, mode: str = "client", **settings: str
    ) -> Submitted:
        """Start spark-submit on the driver's host.

        Args:
            mode: ``client``, or ``cluster``: the driver runs on a host that YARN chooses.
        """
        self._submitted += 1
        log = self.driver.own / f"driver-{self._submitted}.log"
        options = ("--master", "yarn", "--deploy-mode", mode, *options)
        return spark_submit(self.driver, log, options, script, words, settings, self._environment)

    def said_by_containers(self, name: str = "stdout") -> str:
        """What all containers so far have written to a file of their log directories."""
        files = sorted(file for host in self.workers for file in (host.own / "yarn-logs").glob(f"*/*/{name}"))
        return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)

    def _start(self, host: Host, main: str, ready: str) -> None:
        name = main.rpartition(".")[2]
        log4j = f"-Dlog4j.configuration={(CONF / 'log4j.properties').as_uri()}"
        options = [*JAVA_OPTIONS.split(), "-Xmx256m", log4j, "--add-opens=java.base/java.lang=ALL-UNNAMED"]
        command = [java_executable().resolve(), *options, "-cp", self._daemons, f"{_SERVER}.{main}"]
        start_daemon(host, name, command, ready, self._environment)


@contextmanager
def cluster(hosts: Sequence[Host], workers: int, patience: int = 15) -> Iterator[Yarn]:
    """Start a cluster: the next hosts after the first have a NodeManager.

    Args:
        hosts: all of them.
        workers: how many have one.
        patience: seconds until a host or a driver that says nothing is given up.
    """
    conf = hosts[0].own.parent / "conf"
    _write_hadoop(conf, hosts[0], patience)
    _write_spark(conf)
    for host in hosts:
        host.run("mkdir", "-p", OWN / "yarn-local", OWN / "yarn-logs")
    hosts[0].run("mkdir", "-p", SHARED / "staging")
    jars = [*hadoop_jars(), *sorted((HOME / "jars").glob("*.jar"))]
    running = Yarn(
        hosts[0],
        {
            "SPARK_HOME": str(HOME),
            "SPARK_CONF_DIR": str(CONF),
            "HADOOP_CONF_DIR": str(CONF),
            "SPARK_LOCAL_DIRS": "/tmp",
            "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
            "USER": "root",
        },
        os.pathsep.join([str(CONF), *map(str, jars)]),
    )
    running.start_resource_manager()
    for host in hosts[1 : 1 + workers]:
        running.add(host)
    yield running


def _write_hadoop(conf: Path, first: Host, patience: int) -> None:
    """What a small cluster's administrator writes; all else is Hadoop's default."""
    _write_site(conf / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(OWN / "hadoop")})
    _write_site(
        conf / "yarn-site.xml",
        {
            "yarn.resourcemanager.hostname": first.name,
            "yarn.resourcemanager.webapp.address": f"{first.name}:0",
            "yarn.nodemanager.local-dirs": str(OWN / "yarn-local"),
            "yarn.nodemanager.log-dirs": str(OWN / "yarn-logs"),
            "yarn.nodemanager.resource.memory-mb": str(_MEGABYTES),
            "yarn.nodemanager.resource.cpu-vcores": "4",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
            "yarn.nodemanager.delete.debug-delay-sec": "600",
            "yarn.nodemanager.webapp.address": "${yarn.nodemanager.hostname}:0",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nm.liveness-monitor.expiry-interval-ms": f"{patience}000",
            "yarn.am.liveness-monitor.expiry-interval-ms": f"{patience}000",
        },
    )
    _write_site(
        conf / "capacity-scheduler.xml",
        {
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": "100",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
        },
    )
    (conf / "log4j.properties").write_text(
        "log4j.rootLogger=INFO, err\n"
        "log4j.appender.err=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.err.target=System.err\n"
        "log4j.appender.err.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.err.layout.ConversionPattern=%d %p %c: %m%n\n",
        encoding="utf-8",
    )


def _write_spark(conf: Path) -> None:
    settings = {
        "spark.yarn.jars": f"local:{HOME}/jars/*",
        "spark.yarn.stagingDir": f"file://{SHARED}/staging",
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.yarn.am.memory": "512m",
        "spark.yarn.am.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "1g",
        "spark.driver.memoryOverhead": "1g",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        **IMPATIENT,
    }
    (conf / "spark-defaults.conf").write_text(
        "".join(f"{key} {value}\n" for key, value in settings.items()), encoding="utf-8"
    )
    log4j = (PROJECT / "conf" / "log4j2.properties").read_text(encoding="utf-8")
    (conf / "log4j2.properties").write_text(log4j, encoding="utf-8")


def _write_site(path: Path, settings: dict[str, str]) -> None:
    lines = [
        f"  <property><name>{name}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    ]
    path.write_text(f"<configuration>\n{''.join(lines)}</configuration>\n", encoding="utf-8")
