"""Lag: offsets as brokers write them, and what comes of them beside the files of golden stores."""

from __future__ import annotations

import json
import pydoc
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from reput.cli import app as cli
from reput.cli.output import age
from reput.config.committed import committed_offsets, group_of
from reput.config.kept import parse
from reput.config.settings import StoreSettings
from reput.errors import ReputError, SettingsError, StoreError
from reput.format import batchconsumequeue, commitlog, consumequeue
from reput.lag import AgesTo, Flag, QueueLag, lag
from reput.query import QueryStore
from tests import rocksdbs
from tests.golden.store import GoldenStore
from tests.local import open_store, rebuild_locally, write_store
from tests.rebuilds import broker_conf, broker_lock, golden

# Written by ConsumerOffsetManager.encode(true) of RocketMQ 4.9.7.
WRITTEN_BY_4_9_7 = """{
\t"offsetTable":{
\t\t"%RETRY%readers@readers":{0:5,10:4294967296123
\t\t},
\t\t"orders@readers":{0:5,10:4294967296123
\t\t},
\t\t"orders@readers@broadcast":{0:6
\t\t},
\t\t"empty@readers":{}
\t}
}"""

# Written by LmqConsumerOffsetManager.encode(true) of RocketMQ 5.5.0.
WRITTEN_BY_5_5_0 = """{
\t"dataVersion":{
\t\t"counter":0,
\t\t"stateVersion":0,
\t\t"timestamp":1795315883246
\t},
\t"groupTopicMap":{
\t\t"readers":[
\t\t\t"%RETRY%readers",
\t\t\t"orders",
\t\t\t"empty"
\t\t]
\t},
\t"lmqOffsetTable":{
\t\t"%LMQ%dev主@%LMQ%dev主":7
\t},
\t"offsetTable":{
\t\t"orders@readers":{
\t\t\t0:5,
\t\t\t10:4294967296123
\t\t},
\t\t"empty@readers":{}
\t},
\t"pullOffsetTable":{
\t\t"orders@readers":{
\t\t\t0:8
\t\t}
\t}
}"""


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-lost-head", tmp_path)


def settings_of(store: GoldenStore) -> StoreSettings:
    return StoreSettings.load(store.root, broker_conf(store), store.version, dledger=True)


def commit(root: Path, table: object, name: str = "consumerOffset.json") -> Path:
    """Write committed offsets, text as it is."""
    path = root / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(table if isinstance(table, str) else json.dumps({"offsetTable": table}), encoding="utf-8")
    return path


def test_the_nearest_topic_is_offered(store: GoldenStore) -> None:
    commit(store.root, {"Orders@readers": {"0": 3}, "Payments@billing": {"0": 3}})
    with pytest.raises(SettingsError, match="Did you mean --topic Orders"):
        lag(settings_of(store), topic="orders")
    with pytest.raises(SettingsError, match="Did you mean --topic Payments"):
        lag(settings_of(store), group="billing", topic="Payment")
    with pytest.raises(SettingsError, match="Did you mean --group billing"):
        lag(settings_of(store), group="biling", topic="Payment")


def test_offsets_as_4_9_7_writes_them(tmp_path: Path) -> None:
    path = commit(tmp_path, WRITTEN_BY_4_9_7)
    found = committed_offsets(StoreSettings.load(tmp_path, None, "4.9.7"))
    assert found.path == path
    assert [(one.topic, one.group, one.queue_id, one.offset, one.pulled) for one in found.committed] == [
        ("%RETRY%readers", "readers", 0, 5, None),
        ("%RETRY%readers", "readers", 10, 4294967296123, None),
        ("orders", "readers", 0, 5, None),
        ("orders", "readers", 10, 4294967296123, None),
        ("orders", "readers@broadcast", 0, 6, None),
    ]
    assert found.topics == {
        "readers": ("%RETRY%readers", "orders", "empty"),
        "readers@broadcast": ("orders",),
    }


