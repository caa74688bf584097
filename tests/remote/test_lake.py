"""One table of many stores in an object store: each message once, whoever is killed, and read by others."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from reput.catalog import Cataloged, CatalogOptions, hold, update
from reput.catalog.table import Broker, Table
from reput.catalog.update import Catalog
from reput.errors import OutputError, RemoteStoreError, StoreInUseError, UnsupportedError
from tests.compat.jars import hadoop_aws_jars
from tests.golden.store import unpack
from tests.here import Here
from tests.rebuilds import environment
from tests.rebuilds import run as reput
from tests.remote import gateway as servers
from tests.remote.gateway import BUCKET, KEY, SECRET, Gateway, breaking
from tests.stores import move_to_host

pytestmark = [
    pytest.mark.slow,  # the server is built, once per user
    pytest.mark.skipif(servers.why_not() is not None, reason=f"NOT TESTED: {servers.why_not()}"),
]
Use = Callable[..., None]
_MESSAGES = 847


@pytest.fixture(autouse=True)
def _credentials(credentials: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests need them."""
    monkeypatch.setattr("reput.remote.client._clients", {})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}/messages"


def options(tmp_path: Path, url: str, name: str, **more: Any) -> CatalogOptions:
    """Of a store like the others' but for its host."""
    store = unpack("5.3.3-mixed", tmp_path / name / "store")
    move_to_host(store.root, ord(name[-1]))
    conf = store.write_broker_conf(tmp_path / name / "broker.conf")
    return CatalogOptions(store.root, Path(url), conf, "5.3.3", cluster="east", broker=name, **more)


def cataloged(wanted: CatalogOptions) -> Cataloged:
    return update.catalog(wanted, Here)


def held(url: str) -> dict[str, tuple[int, int]]:
    """How many rows there are of each broker, and how many different ones."""
    query = (
        'SELECT broker, count(*) AS all, count(DISTINCT "physicalOffset") AS once FROM held GROUP BY broker'
    )
    rows = pa.table(QueryBuilder().register("held", DeltaTable(url)).execute(query).read_all())
    return {row["broker"]: (row["all"], row["once"]) for row in rows.to_pylist()}


def never_named(gateway: Gateway, url: str) -> set[str]:
    """Data files that no version of the table has ever named."""
    root = gateway.data / url.removeprefix("s3://")
    named = {
        json.loads(line)["add"]["path"]
        for entry in (root / "_delta_log").glob("*.json")
        for line in entry.read_text().splitlines()
        if "add" in line[:8]
    }
    assert named
    return {path.relative_to(root).as_posix() for path in root.rglob("*.parquet")} - named


# --- killed ------------------------------------------------------------------------------------------

_WRITER = """
import sys
from pathlib import Path
from reput.catalog import update
from reput.catalog import CatalogOptions
from reput.catalog.update import catalog
from tests.here import Here

store, table, conf, name = sys.argv[1:]
update.MANY = 6
print("began", flush=True)
options = CatalogOptions(
    Path(store), Path(table), Path(conf), "5.3.3", cluster="east", broker=name, max_bytes_per_trigger=12_000
)
done = catalog(options, Here)
print("ended", done.commits, len(done.clustered))
"""


