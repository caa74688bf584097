"""The process that runs a stream reader, when Spark hangs up on it: PySpark's own, over a socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from pyspark.serializers import CPickleSerializer, read_int, write_int, write_with_length
from pyspark.sql.datasource import CaseInsensitiveDict

from reput.source import CommitLogDataSource, hung_up
from tests.stores import LogWriter


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


def test_nobody_listens(tmp_path: Path) -> None:
    """Not even when what it writes then can't be sent: here always, over TCP when it comes too late."""
    log = LogWriter(tmp_path / "store", segment_size=1000)
    log.preallocate(0)
    source = CommitLogDataSource(CaseInsensitiveDict({"path": str(log.root)}))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "spark"))
        listener.listen()
        listener.settimeout(30)
        process = runner(tmp_path / "spark")
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            make_reader(cast(BinaryIO, stream), source)
    stdout, stderr = process.communicate(timeout=30)
    assert (stdout, stderr) == ("", "")
    assert process.returncode != 0, "it was no orderly end"


def test_other_errors_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda _, error, __: shown.append(error))
    hung_up.say_nothing_to_nobody()
    errors = BrokenPipeError(), ValueError("a bug"), ConnectionResetError(), OSError(5, "no connection's")
    for error in errors:
        sys.excepthook(type(error), error, None)
    assert shown == [errors[1], errors[3]]
