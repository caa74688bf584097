"""``reput restore``: a store from an S3 server, whole whatever ends a run, and a broker that starts on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest

from reput.config.stand_in import opened
from reput.errors import RemoteStoreError, StoreError
from reput.format import names, rocksdbqueue
from reput.format.consumequeue import unit
from reput.format.rocksdbqueue import OFFSETS
from reput.job.restore import PARTIAL, SegmentCopies
from reput.output.journal import read_state
from reput.remote.client import RemoteFile
from reput.remote.store import RemoteStore, await_copy, client_of
from reput.store import files
from reput.store.compare import compare
from tests import rocksdbs
from tests.compat.broker import Broker
from tests.compat.conf import conf_text
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.crash import Dying, died
from tests.golden.store import GoldenStore
from tests.levels import tried
from tests.rebuilds import Command, Outcome, broker_conf, environment, golden, run, start, tree
from tests.remote import gateway as servers
from tests.remote.gateway import BUCKET, SECRET, Gateway, breaking, s3
from tests.spark.test_rocksdb import check_queues, contents

pytestmark = [
    pytest.mark.slow,  # the server is built, once per user
    pytest.mark.skipif(servers.why_not() is not None, reason=f"NOT TESTED: {servers.why_not()}"),
    pytest.mark.usefixtures("credentials"),
]


def uploaded(gateway: Gateway, name: str, tmp_path: Path) -> tuple[GoldenStore, str, list[str]]:
    """A golden store here, its URL, and the options that go with it."""
    store = golden(name, tmp_path)
    store.write_topics_json()
    url = gateway.upload(store.root, f"{tmp_path.name}/store")
    return store, url, ["-c", str(broker_conf(store)), "--rocketmq-version", store.version]


def assert_restored(store: GoldenStore, out: Path) -> None:
    """Log, settings, and what is derived are the store's."""
    found = compare(store.root, out)
    assert found.differences == ()
    assert found.queue_bytes > 0
    for name in (names.COMMIT_LOG, names.CONFIG):
        assert tree(out / name) == tree(store.root / name)
    assert not (out / names.REPUT / "copying").exists()


def said(done: Outcome) -> str:
    assert done.code == 2, done.stdout + done.stderr
    return done.stderr


@pytest.mark.spark
@pytest.mark.parametrize("name", tried("5.5.0-mixed", more=["4.9.7-crash"]))
def test_a_store_comes_whole(gateway: Gateway, name: str, tmp_path: Path) -> None:
    store, url, conf = uploaded(gateway, name, tmp_path)
    out = tmp_path / "restored"
    words = ["restore", url, "--out", out, *conf, "--json"]
    env = environment(**gateway.environment())
    would = json.loads(run(*words, "--dry-run", env=env).stdout)
    assert not out.exists()
    done = run(*words, "--max-bytes-per-trigger", "100k", env=env)
    assert done.code == 0, done.stderr
    assert_restored(store, out)
    facts = json.loads(done.stdout)
    assert facts["copied_bytes"] == facts["bytes"] == would["copied_bytes"]
    assert facts["rebuilt"]["batches"] > 1
    assert facts["next_steps"][0].startswith(f"reput check {out} ")
    kept = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    for hidden in (SECRET.encode(), b"reput-remote-"):
        assert hidden not in kept + done.stdout.encode() + done.stderr.encode()

    assert not list((out / names.COMMIT_LOG).glob("*unfinished*"))
    # Nothing is done again, whatever a broker has made of it since.
    first = min((out / names.COMMIT_LOG).iterdir())
    first.unlink()
    again = run(*words, env=env)
    assert (again.code, json.loads(again.stdout)["rebuilt"]) == (0, None)
    assert not first.exists()


@pytest.mark.spark
def test_what_was_found_is_said_again(gateway: Gateway, tmp_path: Path) -> None:
    """A kill may come before a run says what it found; then nobody knows but the store."""
    store = golden("5.3.3-tiny", tmp_path)
    segment = min((store.root / names.COMMIT_LOG).iterdir())
    with segment.open("r+b") as file:
        file.seek(2000)
        file.write(b"\xff" * 100)
    url, out = gateway.upload(store.root, f"{tmp_path.name}/store"), tmp_path / "restored"
    words = ["restore", url, "--out", out, "-c", broker_conf(store), "--rocketmq-version", store.version]
    env = environment(**gateway.environment())
    done = run(*words, "--json", env=env)
    assert done.code == 1, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert findings
    barrier = out / names.COMMIT_LOG / names.RESTORING
    barrier.touch()
    again = run(*words, "--json", env=env)
    assert (again.code, json.loads(again.stdout)["findings"]) == (1, findings)
    assert not barrier.exists()
    # As an earlier version noted it.
    note = out / names.REPUT / "restore.json"
    facts = json.loads(note.read_text())
    del facts["exit_code"]
    note.write_text(json.dumps(facts))
    again = run(*words, env=env)
    assert again.code == 1
    assert "Nothing to do" in again.stdout
    assert f"findings   {len(findings)}\n" in again.stdout


