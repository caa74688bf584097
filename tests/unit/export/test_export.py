"""Messages that are taken out of a log: which, as what, and where."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from reput.diagnosis.check import check
from reput.dump.commitlog import Block, Reader
from reput.dump.places import log_place
from reput.dump.wanted import Wanted
from reput.errors import OutputError, SettingsError, UnsupportedError
from reput.export.records import Apart, line_of, message_of
from reput.export.write import LINES, STORE, Exported, ExportOptions, export
from reput.format import commitlog, names, properties
from reput.format.commitlog import Record
from reput.query.message import Message
from reput.replay.placing import KINDS
from reput.verify.plan import VerifyOptions
from tests.golden.store import GoldenStore
from tests.local import open_store, rebuild_locally
from tests.rebuilds import broker_conf, golden, tree
from tests.schemas import validator
from tests.stores import LogWriter


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    return golden("5.3.3-mixed", tmp_path_factory.mktemp("data"))


def copied(store: GoldenStore, to: Path) -> Path:
    shutil.copytree(store.root, to)
    return to


def taken(root: Path, out: Path, store: GoldenStore, **more: object) -> Exported:
    options = ExportOptions(root, out, broker_conf=broker_conf(store), version=store.version)
    return export(replace(options, **more))  # type: ignore[arg-type]


def messages(root: Path, conf: Path | None = None, version: str | None = None) -> list[Message]:
    place = log_place(root, conf, version)
    reader = Reader(place.settings, entries=place.log.entries, wanted=Wanted())
    return [one for event in reader.log(place.log) if isinstance(event, Block) for one in event.messages()]


def lines(path: Path) -> list[dict[str, object]]:
    schema = validator("export-line")
    assert all(schema.is_valid(json.loads(line)) for line in path.read_text().splitlines())
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_record_of_a_real_store_comes_back(store: GoldenStore, tmp_path: Path) -> None:
    before = tree(store.root)
    result = taken(store.root, tmp_path / "all.jsonl", store)
    there = messages(store.root, broker_conf(store), store.version)
    back = [message_of(line) for line in (tmp_path / "all.jsonl").read_bytes().splitlines()]
    assert [one.record for one in back] == [one.record for one in there]
    assert (result.messages, result.exit_code) == (len(there), 0)
    assert sum(result.topics.values()) == len(there)
    assert tree(store.root) == before
    assert [path.name for path in tmp_path.iterdir()] == ["all.jsonl"]
    assert (tmp_path / "all.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_sound_store_has_nothing_stranded(store: GoldenStore, tmp_path: Path) -> None:
    for kind in ("missing-unit", "wrong-unit", "no-queues"):
        result = taken(store.root, tmp_path / "none.jsonl", store, finding=kind)
        assert (result.messages, result.exit_code, result.out) == (0, 0, None)
    assert list(tmp_path.iterdir()) == []


def test_lost_queues_strand_exactly_their_messages(store: GoldenStore, tmp_path: Path) -> None:
    root = copied(store, tmp_path / "lost")
    shutil.rmtree(root / names.CONSUME_QUEUE / "Payments")
    (root / names.CONSUME_QUEUE / "Orders" / "1").rename(tmp_path / "one")
    taken(root, tmp_path / "lost.jsonl", store, finding="missing-unit")
    expected = [
        one.record.physical_offset
        for one in messages(root, broker_conf(store), store.version)
        if (one.topic == "Payments" or (one.topic, one.record.queue_id) == ("Orders", 1))
        and one.record.sys_flag & commitlog.TRANSACTION_MASK in (0, commitlog.TRANSACTION_COMMIT)
    ]
    assert expected
    assert [line["physical_offset"] for line in lines(tmp_path / "lost.jsonl")] == expected
    wanted = Wanted(queues=(("Orders", 1),))
    one = taken(root, tmp_path / "one.jsonl", store, finding="missing-unit", wanted=wanted)
    assert one.topics.keys() == {"Orders"}


def test_a_unit_of_another_message_strands_its_own(store: GoldenStore, tmp_path: Path) -> None:
    root = copied(store, tmp_path / "wrong")
    queue = root / names.CONSUME_QUEUE / "Orders" / "0"
    file = sorted(queue.iterdir())[0]
    data = bytearray(file.read_bytes())
    data[20:40] = data[40:60]  # the second unit stands for the third, too
    file.write_bytes(data)
    (kept,) = [
        one
        for one in messages(root, broker_conf(store), store.version)
        if (one.topic, one.record.queue_id, one.record.queue_offset) == ("Orders", 0, 1)
    ]
    for kind, count in (("wrong-unit", 1), ("queue-begins-late", 1), ("missing-unit", 0)):
        out = tmp_path / f"{kind}.jsonl"
        assert taken(root, out, store, finding=kind).messages == count
        if count:
            assert message_of(out.read_bytes()).record == kept.record


def test_what_a_start_cuts_off_is_saved_by_the_name_of_the_loss(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "store", segment_size=1 << 16)
    for number in range(40):
        log.append(
            Record(b"t", body=b"x" * 50, queue_offset=number, store_timestamp=1_700_000_000_000 + number)
        )
    rebuild_locally(open_store(log.root, version="5.3.3"), log.root)
    broken = log.records[20]
    log.overwrite(broken.physical_offset, b"\0\0\0\1")
    (log.root / "abort").touch()
    out = tmp_path / "cut.jsonl"
    result = export(ExportOptions(log.root, out, finding="log-cut", version="5.3.3"))
    assert [line["queue_offset"] for line in lines(out)] == list(range(21, 40))
    assert (result.exit_code, [one.kind for one in result.findings]) == (1, ["bad-size"])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("past-log-end", "the log doesn't hold these messages"),
        ("misplaced-unit", "consumers get these messages"),
        ("queue-cut", "log-cut"),
        ("missing-units", "Did you mean missing-unit?"),
    ],
)
def test_a_finding_without_messages_to_save_says_why(
    kind: str, said: str, store: GoldenStore, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as refused:
        taken(store.root, tmp_path / "x", store, finding=kind)
    assert said in str(refused.value)
    assert all(known in str(refused.value) for known in KINDS)


def test_a_finding_needs_a_store(store: GoldenStore, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--finding needs a store"):
        taken(store.root / "commitlog", tmp_path / "x", store, finding="missing-unit")


def test_a_small_store_holds_the_records_from_0_on(store: GoldenStore, tmp_path: Path) -> None:
    result = taken(store.root, tmp_path / "small", store, form=STORE, wanted=Wanted(topics=("Orders",)))
    source = [
        one
        for one in messages(store.root, broker_conf(store), store.version)
        if one.topic == "Orders" and one.record.sys_flag & commitlog.TRANSACTION_MASK in (0, 8)
    ]
    there = messages(tmp_path / "small", broker_conf(store), store.version)
    assert result.messages == len(there) == len(source) > 100
    offsets: dict[int, int] = {}
    end = 0
    for old, new in zip(source, there, strict=True):
        record = new.record
        assert record.queue_offset == offsets.get(record.queue_id, 0)
        offsets[record.queue_id] = record.queue_offset + 1
        same = replace(old.record, queue_offset=record.queue_offset, physical_offset=record.physical_offset)
        assert record == same
        assert record.physical_offset >= end
        end = record.physical_offset + new.size
    sizes = {path.stat().st_size for path in (tmp_path / "small" / "commitlog").iterdir()}
    assert sizes == {int(str(store.config["mappedFileSizeCommitLog"]))}
    assert end > min(sizes), "a closing record is among them"


def test_a_small_store_lacks_no_settings_once_it_has_queues(tmp_path: Path) -> None:
    """It never had committed offsets, and those of the store that it is from don't fit it."""
    log, small = LogWriter(tmp_path / "store"), tmp_path / "small"
    for n in range(9):  # as a broker takes messages
        log.append(Record(b"t", properties=b"MSG_REGION\x01DefaultRegion\x02", queue_offset=n))
    (log.root / names.CONFIG).mkdir()
    topics = '{"topicConfigTable":{"t":{"topicName":"t","attributes":{}}}}'
    (log.root / names.CONFIG / "topics.json").write_text(topics)
    (log.root / names.CONFIG / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{"0":9}}}')
    result = export(ExportOptions(log.root, small, form=STORE, version="5.3.3"))
    assert result.next_steps == [f"reput check {small} --rocketmq-version 5.3.3"]
    rebuild_locally(open_store(small, version="5.3.3"), tmp_path / "rebuilt")
    for name in (names.CONSUME_QUEUE, names.CHECKPOINT):
        (tmp_path / "rebuilt" / name).rename(small / name)
    found = check(VerifyOptions(small, rocketmq_version="5.3.3"))
    assert (found.exit_code, found.findings, found.not_read) == (0, [], [])
    offsets = json.loads((small / names.CONFIG / "consumerOffset.json").read_bytes())
    assert offsets["offsetTable"] == {}


