"""A queue that has lost its last messages ends where it did, whatever else of it or of the log is wrong."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from reput.derived.last_file import nowhere
from reput.diagnosis.check import check
from reput.diagnosis.verdict import Effect
from reput.errors import StoreError
from reput.format import commitlog, names
from reput.format.consumequeue import PRE_BLANK, SIZE, UNIT_LENGTH, unit
from reput.format.names import Queue
from reput.job.options import RebuildOptions
from reput.job.rebuilding import rebuild
from reput.mending import mend
from reput.replay import state
from reput.verify.plan import VerifyOptions
from tests.compat import damage
from tests.golden.store import GoldenStore, unpack
from tests.rebuilds import tree
from tests.unit.mending.test_mend import OURS, lose_ends, units, unreadable

#: A queue of 5.3.3-restart, and how many units it has.
QUEUE, COUNT = ("Shipments-of-2024", 1), 10


class Case:
    """A store, and ways to damage and mend it."""

    def __init__(self, name: str, place: Path) -> None:
        self.store: GoldenStore = unpack(name, place / "store")
        conf = self.store.write_broker_conf(place / "broker.conf")
        self.options = RebuildOptions(self.store.root, broker_conf=conf, rocketmq_version=self.store.version)
        self.size = int(str(self.store.config["mappedFileSizeCommitLog"]))

    def in_log(self, at: int, data: bytes) -> None:
        damage.write(
            self.store.root / names.COMMIT_LOG / names.offset_name(at - at % self.size), at % self.size, data
        )

    def lose(self, queue: Queue, first: int, end: int | None = None) -> list[int]:
        """Make messages unreadable; where all of the queue lie."""
        there: list[int] = units(self.store, *queue)["position"].astype(int).tolist()
        unreadable(self.store, there[first:end])
        return there

    def in_queue(self, queue: Queue, number: int, data: bytes, field: int = 0) -> None:
        damage.write(names.queue_file(self.store.root, *queue, 0), number * UNIT_LENGTH + field, data)

    def end(self, queue: Queue) -> int:
        return len(units(self.store, *queue))

    def found(self) -> dict[str, list[tuple[str, str | None, int, int]]]:
        """What a check says of each queue."""
        found: dict[str, list[tuple[str, str | None, int, int]]] = {}
        for one in check(self.checking).findings:
            if one.queue is not None:
                named = f"{one.topic}:{one.queue_id}"
                found.setdefault(named, []).append((one.kind, one.cause, one.first, one.end))
        return found

    @property
    def checking(self) -> VerifyOptions:
        return VerifyOptions(self.store.root, None, self.options.broker_conf, self.options.rocketmq_version)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case("5.3.3-restart", tmp_path)


@pytest.mark.parametrize("how", ["its size", "nothing is there", "made on request"])
def test_when_the_queue_is_made_once_more(case: Case, how: str) -> None:
    ends = {queue: len(there) for queue, there in lose_ends(case.store, 2).items()}
    assert mend(case.options, apply=True).exit_code == 0
    queue = min(ends)
    last = ends[queue] - 3
    if how == "its size":
        case.in_queue(queue, last, struct.pack(">i", 1234), SIZE)
    elif how == "nothing is there":
        case.in_queue(queue, last, bytes(UNIT_LENGTH))
    if how == "made on request":
        options = RebuildOptions(
            case.store.root,
            broker_conf=case.options.broker_conf,
            rocketmq_version="5.3.3",
            queues=(f"{queue[0]}:{queue[1]}",),
        )
        assert rebuild(options, None).kept_ends
    else:
        shutil.rmtree(names.queue_directory(case.store.root, "Orders", 1))
        again = mend(case.options, apply=True)
        assert (again.exit_code, again.lost) == (0, 0)
    assert {one: case.end(one) for one in ends} == ends
    after = mend(case.options)
    assert (after.exit_code, after.steps) == (0, [])


@pytest.mark.parametrize("odd", [5, 6, 7, 9])
@pytest.mark.parametrize("first", [0, 5], ids=["all lost", "half lost"])
def test_whatever_a_unit_among_them_leads_to(case: Case, first: int, odd: int) -> None:
    there = case.lose(QUEUE, first)
    if odd < COUNT - 1:
        case.in_queue(QUEUE, odd, struct.pack(">q", there[odd] - 10))
    mended = mend(case.options, apply=True)
    assert mended.exit_code == 0
    assert mended.lost >= COUNT - first - (odd == first)
    assert case.end(QUEUE) == COUNT
    assert mend(case.options).steps == []


def test_of_a_queue_without_messages_one_of_whose_units_is_gone(case: Case) -> None:
    case.lose(QUEUE, 0)
    assert mend(case.options, apply=True).exit_code == 0
    case.in_queue(QUEUE, 4, bytes(UNIT_LENGTH))
    assert mend(case.options, apply=True).exit_code == 0
    assert case.end(QUEUE) == COUNT


@pytest.mark.parametrize("field", ["topic", "queueId", "queueOffset"])
def test_behind_a_message_that_was_altered(case: Case, field: str) -> None:
    at = case.lose(QUEUE, COUNT - 2)[COUNT - 3]
    if field == "topic":
        data = (case.store.root / names.COMMIT_LOG / names.offset_name(at - at % case.size)).read_bytes()
        case.in_log(at - at % case.size + data.index(QUEUE[0].encode(), at % case.size), b"X")
    elif field == "queueId":
        case.in_log(at + commitlog.QUEUE_ID, struct.pack(">i", 7))
    else:
        case.in_log(at + commitlog.QUEUE_OFFSET, struct.pack(">q", 1 << 40))
    assert ("extra-unit", "log-damaged", COUNT - 2, COUNT) in case.found()["Shipments-of-2024:1"]
    mended = mend(case.options, apply=True)
    assert (mended.exit_code, mended.lost, case.end(QUEUE)) == (0, 2, COUNT)
    assert mend(case.options).steps == []


@pytest.mark.parametrize("name", ["5.3.3-restart", "5.5.0-restart"])
def test_behind_a_message_that_lost_its_tags(name: str, tmp_path: Path) -> None:
    case, queue = Case(name, tmp_path), ("Shipments-of-2024", 2)
    there = units(case.store, *queue)
    last = int(np.flatnonzero(there["tags"][:-1] > 1 << 12)[-1])
    at = case.lose(queue, last + 1)[last]
    data = (case.store.root / names.COMMIT_LOG / names.offset_name(at - at % case.size)).read_bytes()
    case.in_log(at - at % case.size + data.index(b"TAGS\x01", at % case.size), b"TAGX")
    assert mend(case.options, apply=True).exit_code == 1, "of the tags"
    for _ in range(2):
        again = mend(case.options, apply=True)
        assert (again.exit_code, again.steps, case.end(queue)) == (1, [], len(there))
    assert units(case.store, *queue)[last]["tags"] == there[last]["tags"]


@pytest.mark.parametrize("most", [8, 4096])
def test_many_findings_hide_no_sound_message(most: int, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal sums up what it finds of many queues, and keeps apart what it finds of the log."""
    monkeypatch.setattr(state, "MAX_FINDINGS", most)
    monkeypatch.setattr(state, "MAX_SALVAGED", most)
    records = [one.offset for one in damage.Copy(case.store.root, case.size, 0).records()]
    ranges = [(records[20], records[45]), (records[60], records[62])]
    assert ranges[-1][1] < case.size
    for start, end in ranges:
        case.in_log(start, bytes(end - start))
    before = check(case.checking).report
    mended = mend(case.options, apply=True)
    assert [(one.offset, one.end) for one in mended.changes] == ranges
    after = check(case.checking).report
    assert before is not None
    assert after is not None
    assert after.messages == before.messages


