"""What a store shows of its settings and its release: golden stores, damaged ones and forged ones."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from reput.config.basis import Asked, Evidence, Writes, look
from reput.config.dialect import DIALECTS, dialect
from reput.config.settings import StoreSettings
from reput.diagnosis.check import check
from reput.diagnosis.verdict import Area
from reput.errors import SettingsError
from reput.format import indexfile, javastring, names
from reput.format.checkpoint import LENGTH
from reput.format.commitlog import Record
from reput.format.indexfile import IndexHeader
from reput.verify.plan import VerifyOptions
from tests.golden.store import FILTERED, NAMES, GoldenStore, unpack
from tests.local import rebuild_locally, write_store
from tests.rebuilds import broker_conf, golden, record_starts
from tests.stores import LogWriter

NEWEST = DIALECTS[-1].name
#: Stores, or rows with all of theirs, that nothing tells from the newest row.
NOT_SHOWN = {"5.3.3-no-keys": NEWEST, "5.3.3-no-index": NEWEST}
INDEX_LENGTH = indexfile.file_length(100, 400)


def shown_by(root: Path) -> Evidence:
    return look(root, [root / names.COMMIT_LOG, root / "dledger-n0" / "data"])


@pytest.mark.parametrize("name", [*NAMES, *FILTERED])
def test_every_golden_store_is_judged_right(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path)
    found, conf = shown_by(tmp_path), store.config
    assert found.unread == ()
    assert found.queues.shown == (-(-int(str(conf["mappedFileSizeConsumeQueue"])) // 20) * 20,)
    assert found.queues.looked_at == sum(path.startswith("consumequeue/") for path in store.manifest["files"])
    pair = (int(str(conf["maxHashSlotNum"])), int(str(conf["maxIndexNum"])))
    if store.manifest["workload"] in ("no-index", "no-keys"):
        assert found.index.shown is None
        assert found.index.is_mixed == (store.manifest["workload"] == "no-keys")
    else:
        assert found.index.shown == pair
    for sizes, key in (
        (found.batch_queues, "mapperFileSizeBatchConsumeQueue"),
        (found.queue_ext, "mappedFileSizeConsumeQueueExt"),
    ):
        assert sizes.shown == ((conf[key],) if key in conf else None)
    wrote = dialect(store.version)
    assert found.release.allows(wrote)
    assert found.release.assumed.name == NOT_SHOWN.get(name, NOT_SHOWN.get(wrote.name, wrote.name))
    # Of all others, what is shown alone keeps releases apart that write other bytes.
    if name not in NOT_SHOWN and name != "4.9.7-dledger":
        assert found.release.allows(dialect("4.9")) == (store.version == "4.9.7")
        assert found.release.allows(dialect("5.5")) == (store.version == "5.5.0")
    assert found.switches.queue_ext == (conf.get("enableConsumeQueueExt") or None)
    assert found.switches.multi_dispatch == (conf.get("enableMultiDispatch") or None)
    assert found.switches.lmq in (None, conf.get("enableLmq"))
    assert found.switches.bit_maps == (name in FILTERED if found.switches.queue_ext else None)


def test_what_is_assumed_and_why() -> None:
    empty = StoreSettings.load(Path("nowhere"), None, None).basis
    assert empty.line() == (
        f"release not shown: {NEWEST}, the newest; "
        "no queue file: RocketMQ's default, 6,000,000 bytes; "
        "no index file: RocketMQ's default, 5,000,000 slots and 20,000,000 entries"
    )
    assert empty.line(files=False) == f"release not shown: {NEWEST}, the newest"


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.5.0-mixed", tmp_path)


def test_a_few_damaged_files_are_outvoted(store: GoldenStore) -> None:
    files = sorted((store.root / names.CONSUME_QUEUE).rglob("0000*"))
    for path, length in zip(files, (0, 340, 1_001, 2_000), strict=False):
        os.truncate(path, length)
    found = shown_by(store.root)
    assert found.queues.shown == (1_000,)
    assert str(found.queues) == "queue files of 1,000 bytes: 50 of 53"


@pytest.mark.parametrize("length", [0, 40, 439])
def test_files_that_were_never_made_in_full_are_no_votes(store: GoldenStore, length: int) -> None:
    """100 slots take 400 bytes behind the header: a crash may leave a file without them, or with none."""
    first, *others = sorted((store.root / names.INDEX).iterdir())
    for path in others:
        path.write_bytes(bytes(length))
    found = shown_by(store.root)
    assert str(found.index) == "index files of 100 slots and 400 entries: 1 of 1"
    assert [
        (one.area, one.kind, one.path)
        for one in check(VerifyOptions(store.root), quick=True).findings
        if one.kind in ("other-settings", "index-length")
    ] == [(Area.INDEX, "index-length", str(path)) for path in others]
    os.truncate(others[0], 440)
    assert shown_by(store.root).index.shown is None, "an index file may be so long"
    queue = store.root / names.CONSUME_QUEUE
    left, *rest = sorted(queue.rglob("0000*"))
    for path in rest:
        os.truncate(path, 0)
    assert str(shown_by(store.root).queues) == "queue files of 1,000 bytes: 1 of 1"
    os.truncate(left, 0)
    os.truncate(first, 0)
    assert shown_by(store.root).queues.looked_at == 0


def test_files_of_two_sizes_are_told_and_nothing_is_written(store: GoldenStore) -> None:
    """As a rebuild of some queues with the defaults once left it."""
    files = sorted((store.root / names.CONSUME_QUEUE).rglob("00000000000000000000"))
    for path in files[:20]:
        os.truncate(path, 6_000_000)
    found = shown_by(store.root).queues
    assert found.shown is None
    assert str(found) == "queue files don't agree: 1,000 bytes (34), 6,000,000 bytes (20) of 54"
    for writes in (Writes.IN_PLACE, Writes.BESIDE):
        with pytest.raises(SettingsError, match=r"6,000,000 bytes \(20\) of 54.*-c FILE"):
            StoreSettings.load(store.root, None, None, asked=Asked(writes))
    conf = store.write_broker_conf(store.root.parent / "own.conf")
    assert StoreSettings.load(store.root, conf, None, asked=Asked(Writes.IN_PLACE)).basis.contradictions == ()


def test_slots_and_entries_of_a_single_file_are_looked_for(store: GoldenStore) -> None:
    """A file that isn't full: neither its length nor its header says how many entries it was made for."""
    *others, last = sorted((store.root / names.INDEX).iterdir())
    for path in others:
        path.unlink()
    assert IndexHeader.decode(last.read_bytes()).index_count not in (0, 1, 400)
    assert str(shown_by(store.root).index) == "index files of 100 slots and 400 entries: 1 of 1"