def test_offsets_of_light_queues_as_5_5_0_writes_them(tmp_path: Path) -> None:
    commit(tmp_path, WRITTEN_BY_5_5_0, "lmqConsumerOffset.json")
    plain = StoreSettings.load(tmp_path, None, "5.5.0")
    found = committed_offsets(replace(plain, enable_lmq=True))
    assert [(one.topic, one.group, one.queue_id, one.offset, one.pulled) for one in found.committed] == [
        ("orders", "readers", 0, 5, 8),
        ("orders", "readers", 10, 4294967296123, None),
        ("%LMQ%dev主", "%LMQ%dev主", 0, 7, None),
    ]
    with pytest.raises(StoreError, match=r"found lmqConsumerOffset.json alone.*enableLmq=true"):
        committed_offsets(plain)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        # What decode() of 4.9.7 and 5.5.0 makes of these was seen by running both.
        ('{"offsetTable":{"a@b":{"0":"5",1:6,-3:-1}}}', {0: 5, 1: 6, -3: -1}),
        ('\ufeff{"offsetTable":{"a@b":{0:5,0:6}}}', {0: 6}),
        ('{"offsetTable":{"x{1:2@b":{},"a@b":{ 7 : 5 }}}', {7: 5}),
        ("null", {}),
        ('{"offsetTable":{"nobody":{0:5},"@b":{0:5},"a@":{0:5}}}', {}),
        ('{"offsetTable":{"a@b":{0:null}}}', None),
        ('{"offsetTable":{"a@b":null}}', None),
        ('{"offsetTable":{"a@b":[1,2]}}', None),
        ('{"offsetTable":{"a@b":{0:99999999999999999999}}}', None),
        ('{"offsetTable":{"a@b":{99999999999:9}}}', None),
        ('{"offsetTable":{"a@b":{"x":5}}}', None),
        ('{"offsetTable":{"a@b":{0:""}}}', None),
        ('{"offsetTable":{"a@b":{0:5}}', None),
        ('{"offsetTable":null}', None),
        ("[]", None),
    ],
)
def test_what_is_taken_for_offsets(tmp_path: Path, text: str, offsets: dict[int, int] | None) -> None:
    path = commit(tmp_path, text)
    settings = StoreSettings.load(tmp_path, None, None)
    if offsets is not None:
        assert {one.queue_id: one.offset for one in committed_offsets(settings).committed} == offsets
        return
    with pytest.raises(SettingsError, match="this file of committed offsets is broken") as error:
        committed_offsets(settings)
    assert error.value.path == str(path)
    commit(tmp_path, '{"offsetTable":{"a@b":{0:1}}}', "consumerOffset.json.bak")
    assert committed_offsets(settings).path.name == "consumerOffset.json.bak"


def test_an_empty_file_is_read_from_its_backup_and_no_file_is_refused(tmp_path: Path) -> None:
    settings = StoreSettings.load(tmp_path, None, None)
    with pytest.raises(StoreError, match=r"there are no committed offsets here.*found no file"):
        committed_offsets(settings)
    commit(tmp_path, "")
    commit(tmp_path, {"t@g": {"1": 2}}, "consumerOffset.json.bak")
    (one,) = committed_offsets(settings).committed
    assert (one.topic, one.group, one.queue_id, one.offset) == ("t", "g", 1, 2)


@pytest.mark.parametrize("form", ["separate", "single", "v2"])
def test_offsets_in_rocksdb_are_read_and_a_file_may_be_named(tmp_path: Path, form: str) -> None:
    (tmp_path / "commitlog").mkdir()
    rocksdbs.settings(tmp_path, form, offsets={"t@g": {0: 3, 7: 9}, "u@g": {1: 4}, "%LMQ%a@%LMQ%a": {0: 1}})
    found = committed_offsets(StoreSettings.load(tmp_path, None, "5.5.0"))
    assert sorted((one.topic, one.group, one.queue_id, one.offset) for one in found.committed) == [
        ("%LMQ%a", "%LMQ%a", 0, 1),
        ("t", "g", 0, 3),
        ("t", "g", 7, 9),
        ("u", "g", 1, 4),
    ]
    assert found.path.parent == tmp_path / "config"
    path = commit(tmp_path, {"t@g": {"1": 2}})
    assert len(committed_offsets(StoreSettings.load(tmp_path, None, "5.5.0"), path).committed) == 1


