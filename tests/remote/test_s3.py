"""Stores in an object store: what reads them says what it says of the same store here."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import obstore
import pytest

import reput
from reput.config.kept import batch_queue_topics
from reput.config.settings import StoreSettings
from reput.config.stand_in import opened
from reput.format import names
from reput.log.segments import cut, discover
from reput.replay.target import Selection
from reput.statistics import count
from reput.store.compare import compare
from tests.golden.store import GoldenStore, unpack
from tests.local import Store, rebuild_locally
from tests.rebuilds import Command, Outcome, environment, run, start
from tests.remote import gateway as servers
from tests.remote.gateway import BUCKET, KEY, SECRET, Gateway, breaking, s3

pytestmark = [
    pytest.mark.slow,  # the server is built, once per user
    pytest.mark.skipif(servers.why_not() is not None, reason=f"NOT TESTED: {servers.why_not()}"),
]
Use = Callable[..., None]


@pytest.fixture(autouse=True)
def _credentials(credentials: Use) -> None:
    """All tests need them."""


def uploaded(gateway: Gateway, name: str, tmp_path: Path) -> tuple[GoldenStore, str]:
    """A golden store here, and the URL of the same in the bucket."""
    store = unpack(name, tmp_path / name / "store")
    store.write_topics_json()
    return store, gateway.upload(store.root, f"{tmp_path.name}/{name}/store")


def without_places(text: str, *places: object) -> str:
    for place in places:
        text = text.replace(str(place), "STORE")
    return text


def steady(lines: list[str]) -> list[str]:
    """Without what differs from run to run."""
    changing = ("seconds", "took", "made_ms", "taken_ms", " are free")
    return [line for line in lines if not any(word in line for word in changing)]


def words_of(store: GoldenStore, tmp_path: Path) -> list[str | Path]:
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    return ["--broker-conf", conf, "--rocketmq-version", store.version]


# --- what reads says the same ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["4.9.7-queue-ext", "4.9.7-lmq", "5.3.3-property-crc", "5.5.0-batch-queue", "5.5.0-hostile"]
)
def test_a_rebuild_of_each_kind(gateway: Gateway, name: str, tmp_path: Path) -> None:
    store, url = uploaded(gateway, name, tmp_path)
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    for place, out in ((store.root, "here"), (opened(url, derived=False).root, "there")):
        settings = StoreSettings.load(place, conf, store.version)
        selection = Selection(batch=frozenset(batch_queue_topics(settings.config)))
        rebuild_locally(Store(place, settings, selection), tmp_path / out, part_bytes=30_000)
    found = compare(tmp_path / "here", tmp_path / "there")
    assert found.differences == ()
    assert found.queue_bytes > 0


@pytest.mark.proof
@pytest.mark.spark
def test_a_rebuild_says_and_keeps_the_url(gateway: Gateway, tmp_path: Path) -> None:
    store, url = uploaded(gateway, "5.5.0-dledger", tmp_path)
    out = tmp_path / "out"
    words = [*words_of(store, tmp_path), "--max-bytes-per-trigger", "100k"]
    done = run("rebuild", url, "--out", out, *words, "--json", env=environment(**gateway.environment()))
    assert done.code == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["store"] == url
    here = tmp_path / "here"
    assert run("rebuild", store.root, "--out", here, *words).code == 0
    found = compare(here, out)
    assert found.differences == ()
    assert found.queue_bytes > 0
    # The same command has nothing more to do, and a store's URL is what the output was begun from.
    again = run("rebuild", url, "--out", out, *words, "--json", env=environment(**gateway.environment()))
    assert again.code == 0, again.stderr
    assert json.loads(again.stdout)["messages"] == summary["messages"]
    kept = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    for said in (kept, done.stdout.encode(), done.stderr.encode()):
        assert SECRET.encode() not in said
        assert b"reput-remote-" not in said


@pytest.mark.proof
@pytest.mark.spark
def test_a_killed_rebuild_goes_on(gateway: Gateway, tmp_path: Path) -> None:
    store, url = uploaded(gateway, "5.3.3-mixed", tmp_path)
    out = tmp_path / "out"
    words = ["rebuild", url, "--out", out, *words_of(store, tmp_path), "--max-bytes-per-trigger", "60k"]
    with breaking(gateway) as slow:
        process = start(*words, env=environment(**gateway.environment(AWS_ENDPOINT_URL=slow.endpoint)))
        await_first_commit(process, out)
        slow.delay = 60  # the next range never comes
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert len(compare(store.root, out).differences) > 0
    done = run(*words, "--json", env=environment(**gateway.environment()))
    assert done.code == 0, done.stderr
    assert compare(store.root, out).differences == ()


def await_first_commit(process: subprocess.Popen[str], out: Path) -> None:
    deadline = time.monotonic() + 120
    while not any((out / names.CONSUME_QUEUE).rglob(names.offset_name(0))):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_looks_say_what_they_say_of_a_store_here(gateway: Gateway, command: Command, tmp_path: Path) -> None:
    store = unpack("5.3.3-mixed", tmp_path / "store")
    store.write_topics_json()
    offsets = {"offsetTable": {"Orders@group": {"0": 1, "1": 0}}}
    (store.root / names.CONFIG / "consumerOffset.json").write_text(json.dumps(offsets))
    url = gateway.upload(store.root, f"{tmp_path.name}/store")
    for words in (
        ["stats", "STORE", "--by", "queue", "--json"],
        ["query", "STORE", "--queue", "Orders:0", "--at", "3", "--limit", "4", "--json"],
        ["query", "STORE", "--topic", "Orders", "--key", "nothing", "--json"],
        ["stats", "STORE", "--topics", "--json"],
        ["lag", "STORE", "--json"],
        ["dump", "commitlog", "STORE", "--limit", "5", "--json"],
        ["dump", "commitlog", "STORE", "--stats"],
        ["dump", "consumequeue", "STORE", "--limit", "20"],
        ["dump", "index", "STORE", "--headers"],
        ["dump", "checkpoint", "STORE", "--json"],
        ["dump", "digest", "STORE", "--out", str(tmp_path / "digests"), "--force"],
        ["export", "STORE", "--out", "-", "--limit", "5"],
        ["export", "STORE", "--out", str(tmp_path / "exported"), "--force"],
        ["export", "STORE", "--finding", "missing-unit", "--out", str(tmp_path / "missing")],
        ["rebuild", "STORE", "--out", str(tmp_path / "rebuilt"), "--dry-run"],
    ):
        here, there = (
            # Without progress, which a busy machine has more of.
            command("-q", *[place if word == "STORE" else word for word in words])
            for place in (store.root, url)
        )
        assert here.code in (0, 1), here.stderr
        told = [
            # A file of digests has the store's place in it.
            re.sub(
                r"(?m)[0-9.]+ KiB$", "", without_places(one.stdout + one.stderr, store.root, url)
            ).splitlines()
            for one in (here, there)
        ]
        assert there.code == here.code, there.stderr
        expected, found = map(steady, told)
        assert len(found) == len(expected), words
        assert [pair for pair in zip(expected, found, strict=True) if pair[0] != pair[1]] == [], words
    expected, found = (
        json.loads(without_places(command("-q", "report", place, "--json").stdout, store.root, url))
        for place in (store.root, url)
    )
    # No broker starts on it there.
    assert expected["starting"]["starts"]
    assert found["starting"] is None
    (unread,) = found["not_read"]
    assert unread.startswith("what a start would do")
    differing = ("starting", "not_read", "made_ms", "seconds")
    assert found.keys() == expected.keys()
    assert [name for name in found if name not in differing and found[name] != expected[name]] == []
    for kept in (tmp_path / "digests", tmp_path / "exported"):
        assert "reput-remote-" not in kept.read_text()
        assert SECRET not in kept.read_text()


@pytest.mark.parametrize("name", ["5.5.0-dledger", "4.9.7-dledger", "4.9.7-lost-head", "5.3.3-crash"])
def test_logs_of_other_kinds(gateway: Gateway, command: Command, name: str, tmp_path: Path) -> None:
    store, url = uploaded(gateway, name, tmp_path)
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    for words in (["stats", "STORE"], ["dump", "commitlog", "STORE", "--stats"]):
        here, there = (
            command(
                *[place if word == "STORE" else word for word in words],
                *("--broker-conf", conf, "--rocketmq-version", store.version),
            )
            for place in (store.root, url)
        )
        assert here.code in (0, 1), here.stderr
        assert there.code == here.code, there.stderr
        assert steady(without_places(there.stdout, url).splitlines()) == steady(
            without_places(here.stdout, store.root).splitlines()
        )


@pytest.mark.spark
def test_check_finds_a_changed_unit_and_names_its_url(gateway: Gateway, tmp_path: Path) -> None:
    store, _ = uploaded(gateway, "5.3.3-mixed", tmp_path)
    queue = store.root / names.CONSUME_QUEUE / "Orders" / "0" / names.offset_name(0)
    data = bytearray(queue.read_bytes())
    data[20 + 7] ^= 1
    queue.write_bytes(data)
    url = gateway.upload(store.root, f"{tmp_path.name}/harmed/store")
    done = run("check", url, "--json", env=environment(**gateway.environment()))
    assert done.code == 3, done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["path"] == f"{url}/consumequeue/Orders/0/{names.offset_name(0)}"
    # What can't be mended there isn't said to be.
    (step,) = json.loads(done.stdout)["next_steps"]
    assert step.startswith(f"`reput restore {url} --out DIR` ")


def test_a_quick_look_tells_nothing_of_a_start(gateway: Gateway, tmp_path: Path) -> None:
    _, url = uploaded(gateway, "5.3.3-mixed", tmp_path)
    for option in ("--quick", "--for-start"):
        done = run("check", url, option, env=environment(**gateway.environment()))
        assert done.code == 5, done.stdout + done.stderr
        assert "can't be told: not-foretold: a broker starts on a store here" in done.stdout


def test_nothing_of_it_is_left(gateway: Gateway, tmp_path: Path) -> None:
    _, url = uploaded(gateway, "5.3.3-tiny", tmp_path)
    (own := tmp_path / "tmp").mkdir()
    left = own / "reput-remote-of-a-killed-run"
    (left / "store").mkdir(parents=True)
    held = own / "reput-remote-of-a-new-run"
    held.mkdir()
    os.utime(left, (1, 1))
    done = run("stats", url, env=environment(**gateway.environment(), TMPDIR=str(own)))
    assert done.code == 0, done.stderr
    assert os.listdir(own) == [held.name]  # noqa: PTH208


def test_from_python(gateway: Gateway, tmp_path: Path) -> None:
    here, url = uploaded(gateway, "5.3.3-mixed", tmp_path)
    store, there = reput.open(here.root), reput.open(url)
    assert [one.record for one in there.messages()] == [one.record for one in store.messages()]
    assert [(one.topic, one.max_offset) for one in there.queues()] == [
        (one.topic, one.max_offset) for one in store.queues()
    ]
    found = there.check()
    assert (found.verdict.sort, found.exit_code) == ("start", 0)
    assert found.report is not None
    with pytest.raises(reput.ReputError, match="needs a directory of this host"):
        reput.mend(url)


def test_tasks_need_nothing_of_the_drivers_host(gateway: Gateway, tmp_path: Path) -> None:
    """As on another host: the directory that stands for the store isn't there."""
    _, url = uploaded(gateway, "5.3.3-mixed", tmp_path)
    store = opened(url, derived=False)
    settings = StoreSettings.load(store.root, None, "5.3.3")
    log = discover(settings)
    parts = list(cut(log, log.start, log.end, 20_000, None))
    task = tmp_path / "task"
    task.write_bytes(pickle.dumps((settings, parts)))
    shutil.rmtree(store.root.parent)
    done = run_python(_TASK, task, env=environment(**gateway.environment()))
    assert done.code == 0, done.stderr
    messages = count(StoreSettings.load(unpack("5.3.3-mixed", tmp_path / "again").root, None, "5.3.3"))
    assert messages.total is not None
    assert json.loads(done.stdout) == messages.total.messages


