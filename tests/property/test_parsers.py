"""Whatever bytes a parser gets, it answers with a value or with an error of its own, and no other."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reput.broker.config_files import config_problems
from reput.broker.snapshot import take
from reput.config.basis import look
from reput.config.broker_conf import parse as parse_properties_file
from reput.config.kept import ConfigPlace, Form, Kind, batch_queue_topics, kept, known_topics
from reput.config.settings import DLedgerSettings, StoreSettings
from reput.derived.index import IndexFile
from reput.diagnosis.findings import not_derived
from reput.dump import index as dump_index
from reput.dump.consumequeue import dump as dump_queue
from reput.dump.places import queue_places, read_checkpoint
from reput.errors import ReputError
from reput.export.outgoing import NotSentError, outgoing
from reput.export.records import Apart, line_of, message_of
from reput.export.send import Position, access_keys
from reput.format import commitlog, dledger, innerbatch, javastring, names, properties, rocksdbconfig
from reput.format.checkpoint import FIELDS, StoreCheckpoint
from reput.format.commitlog import Record
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import HEADER_LENGTH, IndexHeader
from reput.job.status import RunNote, TableNote
from reput.lag import lag
from reput.log.segments import COMMITTED_FILE, committed_end, committed_index
from reput.output import journal
from reput.output.ledger import Ledger
from reput.replay.runner import InlineRunner
from reput.replay.target import Selection
from reput.scan.rules import Part
from reput.source import messages
from reput.source.options import NAMES, Options
from reput.store import swap
from reput.stream import last_planned, planned_end
from reput.verify.plan import VerifyOptions, prepare
from reput.verify.run import check
from reput.verify.units import units_of
from tests import encoders, rocksdbs
from tests.fuzz.guarded import guarded_segments
from tests.fuzz.scanning import scan_alike
from tests.golden.store import unpack
from tests.levels import examples
from tests.local import rebuild_locally, write_store
from tests.memory import scratch
from tests.property.logs import lay_out, records, segments

SIZE = 1000
_DEEP = b'{"a":' + b"[" * 3_000
_NUMBERS = [b"Infinity", b"-1e999", b"NaN", b"9" * 5000, b"null", b"[]", b'"\\ud800"']


@st.composite
def changed(draw: st.DrawFn, sound: bytes) -> bytes:
    """Sound bytes with some changed, cut out, put in or cut off."""
    data = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["bit", "bit", "cut", "out", "in", "number"])):
            case "bit" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "out":
                del data[at : at + draw(st.integers(1, 20))]
            case "in":
                data[at:at] = draw(st.binary(max_size=9))
            case "number":
                number = next((place for place in range(at, len(data)) if chr(data[place]).isdigit()), at)
                data[number : number + 1] = draw(st.sampled_from(_NUMBERS))
    return bytes(data)


def any_of(sound: bytes) -> st.SearchStrategy[bytes]:
    """Any bytes at all, and those that are nearly right."""
    return st.one_of(changed(sound), st.binary(max_size=200), st.sampled_from([_DEEP, sound, b""]))


def answered(ask: Callable[[], object], *its_own: type[Exception]) -> None:
    """It returns, or raises what it may."""
    try:
        ask()
    except (ReputError, *its_own) as error:
        str(error)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with scratch() as directory:
        yield directory


# --- formats ------------------------------------------------------------------------------------------------

RECORD = commitlog.encode(
    Record(b"Topic", b"body", b"KEYS\x01k\x02DELAY\x013\x02", sys_flag=8, store_host=("2001:db8::1", 10911))
)


@settings(max_examples=examples(400))
@given(any_of(RECORD), st.integers(0, 250))
@example(RECORD[:50], 0)
@example(RECORD[:60], 0)
def test_records_decode_or_are_none(data: bytes, position: int) -> None:
    answered(lambda: commitlog.decode(data, position), struct.error, IndexError)


BATCH_BODY = innerbatch.encode([innerbatch.InnerMessage(n, b"body", b"TAGS\x01t\x02") for n in range(3)])


@settings(max_examples=examples(200))
@given(any_of(BATCH_BODY))
def test_batches_are_messages_or_none(data: bytes) -> None:
    answered(lambda: innerbatch.decode(data), ValueError)


ENTRY = encoders.entry_header(RECORD, 3, 1, 500) + RECORD


@settings(max_examples=examples(200))
@given(any_of(ENTRY), st.integers(-5, 250))
def test_entries_are_known_or_are_none(data: bytes, position: int) -> None:
    found = dledger.entry_index(data, position, 500 - position)
    assert found is None or (found >= 0 and position >= 0)
    if 0 <= position <= len(data) - 8:
        assert dledger.record_at(data, position) - position in (0, dledger.HEADER_LENGTH)
        dledger.frame_size(data, position)


@settings(max_examples=examples(100))
@given(any_of(b"committedIndex=1\nendIndex=3\n"), any_of(ENTRY + ENTRY))
def test_what_is_committed_is_known_or_refused(place: Path, checkpoint: bytes, log: bytes) -> None:
    group = DLedgerSettings(place, (place,), alone=False)
    (place / COMMITTED_FILE).write_bytes(checkpoint)
    (place / "entries").write_bytes(log)
    answered(lambda: committed_index(group))
    answered(lambda: committed_end([(str(place / "entries"), 500, len(log))], 2))


SETTING = encoders.encode_queue(rocksdbconfig.Table.OFFSETS, rocksdbconfig.QueueOf(b"g", b"t", 3))


@settings(max_examples=examples(300))
@given(any_of(SETTING))
def test_settings_in_rocksdb_are_known_or_refused(data: bytes) -> None:
    for parse in (
        rocksdbconfig.parse_queue,
        rocksdbconfig.parse_name,
        rocksdbconfig.parse_offset,
        rocksdbconfig.parse_version,
        rocksdbconfig.parse_json,
    ):
        answered(lambda parse=parse: parse(data), ValueError)  # type: ignore[misc]


@settings(max_examples=examples(15))
@given(any_of(SETTING), any_of(encoders.encode_json(b'{"counter":3}')))
@example(rocksdbconfig.version_key(rocksdbconfig.Table.TOPICS), b"1")
@example(encoders.encode_name(rocksdbconfig.Table.TOPICS, b"t"), b"\x01[]")
def test_a_database_of_settings_is_read_or_refused(place: Path, key: bytes, value: bytes) -> None:
    shutil.rmtree(config := place / "config", ignore_errors=True)
    for name, families in (("rdb", {"default": {key: value}}), ("topics", {"default": {key: value}})):
        rocksdbs.write(config / name, families, flush=False)
    for form in (Form.V2, Form.SEPARATE):
        for kind in Kind:
            answered(lambda form=form, kind=kind: kept(ConfigPlace(config, form), kind))  # type: ignore[misc]


DUMPED = {
    "queue": b"".join(
        struct.pack(">qiq", *unit) for unit in [(0, 0x7FFFFFFF, 0), (0, 9, 1), (9, 9, -(1 << 63))]
    ),
    "batches": struct.pack(">qiqqqhii", 0, 9, 1, 2, 0, 3, -1, 0) * 2,
    "index": IndexHeader(1, 2, 0, 9, 1, 3).encode()
    + struct.pack(">2i", 0, 2)
    + struct.pack(">iqii", 3, 0, 0, 1) * 3,
    "checkpoint": struct.pack(">6q", 1, 2, 3, 4, 5, 6),
}


@pytest.mark.parametrize("kind", DUMPED)
@settings(max_examples=examples(80))
@given(st.data(), st.integers(0, 4), st.integers(0, 4))
def test_files_are_dumped_or_refused(
    place: Path, kind: str, data: st.DataObject, start: int, end: int
) -> None:
    path = place / names.offset_name(0)
    path.write_bytes(data.draw(any_of(DUMPED[kind])))

    def dump() -> None:
        if kind == "checkpoint":
            assert len(read_checkpoint(path)) == FIELDS
        elif kind == "index":
            file = IndexFile(str(path), 2, 3, path.stat().st_size)
            assert [event.to_dict() for event in dump_index.dump(file, start, None)]
            assert [event.to_dict() for event in dump_index.walk(file, "t#k")]
        else:
            (queue,) = queue_places(path)
            assert len([event.to_dict() for event in dump_queue(queue, start, end)]) <= 4 * (end + 3)

    answered(dump)


@settings(max_examples=examples(200))
@given(st.binary(max_size=300))
def test_small_formats_take_any_bytes(data: bytes) -> None:
    assert isinstance(properties.parse(data), dict)
    assert isinstance(StoreCheckpoint.decode(data), StoreCheckpoint)
    assert isinstance(IndexHeader.decode(data.ljust(HEADER_LENGTH, b"\0")), IndexHeader)
    assert len(units_of(data[: len(data) // UNIT_LENGTH * UNIT_LENGTH])) == len(data) // UNIT_LENGTH
    javastring.decode(data)
    javastring.hash_code(data)
    names.topic_problem(data)


@settings(max_examples=examples(200))
@given(
    st.one_of(st.binary(max_size=30), st.integers().map(lambda n: str(n).encode())), st.sampled_from([16, 64])
)
@example(b"0" * 5000 + b"7", 32)
@example(b"-" + b"9" * 5000, 64)
def test_numbers_are_numbers_or_none(data: bytes, bits: int) -> None:
    found = javastring.parse_integer(data, bits)
    assert found is None or -(1 << (bits - 1)) <= found < 1 << (bits - 1)


def test_a_number_may_have_any_number_of_zeros_before_it() -> None:
    assert javastring.parse_integer(b"+" + b"0" * 5000 + b"7", 32) == 7
    assert javastring.parse_integer(b"-" + b"0" * 5000 + b"7", 32) == -7
    assert javastring.parse_integer(b"1" + b"0" * 5000, 64) is None


@given(st.text(max_size=40))
def test_file_names_are_numbers_or_not(name: str) -> None:
    answered(lambda: names.parse_offset_name(name))
    answered(lambda: names.is_index_name(name))
    answered(lambda: Selection.parse([name]))


# --- the log, between guard pages ---------------------------------------------------------------------------


@settings(max_examples=examples(150))
@given(segments(damaged=True), st.sampled_from(["4.9.7", "5.3.3", "5.5.0"]), st.booleans())
def test_segments_are_scanned_and_read_within_their_bytes(
    segment: tuple[int, np.ndarray], version: str, at_end: bool
) -> None:
    base, data = segment
    with scratch() as directory:
        path = directory / "segment"
        path.write_bytes(data.tobytes())
        rules = StoreSettings.load(directory, None, version)
        scan_alike(rules, base, data.tobytes())
        part = Part(str(path), base, len(data), len(data) + 9, base, base + len(data), True, True)
        with guarded_segments(at_end=at_end):
            for batch in messages.read(part, rules):
                batch.validate(full=True)


@settings(max_examples=examples(150))
@given(st.binary(max_size=300), st.lists(records(), max_size=2))
def test_any_bytes_are_scanned_within_themselves(data: bytes, log: list[Record]) -> None:
    with scratch() as directory:
        rules = StoreSettings.load(directory, None, "5.5.0")
    scan_alike(rules, 0, lay_out(log) + data)


# --- what brokers configure ---------------------------------------------------------------------------------

CONF = rb"""# a comment
storePathRootDir=/data/store
storePathCommitLog=/data/store/commitlog
mappedFileSizeCommitLog : 1024
maxIndexNum=9
messageDelayLevel=1s 5s \
  10m
