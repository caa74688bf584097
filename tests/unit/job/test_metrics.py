"""A tail's metrics as Prometheus gets them, and what is made of their names elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from py4j.protocol import Py4JNetworkError
from pyspark.sql.streaming.listener import StreamingQueryProgress

import reput
from reput.errors import Finding, OutputError, SettingsError
from reput.format import names
from reput.format.commitlog import Record
from reput.job.metrics import MOST_CONNECTIONS, Metrics, TableMetrics, served
from reput.job.status import RunNote, TableNote, watching
from reput.log.end import LagProbe
from reput.output.journal import read_state
from reput.replay.state import QueueState, State
from reput.stream import TriggerCollector
from tests.local import open_store, rebuild_locally
from tests.stores import LogWriter

ROOT = Path(__file__).parents[3]
STORED = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    writer = LogWriter(tmp_path / "store")
    writer.append(*(Record(b"T", queue_offset=at, store_timestamp=STORED + at) for at in range(6)))
    return writer


@pytest.fixture
def state(log: LogWriter, tmp_path: Path) -> State:
    rebuild_locally(open_store(log.root), tmp_path / "out", ends=[log.records[3].physical_offset])
    return read_state(tmp_path / "out" / names.REPUT / names.JOURNAL)[1]


def metrics_of(registry: CollectorRegistry, log: LogWriter, state: State) -> Metrics:
    probe = LagProbe(open_store(log.root).settings, lambda: STORED + 10_000)
    return Metrics(registry, log.root, Path("/out"), "5.3", state, probe)


def scraped(url: str) -> dict[str, float]:
    """The samples by name and labels, as they stand in the text."""
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(sorted(f"{name}={value}" for name, value in sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_batch_by_batch(log: LogWriter, state: State) -> None:
    nothing = State(cursor=0)
    with served(0) as endpoint:
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/metrics", endpoint.url)
        assert scraped(endpoint.url).keys() >= {"process_resident_memory_bytes"}
        metrics = metrics_of(endpoint.registry, log, nothing)
        before = scraped(endpoint.url)
        assert before["reput_messages_total"] == before["reput_batches_total"] == 0
        assert (before["reput_log_end_offset"], before["reput_lag_bytes"]) == (log.end, log.end)
        assert before["reput_lag_seconds"] == 10
        assert before["reput_log_readable"] == 1
        info = f"output=/out,rocketmq_version=5.3,store={log.root},version={reput.__version__}"
        assert before[f"reput_info{{{info}}}"] == 1

        state.findings = [Finding("bad-magic", "x", 0, 1, "", "", "", count=3)]
        metrics.batch(state, {"scan": 0.25, "journal": 0.05})
        metrics.batch(state, {"scan": 0.25, "journal": 0.05})
        after = scraped(endpoint.url)
        assert after["reput_messages_total"] == 6
        assert after["reput_bytes_total"] == state.bytes
        assert after["reput_batches_total"] == state.batches == 2
        assert after["reput_batch_duration_seconds_count"] == 1, "the second call brought nothing"
        assert after["reput_batch_duration_seconds_sum"] == pytest.approx(0.3)
        assert after["reput_stage_duration_seconds_sum{stage=journal}"] == 0.05
        assert after["reput_findings_total{kind=bad-magic}"] == 3
        assert after["reput_offset"] == log.end
        assert after["reput_last_store_timestamp_seconds"] == (STORED + 5) / 1000
        assert after["reput_last_commit_timestamp_seconds"] > STORED / 1000
        assert (after["reput_lag_bytes"], after["reput_lag_seconds"]) == (0, 0)
        assert (after["reput_queues"], after["reput_index_files"]) == (1, 1)

        log.append(Record(b"T", queue_offset=6, store_timestamp=STORED + 4_000))
        behind = scraped(endpoint.url)
        assert behind["reput_lag_bytes"] > 0, "no batch has come"
        assert behind["reput_lag_seconds"] == 6

        metrics.restarted("log-went-back")
        back = State(cursor=0)
        metrics.batch(back, {"scan": 0.25, "journal": 0.05})
        assert scraped(endpoint.url)["reput_restarts_total{reason=log-went-back}"] == 1
        metrics.batch(state, {"scan": 0.5, "journal": 0.1})
        assert scraped(endpoint.url)["reput_messages_total"] == 12, "counted again: they were done again"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(endpoint.url, timeout=1)


def test_a_log_that_cannot_be_read(log: LogWriter) -> None:
    registry = CollectorRegistry()
    metrics_of(registry, log, State(cursor=0))
    for path in (log.root / names.COMMIT_LOG).iterdir():
        path.unlink()
    assert registry.get_sample_value("reput_log_readable") == 0
    assert registry.get_sample_value("reput_lag_bytes") is None


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"127\.0\.0\.1 port {port}: Address already in use\. Choose another --metrics-port"
        with pytest.raises(SettingsError, match=said), served(port):
            raise AssertionError("served")
    with pytest.raises(SettingsError, match=r"no\.such\.host"), served(0, "no.such.host.invalid"):
        raise AssertionError("served")


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def ended(connection: socket.socket) -> bool:
    """Whether the other end has closed it; waits a while for that."""
    connection.settimeout(60)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.slow
def test_silent_connections_cost_a_few_threads_and_keep_nobody_out() -> None:
    with ExitStack() as stack, served(0) as endpoint:
        place = ("127.0.0.1", int(urlsplit(endpoint.url).port or 0))
        before = threading.active_count()
        silent = [stack.enter_context(socket.create_connection(place)) for _ in range(400)]
        assert scraped(endpoint.url)["process_resident_memory_bytes"] > 0
        # Those that were hung up on end by themselves, in their own time.
        wait_for(lambda: threading.active_count() - before <= MOST_CONNECTIONS)
        assert all(ended(connection) for connection in silent[:-MOST_CONNECTIONS])
        assert scraped(endpoint.url)["process_resident_memory_bytes"] > 0


def test_a_request_in_small_pieces_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reput.job.metrics.REQUEST_SECONDS", 1.0)
    with served(0) as endpoint:
        place = ("127.0.0.1", int(urlsplit(endpoint.url).port or 0))
        before = {*threading.enumerate()}
        with socket.create_connection(place) as slow, socket.create_connection(place) as idle:
            began = time.monotonic()
            slow.settimeout(0.2)
            with suppress(ConnectionError):
                while time.monotonic() - began < 60:
                    slow.sendall(b"G")
                    try:
                        if slow.recv(1) == b"":
                            break
                    except TimeoutError:
                        pass
            assert time.monotonic() - began < 30, "each byte may not buy it more time"
            assert ended(idle)
            wait_for(lambda: {*threading.enumerate()} <= before)


@pytest.mark.parametrize("request_", [b"GET /" + b"a" * 20_000, b"GET / HTTP/1.0\r\n" + b"a: b\r\n" * 100])
def test_a_request_that_is_too_large(request_: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with served(0) as endpoint:
        place = ("127.0.0.1", int(urlsplit(endpoint.url).port or 0))
        with socket.create_connection(place, timeout=60) as large:
            large.sendall(request_)
            assert large.recv(100).startswith(b"HTTP/1.0 431 ")
        with socket.create_connection(place, timeout=60) as gone:
            gone.sendall(b"GET / HTTP/1.0\r\n\r\n")
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert scraped(endpoint.url)["process_resident_memory_bytes"] > 0
    assert capfd.readouterr().err == "", "who breaks off is no news"


#: From a run with Spark 4.2.0, less what isn't looked at.
PROGRESS = {
    "id": "6063d970-474f-4ddf-813e-12da2ddc1084",
    "runId": "ae5ec150-632e-4af7-9c50-80b773640313",
    "name": None,
    "timestamp": "2026-11-21T12:55:36.094Z",
    "batchId": 47,
    "batchDuration": 63,
    "durationMs": {"addBatch": 45, "commitOffsets": 5, "latestOffset": 0, "triggerExecution": 63},
    "stateOperators": [],
    "sources": [
        {
            "description": "PythonMicroBatchStreamWithTriggerAvailableNow@7cf09cf6",
            "startOffset": {"offset": 4700000},
            "endOffset": {"offset": 4800000},
            "latestOffset": {"offset": 4850658, "storeTimestamp": STORED},
            "numInputRows": 1,
            "inputRowsPerSecond": 12.5,
            "processedRowsPerSecond": 13.0,
        }
    ],
    "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
    "observedMetrics": {
        "reput": {"parts": 1, "bytes": 100000, "messages": 333, "firstTimestamp": 1795265736000}
    },
}


def test_the_last_trigger() -> None:
    registry = CollectorRegistry()
    last: list[StreamingQueryProgress | BaseException | None] = [None]

    def ask() -> StreamingQueryProgress | None:
        if isinstance(last[0], BaseException):
            raise last[0]
        return last[0]

    registry.register(TriggerCollector(ask))
    name = "reput_trigger_duration_seconds"
    assert registry.get_sample_value(name, {"step": "addBatch"}) is None
    last[0] = StreamingQueryProgress.fromJson(PROGRESS)
    assert registry.get_sample_value(name, {"step": "addBatch"}) == 0.045
    (source,) = PROGRESS["sources"]  # type: ignore[misc]
    last[0] = StreamingQueryProgress.fromJson({**PROGRESS, "sources": [{**source, "endOffset": None}]})
    assert registry.get_sample_value(name, {"step": "addBatch"}) is None, "no batch yet"
    last[0] = Py4JNetworkError("the JVM is gone")
    assert registry.get_sample_value(name, {"step": "addBatch"}) is None


@pytest.fixture
def known(log: LogWriter) -> dict[str, str]:
    """Every sample name with its metric's type."""
    registry = CollectorRegistry()
    metrics = metrics_of(registry, log, State(cursor=0))
    metrics.restarted("x")
    queues = {("T", 0): QueueState(0, 1, 1)}
    found = State(cursor=1, batches=1, queues=queues, findings=[Finding("bad-magic", "x", 0, 1, "", "", "")])
    metrics.batch(found, {"scan": 1.0})
    registry.register(TriggerCollector(lambda: StreamingQueryProgress.fromJson(PROGRESS)))
    TableMetrics(registry, metrics, lambda: 0)
    return {sample.name: family.type for family in registry.collect() for sample in family.samples}


