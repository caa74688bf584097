"""Questions to stores whose queues, index and settings are in RocksDB, as RocketMQ wrote them."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from reput.cli import app as cli
from reput.config.kept import Kind, kept, known_topics
from reput.config.settings import StoreSettings
from reput.derived.rocksdb import RocksQueueView
from reput.errors import StoreError
from reput.format import names, rocksdbconfig, rocksdbindex, rocksdbqueue
from reput.format.rocksdbconfig import Table
from reput.lag import lag
from reput.query import Boundary, QueryStore, Status, ask
from reput.rocksdb.snapshot import PREFIX
from tests import rocksdbs
from tests.golden.store import ROCKSDB, SETTINGS, GoldenStore, unpack
from tests.rebuilds import broker_conf, broker_lock, golden
from tests.rocksdbs import writing


def settings_of(store: GoldenStore, conf: bool = True) -> StoreSettings:
    return StoreSettings.load(store.root, broker_conf(store) if conf else None, store.version, rocksdb=True)


def queues(store: GoldenStore) -> dict[str, dict[bytes, bytes]]:
    """What the release's own library read of the queues' database."""
    found = store.dump()
    return dict(found.get("consumequeue") or found["consumequeue_rocksdb"])


@pytest.fixture(params=ROCKSDB)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return golden(request.param, tmp_path)


@pytest.fixture
def mixed(tmp_path: Path) -> GoldenStore:
    return golden("5.5.0-rocksdb-mixed", tmp_path)


@pytest.fixture
def indexed(tmp_path: Path) -> GoldenStore:
    return golden("5.5.0-rocksdb-index", tmp_path)


def test_each_queue_has_the_units_that_the_store_wrote(store: GoldenStore) -> None:
    asked = QueryStore(settings_of(store))
    dump = queues(store)
    units: dict[tuple[bytes, int], dict[int, rocksdbqueue.Unit]] = defaultdict(dict)
    for key, value in dump["default"].items():
        place, unit = rocksdbqueue.parse_unit_key(key), rocksdbqueue.parse_unit(value)
        assert place is not None
        assert unit is not None
        units[place.topic, place.queue_id][place.queue_offset] = unit
    assert units
    seen = 0
    for (topic, queue_id), expected in units.items():
        view = asked.queue(topic.decode(), queue_id)
        if not isinstance(view, RocksQueueView):
            assert "double-write" in store.name or "light-only" in store.name
            continue
        seen += 1
        last = dump["offset"][rocksdbqueue.offset_key(topic, queue_id, rocksdbqueue.MAX)]
        assert view.max_offset == int.from_bytes(last[8:], "big") + 1
        first = dump["offset"].get(rocksdbqueue.offset_key(topic, queue_id, rocksdbqueue.MIN))
        if first is not None:
            assert view.min_offset == int.from_bytes(first[8:], "big")
        assert queue_id in asked.queue_ids(topic.decode())
        for at, unit in expected.items():
            assert view.unit(at) == unit
        at = min(expected)
        run = view.units_from(at, 10_000)
        assert run is not None
        assert [(one.physical_offset, one.size, one.tags_code) for one in run] == [
            (expected[at + number].position, expected[at + number].size, expected[at + number].tags)
            for number in range(len(run))
        ]
        assert at + len(run) not in expected
    assert seen or "double-write" in store.name


def test_what_broker_conf_says_is_shown_by_the_store_as_well(store: GoldenStore) -> None:
    given, shown = settings_of(store), settings_of(store, conf=False)
    assert given.rocksdb.queues == shown.rocksdb.queues
    if "light-only" not in store.name:
        assert given.rocksdb.files == shown.rocksdb.files
    if not (store.root / names.INDEX).is_dir():  # files come first
        assert given.rocksdb.index == shown.rocksdb.index


def test_messages_are_pulled_and_found_by_time(mixed: GoldenStore) -> None:
    asked = QueryStore(settings_of(mixed))
    view = asked.queue("Orders", 0)
    assert isinstance(view, RocksQueueView)
    first = asked.pull("Orders", 0, view.min_offset, 32)
    assert first.status is Status.FOUND
    assert [one.queue_offset for one in first.found] == list(range(view.min_offset, first.next_begin_offset))
    for one in first.found:
        assert one.message is not None
        assert (one.message.topic, one.message.record.queue_offset) == ("Orders", one.queue_offset)
    times = [view.unit(at).timestamp for at in range(view.min_offset, view.max_offset)]  # type: ignore[union-attr]
    for time in {times[0] - 1, *times, times[-1] + 1}:
        lower = [at for at, found in enumerate(times) if found >= time]
        upper = [at for at, found in enumerate(times) if found <= time]
        low = view.min_offset + lower[0] if lower else view.max_offset
        high = view.min_offset + upper[-1] if upper else 0
        assert asked.offset_by_time("Orders", 0, time) == low
        assert asked.offset_by_time("Orders", 0, time, Boundary.UPPER) == high
    assert asked.pull("Orders", 0, view.max_offset, 1).status is Status.OFFSET_OVERFLOW_ONE
    assert not asked.queue("Orders", 99).exists
    assert asked.pull("Orders", 99, 0, 1).status is Status.NO_MESSAGE_IN_QUEUE


def test_a_hole_ends_what_a_broker_serves(mixed: GoldenStore) -> None:
    asked = QueryStore(settings_of(mixed))
    view = asked.queue("Orders", 0)
    hole = view.min_offset + 3
    with writing(mixed.root / "consumequeue", "offset") as db:
        del db[rocksdbqueue.unit_key(b"Orders", 0, hole)]
    again = QueryStore(settings_of(mixed))
    run = again.queue("Orders", 0).units_from(view.min_offset, 100)
    assert run is not None
    assert len(run) == 3
    assert again.pull("Orders", 0, hole, 1).status is Status.OFFSET_FOUND_NULL
    assert again.pull("Orders", 0, hole, 1).next_begin_offset == 0


def test_the_first_message_in_the_log_is_computed_where_no_min_key_is(tmp_path: Path) -> None:
    store = golden("5.3.3-rocksdb-lost-head", tmp_path)
    asked = QueryStore(settings_of(store))
    assert asked.all_queues.in_rocksdb is not None
    before = {}
    with writing(store.root / "consumequeue", "offset") as db:
        ends = db.get_column_family("offset")
        for key in list(ends.keys()):
            parsed = rocksdbqueue.parse_offset_key(key)
            if parsed is not None and parsed.which == rocksdbqueue.MIN:
                before[parsed.topic.decode(), parsed.queue_id] = rocksdbqueue.parse_offset(ends[key])
                del ends[key]
        ends.close()
    assert any(first is not None and first.queue_offset > 0 for first in before.values())
    for (topic, queue_id), first in before.items():
        view = asked.queue(topic, queue_id)
        assert first is not None
        assert view.min_offset == first.queue_offset
        assert QueryStore(settings_of(store)).queue(topic, queue_id).min_offset == first.queue_offset


def test_keys_tags_and_ids_are_found_in_the_index(indexed: GoldenStore) -> None:
    asked = QueryStore(settings_of(indexed))
    entries = indexed.dump()["rocksdbstore"]["default"]
    wanted: dict[tuple[str, bytes, str], set[int]] = defaultdict(set)
    for key in entries:
        entry = rocksdbindex.parse_key(key)
        if entry is None or entry.middle.count(b"@") != 5 - (b"@U@" in entry.middle):
            continue
        _, topic, kind, text, *_ = entry.middle.split(b"@")
        wanted[topic.decode(), kind, text.decode()].add(entry.position)
    assert len({kind for _, kind, _ in wanted}) == 3
    for (topic, kind, text), positions in wanted.items():
        index_type = "T" if kind == rocksdbindex.TAG else None
        found = asked.by_key(topic, text, most=10_000, limit=10_000, index_type=index_type)
        assert {hit.physical_offset for hit in found} == positions
    some = next(key for key in wanted if key[1] == rocksdbindex.UNIQUE)
    message = asked.by_id(some[2], some[0]).message
    assert message is not None
    assert message.uniq_key == some[2]
    assert asked.by_key(some[0], some[2], end=message.record.store_timestamp - 1) == []
    assert len(asked.by_key(some[0], some[2], begin=message.record.store_timestamp)) == 1
    assert ask.by_key(asked, "Orders", "no such key", None, None).exit_code == 1


def test_a_value_that_is_none_of_a_brokers_is_named(mixed: GoldenStore) -> None:
    with writing(mixed.root / "consumequeue", "offset") as db:
        db[rocksdbqueue.unit_key(b"Orders", 0, 0)] = b"short"
        ends = db.get_column_family("offset")
        ends[rocksdbqueue.offset_key(b"Orders", 1, rocksdbqueue.MAX)] = b"7"
        ends.close()
    asked = QueryStore(settings_of(mixed))
    with pytest.raises(StoreError, match="unit 0 of queue Orders:0 in RocksDB isn't one; expected 28 bytes"):
        asked.queue("Orders", 0).units_from(0, 1)
    with pytest.raises(StoreError, match="max key of queue Orders:1 in RocksDB isn't one; expected 16 bytes"):
        asked.queue("Orders", 1)


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def test_commands_answer_from_such_a_store(mixed: GoldenStore, tmp_path: Path) -> None:
    options = ["-c", str(broker_conf(mixed)), "--rocketmq-version", "5.5.0", "--json"]
    before = {path: path.stat().st_mtime_ns for path in mixed.root.rglob("*")}
    done = run("query", str(mixed.root), "--queue", "Orders:0", "--at", "2", *options)
    assert done.exit_code == 0, done.output
    (message,) = json.loads(done.stdout)["messages"]
    assert (message["topic"], message["queue_offset"]) == ("Orders", 2)
    done = run("query", str(mixed.root), "--queue", "Orders:0", *options)
    assert json.loads(done.stdout)["min_offset"] == 0
    assert {path: path.stat().st_mtime_ns for path in mixed.root.rglob("*")} == before
    assert not [path for path in mixed.root.parent.iterdir() if path.name.startswith(PREFIX)]


def test_a_dump_has_every_unit(store: GoldenStore) -> None:
    shown = run("dump", "consumequeue", str(store.root), "--json")
    assert shown.exit_code == 0, shown.stderr
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    found = {
        (one["topic"], one["queue_id"], one["queue_offset"]): (
            one["physical_offset"],
            one["size"],
            one["tags_code"],
            one["store_timestamp"],
        )
        for one in lines
        if one["type"] == "unit" and "store_timestamp" in one and "messages" not in one
    }
    expected = {}
    for key, value in queues(store)["default"].items():
        place = rocksdbqueue.parse_unit_key(key)
        assert place is not None
        expected[(place.topic.decode(), *place[1:])] = rocksdbqueue.parse_unit(value)
    assert found == expected


def test_a_dump_of_a_range_says_what_is_damaged_or_where_the_queue_ends(mixed: GoldenStore) -> None:
    path = mixed.root / "consumequeue"
    words = ("dump", "consumequeue", str(path), "--queue", "Orders:0", "--start")
    assert run(*words, "3", "--end", "5").stdout.count("Orders:0@") == 2
    assert "Orders:0 ends at" in run(*words, "9999999").stderr
    with writing(path, "offset") as db:
        db[rocksdbqueue.unit_key(b"Orders", 0, 4)] = b"short"
    damaged = run(*words, "3", "--end", "5", "--json")
    assert damaged.exit_code == 1
    line = json.loads(damaged.stdout.splitlines()[1])
    assert (line["type"], line["kind"], line["queue_offset"]) == ("damage", "bad-value", 4)
    assert "5 bytes under the key 00000006014f7264657273" in line["found"]
    (path / "CURRENT").write_text("MANIFEST-999999\n")
    torn = run(*words, "3")
    assert torn.exit_code == 2
    assert "names a MANIFEST that isn't there" in torn.stderr


def test_what_a_broker_may_not_have_flushed_is_said(tmp_path: Path) -> None:
    store = unpack("5.5.0-rocksdb-settings-v1", tmp_path / "store")
    with broker_lock(store.root):
        said = settings_of(store, conf=False).basis.kept
        assert "a broker has them open: what it hasn't flushed yet is missing" in said
        assert "a broker has consumequeue/ open: units that it hasn't flushed yet are missing" in said
        done = run("lag", str(store.root), "--group", "readers")
        assert done.exit_code in (0, 1), done.stderr
        assert "units that it hasn't flushed yet are missing" in " ".join(done.stdout.split())
    assert not [one for one in settings_of(store, conf=False).basis.kept if "flushed" in one]


def test_commands_read_topics_of_a_store_of_files_from_rocksdb(tmp_path: Path) -> None:
    store = golden("5.5.0-mixed", tmp_path)
    topics = {"Orders": {"topicName": "Orders", "readQueueNums": 9, "writeQueueNums": 8, "perm": 6}}
    rocksdbs.settings(store.root, "v2", topics=topics)
    options = ["-c", str(broker_conf(store)), "--rocketmq-version", "5.5.0"]
    conf = broker_conf(store)
    conf.write_text(f"{conf.read_text()}\nconfigManagerVersion=v2\n")
    shown = run("stats", "--topics", str(store.root), "--topic", "Orders", "--json", *options).stdout
    (orders,) = json.loads(shown)["topics"]
    assert (orders["read_queue_nums"], orders["write_queue_nums"], orders["perm"]) == (9, 8, 6)
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Payments")
    report = run("report", str(store.root), "--json", *options)
    assert report.exit_code in (0, 1), report.stderr
    assert "missing-unit" not in report.stdout, "only Orders is known"
    words = ["rebuild", str(store.root), "--out", str(tmp_path / "out"), "--dry-run", "--known-topics-only"]
    assert run(*words, *options).exit_code == 0


def test_what_is_not_known_of_such_a_store_is_refused(mixed: GoldenStore) -> None:
    assert run("dump", "index", str(mixed.root)).exit_code == 0
    for file in (mixed.root / names.INDEX).iterdir():
        file.unlink()
    done = run("dump", "index", str(mixed.root))
    assert done.exit_code == 0
    assert "the index has no entry" in done.stderr, "rocksdbstore/ is made unused as well"
    shutil.copytree(mixed.root / "consumequeue", mixed.root / "consumequeue_rocksdb")
    refused = run("query", str(mixed.root), "--queue", "Orders:0", "--at", "0")
    assert refused.exit_code == 2
    assert "two RocksDBs of consume queues" in refused.stderr
    assert "consumequeue/CURRENT and consumequeue_rocksdb/CURRENT" in refused.stderr


@pytest.fixture(scope="module", params=SETTINGS)
def configured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    store = unpack(request.param, tmp_path_factory.mktemp("configured") / "store")
    store.write_broker_conf(broker_conf(store))
    return store


def _tables(store: GoldenStore) -> dict[Kind, dict[str, object]]:
    """Topics, groups and offsets by what the release's own library read."""
    dump = store.dump()
    if "config/rdb" in dump:
        found: dict[Kind, dict[str, object]] = {kind: {} for kind in Kind}
        tables = {Kind.TOPICS: Table.TOPICS, Kind.GROUPS: Table.GROUPS, Kind.OFFSETS: Table.OFFSETS}
        for kind, table in tables.items():
            low, high = rocksdbconfig.table_range(table)
            for key, value in dump["config/rdb"]["default"].items():
                if low <= key < high and kind is Kind.OFFSETS:
                    of = rocksdbconfig.parse_queue(key)
                    queues = found[kind].setdefault(f"{of.topic.decode()}@{of.group.decode()}", {})
                    assert isinstance(queues, dict)
                    queues[str(of.queue_id)] = int.from_bytes(value, "big")
                elif low <= key < high:
                    found[kind][rocksdbconfig.parse_name(key).decode()] = json.loads(value[1:])
        return found
    single = dump.get("config/metadata")
    families = {
        kind: single[rocksdbconfig.SINGLE_FAMILIES[kind]]
        if single
        else dump[f"config/{rocksdbconfig.SEPARATE[kind]}"]["default"]
        for kind in Kind
    }
    parsed = {
        kind: {key.decode(): json.loads(value) for key, value in one.items()}
        for kind, one in families.items()
    }
    offsets = {key: value["offsetTable"] for key, value in parsed[Kind.OFFSETS].items()}
    return {**parsed, Kind.OFFSETS: offsets}