def test_what_is_left_out_of_a_store_is_counted_and_can_be_asked_for(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "store")
    half = Record(b"RMQ_SYS_TRANS_HALF_TOPIC", body=b"half")
    delayed = Record(commitlog.SCHEDULE_TOPIC, properties=b"DELAY\x013\x02REAL_TOPIC\x01t\x02", queue_id=2)
    log.append(
        Record(b"t", body=b"plain"),
        half,
        replace(half, topic=b"t", sys_flag=commitlog.TRANSACTION_PREPARED),
        delayed,
        Record(b"rmq_sys_REVIVE_LOG_c"),
        Record(b"t", body=b"other", body_crc=7, queue_offset=1),
        Record(b"t", queue_offset=2),
    )
    result = export(ExportOptions(log.root, tmp_path / "small", form=STORE))
    found = {one.kind: (one.count, one.option) for one in result.left_out}
    assert found == {
        "half": (2, "--half"),
        "delayed": (1, "--delayed"),
        "system-topics": (1, "--system-topics"),
        "damaged": (1, "--damaged"),
    }
    assert (result.messages, result.exit_code) == (2, 1)
    assert [one.record.body for one in messages(tmp_path / "small")] == [b"plain", b""]
    everything = ExportOptions(log.root, tmp_path / "all", form=STORE, included=frozenset(Apart))
    assert export(everything).messages == 7
    out = tmp_path / "lines"
    export(ExportOptions(log.root, out))
    assert [line["deliver_timestamp"] for line in lines(out)] == [None] * 3 + [10_000] + [None] * 3


