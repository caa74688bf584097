"""PySpark's own processes when Spark hangs up on them: one that runs a stream reader, and a worker."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import psutil
import pytest
from pyspark.serializers import (
    CPickleSerializer,
    UTF8Deserializer,
    read_int,
    write_int,
    write_with_length,
)
from pyspark.sql.datasource import CaseInsensitiveDict

from reput import spark
from reput.source import CommitLogDataSource
from reput.spark import worker_daemon
from tests.stores import LogWriter


@pytest.fixture
def place() -> Iterator[Path]:
    """For a socket, whose path may have 107 bytes: a test's own directory may have more."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def runner(connection: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pyspark.sql.streaming.python_streaming_source_runner"],
        env={**os.environ, "PYTHON_WORKER_FACTORY_SOCK_PATH": str(connection)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def make_reader(stream: BinaryIO, source: CommitLogDataSource) -> None:
    """What Spark sends first (PythonStreamingSourceRunner.init in 4.2.0)."""

    def send(text: str) -> None:
        write_with_length(text.encode(), stream)

    read_int(stream)  # the process's id
    send("{}.{}".format(*sys.version_info))
    send("")  # the directory of files that were added
    write_int(0, stream)  # packages that were added
    write_with_length(CPickleSerializer().dumps(source), stream)
    send(source.schema().json())
    write_int(1000, stream)  # rows of an Arrow batch
    stream.flush()
    assert read_int(stream) == 0, "the reader is made"


def test_nobody_listens(tmp_path: Path, place: Path) -> None:
    """Not even when what it writes then can't be sent: here always, over TCP when it comes too late."""
    log = LogWriter(tmp_path / "store", segment_size=1000)
    log.preallocate(0)
    source = CommitLogDataSource(CaseInsensitiveDict({"path": str(log.root)}))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "spark"))
        listener.listen()
        listener.settimeout(120)
        process = runner(place / "spark")
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            make_reader(cast(BinaryIO, stream), source)
    stdout, stderr = process.communicate(timeout=120)
    assert (stdout, stderr) == ("", "")
    assert process.returncode != 0, "it was no orderly end"


#: Spark has read all that it wants when the last bytes come.
BUSY = """
import runpy, sys, types
def main(infile, outfile):
    import reput.source.{source}
    infile.read()
    outfile.write(b'done')
sys.modules['pyspark.busy'] = types.SimpleNamespace(main=main)
runpy.run_module('{daemon}', run_name='__main__', alter_sys=True)
"""
LOOKED_UP = "pyspark.sql.worker.lookup_data_sources"
SCRIPT = Path(spark.__file__).with_name("worker_python.sh")


def said_by_a_worker(command: list[str], place: Path, *, killed: bool) -> str:
    """What a daemon and its worker say, on whom Spark hangs up at once.

    Args:
        killed: as Spark has it: a worker that can't say its last words isn't used again.
    """
    daemon = subprocess.Popen(
        command,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "REPUT_PYTHON": sys.executable,
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": str(place),
            **({"PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"} if killed else {}),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with daemon:
        assert daemon.stdout is not None
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(UTF8Deserializer().loads(daemon.stdout))
            with connection.makefile("rb") as stream:
                worker = read_int(stream)
        deadline = time.monotonic() + 60
        while psutil.pid_exists(worker):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        _, said = daemon.communicate(timeout=60)  # its input ends, and with it the daemon
    return said.decode()


@pytest.mark.parametrize(
    ("daemon", "source", "killed"),
    [
        ("reput.spark.worker_daemon", "commitlog", True),
        ("pyspark.daemon", "commitlog", True),
        ("pyspark.daemon", "tables", False),
    ],
)
def test_a_worker(daemon: str, source: str, killed: bool, place: Path) -> None:
    """One has something to say when its job is over, be its daemon reput's or, where it plans, PySpark's."""
    program = BUSY.format(daemon=daemon, source=source)
    command = [sys.executable, "-c", program, "pyspark.busy"]
    assert said_by_a_worker(command, place, killed=killed) == ""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [True, False])
def test_a_planner_of_a_local_session(killed: bool, place: Path) -> None:
    """One of those that know nothing of reput; PySpark's own daemon shows a stack trace for it."""
    words = ["-m", "pyspark.daemon", LOOKED_UP]
    assert "BrokenPipeError" in said_by_a_worker([sys.executable, *words], place, killed=killed)
    assert said_by_a_worker([str(SCRIPT), *words], place, killed=killed) == ""


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "reput.spark.worker_daemon"], [SCRIPT, "-m", "pyspark.daemon"]]
)
def test_a_worker_that_fails_by_itself(command: list[str], place: Path) -> None:
    said = said_by_a_worker([*map(str, command), "pyspark.gone"], place, killed=True)
    assert said.endswith("ModuleNotFoundError: No module named 'pyspark.gone'\n")


def test_other_errors_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda _, error, __: shown.append(error))
    worker_daemon.hide_closed_connections_at_exit()
    errors = BrokenPipeError(), ValueError("a bug"), ConnectionResetError(), OSError(5, "no connection's")
    for error in errors:
        sys.excepthook(type(error), error, None)
    assert shown == [errors[1], errors[3]]
