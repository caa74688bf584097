"""Questions to a store: what tests/compat/test_query.py can't ask a real one."""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.config.dialect import dialect
from reput.config.settings import StoreSettings
from reput.derived.plain import QueueExt
from reput.errors import SettingsError, StoreError
from reput.format import commitlog, indexfile, innerbatch, javastring, names
from reput.format.batchconsumequeue import UNIT as BATCH_UNIT
from reput.format.consumequeue import UNIT_LENGTH
from reput.query import Boundary, MessageId, QueryStore, Status, TagFilter, Verdict, ask, message
from reput.query import log as query_log
from reput.query.message import Message
from tests.golden.store import GoldenStore
from tests.levels import examples
from tests.local import open_store, rebuild_locally, write_store
from tests.rebuilds import broker_conf, golden

ID = "7F00000100002A9F0000000000020B9C"


@given(st.ip_addresses(), st.integers(0, 0xFFFF), st.integers(0, (1 << 63) - 1))
def test_an_id_is_its_address_port_and_offset(address: object, port: int, offset: int) -> None:
    wanted = MessageId(str(address), port, offset)
    text = wanted.encode()
    assert len(text) in (32, 56)
    assert MessageId.decode(text) == MessageId.decode(text.lower()) == wanted


@given(st.text(alphabet="0123456789abcdefABCDEFxyz ٣", max_size=60))
def test_an_id_is_taken_apart_or_refused(text: str) -> None:
    try:
        found = MessageId.decode(text)
    except SettingsError:
        return
    assert found.encode() == text.upper()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found 0 digits"),
        (ID[:-1], "found 31 digits"),
        (ID[:-1] + "G", "another character"),
        (
            "7F0000010A2B18B4AAC2000000000104",
            "where a port should be. If it is the id that the client printed",
        ),
        ("7F00000100002A9FFFFFFFFFFFFFFFFF", "a physical offset of -1"),
    ],
)
def test_a_malformed_id_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as error:
        MessageId.decode(text)
    assert said in str(error.value)


def test_tag_expressions() -> None:
    assert TagFilter.parse(None) == TagFilter.parse("") == TagFilter.parse("*") == TagFilter()
    two = TagFilter.parse(" Aa || t ||")
    assert two.tags == {"Aa", "t"}
    assert two.wants_code(2112), "of Aa, and of BB"
    assert two.wants_code(2112 + (7 << 32)), "only the low 32 bits count"
    assert not two.wants_code(0)
    assert two.wants_code(None), "what isn't known fits"
    assert (two.wants("Aa"), two.wants("BB"), two.wants(None)) == (True, False, False)
    assert TagFilter().wants(None)
    with pytest.raises(SettingsError, match="names no tag"):
        TagFilter.parse(" || ")


