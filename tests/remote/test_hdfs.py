"""A store in HDFS: what reads it says what it says of the same store here. One test, for the JVM's sake."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.format import names
from reput.remote.client import _Hdfs as Hdfs
from reput.store.compare import compare
from tests.golden.store import unpack
from tests.rebuilds import Command, environment, run, tree
from tests.remote.hdfs import hdfs, upload
from tests.remote.nights import facts, night, watched, with_consumers


def test_no_name_node(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reput.remote.client._WAITS", (0.01,))
    told = command("stats", "hdfs://127.0.0.1:9/store")
    assert told.code == 2
    assert "Connection refused (os error 111), 2 times. Check the network" in " ".join(told.stderr.split())
    told = command("stats", "hdfs://no-such-name-service/store")
    assert told.code == 2
    assert "No NameNode hosts found" in told.stderr
    assert "Check the URL" in told.stderr


@pytest.mark.proof
@pytest.mark.spark
def test_a_store_in_hdfs(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hdfs_native import Client, WriteOptions

    from reput.remote.segment import RemoteSegment

    monkeypatch.setattr("reput.remote.client._WAITS", (0.01, 0.01))
    store = unpack("5.3.3-mixed", tmp_path / "store")
    store.write_topics_json()
    with hdfs(tmp_path / "hdfs") as file_system:
        url = upload(file_system, store.root, "/broker-a/store")

        for words in (["dump", "commitlog", "STORE", "--stats"], ["stats", "STORE", "--topics"]):
            here, there = (
                command(*[place if word == "STORE" else word for word in words])
                for place in (store.root, url)
            )
            assert (there.code, here.code) == (0, 0), there.stderr
            assert there.stdout.replace(url, "STORE") == here.stdout.replace(str(store.root), "STORE")

        conf = store.write_broker_conf(tmp_path / "broker.conf")  # not before: one nearby is said
        words = ["rebuild", url, "--out", tmp_path / "out", "--broker-conf", conf]
        done = run(*words, "--rocketmq-version", store.version, env=environment())
        assert done.code == 0, done.stderr
        assert compare(store.root, tmp_path / "out").differences == ()

        restored = tmp_path / "restored"
        words = ["restore", url, "--out", restored, "--broker-conf", conf]
        done = run(*words, "--rocketmq-version", store.version, env=environment())
        assert done.code == 0, done.stderr
        assert compare(store.root, restored).differences == ()
        for name in (names.COMMIT_LOG, names.CONFIG):
            assert tree(restored / name) == tree(store.root / name)

        # Nights: files of the same size and time of change aren't read again.
        at_night = with_consumers(unpack(store.name, tmp_path / "night" / "store"))
        night_url = upload(file_system, at_night.root, "/broker-b/store")
        client = Client(file_system)
        with monkeypatch.context() as patched:
            read = watched(patched, Hdfs)
            patched.setattr("reput.remote.client._RACY_SECONDS", -3600)  # the files are of just now
            first, _, left = night(at_night, night_url, None, read)
            whole = read.derived(names.CONSUME_QUEUE)
            queue = max((at_night.root / names.CONSUME_QUEUE).rglob("0" * 20))
            name = queue.relative_to(at_night.root).as_posix()
            data = bytearray(queue.read_bytes())
            data[7] ^= 1
            for content, found in ((queue.read_bytes(), []), (data, [("wrong-unit", f"{night_url}/{name}")])):
                with client.create(
                    f"/broker-b/store/{name}", WriteOptions(replication=1, overwrite=True)
                ) as out:
                    out.write(bytes(content))
                later, said, left = night(at_night, night_url, left, read)
                assert said == found
                assert name in read.derived(names.CONSUME_QUEUE)
                assert len(read.derived(names.CONSUME_QUEUE)) < len(whole)
                assert len(read.segments) == 1 + len(found)
                if not found:
                    assert facts(later) == facts(first)

        told = command("stats", f"{file_system}/nothing")
        assert told.code == 2
        assert f"{file_system}/nothing: it isn't there" in told.stderr

        first_segment = f"/broker-a/store/{names.COMMIT_LOG}/{names.offset_name(0)}"
        began = RemoteSegment.__init__

        def change(self: RemoteSegment, *arguments: object, **more: object) -> None:
            monkeypatch.setattr(RemoteSegment, "__init__", began)
            with client.create(first_segment, WriteOptions(replication=1, overwrite=True)) as out:
                out.write(b"another one")
            began(self, *arguments, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(RemoteSegment, "__init__", change)
        told = command("stats", url)
        assert told.code == 2
        assert (
            f"{file_system}{first_segment}: it has changed since the run was planned"
            in told.stderr.replace("\n", " ")
        )

    told = command("stats", url)
    assert told.code == 2
    assert "Check the network and the server" in told.stderr
