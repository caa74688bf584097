"""What commands say of stores with something in RocksDB, held against what the real store kept."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

import reput as api
from explore.incident import as_it_lies
from explore.lags import lags
from explore.workspace import Workspace
from reput.config.kept import Kind, kept, write_queues
from reput.format import names, rocksdbindex, rocksdbqueue
from tests.golden.store import GoldenStore, unpack
from tests.rebuilds import Command, broker_conf, golden, tree

Words = list[str | Path]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GoldenStore]:
    """Stores that nothing is changed in, each with its broker.conf beside it."""
    wanted = (
        "5.5.0-rocksdb-index",
        "5.3.3-rocksdb-mixed",
        "5.5.0-rocksdb-double-write",
        "5.5.0-rocksdb-light-only",
        "5.3.3-rocksdb-batch-queue",
    )
    return {name: golden(name, tmp_path_factory.mktemp("rocksdb")) for name in wanted}


def options(store: GoldenStore) -> Words:
    return ["--broker-conf", broker_conf(store), "--rocketmq-version", store.version]


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def ends(store: GoldenStore) -> dict[tuple[str, int], int]:
    """The queueOffset after the last message of each queue in RocksDB, as the real store kept it."""
    found = {}
    for key, value in store.dump()[names.CONSUME_QUEUE][rocksdbqueue.OFFSETS].items():
        parsed, end = rocksdbqueue.parse_offset_key(key), rocksdbqueue.parse_offset(value)
        if parsed is not None and end is not None and parsed.which == rocksdbqueue.MAX:
            found[parsed.topic.decode(), parsed.queue_id] = end.queue_offset + 1
    return found


def test_a_dump_of_an_index_has_every_key(reput: Command, stores: dict[str, GoldenStore]) -> None:
    store = stores["5.5.0-rocksdb-index"]
    before = tree(store.root)
    told = reput("dump", "index", store.root / names.ROCKSDB_STORE, "--json")
    assert told.code == 0
    head, *entries = lines(told.stdout)
    expected = dict(store.dump()[names.ROCKSDB_STORE][rocksdbindex.ENTRIES])
    marks = [int.from_bytes(expected.pop(mark), "big") for mark in rocksdbindex.MARKS]
    assert [head["last_offset_py"], head["last_store_timestamp"]] == marks
    found = {}
    for one in entries:
        kind, unique = str(one["kind"]).encode(), str(one["uniq_key"]).encode()
        parts = [b"", str(one["topic"]).encode(), kind]
        parts += [] if one["key"] is None else [str(one["key"]).encode()]
        hour, place, time = (
            struct.pack(">q", one[name]) for name in ("hour", "physical_offset", "store_timestamp")
        )
        found[hour + b"@".join([*parts, unique, b""]) + place] = time
    assert found == expected
    assert (len(entries), {one["key"] is None for one in entries if one["kind"] == "U"}) == (
        len(found),
        {True},
    )
    assert tree(store.root) == before


def test_a_dump_of_an_index_by_key_time_and_number(reput: Command, stores: dict[str, GoldenStore]) -> None:
    store = stores["5.5.0-rocksdb-index"]
    path = store.root / names.ROCKSDB_STORE

    def dumped(*words: str | Path) -> list[dict[str, object]]:
        told = reput("dump", "index", path, *words, "--json")
        assert told.code == 0, told.stderr
        return lines(told.stdout)

    entries = [one for one in dumped() if one["type"] == "key"]
    of_key = [one for one in entries if (one["topic"], one["kind"], one["key"]) == ("Orders", "K", "order")]
    assert [one for one in dumped("--key", "Orders#order") if one["type"] == "key"] == of_key
    unique = of_key[0]["uniq_key"]
    by_id = [
        one for one in entries if (one["topic"], one["kind"], one["uniq_key"]) == ("Orders", "U", unique)
    ]
    assert [one for one in dumped("--key", f"Orders#{unique}") if one["type"] == "key"] == by_id
    assert [one["type"] for one in dumped("--limit", "2")] == ["database", "key", "key"]
    assert [one["type"] for one in dumped("--headers")] == ["database"]
    times = sorted(int(str(one["store_timestamp"])) for one in entries)
    since, until = times[300], times[900]
    found = dumped("--since", str(since), "--until", str(until))
    inside = [one for one in entries if since <= int(str(one["store_timestamp"])) < until]
    assert [one for one in found if one["type"] == "key"] == inside
    (_, nothing) = dumped("--since", str(times[-1] + 1))
    assert (nothing["why"], nothing["begin_timestamp"], nothing["end_timestamp"]) == (
        "past-end",
        times[0],
        times[-1],
    )
    # A store's own: files come first, and the database behind them, for both are written.
    both = lines(reput("dump", "index", store.root, *options(store), "--json").stdout)
    assert [one for one in both if one["type"] == "key"] == entries
    assert "index" in {one["type"] for one in both}


def test_a_broken_key_of_an_index_is_shown(reput: Command, tmp_path: Path) -> None:
    path = unpack("5.5.0-rocksdb-index", tmp_path / "store").root / names.ROCKSDB_STORE
    _put(path, rocksdbindex.ENTRIES, bytes(8) + b"@nothing@" + bytes(8), bytes(8))
    told = reput("dump", "index", path, "--quiet")
    assert told.code == 1
    assert told.stdout.startswith(f"DAMAGE bad-key at 0 of {path}: expected an hour, @TOPIC@K|T|U@…@ and a")


def _put(path: Path, family: str, key: bytes, value: bytes | None) -> None:
    """Write an entry, or delete it with None."""
    plain = Options(raw_mode=True)
    families = [name for name in Rdict.list_cf(str(path)) if name != "default"]
    db = Rdict(str(path), plain, {name: Options(raw_mode=True) for name in families})
    place = db if family == "default" else db.get_column_family(family)
    if value is None:
        del place[key]
    else:
        place[key] = value
    if place is not db:
        place.close()
    db.close()
    (path / "rocksdict-config.json").unlink(missing_ok=True)


@pytest.mark.parametrize("with_conf", [True, False], ids=["conf", "none"])
@pytest.mark.parametrize("name", ["5.5.0-rocksdb-index", "5.3.3-rocksdb-mixed", "5.3.3-rocksdb-batch-queue"])
def test_topics_and_queues(
    reput: Command, stores: dict[str, GoldenStore], name: str, with_conf: bool
) -> None:
    store = stores[name]
    before = tree(store.root)
    told = reput("stats", "--topics", store.root, *(options(store) if with_conf else []), "--json")
    assert told.code == 0
    found = {
        (topic["topic"], row["queue_id"]): row
        for topic in json.loads(told.stdout)["topics"]
        for row in topic["queues"]
    }
    expected = ends(store)
    assert {of: row["max_offset"] for of, row in found.items()} == expected
    assert {(row["kind"], row["files"], row["problem"]) for row in found.values()} == {("rocksdb", 0, None)}
    units = store.dump()[names.CONSUME_QUEUE][rocksdbqueue.UNITS]
    for (topic, queue_id), row in found.items():
        prefix = rocksdbqueue.prefix(topic.encode(), queue_id)
        keys = [key for key in units if key.startswith(prefix)]
        last = rocksdbqueue.parse_unit(units[max(keys)])
        assert last is not None
        assert row["last_store_timestamp"] == last.timestamp
        first = int.from_bytes(min(keys)[-8:], "big")
        # Where batches leave places without a unit, a broker takes a later one for the first.
        whole = len(keys) == row["max_offset"] - first
        assert row["min_offset"] == first if whole else row["min_offset"] > first
    assert tree(store.root) == before


def test_light_queues_that_are_in_rocksdb_only(reput: Command, stores: dict[str, GoldenStore]) -> None:
    store = stores["5.5.0-rocksdb-light-only"]
    told = reput("stats", "--topics", store.root, *options(store), "--json")
    rows = [
        (topic["topic"], row["kind"])
        for topic in json.loads(told.stdout)["topics"]
        for row in topic["queues"]
    ]
    kinds = {(topic.startswith("%LMQ%"), kind) for topic, kind in rows}
    assert kinds == {(True, "rocksdb"), (False, "plain")}


def test_a_report(reput: Command, stores: dict[str, GoldenStore], tmp_path: Path) -> None:
    store = stores["5.5.0-rocksdb-index"]
    page = tmp_path / "report.html"
    told = reput("report", store.root, *options(store), "-o", page, "--json")
    assert told.code == 0, told.stderr
    document = json.loads(told.stdout)
    assert document["verdict"] == "start"
    assert {(row["topic"], row["queue_id"]): row["max_offset"] for row in document["queues"]} == ends(store)
    database = [path for path in (store.root / names.CONSUME_QUEUE).iterdir() if path.is_file()]
    totals = document["queue_totals"]
    assert totals["bytes"] == sum(path.stat().st_size for path in database)
    assert totals["queues"] == len(ends(store))
    assert any("rocksdbstore" in one for one in document["not_read"])
    assert "Orders" in page.read_text()


def test_a_report_and_an_export_of_what_rocksdb_lacks(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-rocksdb-mixed", tmp_path)
    path = store.root / names.CONSUME_QUEUE
    end = ends(store)["Orders", 1]
    _put(path, rocksdbqueue.UNITS, rocksdbqueue.unit_key(b"Orders", 1, 7), None)
    exported = tmp_path / "saved.jsonl"
    words = [store.root, *options(store)]
    assert reput("export", *words, "--finding", "missing-unit", "-o", exported).code == 0
    (line,) = [one for one in lines(exported.read_text()) if one.get("type", "message") == "message"]
    assert (line["topic"], line["queue_id"], line["queue_offset"]) == ("Orders", 1, 7)
    # A last message that RocksDB doesn't know of.
    last = rocksdbqueue.offset_key(b"Orders", 1, rocksdbqueue.MAX)
    lower = struct.pack(">qq", 0, end - 3)
    _put(path, rocksdbqueue.OFFSETS, last, lower)
    told = reput("report", *words, "-o", tmp_path / "report.html", "--json")
    found = {one["kind"] for one in json.loads(told.stdout)["findings"]}
    assert told.code == 3, found
    cut = reput("export", *words, "--finding", "log-cut", "-o", tmp_path / "cut.jsonl")
    assert (cut.code, (tmp_path / "cut.jsonl").exists()) == (0, False)


def test_all_messages_can_be_exported_and_counted(
    reput: Command, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    store = stores["5.5.0-rocksdb-index"]
    words = [store.root, *options(store)]
    whole = json.loads(reput("export", *words, "-o", tmp_path / "all.jsonl", "--json").stdout)
    missing = reput("export", *words, "--finding", "missing-unit", "-o", tmp_path / "none.jsonl")
    assert (missing.code, (tmp_path / "none.jsonl").exists()) == (0, False)
    counted = json.loads(reput("stats", *words, "--json").stdout)
    assert whole["messages"] == counted["total"]["messages"]


def test_a_log_is_compared_with_its_replica(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-rocksdb-mixed", tmp_path)
    replica = tmp_path / "replica"
    shutil.copytree(store.root / names.COMMIT_LOG, replica / names.COMMIT_LOG)
    segment = min((store.root / names.COMMIT_LOG).iterdir())
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    told = reput("mend", store.root, "--from", replica, *options(store), "--json")
    assert (told.code, bool(json.loads(told.stdout)["replica"]["taken"])) == (3, True), told.stderr


def test_digests_of_both_forms_are_the_same(
    reput: Command, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    store = stores["5.5.0-rocksdb-double-write"]
    conf = tmp_path / "alone.conf"
    text = broker_conf(store).read_text()
    conf.write_text(text.replace("rocksdbCQDoubleWriteEnable", "nothing") + "storeType=defaultRocksDB\n")
    digest = tmp_path / "files.digest"
    files = json.loads(reput("dump", "digest", store.root, *options(store), "-o", digest, "--json").stdout)
    assert (files["queues"], files["not_read"]) == (len(ends(store)), [])
    in_rocksdb = ["--broker-conf", conf, "--rocketmq-version", store.version]
    told = reput("dump", "digest", store.root, *in_rocksdb, "--against", digest, "--json")
    document = json.loads(told.stdout)
    assert (told.code, document["verdict"], document["same_ranges"]) == (0, "same", files["ranges"])


def test_the_api(stores: dict[str, GoldenStore]) -> None:
    store = stores["5.5.0-rocksdb-index"]
    found = api.open(store.root, broker_conf=broker_conf(store), rocketmq_version=store.version)
    assert {(row.topic, row.queue_id): row.max_offset for row in found.queues()} == ends(store)
    assert len(found.topics("Orders").topics[0].queues) == 4
    assert found.check().findings == []


SETTINGS = ("5.3.3-rocksdb-settings-v1", "5.5.0-rocksdb-settings-single", "5.5.0-rocksdb-settings-v2")


@pytest.mark.parametrize("name", SETTINGS)
def test_a_dump_of_settings(reput: Command, tmp_path: Path, name: str) -> None:
    store = golden(name, tmp_path)
    before = tree(store.root)
    settings = api.open(store.root, broker_conf=broker_conf(store), rocketmq_version=store.version).settings
    told = reput("dump", "config", store.root, "--json")
    assert told.code == 0
    found = lines(told.stdout)
    for kind, of in ((Kind.TOPICS, "topic"), (Kind.GROUPS, "group")):
        expected = kept(settings.config, kind)
        assert expected is not None
        assert {one[of]: one["config"] for one in found if one["type"] == of} == expected.entries
        (version,) = [one for one in found if (one["type"], one.get("of")) == ("version", of)]
        assert expected.version is not None
        assert version["counter"] == expected.version.counter
    offsets = kept(settings.config, Kind.OFFSETS)
    assert offsets is not None
    of_queues: dict[str, dict[str, object]] = {}
    for one in found:
        if one["type"] == "offset":
            queues = of_queues.setdefault(f"{one['topic']}@{one['group']}", {})
            queues[str(one["queue_id"])] = one["queue_offset"]
    assert of_queues == offsets.entries
    group = lines(reput("dump", "config", store.root, "--group", "billing", "--json").stdout)
    assert {one["type"] for one in group} == {"group", "offset"}
    assert {one["group"] for one in group} == {"billing"}
    topic = lines(reput("dump", "config", store.root / "config", "--topic", "Orders", "--json").stdout)
    assert {one["type"] for one in topic} >= {"topic", "offset"}
    assert {one["topic"] for one in topic} == {"Orders"}
    assert len(reput("dump", "config", store.root, "--limit", "3").stdout.splitlines()) == 3
    assert tree(store.root) == before


def test_settings_that_are_broken_or_in_files(reput: Command, tmp_path: Path) -> None:
    store = golden("5.5.0-rocksdb-settings-single", tmp_path)
    path = store.root / "config" / "metadata"
    _put(path, "topic", b"Bad", b"{")
    told = reput("dump", "config", path, "--quiet")
    assert told.code == 1
    assert told.stdout.startswith(f"DAMAGE bad-value at 0 of {path}: expected an entry as a broker writes it")
    plain = tmp_path / "plain"
    (plain / "config").mkdir(parents=True)
    refused = reput("dump", "config", plain)
    assert (refused.code, refused.stdout) == (2, "")
    assert "there is no RocksDB of topics, groups and offsets here" in refused.stderr


def test_what_notebooks_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = golden("5.5.0-rocksdb-settings-single", tmp_path)
    for variable, value in (("BROKER_CONF", broker_conf(store)), ("ROCKETMQ_VERSION", store.version)):
        monkeypatch.setenv(f"REPUT_{variable}", str(value))
    opened = Workspace(tmp_path / "scratch").open(store.root)
    found = lags(opened)
    assert {(row.group, row.topic) for row in found.itertuples()} >= {
        ("audit", "Orders"),
        ("billing", "Payments"),
    }
    assert write_queues(opened.settings(rocksdb=True).config)["Orders"] == 4
    with pytest.raises(api.ReputError, match="storeType asks for consume queues in RocksDB"):
        as_it_lies(opened)


def test_topics_say_that_the_database_is_gone(reput: Command, tmp_path: Path) -> None:
    store = golden("5.5.0-rocksdb-tiny", tmp_path)
    directory = store.root / names.CONSUME_QUEUE
    (directory / "CURRENT").unlink()
    torn = reput("stats", "--topics", store.root, *options(store))
    assert (torn.code, "broken-rocksdb" in torn.stdout) == (1, True)
    shutil.rmtree(directory)
    gone = reput("stats", "--topics", store.root, *options(store))
    assert gone.code == 1
    assert f"no-queues  {directory}: expected queues, for the log has messages, found no RocksDB there" in (
        gone.stdout
    )
    told = json.loads(reput("stats", "--topics", store.root, *options(store), "--json").stdout)
    assert [one["kind"] for one in told["findings"]] == ["no-queues"]
    assert told["next_steps"][0].startswith("reput check")
