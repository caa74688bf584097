"""What a quick look says, a whole one says, too: else a guard asks for a mend that finds nothing."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from reput.diagnosis.check import check
from reput.diagnosis.verdict import Effect, Remedy, Sort, lost
from reput.format import commitlog, names
from reput.format.commitlog import MAGIC, MAGIC_BLANK
from reput.format.consumequeue import PRE_BLANK, unit
from reput.format.rocksdbqueue import OFFSETS, prefix, unit_key
from reput.job.options import RebuildOptions
from reput.mending import mend
from reput.verify.plan import VerifyOptions
from tests.golden.store import GoldenStore
from tests.local import write_store
from tests.rebuilds import broker_conf, golden, overwrite, record_starts, tree
from tests.rocksdbs import writing
from tests.unit.output.test_bad_input import LENGTH, message, segment
from tests.unit.replay.test_altered import records

SEGMENT = 65536


def sorts(store: GoldenStore) -> tuple[Sort, Sort, Sort]:
    """Of a whole look, a quick one, and one before a start."""
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    quick = check(wanted, quick=True)
    return check(wanted).verdict.sort, quick.verdict.sort, quick.for_start().verdict.sort


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("name", ["4.9.7-recreated-topic", "5.3.3-recreated-topic", "5.5.0-recreated-topic"])
def test_a_topic_that_was_created_again(name: str, crashed: bool, tmp_path: Path) -> None:
    store = golden(name, tmp_path)
    whole, *quick = sorts(store)
    assert (whole, quick) == (Sort.START, [Sort.START] * 2)
    if crashed:
        (store.root / names.ABORT).touch()
        whole, *quick = sorts(store)
        assert quick == [whole] * 2


@pytest.mark.parametrize("appended", [False, True])
def test_a_topic_that_was_created_again_and_has_one_message(appended: bool, tmp_path: Path) -> None:
    """Its queue's own file tells whether the queue begins with it, or goes on as by a dispatch."""
    places = [(queue_id, offset) for offset in range(4) for queue_id in (0, 1)] + [(0, 0)]
    records = (message(offset, queue_id=queue_id) for queue_id, offset in places)
    root = write_store(tmp_path / "store", [segment(*records, size=SEGMENT)]).root
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"messageIndexEnable=false\nmappedFileSizeCommitLog={SEGMENT}\nmappedFileSizeConsumeQueue=1000\n"
    )
    queue = names.queue_directory(root, "T", 0)
    queue.mkdir(parents=True)
    rows = [0, 2, 4, 6, 8] if appended else [8]
    units = b"".join(unit(row * LENGTH, LENGTH, 0) for row in rows)
    (queue / names.offset_name(0)).write_bytes(units.ljust(1000, b"\0"))
    before = tree(queue)
    wanted = VerifyOptions(root, None, conf, "5.3.3")
    whole, quick = check(wanted), check(wanted, quick=True)
    expected = Sort.MEND if appended else Sort.START
    assert {one.verdict.sort for one in (whole, quick, quick.for_start())} == {expected}
    odd = ["queue-offset-jump"] if appended else ["queue-restarted", "deleted-queue"]
    assert [note.kind for note in whole.notes] == odd
    mended = mend(RebuildOptions(root, broker_conf=conf, rocketmq_version="5.3.3"), apply=True)
    assert (mended.applied, mended.now.verdict.sort) == (appended, Sort.START)
    assert tree(queue) == before
    assert names.queue_directory(root, "T", 1).exists() == appended