def test_batches_light_queues_and_property_crcs_are_numbered_anew(tmp_path: Path) -> None:
    def record(offset: int, values: dict[bytes, bytes]) -> Record:
        return Record(b"b", queue_offset=offset, properties=properties.encode(values))

    log = LogWriter(tmp_path / "store")
    log.append(
        record(70, {b"INNER_BASE": b"70", b"INNER_NUM": b"3"}),
        record(73, {b"INNER_BASE": b"73", b"INNER_NUM": b"2"}),
        record(
            75,
            {
                b"INNER_MULTI_DISPATCH": b"%LMQ%a,%LMQ%b",
                b"INNER_MULTI_QUEUE_OFFSET": b"9,8",
                b"__CRC32#": b"0000000000",
            },
        ),
        record(76, {}),  # what stands before a whole record is taken whatever its CRC
    )
    damaged = export(ExportOptions(log.root, tmp_path / "none", form=STORE, version="5.3.3"))
    assert [(one.kind, one.count) for one in damaged.left_out] == [("damaged", 1)]
    included = frozenset({Apart.DAMAGED})
    export(ExportOptions(log.root, tmp_path / "small", form=STORE, version="5.3.3", included=included))
    found = [one.record for one in messages(tmp_path / "small", version="5.3.3")]
    assert [one.queue_offset for one in found] == [0, 3, 5, 6]
    assert [properties.parse(one.properties).get(b"INNER_BASE") for one in found] == [b"0", b"3", None, None]
    last = properties.parse(found[2].properties)
    assert last[b"INNER_MULTI_QUEUE_OFFSET"] == b"0,0"
    whole = commitlog.encode(found[2])
    assert last[b"__CRC32#"].decode()[::-1] == f"{commitlog.body_crc(whole[:-20]):010d}"