def test_an_index_file_that_contradicts_itself_tells_nothing(store: GoldenStore) -> None:
    for path in (store.root / names.INDEX).iterdir():
        with path.open("r+b") as file:
            file.seek(indexfile.HEADER_LENGTH)
            file.write(bytes(400))
    found = shown_by(store.root)
    assert found.index.shown is None
    assert found.index.near == (100, 400), "good for reading, and nothing else"
    assert found.release.assumed.name == NEWEST, "by the checkpoint"
    with pytest.raises(SettingsError, match=r"index files of 8,440 bytes \(7 of 7\)"):
        StoreSettings.load(store.root, None, None, asked=Asked(Writes.IN_PLACE))
    assert (
        StoreSettings.load(
            store.root, None, None, asked=Asked(Writes.IN_PLACE, index=False)
        ).consume_queue_file_size
        == 1_000
    )


def test_the_newest_index_file_decides(tmp_path: Path) -> None:
    """An upgrade from 5.3 on: its older files have no tags, and the next one has."""
    store = golden("5.3.3-lost-head", tmp_path / "a")
    assert str(shown_by(store.root).release).endswith("and the index has no tags")
    newer = golden("5.5.0-mixed", tmp_path / "b")
    # One file without tags in front, over the same log.
    first = min((newer.root / names.INDEX).iterdir())
    without_tags(first, newer.root)
    found = shown_by(newer.root).release
    assert "the index has tags, though its older files have none" in [mark.why for mark in found.marks]
    assert found.assumed.name == NEWEST


def without_tags(path: Path, root: Path) -> None:
    """Give an index file the entries that 5.3 would have put there."""
    settings = StoreSettings.load(root, None, "5.3")
    out = root.parent / "as-5.3"
    local = replace(settings, max_hash_slot_num=100, max_index_num=400)
    rebuild_locally(_Local(local), out)  # type: ignore[arg-type]
    shutil.copy(min((out / names.INDEX).iterdir()), path)