@pytest.mark.parametrize(
    ("conf", "release", "why"),
    [
        ("storeType=defaultRocksDB\n", "5.5.0", "its counter is 0"),
        ("storeType=defaultRocksDB\n", "5.3.1", "this broker never imports it"),
        ("configManagerVersion=v2\n", "5.5.0", "this broker never imports it"),
    ],
)
def test_why_a_start_does_not_take_a_file_of_offsets(
    tmp_path: Path, conf: str, release: str, why: str
) -> None:
    (tmp_path / "commitlog").mkdir()
    commit(tmp_path, {"t@g": {"1": 2}})
    path = tmp_path / "broker.conf"
    path.write_text(conf)
    with pytest.raises(StoreError, match="no committed offsets") as refused:
        committed_offsets(StoreSettings.load(tmp_path, path, release, rocksdb=True))
    assert refused.value.found == (
        f"consumerOffset.json alone, which a start doesn't take over: {why}"
        + ", as until a broker's 500th commit" * why.startswith("its")
    )


def test_keys_of_groups() -> None:
    assert group_of("orders@readers@broadcast") == ("orders", "readers@broadcast")
    assert group_of("%LMQ%a@b@%LMQ%c@d") == ("%LMQ%a@b", "%LMQ%c@d")
    assert group_of("%LMQ%a@b") == ("%LMQ%a", "b")
    assert group_of("orders@%LMQ%c") == ("orders", "%LMQ%c")
    assert group_of("orders") is None


def test_a_string_that_looks_like_a_key_is_left_alone() -> None:
    assert parse(b'{"a,1:\\"{2:":{3:4}}') == {'a,1:"{2:': {"3": 4}}


def test_offsets_before_and_past_a_queue(store: GoldenStore) -> None:
    commit(
        store.root,
        {
            "t@readers": {"0": 5, "1": 20, "2": 21, "3": -1, "77": 4, "78": 0},
            "%RETRY%readers@readers": {"0": 0},
            "t@all@broadcast": {"1": 12},
        },
    )
    report = lag(settings_of(store), now=0)
    rows = {(row.group, row.topic, row.queue_id): row for row in report.rows}
    assert len(rows) == len(report.rows) == 11
    assert rows["readers", "t", 0].flags == (Flag.EXPIRED,)
    assert (rows["readers", "t", 0].expired, rows["readers", "t", 0].lag) == (12, 5)
    assert rows["readers", "t", 1].flags == (Flag.PAST_END,)
    assert (rows["readers", "t", 2].flags, rows["readers", "t", 2].lag) == ((), 0)
    assert (rows["readers", "t", 3].flags, rows["readers", "t", 3].committed) == ((Flag.NOT_COMMITTED,), None)
    assert rows["readers", "t", 77].flags == (Flag.NO_QUEUE,)
    assert rows["readers", "t", 78].flags == rows["readers", "%RETRY%readers", 0].flags == ()
    assert (rows["all@broadcast", "t", 1].lag, rows["all@broadcast", "t", 1].flags) == (3, ())
    assert [row.lag for row in report.rows] == sorted((row.lag for row in report.rows), reverse=True)
    assert report.exit_code == 1
    (one,) = (one for one in report.groups if (one.group, one.topic) == ("readers", "t"))
    assert (one.queues, one.lag, one.expired, one.flags[Flag.PAST_END]) == (6, 8, 12, 1)
    assert {row.group for row in lag(settings_of(store), group="all", topic="t").rows} == {"all@broadcast"}
    with pytest.raises(
        SettingsError, match=r"--group nobody --topic t; expected of groups all@broadcast, readers"
    ):
        lag(settings_of(store), group="nobody", topic="t")


def raw_units(root: Path, topic: str, queue_id: int) -> Iterator[tuple[int, int]]:
    """The slow twin: (queueOffset, physicalOffset) of each message, from the bytes of the queue's files."""
    for kind, unit in (("consumequeue", consumequeue.UNIT), ("batchconsumequeue", None)):
        for path in sorted((root / kind / topic / str(queue_id)).glob("*")):
            data, base = path.read_bytes(), int(path.name)
            if unit is not None:
                for number, (offset, size, _tags) in enumerate(unit.iter_unpack(data)):
                    if size > 0:
                        yield base // 20 + number, offset
                continue
            length = batchconsumequeue.UNIT_LENGTH
            for at in range(0, len(data) - length + 1, length):
                offset, size, _tags, _time, first, messages = batchconsumequeue.UNIT.unpack_from(data, at)[:6]
                if size > 0:
                    yield from ((first + number, offset) for number in range(messages))