enableMultiDispatch=true
brokerName=\u00e4
"""
_KEYS = [
    "storePathRootDir",
    "storePathCommitLog",
    "readOnlyCommitLogStorePaths",
    "mappedFileSizeConsumeQueue",
    "maxHashSlotNum",
    "messageDelayLevel",
    "storeType",
    "combineCQLoadingCQTypes",
    "commitLogRecoverMaxNum",
    "enableLmq",
]
_VALUES = [
    "\\u0000",
    "a\\u0000b",
    "\\ud800",
    "/\\udc80,/b",
    ",,",
    "",
    " ",
    "/",
    "..",
    "9" * 5000,
    "-1",
    "1s" * 9,
]
conf_lines = st.lists(
    st.tuples(st.sampled_from(_KEYS), st.one_of(st.sampled_from(_VALUES), st.text(max_size=9))), max_size=4
).map(lambda lines: "\n".join(f"{key}={value}" for key, value in lines).encode("utf-8", "replace"))


@settings(max_examples=examples(400))
@given(st.one_of(any_of(CONF), conf_lines), st.sampled_from(["4.9.7", "5.5.0"]))
@example(b"storePathCommitLog=/a\\u0000b", "5.5.0")
@example(b"storePathRootDir=/a\\ud800\nstorePathCommitLog=/b\\ud800", "5.5.0")
def test_a_broker_conf_is_read_or_refused(place: Path, data: bytes, version: str) -> None:
    conf = place / "broker.conf"
    conf.write_bytes(data)
    answered(lambda: parse_properties_file(data))

    def look() -> None:
        found = StoreSettings.load(place / "none", conf, version)
        json.dumps(found.describe())
        take(found)

    answered(look)


TOPICS = (
    b'{"dataVersion":{"counter":1},"topicConfigTable":{"T":{"attributes":{"queue.type":"BatchCQ"}},"U":{}}}'
)
DELAYS = b'{"offsetTable":{1:5,\n12:0}}'


@settings(max_examples=examples(300))
@given(any_of(TOPICS), any_of(TOPICS))
def test_topics_are_known_or_the_file_is_broken(place: Path, data: bytes, backup: bytes) -> None:
    path = place / "topics.json"
    path.write_bytes(data)
    path.with_name("topics.json.bak").write_bytes(backup)
    answered(lambda: known_topics(path))
    answered(lambda: batch_queue_topics(path))


@settings(max_examples=examples(300))
@given(any_of(DELAYS), st.sampled_from(["delayOffset.json", "topics.json", "consumerOffset.json"]))
def test_a_broken_configuration_is_a_problem(place: Path, data: bytes, name: str) -> None:
    root = place / "store"
    (root / names.CONFIG).mkdir(parents=True, exist_ok=True)
    (root / names.CONFIG / name).write_bytes(data)
    for problem in config_problems(StoreSettings.load(root, None, "5.5.0")):
        json.dumps(problem.to_dict())


@pytest.fixture(scope="module")
def shown() -> Iterator[Path]:
    with scratch() as root:
        (store := unpack("5.5.0-tiny", root)).write_topics_json()
        yield store.root


SEEN = (
    "checkpoint",
    "abort",
    "config/topics.json",
    "index/20261121000000000",
    "consumequeue/T/0/" + "0" * 20,
)


@settings(max_examples=examples(300))
@given(any_of(IndexHeader(1, 2, 0, 9, 1, 3).encode() + bytes(200)), st.sampled_from(SEEN))
def test_what_a_store_shows_is_never_an_error(shown: Path, data: bytes, name: str) -> None:
    (path := shown / name).parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    found = look(shown, [shown / names.COMMIT_LOG])
    assert all(str(one) for one in (*found.sizes(), found.release))
    StoreSettings.load(shown, None, None)


COMMITTED = (
    b'{"lmqOffsetTable":{"%LMQ%a@%LMQ%b":7},"offsetTable":{"T@g":{0:1,\n7:2},"T@g@broadcast":{0:9}},'
    b'"pullOffsetTable":{"T@g":{0:2}}}'
)


@pytest.fixture(scope="module")
def consumed() -> Iterator[Path]:
    with scratch() as root:
        records_of_t = [Record(b"T", b"x", queue_offset=n, store_timestamp=n) for n in range(3)]
        data = b""
        for record in records_of_t:
            data += commitlog.encode(replace(record, physical_offset=len(data)))
        rebuild_locally(write_store(root, [(0, data)]), root)
        (root / names.CONFIG).mkdir()
        yield root


@settings(max_examples=examples(300))
@given(any_of(COMMITTED), any_of(COMMITTED))
@example(COMMITTED.replace(b"T@", b"\\ud800@"), b"")
@example(COMMITTED.replace(b"T@", b"a/b@"), b"")
def test_lag_is_told_or_the_offsets_are_broken(consumed: Path, data: bytes, backup: bytes) -> None:
    (consumed / names.CONFIG / "consumerOffset.json").write_bytes(data)
    (consumed / names.CONFIG / "consumerOffset.json.bak").write_bytes(backup)
    settings_of = replace(StoreSettings.load(consumed, None, "4.9.7"), consume_queue_file_size=100)
    answered(lambda: json.dumps(lag(settings_of).to_dict()))


def test_lag_of_sound_offsets(consumed: Path) -> None:
    (consumed / names.CONFIG / "consumerOffset.json").write_bytes(COMMITTED)
    settings_of = replace(StoreSettings.load(consumed, None, "4.9.7"), consume_queue_file_size=100)
    assert {(row.group, row.queue_id): row.lag for row in lag(settings_of, topic="T").rows} == {
        ("g", 0): 2,
        ("g", 7): 0,
        ("g@broadcast", 0): 0,
    }


# --- file names ---------------------------------------------------------------------------------------------

file_names = st.one_of(
    st.binary(min_size=1, max_size=24),
    st.integers(-5, 1 << 70).map(lambda number: f"{number:020d}".encode()),
    st.sampled_from(
        [
            b"00000000000000000000",
            b"\xff\xfe",
            b"9" * 20,
            b"%020d" % (2**63 - 5),
            b"-0",
            b"+1",
            "٣".encode(),
            b"9" * 300,
        ]
    ),
).filter(lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b".."))


@settings(max_examples=examples(120))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["commitlog", "consumequeue", "consumequeue/T", "consumequeue/T/0", "index"]),
            file_names,
            st.sampled_from([None, b"", bytes(100), b"x" * SIZE]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_strange_names_in_a_store_are_told(strange: list[tuple[str, bytes, bytes | None]]) -> None:
    with scratch() as directory:
        root = directory / "store"
        log = lay_out([Record(b"T", b"body", b"KEYS\x01k\x02", store_timestamp=1)]).ljust(SIZE, b"\0")
        write_store(root, [(0, log)], version="5.5.0")
        (directory / "broker.conf").write_text(
            "mappedFileSizeConsumeQueue=100\nmaxHashSlotNum=7\nmaxIndexNum=9\n", encoding="utf-8"
        )
        for place, name, content in strange:
            path = root / place / os.fsdecode(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if len(name) < 256 and not path.exists():
                if content is None:
                    path.mkdir()
                else:
                    path.write_bytes(content)

        def look() -> None:
            snapshot = take(StoreSettings.load(root, directory / "broker.conf", "5.5.0"))
            json.dumps([problem.to_dict() for problem in (*snapshot.problems, *not_derived(snapshot))])

        answered(look)
        options = VerifyOptions(root, broker_conf=directory / "broker.conf", rocketmq_version="5.5.0")
        answered(lambda: json.dumps(asdict(check(prepare(options), InlineRunner()))))


# --- what reput reads back ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def output(place: Path) -> Path:
    """An output with a journal of two batches and a ledger."""
    log = [Record(b"T", b"body", b"KEYS\x01k\x02", queue_offset=n, store_timestamp=n + 1) for n in range(5)]
    store = write_store(place / "log", [(0, lay_out(log).ljust(SIZE, b"\0"))], version="5.5.0")
    rebuild_locally(store, place / "output", ends=[300], ledger=True)
    return place / "output"


@settings(max_examples=examples(200))
@given(data=st.data())
def test_a_journal_is_read_or_refused(output: Path, data: st.DataObject) -> None:
    path = output / names.REPUT / names.JOURNAL
    sound = path.read_bytes()
    try:
        path.write_bytes(data.draw(any_of(sound)))
        answered(lambda: journal.read(path))
        answered(lambda: journal.read_state(path))
    finally:
        path.write_bytes(sound)


OPENING = b'{"format":2,"store":"/s","fingerprint":"x","start":0}'
BATCH = b'{"start":0,"end":9,"batch_id":0,"messages":1,"bytes":9,"last_position":0,"queues":{}}'


@settings(max_examples=examples(300))
@given(any_of(OPENING), any_of(BATCH))
@example(b'{"format":2}', BATCH)
@example(b"[]", BATCH)
@example(b'{"format":2,"store":"/s","fingerprint":"x","start":0,"snapshot":1}', b"[3]")
@example(OPENING, b'{"start":0,"new":1,"queues":{}}')
@example(OPENING, b'{"start":0,"queues":{"T":[[]]},"index":[["1","00"]]}')
def test_a_journal_of_another_version_is_refused(place: Path, opening: bytes, batch: bytes) -> None:
    """Its records are whole, and what is in them is anything."""
    path = place / "journal"
    path.write_bytes(b"".join(struct.pack(">II", len(each), crc32(each)) + each for each in (opening, batch)))
    answered(lambda: journal.read(path))
    answered(lambda: journal.read_state(path))
    answered(lambda: journal.Journal.open(path).__exit__(None, None, None))


@settings(max_examples=examples(200))
@given(data=st.data())
def test_a_ledger_is_read_or_no_table(output: Path, data: st.DataObject) -> None:
    logs = sorted((output / names.LEDGER / "_delta_log").glob("*.json"))
    path = data.draw(st.sampled_from(logs))
    sound = path.read_bytes()
    try:
        path.write_bytes(data.draw(any_of(sound)))
        answered(lambda: Ledger(output).version(), OSError)
    finally:
        path.write_bytes(sound)


NOTE = b'{"pid": 1, "started_ms": 5, "broker_conf": "/b", "metrics": "http://127.0.0.1:1"}'
TABLE = b'{"table": "/t", "failures": 1, "last_success_ms": 5, "last_failure": "x"}'
OFFSETS = b'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"offset": 123}'
COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'


@settings(max_examples=examples(300))
@given(any_of(NOTE), any_of(TABLE), any_of(OFFSETS), any_of(COMMIT), any_of(b'{"id":"x"}'))
@example(b'{"pid": 1, "started_ms": 5, "broker_conf": 7}', b'{"table": 7}', OFFSETS, COMMIT, b'{"id":1}')
@example(NOTE, b'{"table": "/\\ud800"}', b'v1\n{}\n{"offset": Infinity}', COMMIT, b'{"id":1}')
@example(_DEEP, _DEEP, b"v1\n" + _DEEP + b"\n", COMMIT, b'{"id":1}')
def test_notes_and_checkpoints_are_read_or_none(
    place: Path, note: bytes, table: bytes, offsets: bytes, commit: bytes, metadata: bytes
) -> None:
    root = place / "tail"
    for name, content in (
        (f"{names.REPUT}/{names.RUN}", note),
        (f"{names.REPUT}/{names.TABLE}", table),
        ("offsets/0", offsets),
        ("commits/0", commit),
        ("metadata", metadata),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    found = RunNote.read(root)
    assert found is None or found.broker_conf is None or Path(found.broker_conf)
    kept = TableNote.read(root)
    assert kept is None or Path(kept.table).is_absolute()
    last_planned(root)
    planned_end(root, 0)


@settings(max_examples=examples(300))
@given(
    any_of(json.dumps({"version": 1, "stamp": "x", "names": ["index"], "remove": [], "created": []}).encode())
)
def test_a_swap_is_read_or_refused(place: Path, data: bytes) -> None:
    kept = place / "kept"
    kept.mkdir(exist_ok=True)
    (kept / swap.INTENT).write_bytes(data)
    answered(lambda: swap.record_in(kept).of_undo)


LINE = (
    b'{"topic": "t", "queue_id": 1, "born_host": "[::1]:5", "properties": {"KEYS": "k"}, '
    b'"properties_size": 7, "body_crc": 5, "body_base64": "aGk="}'
)
POSITION = b'{"reput": "resend 1"}\n{"next": 5, "last": 3, "fingerprint": "x", "sent": 1, "done": false}\n'


@settings(max_examples=examples(300))
@given(any_of(LINE), any_of(POSITION), any_of(b"accessKey: a\nsecretKey: b\n"))
@example(_DEEP, POSITION, b"")
@example(b'{"topic": "t", "body_base64": "", "born_host": "::1%x:5"}', b'{"reput": "resend 1"}\n[]\n', b"")
@example(LINE, b'{"reput": "resend 1"}\n{"next": "5", "last": null}\n', b"")
@example(LINE, b'{"reput": "resend 1"}\n' + _DEEP + b"\n", b"")
def test_what_is_sent_again_is_read_or_refused(
    place: Path, line: bytes, position: bytes, keys: bytes
) -> None:
    with suppress(ValueError):
        found = message_of(line)
        assert message_of(json.dumps(line_of(found))).record == found.record
        answered(lambda: outgoing(found, None, 0, included=set(Apart)), NotSentError)
    for name, data in (("position", position), ("keys", keys)):
        (place / name).write_bytes(data)
    with suppress(ReputError), Position(place / "position", {"reput": "resend 1"}) as reached:
        assert reached.reached.next >= reached.reached.last
    answered(lambda: access_keys(place / "keys"))


@settings(max_examples=examples(200))
@given(
    st.dictionaries(
        st.sampled_from([*NAMES, "other"]), st.one_of(st.text(max_size=9), st.just("5")), max_size=4
    )
)
def test_options_of_the_source_are_read_or_refused(place: Path, options: dict[str, str]) -> None:
    answered(lambda: Options.parse({"path": str(place), **options}))


def test_the_helper_lets_nothing_else_pass(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        answered(lambda: 1 // 0, ValueError)
    shutil.rmtree(tmp_path)
