"""The last look at an output before it is committed or replaces a store's files: what is lost is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.errors import OutputError
from reput.format import names
from reput.format.indexfile import HEADER_LENGTH
from reput.output.audit import audit, audit_batch
from reput.output.batch import Floors, scan_and_place
from reput.output.journal import read_state
from reput.replay.part_result import PartResult
from reput.replay.state import QueueState, State
from reput.replay.target import Target
from reput.scan.rules import Part
from tests.golden.store import unpack
from tests.local import Store, in_log_order, open_store, rebuild_locally, target_of

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
    audit(target, state)


def test_a_sound_index_that_counts_keys(tmp_path: Path) -> None:
    """Up to 4.7.0 the header on disk isn't the one of the journal, which counts slots."""
    golden = unpack("4.9.7-mixed", tmp_path / "store")
    store = open_store(golden.root, version="4.7.0", max_hash_slot_num=7)
    state = rebuild_locally(store, tmp_path / "out")
    target = target_of(store, tmp_path / "out")
    audit(target, state)
    name, header = state.index[0]
    path = target.root / names.INDEX / name
    path.write_bytes(header.encode() + path.read_bytes()[HEADER_LENGTH:])
    with pytest.raises(OutputError, match="header is not what was written"):
        audit(target, state)


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
        with pytest.raises(OutputError, match="Nothing was replaced") as found:
            audit(target, state)
    finally:
        path.write_bytes(kept)
    assert str(path) in str(found.value)
    audit(target, state)


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
    with pytest.raises(OutputError, match="is not what was written"):
        audit(target, state)
    path.write_bytes(kept)


QUEUE_OF = ("Orders", 0)
Ranges = tuple[tuple[str, int], tuple[int, int]]


def batch_of(target: Target, state: State) -> tuple[dict[tuple[str, int], QueueState], list[Ranges]]:
    """All queues as if one batch had written them."""
    size = target.settings.consume_queue_file_size
    return state.queues, [
        (queue, (one.first * 20 // size * size, one.next * 20))
        for queue, one in state.queues.items()
        if not one.is_batch
    ]


def test_a_batch_names_what_is_there(rebuilt: tuple[Target, State]) -> None:
    target, state = rebuilt
    audit_batch(target, *batch_of(target, state), state.index)


@pytest.mark.parametrize("lost", ["first file", "last file", "index file", "bytes", "size"])
def test_what_the_driver_does_not_see_is_not_committed(rebuilt: tuple[Target, State], lost: str) -> None:
    target, state = rebuilt
    queue_files = sorted(names.queue_directory(target.root, *QUEUE_OF).iterdir())
    assert len(queue_files) > 1
    path = queue_files[0] if lost in ("first file", "size") else queue_files[-1]
    if lost == "index file":
        path = target.root / names.INDEX / state.index[-1][0]
    kept = path.read_bytes()
    try:
        if lost == "bytes":
            path.write_bytes(bytes(len(kept)))
        elif lost == "size":
            path.write_bytes(kept + b"\0")
        else:
            path.unlink()
        with pytest.raises(OutputError, match="Nothing of this batch was committed") as found:
            audit_batch(target, *batch_of(target, state), state.index)
    finally:
        path.write_bytes(kept)
    assert found.value.path == str(path)


def test_a_batch_whose_files_are_elsewhere_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that end well, and have written where only they can read it."""
    golden = unpack("5.3.3-mixed", tmp_path / "store")
    settings = StoreSettings.load(golden.root, golden.write_broker_conf(tmp_path / "broker.conf"), "5.3.3")

    def scan_elsewhere(target: Target, part: Part, floors: Floors) -> PartResult:
        (tmp_path / "far").mkdir(exist_ok=True)
        return scan_and_place(replace(target, root=tmp_path / "far"), part, floors)

    monkeypatch.setattr("reput.output.batch.scan_and_place", scan_elsewhere)
    monkeypatch.setattr("reput.output.writer.BatchWriter._flush", lambda *_: None)  # tasks have flushed
    with pytest.raises(OutputError, match="the driver doesn't see a file that was written"):
        rebuild_locally(Store(golden.root, settings), tmp_path / "out")
    state = read_state(tmp_path / "out" / names.REPUT / names.JOURNAL)[1]
    assert (state.batches, state.queues) == (0, {})