def test_places_that_are_not_written_to(store: GoldenStore, tmp_path: Path) -> None:
    def refused(out: Path, expected: str, **more: object) -> None:
        with pytest.raises(OutputError, match=expected):
            taken(store.root, out, store, **more)

    refused(store.root / "x.jsonl", "isn't written into the store")
    refused(store.root / "small", "isn't written into the store", form=STORE)
    refused(tmp_path / "no" / "x.jsonl", "the directory isn't there")
    refused(tmp_path, "lines are written to a file")
    refused(tmp_path.parent, "something is there", form=STORE)
    there = tmp_path / "there"
    there.write_text("mine")
    refused(there, "a file already")
    assert there.read_text() == "mine"
    assert taken(store.root, there, store, force=True, limit=2).messages == 2
    assert len(lines(there)) == 2
    (tmp_path / "empty").mkdir()
    assert taken(store.root, tmp_path / "empty", store, form=STORE, limit=3).messages == 3


@pytest.mark.parametrize("form", [LINES, STORE])
def test_what_a_killed_export_left_goes_with_the_next(store: GoldenStore, tmp_path: Path, form: str) -> None:
    def killed(_read: int, messages: int, _total: int) -> None:
        if messages == 50:
            os.kill(os.getpid(), signal.SIGKILL)

    options = ExportOptions(store.root, tmp_path / "out", form=form, broker_conf=broker_conf(store))
    for _ in range(2):
        child = os.fork()
        if not child:
            export(options, killed)
        os.waitpid(child, 0)
        assert [path.name for path in tmp_path.iterdir()] == [".out.tmp"]
    assert export(options).messages > 50
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_leaves_nothing(
    store: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for form in ("lines", STORE):
        with pytest.raises(OutputError):
            taken(store.root, tmp_path / "out", store, form=form)
        assert list(tmp_path.iterdir()) == []


def test_a_dledger_log_has_no_cuts_that_are_known(tmp_path: Path) -> None:
    dledger = golden("5.5.0-dledger", tmp_path)
    with pytest.raises(UnsupportedError):
        taken(dledger.root, tmp_path / "x", dledger, finding="log-cut")
    assert taken(dledger.root, tmp_path / "x", dledger, finding="missing-unit").messages == 0
    assert taken(dledger.root, tmp_path / "all", dledger).messages > 0


def test_batch_queues_lead_to_their_messages(tmp_path: Path) -> None:
    batches = golden("5.3.3-batch-queue", tmp_path)
    batches.write_topics_json()
    assert taken(batches.root, tmp_path / "x", batches, finding="missing-unit").messages == 0
    shutil.rmtree(batches.root / names.BATCH_CONSUME_QUEUE / "Batches" / "0")
    lost = taken(batches.root, tmp_path / "x", batches, finding="missing-unit")
    assert lost.topics.keys() == {"Batches"}
    assert {line["queue_id"] for line in lines(tmp_path / "x")} == {0}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "an object of JSON"),
        ("[]", "an object of JSON, found list"),
        ("[" * 100_000, "an object of JSON"),
        ('{"topic": "t"}', "body_base64"),
        ('{"topic": "t", "body_base64": "*"}', "base64"),
        ('{"topic": 1, "body_base64": ""}', "topic to be a text"),
        ('{"topic": "\\ud800", "body_base64": ""}', "half a pair"),
        ('{"topic": "t", "body_base64": "", "queue_id": 4294967296}', "queue_id"),
        ('{"topic": "t", "body_base64": "", "queue_id": true}', "queue_id"),
        ('{"topic": "t", "body_base64": "", "born_host": "x"}', "born_host"),
        ('{"topic": "t", "body_base64": "", "properties": {"a": 1}}', "properties to be a text"),
        ('{"topic": "t", "body_base64": "", "properties": {"a\\u0001": "b"}}', "separators"),
        ('{"topic": "t", "body_base64": "", "body_crc": -1}', "body_crc"),
        ('{"topic": "t", "body_base64": "", "version": 3}', "version 3"),
    ],
)
def test_a_line_that_is_none(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        message_of(line)


def test_a_line_that_was_written_by_hand() -> None:
    message = message_of('{"topic": "t", "body_base64": "aGk=", "properties": {"KEYS": "a b"}}')
    assert (message.topic, message.body(), message.keys) == ("t", b"hi", ("a", "b"))
    assert message.body_is_sound is True
    assert line_of(message)["keys"] == ["a", "b"]