def slow_lag(root: Path, topic: str, queue_id: int, committed: int) -> tuple[int, int, int, int | None]:
    """(min offset, max offset, lag, time of the first unread) by counting."""
    segments = {int(path.name): path.read_bytes() for path in sorted((root / "commitlog").glob("*"))}
    there = [(at, offset) for at, offset in raw_units(root, topic, queue_id) if offset >= min(segments)]
    unread = [offset for at, offset in there if at >= committed]
    base = max((base for base in segments if unread and base <= unread[0]), default=0)
    time_of = commitlog.decode(segments[base], unread[0] - base).store_timestamp if unread else None
    return there[0][0], there[-1][0] + 1, len(unread), time_of


@pytest.mark.parametrize(
    "name", ["4.9.7-lost-head", "5.3.3-mixed", "5.5.0-lost-head", "5.5.0-lmq", "5.3.3-batch-queue"]
)
def test_it_says_what_counting_units_says(tmp_path: Path, name: str) -> None:
    store = golden(name, tmp_path)
    if store.manifest.get("topics"):
        store.write_topics_json()
    settings = settings_of(store)
    queues = sorted(
        {
            (path.parent.name, int(path.name))
            for kind in ("consumequeue", "batchconsumequeue")
            for path in store.root.glob(f"{kind}/*/*")
        }
    )
    ends = {queue: max((at for at, _ in raw_units(store.root, *queue)), default=0) + 1 for queue in queues}
    table: dict[str, dict[str, int]] = {}
    for number, ((topic, queue_id), end) in enumerate(ends.items()):
        table.setdefault(f"{topic}@g", {})[str(queue_id)] = (end * (number % 5)) // 4
    commit(store.root, table, "lmqConsumerOffset.json" if settings.enable_lmq else "consumerOffset.json")
    rows = lag(settings).rows
    assert {(row.topic, row.queue_id) for row in rows} == set(queues)
    for row in rows:
        assert row.committed is not None
        found = slow_lag(store.root, row.topic, row.queue_id, row.committed)
        assert (row.min_offset, row.max_offset, row.lag, row.oldest_stored) == found, row
        assert row.expired == max(found[0] - row.committed, 0)
        assert (Flag.EXPIRED in row.flags) == (row.committed < found[0])


def test_a_message_that_is_not_where_the_queue_points(store: GoldenStore) -> None:
    commit(store.root, {"t@g": {"3": 5}})
    (before,) = (row for row in lag(settings_of(store)).rows if row.queue_id == 3)
    assert before.oldest_stored is not None
    for path in (store.root / "consumequeue" / "t" / "3").iterdir():
        data = bytearray(path.read_bytes())
        units = list(consumequeue.UNIT.iter_unpack(data))
        for number, (_offset, size, tags) in enumerate(units):
            if size > 0:
                consumequeue.UNIT.pack_into(data, number * 20, 1 << 40, size, tags)
        path.write_bytes(data)
    (row,) = (row for row in lag(settings_of(store)).rows if row.queue_id == 3)
    assert (row.flags[-1], row.oldest_stored) == (Flag.UNREADABLE, None)


def test_queues_and_segments_are_opened_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b""
    for number in range(60):
        one = commitlog.Record(
            b"t%d" % (number % 20), b"x", queue_id=number % 3, store_timestamp=5, physical_offset=len(data)
        )
        data += commitlog.encode(one)
    store = write_store(tmp_path, [(0, data)])
    rebuild_locally(store, tmp_path)
    commit(
        tmp_path,
        {f"t{topic}@g{group}": {"0": 0, "1": 0, "2": 0} for topic in range(20) for group in range(3)},
    )
    opened: list[str] = []
    for what in ("reput.derived.queues.QueueView", "reput.query.log.open_segment"):
        monkeypatch.setattr(what, _counted(opened, what))
    report = lag(open_store(tmp_path).settings)
    assert len(report.rows) == sum(row.lag for row in report.rows) == 180
    assert opened.count("reput.derived.queues.QueueView") == 60
    assert opened.count("reput.query.log.open_segment") == 1


def _counted(opened: list[str], what: str) -> Callable[..., object]:
    real = pydoc.locate(what)
    assert callable(real)

    def count(*arguments: object) -> object:
        opened.append(what)
        return real(*arguments)

    return count