def test_a_database_where_a_replica_has_other_messages(tmp_path: Path) -> None:
    case = Case("5.5.0-rocksdb-mixed", tmp_path)
    log = case.store.root / names.COMMIT_LOG
    (log / names.offset_name(262144)).unlink()
    replica = shutil.copytree(log, tmp_path / "replica" / names.COMMIT_LOG).parent
    record = damage.Copy(case.store.root, case.size, 0).records()[5]
    damage.write(record.segment, record.position + commitlog.MAGIC, b"oops")
    mended = mend(case.options, replica, apply=True)
    told = {f"{one.topic}:{one.queue_id}" for one in mended.now.findings if one.effect is Effect.GONE}
    assert (mended.exit_code, mended.lost) == (1, 37)
    assert {"Corners:1", "SCHEDULE_TOPIC_XXXX:0"} <= told


def test_a_queue_in_files_and_in_rocksdb_has_lost_its_messages_once(tmp_path: Path) -> None:
    case = Case("5.5.0-rocksdb-double-write", tmp_path)
    lost = lose_ends(case.store, 2)
    assert mend(case.options, apply=True).lost == 2 * len(lost)


@pytest.mark.parametrize("name", ["4.9.7-mixed", "5.3.3-mixed", "5.5.0-mixed"])
def test_a_first_unit_that_is_gone_is_no_starts_to_put_right(name: str, tmp_path: Path) -> None:
    """A start takes what a file begins with for a unit."""
    case, queue = Case(name, tmp_path), ("%DLQ%group", 0)
    before = units(case.store, *queue)
    case.in_queue(queue, 0, bytes(UNIT_LENGTH))
    assert check(case.checking).exit_code == 3
    assert mend(case.options, apply=True).exit_code == 0
    assert (units(case.store, *queue) == before).all()


