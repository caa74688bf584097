"""A server that speaks S3, versitygw, built once per user; and one before it that is slow, or breaks off."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import obstore
from obstore.store import S3Store

from tests.compat.broker import free_ports
from tests.compat.jars import cache_dir

VERSION = "v1.8.0"
KEY, SECRET, BUCKET = "reput-tests", "a-secret-of-the-tests", "lake"
_WAIT_SECONDS = 120


def why_not() -> str | None:
    """Why there is no server; None if there is one."""
    if _program().exists() or shutil.which("go") is not None:
        return None
    return "no Go, to build the S3 server versitygw with"


def _program() -> Path:
    return cache_dir().parent / f"versitygw-{VERSION}" / "versitygw"


def program() -> Path:
    """The server, built if need be."""
    made = _program()
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"],
            env={**os.environ, "GOBIN": str(made.parent)},
            check=True,
            timeout=900,
        )
    return made


@dataclass
class Gateway:
    """A running server.

    Attributes:
        endpoint: its address.
        data: the directory whose directories are buckets.
    """

    endpoint: str
    data: Path

    def environment(self, **changes: str) -> dict[str, str]:
        """What a client needs to know."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            **changes,
        }

    def put(self, path: Path, name: str, bucket: str = BUCKET) -> None:
        """Put a file into a bucket."""
        obstore.put(s3(self, bucket), name, path)

    def upload(self, directory: Path, prefix: str, bucket: str = BUCKET) -> str:
        """Put all files of a directory into a bucket; returns their URL."""
        (self.data / bucket).mkdir(exist_ok=True)
        store = s3(self, bucket)
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                obstore.put(store, f"{prefix}/{path.relative_to(directory).as_posix()}", path)
        return f"s3://{bucket}/{prefix}"


def s3(gateway: Gateway, bucket: str = BUCKET) -> S3Store:
    """A client for a bucket."""
    return S3Store(
        bucket,
        config={
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "endpoint": gateway.endpoint,
            "region": "us-east-1",
        },
        client_options={"allow_http": True},
    )


@contextmanager
def gateway(work: Path, *options: str | Path) -> Iterator[Gateway]:
    """Start a server on the loopback, and stop it at the end.

    Args:
        options: more words of its command line.
    """
    (work / "data" / BUCKET).mkdir(parents=True)
    with ExitStack() as held:
        port, _ = free_ports(held)
        log = held.enter_context((work / "gateway.log").open("wb"))
        process = subprocess.Popen(
            [program(), "--port", f"127.0.0.1:{port}", "--quiet", *options, "posix", work / "data"],
            env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + _WAIT_SECONDS
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                assert process.poll() is None, (work / "gateway.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield Gateway(f"http://127.0.0.1:{port}", work / "data")
        finally:
            process.terminate()
            process.wait(_WAIT_SECONDS)


@dataclass
class Breaking:
    """Passes connections on, and breaks some off.

    Attributes:
        endpoint: its own address.
        cut: so many of the next connections end after so many bytes of answer.
        delay: seconds before each answer.
        answer: what is answered in place of the server; empty to ask it.
        seen: how many connections there were.
    """

    endpoint: str = ""
    cut: list[int] = field(default_factory=list)
    delay: float = 0.0
    answer: bytes = b""
    seen: int = 0


@contextmanager
def breaking(before: Gateway) -> Iterator[Breaking]:
    """Start one; each connection carries one request, for answers say that it is closed then."""
    host, port = before.endpoint.removeprefix("http://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))
    state = Breaking(f"http://127.0.0.1:{listener.getsockname()[1]}")

    def carry(client: socket.socket) -> None:
        state.seen += 1
        most = state.cut.pop(0) if state.cut else -1
        if state.answer:
            with client, suppress(OSError):
                client.recv(1 << 16)
                client.sendall(state.answer)
            return
        with client, socket.create_connection((host, int(port))) as server:
            with suppress(OSError):
                threading.Thread(target=_pump, args=(client, server, -1), daemon=True).start()
                time.sleep(state.delay)
                _pump(server, client, most)
            for one in (client, server):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=carry, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield state
    finally:
        listener.close()


def _pump(source: socket.socket, target: socket.socket, most: int) -> None:
    with suppress(OSError):  # the other side is closed
        while most:
            data = source.recv(1 << 16 if most < 0 else min(most, 1 << 16))
            if not data:
                return
            target.sendall(data)
            most -= len(data) if most > 0 else 0
