"""HDFS on the loopback: Hadoop's own NameNode and one DataNode."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

import pyspark

from tests.compat.jars import hadoop_jars, java_executable

_SERVER = "org.apache.hadoop.hdfs.server"
_WAIT_SECONDS = 90
_LOG4J = """log4j.rootLogger=WARN, err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
"""


@contextmanager
def hdfs(work: Path) -> Iterator[str]:
    """Start a file system; gives its URL, without a slash at the end."""
    from hdfs_native import Client

    work.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"hdfs://127.0.0.1:{free.getsockname()[1]}"
    _configure(work, url)
    log = work / "hdfs.log"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        assert _start(work, log, "namenode.NameNode", "-format", "-nonInteractive").wait(_WAIT_SECONDS) == 0
        processes += [_start(work, log, "namenode.NameNode"), _start(work, log, "datanode.DataNode")]
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                upload(url, Path(__file__).parent, "/tried")
                break
            except Exception as error:  # noqa: BLE001 - the client raises several kinds until both are there
                said = f"{error}\n{log.read_text(errors='replace')}"
                assert all(process.poll() is None for process in processes), said
                assert time.monotonic() < deadline, said
                time.sleep(0.3)
        Client(url).delete("/tried", recursive=True)
        yield url
    finally:
        for process in processes:
            process.kill()
            process.wait(30)


def _configure(work: Path, url: str) -> None:
    (work / "log4j.properties").write_text(_LOG4J, encoding="utf-8")
    free = "127.0.0.1:0"
    sites = {
        "core-site.xml": {"fs.defaultFS": url, "hadoop.tmp.dir": str(work / "tmp")},
        "hdfs-site.xml": {
            "dfs.replication": "1",
            "dfs.namenode.http-address": free,
            "dfs.datanode.address": free,
            "dfs.datanode.http.address": free,
            "dfs.datanode.ipc.address": free,
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
        },
    }
    for name, settings in sites.items():
        rows = (
            f"<property><name>{key}</name><value>{escape(value)}</value></property>\n"
            for key, value in settings.items()
        )
        (work / name).write_text(f"<configuration>\n{''.join(rows)}</configuration>\n", encoding="utf-8")


def _start(work: Path, log: Path, main: str, *words: str) -> subprocess.Popen[bytes]:
    jars = [*hadoop_jars(), *sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))]
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
    path = os.pathsep.join([str(work), *map(str, jars)])
    with log.open("ab") as said:
        return subprocess.Popen(
            [java_executable(), *options, "-cp", path, f"{_SERVER}.{main}", *words],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=work,
        )


def upload(url: str, directory: Path, target: str) -> str:
    """Put all files of a directory there; returns its URL."""
    from hdfs_native import Client, WriteOptions

    client = Client(url)
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            place = f"{target}/{path.relative_to(directory).as_posix()}"
            client.mkdirs(place.rpartition("/")[0], create_parent=True)
            with client.create(place, WriteOptions(replication=1, overwrite=True)) as out:
                out.write(path.read_bytes())
    return url + target
