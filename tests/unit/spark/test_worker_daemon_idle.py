"""A daemon of PySpark's that has nothing to do, as Spark starts and meets it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.serializers import read_int

LONGEST = 60.0
PROGRAM = """
from pyspark import daemon
from reput.spark import worker_daemon
worker_daemon.IDLE_SECONDS, worker_daemon._LOOK_SECONDS = 1.5, 0.05
worker_daemon.end_when_idle(daemon)
daemon.manager()
"""


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A directory for sockets, whose paths may have 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def test_it_ends_without_workers_and_not_before(sockets: Path) -> None:
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(sockets),
        "SPARK_REUSE_WORKER": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as daemon:
        try:
            assert daemon.stdout is not None
            path = daemon.stdout.read(read_int(daemon.stdout)).decode()
            assert Path(path).parent == sockets
            with socket.socket(socket.AF_UNIX) as worker:
                worker.connect(path)
                pid = read_int(worker.makefile("rb"))
                began = time.monotonic()
                while time.monotonic() - began < 4.5:  # three times as long as it may be idle
                    assert daemon.poll() is None
                    assert Path(f"/proc/{pid}").exists()
                    time.sleep(0.1)
            daemon.wait(LONGEST)
        finally:
            daemon.kill()
    assert daemon.returncode == 1  # as PySpark's own, when anything but Spark ends it
    assert list(sockets.iterdir()) == []
    with socket.socket(socket.AF_UNIX) as late:
        assert late.connect_ex(path) != 0