def test_the_page_lists_every_metric(known: dict[str, str]) -> None:
    page = (ROOT / "docs" / "data" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(reput_\w+)(?:\{[\w,]+\})?` *\| (\w+) ", page, re.MULTILINE)
    short = re.compile("_(bucket|count|sum)$")
    kinds = {short.sub("", name): "gauge" if kind == "info" else kind for name, kind in known.items()}
    assert dict(rows) == kinds
    assert len(rows) == len(kinds)


def test_the_alerts_ask_for_metrics_that_there_are(known: dict[str, str]) -> None:
    """In the form that Prometheus takes: https://prometheus.io/docs, "Alerting rules"."""
    (group,) = yaml.safe_load((ROOT / "conf" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    assert group["name"] == "reput"
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names)) >= 8
    for rule in group["rules"]:
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys() <= {*rule, "for"}
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert set(rule["annotations"]) == {"summary", "description"}
        asked = set(re.findall(r"\breput_\w+", rule["expr"]))
        assert asked <= known.keys()
        assert asked or rule["expr"].startswith("up{")
        labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert labels <= {"instance", "kind", "reason"}


def test_alerts_count_what_a_series_begins_with() -> None:
    """One with labels isn't there before, and ``increase`` sees nothing of its first value."""
    page = (ROOT / "docs" / "data" / "metrics.md").read_text(encoding="utf-8")
    (group,) = yaml.safe_load((ROOT / "conf" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    counted = {
        name: rule["expr"] for rule in group["rules"] for name in re.findall(r"increase\((\w+)", rule["expr"])
    }
    labelled = {name for name in counted if f"`{name}{{" in page}
    assert labelled == {"reput_findings_total", "reput_restarts_total"}
    for name in labelled:
        assert f"unless {name} offset" in counted[name]


def test_topics_are_counted_up_to_a_number_of_them(log: LogWriter, state: State) -> None:
    registry = CollectorRegistry()
    metrics = metrics_of(registry, log, state)
    assert metrics.topics() == {"T": 6}
    assert registry.get_sample_value("reput_topic_messages_total", {"topic": "T"}) == 6
    one = state.queues["T", 0]
    many = {(f"T{number:03}", queue): replace(one, next=number) for number in range(80) for queue in (0, 1)}
    metrics.batch(replace(state, queues=many), {})
    found = {
        sample.labels["topic"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "reput_topic_messages_total"
    }
    assert len(found) == 51
    assert found["T079"] == 158
    assert found[""] == 2 * sum(range(30))


def test_the_dashboard_asks_for_metrics_that_there_are(known: dict[str, str]) -> None:
    board = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    asked = set()
    for panel in panels:
        for target in panel["targets"]:
            found = set(re.findall(r"\breput_\w+", target["expr"]))
            assert found or target["expr"].startswith("count(up{"), target
            asked |= found
    assert asked <= known.keys()
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            assert set(re.findall(r"\breput_\w+", variable["definition"])) <= known.keys()
    assert {"reput_lag_bytes", "reput_lag_seconds", "reput_messages_total", "reput_findings_total"} <= asked
    assert {"reput_batch_duration_seconds_bucket", "reput_stage_duration_seconds_sum"} <= asked


def test_the_dashboard_is_laid_out() -> None:
    """As Grafana wants it: panels with an id of their own, none over another, on a grid of 24 columns."""
    board = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    assert board["schemaVersion"] == 39
    assert board["uid"]
    assert board["title"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own
        assert panel["datasource"]["uid"] == "${datasource}"
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


def test_a_table_of_messages_is_watched(log: LogWriter, state: State, tmp_path: Path) -> None:
    settings, out = open_store(log.root).settings, tmp_path / "out"
    reached = [100]
    with watching(0) as watch:
        watch.begin(settings, out, state)
        assert watch.url is not None
        assert not [name for name in scraped(watch.url) if name.startswith("reput_catalog")], "none is kept"
        table = watch.table(tmp_path / "table", lambda: reached[0])
        before = scraped(watch.url)
        assert before["reput_catalog_lag_bytes"] == log.end - 100
        assert before["reput_catalog_last_success_timestamp_seconds"] == 0
        assert before["reput_catalog_failures_total"] == 0
        assert TableNote.read(out) == TableNote(str(tmp_path / "table"))

        table.failed(OutputError("no room", path=tmp_path, next_step="Make\nroom"))
        table.failed(ValueError("x"))
        reached[0] = log.end + 5
        table.succeeded()
        after = scraped(watch.url)
        assert after["reput_catalog_lag_bytes"] == 0, "the output has stepped back, the table not yet"
        assert time.time() - 60 < after["reput_catalog_last_success_timestamp_seconds"] <= time.time()
        assert after["reput_catalog_failures_total"] == 2
        note = TableNote.read(out)
        assert note is not None
        assert (note.failures, note.last_failure) == (2, "x")
        assert note.last_success_ms is not None

        shutil.rmtree(out / names.REPUT)
        (out / names.REPUT).write_text("a note can't be written")
        table.failed(ValueError("y"))
        assert scraped(watch.url)["reput_catalog_failures_total"] == 3
        (out / names.REPUT).unlink()
        (out / names.REPUT).mkdir()
    with watching(None) as watch:
        watch.begin(settings, out, state)
        watch.table(tmp_path / "table", lambda: 0).failed(OutputError("no\nroom"))
        assert TableNote.read(out) == TableNote(str(tmp_path / "table"), 1, None, "no room")
        watch.begin(settings, out, state)
        assert TableNote.read(out) is None, "a tail without a table has no note of one"


def test_a_run_is_watched(log: LogWriter, state: State, tmp_path: Path) -> None:
    settings, out = open_store(log.root).settings, tmp_path / "out"
    with watching(0) as watch:
        watch.begin(settings, out, State(cursor=0))
        watch.follow(lambda: None)
        watch.batch(state, {"scan": 1.0})
        watch.restarted("x")
        assert watch.url is not None
        assert scraped(watch.url)["reput_messages_total"] == 6
        note = RunNote.read(out)
        assert note is not None
        assert (note.pid, note.metrics, note.broker_conf) == (os.getpid(), watch.url, None)
    with watching(None) as watch:
        watch.begin(settings, out, State(cursor=0))
        watch.follow(lambda: None)
        watch.batch(state, {"scan": 1.0})
        watch.restarted("x")
        note = RunNote.read(out)
        assert note is not None
        assert watch.url is note.metrics is None