class _Local:
    """A store for a rebuild without Spark."""

    def __init__(self, settings: StoreSettings) -> None:
        from reput.log.segments import discover
        from reput.replay.target import Selection

        self.settings, self.selection, self.root = settings, Selection(), settings.root
        self.log = discover(settings)


def test_an_upgrade_that_no_key_came_after_is_for_the_operator(tmp_path: Path) -> None:
    store = golden("5.3.3-restart", tmp_path)
    with (store.root / names.CHECKPOINT).open("r+b") as file:
        file.seek(40)
        file.write(struct.pack(">q", record_starts(store.root, 0)[3]))
    found = shown_by(store.root).release
    assert found.is_mixed
    assert str(found) == (
        "several releases wrote here: 5.5 or later, for the checkpoint has a logicsPhysicalOffset; "
        "5.3 or before, for the index has no tags"
    )
    assert found.assumed.name == "5.3"
    for version in ("5.3.3", "5.5.0"):
        StoreSettings.load(store.root, None, version, asked=Asked(Writes.IN_PLACE))
    with pytest.raises(SettingsError, match=r"several releases wrote here.*--rocketmq-version V"):
        StoreSettings.load(store.root, None, None, asked=Asked(Writes.IN_PLACE))


# --- what a producer can do ---------------------------------------------------------------------------------


def forged(root: Path, version: str) -> Evidence:
    """A store whose messages have keys that look like tags, as a release writes it."""
    log = LogWriter(root, 100_000)
    for number in range(40):
        tag = f"t{number}".encode()
        properties = b"UNIQ_KEY\x01%d\x02KEYS\x01T#%b other\x02TAGS\x01%b\x02" % (number, tag, tag)
        log.append(Record(b"Forged", b"x", properties, queue_offset=number, store_timestamp=1_000 + number))
    store = write_store(root, [], version=version)
    rebuild_locally(store, root)
    return shown_by(root)


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_a_key_that_looks_like_a_tag_proves_nothing(version: str, tmp_path: Path) -> None:
    found = forged(tmp_path, version)
    assert found.index.shown == (7, 9)
    assert not [mark for mark in found.release.marks if mark.of_index]


def test_a_tag_in_the_next_file_is_not_missed(tmp_path: Path) -> None:
    """Eight entries a file: the keys of the only message with tags end one file, its tag begins the next."""
    log = LogWriter(tmp_path, 10_000)
    for number, more in enumerate((b"", b"", b"TAGS\x01t\x02")):
        keys = b"KEYS\x01a b\x02" if not more else b"KEYS\x01a\x02"
        properties = b"UNIQ_KEY\x01%d\x02" % number + keys + more
        log.append(Record(b"T", b"x", properties, queue_offset=number, store_timestamp=1_000))
    rebuild_locally(write_store(tmp_path, [], version="5.5.0"), tmp_path)
    assert len(list((tmp_path / names.INDEX).iterdir())) == 2
    assert not [mark for mark in shown_by(tmp_path).release.marks if mark.of_index]


def test_a_topic_that_is_named_like_a_light_queue_proves_nothing(tmp_path: Path) -> None:
    log = LogWriter(tmp_path, 10_000)
    properties = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"
    for number in range(3):
        log.append(Record(b"%LMQ%a", b"x", properties, queue_id=3, queue_offset=number))
    rebuild_locally(write_store(tmp_path, [], version="4.9.7"), tmp_path)
    assert (tmp_path / names.CONSUME_QUEUE / "%LMQ%a").is_dir()
    assert shown_by(tmp_path).switches.multi_dispatch is None