def test_rows_are_json_ready(store: GoldenStore) -> None:
    commit(store.root, {"t@g": {"0": 17}})
    document = json.loads(json.dumps(lag(settings_of(store), now=1).to_dict()))
    assert (document["taken_ms"], document["ages_to"], document["ages_to_ms"]) == (1, "now", 1)
    (first, *_) = document["queues"]
    assert first["group"] == "g"
    assert set(first) == {*QueueLag.__slots__, "oldest_store_timestamp"} - {"oldest_stored"}
    assert document["groups"][0]["flags"] == {"not-committed": 3}


def test_ages_of_a_store_at_rest_count_to_its_last_message(store: GoldenStore) -> None:
    commit(store.root, {"t@g": {"0": 17}})
    report = lag(settings_of(store))
    times = QueryStore(settings_of(store)).log.times
    assert times is not None
    assert (report.ages_to, report.reference) == (AgesTo.LAST_MESSAGE, times[1])
    assert 0 <= max(report.age(row.oldest_stored) or 0 for row in report.rows) <= times[1] - times[0]
    shown = CliRunner().invoke(cli.app, ["lag", str(store.root), "--broker-conf", str(broker_conf(store))])
    assert "\n  ages       up to the log's last message, 2026-" in shown.stdout
    with broker_lock(store.root):
        live = lag(settings_of(store))
        assert live.ages_to is AgesTo.NOW
        assert live.reference == live.taken > times[1]
        shown = CliRunner().invoke(
            cli.app, ["lag", str(store.root), "--broker-conf", str(broker_conf(store))]
        )
    assert "\n  ages       up to now, 2" in shown.stdout


def test_a_store_without_a_log_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, {"t@g": {"0": 1}})
    with pytest.raises(ReputError):
        lag(StoreSettings.load(tmp_path, None, None))


_PAGE = Path(__file__).parents[3] / "docs" / "look.md"
_EXAMPLE = re.compile(r"^\$ (reput lag .*)\n((?:(?!\$ |```).*\n)*)", re.MULTILINE)
#: What the groups of the page's examples have committed.
COMMITTED = {
    "Orders@billing": {"0": 120, "1": 15, "2": 2, "3": 20},
    "Orders@audit": {"0": 310, "1": 19, "2": 2, "3": 30},
    "Payments@billing": {"0": 20, "1": 19, "2": 18},
    "%RETRY%billing@billing": {"0": 0},
    "Transfers@reports": {"0": 4, "9": 4},
}


def test_the_examples_of_its_page(store: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(store.root, COMMITTED)
    last = max(row.oldest_stored or 0 for row in lag(settings_of(store)).rows)
    monkeypatch.setattr("reput.lag.time.time_ns", lambda: (last + 750_000) * 1_000_000)
    places = {"/data/store": str(store.root), "broker.conf": str(broker_conf(store))}
    examples = _EXAMPLE.findall(_PAGE.read_text(encoding="utf-8"))
    assert len(examples) == 2
    for command, shown in examples[:1]:  # the other one has places of its own
        words = [places.get(word, word) for word in shlex.split(command)[1:]]
        with broker_lock(store.root):
            result = CliRunner().invoke(cli.app, words)
        assert result.stdout.replace(str(store.root), "/data/store") == shown, result.stdout
        assert result.exit_code == 1


def test_the_command(store: GoldenStore) -> None:
    commit(store.root, {"t@g\n": {"0": 17, "1": 12, "2": 12, "3": 8}, "t@other": {"0": 22}})
    options = ["--broker-conf", str(broker_conf(store)), "--rocketmq-version", store.version]

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli.app, ["lag", str(store.root), *options, *words])

    shown = run()
    assert shown.exit_code == 0
    assert len(shown.stdout.splitlines()) == 6
    assert "g\\n" in shown.stdout
    document = json.loads(run("--group", "other", "--json").stdout)
    assert (document["exit_code"], document["lag"]) == (0, 0 + 3 + 9 + 3)
    assert document["offsets"] == str(store.root / "config" / "consumerOffset.json")
    refused = run("--topic", "nothing", "--json")
    assert refused.exit_code == 2
    assert "nothing was committed for --topic nothing" in json.loads(refused.stdout)["error"]


def test_ages() -> None:
    shown = [age(ms) for ms in (-5, 0, 1500, 119_999, 120_000, 7_200_000, 36_000_000, 172_800_000, 10**11)]
    assert shown == ["0 ms", "0 ms", "1.5 s", "120.0 s", "2.0 min", "2.0 h", "10 h", "2.0 d", "1,157 d"]
