"""What tells the driver's store from another one at the same path: each test has both on one host."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reput.config.kept import Kind
from reput.config.settings import StoreSettings
from reput.errors import ReputError, SegmentGoneError, StoreError
from reput.format import names
from reput.log.segments import cut, discover, map_segment
from reput.replay.part_result import collect, pass_over, witnessed
from reput.replay.target import Target
from reput.scan.rules import Part
from reput.source import CommitLogDataSource, ConsumeQueueDataSource, IndexDataSource
from reput.store import witness
from reput.store.witness import config_seen, store_seen
from tests.golden.store import GoldenStore, unpack
from tests.local import Runner, Store, target_of


class Far(Runner):
    """Its functions may read other files than this process."""

    is_local = False


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "_compared", set())


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack("5.3.3-mixed", tmp_path / "store")


@pytest.fixture
def store(golden: GoldenStore) -> Store:
    conf = golden.write_broker_conf(golden.root.with_name("broker.conf"))
    return Store(golden.root, StoreSettings.load(golden.root, conf, "5.3.3"))


def parts_of(store: Store) -> list[Part]:
    log = discover(store.settings)
    return list(cut(log, log.start, log.end, 64 << 10, log.start))


def segments(store: Store) -> list[Path]:
    return sorted((store.root / names.COMMIT_LOG).iterdir())


def written_end(path: Path) -> int:
    return int(np.flatnonzero(np.frombuffer(path.read_bytes(), np.uint8))[-1]) + 1


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def last_message_missing(store: Store) -> None:
    path = segments(store)[-1]
    overwrite(path, written_end(path) - 200, bytes(200))


def one_message_more(store: Store) -> None:
    path = segments(store)[-1]
    overwrite(path, written_end(path) + 8, b"another message")


def another_first_message(store: Store) -> None:
    overwrite(segments(store)[0], 40, b"\1\2\3")


def longer(store: Store) -> None:
    path = segments(store)[0]
    overwrite(path, path.stat().st_size, b"\0")


def expired(store: Store) -> None:
    segments(store)[0].unlink()


LOGS = [last_message_missing, one_message_more, another_first_message, longer, expired]


def error_of(target: Target, part: Part) -> StoreError | None:
    try:
        pass_over(target, part, lambda *_: None)
    except StoreError as error:
        return error
    return None


@pytest.mark.parametrize("change", LOGS)
def test_a_part_of_another_log_is_not_scanned(
    store: Store, tmp_path: Path, change: Callable[[Store], None]
) -> None:
    target = target_of(store, tmp_path / "out")
    parts = [witnessed(Far(), part) for part in parts_of(store)]
    sent: list[Part] = pickle.loads(pickle.dumps(parts))
    for part in sent:
        pass_over(target, part, lambda *_: None)
    change(store)
    errors = [error for part in sent if (error := error_of(target, part)) is not None]
    assert errors
    for error in errors:
        assert isinstance(error, SegmentGoneError) == (change is expired)
        assert change is expired or "doesn't see the store that the driver sees" in str(error)
    with pytest.raises(StoreError):
        collect(target, sent, {("Orders", 0)})


def test_an_error_says_what_both_hosts_read(store: Store, tmp_path: Path) -> None:
    (part, *_) = (witnessed(Far(), part) for part in parts_of(store))
    data = segments(store)[0].read_bytes()
    another_first_message(store)
    with pytest.raises(StoreError) as caught:
        pass_over(target_of(store, tmp_path / "out"), part, lambda *_: None)
    assert caught.value.offset == 40
    assert str(caught.value.expected).startswith(f"{data[40:48].hex(' ')}, as on ")
    assert caught.value.found == (b"\1\2\3" + data[43:48]).hex(" ")


def test_nothing_is_read_for_tasks_of_this_host(store: Store) -> None:
    (part, *_) = parts_of(store)
    assert witnessed(Runner(), part) is part


def test_a_part_that_is_scanned_again_has_its_own_witness(store: Store) -> None:
    (part, *_) = (witnessed(Far(), part) for part in parts_of(store))
    again = witnessed(Far(), replace(part, start=part.start + 300))
    assert again.witness is not None
    assert again.witness.stretches[0].at == part.start + 300 - part.base


def test_zeros_that_may_be_written_meanwhile_are_not_compared(store: Store) -> None:
    path = segments(store)[-1]
    data = map_segment(path, path.stat().st_size)
    (grows,) = witness.witnesses(path, [(0, len(data))])
    assert grows is not None
    one_message_more(store)
    grows.check_mapped(map_segment(path, len(data)), int(path.name))
    last_message_missing(store)
    overwrite(path, written_end(path), bytes(300))
    overwrite(path, 0, b"\1")
    with pytest.raises(StoreError):
        grows.check_mapped(map_segment(path, len(data)), int(path.name))


def queue_gone(root: Path) -> None:
    shutil.rmtree(root / names.CONSUME_QUEUE / "Orders")


def topic_more(root: Path) -> None:
    (root / names.CONSUME_QUEUE / "Another").mkdir()


def queues_gone(root: Path) -> None:
    shutil.rmtree(root / names.CONSUME_QUEUE)


def index_shorter(root: Path) -> None:
    path = max((root / names.INDEX).iterdir())
    with path.open("r+b") as file:
        file.truncate(1000)


def index_other(root: Path) -> None:
    overwrite(max((root / names.INDEX).iterdir()), 8, b"\7\7\7")


def unit_other(root: Path) -> None:
    overwrite(min(max((root / names.CONSUME_QUEUE / "Orders").iterdir()).iterdir()), 3, b"\7\7\7")


@pytest.mark.parametrize(
    "change", [queue_gone, topic_more, queues_gone, index_shorter, index_other, unit_other]
)
def test_other_derived_files_are_not_verified(golden: GoldenStore, change: Callable[[Path], None]) -> None:
    seen = pickle.loads(pickle.dumps(store_seen(golden.root, live=False)))
    change(golden.root)
    with pytest.raises(StoreError):
        seen.show()


def test_a_worker_compares_once(golden: GoldenStore) -> None:
    seen = store_seen(golden.root, live=False)
    seen.show()
    queues_gone(golden.root)
    seen.show()


def test_a_live_store_may_have_more(golden: GoldenStore) -> None:
    seen = store_seen(golden.root, live=True)
    topic_more(golden.root)
    index_other(golden.root)
    seen.show()
    other = store_seen(golden.root, live=True)
    queue_gone(golden.root)
    with pytest.raises(StoreError, match=r"Orders: this host doesn't see the store"):
        other.show()


def test_files_of_the_configuration_have_to_be_there(store: Store) -> None:
    path = store.settings.config.where(Kind.TOPICS)
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    seen = config_seen(store.settings.config_files)
    path.write_text('{"topicConfigTable": {}}')  # by its broker
    seen.show()
    other = config_seen(store.settings.config_files)
    path.unlink()
    with pytest.raises(StoreError, match=r"topics.json: this host doesn't see the store"):
        other.show()


SOURCES = [CommitLogDataSource, ConsumeQueueDataSource, IndexDataSource]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("change", ["other", "none"])
def test_sources_refuse_another_store(
    store: Store, kind: type[CommitLogDataSource], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = store.root.with_name("broker.conf")
    source = kind({"path": str(store.root), "brokerConf": str(conf), "rocketmqVersion": "5.3.3"})
    reader = source.reader(source.schema())
    partitions = pickle.loads(pickle.dumps(list(reader.partitions())))
    assert sum(batch.num_rows for one in partitions for batch in reader.read(one))
    if change == "none":
        store.root.rename(store.root.with_name("elsewhere"))
    else:
        overwrite(segments(store)[0], 40, b"\1\2\3")
        unit_other(store.root)
        for path in (store.root / names.INDEX).iterdir():
            size = path.stat().st_size
            overwrite(path, 40, bytes([7]) * (size - 40))
        for path in (store.root / names.CONSUME_QUEUE).rglob("0" * 20):
            overwrite(path, 0, b"\7\7\7")
    monkeypatch.setattr("socket.gethostname", lambda: "worker-b")
    with pytest.raises(ReputError, match=r"^on host worker-b: ") as caught:
        _ = [list(reader.read(one)) for one in partitions]
    assert isinstance(caught.value, StoreError)
    if kind is CommitLogDataSource:
        assert type(caught.value) is StoreError, "it hasn't expired"


def test_a_stream_leaves_nothing_out_on_a_host_without_the_log(store: Store) -> None:
    conf = store.root.with_name("broker.conf")
    asked = {"path": str(store.root), "brokerConf": str(conf), "failOnDataLoss": "false"}
    source = CommitLogDataSource(asked)
    reader = source.streamReader(source.schema())
    log = discover(store.settings)
    (first, *_) = reader.partitions({"offset": 0}, {"offset": log.end})
    segments(store)[0].unlink()
    assert list(reader.read(first)) == [], "it has expired"
    store.root.rename(store.root.with_name("elsewhere"))
    with pytest.raises(StoreError, match="doesn't see the store that the driver sees"):
        list(reader.read(first))