_TASK = """
import pickle, sys
from pathlib import Path
from reput.source.messages import read

settings, parts = pickle.loads(Path(sys.argv[1]).read_bytes())
print(sum(batch.num_rows for part in parts for batch in read(part, settings, ("size",))))
"""


# --- bad input -----------------------------------------------------------------------------------------


def said(done: Outcome) -> str:
    assert done.code == 2, done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr
    assert "AWS4" not in done.stderr
    return " ".join(done.stderr.split())


def test_what_isnt_there(gateway: Gateway, command: Command, tmp_path: Path) -> None:
    _, url = uploaded(gateway, "5.3.3-tiny", tmp_path)
    assert "there is no store here" in said(command("stats", f"s3://{BUCKET}/{tmp_path.name}/nothing"))
    assert "404" in said(command("stats", "s3://no-such-bucket/store"))
    assert "this is a commit log, not a store" in said(command("stats", f"{url}/commitlog"))


def test_wrong_credentials(gateway: Gateway, command: Command, tmp_path: Path, credentials: Use) -> None:
    _, url = uploaded(gateway, "5.3.3-tiny", tmp_path)
    for changes, expected in (
        ({"AWS_SECRET_ACCESS_KEY": "another-secret"}, "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "No user exists"),  # S3 says 403 InvalidAccessKeyId
    ):
        credentials(**changes)
        told = said(command("stats", url))
        assert "another-secret" not in told
        assert "nobody" not in told
        assert expected in told
        assert "the credentials in the environment" in told
        assert "trying again" not in told


def test_a_bucket_that_vanishes(
    gateway: Gateway, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reput.remote.segment import RemoteSegment

    store = unpack("5.3.3-tiny", tmp_path / "store")
    url = gateway.upload(store.root, "store", bucket=(bucket := f"vanishing-{os.getpid()}"))
    began = RemoteSegment.__init__

    def vanish(self: RemoteSegment, *arguments: object, **more: object) -> None:
        with suppress(FileNotFoundError):  # segments are read at once
            (gateway.data / bucket).rename(tmp_path / "gone")
        monkeypatch.setattr(RemoteSegment, "__init__", began)
        began(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteSegment, "__init__", vanish)
    told = said(command("stats", url))
    assert f"{url}/commitlog/" in told
    assert "it isn't there" in told or "404" in told


@pytest.mark.parametrize("how", ["deleted", "changed", "shorter", "empty"])
def test_a_segment_that_isnt_what_was_listed(
    gateway: Gateway, command: Command, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it was listed, a missing object is no expired segment."""
    from reput.remote.segment import RemoteSegment

    store, url = uploaded(gateway, "5.3.3-tiny", tmp_path)
    first = sorted((store.root / names.COMMIT_LOG).iterdir())[0]
    key = f"{url.removeprefix(f's3://{BUCKET}/')}/commitlog/{first.name}"
    began = RemoteSegment.__init__

    def harm(self: RemoteSegment, *arguments: object, **more: object) -> None:
        data = bytearray(first.read_bytes())
        if how == "deleted":
            obstore.delete(s3(gateway), key)
        elif how == "changed":
            obstore.put(s3(gateway), key, bytes(data[:-1] + b"\1"))
        else:
            obstore.put(s3(gateway), key, bytes(data[:100] if how == "shorter" else b""))
        monkeypatch.setattr(RemoteSegment, "__init__", began)
        began(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteSegment, "__init__", harm)
    told = said(command("stats", url))
    assert f"{url}/commitlog/{first.name}: " in told
    assert ("it isn't there" if how == "deleted" else "it has changed since the run was planned") in told


def test_a_segment_that_is_cut_short(gateway: Gateway, command: Command, tmp_path: Path) -> None:
    """An object that was never whole is said as a file here is."""
    store, _ = uploaded(gateway, "5.3.3-mixed", tmp_path)
    last = sorted((store.root / names.COMMIT_LOG).iterdir())[-1]
    os.truncate(last, last.stat().st_size // 3)
    url = gateway.upload(store.root, f"{tmp_path.name}/cut/store")
    words = [*words_of(store, tmp_path)]
    here, there = (command("stats", place, *words, "--json") for place in (store.root, url))
    assert (there.code, here.code) == (1, 1), there.stderr
    assert steady(without_places(there.stdout, url).splitlines()) == steady(
        without_places(here.stdout, store.root).splitlines()
    )


def test_a_server_that_breaks_off(
    gateway: Gateway,
    command: Command,
    tmp_path: Path,
    credentials: Use,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, url = uploaded(gateway, "5.3.3-mixed", tmp_path)
    expected = command("stats", store.root, "--json")
    with breaking(gateway) as broken:
        credentials(AWS_ENDPOINT_URL=broken.endpoint)
        broken.cut = [0, -1, 90, -1, -1, 20_000, -1, 5]
        done = command("stats", url, "--json")
        assert done.code == 0, done.stderr
        assert "trying again in" in caplog.text
        here, there = without_places(expected.stdout, store.root), without_places(done.stdout, url)
        assert steady(there.splitlines()) == steady(here.splitlines())
        credentials(AWS_ENDPOINT_URL=broken.endpoint)
        broken.cut, broken.seen = [10] * 1000, 0
        told = said(command("stats", url))
        assert "3 times" in told
        assert "Check the network and the server" in told
        assert broken.seen == 3


def test_a_slow_server(
    gateway: Gateway, command: Command, tmp_path: Path, credentials: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = uploaded(gateway, "5.3.3-tiny", tmp_path)
    with breaking(gateway) as slow:
        slow.delay = 0.05
        credentials(AWS_ENDPOINT_URL=slow.endpoint)
        assert command("stats", url).code == 0
        slow.delay = 10.0
        monkeypatch.setattr("reput.remote.client._TIMEOUT", 0.2)
        credentials(AWS_ENDPOINT_URL=slow.endpoint)
        began = time.monotonic()
        told = said(command("stats", url))
        assert "3 times" in told
        assert time.monotonic() - began < 9


def test_a_clock_that_signatures_dont_like(
    gateway: Gateway, command: Command, tmp_path: Path, credentials: Use
) -> None:
    _, url = uploaded(gateway, "5.3.3-tiny", tmp_path)
    # As S3 answers; it has the key's id, and what was signed.
    body = (
        "<?xml version='1.0'?><Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the "
        f"request time and the current time is too large.</Message><AWSAccessKeyId>{KEY}</AWSAccessKeyId>"
        f"<StringToSign>AWS4-HMAC-SHA256 {KEY}</StringToSign></Error>"
    )
    with breaking(gateway) as skewed:
        skewed.answer = (
            f"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
            f"Connection: close\r\n\r\n{body}"
        ).encode()
        credentials(AWS_ENDPOINT_URL=skewed.endpoint)
        told = said(command("stats", url))
    assert "RequestTimeTooSkewed" in told
    assert "Set this host's clock" in told
    assert skewed.seen == 1


def test_what_reads_it_is_not_installed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    for url, package in ((f"s3://{BUCKET}/store", "obstore"), ("hdfs://127.0.0.1:9/store", "hdfs-native")):
        told = said(command("stats", url))
        assert f"expected the package {package}" in told
        assert "pip install '.[remote]'" in told


@pytest.mark.proof
@pytest.mark.spark
def test_no_secret_is_said_or_kept(gateway: Gateway, tmp_path: Path) -> None:
    """Of a run that fails half way, with all that it can say."""
    store, url = uploaded(gateway, "5.3.3-mixed", tmp_path)
    last = sorted((store.root / names.COMMIT_LOG).iterdir())[-1]
    key = f"{url.removeprefix(f's3://{BUCKET}/')}/commitlog/{last.name}"
    out = tmp_path / "out"
    with breaking(gateway) as broken:
        env = environment(
            **gateway.environment(AWS_ENDPOINT_URL=broken.endpoint), REPUT_TRACEBACK="1", RUST_LOG="trace"
        )
        words = ["rebuild", url, "--out", out, *words_of(store, tmp_path), "--max-bytes-per-trigger", "60k"]
        process = start(*words, env=env)
        await_first_commit(process, out)
        obstore.put(s3(gateway), key, b"another one")
        broken.cut = [5]  # so that it has something to say
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 2, stderr
    assert "has changed since the run was planned" in stderr
    kept = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert SECRET.encode() not in kept + stdout.encode() + stderr.encode()


@pytest.mark.proof
@pytest.mark.spark
def test_sources(gateway: Gateway, tmp_path: Path) -> None:
    """In a process of its own: Spark's workers get the environment of the JVM."""
    store, url = uploaded(gateway, "5.3.3-mixed", tmp_path)
    done = run_python(
        _SOURCES, store.root, url, env=environment(**gateway.environment(), TMPDIR=str(tmp_path))
    )
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    for source, (here, there) in found.items():
        assert here, source
        assert without_places(json.dumps(there), url) == without_places(json.dumps(here), store.root), source


_SOURCES = """
import json, sys
from reput.source import read
from reput.spark import session

spark = session("test")
found = {}
for source in ("rocketmq-commitlog", "rocketmq-consumequeue", "rocketmq-index"):
    more = {"storeColumn": True} if source == "rocketmq-commitlog" else {}
    for store in sys.argv[1:]:
        rows = read(spark, store, source=source, **more).collect()
        found.setdefault(source, []).append(sorted(str(row.asDict()) for row in rows))
stream = spark.readStream.format("rocketmq-commitlog").load(sys.argv[2])
query = stream.writeStream.format("memory").queryName("t").trigger(availableNow=True).start()
query.awaitTermination()
count = spark.table("t").count()
found["stream"] = [len(found["rocketmq-commitlog"][0]), count]
print(json.dumps(found))
"""


def run_python(text: str, *words: object, env: dict[str, str]) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, words)],
        check=False,
        env=env,
        capture_output=True,
        text=True,
        timeout=180,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("5.5.0-rocksdb-separate-path", "query --queue One:0 --at 0"),
        ("5.5.0-rocksdb-settings-single", "lag --by queue"),
    ],
)
def test_what_is_in_rocksdb_is_read(
    gateway: Gateway, command: Command, tmp_path: Path, name: str, words: str
) -> None:
    store = unpack(name, tmp_path / name / "store")
    url = gateway.upload(store.root, f"{tmp_path.name}/{name}/store")
    verb, *more = words.split()
    here, there = (command(verb, place, *more, *words_of(store, tmp_path)) for place in (store.root, url))
    assert here.code in (0, 1), here.stderr
    assert there.code == here.code, there.stderr
    assert without_places(there.stdout, url) == without_places(here.stdout, store.root)