def test_a_queue_of_blanks_alone(tmp_path: Path) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    queue = names.queue_directory(store.root, "Orders", 5)
    queue.mkdir(parents=True, exist_ok=True)
    size = int(str(store.config["mappedFileSizeConsumeQueue"]))
    (queue / names.offset_name(0)).write_bytes(PRE_BLANK * (size // len(PRE_BLANK)))
    assert sorts(store)[:2] == (Sort.MEND, Sort.MEND)


def test_records_beside_queues_of_expired_messages(tmp_path: Path) -> None:
    store = golden("5.5.0-queue-ext", tmp_path)
    min((store.root / names.COMMIT_LOG).iterdir()).unlink()
    min((store.root / names.CONSUME_QUEUE_EXT / "Orders" / "0").iterdir()).unlink()
    whole, *quick = sorts(store)
    assert quick == [whole] * 2


def test_a_unit_of_one_of_two_light_queues(tmp_path: Path) -> None:
    """The other one's unit is no sign that the message was altered: it names both."""
    store = golden("5.3.3-lmq", tmp_path)
    queue = store.root / names.CONSUME_QUEUE / "%LMQ%device-3" / "0"
    unit, size = 84 * 20, int(str(store.config["mappedFileSizeConsumeQueue"]))
    with (queue / names.offset_name(unit // size * size)).open("r+b") as file:
        file.seek(unit % size)
        file.write(bytes(20))
    assert sorts(store) == (Sort.MEND,) * 3


@pytest.mark.parametrize("topic", ["Corners", "Orders", "Payments", "Transfers"])
def test_queues_that_have_each_other_s_files(topic: str, tmp_path: Path) -> None:
    """No message was altered: what is wrong are the units."""
    store = golden("5.3.3-mixed", tmp_path)
    one, other = (names.queue_directory(store.root, topic, number) for number in (0, 1))
    one.rename(tmp_path / "between")
    other.rename(one)
    (tmp_path / "between").rename(other)
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    whole, quick = check(wanted), check(wanted, quick=True)
    assert {one.kind for one in quick.left} <= {"missing-unit", "queue-ends-late"}
    assert quick.next_steps == whole.next_steps
    assert quick.verdict.sort == whole.verdict.sort == Sort.MEND


def test_a_unit_of_a_message_of_another_queue(tmp_path: Path) -> None:
    """Nothing leads to the message in whose place it stands: both count it."""
    store = golden("5.3.3-mixed", tmp_path)
    path = max((store.root / names.CONSUME_QUEUE / "Orders" / "0").iterdir())
    other = max((store.root / names.CONSUME_QUEUE / "Orders" / "1").iterdir())
    path.write_bytes(path.read_bytes()[:800] + other.read_bytes()[:20] + path.read_bytes()[820:])
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    whole, quick = check(wanted), check(wanted, quick=True)
    said = [[(one.kind, one.queue, one.messages) for one in each.left] for each in (whole, quick)]
    assert said == [[("wrong-unit", ("Orders", 0), 1)], [("missing-unit", ("Orders", 0), 1)]]
    assert quick.next_steps == whole.next_steps
    assert all("no queue leads to 1 message" in each.verdict.said for each in (whole, quick))
    assert whole.for_start().verdict.sort == quick.for_start().verdict.sort == Sort.MEND


def test_a_start_cuts_at_damage_and_at_no_hole_of_a_queue(tmp_path: Path) -> None:
    """A message in two findings: its body is damaged, and the one before it in its queue is lost."""
    store = golden("5.3.3-mixed", tmp_path)
    every = chain.from_iterable(map(records, sorted((store.root / names.COMMIT_LOG).iterdir())))
    mine = [(at, one) for at, one in every if (one.topic, one.queue_id) == (b"Orders", 0)]
    following = next(number for number, (at, _) in enumerate(mine) if at >= 7 * SEGMENT)
    overwrite(store.root, SEGMENT, mine[following - 1][0] + MAGIC, bytes(4))
    at, one = mine[following]
    overwrite(store.root, SEGMENT, at + commitlog.encode(one).rindex(one.body), bytes([one.body[0] ^ 1]))
    found = check(VerifyOptions(store.root, None, broker_conf(store), store.version)).left
    here = {one.kind: (one.effect, one.messages) for one in found if one.area == "log" and one.first == at}
    assert here == {"bad-crc": (Effect.LOSES, 102), "missing-queue-offsets": (Effect.GONE, 1)}
    (unit,) = [one for one in found if one.kind == "wrong-unit"]
    assert (unit.cause, unit.messages) == ("log-damaged", 0)  # it is counted where its place is missing


def test_a_queue_whose_last_message_names_another_one(tmp_path: Path) -> None:
    """Nothing behind it in the log tells that its queue misses it."""
    store = golden("5.3.3-mixed", tmp_path)
    every = chain.from_iterable(map(records, sorted((store.root / names.COMMIT_LOG).iterdir())))
    last = max(at for at, one in every if (one.topic, one.queue_id) == (b"Orders", 0))
    overwrite(store.root, SEGMENT, last + commitlog.QUEUE_ID + 3, b"\1")
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    whole, quick = check(wanted), check(wanted, quick=True)
    for found in (whole, quick):
        assert [(one.queue, one.count) for one in found.left if one.messages] == [(("Orders", 1), 1)]
    assert quick.next_steps == whole.next_steps


@pytest.mark.parametrize(
    "altered",
    [[(0, -4, 1), (1, -4, 0)], [(0, -4, 1), (1, -4, 2)], [(0, -4, 1), (0, -3, 2)]],
    ids=["crosswise", "in a chain", "to two queues"],
)
def test_two_altered_messages_whose_queues_touch(altered: list[tuple[int, int, int]], tmp_path: Path) -> None:
    """``altered``: of which queue, which message, and the queue that it names since."""
    store = golden("5.3.3-mixed", tmp_path)
    every = [*chain.from_iterable(map(records, sorted((store.root / names.COMMIT_LOG).iterdir())))]
    for queue_id, number, named in altered:
        mine = [at for at, one in every if (one.topic, one.queue_id) == (b"Orders", queue_id)]
        overwrite(store.root, SEGMENT, mine[number] + commitlog.QUEUE_ID + 3, bytes([named]))
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    for found in (check(wanted), check(wanted, quick=True)):
        assert {one.kind for one in found.left} == {"altered-message"}
    assert sorts(store) == (Sort.START_WITH_LOSS,) * 3


@pytest.mark.parametrize("what", ["index", "queue"])
def test_an_index_file_without_its_end_and_a_queue_without_a_file(what: str, tmp_path: Path) -> None:
    """What a quick look says, a whole one says by the same name, and of the same place."""
    store = golden("5.3.3-mixed", tmp_path)
    if what == "index":
        path = max((store.root / names.INDEX).iterdir())
        os.truncate(path, len(path.read_bytes().rstrip(b"\0")) - 25)
    else:
        sorted((store.root / names.CONSUME_QUEUE / "Orders" / "0").iterdir())[3].unlink()
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    whole, quick = check(wanted), check(wanted, quick=True)
    said = [{(one.kind, one.area) for one in each.left} for each in (whole, quick)]
    assert said[1]
    assert said[1] <= said[0]
    assert quick.next_steps == whole.next_steps


@pytest.mark.parametrize("what", ["swapped", "copied"])
def test_index_files_that_are_in_no_order(what: str, tmp_path: Path) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    first, *_, last = sorted((store.root / names.INDEX).iterdir())
    if what == "copied":
        shutil.copy2(last, last.with_name(f"{int(last.name) + 1}"))
    else:
        first.rename(tmp_path / "between")
        last.rename(first)
        (tmp_path / "between").rename(last)
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    whole, quick = check(wanted), check(wanted, quick=True)
    assert {one.kind for one in quick.left} == {"index-header"} <= {one.kind for one in whole.left}
    assert quick.next_steps == whole.next_steps


@pytest.mark.parametrize("written", [b"\0", b"x"])
def test_one_segment_that_is_too_long(tmp_path: Path, written: bytes) -> None:
    """It has a byte behind its end; with something written there it is of a broker with longer ones."""
    store = golden("5.3.3-tiny", tmp_path)
    first, *others = sorted((store.root / names.COMMIT_LOG).iterdir())
    for path in others:
        path.unlink()
    with first.open("ab") as file:
        file.write(written)
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    found = [check(wanted, quick=quick) for quick in (False, True)]
    stops = [[(one.kind, one.remedy) for one in each.left if one.effect is Effect.BLOCKS] for each in found]
    is_ours = written == b"\0"
    expected = ("wrong-length", Remedy.MEND) if is_ours else ("other-settings", Remedy.BY_HAND)
    assert stops == [[expected]] * 2
    assert [each.verdict.sort for each in found] == [Sort.NO_START] * 2
    options = RebuildOptions(store.root, broker_conf=broker_conf(store), rocketmq_version=store.version)
    if is_ours:
        mended = mend(options, apply=True)
        assert first.stat().st_size == store.config["mappedFileSizeCommitLog"]
        assert mended.now.verdict.sort in (Sort.START, Sort.START_WITH_LOSS)


@pytest.mark.parametrize("more", [1 << 20, 1])
def test_where_an_index_file_begins_whose_first_message_has_expired(tmp_path: Path, more: int) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    first = min((store.root / names.COMMIT_LOG).iterdir())
    first.unlink()
    index = min((store.root / names.INDEX).iterdir())
    data = bytearray(index.read_bytes())
    begins = int.from_bytes(data[16:24], "big")
    data[16:24] = (begins + more).to_bytes(8, "big")
    index.write_bytes(data)
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    (found,) = [one for one in check(wanted).left if one.area == "index"]
    assert (found.kind, found.offset) == ("index-header", 16)
    options = RebuildOptions(store.root, broker_conf=broker_conf(store), rocketmq_version=store.version)
    mended = mend(options, apply=True)
    assert mended.now.verdict.sort == check(wanted).verdict.sort == check(wanted, quick=True).verdict.sort


def test_a_closing_record_that_hides_messages(tmp_path: Path) -> None:
    """A broker passes over what lies behind one; with whole messages there it is damage, and only its own."""
    store = golden("5.3.3-mixed", tmp_path)
    before = tree(store.root / names.CONSUME_QUEUE)
    starts = record_starts(store.root, SEGMENT)
    overwrite(store.root, SEGMENT, starts[36] + MAGIC, MAGIC_BLANK.to_bytes(4, "big"))
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    found = check(wanted)
    (hides,) = [one for one in found.left if one.kind == "bad-size"]
    assert (hides.first, hides.end, hides.remedy) == (starts[36], starts[37], Remedy.MEND)
    assert "passes over the rest of the segment" in hides.outcome
    assert lost(found.left) == 1
    options = RebuildOptions(store.root, broker_conf=broker_conf(store), rocketmq_version=store.version)
    assert mend(options, apply=True).lost == 1
    after = tree(store.root / names.CONSUME_QUEUE)
    assert [name for name in before if before[name] != after[name]] == ["Corners/0/00000000000000000000"]
    assert sorts(store) == (Sort.START,) * 3


def test_a_closing_record_with_older_messages_behind_it(tmp_path: Path) -> None:
    """What a cut of the log has left there is none of its messages."""
    store = golden("5.3.3-mixed", tmp_path)
    path = min((store.root / names.COMMIT_LOG).iterdir())
    data, starts = path.read_bytes(), record_starts(store.root, 0)
    last = starts[-1] + int.from_bytes(data[starts[-1] : starts[-1] + 4], "big")
    left = commitlog.decode(memoryview(data), starts[0])
    old = commitlog.encode(replace(left, physical_offset=last + 20, store_timestamp=left.store_timestamp - 1))
    path.write_bytes(
        (data[:last] + b"\0\0\0\x14" + data[last + 4 : last + 20] + old).ljust(SEGMENT, b"\0")[:SEGMENT]
    )
    assert sorts(store) == (Sort.START,) * 3


def test_a_queue_offset_jump(tmp_path: Path) -> None:
    """A queue's last messages have queueOffsets of two more, and units where a dispatch puts them."""
    store = golden("5.3.3-mixed", tmp_path)
    every = chain.from_iterable(map(records, sorted((store.root / names.COMMIT_LOG).iterdir())))
    for at, one in [(at, one) for at, one in every if (one.topic, one.queue_id) == (b"Orders", 0)][-3:]:
        value = (one.queue_offset + 2).to_bytes(8, "big")
        overwrite(store.root, SEGMENT, at + commitlog.QUEUE_OFFSET, value)
    shutil.rmtree(store.root / names.CONSUME_QUEUE)
    wanted = VerifyOptions(store.root, None, broker_conf(store), store.version)
    mend(
        RebuildOptions(store.root, broker_conf=wanted.broker_conf, rocketmq_version=store.version), apply=True
    )
    assert sorts(store) == (Sort.START,) * 3
    assert "queue-offset-jump" in {note.kind for note in check(wanted).notes}
    assert [line for line in check(wanted, quick=True).not_read if "at other places" in line]


@pytest.mark.parametrize("name", ["5.3.3-rocksdb-mixed", "5.5.0-rocksdb-mixed"])
def test_a_unit_of_another_message_in_a_database(name: str, tmp_path: Path) -> None:
    """There each message has the place that it names."""
    store = golden(name, tmp_path)
    with writing(store.root / names.CONSUME_QUEUE, OFFSETS) as database:
        last = max(key for key, _ in database.items() if key.startswith(prefix(b"Orders", 0)))
        before = unit_key(b"Orders", 0, int.from_bytes(last[-8:], "big") - 1)
        database[last] = database[before]
        database.flush()
    assert sorts(store)[:2] == (Sort.MEND, Sort.MEND)
