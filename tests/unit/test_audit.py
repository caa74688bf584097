"""The last look at an output before it replaces a store's files: what the disk lost since is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.format import names
from reput.settings import StoreSettings
from reput.sink.audit import audit
from reput.sink.journal import State
from reput.sink.scan_task import Target
from tests.golden.store import unpack
from tests.local import Store, in_log_order, rebuild_locally, target_of

QUEUE = {
    "consumequeue": names.queue_directory,
    "consumequeue_ext": names.queue_ext_directory,
    "batchconsumequeue": names.batch_queue_directory,
}


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, State]:
    """A store's output with consumequeue_ext, and with batch queues for one topic."""
    place = tmp_path_factory.mktemp("audit")
    golden = unpack("5.3.3-mixed", place / "store")
    settings = StoreSettings.load(golden.root, golden.write_broker_conf(place / "broker.conf"), "5.3.3")
    store = in_log_order(Store(golden.root, settings), "Payments")
    state = rebuild_locally(store, place / "out")
    return target_of(store, place / "out"), state


def last_file(target: Target, kind: str) -> Path:
    topic = "Payments" if kind == "batchconsumequeue" else "Orders"
    return max(QUEUE[kind](target.root, topic, 0).iterdir())


def test_a_sound_output(rebuilt: tuple[Target, State]) -> None:
    target, state = rebuilt
    assert sum(queue.is_batch for queue in state.queues.values()) > 0
    assert sum(queue.appended > 0 for queue in state.queues.values()) > 3
    assert audit(target, state) is None


@pytest.mark.parametrize("kind", QUEUE)
@pytest.mark.parametrize("lost", ["zeros", "no file", "cut"])
def test_what_is_lost_at_a_queues_end_is_found(rebuilt: tuple[Target, State], kind: str, lost: str) -> None:
    target, state = rebuilt
    path = last_file(target, kind)
    kept = path.read_bytes()
    try:
        path.unlink()
        if lost != "no file":
            path.write_bytes(bytes(len(kept)) if lost == "zeros" else kept[:10])
        error = audit(target, state)
    finally:
        path.write_bytes(kept)
    assert error is not None
    assert str(path) in str(error)
    assert "Nothing was replaced" in str(error)
    assert audit(target, state) is None


def test_a_record_past_what_was_appended_is_found(rebuilt: tuple[Target, State]) -> None:
    target, state = rebuilt
    path = last_file(target, "consumequeue_ext")
    kept = path.read_bytes()
    appended = state.queues["Orders", 0].appended - int(path.name)
    # The last record is of 20 bytes: a byte of a bit map would lie behind it.
    changed = bytearray(kept)
    changed[appended - 20 : appended - 18] = (21).to_bytes(2, "big")
    changed[appended - 2 : appended] = (1).to_bytes(2, "big")
    path.write_bytes(changed)
    error = audit(target, state)
    path.write_bytes(kept)
    assert error is not None
    assert "is not what was written" in str(error)