@pytest.mark.parametrize("second", tried("here", more=["empty"]))
def test_of_two_files_for_a_place_the_logs_own_comes(gateway: Gateway, second: str, tmp_path: Path) -> None:
    """Where storePathCommitLog names two directories, and the second one's file isn't the log's."""
    store = golden("5.3.3-mixed", tmp_path)
    log = tree(store.root / names.COMMIT_LOG)
    sound = sorted((store.root / names.COMMIT_LOG).iterdir())[1]
    more = store.root / "more"
    data = sound.read_bytes()
    if second == "here":  # of this host, as the broker's own broker.conf has it
        more = tmp_path / "mnt"
    more.mkdir()
    (more / sound.name).write_bytes(b"" if second == "empty" else data[:20_000].ljust(len(data), b"\0"))
    url = gateway.upload(store.root, f"{tmp_path.name}/store")
    conf = broker_conf(store)
    root = "/data/store"
    beside = more if second == "here" else f"{root}/more"
    text = f"storePathRootDir={root}\nstorePathCommitLog={root}/commitlog,{beside}\n"
    conf.write_text(conf.read_text() + text)
    out = tmp_path / "restored"
    words = ["restore", url, "--out", out, "-c", str(conf), "--rocketmq-version", store.version]
    done = run(*words, env=environment(**gateway.environment()))
    assert done.code in (0, 1), done.stderr
    assert tree(out / names.COMMIT_LOG) == log


@pytest.mark.proof
@pytest.mark.spark
def test_queues_and_index_in_rocksdb(gateway: Gateway, tmp_path: Path) -> None:
    store = golden("5.5.0-rocksdb-lost-head", tmp_path, indexRocksDBEnable=True)
    expected = store.dump()[names.CONSUME_QUEUE]
    gone = rocksdbqueue.offset_key(b"Gone", 3, rocksdbqueue.MAX)
    expected[OFFSETS][gone] = rocksdbqueue.offset_value(7, 41)
    with rocksdbs.writing(store.root / names.CONSUME_QUEUE, OFFSETS) as written:
        family = written.get_column_family(OFFSETS)
        family[gone] = expected[OFFSETS][gone]
        family.close()
    url, out = gateway.upload(store.root, f"{tmp_path.name}/store"), tmp_path / "restored"
    conf = ["-c", str(broker_conf(store)), "--rocketmq-version", store.version]
    done = run("restore", url, "--out", out, *conf, "--json", env=environment(**gateway.environment()))
    assert done.code == 0, done.stderr
    check_queues(contents(out / names.CONSUME_QUEUE), expected, None)
    assert len(contents(out / names.ROCKSDB_STORE)["default"]) > 100


@pytest.mark.proof
@pytest.mark.spark
def test_killed_again_and_again_it_continues(gateway: Gateway, tmp_path: Path) -> None:
    store, url, conf = uploaded(gateway, "5.3.3-mixed", tmp_path)
    out = tmp_path / "restored"
    journal = out / names.REPUT / names.JOURNAL

    def copies() -> int:
        return sum(path.name.isdecimal() for path in (out / names.COMMIT_LOG).iterdir())

    moments: list[Callable[[], object]] = [
        lambda: any(path.name.endswith(PARTIAL) for path in (out / names.COMMIT_LOG).iterdir()),
        lambda: journal.exists() and read_state(journal)[1].batches >= 2,
    ]
    with breaking(gateway) as slow:
        slow.delay = 0.15
        words = ["restore", url, "--out", out, *conf, "--max-bytes-per-trigger", "64k", "--json"]
        env = environment(**{**gateway.environment(), "AWS_ENDPOINT_URL": slow.endpoint})
        kept = 0
        for moment in moments:
            process = start(*words, env=env)
            deadline = time.monotonic() + 120
            while not _seen(moment):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            looked = run("check", out, *conf)
            assert looked.code == 4, looked.stderr
            assert f"it will not start: RocketMQ {store.version} stops at unfinished-restore" in looked.stdout
            assert "Run the same `reput restore` again" in looked.stdout
            before = tree(out)
            assert run("mend", out, "--apply", *conf).code == 4, "half a log is none that can be mended"
            assert tree(out) == before
            assert copies() >= kept
            kept = copies()
        slow.delay = 0.0
        done = run(*words, env=env)
    assert done.code == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["copied_bytes"] < facts["bytes"]
    assert facts["rebuilt"]["new_messages"] < facts["rebuilt"]["messages"]
    assert_restored(store, out)


