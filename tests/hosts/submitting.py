"""spark-submit from one of the hosts, and daemons on them."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.hosts.network import Host

HOME = Path(pyspark.__file__).parent
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_WAIT_SECONDS = 120.0
#: A host that is gone is missed soon.
IMPATIENT = {
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
}


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


def spark_submit(
    host: Host,
    log: Path,
    options: Sequence[str],
    script: Path,
    words: Sequence[str | Path],
    settings: dict[str, str],
    environment: dict[str, str],
    user: int = 0,
) -> Submitted:
    """Start spark-submit on a host; ``log`` gets its stderr."""
    confs = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command = [HOME / "bin" / "spark-submit", *options, *confs, script, *words]
    with log.open("w", encoding="utf-8") as said:
        process = host.start(command, log=said, stdout=subprocess.PIPE, user=user, **environment)
    return Submitted(process, log)


def start_daemon(
    host: Host,
    name: str,
    command: Sequence[str | Path],
    ready: str,
    environment: dict[str, str],
    user: int = 0,
) -> subprocess.Popen[str]:
    """Start a daemon on a host; return it once its log, ``NAME.log`` of the host's own, says ``ready``."""
    log = host.own / f"{name}.log"
    with log.open("w", encoding="utf-8") as said:
        process = host.start(command, log=said, user=user, **environment)
    await_text(log, ready, process)
    return process


def await_text(log: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    """Return when a process has written what matches to its log."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not re.search(pattern, text := log.read_text(encoding="utf-8", errors="replace")):
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
