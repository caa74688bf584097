"""A message whose topic, queue or queueOffset isn't what it was: no unit of another one changes its place."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from reput.diagnosis.check import check
from reput.diagnosis.verdict import COUNTS, Sort
from reput.format import commitlog, names
from reput.job.options import RebuildOptions
from reput.log.walk import Frame, frame
from reput.mending import Mended, mend
from reput.replay.target import Selection
from reput.verify.plan import VerifyOptions
from tests.golden.store import GoldenStore
from tests.local import Store, rebuild_locally, units, write_store
from tests.rebuilds import broker_conf, golden, overwrite, tree
from tests.unit.output.test_bad_input import LENGTH, message, segment

SEGMENT = 65536


class Changed:
    """A golden store with one changed byte in a message of a queue."""

    def __init__(self, store: GoldenStore, topic: str, queue_id: int, queue_offset: int) -> None:
        self.store, self.queue_offset = store, queue_offset
        self.queue = store.root / names.CONSUME_QUEUE / topic / str(queue_id)
        units = b"".join(path.read_bytes() for path in sorted(self.queue.iterdir()))
        unit = units[queue_offset * 20 :]
        self.position, self.size, self.tags = struct.unpack_from(">qiq", unit)
        segment = store.root / names.COMMIT_LOG / names.offset_name(self.position // SEGMENT * SEGMENT)
        at = self.position % SEGMENT
        self.record = segment.read_bytes()[at : at + self.size]
        self.topic = self.size - 2 - len(commitlog.decode(self.record).properties) - len(topic)
        self.sound = tree(store.root / names.CONSUME_QUEUE)

    def flip(self, at: int, bits: int) -> None:
        overwrite(self.store.root, SEGMENT, self.position + at, bytes([self.record[at] ^ bits]))

    @property
    def options(self) -> RebuildOptions:
        return RebuildOptions(
            self.store.root, broker_conf=broker_conf(self.store), rocketmq_version=self.store.version
        )

    @property
    def verifying(self) -> VerifyOptions:
        return VerifyOptions(self.store.root, None, broker_conf(self.store), self.store.version)

    def mended(self) -> Mended:
        mended = mend(self.options, apply=True)
        again = check(self.verifying)
        assert again.verdict.sort == mended.now.verdict.sort
        assert not mend(self.options, apply=True).applied
        return mended


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    return Changed(golden("5.3.3-mixed", tmp_path), "Orders", 0, 124)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("field", ["topic", "no-utf8", "no-name", "queue", "offset", "prepared"])
def test_the_queue_is_what_it_was(changed: Changed, field: str, lost: bool) -> None:
    at, bits = {
        "topic": (changed.topic + 3, 1),
        "no-utf8": (changed.topic + 3, 0x80),
        "no-name": (changed.topic, ord("O") ^ ord("/")),
        "queue": (commitlog.QUEUE_ID + 1, 4),
        "offset": (commitlog.QUEUE_OFFSET + 7, 64),
        "prepared": (commitlog.SYS_FLAG + 3, 4),
    }[field]
    changed.flip(at, bits)
    if lost:
        shutil.rmtree(changed.store.root / names.CONSUME_QUEUE)
    mended = changed.mended()
    assert mended.now.verdict.sort == Sort.START_WITH_LOSS
    (found,) = [one for one in mended.now.findings if one.kind == "altered-message"]
    assert (found.effect in COUNTS, found.first) == (True, changed.position)
    assert found.expected.startswith("Orders:0 queueOffset 124")
    assert tree(changed.store.root / names.CONSUME_QUEUE) == changed.sound


@pytest.mark.parametrize("field", ["topic", "no-utf8", "queue"])
def test_a_guard_refuses_nothing_that_no_mend_changes(tmp_path: Path, field: str) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    files = sorted((store.root / names.CONSUME_QUEUE / "Orders" / "0").iterdir())
    count = sum(size > 0 for path in files for _, size, _ in struct.iter_unpack(">qiq", path.read_bytes()))
    changed = Changed(store, "Orders", 0, count - 3)
    at, bits = {
        "topic": (changed.topic + 3, 1),
        "no-utf8": (changed.topic + 3, 0x80),
        "queue": (commitlog.QUEUE_ID + 1, 4),
    }[field]
    changed.flip(at, bits)
    quick = check(changed.verifying, quick=True).for_start()
    assert [one.kind for one in quick.left] == ["altered-message"]
    assert quick.verdict.sort == Sort.START_WITH_LOSS
    assert changed.mended().now.verdict.sort == Sort.START_WITH_LOSS


def test_a_segment_with_a_byte_too_many_hides_none(tmp_path: Path) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    files = sorted((store.root / names.CONSUME_QUEUE / "Orders" / "0").iterdir())
    places = [at for path in files for at, *_ in struct.iter_unpack(">qiq", path.read_bytes())]
    offset = next(n for n, at in enumerate(places) if n > 1 and at // SEGMENT > places[n - 1] // SEGMENT)
    changed = Changed(store, "Orders", 0, offset)
    changed.flip(commitlog.SYS_FLAG + 3, 4)
    before = store.root / names.COMMIT_LOG / names.offset_name(places[offset - 1] // SEGMENT * SEGMENT)
    before.write_bytes(before.read_bytes() + b"\0")
    assert changed.mended().now.verdict.sort == Sort.START_WITH_LOSS
    assert tree(store.root / names.CONSUME_QUEUE) == changed.sound


@pytest.fixture
def twin(tmp_path: Path) -> Changed:
    """A message that says it is of another queue, and of a place there that the log has two messages for."""
    store = golden("5.3.3-mixed", tmp_path)
    queues = store.root / names.CONSUME_QUEUE / "Payments"
    units = {one: b"".join(path.read_bytes() for path in sorted((queues / one).iterdir())) for one in "12"}
    mine, other = ([place for place, *_ in struct.iter_unpack(">qiq", units[one]) if place] for one in "12")
    offset = next(n for n in range(3, 20) if other[n - 1] < mine[n] < other[n + 1])
    changed = Changed(store, "Payments", 1, offset)
    changed.flip(commitlog.QUEUE_ID + 3, 1 ^ 2)
    return changed


def test_which_of_two_it_is_is_told_by_the_files(twin: Changed) -> None:
    mended = twin.mended()
    assert mended.now.verdict.sort == Sort.START_WITH_LOSS
    assert tree(twin.store.root / names.CONSUME_QUEUE) == twin.sound


def test_without_the_files_the_others_keep_their_places(twin: Changed) -> None:
    files = sorted(twin.queue.iterdir())
    before = b"".join(path.read_bytes() for path in files)
    shutil.rmtree(twin.store.root / names.CONSUME_QUEUE)
    mended = twin.mended()
    assert mended.rebuilt is not None
    assert {"missing-queue-offsets", "repeated-queue-offset"} <= {one.kind for one in mended.rebuilt.findings}
    now = b"".join(path.read_bytes() for path in files)
    at = twin.queue_offset * 20
    assert now[:at] + now[at + 20 :] == before[:at] + before[at + 20 :]
    assert now[at : at + 20] == before[at + 20 : at + 40], "the next unit stands there, too"


def test_what_the_queue_has_stays_where_more_than_a_byte_changed(changed: Changed) -> None:
    for at in range(6):
        changed.flip(changed.topic + at, 0x15)
    mended = changed.mended()
    assert mended.now.verdict.sort == Sort.START_WITH_LOSS
    assert tree(changed.store.root / names.CONSUME_QUEUE) == changed.sound


@pytest.mark.parametrize("field", [b"INNER_MULTI_QUEUE_OFFSET", b"INNER_MULTI_DISPATCH"])
def test_a_light_queue_keeps_what_the_message_has_lost_the_names_of(tmp_path: Path, field: bytes) -> None:
    store = golden("5.3.3-lmq", tmp_path)
    lights = sorted(path.name for path in (store.root / names.CONSUME_QUEUE).glob("%LMQ%*"))
    changed = Changed(store, lights[0], 0, 1)
    changed.flip(changed.record.index(field) + 3, 1)
    mended = changed.mended()
    assert mended.now.verdict.sort == Sort.START_WITH_LOSS
    (found,) = [one for one in mended.now.findings if one.kind == "altered-message"]
    assert found.first == changed.position
    assert "whose properties don't name it" in found.found
    assert tree(store.root / names.CONSUME_QUEUE) == changed.sound


@pytest.mark.parametrize("why", ["alone", "with-another", "all"])
def test_the_tags_of_a_unit_are_kept_where_the_message_has_lost_them(tmp_path: Path, why: str) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    all_of_them = (Changed(store, "Orders", 0, offset) for offset in range(100, 200))
    changed = next(one for one in all_of_them if b"TAGS\x01" in one.record)
    changed.flip(changed.record.rindex(b"TAGS\x01") + 3, 1)
    root = changed.store.root / names.CONSUME_QUEUE
    if why == "with-another":  # of the same queue, so that it is made anew
        path = sorted(changed.queue.iterdir())[0]
        path.write_bytes(path.read_bytes()[:3] + b"\1" + path.read_bytes()[4:])
    elif why == "all":
        (root / "Payments").rename(changed.store.root / "away")
    before = check(VerifyOptions(changed.store.root, None, broker_conf(changed.store), "5.3.3"))
    (found,) = [one for one in before.findings if one.cause == "tags-lost"]
    assert (found.kind, found.first) == ("wrong-unit", changed.queue_offset)
    mended = changed.mended()
    assert mended.now.verdict.sort == Sort.START_WITH_LOSS
    assert tree(root) == changed.sound


@pytest.mark.parametrize("lost", [False, True])
def test_a_message_that_names_a_later_place_hides_none(tmp_path: Path, lost: bool) -> None:
    """Messages of another queue that could be the ones between are where they belong."""
    changed = Changed(golden("5.3.3-mixed", tmp_path), "Payments", 1, 4)
    changed.flip(commitlog.QUEUE_OFFSET + 7, 32)
    if lost:
        shutil.rmtree(changed.store.root / names.CONSUME_QUEUE)
    mended = changed.mended()
    assert (mended.now.verdict.sort, mended.lost) == (Sort.START, 0)
    assert tree(changed.store.root / names.CONSUME_QUEUE) == changed.sound


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("crossing", [False, True])
def test_what_one_message_hides_of_another_one_is_found(tmp_path: Path, crossing: bool, lost: bool) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    if crossing:
        some = [Changed(store, "Payments", 1, 5), Changed(store, "Payments", 2, 14)]
        for one in some:
            one.flip(commitlog.QUEUE_ID + 3, 1 ^ 2)
    else:
        some = [Changed(store, "Orders", 0, 124), Changed(store, "Orders", 0, 150)]
        for one, named in zip(some, (60, 22), strict=True):
            one.flip(commitlog.QUEUE_OFFSET + 7, one.queue_offset ^ named)
    if lost:
        shutil.rmtree(store.root / names.CONSUME_QUEUE)
    mended = some[0].mended()
    found = {one.first for one in mended.now.findings if one.kind == "altered-message"}
    assert found == {one.position for one in some}
    assert tree(store.root / names.CONSUME_QUEUE) == some[0].sound


def test_a_light_queue_keeps_a_message_that_names_an_earlier_place_in_it(tmp_path: Path) -> None:
    store = golden("5.3.3-lmq", tmp_path)
    changed = Changed(store, "%LMQ%device-0", 0, 5)
    changed.flip(changed.record.index(b"INNER_MULTI_QUEUE_OFFSET\x016,5") + 27, ord("5") ^ ord("3"))
    mended = changed.mended()
    assert mended.now.verdict.sort == Sort.START_WITH_LOSS
    assert tree(store.root / names.CONSUME_QUEUE) == changed.sound


def test_units_are_found_where_the_queue_has_them(tmp_path: Path) -> None:
    """A message that names a light queue twice has one unit there: later ones stand before their places."""
    store = golden("5.3.3-lmq", tmp_path)
    changed = Changed(store, "%LMQ%device-1", 0, 47)
    changed.flip(commitlog.SYS_FLAG + 3, 4)
    mended = changed.mended()
    assert mended.now.verdict.sort == Sort.START_WITH_LOSS
    assert tree(store.root / names.CONSUME_QUEUE) == changed.sound


def written(directory: Path, records: list[bytes]) -> Store:
    return write_store(directory / "store", [segment(*records, size=100 * LENGTH)])


@pytest.mark.parametrize("ends", [(), (14, 16, 18), range(1, 20)])
def test_a_message_alone_in_its_batch_stays_in_its_queue(tmp_path: Path, ends: Sequence[int]) -> None:
    """One of another queue, which has a jump in a sound log, isn't taken for what that misses."""
    places = [(queue_id, offset) for offset in range(7) for queue_id in (0, 1)]
    places += [(1, 7), (0, 8), (1, 8), (0, 9), (1, 9), (0, 10)]
    records = [message(offset, queue_id=queue_id) for queue_id, offset in places]
    state = rebuild_locally(written(tmp_path, records), tmp_path / "out", ends=[LENGTH * end for end in ends])
    assert {one.kind for one in state.findings} == {"queue-offset-jump"}
    for queue_id in (0, 1):
        found = [places[position // LENGTH] for position, _, _ in units(tmp_path / "out", "T", queue_id)]
        assert found == [place for place in places if place[0] == queue_id]


def test_a_batch_queue_gets_no_files_of_a_plain_one(tmp_path: Path) -> None:
    """A message that another queue misses names a topic of batch queues, by one byte."""
    batch = b"INNER_NUM\x011\x02INNER_BASE\x01%d\x02"
    records = [message(offset, topic=b"U", properties=batch % offset) for offset in range(7)]
    records += [message(0), message(1), message(2, topic=b"U"), message(3), message(4)]
    selection = Selection(batch=frozenset(["U"]))
    state = rebuild_locally(written(tmp_path, records), tmp_path / "out", index=False, selection=selection)
    assert not (tmp_path / "out" / names.CONSUME_QUEUE / "U").exists()
    assert state.queues["U", 0].is_batch


def test_queues_with_extended_units_are_as_a_broker_makes_them(tmp_path: Path) -> None:
    """A unit there would have to move with the message: nothing is looked for, by check and by mend."""
    changed = Changed(golden("5.3.3-queue-ext", tmp_path), "Orders", 0, 20)
    changed.flip(commitlog.QUEUE_OFFSET + 7, 20 ^ 4)
    changed.mended()


def test_a_database_is_as_a_broker_leaves_it(tmp_path: Path) -> None:
    """Made anew, the last message of a queueOffset has the place, and mending comes to an end."""
    store = golden("5.5.0-rocksdb-mixed", tmp_path)
    at = next(
        offset
        for path in sorted((store.root / names.COMMIT_LOG).iterdir())
        for offset, record in records(path)
        if (record.topic, record.queue_id, record.queue_offset) == (b"Orders", 0, 20)
    )
    overwrite(store.root, SEGMENT, at + commitlog.QUEUE_OFFSET + 7, b"\4")
    options = RebuildOptions(store.root, broker_conf=broker_conf(store), rocketmq_version=store.version)
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    assert check(wanted).verdict.sort == Sort.START_WITH_LOSS, "its unit is where it belongs"
    assert not mend(options, apply=True).applied
    shutil.rmtree(store.root / names.CONSUME_QUEUE)
    mended = mend(options, apply=True)
    again = check(wanted)
    assert mended.now.verdict.text == again.verdict.text
    assert again.verdict.sort == Sort.START
    odd = {"repeated-queue-offset", "queue-offset-jump"}
    assert odd <= {note.kind for note in again.notes}
    assert odd <= {note.kind for note in mended.now.notes}


def records(path: Path) -> Iterator[tuple[int, commitlog.Record]]:
    """The records of a segment, with their physical offsets."""
    data, base, at = memoryview(path.read_bytes()), int(path.name), 0
    while isinstance(found := frame(data, base, at, topic_length_v2=True), Frame):
        yield base + at, commitlog.decode(data, at)
        at += found.size
