"""A real broker gets all that was exported, however often the sending is killed; and opens a small store."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from pathlib import Path

import pytest

from reput.dump.wanted import Wanted
from reput.export.send import MOST_REPEATED
from reput.export.write import STORE, ExportOptions, export
from reput.format import names
from reput.format.commitlog import Record
from tests.compat.broker import Broker, Received
from tests.compat.jars import cache_dir, jars
from tests.compat.java_store import JavaStore
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried
from tests.local import open_store, rebuild_locally
from tests.rebuilds import environment, golden, run, start
from tests.stores import LogWriter

pytestmark = pytest.mark.compat

RELEASE = "5.3.3"
COUNT, KILLS = 1000, 2
SECRET = "a-secret-that-nobody-shows"


def exported(tmp_path: Path, count: int) -> list[dict[str, object]]:
    """An export of messages of two topics, one of which has fewer queues now, and of one that isn't sent."""
    log = LogWriter(tmp_path / "store", segment_size=1 << 20)
    for n in range(count):
        body = b"large " * 2000 if n % 500 == 7 else b"body %d \xff\x00" % n
        values = f"KEYS\x01key{n} all\x02UNIQ_KEY\x01U{n:06}\x02own\x01ö{n}\x02TAGS\x01t{n % 3}\x02"
        log.append(
            Record(
                b"Orders" if n % 3 else b"Fewer",
                body,
                values.encode(),
                queue_id=n % 4,
                flag=n,
                queue_offset=n,
            )
        )
    log.append(Record(b"RMQ_SYS_TRANS_HALF_TOPIC", b"half", b"REAL_TOPIC\x01Orders\x02"))
    export(ExportOptions(log.root, tmp_path / "export.jsonl"))
    return [json.loads(line) for line in (tmp_path / "export.jsonl").read_bytes().splitlines()]


def body_of(line: dict[str, object]) -> bytes:
    return base64.b64decode(str(line["body_base64"]))


def facts(message: Received) -> tuple[object, ...]:
    return message.unique_key, message.body, message.tags, message.keys


@pytest.mark.proof
def test_every_message_arrives_however_often_the_sending_is_killed(tmp_path: Path) -> None:
    *lines, _half = exported(tmp_path, COUNT)
    jars(RELEASE)  # fetched, if they aren't there
    position = tmp_path / "export.jsonl.position"
    with Broker(RELEASE, tmp_path / "broker", {**SMALL_FILES, "timerWheelEnable": False}) as broker:
        broker.create_topic("Orders", 4)
        words = ("resend", tmp_path / "export.jsonl", "--name-server", broker.name_server)
        words = (*words, "--client", cache_dir() / RELEASE)
        env = {**environment(), "ROCKETMQ_ACCESS_KEY": "nobody", "ROCKETMQ_SECRET_KEY": SECRET}
        refused = run(*words, env=env)
        assert refused.code == 2
        assert "no broker takes messages of topic Fewer" in refused.stderr
        assert SECRET not in refused.stderr
        assert not position.exists()
        few = tmp_path / "few.jsonl"
        last_two = (tmp_path / "export.jsonl").read_bytes().splitlines(keepends=True)[-2:]
        few.write_bytes(b"".join(last_two))
        to_one = ("--to-topic", "Again", "--half", "--rate", "50", "--json")
        broker.create_topic("Again", 4)
        sent = json.loads(run("resend", few, *words[2:], *to_one, env=env).stdout)
        assert (sent["exit_code"], sent["topics"]) == (0, {"Again": 2})
        broker.create_topic("Fewer", 2)
        noted = 0
        for kill in range(KILLS):
            sending = start(*words, env=env)
            try:
                deadline = time.monotonic() + 120
                while sending.poll() is None and (not position.exists() or position.stat().st_size <= noted):
                    assert time.monotonic() < deadline
                    time.sleep(0.005)
                time.sleep(0.05 + 0.1 * kill)
                assert sending.poll() is None, "it was to be killed in the middle"
            finally:
                sending.kill()  # SIGKILL
                sending.communicate()
            noted = position.stat().st_size
        last = run(*words, "--json", env=env)
        assert SECRET not in last.stdout + last.stderr + position.read_text()
        result = json.loads(last.stdout)
        assert last.code == 1, "the half message was left out"
        assert [(one["kind"], one["count"]) for one in result["left_out"]] == [("half", 1)]
        assert result["messages"] + result["sent_before"] == COUNT
        assert result["sent_before"] > 0
        broker.wait_dispatched()
        got = [*broker.consume_all("Orders"), *broker.consume_all("Fewer")]
        assert {one.body for one in broker.consume_all("Again")} == {b"half", body_of(lines[-1])}
        broker.kill()  # a stop takes ten seconds, and nothing is looked at after it

    expected = Counter(
        (line["uniq_key"], body_of(line), line["tags"], f"key{n} all") for n, line in enumerate(lines)
    )
    found = Counter(map(facts, got))
    assert found.keys() == expected.keys()
    repeated = sum(found.values()) - COUNT
    assert repeated <= KILLS * MOST_REPEATED
    for topic, queues in (("Orders", 4), ("Fewer", 2)):
        for queue_id in range(queues):
            came = [one.unique_key for one in got if (one.topic, one.queue_id) == (topic, queue_id)]
            first = list(dict.fromkeys(came))
            sent = [
                line["uniq_key"]
                for line in lines
                if line["topic"] == topic and int(str(line["queue_id"])) % queues == queue_id
            ]
            assert first == sent, "those of a queue stay in one, in their order"


