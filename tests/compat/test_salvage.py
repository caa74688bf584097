"""What a real consumer gets of queues whose log is damaged in the middle, by what fills the hole in them.

docs/mend.md has the table.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.format import commitlog, names
from reput.format.consumequeue import PRE_BLANK, UNIT_LENGTH
from reput.job import RebuildOptions, rebuild
from tests.compat.broker import Broker, Received
from tests.compat.conf import conf_text
from tests.compat.damage import Copy, write
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.spark, pytest.mark.proof]

SEGMENT, QUEUE_FILE = 64 * 1024, 2000
CONFIG = {**SMALL_FILES, "mappedFileSizeConsumeQueue": QUEUE_FILE, "timerWheelEnable": False}
#: Topics of one queue each, named by what fills their holes; the last one also lost its first messages.
FILLS = ("Blank", "Zeros", "Previous", "Next", "NextAtTheHead")
HEAD = FILLS[-1]
COUNT = 200
HOLE = range(10, 13)
HEAD_HOLE = range(3)


def left(topic: str) -> list[bytes]:
    lost = {*HOLE, *(HEAD_HOLE if topic == HEAD else ())}
    return [b"%d" % n for n in range(COUNT) if n not in lost]


def damage(root: Path) -> list[tuple[int, int]]:
    """Spoil the messages in the holes; returns the ranges, half open, that are bad then."""
    ranges: list[tuple[int, int]] = []
    for record in Copy(root, SEGMENT, QUEUE_FILE).records():
        message = commitlog.decode(record.segment.read_bytes(), record.position)
        topic, n = message.topic.decode(), message.queue_offset
        if topic in FILLS and (n in HOLE or (topic == HEAD and n in HEAD_HOLE)):
            write(record.segment, record.position, b"\xee" * record.size)
            start = ranges.pop()[0] if ranges and ranges[-1][1] == record.offset else record.offset
            ranges.append((start, record.offset + record.size))
    assert ranges[-1][1] < SEGMENT, "where a broker's recovery doesn't look"
    return ranges


def queue_file(root: Path, topic: str) -> Path:
    return root / names.CONSUME_QUEUE / topic / "0" / names.offset_name(0)


def fill(root: Path, topic: str, unit: bytes) -> None:
    """Have another unit in the places of the hole."""
    write(queue_file(root, topic), HOLE.start * UNIT_LENGTH, unit * len(HOLE))


def units(root: Path, topic: str) -> list[bytes]:
    data = queue_file(root, topic).read_bytes()
    return [data[at : at + UNIT_LENGTH] for at in range(0, len(data), UNIT_LENGTH)]


def bodies(received: list[Received]) -> list[bytes]:
    """Each message once, in the order in which it came first."""
    return list(dict.fromkeys(message.body.strip() for message in received))


def by_message(broker: Broker, topic: str) -> list[Received] | None:
    """What a consumer gets that takes one message, and goes on behind the queueOffset which that one says.

    None if it never gets to the end: it is led back to a place where it was.
    """
    received: list[Received] = []
    been, offset = set[int](), 0
    while offset < COUNT:
        if offset in been:
            return None
        been.add(offset)
        found, following = broker.pull(topic, 0, offset, 1)
        received += found
        offset = found[-1].queue_offset + 1 if found else following
    return received


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7"]))
def test_what_fills_a_hole_decides_what_a_consumer_gets(
    version: str, tmp_path: Path, spark: SparkSession
) -> None:
    root = tmp_path / "store"
    with Broker(version, root, CONFIG) as broker:
        for topic in FILLS:
            broker.create_topic(topic, 1)
        order = [(HEAD, n) for n in HEAD_HOLE]
        order += [(topic, n) for n in range(COUNT) for topic in FILLS if (topic, n) not in order]
        broker.produce(Message(topic, 0, b"%-100d" % n) for topic, n in order)
        broker.wait_dispatched()
    bad = damage(root)
    spoilt = [
        (start, (root / names.COMMIT_LOG / names.offset_name(0)).read_bytes()[start:end])
        for start, end in bad
    ]
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    summary = rebuild(RebuildOptions(store=root, broker_conf=conf, rocketmq_version=version), lambda: spark)
    kinds = Counter(finding.kind for finding in summary.findings)
    assert kinds == {"bad-magic": 2, "missing-queue-offsets": len(FILLS) + 1}
    kept = sorted((root / names.LOST_AND_FOUND).iterdir())
    assert [(int(path.name.partition("-")[0]), path.read_bytes()) for path in kept] == spoilt
    for topic in FILLS:
        there = units(root, topic)
        assert [there[place] for place in HOLE] == [there[HOLE.stop]] * len(HOLE)
    assert units(root, HEAD)[: HEAD_HOLE.stop] == [units(root, HEAD)[HEAD_HOLE.stop]] * HEAD_HOLE.stop
    fill(root, "Blank", PRE_BLANK)
    fill(root, "Zeros", bytes(UNIT_LENGTH))
    fill(root, "Previous", units(root, "Previous")[HOLE.start - 1])

    with Broker(version, root, CONFIG) as broker:
        pulled = {topic: broker.consume_all(topic) for topic in FILLS}
        polled = broker.poll_all({topic: len(pulled[topic]) for topic in FILLS})
        stepped = {topic: by_message(broker, topic) for topic in ("Previous", "Next", HEAD)}
        broker.kill()  # a stop takes ten seconds, and nothing is looked at after it
    for got in (pulled, polled):
        assert {topic for topic in FILLS if sorted(bodies(got[topic])) == sorted(left(topic))} == {
            "Previous",
            "Next",
            HEAD,
        }
        # A broker takes blanks for expired messages, and goes on in the next segment. At zeros a queue ends.
        assert len(bodies(got["Blank"])) < len(left("Blank"))
        assert bodies(got["Zeros"]) == left("Zeros")[: HOLE.start]
        # Whatever its place, a repeated message says its own queueOffset.
        again = Counter(message.queue_offset for message in got["Next"]).most_common(1)
        assert again == [(HOLE.stop, len(HOLE) + 1)]
        again = Counter(message.queue_offset for message in got["Previous"]).most_common(1)
        assert again == [(HOLE.start - 1, len(HOLE) + 1)]
    # So one that goes on behind it is led over the hole by the next one, and back to it by the previous one.
    assert stepped["Previous"] is None
    for topic in ("Next", HEAD):
        found = stepped[topic]
        assert found is not None
        assert [message.body.strip() for message in found] == left(topic)
