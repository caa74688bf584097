"""Questions to a store: what tests/compat/test_query.py can't ask a real one."""

from __future__ import annotations

import shutil
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.dialect import dialect
from reput.errors import SettingsError, StoreError, UnsupportedError
from reput.format import commitlog, indexfile, names
from reput.format.consumequeue import UNIT_LENGTH
from reput.query import Boundary, MessageId, QueryStore, Status, TagFilter, Verdict, ask
from reput.query.message import Message
from reput.settings import StoreSettings
from tests.golden.store import GoldenStore
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
        (ID[:-1] + "G", "a character that isn't one"),
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
    assert two.wants_code(-(1 << 63)), "an address in consumequeue_ext fits everything"
    assert (two.wants("Aa"), two.wants("BB"), two.wants(None)) == (True, False, False)
    assert TagFilter().wants(None)
    with pytest.raises(SettingsError, match="names no tag"):
        TagFilter.parse(" || ")


def test_a_body_is_uncompressed() -> None:
    packed = zlib.compress(b"hello" * 100)
    zipped = Message(commitlog.Record(b"t", packed, sys_flag=1), 0)
    assert zipped.body() == b"hello" * 100
    assert Message(commitlog.Record(b"t", b"plain", sys_flag=1 | 0x100), 0).body() == b"plain", "LZ4"
    with pytest.raises(StoreError, match="doesn't uncompress"):
        Message(commitlog.Record(b"t", b"broken", sys_flag=1), 0).body()


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
    assert every.facts["nextBeginOffset"] == queue.max_offset
    tagged = ask.by_queue(store, "Orders", 0, queue.min_offset, 1000, "TagA")
    assert {shown.message.tags for shown in tagged.messages} == {"TagA"}
    assert len(tagged.messages) == sum(shown.message.tags == "TagA" for shown in every.messages)


def test_what_is_refused(lost_head: GoldenStore, tmp_path: Path) -> None:
    store = opened(lost_head)
    with pytest.raises(SettingsError, match="no topic can have this name"):
        store.queue("../t", 0)
    with pytest.raises(SettingsError, match="there is no such index"):
        store.by_key("t", "TagA", index_type="T")
    with pytest.raises(SettingsError, match="knows no boundary"):
        opened(lost_head, "4.9.7").offset_by_time("t", 0, 0, Boundary.LOWER)
    with pytest.raises(StoreError, match="there is no store here"):
        QueryStore(StoreSettings.load(tmp_path / "nowhere", None, None))
    batch = golden("5.3.3-batch-queue", tmp_path / "batch")
    (topic,) = (path.name for path in (batch.root / "batchconsumequeue").iterdir())
    with pytest.raises(UnsupportedError, match="batch queue"):
        opened(batch).queue(topic, 0)


def test_files_of_other_lengths_are_refused(lost_head: GoldenStore) -> None:
    without_conf = QueryStore(StoreSettings.load(lost_head.root, None, "5.3.3"))
    with pytest.raises(StoreError, match="mappedFileSizeConsumeQueue"):
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
    with pytest.raises(StoreError, match="a chain of the index has no end"):
        opened(lost_head).by_key("t", "order")


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
    assert (missing.exit_code, missing.facts["nextBeginOffset"]) == (1, count), "on and on to the end"
