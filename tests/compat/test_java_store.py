from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.jars import VERSIONS
from tests.compat.java_store import JavaStore, Put
from tests.compat.jvm import JavaError
from tests.compat.message import PREPARED, Message
from tests.compat.workloads import SMALL_FILES

pytestmark = [pytest.mark.compat, pytest.mark.proof]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_takes_messages_and_goes_on_after_a_crash_and_a_restart(version: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with JavaStore(version, root, SMALL_FILES) as store:
        assert store.load()
        assert store.load_seconds() > 0
        store.start()
        first = store.put(Message("t", 1, b"one", tags="a", keys="k l"))
        assert first == Put(0, 0)
        second = store.put(Message("t", 1, b"two"))
        assert second.queue_offset == 1
        assert store.put(Message("t", 1, b"prepared", sys_flag=PREPARED)).queue_offset == 0
        batch = store.put_batch([Message("t", 1, b"three"), Message("t", 1, b"four")])
        assert batch.queue_offset == 2
        store.wait_dispatched()
        process = store.jvm.process
        store.kill()
        assert process.poll() is not None
    assert (root / "abort").exists()
    with JavaStore(version, root, SMALL_FILES) as store:
        assert store.load()
        store.start()
        assert store.put(Message("t", 1, b"five")).queue_offset == 4
        process = store.jvm.process
    assert process.poll() is not None
    assert not (root / "abort").exists()
    assert (root / "consumequeue" / "t" / "1" / f"{0:020d}").stat().st_size == SMALL_FILES[
        "mappedFileSizeConsumeQueue"
    ]
    assert not store.jvm.home.exists()


@pytest.fixture
def store(tmp_path: Path) -> JavaStore:
    return JavaStore("5.5.0", tmp_path / "store", {**SMALL_FILES, "messageIndexEnable": False})


def test_settings_are_applied_and_unknown_ones_refused(store: JavaStore, tmp_path: Path) -> None:
    with store:
        found = store.effective_config()
        assert (found["maxIndexNum"], found["messageIndexEnable"]) == ("400", "false")
        assert found["storePathRootDir"] == str(store.root)
    with pytest.raises(ValueError, match=r"RocketMQ 5\.5\.0 has no setting maxIndexNumber"):
        JavaStore("5.5.0", tmp_path / "other", {"maxIndexNumber": 5})


def test_a_refused_message_is_an_error(store: JavaStore) -> None:
    with store:
        with pytest.raises(JavaError, match="was not loaded"):
            store.load_seconds()
        assert store.load()
        store.start()
        with pytest.raises(JavaError, match=r"t:0: the store answered .*PROPERTIES_SIZE_EXCEEDED"):
            store.put(Message("t", keys="k" * 40_000))
        with pytest.raises(ValueError, match="a batch holds messages of one queue"):
            store.put_batch([Message("t", 0), Message("t", 1)])
        with pytest.raises(ValueError, match="the store has no topic nothing"):
            store.delete_topic("nothing")


def test_an_error_inside_the_context_ends_the_jvm_and_gets_through(store: JavaStore) -> None:
    def fail() -> None:
        with store:
            store.load()
            store.start()
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    assert store.jvm.process.poll() is not None