@pytest.mark.proof
def test_two_writers_that_are_killed_at_any_moment(gateway: Gateway, url: str, tmp_path: Path) -> None:
    """Of different stores, at a time; then each message is there once, and nothing is left over."""
    seed = int(time.time())
    kills: dict[str, int] = {}
    ended: dict[str, str] = {}

    def write(name: str) -> None:
        wanted = options(tmp_path, url, name)
        chance = random.Random(f"{seed} {name}")
        words = [str(wanted.store), url, str(wanted.broker_conf), name]
        while name not in ended:
            process = subprocess.Popen(
                [sys.executable, "-c", _WRITER, *words],
                env=environment(**gateway.environment(), PYTHONPATH=os.pathsep.join(sys.path)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert process.stdout is not None
            assert process.stdout.readline() == "began\n"
            try:
                process.wait(chance.uniform(0.05, 2.0) if kills.get(name, 0) < 6 else 120)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills[name] = kills.get(name, 0) + 1
                process.communicate()
                continue
            said = process.communicate()[0]
            assert process.returncode == 0, (seed, said)
            ended[name] = said

    writers = [threading.Thread(target=write, args=(name,)) for name in ("broker-a", "broker-b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert ended.keys() == {"broker-a", "broker-b"}, seed
    assert sum(kills.values()) > 4, seed
    once = (_MESSAGES, _MESSAGES)
    assert held(url) == {"broker-a": once, "broker-b": once}, seed
    places = Table(Path(url), Broker("east", "broker-a")).between(0, 1 << 40).column("physicalOffset")
    assert places == Table(Path(url), Broker("east", "broker-b")).between(0, 1 << 40).column("physicalOffset")
    assert never_named(gateway, url) == set(), seed
    for name in ("broker-a", "broker-b"):
        note = json.loads(
            (
                gateway.data / url[5:] / ".reput" / "brokers" / f"{Broker('east', name).digest}.json"
            ).read_text()
        )
        assert (note["token"], note["broker"]) == (None, name)


# --- two runs of one store -----------------------------------------------------------------------


def _elsewhere(patch: pytest.MonkeyPatch) -> None:
    """As a run on another host, which takes one that is silent for dead."""
    patch.setattr(hold, "_process", lambda pid: {"host": "b", "name": "b", "pid": pid, "started": "1"})


def test_a_run_that_lives_is_left_alone(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = options(tmp_path, url, "broker-a")
    with Catalog(wanted, either=True):
        with pytest.raises(StoreInUseError, match=rf"process {os.getpid()} on this host"):
            cataloged(wanted)
        with monkeypatch.context() as patch:
            _elsewhere(patch)
            said = r"a sign of life (\d+) s ago.*again in (\d+) s"
            with pytest.raises(StoreInUseError, match=said) as refused:
                cataloged(wanted)
            silent, left = map(int, re.findall(said, str(refused.value))[0])
            assert 599 <= silent + left <= 601
            assert silent < 60, "a slow disk at most"
        assert cataloged(options(tmp_path, url, "broker-b")).messages == _MESSAGES
    assert cataloged(wanted).messages == _MESSAGES


@pytest.mark.parametrize("when", ["before it looks", "after it looked", "at its first commit"])
def test_a_run_that_was_taken_for_dead_commits_nothing(
    gateway: Gateway, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Another run took over while it stood still, and did all of it."""
    wanted = options(tmp_path, url, "broker-a", max_bytes_per_trigger=100_000, optimize=False)
    if when != "at its first commit":
        with pytest.MonkeyPatch.context() as patch:
            _stop_after(patch, 2)
            with pytest.raises(RuntimeError, match="stopped"):
                cataloged(wanted)
        assert held(url)["broker-a"][0] < _MESSAGES
    left = [0]

    def overtake() -> None:
        if not left:
            return
        left.clear()
        with pytest.MonkeyPatch.context() as patch:
            _elsewhere(patch)
            patch.setattr(hold, "DEAD_SECONDS", -1.0)
            assert cataloged(replace(wanted)).messages == _MESSAGES

    check = hold.RemoteHold.check
    if when == "before it looks":
        monkeypatch.setattr(hold.RemoteHold, "check", lambda self: (overtake(), check(self)))
    else:
        monkeypatch.setattr(hold.RemoteHold, "check", lambda self: (check(self), overtake()))
    with pytest.raises(OutputError, match="another run"):
        cataloged(wanted)
    monkeypatch.undo()
    _as_before(gateway, monkeypatch)
    assert held(url) == {"broker-a": (_MESSAGES, _MESSAGES)}
    again = cataloged(wanted)
    assert (again.added, again.messages) == (0, _MESSAGES)
    print(
        (
            gateway.data / url[5:] / ".reput" / "brokers" / f"{Broker('east', 'broker-a').digest}.json"
        ).read_text()
    )
    assert never_named(gateway, url) == set()


def _as_before(gateway: Gateway, patch: pytest.MonkeyPatch) -> None:
    for name, value in gateway.environment().items():
        patch.setenv(name, value)


def _stop_after(patch: pytest.MonkeyPatch, commits: int) -> None:
    from reput.catalog.appending import Appending

    commit = Appending._commit

    def stopping(self: Appending, *given: Any) -> None:
        commit(self, *given)
        if self.commits == commits:
            raise RuntimeError("stopped")

    patch.setattr(Appending, "_commit", stopping)


# --- bad servers -------------------------------------------------------------------------------------


class _Deaf(BaseHTTPRequestHandler):
    """S3, as far as needed, of a server that doesn't know conditions of writes."""

    kept: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        if "list-type" in self.path:
            self._answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
        else:
            self._answer(200 if self.path in self.kept else 404, self.kept.get(self.path, b""))

    def do_PUT(self) -> None:
        self.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hash(self.kept.get(self.path))}"')
        self.send_header("Last-Modified", self.date_time_string())
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_without_conditional_writes_is_refused(url: str, tmp_path: Path, credentials: Use) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Deaf) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        credentials(AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(
            UnsupportedError, match=r"although a condition forbids it.*If-None-Match is ignored"
        ):
            cataloged(options(tmp_path, url, "broker-a"))
        server.shutdown()
    assert [path for path in _Deaf.kept if path.endswith("parquet")] == []


def test_a_server_that_breaks_off_answers(
    gateway: Gateway, url: str, tmp_path: Path, credentials: Use
) -> None:
    """Also that to a commit: whether it was made is looked up."""
    chance = random.Random(7)
    with breaking(gateway) as broken:
        credentials(AWS_ENDPOINT_URL=broken.endpoint)
        broken.cut = [chance.choice([0, 40]) if chance.random() < 0.06 else -1 for _ in range(2000)]
        wanted = options(tmp_path, url, "broker-a", max_bytes_per_trigger=60_000)
        said: list[str] = []
        for _ in range(20):
            try:
                done = cataloged(wanted)
                break
            except (RemoteStoreError, OutputError) as error:
                said.append(str(error))
        assert SECRET not in " ".join(said)
        assert KEY not in " ".join(said)
        assert done.messages == _MESSAGES
    credentials()
    assert held(url) == {"broker-a": (_MESSAGES, _MESSAGES)}


def test_no_secret_is_said_or_kept(gateway: Gateway, url: str, tmp_path: Path) -> None:
    wanted = options(tmp_path, url, "broker-a")
    words = ["catalog", wanted.store, "--table", url, "--broker-conf", wanted.broker_conf or ""]
    words += ["--cluster", "east", "--broker", "broker-a", "--rocketmq-version", "5.3.3", "--json"]
    for changes, expected in (
        ({"AWS_SECRET_ACCESS_KEY": "another-secret"}, "SignatureDoesNotMatch"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "refused"),
    ):
        env = environment(**gateway.environment(**changes), REPUT_TRACEBACK="1")
        done = reput(*words, env=env)
        assert done.code == 2, done.stdout
        assert expected in done.stderr
        assert "the credentials in the environment" in done.stderr
        for secret in (SECRET, "another-secret", KEY, "AWS4"):
            assert secret not in done.stdout + done.stderr
    cataloged(wanted)
    kept = b"".join(path.read_bytes() for path in (gateway.data / url[5:]).rglob("*") if path.is_file())
    assert SECRET.encode() not in kept
    assert KEY.encode() not in kept


def test_a_table_in_or_around_its_store_is_refused(gateway: Gateway, tmp_path: Path) -> None:
    store = unpack("5.3.3-tiny", tmp_path / "store")
    place = gateway.upload(store.root, f"{tmp_path.name}/a/store")
    for table in (f"{place}/table", place, place.removesuffix("/store")):
        done = reput("catalog", place, "--table", table, env=environment(**gateway.environment()))
        assert (done.code, "can't be inside each other" in done.stderr) == (2, True), done.stderr
    assert "HDFS" in reput("catalog", store.root, "--table", "hdfs://host/table").stderr


# --- read by others ----------------------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.spark
@pytest.mark.usefixtures("has_delta")
def test_stores_at_urls_and_readers_of_the_table(gateway: Gateway, url: str, tmp_path: Path) -> None:
    """The whole command on Spark; read by Spark, Polars and DuckDB."""
    env = environment(**gateway.environment())
    lines = ['cluster = "east"', 'rocketmq_version = "5.3.3"']
    for name in ("broker-a", "broker-b"):
        wanted = options(tmp_path, url, name)
        place = gateway.upload(wanted.store, f"{tmp_path.name}/backup/{name}/store")
        (tmp_path / f"{name}.conf").write_text(
            "".join(
                line
                for line in Path(wanted.broker_conf or "").read_text().splitlines(keepends=True)
                if not line.startswith("storePath")
            )
        )
        lines += ["[[store]]", f'place = "{place}"', f'broker = "{name}"', f'broker_conf = "{name}.conf"']
    (tmp_path / "stores.toml").write_text("\n".join(lines))
    done = reput("catalog", tmp_path / "stores.toml", "--table", url, "--bodies", "--json", env=env)
    assert done.code == 0, done.stderr
    said = json.loads(done.stdout)
    assert [(one["broker"], one["added"]) for one in said["stores"]] == [
        ("broker-a", _MESSAGES),
        ("broker-b", _MESSAGES),
    ]
    assert "backup/broker-a/store" in said["stores"][0]["store"]
    assert held(url) == dict.fromkeys(("broker-a", "broker-b"), (_MESSAGES, _MESSAGES))
    readers = {"pyspark": _BY_SPARK, "polars": _BY_POLARS, "duckdb": _BY_DUCKDB}
    missing = [name for name in readers if find_spec(name) is None]
    readers = {name: script for name, script in readers.items() if name not in missing}
    found = {}
    for name, script in readers.items():
        read = subprocess.run(
            [sys.executable, "-c", script, url, ",".join(map(str, hadoop_aws_jars()))],
            check=False,
            env=environment(**gateway.environment(), PYTHONPATH=os.pathsep.join(sys.path)),
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert read.returncode == 0, read.stderr
        found[name] = json.loads(read.stdout.splitlines()[-1])
    expected = DeltaTable(url).to_pyarrow_table(columns=["broker", "topic", "queueId", "body"])
    orders = [row for row in expected.to_pylist() if row["topic"] == "Orders"]
    for name, rows in found.items():
        assert sorted(rows) == sorted(
            [broker, sum(row["broker"] == broker for row in orders), _length(orders, broker)]
            for broker in ("broker-a", "broker-b")
        ), name
    if missing:
        pytest.skip(f"NOT TESTED: {', '.join(missing)}")


def _length(rows: list[dict[str, Any]], broker: str) -> int:
    return sum(len(row["body"] or b"") for row in rows if row["broker"] == broker)


_BY_SPARK = """
import json, os, sys
from pyspark.sql import functions as f
from reput.spark import sessions

url, jars = sys.argv[1:]
settings = {
    "spark.jars": jars,
    "spark.hadoop.fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL"],
    "spark.hadoop.fs.s3a.endpoint.region": os.environ["AWS_REGION"],
    "spark.hadoop.fs.s3a.path.style.access": "true",
}
spark = sessions.session("a reader", "local[1]", settings, delta=True)
rows = spark.read.format("delta").load(url.replace("s3://", "s3a://")).where("topic = 'Orders'")
found = rows.groupBy("broker").agg(f.count("*"), f.sum(f.length("body"))).collect()
print(json.dumps([list(row) for row in found]))
"""
_BY_POLARS = """
import json, sys
import polars as pl

rows = pl.scan_delta(sys.argv[1]).filter(pl.col("topic") == "Orders")
found = rows.group_by("broker").agg(pl.len(), pl.col("body").bin.size().sum())
print(json.dumps(found.collect().rows()))
"""
_BY_DUCKDB = """
import json, sys
import duckdb
from deltalake import DeltaTable

messages = DeltaTable(sys.argv[1]).to_pyarrow_dataset()
what = "broker, count(*), sum(octet_length(body))::BIGINT"
query = f"SELECT {what} FROM messages WHERE topic = 'Orders' GROUP BY broker"
print(json.dumps(duckdb.sql(query).fetchall()))
"""
