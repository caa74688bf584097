"""A tail's metrics for Prometheus. docs/data/metrics.md has them in a table.

The lag is measured at each scrape, from the log's own end, so that it grows while no batch comes.

A request is a few hundred bytes that come at once. Each connection has a few seconds for it, and only a few
are open at once: when one more comes, the one that has been silent for longest is closed.
"""

from __future__ import annotations

import io
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    MetricsHandler,
    ProcessCollector,
    Summary,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import reput
from reput.errors import ReputError, SettingsError, counts
from reput.log.end import Lag, LagProbe

if TYPE_CHECKING:
    from reput.replay.state import State

#: Upper bounds of batch durations, s: around what a tail promises, and up to a backlog's batches.
_SECONDS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

# The creation times of counters are of no use here, and double the lines.
#: Topics with a series of their own; a store may have a hundred thousand.
_MOST_TOPICS = 50

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of a tail; one object for each tail.

    ``state`` is what was committed when the tail began; counters count from there.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        store: Path,
        output: Path,
        rocketmq_version: str,
        state: State,
        probe: LagProbe,
    ) -> None:
        labels = {
            "version": reput.__version__,
            "rocketmq_version": rocketmq_version,
            "store": str(store),
            "output": str(output),
        }
        Info("reput", "What runs here, and on what", registry=registry).info(labels)
        self._messages = Counter("reput_messages", "Messages committed since the start", registry=registry)
        self._bytes = Counter("reput_bytes", "Bytes of messages committed since the start", registry=registry)
        self._batches = Counter("reput_batches", "Batches committed since the start", registry=registry)
        self._duration = Histogram(
            "reput_batch_duration_seconds",
            "From a batch's parts being known to its checkpoint",
            buckets=_SECONDS,
            registry=registry,
        )
        self._stage_duration = Summary(
            "reput_stage_duration_seconds", "A batch's time by stage", ["stage"], registry=registry
        )
        self._findings = Counter(
            "reput_findings", "What was skipped since the start, by kind", ["kind"], registry=registry
        )
        self._restarts = Counter(
            "reput_restarts", "How often the pipeline was restarted, by reason", ["reason"], registry=registry
        )
        self._offset = Gauge(
            "reput_offset", "Physical offset up to which the log is committed", registry=registry
        )
        self._stored = Gauge(
            "reput_last_store_timestamp_seconds", "storeTimestamp of the last message", registry=registry
        )
        self._committed = Gauge(
            "reput_last_commit_timestamp_seconds", "When the last batch was committed", registry=registry
        )
        self._queues = Gauge("reput_queues", "Consume queues in the output", registry=registry)
        self._index_files = Gauge("reput_index_files", "Index files in the output", registry=registry)
        self._seen = _Seen.of(state)
        self._stages: dict[str, float] = {}
        self._show(state)
        registry.register(_LagCollector(self, probe))
        registry.register(_TopicCollector(self))

    @property
    def reached(self) -> tuple[int, int]:
        """The committed physical offset, and the storeTimestamp, ms, of the last message before it."""
        return self._reached

    def topics(self) -> dict[str, int]:
        """The next queueOffsets of each topic's queues, added up: as fast as that grows, messages come in."""
        found: dict[str, int] = {}
        for (topic, _), queue in list(self._last.queues.items()):
            found[topic] = found.get(topic, 0) + queue.next
        return found

    def batch(self, state: State, stages: Mapping[str, float]) -> None:
        """Count what was committed since the last call, if anything was.

        ``stages`` are wall time since the start, s, as :class:`reput.output.writer.Stages` adds it up.
        """
        spent = {name: total - self._stages.get(name, 0.0) for name, total in stages.items()}
        before, self._seen = self._seen, _Seen.of(state)
        if state.batches > before.batches:
            self._stages = dict(stages)
            self._batches.inc(state.batches - before.batches)
            self._messages.inc(max(state.messages - before.messages, 0))
            self._bytes.inc(max(state.bytes - before.bytes, 0))
            self._duration.observe(sum(spent.values()))
            for name, duration in spent.items():
                self._stage_duration.labels(name).observe(duration)
            for kind, count in self._seen.findings.items():
                # Older findings may have been summed up, but none of a kind gets lost.
                self._findings.labels(kind).inc(max(count - before.findings.get(kind, 0), 0))
            self._committed.set_to_current_time()
        self._show(state)

    def restarted(self, reason: str) -> None:
        """Count a restart of the pipeline; ``reason`` is one of a few hyphenated names."""
        self._restarts.labels(reason).inc()

    def _show(self, state: State) -> None:
        self._last = state
        self._reached = (state.cursor, state.last_timestamp)
        self._offset.set(state.cursor)
        self._stored.set(state.last_timestamp / 1000)
        self._queues.set(len(state.queues))
        self._index_files.set(len(state.index))