def _seen(moment: Callable[[], object]) -> bool:
    try:
        return bool(moment())
    except FileNotFoundError:
        return False


def with_expired_queue(name: str, directory: Path) -> GoldenStore:
    """A golden store with a queue, Expired:3, whose messages, 100 to 106, have all expired."""
    store = golden(name, directory)
    start = store.manifest["log"]["start"]
    last = store.root / names.CONSUME_QUEUE / "Expired" / "3" / names.offset_name(2000)
    last.parent.mkdir(parents=True)
    units = b"".join(unit(position, 100, 7) for position in range(start - 700, start, 100))
    last.write_bytes(units.ljust(1000, b"\0"))
    return store


@pytest.mark.proof
@pytest.mark.spark
def test_the_last_files_of_expired_queues_come_too(gateway: Gateway, tmp_path: Path) -> None:
    """Without one the next queueOffset would be 0, and consumers' offsets past the queue's end."""
    store = with_expired_queue("5.3.3-lost-head", tmp_path)
    url, out = gateway.upload(store.root, f"{tmp_path.name}/store"), tmp_path / "restored"
    conf = ["-c", broker_conf(store), "--rocketmq-version", store.version]
    done = run("restore", url, "-o", out, *conf, "--json", env=environment(**gateway.environment()))
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["rebuilt"]["carried_queues"] == ["Expired:3"]
    assert tree(out / names.CONSUME_QUEUE) == tree(store.root / names.CONSUME_QUEUE)


@pytest.mark.proof
@pytest.mark.spark
def test_queues_in_files_that_have_expired_go_on_in_rocksdb(gateway: Gateway, tmp_path: Path) -> None:
    store = with_expired_queue("5.5.0-lost-head", tmp_path)
    start = store.manifest["log"]["start"]
    url, out = gateway.upload(store.root, f"{tmp_path.name}/store"), tmp_path / "restored"
    conf = broker_conf(store)
    conf.write_text(f"{conf.read_text()}storeType=defaultRocksDB\n")
    words = ["-c", conf, "--rocketmq-version", store.version]
    done = run("restore", url, "-o", out, *words, "--json", env=environment(**gateway.environment()))
    assert done.code == 0, done.stdout + done.stderr
    key = rocksdbqueue.offset_key(b"Expired", 3, rocksdbqueue.MAX)
    assert contents(out / names.CONSUME_QUEUE)[OFFSETS][key] == rocksdbqueue.offset_value(start - 100, 106)


@pytest.mark.proof
@pytest.mark.compat
@pytest.mark.spark
def test_a_broker_starts_on_it(gateway: Gateway, tmp_path: Path) -> None:
    topics, config = ("Orders", "Payments"), {**SMALL_FILES, "timerWheelEnable": False}
    root, out = tmp_path / "store", tmp_path / "restored"

    def everything(broker: Broker) -> list[Any]:
        found = [broker.query_by_key(topic, f"key{n}") for topic in topics for n in range(0, 60, 7)]
        return [[broker.consume_all(topic) for topic in topics], found]

    with Broker("5.5.0", root, config) as broker:
        for topic in topics:
            broker.create_topic(topic, 2)
        broker.produce(
            Message(topic, n % 2, f"{topic} {n}".encode(), keys=f"key{n} all", uniq_key=f"u{n}")
            for n in range(300)
            for topic in topics
        )
        broker.wait_dispatched()
        before = everything(broker)
    shutil.rmtree(root / names.INDEX)
    url = gateway.upload(root, f"{tmp_path.name}/store")
    (tmp_path / "broker.conf").write_text(conf_text(config), encoding="utf-8")
    conf = ["-c", tmp_path / "broker.conf", "--rocketmq-version", "5.5.0"]
    done = run("restore", url, "--out", out, *conf, env=environment(**gateway.environment()))
    assert done.code == 0, done.stderr
    shutil.rmtree(root)
    with Broker("5.5.0", out, config) as broker:
        assert everything(broker) == before
        (sent,) = broker.produce([Message("Orders", 0, b"one more", keys="after", uniq_key="another")])
        broker.wait_dispatched()
        assert [one.unique_key for one in broker.query_by_key("Orders", "after")] == ["another"]
        queue = [message for message in broker.consume_all("Orders") if message.queue_id == 0]
        assert queue[-1].queue_offset == sent.queue_offset == len(queue) - 1
        broker.kill()  # a stop takes ten seconds, and nothing is looked at after it