def lz4(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def zstd(data: bytes) -> bytes:
    return bytes(pyarrow.compress(data, "zstd"))


@pytest.mark.parametrize(
    ("flags", "pack"),
    [(0x001, zlib.compress), (0x301, zlib.compress), (0x101, lz4), (0x201, zstd)],
)
def test_a_body_is_uncompressed_to_its_end_or_not_at_all(flags: int, pack: Callable[[bytes], bytes]) -> None:
    def body(stored: bytes) -> bytes:
        return Message(commitlog.Record(b"t", stored, physical_offset=7, sys_flag=flags), 0).body()

    text = random.Random(1).randbytes(3 << 20) + b"hello" * 1000
    packed = pack(text)
    assert body(packed) == text
    assert body(b"") == b""
    short = pack(b"hello" * 100)
    for stored in (*(short[:cut] for cut in range(1, len(short))), packed[:-1], packed[:-9], b"broken"):
        with pytest.raises(StoreError, match=r"offset 7: the body doesn't uncompress; .* after \d+ "):
            body(stored)


def test_bodies_that_are_compressed_in_no_known_way_or_too_well(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"expected LZ4, ZSTD or ZLIB, .* found type 5"):
        Message(commitlog.Record(b"t", b"x", sys_flag=0x501), 0).body()
    monkeypatch.setattr(message, "_MOST_BODY", 1 << 20)
    for flags, pack in ((0x001, zlib.compress), (0x101, lz4)):
        with pytest.raises(StoreError, match="expected at most 1048576 bytes"):
            Message(commitlog.Record(b"t", pack(bytes((1 << 20) + 1)), sys_flag=flags), 0).body()


@pytest.fixture
def lost_head(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-lost-head", tmp_path)


def opened(store: GoldenStore, version: str | None = None) -> QueryStore:
    return QueryStore(StoreSettings.load(store.root, broker_conf(store), version or store.version))


def test_ids_of_the_broker_and_of_the_client(lost_head: GoldenStore) -> None:
    store = opened(lost_head)
    found = store.by_id(ID)
    assert found.message is not None
    assert (found.by_key, found.host_fits, found.message.offset_msg_id) == (False, True, ID)
    assert store.by_id("0A" + ID[2:]).host_fits is False
    assert store.by_id("7F00000100002A9F0000000000020B9D").message is None
    client = store.by_id("7F0000010A2B18B4AAC2000000000104", "t")
    assert (client.by_key, client.message) == (True, found.message)
    assert store.by_id("7F0000010A2B18B4AAC2000000000104", "Orders").message is None
    assert store.by_id("no id at all", "t").message is None
    with pytest.raises(SettingsError, match="give --topic"):
        store.by_id("7F0000010A2B18B4AAC2000000000104")


def test_what_a_consumer_gets_goes_on_over_pulls_and_files(lost_head: GoldenStore) -> None:
    store = opened(lost_head)
    queue = store.queue("Orders", 0)
    every = ask.by_queue(store, "Orders", 0, queue.min_offset, 1000, None)
    offsets = [shown.message.record.queue_offset for shown in every.messages]
    assert offsets == [*range(queue.min_offset, queue.max_offset)]
    assert every.facts["next_begin_offset"] == queue.max_offset
    tagged = ask.by_queue(store, "Orders", 0, queue.min_offset, 1000, "TagA")
    assert {shown.message.tags for shown in tagged.messages} == {"TagA"}
    assert len(tagged.messages) == sum(shown.message.tags == "TagA" for shown in every.messages)


def test_what_is_refused(lost_head: GoldenStore, tmp_path: Path) -> None:
    store = opened(lost_head)
    with pytest.raises(SettingsError, match="no topic can have this name"):
        store.queue("../t", 0)
    with pytest.raises(SettingsError, match="there is no such index"):
        store.by_key("t", "TagA", index_type="T")
    with pytest.raises(SettingsError, match="has no boundaries"):
        opened(lost_head, "4.9.7").offset_by_time("t", 0, 0, Boundary.LOWER)
    with pytest.raises(StoreError, match="there is no store here"):
        QueryStore(StoreSettings.load(tmp_path / "nowhere", None, None))
    batch = golden("5.3.3-batch-queue", tmp_path / "batch", mapperFileSizeBatchConsumeQueue=1000)
    with pytest.raises(SettingsError, match="expected mapperFileSizeBatchConsumeQueue=1000"):
        opened(batch).queue("Batches", 0)
    batch.write_broker_conf(broker_conf(batch))
    with broker_conf(batch).open("a") as conf:
        conf.write("mapperFileSizeBatchConsumeQueue=460\n")
    with pytest.raises(SettingsError, match="expected mapperFileSizeBatchConsumeQueue=460"):
        opened(batch).queue("Batches", 0)


def test_files_of_other_lengths_are_refused(lost_head: GoldenStore) -> None:
    (conf := lost_head.root.parent / "other.conf").touch()
    without_conf = QueryStore(StoreSettings.load(lost_head.root, conf, "5.3.3"))
    with pytest.raises(SettingsError, match="mappedFileSizeConsumeQueue"):
        without_conf.queue("t", 0)
    with pytest.raises(StoreError, match="maxHashSlotNum"):
        without_conf.by_key("t", "order")
    assert without_conf.message_at(134044) is not None


def test_an_index_that_points_elsewhere(lost_head: GoldenStore) -> None:
    segment = lost_head.root / names.COMMIT_LOG / names.offset_name(131072)
    with segment.open("r+b") as file:
        file.seek(134044 - 131072 + commitlog.PHYSICAL_OFFSET)
        file.write(struct.pack(">q", 1))
    (hit,) = opened(lost_head).by_key("t", "7F0000010A2B18B4AAC2000000000104")
    assert (hit.physical_offset, hit.verdict, hit.message) == (134044, Verdict.GONE, None)


def test_a_chain_without_end(lost_head: GoldenStore) -> None:
    first = min((lost_head.root / names.INDEX).iterdir())
    slots = int(str(lost_head.config["maxHashSlotNum"]))
    with first.open("r+b") as file:
        for one, other in ((376, 364), (364, 376)):  # of slot 27: docs/formats/indexfile.md
            file.seek(indexfile.file_length(slots, one) + indexfile.PREVIOUS)
            file.write(struct.pack(">i", other))
    with pytest.raises(StoreError, match="a chain of the index is a loop"):
        opened(lost_head).by_key("t", "order")


@pytest.mark.parametrize(("unit", "found"), [(1, False), (0, True)])
def test_a_unit_that_leads_to_a_message_of_another_place(tmp_path: Path, unit: int, found: bool) -> None:
    root = tmp_path / "store"
    log = records([10, 20, 30])
    store = write_store(root, [(0, log)])
    rebuild_locally(store, tmp_path / "out", index=False)
    shutil.copytree(tmp_path / "out" / names.CONSUME_QUEUE, root / names.CONSUME_QUEUE)
    with names.queue_file(root, "t", 0, 0).open("r+b") as file:
        file.seek(UNIT_LENGTH)
        file.write(struct.pack(">q", 0))
    asked = QueryStore(store.settings)
    one = ask.by_queue(asked, "t", 0, unit, None, None)
    assert (one.found, one.messages[0].verdict) == (found, "MATCH" if found else "OTHER_PLACE")
    every = ask.by_queue(asked, "t", 0, 0, 3, None)
    assert every.found
    assert [shown.verdict for shown in every.messages] == ["MATCH", "OTHER_PLACE", "MATCH"]


def test_a_key_that_a_running_broker_has_put_since(lost_head: GoldenStore) -> None:
    """Entry, slot and count are written in this order, by IndexFile.putKey."""
    store = opened(lost_head)
    slots = int(str(lost_head.config["maxHashSlotNum"]))
    last = max((lost_head.root / names.INDEX).iterdir())
    header = indexfile.IndexHeader.decode(last.read_bytes())
    before = store.by_key("t", "order")
    key_hash = indexfile.key_hash(javastring.hash_code(b"t#order"))
    slot = indexfile.HEADER_LENGTH + key_hash % slots * indexfile.SLOT_LENGTH
    entry = indexfile.file_length(slots, header.index_count)
    assert len(before) == 1
    with last.open("r+b") as file:
        file.seek(slot)
        (previous,) = struct.unpack(">i", file.read(4))
        file.seek(entry)
        time = (header.end_timestamp - header.begin_timestamp) // 1000
        file.write(struct.pack(">iqii", key_hash, before[0].physical_offset, time, previous))
        file.seek(slot)
        file.write(struct.pack(">i", header.index_count))
        file.flush()
        assert len(store.by_key("t", "order")) == 2, "a slot may lead to the entry that isn't counted yet"
        file.seek(0)
        file.write(replace(header, index_count=header.index_count + 1).encode())
    assert len(store.by_key("t", "order")) == 2


def test_a_segment_that_a_running_broker_has_made_since(tmp_path: Path) -> None:
    log = records([10, 20, 30])
    root = tmp_path / "store"
    settings = write_store(root, [(0, log)], segment_size=len(log)).settings
    store = QueryStore(settings)
    assert store.message_at(len(log)) is None
    (root / names.COMMIT_LOG / names.offset_name(len(log))).write_bytes(records([40], start=len(log)))
    found = store.message_at(len(log))
    assert found is not None
    assert found.record.store_timestamp == 40


def records(times: list[int], start: int = 0) -> bytes:
    """Messages of t:0, with these times, at the begin of a segment."""
    log = b""
    for n, time in enumerate(times):
        one = commitlog.Record(b"t", b"b", queue_offset=n, physical_offset=start + len(log))
        log += commitlog.encode(replace(one, store_timestamp=time))
    return log


def test_what_is_near_an_offset_where_no_message_begins(tmp_path: Path) -> None:
    one = len(records([1]))
    log, room = records([1, 2, 3]), 1000
    # The second record's frame is broken; two more segments were made ahead of time.
    log = log[: one + 4] + b"\0" + log[one + 5 :]
    base = 5 * room
    segments = [(base, b""), (base + room, bytes(room)), (base + 2 * room, bytes(room))]
    segments[0] = (base, b"".join((_moved(log, base, one), bytes(room - len(log)))))
    store = QueryStore(write_store(tmp_path / "store", segments, segment_size=room).settings)
    bounds = {"min_physical_offset": base, "max_physical_offset": base + 3 * one}

    def asked(offset: int) -> tuple[str | None, object, object]:
        answer = ask.by_offset(store, offset)
        assert not answer.found
        assert answer.facts.items() >= bounds.items()
        return answer.why, answer.facts["before"], answer.facts["after"]

    third = base + 2 * one
    tail = f"; the log begins at {base}, and its last message ends at {base + 3 * one}"
    inside = f"it is inside the one at {base}, of {one} bytes"
    assert asked(base + 1) == (
        f"no message begins at physical offset {base + 1}: {inside}{tail}",
        base,
        third,
    )
    nearest = f"{tail}; the nearest messages begin at {base} and {third}"
    assert asked(base + one) == (f"no message begins at physical offset {base + one}{nearest}", base, third)
    for offset in (0, -1):
        assert asked(offset)[1:] == (None, base)
    for offset in (base + 3 * one, base + 3 * room - 1, base + 3 * room, 1 << 70):
        why, *near = asked(offset)
        assert near == [third, None]
        assert why is not None
        assert why.endswith(f"the nearest message begins at {third}")
    gone = ask.by_id(store, MessageId("127.0.0.1", 10911, base + one).encode(), None)
    assert gone.why is not None
    assert nearest in gone.why
    empty = QueryStore(write_store(tmp_path / "empty", [(0, bytes(room))], segment_size=room).settings)
    assert (empty.log.end, empty.log.before(room), empty.log.after(0)) == (0, None, None)


def _moved(log: bytes, base: int, size: int) -> bytes:
    """Records of one size, with the places that they have in the segment at ``base``."""
    moved = bytearray(log)
    for at in range(0, len(log), size):
        struct.pack_into(">q", moved, at + commitlog.PHYSICAL_OFFSET, base + at)
    return bytes(moved)


def test_a_search_for_messages_goes_over_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = records([*range(1, 40)])
    store = QueryStore(write_store(tmp_path / "store", [(0, log)], segment_size=len(log)).settings)
    one = len(records([1]))
    for piece in (1, 2, 3, 5, 7, one - 1, one, one + 1, 1000):
        monkeypatch.setattr(query_log, "_PIECE", piece)
        for offset in (0, 1, 4, one, one + 1, 20 * one - 1, len(log) - 1, len(log)):
            before, after = store.log.before(offset), store.log.after(offset)
            found = [None if x is None else x.record.physical_offset for x in (before, after)]
            earlier = [at for at in range(0, len(log), one) if at < offset]
            later = [at for at in range(0, len(log), one) if at > offset]
            assert found == [max(earlier, default=None), min(later, default=None)]


@pytest.mark.parametrize("boundary", [*Boundary])
def test_a_time_that_leads_to_no_message_is_not_found(tmp_path: Path, boundary: Boundary) -> None:
    root = tmp_path / "store"
    log = records([10, 20, 30])
    store = write_store(root, [(0, log)])
    rebuild_locally(store, tmp_path / "out", index=False)
    shutil.copytree(tmp_path / "out" / names.CONSUME_QUEUE, root / names.CONSUME_QUEUE)
    asked = QueryStore(store.settings)
    for time, offset in ((0, 0), (10, 0), (30, 2)):
        answer = ask.by_time(asked, "t", 0, time, boundary)
        assert (answer.exit_code, answer.facts["queue_offset"], len(answer.messages)) == (0, offset, 1)
    late = ask.by_time(asked, "t", 0, 31, boundary)
    if boundary is Boundary.UPPER:
        assert (late.found, late.facts["queue_offset"]) == (True, 2)
    else:
        assert (late.exit_code, late.facts["queue_offset"], late.messages) == (1, 3, ())
        assert late.why is not None
        assert late.why.startswith("a broker answers with queueOffset 3, but the offset is the queue's end")
    # The unit of that time leads to bytes that are no message.
    segment = root / names.COMMIT_LOG / names.offset_name(0)
    segment.write_bytes(log[: len(log) // 3 * 2 + 4] + b"\0" + log[len(log) // 3 * 2 + 5 :])
    broken = ask.by_time(QueryStore(store.settings), "t", 0, 30, boundary)
    assert (broken.exit_code, broken.facts["queue_offset"]) == (1, 2)
    assert broken.why is not None
    assert "no whole message is where the queue points" in broken.why


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
@pytest.mark.parametrize("with_topics", [True, False])
def test_each_message_of_batch_queues(version: str, with_topics: bool, tmp_path: Path) -> None:
    """Every unit, one after the other, is what each of its messages leads to."""
    batch = golden(f"{version}-batch-queue", tmp_path)
    if with_topics:
        batch.write_topics_json()
    store = opened(batch)
    several = 0
    for queue_id in (0, 1):
        directory = names.batch_queue_directory(batch.root, "Batches", queue_id)
        data = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
        units = [unit for unit in BATCH_UNIT.iter_unpack(data) if unit[1]]
        queue = store.queue("Batches", queue_id)
        assert (queue.min_offset, queue.max_offset) == (0, units[-1][4] + units[-1][5])
        for physical, _, _, time, base, count, *_ in units:
            several += count > 1
            for at in {base, base + count // 2, base + count - 1}:
                one = ask.by_queue(store, "Batches", queue_id, at, None, None)
                (shown,) = one.messages
                found = (shown.message.record.physical_offset, shown.verdict)
                assert (one.found, *found, one.facts["next_begin_offset"]) == (
                    True,
                    physical,
                    "MATCH",
                    base + count,
                )
                assert (shown.message.batch or (shown.message.record.queue_offset, 1)) == (base, count)
            by_time = ask.by_time(store, "Batches", queue_id, time, Boundary.LOWER)
            assert by_time.found
            assert by_time.facts["queue_offset"] in {unit[4] for unit in units if unit[3] == time}
        every = ask.by_queue(store, "Batches", queue_id, 0, queue.max_offset, None)
        assert [shown.message.record.physical_offset for shown in every.messages] == [
            unit[0] for unit in units
        ]
        assert (every.facts["next_begin_offset"], every.facts["roll_next_file"]) == (queue.max_offset, 0)
        end = ask.by_queue(store, "Batches", queue_id, queue.max_offset, None, None)
        assert (end.found, end.facts["status"]) == (False, "OFFSET_OVERFLOW_ONE")
    assert several > 50
    nothing = ask.by_time(store, "Batches", 7, 0, None)
    assert (nothing.found, nothing.why) == (False, "there is no such queue")
    assert store.queue("Batches", 7).holds_batches is with_topics


def test_a_unit_of_a_batch_queue_that_leads_elsewhere(tmp_path: Path) -> None:
    batch = golden("5.3.3-batch-queue", tmp_path)
    path = names.batch_queue_directory(batch.root, "Batches", 0) / names.offset_name(0)
    with path.open("r+b") as file:
        unit = [*BATCH_UNIT.unpack(file.read(BATCH_UNIT.size))]
        unit[5] = 2  # it holds 1
        file.seek(0)
        file.write(BATCH_UNIT.pack(*unit))
    for at in (0, 1):
        one = ask.by_queue(opened(batch), "Batches", 0, at, 3, None)
        assert [shown.verdict for shown in one.messages[:1]] == (["OTHER_PLACE"] if at == 0 else ["MATCH"])


_NUMBERS = (st.sampled_from([-1, 0, 1, 7]), st.integers(0, 12))
_UNIT = st.tuples(
    st.one_of(st.just(0), st.integers(-5, 400)),  # physical offset
    st.integers(-1, 200),
    st.just(0),
    *(st.one_of(*_NUMBERS) for _ in range(3)),
    st.just(-1),
    st.just(0),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(_UNIT, max_size=10), st.sampled_from(["5.0.0", "5.3.3", "5.5.0"]))
def test_any_units_of_a_batch_queue_have_an_answer(units: list[tuple[int, ...]], version: str) -> None:
    with TemporaryDirectory() as directory:
        root = Path(directory)
        store = write_store(root, [(0, records([1, 2]))], version=version)
        recovery = replace(store.settings.recovery, batch_queue_file_size=4 * BATCH_UNIT.size)
        queue = names.batch_queue_directory(root, "t", 0)
        queue.mkdir(parents=True)
        for first in range(0, len(units), 4):
            data = b"".join(BATCH_UNIT.pack(*one) for one in units[first : first + 4])
            name = names.offset_name(first * BATCH_UNIT.size)
            (queue / name).write_bytes(data.ljust(4 * BATCH_UNIT.size, b"\0"))
        asked = QueryStore(replace(store.settings, recovery=recovery))
        view = asked.queue("t", 0)
        boundaries = [*Boundary] if version != "5.0.0" else [None]
        for at in range(-2, 30):
            one = asked.pull("t", 0, at, 2)
            assert (one.status is Status.FOUND) is bool(one.found)
            ask.by_queue(asked, "t", 0, at, 5, "a")
            for boundary in boundaries:
                found = asked.offset_by_time("t", 0, at, boundary)
                assert found <= view.max_offset
                ask.by_time(asked, "t", 0, at, boundary)


WRAPPED = commitlog.SYS_FLAG_INNER_BATCH | commitlog.SYS_FLAG_NEED_UNWRAP
INNER = [
    innerbatch.InnerMessage(7, b"one", b"TAGS\x01a\x02KEYS\x01k l\x02"),
    innerbatch.InnerMessage(0, b"", b""),
]


def wrapped(body: bytes, flags: int = WRAPPED) -> Message:
    record = commitlog.Record(
        b"t",
        body,
        properties=b"INNER_NUM\x012\x02INNER_BASE\x0140\x02TAGS\x01b\x02",
        queue_offset=40,
        sys_flag=flags,
    )
    return Message(record, 0)


@pytest.mark.parametrize("packed", [False, True])
def test_the_messages_in_a_batch(packed: bool) -> None:
    body = innerbatch.encode(INNER)
    one = wrapped(zlib.compress(body), WRAPPED | 1) if packed else wrapped(body)
    assert one.batch == (40, 2)
    first, second = one.unwrapped()
    assert (first.queue_offset, first.flag, first.tags, first.body) == (40, 7, "a", b"one")
    assert first.to_dict()["keys"] == ["k", "l"]
    assert (second.queue_offset, second.properties, second.body) == (41, {}, b"")
    wants = {tag: one.is_wanted(TagFilter.parse(tag)) for tag in ("a", "b", "*")}
    assert wants == {"a": True, "b": False, "*": True}
    assert wrapped(body, commitlog.SYS_FLAG_INNER_BATCH).is_wanted(TagFilter.parse("b"))


def test_a_body_that_is_no_batch() -> None:
    body = innerbatch.encode(INNER)
    whole = {0, len(innerbatch.encode(INNER[:1])), len(body)}
    for cut in {*range(len(body))} - whole:
        with pytest.raises(
            StoreError, match=r"the body isn't a batch; .* no whole message at byte (0|4\d) of"
        ):
            wrapped(body[:cut]).unwrapped()
    assert wrapped(body[:-1]).is_wanted(TagFilter.parse("b")), "a client leaves it as it is"
    with pytest.raises(ValueError, match="at byte 0"):
        innerbatch.decode(struct.pack(">iiiii", 0, 0, 0, 0, -1) + bytes(10))


@given(
    st.lists(st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=9), st.binary(max_size=9)))
)
def test_batches_are_taken_apart_as_they_were_built(messages: list[tuple[int, bytes, bytes]]) -> None:
    made = [innerbatch.InnerMessage(*one) for one in messages]
    assert innerbatch.decode(innerbatch.encode(made)) == made


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_a_store_with_consumequeue_ext(version: str, tmp_path: Path) -> None:
    golden_store = golden(f"{version}-queue-ext", tmp_path)
    conf = broker_conf(golden_store)
    settings = StoreSettings.load(golden_store.root, conf, version)
    store = QueryStore(settings)
    files = sorted((golden_store.root / names.CONSUME_QUEUE_EXT).glob("[!S]*/*/*"))  # tags, and no times
    assert len(files) > 10
    filtered = 0
    for topic, queue_id in sorted({(file.parts[-3], int(file.parts[-2])) for file in files}):
        high = store.queue(topic, queue_id).max_offset
        every = ask.by_queue(store, topic, queue_id, 0, high, None)
        assert len(every.messages) == high
        for tags in {shown.message.tags for shown in every.messages} - {None, "*", "a||b"}:
            own = [shown.message for shown in every.messages if shown.message.tags == tags]
            found = ask.by_queue(store, topic, queue_id, 0, high, tags)
            assert [shown.message for shown in found.messages] == own
            assert found.facts["tag_collisions"] == 0, "the broker looks at hashes"
            filtered += len(every.messages) - len(own)
    assert filtered > 50
    offset = every.messages[0].message.record.physical_offset
    assert ask.by_offset(store, offset).found
    # Without its files, or without the setting, every address fits, and the client sorts out.
    shutil.rmtree(golden_store.root / names.CONSUME_QUEUE_EXT)
    lost = QueryStore(settings)
    off = QueryStore(replace(settings, recovery=replace(settings.recovery, queue_ext=False)))
    for asked in (lost, off):
        again = ask.by_queue(asked, topic, queue_id, 0, high, str(tags))
        assert [shown.message for shown in again.messages] == own
    files[0].parent.mkdir(parents=True)
    files[0].write_bytes(b"short")
    cut = QueryStore(settings)
    with pytest.raises(StoreError, match="mappedFileSizeConsumeQueueExt"):
        ask.by_queue(cut, files[0].parts[-3], int(files[0].parts[-2]), 0, 1000, "x")
    assert cut.pull(files[0].parts[-3], int(files[0].parts[-2]), 0, 1).found, "nobody asked for tags"


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (struct.pack(">hqqh", 20, -7, 5, 0), -7),
        (struct.pack(">hqqh", 30, 1 << 40, 5, 10), 1 << 40),
        (struct.pack(">hqqh", 0, 7, 5, 0), None),
        (struct.pack(">hqqh", -1, 7, 5, 0), None),
    ],
)
def test_a_record_of_consumequeue_ext(tmp_path: Path, record: bytes, code: int | None) -> None:
    settings = write_store(tmp_path, [(0, records([1]))]).settings
    settings = replace(settings, recovery=replace(settings.recovery, queue_ext=True, queue_ext_file_size=100))
    directory = names.queue_ext_directory(tmp_path, "t", 0)
    directory.mkdir(parents=True)
    (directory / names.offset_name(200)).write_bytes(record.ljust(91, b"\0") + record[:9])
    ext = QueueExt(settings, "t", 0)
    assert ext.tags_code(200 - (1 << 63)) == code
    assert ext.tags_code(-(1 << 63)) == code, "place 0 is the first file's: findMappedFileByOffset"
    assert ext.tags_code(291 - (1 << 63)) is None, "its tagsCode is cut off"
    for missing in (199, 300, 1 << 62):
        assert ext.tags_code(missing - (1 << 63)) is None
    assert (ext.tags_code(-(1 << 31)), ext.tags_code(0)) == (-(1 << 31), 0), "no addresses"


def test_a_pull_looks_at_so_many_units_by_release(tmp_path: Path) -> None:
    """A queue longer than any limit, whose messages have the wrong tag."""
    count = 1000
    log = bytearray()
    for n in range(count):
        log += commitlog.encode(
            commitlog.Record(
                b"t",
                properties=b"TAGS\x01a\x02",
                queue_offset=n,
                physical_offset=len(log),
                store_timestamp=n + 1,
            )
        )
    root = tmp_path / "store"
    store = write_store(root, [(0, bytes(log))], consume_queue_file_size=2000 * UNIT_LENGTH)
    rebuild_locally(store, tmp_path / "out", index=False)
    shutil.copytree(tmp_path / "out" / names.CONSUME_QUEUE, root / names.CONSUME_QUEUE)
    looked_at = {}
    for release in ("4.9.7", "5.0.0", "5.1.4", "5.3.3", "5.5.0"):
        settings = replace(store.settings, dialect=dialect(release))
        pulled = QueryStore(settings).pull("t", 0, 0, 1, TagFilter.parse("b"))
        assert pulled.status is Status.NO_MATCHED_MESSAGE
        looked_at[release] = pulled.next_begin_offset
    assert looked_at == {"4.9.7": 800, "5.0.0": 1000, "5.1.4": 801, "5.3.3": 800, "5.5.0": 800}
    own = QueryStore(open_store(root, consume_queue_file_size=2000 * UNIT_LENGTH).settings)
    assert ask.by_queue(own, "t", 0, 990, 100, "a || b").exit_code == 0
    missing = ask.by_queue(own, "t", 0, 0, 100, "b")
    assert (missing.exit_code, missing.facts["next_begin_offset"]) == (1, count), "on and on to the end"


@pytest.mark.parametrize(
    ("version", "following"), [("4.8.0", 0), ("4.9.3", 0), ("4.9.4", None), ("4.9.7", None)]
)
def test_where_a_pull_past_the_end_is_sent(version: str, following: int | None, tmp_path: Path) -> None:
    """``DefaultMessageStore.getMessage``: ``0 == minOffset`` up to 4.9.3; past a later beginning never."""
    store = opened(golden("4.9.7-mixed", tmp_path / "whole"), version)
    found = store.pull("Orders", 0, 1 << 20, 1)
    assert (found.status.name, found.min_offset) == ("OFFSET_OVERFLOW_BADLY", 0)
    assert found.next_begin_offset == (found.max_offset if following is None else following)
    late = opened(golden("4.9.7-lost-head", tmp_path / "late"), version).pull("Orders", 0, 1 << 20, 1)
    assert late.min_offset > 0
    assert late.next_begin_offset == late.max_offset
