"""The real store expires the head of its log; an output that was tailed beside it loses the same files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.log.end import LogEnd
from reput.output.writer import BatchWriter
from reput.replay.state import State
from reput.store import files
from tests.compat.cleaning import UNFLUSHED, expire
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried
from tests.local import NoLedger, Runner, Store, opened_output, outputs, parts_of, target_of

pytestmark = pytest.mark.compat

CONFIG = {
    **SMALL_FILES,
    **UNFLUSHED,
    "fileReservedTime": 48,
    "deleteCommitLogFilesInterval": 0,
    "deleteConsumeQueueFilesInterval": 0,
    "cleanFileForciblyEnable": False,  # or a full disk of the machine decides
}
SEGMENT = int(str(SMALL_FILES["mappedFileSizeCommitLog"]))
UNITS = int(str(SMALL_FILES["mappedFileSizeConsumeQueue"])) // UNIT_LENGTH

Queue = tuple[str, int]


class Tail:
    """A tail without Spark: the same writer, called where a query would call it."""

    def __init__(self, store: Store, writer: BatchWriter) -> None:
        self._store = store
        self._writer = writer
        self._end = LogEnd(store.settings)

    @property
    def state(self) -> State:
        return self._writer.state

    def read(self) -> None:
        """A batch of all there is, or of nothing."""
        log = self._store.log
        end, cursor = self._end.find(log), self.state.cursor
        parts = parts_of(log, max(cursor, log.start), end, 20_000, cursor) if end > cursor else []
        self._writer.write(parts, 0)


@contextmanager
def tailing(store: Store, out: Path) -> Iterator[Tail]:
    files.make_dirs(out)
    target = target_of(store, out)
    with opened_output(target, store.log) as journal:
        writer = BatchWriter(target, journal, store.log, Runner(), look=lambda: store.log)
        writer._ledger = NoLedger()  # type: ignore[assignment]
        writer.begin()
        yield Tail(store, writer)
        writer.finish()
        writer.close()


def settings_of(version: str, root: Path, tmp_path: Path) -> Store:
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    return Store(root, StoreSettings.load(root, conf, version))


def fill(store: JavaStore, count: int, seed: int) -> None:
    """Messages for queues that are written to all the time, two of them in turn more than the others."""
    for n in range(count):
        queue = n % 4 if n % 3 else seed % 2
        store.put(
            Message("Busy", queue, bytes(600), tags=f"t{n % 3}", keys=f"k{n} all", uniq_key=f"u{seed}-{n}")
        )
    store.wait_dispatched()


def put_some(store: JavaStore, topic: str, count: int) -> None:
    for n in range(count):
        store.put(Message(topic, 0, b"-" * 100, keys=f"k{n}"))


def derived(root: Path) -> tuple[dict[str, bytes], list[bytes]]:
    """Queue files by name, and index files in order: their names are the clock's."""
    found = outputs(root)
    return (
        {path: data for path, data in found.items() if path.startswith(names.CONSUME_QUEUE)},
        [data for path, data in sorted(found.items()) if path.startswith(names.INDEX)],
    )


def min_offsets(store: JavaStore, queues: list[Queue]) -> dict[Queue, int]:
    return {queue: int(store.store.getMinOffsetInQueue(*queue)) for queue in queues}


@pytest.mark.parametrize("version", tried("4.9.7", "5.5.0", more=["5.3.3"]))
def test_what_the_store_deletes_goes_from_the_output(version: str, tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path / "out"
    with JavaStore(version, root, CONFIG) as java:
        assert java.load()
        java.start()
        put_some(java, "Quiet", 130)  # ends in its third file
        put_some(java, "Full", 2 * UNITS)  # and this with its second one full
        put_some(java, "One", 20)
        fill(java, 200, 0)
        store = settings_of(version, root, tmp_path)
        with tailing(store, out) as tail:
            for step, segments in enumerate((1, 2, 0, 3), 1):
                tail.read()
                before = {queue: known.first for queue, known in tail.state.queues.items()}
                expire(java, segments)
                tail.read()
                queues, index = derived(root)
                own_queues, own_index = derived(out)
                assert own_queues == queues
                assert len(own_index) == len(index)
                assert tail.state.log_start == int(java.store.getMinPhyOffset())
                first = {queue: known.first for queue, known in tail.state.queues.items()}
                found = min_offsets(java, list(first))
                if segments:
                    emptied = [queue for queue, at in first.items() if at == tail.state.queues[queue].next]
                if version.startswith("4."):
                    # A queue without a message keeps its old number until the log's start moves again.
                    for queue in emptied:
                        assert found.pop(queue) <= before[queue] <= first.pop(queue)
                assert found == first
                if step == 2:
                    put_some(java, "Full", 1)
                fill(java, 300, step)
            assert {topic for topic, _ in emptied} == {"Quiet", "One"}
            tail.read()
        assert "consumequeue/Full/0/00000000000000001000" not in queues, (
            "full, and no longer its queue's last"
        )
        assert "consumequeue/Quiet/0/00000000000000002000" in queues, "its queue's last"
        assert set(outputs(out)) < set(everything_ever(tail.state))
    assert derived(out) == derived(root)


def everything_ever(state: State) -> list[str]:
    """Every queue file there would be without retention, and the index files that there are."""
    return [
        names.CHECKPOINT,
        *(f"index/{name}" for name, _ in state.index),
        *(
            f"consumequeue/{topic}/{queue_id}/{names.offset_name(place * UNIT_LENGTH)}"
            for (topic, queue_id), known in state.queues.items()
            for place in range(0, known.next, UNITS)
        ),
    ]


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7", "5.3.3"]))
def test_the_store_serves_what_is_left_of_an_output_that_lost_messages(version: str, tmp_path: Path) -> None:
    """Messages expired before they were read: the queues that lost some have no hole and no wrong unit."""
    root, out = tmp_path / "store", tmp_path / "out"
    with JavaStore(version, root, CONFIG) as java:
        assert java.load()
        java.start()
        put_some(java, "Quiet", 70)
        fill(java, 100, 0)
        store = settings_of(version, root, tmp_path)
        with tailing(store, out) as tail:
            tail.read()
            fill(java, 500, 1)
        expire(java, 4)
        put_some(java, "Late", 5)
    with tailing(store, out) as tail:
        tail.read()
        state = tail.state
        (finding,) = state.findings
        assert (finding.kind, finding.end) == ("expired-unread", store.log.start)
    for name in (names.CONSUME_QUEUE, names.INDEX):
        shutil.rmtree(root / name)
        shutil.copytree(out / name, root / name)
    shutil.copy(out / names.CHECKPOINT, root / names.CHECKPOINT)
    with JavaStore(version, root, CONFIG) as java:
        assert java.load()
        java.start()
        for (topic, queue_id), known in state.queues.items():
            assert int(java.store.getMaxOffsetInQueue(topic, queue_id)) == known.next
            if known.first < known.next:
                assert (
                    int(java.store.getMinOffsetInQueue(topic, queue_id)) == known.first > 0 or topic == "Late"
                )
            for offset in range(known.first, known.next):
                message = java.store.lookMessageByOffset(
                    java.store.getCommitLogOffsetInQueue(topic, queue_id, offset)
                )
                assert (message.getTopic(), message.getQueueId(), message.getQueueOffset()) == (
                    topic,
                    queue_id,
                    offset,
                )
            assert java.put(Message(topic, queue_id)).queue_offset == known.next
    assert state.queues["Quiet", 0].first == state.queues["Quiet", 0].next == 70