@pytest.mark.parametrize("given", [True, False])
def test_settings_are_those_that_the_broker_left(configured: GoldenStore, given: bool) -> None:
    settings = settings_of(configured, conf=given)
    form = configured.name.rpartition("-")[2]
    assert settings.config_form.value == {"v1": "separate"}.get(form, form)
    expected = _tables(configured)
    for kind in Kind:
        found = kept(settings.config, kind)
        assert found is not None
        assert found.entries == expected[kind], kind
    assert known_topics(settings.config) == set(expected[Kind.TOPICS])
    stale = [one for one in settings.basis.kept if "is stale" in one]
    assert len(stale) == (0 if form == "v2" else 3)
    assert all("counter" in one for one in stale)


def test_lag_of_a_store_that_is_all_in_rocksdb(configured: GoldenStore) -> None:
    report = lag(settings_of(configured))
    rows = {(row.group, row.topic, row.queue_id): row for row in report.rows}
    offsets = _tables(configured)[Kind.OFFSETS]
    assert report.offsets.parent == configured.root / names.CONFIG
    for key, queues in offsets.items():
        topic, _, group = key.partition("@")
        assert isinstance(queues, dict)
        for queue_id, offset in queues.items():
            row = rows[group, topic, int(queue_id)]
            assert row.committed == offset
            assert row.lag == max(row.max_offset - max(offset, row.min_offset), 0)
    assert any(row.max_offset > 0 for row in report.rows)