class TableMetrics:
    """The metrics of the table of messages that a tail keeps up to date.

    ``reached`` returns the physical offset up to which the table holds the log.
    """

    def __init__(self, registry: CollectorRegistry, metrics: Metrics, reached: Callable[[], int]) -> None:
        lag = Gauge(
            "reput_catalog_lag_bytes",
            "Bytes of the log that are committed, and not in the table of messages",
            registry=registry,
        )
        lag.set_function(lambda: max(metrics.reached[0] - reached(), 0))
        self._succeeded = Gauge(
            "reput_catalog_last_success_timestamp_seconds",
            "When the table of messages was last brought up to date",
            registry=registry,
        )
        self._failures = Counter(
            "reput_catalog_failures",
            "How often the table of messages could not be brought up to date since the start",
            registry=registry,
        )

    def succeeded(self) -> None:
        """After a step that brought the table up to date."""
        self._succeeded.set_to_current_time()

    def failed(self) -> None:
        """After a step that didn't."""
        self._failures.inc()


@contextmanager
def served(port: int, address: str = "127.0.0.1") -> Iterator[MetricsServer]:
    """Serve metrics over HTTP while the block runs; at first only those of the process.

    Port 0 stands for one that is free.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    try:
        server = MetricsServer(port, address, registry)
    except OSError as error:
        raise SettingsError(
            "metrics can't be served there",
            expected="an address of this host, and a port that is free",
            found=f"{address} port {port}: {error.strerror or error}",
            next_step="Choose another --metrics-port, or 0 for any that is free",
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="reput-metrics", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What has been counted so far."""

    batches: int
    messages: int
    bytes: int
    findings: dict[str, int]

    @classmethod
    def of(cls, state: State) -> _Seen:
        return cls(state.batches, state.messages, state.bytes, counts(state.findings))


class _LagCollector(Collector):
    """The log's end and the lag, measured at each scrape."""

    def __init__(self, metrics: Metrics, probe: LagProbe) -> None:
        self._metrics = metrics
        self._probe = probe

    def describe(self) -> Iterable[Metric]:
        """The names, for the registry; the log isn't read."""
        return self._families(None)

    def collect(self) -> Iterable[Metric]:
        """The values; none but ``reput_log_readable`` when the log can't be read."""
        # Before the log is read: a batch that ends meanwhile must not look like a log that went back.
        cursor, last_timestamp = self._metrics.reached
        try:
            lag = self._probe.look(cursor, last_timestamp)
        except (ReputError, OSError):
            lag = None
        return self._families(lag)

    def _families(self, lag: Lag | None) -> list[Metric]:
        def gauge(name: str, text: str, value: float | None) -> Metric:
            return GaugeMetricFamily(name, text, value=None if lag is None else value)

        known = lag or Lag(0, 0, 0)
        return [
            GaugeMetricFamily("reput_log_readable", "1 while the commit log can be read", lag is not None),
            gauge("reput_log_end_offset", "Physical offset after the log's last whole message", known.end),
            gauge("reput_lag_bytes", "Bytes of the log that aren't committed", known.bytes),
            gauge("reput_lag_seconds", "How long the oldest message has not been committed", known.ms / 1000),
        ]


class _TopicCollector(Collector):
    """Messages by topic, added up at each scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """The topics with the most; all others as the topic ""."""
        text = "Next queueOffsets of a topic's queues, added up"
        family = CounterMetricFamily("reput_topic_messages", text, labels=["topic"])
        most = sorted(self._metrics.topics().items(), key=lambda one: (-one[1], one[0]))
        for topic, count in most[:_MOST_TOPICS]:
            family.add_metric([topic], count)
        if len(most) > _MOST_TOPICS:
            family.add_metric([""], sum(count for _, count in most[_MOST_TOPICS:]))
        return [family]


#: Connections at once, and threads: Prometheus needs one, and a person with a browser a few.
MOST_CONNECTIONS = 16
#: Seconds that a connection has for its whole request, and for taking the answer.
REQUEST_SECONDS, ANSWER_SECONDS = 5.0, 30.0
#: Of a request's line and headers together.
MOST_BYTES, MOST_LINES = 16 << 10, 64

_TOO_LARGE = b"HTTP/1.0 431 Request Header Fields Too Large\r\nContent-Length: 0\r\n\r\n"


class MetricsServer(ThreadingMixIn, TCPServer):
    """Serves a registry's metrics, which can be added to at any time; port 0 stands for one that is free."""

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

        Raises OSError when they didn't come in time.
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
