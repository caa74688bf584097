"""Dumps of queues, index files and checkpoints; and every golden store, against its bytes read slowly."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.cli.dump_lines import in_queues
from reput.config.settings import StoreSettings
from reput.derived import files as files_module
from reput.dump import consumequeue, index, places
from reput.dump.commitlog import Blank, Block, Reader
from reput.dump.consumequeue import Event, QueueUnit, Run, dump, extent
from reput.dump.damage import Damage
from reput.dump.index import Chain, Entry, FileHead
from reput.dump.wanted import Wanted
from reput.errors import ReputError, StoreError, UnsupportedError
from reput.format import consumequeueext, indexfile, javastring, names
from reput.format.checkpoint import FIELDS
from reput.format.consumequeue import PRE_BLANK, unit
from reput.format.dtypes import BATCH
from reput.scan.rules import rules
from reput.statistics import By, Tally, total_of
from reput.words import snake_case
from tests import encoders
from tests.golden.store import FILTERED, NAMES, unpack
from tests.levels import examples
from tests.slow_dump import batch_units, index_entries, queue_units, segment_events
from tests.unit.source.test_messages import expected as slow_row


@pytest.fixture(autouse=True)
def no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumequeue, "_LOOK_AGAIN_SECONDS", 0)


def queue_of(directory: Path, *files: bytes, topic: str = "t", kind: str = "consumequeue") -> Path:
    """A queue with these files, one behind the other."""
    queue = directory / kind / topic / "3"
    queue.mkdir(parents=True, exist_ok=True)
    base = 0
    for data in files:
        (queue / names.offset_name(base)).write_bytes(data)
        base += len(data)
    return queue


def shown(path: Path, start: int = 0, end: int = 1 << 62) -> list[tuple[object, ...]]:
    return [_shown(event) for place in places.queue_places(path) for event in dump(place, start, end)]


def _shown(event: Event) -> tuple[object, ...]:
    if isinstance(event, QueueUnit):
        return "unit", event.queue_offset, event.position
    if isinstance(event, Run):
        return event.kind, event.start, event.end
    return event.kind, event.queue_offset, event.queue_end


def units(*positions: int) -> bytes:
    return b"".join(unit(position, 100, 7) for position in positions)


def test_places_of_a_queue_are_named(tmp_path: Path) -> None:
    blank, zeros = PRE_BLANK, bytes(20)
    queue_of(
        tmp_path,
        blank * 3 + units(0, 100),
        zeros + units(300, 300) + struct.pack(">qiq", -1, 5, 5) + units(200),
        units(600) + zeros * 4,
    )
    told = [
        ("pre-blank", 0, 3),
        ("unit", 3, 0),
        ("unit", 4, 100),
        ("hole", 5, 6),
        ("unit", 6, 300),
        ("unit", 7, 300),
        ("bad-unit", 8, 9),
        ("order", 9, 10),
        ("unit", 9, 200),
        ("unit", 10, 600),
        ("unwritten", 11, 15),
    ]
    assert shown(tmp_path) == told
    found = [event for place in places.queue_places(tmp_path) for event in dump(place)]
    assert [one.queue_offset for one in found if isinstance(one, QueueUnit) and one.repeats] == [6]
    (hole,) = [one for one in found if isinstance(one, Damage) and one.kind == "hole"]
    assert (Path(hole.path).name, hole.offset, hole.end) == (names.offset_name(100), 0, 20)
    for part in (range(4, 5), range(6, 11), range(2), range(11, 11)):
        kept = [one for one in told if part.start <= int(str(one[1])) < part.stop and one[0] == "unit"]
        within = shown(tmp_path, part.start, part.stop)
        assert [one for one in within if one[0] == "unit"] == kept
    assert shown(tmp_path, 1, 2) == [("pre-blank", 1, 2)]
    assert shown(tmp_path, 5, 6) == [("zeros", 5, 6)]
    assert shown(tmp_path, 12) == [("unwritten", 12, 15)]


def test_a_unit_that_a_broker_is_writing_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(tmp_path, units(0) + struct.pack(">qiq", 100, 0, 0) + bytes(20))
    assert shown(queue)[1] == ("bad-unit", 1, 2)

    def written(_seconds: float) -> None:
        # In place: other threads may sleep, too, and a file that is written anew is empty for a moment.
        with (queue / names.offset_name(0)).open("r+b") as file:
            file.write(units(0, 100) + bytes(20))

    monkeypatch.setattr(consumequeue.time, "sleep", written)
    assert shown(queue) == [("unit", 0, 0), ("unit", 1, 100), ("unwritten", 2, 3)]


def test_a_hole_over_two_files_is_one_and_so_is_a_gap(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, units(0) + bytes(20), bytes(20) + units(100), units(200, 300))
    assert shown(queue)[:3] == [("unit", 0, 0), ("hole", 1, 3), ("unit", 3, 100)]
    (queue / names.offset_name(40)).unlink()
    assert shown(queue) == [
        ("unit", 0, 0),
        ("hole", 1, 2),
        ("missing-files", 2, 4),
        ("unit", 4, 200),
        ("unit", 5, 300),
    ]
    assert shown(queue, 4) == [("unit", 4, 200), ("unit", 5, 300)]
    (queue / names.offset_name(80)).write_bytes(units(200)[:-1])
    assert shown(queue)[-1][0] == "file-length"


@given(
    st.lists(st.tuples(st.sampled_from("ugzpb"), st.integers(1, 4)), max_size=8),
    st.integers(1, 9),
    st.integers(0, 30),
    st.integers(0, 30),
)
@settings(max_examples=examples(80))
def test_units_are_those_of_the_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[tuple[str, int]],
    file_units: int,
    start: int,
    length: int,
) -> None:
    kinds = {"u": units(100), "g": units(100), "z": bytes(20), "p": PRE_BLANK, "b": unit(-5, 5, 5)}
    data = b"".join(kinds[kind] * count for kind, count in runs)
    size = 20 * file_units
    queue = queue_of(
        tmp_path_factory.mktemp("queue"), *(data[at : at + size] for at in range(0, len(data), size))
    )
    files = sorted(queue.iterdir())
    slow = [one for one in queue_units(files) if one[1] >= 0 and start <= one[0] < start + length]
    told = [
        (event.queue_offset, event.position, event.size, event.tags_code)
        for place in (list(places.queue_places(queue)) if files else [])
        for event in dump(place, start, start + length)
        if isinstance(event, QueueUnit)
    ]
    assert told == slow


def test_chunks_meet_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of(tmp_path, PRE_BLANK * 3 + units(0, 10, 10, 10, 20) + bytes(60), units(30, 40))
    whole = [event for place in places.queue_places(queue) for event in dump(place)]
    for chunk in (1, 2, 3, 4):
        monkeypatch.setattr(consumequeue, "_CHUNK", chunk)
        assert [event for place in places.queue_places(queue) for event in dump(place)] == whole


def test_a_path_is_a_store_a_kind_a_topic_a_queue_or_a_file(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, units(0, 100))
    told = [("unit", 0, 0), ("unit", 1, 100)]
    for path in (tmp_path, tmp_path / "consumequeue", queue.parent, queue, queue / names.offset_name(0)):
        assert shown(path) == told, path
        (place,) = places.queue_places(path)
        assert (place.topic, place.queue_id) == ("t", 3)
    away = tmp_path / "elsewhere"
    away.mkdir()
    copy = away / names.offset_name(40)
    copy.write_bytes(units(200))
    assert shown(copy) == [("unit", 2, 200)]
    (place,) = places.queue_places(copy)
    assert (place.topic, place.queue_id) == (None, None)
    copy.rename(away / "0")
    with pytest.raises(StoreError, match="can't be told where this file begins in its queue"):
        shown(away / "0")
    with pytest.raises(StoreError, match="there is no consume queue here"):
        shown(away)
    with pytest.raises(StoreError, match="there is nothing here"):
        shown(away / "1")
    (tmp_path / "consumequeue_ext").mkdir()
    with pytest.raises(UnsupportedError, match="what units point to"):
        shown(tmp_path / "consumequeue_ext")


def test_a_unit_is_shown_with_its_record_in_consumequeue_ext(tmp_path: Path) -> None:
    records = [encoders.ext_unit(11, 1000), encoders.ext_unit(12, 2000, b"\x01\xff")]
    addresses = [consumequeueext.address(place) for place in (0, len(records[0]), 90, 200)]
    queue_of(tmp_path, b"".join(unit(10 * at, 5, code) for at, code in enumerate(addresses)))
    queue_of(tmp_path, b"".join(records).ljust(100, b"\0"), kind="consumequeue_ext")
    found = [event for place in places.queue_places(tmp_path) for event in dump(place)]
    told = [one.ext and (one.ext.tags_code, one.ext.store_timestamp, one.ext.bit_map) for one in found]  # type: ignore[union-attr]
    assert told == [(11, 1000, b""), (12, 2000, b"\x01\xff"), None, None]
    assert found[1].to_dict()["ext"] == {"tags_code": 12, "store_timestamp": 2000, "bit_map_base64": "Af8="}
    assert found[2].to_dict()["ext"] is None


def test_when_a_delayed_message_is_due(tmp_path: Path) -> None:
    data = unit(0, 5, 1795257388991) + unit(9, 5, 2598921)
    queue_of(tmp_path, data, topic="SCHEDULE_TOPIC_XXXX")
    queue_of(tmp_path, data, topic="t")
    due = [event.delivery for place in places.queue_places(tmp_path) for event in dump(place)]  # type: ignore[union-attr]
    assert due == [1795257388991, None, None, None]


def test_where_queues_begin_and_end_is_said_in_place_of_nothing(tmp_path: Path) -> None:
    first = queue_of(tmp_path, bytes(40), PRE_BLANK + units(0, 100) + bytes(20))
    (first / names.offset_name(0)).unlink()
    batches = queue_of(
        tmp_path,
        encoders.batch_unit(0, 50, 7, 1000, 4, 5) + bytes(46),
        topic="b",
        kind="batchconsumequeue",
    )
    empty = queue_of(tmp_path, bytes(40), topic="e")

    def said(start: int, end: int | None, *paths: Path) -> tuple[str, object]:
        nothing = in_queues([place for path in paths for place in places.queue_places(path)], start, end)
        return nothing.text, nothing.facts["why"]

    assert said(0, 2, first) == ("no unit before queueOffset 2: t:3 begins at 3", "before-start")
    assert said(5, None, first) == ("no unit at queueOffset 5 or later: t:3 ends at 5", "past-end")
    assert said(9, 12, batches) == ("no unit at queueOffset 9 or later: b:3 ends at 9", "past-end")
    assert said(0, None, empty) == ("e:3 has no unit", "empty")
    assert said(0, None, empty, empty) == ("none of 2 queues has a unit", "empty")
    told = ("no unit before queueOffset 3 of 3 queues: the first begins at 3", "before-start")
    assert said(1, 3, first, batches, empty) == told


@given(st.lists(st.lists(st.sampled_from("zpgb"), max_size=12), min_size=1, max_size=3))
@settings(max_examples=examples(60))
def test_a_queue_begins_and_ends_with_units_that_lead_somewhere(files: list[list[str]]) -> None:
    parts = {"z": bytes(20), "p": PRE_BLANK, "g": unit(5, 100, 7), "b": struct.pack(">qiq", -1, 5, 5)}
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        patched.setattr(files_module, "_PIECE", 2)
        queue = queue_of(Path(directory), *(b"".join(parts[one] for one in file) for file in files if file))
        good = [number for number, one in enumerate(one for file in files for one in file) if one == "g"]
        told = [extent(place) for place in places.queue_places(queue)] if any(files) else []
    assert told == ([(good[0], good[-1] + 1) if good else None] if any(files) else [])


@pytest.mark.parametrize("first", [0, 1 << 62, (1 << 63) - 1])
def test_batches_are_shown_wherever_they_say_they_are(tmp_path: Path, first: int) -> None:
    data = encoders.batch_unit(7, 50, 7, 1000, first, 5)
    queue = queue_of(tmp_path, data, kind="batchconsumequeue")
    (place,) = places.queue_places(queue)
    for start in (0, first, first + 4):
        assert [_shown(event) for event in dump(place, start)] == [("unit", first, 7)]
    assert list(dump(place, first + (1 << 20))) == list(dump(place, 0, first)) == []


@pytest.mark.parametrize("batches", [True, False])
def test_holes_of_a_queue_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, batches: bool
) -> None:
    one = encoders.batch_unit(7, 50, 7, 1000, 4, 5) if batches else unit(7, 50, 7)
    count = 30_000
    queue = queue_of(tmp_path, b"", kind="batchconsumequeue" if batches else "consumequeue")
    with (queue / names.offset_name(0)).open("wb") as file:
        file.truncate(count * len(one))
        for number in (10_000, 20_000):
            file.seek(number * len(one))
            file.write(one)
    read = files_module.records_of
    seen = []

    def counted(path: Path, kind: np.dtype, items: int, offset: int, what: str) -> np.ndarray:
        seen.append(items * kind.itemsize)
        return read(path, kind, items, offset, what)

    monkeypatch.setattr(files_module, "records_of", counted)
    (place,) = places.queue_places(queue)
    assert extent(place) == ((4, 9) if batches else (10_000, 20_001))
    assert 0 < sum(seen) <= 4 * 8192


@pytest.mark.parametrize("bad", [(-1, 5, 0, 0, 7, 1), (60, 5, 0, 0, 7, 0)], ids=["position", "messages"])
def test_batch_units_are_known_by_their_place_and_by_their_bytes(
    tmp_path: Path, bad: tuple[int, int, int, int, int, int]
) -> None:
    one = encoders.batch_unit
    data = one(0, 50, 7, 1000, 0, 5) + bytes(46) + one(50, 60, 8, 2000, 5, 2) + one(*bad) + bytes(92)
    queue = queue_of(tmp_path, data, kind="batchconsumequeue")
    copy = tmp_path / names.offset_name(0)
    copy.write_bytes(data)
    told = [
        ("unit", 0, 0),
        ("hole", None, None),
        ("unit", 5, 50),
        ("bad-unit", None, None),
        ("unwritten", 4, 6),
    ]
    assert shown(queue) == shown(tmp_path) == shown(copy) == told
    assert [event for event in shown(queue, 4, 6) if event[0] == "unit"] == [told[0], told[2]]
    assert [event for event in shown(queue, 5, 6) if event[0] == "unit"] == [told[2]]
    (queue / names.offset_name(0)).write_bytes(data + b"x")
    assert ("file-length", None, None) in shown(queue)


def index_file(directory: Path, keys: Iterable[str], *, slots: int = 5, entries: int = 8) -> Path:
    data = bytearray(indexfile.file_length(slots, entries))
    ordinal, used = 1, 0
    for key in keys:
        hashed = indexfile.key_hash(javastring.hash_code(key.encode()))
        slot = 40 + 4 * (hashed % slots)
        (previous,) = struct.unpack_from(">i", data, slot)
        used += not previous
        entry = (hashed, 100 * ordinal, ordinal, previous)
        struct.pack_into(">iqii", data, indexfile.file_length(slots, ordinal), *entry)
        struct.pack_into(">i", data, slot, ordinal)
        ordinal += 1
    header = indexfile.IndexHeader(1_000_000, 2_000_000, 100, 900, used, ordinal)
    data[:40] = header.encode()
    path = directory / "index" / "20261121103700412"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def index_settings(directory: Path) -> StoreSettings:
    return replace(StoreSettings.load(directory, None, None), max_hash_slot_num=5, max_index_num=8)


def test_an_index_file_and_the_chain_of_a_key(tmp_path: Path) -> None:
    keys = ["t#a", "t#b", "t#a", "t#f", "t#c"]
    path = index_file(tmp_path, keys)
    for one in (tmp_path, path.parent, path):
        assert places.index_files(one) == [path]
    (place,) = index.places([path], index_settings(tmp_path))
    head, *found = index.dump(place)
    assert isinstance(head, FileHead)
    assert (head.slots_used, head.header.index_count) == (head.header.slot_count, 6)
    assert [(one.ordinal, one.physical_offset, one.timestamp) for one in found] == [  # type: ignore[union-attr]
        (number, 100 * number, 1_000_000 + 1000 * number) for number in range(1, 6)
    ]
    _, chain, *chained = index.walk(place, "t#a")
    assert isinstance(chain, Chain)
    assert [one.ordinal for one in chained if isinstance(one, Entry) and one.matches] == [3, 1]
    assert all(isinstance(one, Entry) and one.key_hash % 5 == chain.slot for one in chained)
    # An entry's time has lost up to 999 ms of its message's.
    within = [one.ordinal for one in list(index.dump(place, 1_002_999, 1_004_001))[1:]]  # type: ignore[union-attr]
    assert within == [2, 3, 4]
    again = list(index.walk(place, "t#a", 1_003_000, 1_003_001))[2:]
    assert [one.ordinal for one in again] == [3]  # type: ignore[union-attr]


def test_damage_in_an_index_file_is_told_and_no_chain_is_endless(tmp_path: Path) -> None:
    path = index_file(tmp_path, ["t#a", "t#a", "t#a"])
    whole = path.read_bytes()
    (place,) = index.places([path], index_settings(tmp_path))
    at = indexfile.file_length(5, 2)

    def changed(offset: int, value: int, key: str | None = None) -> list[str]:
        path.write_bytes(whole[:offset] + struct.pack(">i", value) + whole[offset + 4 :])
        events = index.dump(place) if key is None else index.walk(place, key)
        return [event.kind for event in events if isinstance(event, Damage)]

    assert changed(at + 16, 3) == ["bad-entry"]
    assert changed(at + 16, 2, "t#a") == ["bad-entry"]
    assert changed(at, -1) == changed(at + 12, -1) == ["bad-entry"]
    slot = 40 + 4 * (indexfile.key_hash(javastring.hash_code(b"t#a")) % 5)
    assert changed(slot, 99, "t#a") == ["bad-slot"]
    assert changed(36, 99)[0] == "bad-header"
    path.write_bytes(whole)
    assert not [one for one in index.dump(place, log_end=lambda: 301) if isinstance(one, Damage)]
    *entries, past = index.dump(place, log_end=lambda: 300)
    assert isinstance(past, Damage)
    assert (past.kind, past.offset, past.found) == (
        "entry-past-log",
        indexfile.file_length(5, 3),
        "300 in entry 3, the furthest",
    )
    assert len(entries) == 4
    path.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match=r"another length.*--broker-conf"):
        index.places([path], index_settings(tmp_path))
    other = path.with_name("20261121103700413")
    other.write_bytes(whole)
    short, _ = index.places([path, other], index_settings(tmp_path))
    assert [event.kind for event in index.dump(short) if isinstance(event, Damage)] == ["file-length"]
    for one in (path, other):
        one.unlink()
    with pytest.raises(StoreError, match="no index file here"):
        places.index_files(tmp_path)


def test_a_checkpoint_and_one_of_another_length(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(struct.pack(f">{FIELDS}q", *range(FIELDS)).ljust(4096, b"\0"))
    assert places.checkpoint_file(tmp_path) == places.checkpoint_file(path) == path
    assert list(places.read_checkpoint(path).values()) == list(range(FIELDS))
    for length, found in ((8 * FIELDS, "48 bytes"), (4095, "4095 bytes"), (4097, "more")):
        path.write_bytes(bytes(length))
        with pytest.raises(StoreError, match=f"this isn't a whole checkpoint; expected .* found {found}"):
            places.read_checkpoint(path)
    path.unlink()
    for one in (tmp_path, path):
        with pytest.raises(ReputError, match="there is nothing here"):
            places.checkpoint_file(one)


@pytest.mark.parametrize("name", [*NAMES, *FILTERED])
def test_every_golden_store_is_dumped_as_its_bytes_are(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "store")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    place = places.log_place(store.root, conf, store.version)
    settings = place.settings
    told = []
    sums = Tally(By.TOPIC)
    reader = Reader(settings, entries=place.log.entries, wanted=Wanted())
    for event in reader.log(place.log):
        assert not isinstance(event, Damage)
        if isinstance(event, Block):
            sums.add(event.data, event.base, event.frames, event.rows)
            for message in event.messages():
                found = message.to_dict()
                told.append(("row", found["physical_offset"], message.record.physical_offset + message.size))
                slow = {snake_case(key): value for key, value in slow_row(message.record).items()}
                slow["keys"] = [word for word in str(slow["keys"] or "").split(" ") if word]
                compared = [key for key in slow if not key.endswith("timestamp") and key != "body"]
                assert {key: found[key] for key in compared} == {key: slow[key] for key in compared}
                assert "body_problem" not in message.body_to_dict()
        elif isinstance(event, Blank):
            told.append(("blank", event.offset))
        else:
            told.append(("unwritten", event.offset))
    slowly = []
    for segment in place.log.segments:
        data = segment.path.read_bytes()
        last = segment is place.log.segments[-1]
        slowly += list(segment_events(segment.base, data, rules(settings, index=False), last=last))
    assert told == slowly
    total = total_of([sums])
    assert total is not None
    assert total.messages == sum(event[0] == "row" for event in told)
    compare_queues(store.root)
    if settings.message_index_enable and (store.root / "index").is_dir():
        compare_index(store.root, settings)
    raw = (store.root / "checkpoint").read_bytes()
    told_of = places.read_checkpoint(store.root / "checkpoint")
    assert tuple(told_of.values()) == struct.unpack_from(f">{FIELDS}q", raw)


def compare_queues(root: Path) -> None:
    shown_queues = set()
    for place in places.queue_places(root):
        files = [path for path, _, _ in place.files]
        found = list(dump(place))
        assert not [event for event in found if isinstance(event, Damage)], files
        dumped = [event for event in found if isinstance(event, QueueUnit)]
        shown_queues.add(files[0].parent)
        if place.form == BATCH:
            assert batch_units(files) == [
                (one.queue_offset, one.position, one.size, one.tags_code, *(one.batch or ())[:2])
                for one in dumped
            ]
            continue
        assert queue_units(files) == [
            (one.queue_offset, one.position, one.size, one.tags_code) for one in dumped
        ]
        for one in dumped:
            assert not one.is_address or one.ext is not None, one
    on_disk = {path.parent for kind in names.QUEUES for path in (root / kind).glob("*/*/*")}
    ext = root / names.CONSUME_QUEUE_EXT
    assert shown_queues == {path for path in on_disk if not path.is_relative_to(ext)}


def compare_index(root: Path, settings: StoreSettings) -> None:
    for place in index.places(places.index_files(root), settings):
        head, *found = index.dump(place)
        assert isinstance(head, FileHead)
        assert index_entries(Path(place.path), place.slots) == [
            (one.ordinal, one.key_hash, one.physical_offset, one.timestamp, one.prev_index)
            for one in found
            if isinstance(one, Entry)
        ]
        assert len([one for one in found if not isinstance(one, Entry)]) == 0
        slots = np.frombuffer(Path(place.path).read_bytes(), ">i4", place.slots, offset=40)
        assert head.slots_used == np.count_nonzero(slots) == head.header.slot_count