def test_topics_of_any_name_prove_no_release(tmp_path: Path) -> None:
    log = LogWriter(tmp_path, 10_000)
    for topic in (b"rmq_sys_wheel_timer", b"compaction", b"timerwheel"):
        log.append(Record(topic, b"x"))
    (tmp_path / names.CONFIG).mkdir()
    table = {"attributes": {"topicName": "attributes"}, "rmq_sys_wheel_timer": {}}
    (tmp_path / names.CONFIG / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    rebuild_locally(write_store(tmp_path, [], version="4.9.7"), tmp_path)
    assert shown_by(tmp_path).release.allows(dialect("4.9"))
    assert not shown_by(tmp_path).release.allows(dialect("5.5")), "its topics have no attributes"


# --- what a file can do -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_whatever_lies_there_is_no_error(tmp_path: Path) -> None:
    """Each file of a store by turns a directory, a pipe, a link to itself, nothing, or any bytes."""
    source = unpack("5.5.0-tiny", tmp_path / "source")
    (source.root / names.CONFIG).mkdir(exist_ok=True)
    (source.root / names.CONFIG / "topics.json").write_text("{}")
    (source.root / names.CONFIG / "delayOffset.json").write_text("{}")
    dice = random.Random(7)
    files = sorted(path.relative_to(source.root) for path in source.root.rglob("*") if path.is_file())
    for number, name in enumerate(files):
        for way in range(6):
            root = tmp_path / f"{number}-{way}"
            shutil.copytree(source.root, root)
            path = root / name
            length = path.stat().st_size
            path.unlink()
            if way == 0:
                path.mkdir()
            elif way == 1:
                os.mkfifo(path)
            elif way == 2:
                path.symlink_to(path)
            elif way == 3:
                path.touch()
            else:
                path.write_bytes(dice.randbytes(length if way == 4 else dice.randrange(1, 5_000)))
            found = shown_by(root)
            assert str(found.release)
            assert [str(sizes) for sizes in found.sizes()]
            StoreSettings.load(root, None, None)
            shutil.rmtree(root)


def test_a_header_of_any_numbers_is_no_error(tmp_path: Path) -> None:
    dice = random.Random(11)
    (tmp_path / names.INDEX).mkdir()
    path = tmp_path / names.INDEX / "20261121103000000"
    for _ in range(300):
        numbers = [dice.choice((0, 1, -1, 2**31 - 1, 2**63 - 1, -(2**63), 41, 400)) for _ in range(4)]
        counts = [dice.choice((0, 1, -1, 2, 7, 400, 401, 2**31 - 1, -(2**31))) for _ in range(2)]
        body = dice.choice((b"", bytes(8_400), dice.randbytes(8_400), bytes(7), bytes(44)))
        path.write_bytes(struct.pack(">qqqqii", *numbers, *counts) + body)
        assert shown_by(tmp_path).index.shown is None


def test_a_checkpoint_that_no_release_writes_shows_nothing(store: GoldenStore) -> None:
    path = store.root / names.CHECKPOINT
    for data in (b"\xff" * LENGTH, random.Random(3).randbytes(LENGTH), bytes(100), b""):
        path.write_bytes(data)
        assert not [mark for mark in shown_by(store.root).release.marks if "checkpoint" in mark.why]


def test_an_offset_that_leads_to_no_message_shows_nothing(tmp_path: Path) -> None:
    """Such as a bit that has turned in the checkpoint of a 5.3."""
    store = golden("5.3.3-no-index", tmp_path)
    conf = broker_conf(store)
    for bit in range(64):
        with (store.root / names.CHECKPOINT).open("r+b") as file:
            file.seek(40)
            file.write(struct.pack(">Q", 1 << bit))
        StoreSettings.load(store.root, conf, "5.3.3", asked=Asked(Writes.IN_PLACE))


def test_a_single_file_that_was_cut_speaks_against_nobody(tmp_path: Path) -> None:
    """What is to be mended must not keep a rebuild from it; a file that is too long hasn't been cut."""
    log = LogWriter(tmp_path / "store", 10_000)
    log.append(Record(b"t", b"x", b"KEYS\x01k\x02"))
    rebuild_locally(write_store(log.root, [], version="5.5"), log.root)
    (conf := tmp_path / "broker.conf").write_text(
        "mappedFileSizeConsumeQueue=100\nmaxHashSlotNum=7\nmaxIndexNum=9\n"
    )
    (queue,) = (log.root / names.CONSUME_QUEUE).rglob("0000*")
    (index,) = (log.root / names.INDEX).iterdir()
    asked = Asked(Writes.IN_PLACE)
    os.truncate(queue, 60)
    os.truncate(index, indexfile.file_length(7, 5))
    assert shown_by(log.root).queues.shown == (60,)
    assert StoreSettings.load(log.root, conf, None, asked=asked).basis.contradictions == ()
    os.truncate(queue, 200)
    with pytest.raises(SettingsError, match="queue files of 200 bytes: 1 of 1"):
        StoreSettings.load(log.root, conf, None, asked=asked)


def test_numbers_as_keys_are_read(store: GoldenStore) -> None:
    (store.root / names.CONFIG).mkdir(exist_ok=True)
    (store.root / names.CONFIG / "delayOffset.json").write_text('{"dataVersion":{},"offsetTable":{1:25}}')
    shown = shown_by(store.root)
    assert shown.unread == ()
    assert "config/delayOffset.json has a dataVersion" in [mark.why for mark in shown.release.marks]


def test_what_cannot_be_read_is_said(store: GoldenStore) -> None:
    (store.root / names.CONFIG).mkdir(exist_ok=True)
    (store.root / names.CONFIG / "delayOffset.json").write_text("{")
    (store.root / names.CHECKPOINT).unlink()
    (store.root / names.CHECKPOINT).symlink_to(names.CHECKPOINT)
    unread = shown_by(store.root).unread
    assert "config/delayOffset.json is no JSON" in unread
    assert any(line.startswith("checkpoint can't be read: ") for line in unread)


# --- what comes first ---------------------------------------------------------------------------------------


def test_what_is_given_comes_before_what_the_store_shows(store: GoldenStore, tmp_path: Path) -> None:
    conf = tmp_path / "other.conf"
    conf.write_text("mappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=100\nmaxIndexNum=400\n")
    settings = StoreSettings.load(store.root, conf, "5.3.3")
    assert (settings.consume_queue_file_size, settings.dialect.name) == (2_000, "5.3")
    queue, release = sorted(settings.basis.contradictions, key=lambda one: not one.by_conf)
    assert (queue.shown, queue.used) == (
        "queue files of 1,000 bytes: 54 of 54",
        "mappedFileSizeConsumeQueue=2000",
    )
    assert (release.setting, release.used) == ("--rocketmq-version", "RocketMQ 5.3.3")
    # In place it is refused whoever gave it, beside the store unless it was given by hand.
    for asked, expected in (
        (Asked(Writes.BESIDE), None),
        (
            Asked(Writes.BESIDE, conf_by_hand=False),
            "queue files of 1,000 bytes.*found mappedFileSizeConsumeQueue=2000",
        ),
        (
            Asked(Writes.BESIDE, version_by_hand=False),
            "logicsPhysicalOffset, found RocketMQ 5.3.3.*--rocketmq-version",
        ),
        (Asked(Writes.IN_PLACE), "queue files of 1,000 bytes.*RocketMQ 5.3.3.*-c FILE.*--convert"),
    ):
        if expected is None:
            StoreSettings.load(store.root, conf, "5.3.3", asked=asked)
            continue
        with pytest.raises(SettingsError, match=expected):
            StoreSettings.load(store.root, conf, "5.3.3", asked=asked)


def test_what_broker_conf_leaves_out_is_the_default_and_contradicts(
    store: GoldenStore, tmp_path: Path
) -> None:
    (conf := tmp_path / "empty.conf").touch()
    with pytest.raises(SettingsError, match="found mappedFileSizeConsumeQueue=6000000, RocketMQ's default"):
        StoreSettings.load(store.root, conf, None, asked=Asked(Writes.IN_PLACE))


@pytest.mark.parametrize(
    ("name", "setting"),
    [("5.5.0-lmq", "enableMultiDispatch=true"), ("4.9.7-queue-ext", "enableConsumeQueueExt=true")],
)
def test_a_switch_that_is_off_against_the_store(name: str, setting: str, tmp_path: Path) -> None:
    store = golden(name, tmp_path)
    lines = (tmp_path / "broker.conf").read_text().splitlines()
    conf = tmp_path / "off.conf"
    conf.write_text("\n".join(line for line in lines if not line.startswith("enable")))
    with pytest.raises(SettingsError, match=setting):
        StoreSettings.load(store.root, conf, None, asked=Asked(Writes.IN_PLACE))
    assert setting in " ".join(StoreSettings.load(store.root, None, None).basis.files)


def test_bit_maps_are_not_guessed(tmp_path: Path) -> None:
    store = unpack("5.5.0-filter-bit-maps", tmp_path)
    with pytest.raises(SettingsError, match="bit maps in consumequeue_ext/"):
        StoreSettings.load(store.root, None, None, asked=Asked(Writes.IN_PLACE))


def test_nothing_is_proven_by_the_hash_alone() -> None:
    """The row of a message's entries is compared, so the hashes have to be those of the index."""
    assert indexfile.key_hash(javastring.hash_code(b"T#a", javastring.hash_code(b"Topic#"))) == (
        indexfile.key_hash(javastring.hash_code(b"Topic#T#a"))
    )
    assert INDEX_LENGTH == 8_440


@pytest.mark.parametrize("name", ["5.3.3-lmq", "4.9.7-queue-ext"])
def test_units_are_seen_in_files_of_the_default_size(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path)
    for path in (tmp_path / names.CONSUME_QUEUE).rglob("*"):
        if path.is_file():
            os.truncate(path, 6_000_000)
    found = shown_by(tmp_path).switches
    assert found.queue_ext == (store.config.get("enableConsumeQueueExt") or None)
    assert found.multi_dispatch == (store.config.get("enableMultiDispatch") or None)


def count_keys(root: Path) -> None:
    """Have index headers count keys, as releases up to 4.7.0 do."""
    for path in sorted((root / names.INDEX).iterdir()):
        header = IndexHeader.decode(path.read_bytes()[: indexfile.HEADER_LENGTH])
        with path.open("r+b") as file:
            file.write(header.encode(counts_keys=True))


def test_an_index_that_counts_keys_is_of_an_old_release(tmp_path: Path) -> None:
    store = golden("4.9.7-mixed", tmp_path)
    count_keys(store.root)
    found = shown_by(store.root).release
    assert found.assumed is dialect("4.7.0")
    # Some of its messages came from an IPv6 host, which 4.5 doesn't know.
    allowed = [
        one for one in ("4.2.0", "4.5.2", "4.6.0", "4.7.0", "4.7.1", "4.9.7") if found.allows(dialect(one))
    ]
    assert allowed == ["4.6.0", "4.7.0"]
    checked = check(VerifyOptions(store.root, broker_conf=broker_conf(store)))
    assert [one for one in checked.findings if one.area is Area.INDEX] == []
    told = check(VerifyOptions(store.root, None, broker_conf(store), "4.9.7"))
    assert [one for one in told.findings if one.area is Area.INDEX] == []
    assert [(one.kind, one.count) for one in told.notes] == [("counted-otherwise", 6)]


@pytest.mark.parametrize(
    ("lines", "assumed", "size"),
    [
        ("mapedFileSizeConsumeQueue=2000\n", "4.5.0", 2000),
        ("mappedFileSizeConsumeQueue=2000\n", "4.9", 2000),
    ],
)
def test_a_key_with_one_p_is_of_an_old_release(lines: str, assumed: str, size: int, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "checkpoint").write_bytes(bytes(LENGTH))
    conf = tmp_path / "broker.conf"
    conf.write_text(lines)
    found = StoreSettings.load(tmp_path, conf, None)
    assert (found.dialect.name, found.consume_queue_file_size) == (assumed, size)
    one = "maped" in lines
    assert ("4.5.1 or before: broker.conf has a key" in str(found.basis.line())) == one
    newer = StoreSettings.load(tmp_path, conf, "5.5.0")
    assert newer.basis.contradictions == ()  # many a newer broker.conf was copied from an old one
    assert newer.consume_queue_file_size == (6_000_000 if one else size)
    assert ("doesn't read mapedFileSizeConsumeQueue" in str(newer.basis.line())) == one


def test_a_newer_release_is_said_to_be_taken_for_the_newest(tmp_path: Path) -> None:
    found = StoreSettings.load(tmp_path, None, "6.1.0")
    assert found.dialect is dialect(None)
    assert "6.1.0 is newer than all that is known" in str(found.basis.line())


def test_a_unit_that_leads_nowhere_shows_no_switch(tmp_path: Path) -> None:
    unpack("5.5.0-mixed", tmp_path)
    queue = tmp_path / names.CONSUME_QUEUE / "Orders"
    newest = max((queue / max(path.name for path in queue.iterdir())).iterdir())
    data = newest.read_bytes().rstrip(b"\0")
    at = -(-len(data) // 20) * 20 - 20
    with newest.open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(">qiq", 1 << 60, 100, -(1 << 62)))
    assert shown_by(tmp_path).switches.queue_ext is None
