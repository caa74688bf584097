"""Queues of other kinds when a store is loaded: what ``reput check`` says, and what the real store does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.format import names
from reput.recovery.plan import plan
from tests.compat.java_store import JavaStore
from tests.golden.store import unpack
from tests.levels import tried

pytestmark = pytest.mark.compat

#: Stores with queues besides the plain ones: the directory, and the setting that has their files' length.
KINDS = {
    "queue-ext": ("consumequeue_ext", "mappedFileSizeConsumeQueueExt"),
    "batch-queue": ("batchconsumequeue", "mapperFileSizeBatchConsumeQueue"),
}

NAMES = ("4.9.7-queue-ext", "5.3.3-queue-ext", "5.5.0-queue-ext", "5.3.3-batch-queue", "5.5.0-batch-queue")


def sound(_directory: Path) -> None:
    pass


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*/*/*") if path.is_file())


def short(directory: Path) -> None:
    path = files(directory)[0]
    path.write_bytes(path.read_bytes()[:-7])


def stray(directory: Path) -> None:
    (files(directory)[0].parent / "notes.txt").write_text("hello")


def empty_last(directory: Path) -> None:
    """5.x deletes it."""
    files(directory)[0].with_name(f"{1 << 30:020d}").touch()


def without_its_queue(directory: Path) -> None:
    """A broker loads what lies in consumequeue_ext for the queues that there are in consumequeue."""
    short(directory)
    queue = files(directory)[0].parent
    (directory / "NoSuchTopic").mkdir()
    shutil.move(queue, directory / "NoSuchTopic" / "0")


@pytest.mark.parametrize("harm", tried(sound, short, more=[stray, empty_last, without_its_queue]))
@pytest.mark.parametrize("name", NAMES)
def test_a_load_is_foretold(name: str, harm: Callable[[Path], None], tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "store")
    version, _, kind = name.partition("-")
    directory, setting = KINDS[kind]
    if kind == "batch-queue":
        store.write_topics_json()
        if harm is without_its_queue:
            return  # batch queues stand for themselves
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    harm(store.root / directory)
    snapshot = take(StoreSettings.load(store.root, conf, version))
    assert (snapshot.ext_queues if kind == "queue-ext" else snapshot.batch_queues) != {}
    assert all(setting in str(one) or "stray" in one.kind for one in snapshot.problems if one.stops)
    assert plan(snapshot).prediction.starts is snapshot.starts
    with JavaStore(version, store.root, store.config, topics=store.manifest["topics"]) as java:
        assert java.load() is snapshot.starts, [str(one) for one in snapshot.problems]


@pytest.mark.parametrize("queue_type", ["SimpleCQ", "RocksDBCQ", "simplecq"])
@pytest.mark.parametrize("version", tried("5.5.0", more=["5.3.3"]))
def test_a_type_without_files_stops_a_start(version: str, queue_type: str, tmp_path: Path) -> None:
    store = unpack(f"{version}-tiny", tmp_path / "store")
    topic = next(path.name for path in (store.root / names.CONSUME_QUEUE).iterdir())
    attributes = {"queue.type": queue_type}
    (store.root / names.CONFIG).mkdir(exist_ok=True)
    table = {topic: {"topicName": topic, "attributes": attributes}}
    (store.root / names.CONFIG / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    found = plan(take(StoreSettings.load(store.root, conf, version))).prediction
    assert [one.kind for one in found.problems] == ([] if found.starts else ["broken-config"])
    with JavaStore(version, store.root, store.config, topics={topic: attributes}) as java:
        assert java.load() is found.starts is (queue_type == "SimpleCQ")
