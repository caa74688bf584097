"""The HTTP server of a tail's metrics, which idle connections can't exhaust.

A request is a few hundred bytes that come at once. Each connection has a few seconds for it, and only a few
are open at once: when one more comes, the one that has been silent for longest is closed.
"""

from __future__ import annotations

import io
import socket
import sys
import threading
import time
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

#: Connections at once, and threads: Prometheus needs one, and a person with a browser a few.
MOST_CONNECTIONS = 16
#: Seconds that a connection has for its whole request, and for taking the answer.
REQUEST_SECONDS, ANSWER_SECONDS = 5.0, 30.0
#: Of a request's line and headers together.
MOST_BYTES, MOST_LINES = 16 << 10, 64

_TOO_LARGE = b"HTTP/1.0 431 Request Header Fields Too Large\r\nContent-Length: 0\r\n\r\n"


class MetricsServer(ThreadingMixIn, TCPServer):
    """Serves a registry's metrics.

    Args:
        port: TCP port; 0 for one that is free.
        address: to listen on, a name or number.
        registry: what is served; it can be added to at any time.

    Raises:
        OSError: nothing can listen there.

    Attributes:
        registry: that.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, address: str, registry: CollectorRegistry) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, place = found[0]
        self.registry = registry
        self._host = f"[{address}]" if ":" in address else address
        self._lock = threading.Lock()
        # Deadlines of connections: those that have yet to send a request, and those that get their answer.
        self._asking: dict[socket.socket, float] = {}
        self._answered: dict[socket.socket, float] = {}
        super().__init__(place, _Handler.factory(registry))  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """For Prometheus and people."""
        return f"http://{self._host}:{self.server_address[1]}/metrics"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a connection's thread; if there are too many, the oldest silent connection is closed."""
        with self._lock:
            if len(self._asking) + len(self._answered) >= MOST_CONNECTIONS:
                oldest = next(iter(self._asking), None)
                if oldest is not None:
                    del self._asking[oldest]
                    _hang_up(oldest)
            is_one_too_many = len(self._answered) >= MOST_CONNECTIONS
            if not is_one_too_many:
                self._asking[request] = time.monotonic() + REQUEST_SECONDS
        if is_one_too_many:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def begin_answer(self, request: socket.socket) -> bool:
        """Note that a connection's request has arrived; False if it came too late."""
        with self._lock:
            if self._asking.pop(request, None) is None:
                return False
            self._answered[request] = time.monotonic() + ANSWER_SECONDS
            return True

    def service_actions(self) -> None:
        """Close connections past their deadline; called twice a second."""
        now = time.monotonic()
        with self._lock:
            for connections in (self._asking, self._answered):
                for request in [request for request, until in connections.items() if until < now]:
                    _hang_up(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._asking.pop(request, None)
            self._answered.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing for a connection that was cut off: the operator can't do anything about it."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Stop listening, and close all connections."""
        super().server_close()
        with self._lock:
            for request in (*self._asking, *self._answered):
                _hang_up(request)


class _Handler(MetricsHandler):
    """Prometheus' own handler, given a whole request."""

    timeout = REQUEST_SECONDS
    server: MetricsServer

    def handle(self) -> None:
        head = self._head()
        if head is None:
            self.wfile.write(_TOO_LARGE)
        elif self.server.begin_answer(self.connection):
            self.connection.settimeout(ANSWER_SECONDS)
            self.rfile = io.BytesIO(head)
            super().handle()

    def _head(self) -> bytes | None:
        """The request's line and headers; None when they are too large.

        Raises:
            OSError: they didn't come in time.
        """
        head = bytearray()
        for _ in range(MOST_LINES):
            line = self.rfile.readline(MOST_BYTES - len(head) + 1)
            head += line
            if len(head) > MOST_BYTES:
                return None
            if line in (b"\r\n", b"\n", b""):
                return bytes(head)
        return None


def _hang_up(connection: socket.socket) -> None:
    """Shut a connection down; its thread then closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