def test_what_is_refused(
    gateway: Gateway, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, url, conf = uploaded(gateway, "5.3.3-tiny", tmp_path)
    out = tmp_path / "restored"

    def refused(place: object = url, directory: Path = out) -> str:
        return said(command("restore", place, "--out", directory, *conf, "--dry-run"))  # type: ignore[arg-type]

    assert "expected a URL" in refused(store.root)
    assert "there is no store here" in refused(f"s3://{BUCKET}/{tmp_path.name}/nothing")
    (full := tmp_path / "full").mkdir()
    (full / "file").touch()
    assert "the output directory is not empty" in refused(directory=full)
    monkeypatch.setattr("reput.store.system.free_bytes", lambda _path: 1 << 20)
    assert "the restore" in refused()
    assert not out.exists()


def begun(gateway: Gateway, tmp_path: Path) -> tuple[str, list[str], Path, Path]:
    """A restore that noted what it is about; returns URL, options, directory and the segment here."""
    from reput.job import restore as job
    from reput.job.options import RebuildOptions

    store, url, conf = uploaded(gateway, "5.3.3-tiny", tmp_path)
    out = tmp_path / "restored"
    options = RebuildOptions(
        store=Path(), out=out, broker_conf=broker_conf(store), rocketmq_version=store.version
    )
    planned = job._plan(url, options)
    files.make_dirs(out / names.REPUT)
    job._note(planned)
    return url, conf, out, min((store.root / names.COMMIT_LOG).iterdir())


@pytest.mark.parametrize("how", ["changed", "grown", "gone"])
def test_a_store_that_changes_between_two_runs(
    gateway: Gateway, command: Command, how: str, tmp_path: Path
) -> None:
    url, conf, out, segment = begun(gateway, tmp_path)
    key = f"{url.removeprefix(f's3://{BUCKET}/')}/commitlog/"
    if how == "changed":
        obstore.put(s3(gateway), key + segment.name, segment.read_bytes()[:-1] + b"\1")
    elif how == "grown":
        obstore.put(s3(gateway), f"{key}{segment.stat().st_size:020}", bytes(segment.stat().st_size))
    else:
        obstore.put(s3(gateway), f"{key}{1 << 40:020}", segment.read_bytes())
        obstore.delete(s3(gateway), key + segment.name)
    told = said(command("restore", url, "--out", out, *conf))
    assert "the store has changed since the restore began" in told
    assert url in told


def test_a_directory_of_something_else(gateway: Gateway, command: Command, tmp_path: Path) -> None:
    url, conf, out, _ = begun(gateway, tmp_path)
    (out / names.ABORT).touch()
    assert "a broker was started on this directory" in said(command("restore", url, "-o", out, *conf))
    (out / names.ABORT).unlink()
    note = out / names.REPUT / "restore.json"
    note.write_text(note.read_text().replace(url, f"{url}-other"))
    assert "a restore of another store began here" in said(command("restore", url, "-o", out, *conf))
    note.write_text("{")
    assert "can't be read" in said(command("restore", url, "-o", out, *conf))
    note.unlink()
    (out / names.REPUT / names.JOURNAL).touch()
    assert "the output of a rebuild" in said(command("restore", url, "-o", out, *conf))
    (out / names.REPUT / names.JOURNAL).unlink()
    (out / names.COMMIT_LOG).mkdir()
    (out / names.COMMIT_LOG / names.offset_name(0)).touch()
    assert "this directory is a store" in said(command("restore", url, "-o", out, *conf))


def test_what_a_broker_has_made_is_no_copy(gateway: Gateway, command: Command, tmp_path: Path) -> None:
    url, conf, out, segment = begun(gateway, tmp_path)
    (out / names.LOCK).write_bytes(b"lock")
    assert "a broker was started on this directory" in said(command("restore", url, "-o", out, *conf))
    (out / names.LOCK).unlink()
    (out / names.COMMIT_LOG).mkdir()
    (out / names.COMMIT_LOG / segment.name).write_bytes(b"short")
    assert "this is no copy of the segment" in said(command("restore", url, "-o", out, *conf))


def test_a_broker_conf_that_names_another_commit_log(
    gateway: Gateway, command: Command, tmp_path: Path
) -> None:
    """As where log and queues are on disks of their own; what lies there on this host isn't looked at."""
    _, url, conf = uploaded(gateway, "5.3.3-tiny", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Path(conf[1]).open("a") as file:
        file.write(f"storePathRootDir=/data/store\nstorePathCommitLog={tmp_path / 'elsewhere'}\n")
    would = command("restore", url, "-o", tmp_path / "out", *conf, "--dry-run", "--json")
    assert would.code == 0, would.stderr
    assert json.loads(would.stdout)["segments"] > 0


@pytest.mark.proof
@pytest.mark.spark
def test_a_segment_that_cant_be_had_ends_the_run(gateway: Gateway, tmp_path: Path) -> None:
    """Its tasks wait for a copy that won't come; the error is the server's."""
    store, url, conf = uploaded(gateway, "5.3.3-mixed", tmp_path)
    out, key = tmp_path / "restored", f"{tmp_path.name}/store/commitlog/{names.offset_name(4 * 65536)}"
    held = (store.root / names.COMMIT_LOG / names.offset_name(4 * 65536)).read_bytes()
    with breaking(gateway) as slow:
        slow.delay = 0.15
        env = environment(**{**gateway.environment(), "AWS_ENDPOINT_URL": slow.endpoint})
        process = start("restore", url, "--out", out, *conf, "--json", env=env)
        while not (out / names.REPUT / "restore.json").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        obstore.delete(s3(gateway), key)
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 2, stderr
    assert json.loads(stdout)["path"] == f"s3://{BUCKET}/{key}"
    assert "Traceback" not in stderr
    obstore.put(s3(gateway), key, held)
    done = run("restore", url, "--out", out, *conf, env=environment(**gateway.environment()))
    assert done.code == 0, done.stderr
    assert_restored(store, out)


def remote_of(gateway: Gateway, tmp_path: Path) -> tuple[RemoteStore, list[RemoteFile], Path]:
    store, url, _ = uploaded(gateway, "5.3.3-tiny", tmp_path)
    remote = opened(url, derived=False)
    return remote, remote.files_in(remote.root / names.COMMIT_LOG), store.root / names.COMMIT_LOG


def test_a_copy_has_its_name_only_when_it_is_whole(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, segments, here = remote_of(gateway, tmp_path)
    step = 0
    while True:
        step += 1
        out = tmp_path / f"out{step}"
        (out / names.REPUT).mkdir(parents=True)
        wanted = [(one, out / names.COMMIT_LOG / Path(one.name).name) for one in segments]
        copies = SegmentCopies(remote.url, wanted, out)
        copies._running.touch()
        with monkeypatch.context() as patched:
            patched.setattr(files, "system", Dying(step))
            ended = died(copies._run)
        for _, path in wanted:
            if path.exists():
                assert path.read_bytes() == (here / path.name).read_bytes()
        if not ended:
            assert copies._error is None
            assert all(path.exists() for _, path in wanted)
            break
    assert step > 5


def test_a_failed_copy_writes_into_no_other_file(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor's number may be another file's by the time that a late range comes."""
    big = tmp_path / "big" / names.COMMIT_LOG / names.offset_name(0)
    big.parent.mkdir(parents=True)
    big.write_bytes(b"\1" * (32 << 20))
    remote = opened(gateway.upload(big.parents[1], f"{tmp_path.name}/big"), derived=False)
    (segment,) = remote.files_in(remote.root / names.COMMIT_LOG)
    read, out, others = client_of(remote.url).read, tmp_path / "out", []
    (out / names.REPUT).mkdir(parents=True)

    def late(file: RemoteFile, start: int, stop: int) -> Any:
        if not start:
            raise StoreError("no such range")
        time.sleep(0.3)
        return read(file, start, stop)

    monkeypatch.setattr(client_of(remote.url), "read", late)
    copies = SegmentCopies(remote.url, [(segment, out / names.COMMIT_LOG / big.name)], out)

    def run_beside() -> None:
        with copies:
            while copies._error is None:
                time.sleep(0.01)
            others.extend((tmp_path / f"other{number}").open("w+b") for number in range(8))
            time.sleep(1)

    with pytest.raises(StoreError):
        run_beside()
    assert [os.fstat(other.fileno()).st_size for other in others] == [0] * 8
    for other in others:
        other.close()


def test_waiting_ends_with_copying(gateway: Gateway, tmp_path: Path) -> None:
    remote, segments, _ = remote_of(gateway, tmp_path)
    out = tmp_path / "out"
    (out / names.REPUT).mkdir(parents=True)
    store = replace(remote, copies=out).register()
    with pytest.raises(RemoteStoreError, match="copying has ended"):
        await_copy(store.root / segments[0].name)