@pytest.mark.parametrize("release", tried("5.5.0", more=["4.9.7", "5.3.3"]))
def test_the_real_store_opens_a_small_store(release: str, tmp_path: Path) -> None:
    source = golden(f"{release}-mixed", tmp_path)
    small = tmp_path / "small"
    options = ExportOptions(
        source.root, small, form=STORE, version=release, wanted=Wanted(topics=("Orders",))
    )
    result = export(options)
    config = {**source.config}
    with JavaStore(release, small, config) as store:
        assert store.load()
        store.start()
        store.wait_dispatched()
        files = [path for path in (small / names.CONSUME_QUEUE).rglob("0*") if path.is_file()]
        by_java = {path.relative_to(small): path.read_bytes() for path in files}
        assert int(store.store.getMinPhyOffset()) == 0
        queues = [int(path.name) for path in (small / names.CONSUME_QUEUE / "Orders").iterdir()]
        ends = [int(store.store.getMaxOffsetInQueue("Orders", queue_id)) for queue_id in queues]
        assert sum(ends) == result.messages > 100
    assert by_java
    out = tmp_path / "rebuilt"
    opened = open_store(
        small,
        version=release,
        consume_queue_file_size=int(str(config["mappedFileSizeConsumeQueue"])),
    )
    rebuild_locally(opened, out, index=False)
    assert {path: (out / path).read_bytes() for path in by_java} == by_java


@pytest.mark.parametrize("release", tried("5.5.0", more=["4.9.7", "5.3.3"]))
def test_a_real_broker_starts_on_a_small_store(release: str, tmp_path: Path) -> None:
    """With the settings that it has, which are empty but for topics."""
    source, small = golden(f"{release}-mixed", tmp_path), tmp_path / "small"
    source.write_topics_json()
    wanted = Wanted(topics=("Orders",))
    result = export(ExportOptions(source.root, small, form=STORE, version=release, wanted=wanted))
    with Broker(release, small, {**source.config, "timerWheelEnable": False}) as broker:
        broker.wait_dispatched()
        broker.create_topic("Orders")  # or the name server may hear of it only ten seconds later
        assert len(broker.consume_all("Orders")) == result.messages > 100
        assert broker.committed("group", "Orders", 0) == -1
        broker.commit_offset("group", "Orders", 0, 5)
        assert broker.committed("group", "Orders", 0) == 5
        broker.kill()  # a stop takes ten seconds, and nothing is looked at after it