@pytest.mark.parametrize("has_first", [True, False], ids=["the first message", "without it"])
def test_a_queue_of_blanks_alone_goes_on_behind_them(has_first: bool, case: Case) -> None:
    """A blank has no message, whatever the log has lost where it leads."""
    case.lose(QUEUE, 0)
    if not has_first:
        case.in_log(commitlog.MAGIC, b"oops")
    for number in range(COUNT):
        case.in_queue(QUEUE, number, PRE_BLANK if number < 6 else unit(10**7, 100, 5))
    assert mend(case.options, apply=True).exit_code == 0
    assert units(case.store, *QUEUE).tobytes() == PRE_BLANK * 5 + nowhere(case.size)
    after = mend(case.options)
    assert (after.exit_code, after.steps) == (0, [])


@pytest.mark.parametrize("name", ["4.9.7-mixed", "5.3.3-restart"])
def test_what_goes_with_the_logs_end_is_lost(name: str, tmp_path: Path) -> None:
    case = Case(name, tmp_path)
    records = damage.Copy(case.store.root, case.size, 0).records()
    last = records[len(records) * 9 // 10]
    for segment in sorted((case.store.root / names.COMMIT_LOG).iterdir()):
        if segment.name > last.segment.name:
            segment.unlink()
    damage.write(last.segment, last.position, bytes(case.size - last.position))
    shutil.rmtree(case.store.root / names.INDEX)
    gone = check(case.checking).verdict.text
    mended = mend(case.options, apply=True)
    assert f"{mended.lost} messages are gone for good" in gone


@pytest.mark.parametrize("lost", ["nothing", "queues"])
def test_more_damage_than_a_journal_keeps_apart(
    lost: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_FINDINGS", 8)
    case.lose(QUEUE, 1)
    if lost == "nothing":
        assert len(mend(case.options, apply=True).changes) == COUNT - 1
        assert mend(case.options).exit_code == 0
        return
    for name in (names.CONSUME_QUEUE, names.INDEX):
        shutil.rmtree(case.store.root / name)
    before = tree(case.store.root, *OURS)
    with pytest.raises(StoreError, match="more damaged places than mend can close"):
        mend(case.options, apply=True)
    assert tree(case.store.root, *OURS) == before


def test_what_a_replica_gives_is_not_closed(case: Case, tmp_path: Path) -> None:
    log = case.store.root / names.COMMIT_LOG
    replica = shutil.copytree(log, tmp_path / "replica" / names.COMMIT_LOG).parent
    case.lose(QUEUE, 3, 4)
    assert [one.kind for one in mend(case.options, replica).steps][:2] == ["take", "make-queues"]
