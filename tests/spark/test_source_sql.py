"""The three sources in Spark SQL: by name, with conditions, with and without Spark's own filters."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reput.errors import SettingsError
from reput.format import names, rocksdbindex, rocksdbqueue
from reput.newer_python import UTC
from reput.source import INDEX, NAME, QUEUES, read, register
from reput.spark.stack import HANDS_CONDITIONS
from tests.golden.store import GoldenStore, unpack
from tests.sources import total
from tests.unit.source.test_proven import proven
from tests.unit.verify.test_verify import open_golden

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8").partition("## Streams")[0]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    store = unpack("5.5.0-mixed", tmp_path_factory.mktemp("golden") / "store")
    store.write_broker_conf()
    return store


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def load(spark: SparkSession, store: GoldenStore, name: str = NAME, **options: object) -> DataFrame:
    register(spark)
    conf = store.root / "broker.conf"
    return spark.read.format(name).options(brokerConf=str(conf), **options).load(str(store.root))


def test_tables_by_name(spark: SparkSession, golden: GoldenStore) -> None:
    for name, view in ((NAME, "log"), (QUEUES, "queues"), (INDEX, "entries")):
        load(spark, golden, name).createOrReplaceTempView(view)
    # Units and entries lead to messages, and those of a queue to its own.
    astray = spark.sql(
        """
        SELECT count_if(m.physicalOffset IS NULL), count_if(q.queueOffset != m.queueOffset), count(*)
        FROM queues q LEFT JOIN log m ON m.physicalOffset = q.physicalOffset AND m.topic = q.topic
        """
    ).first()
    assert astray is not None
    assert (astray[0], astray[1]) == (0, 0)
    assert astray[2] > 300
    keys = spark.sql(
        """
        SELECT count(*), count_if(m.physicalOffset IS NULL),
               count_if(unix_millis(m.storeTimestamp) - unix_millis(e.storeTimestamp) BETWEEN 0 AND 999)
        FROM entries e LEFT JOIN log m ON m.physicalOffset = e.physicalOffset WHERE e.ordinal > 1
        """
    ).first()
    assert keys is not None
    assert keys[1] == 0
    assert keys[2] == keys[0] > 1000


def test_one_frame_serves_many_queries(spark: SparkSession, golden: GoldenStore, pushdown: None) -> None:
    """PySpark 4.2.0 reads for all what it planned for one that pushed filters: none is taken unasked."""
    frame = load(spark, golden).select("topic", "queueId")
    every = Counter(row["topic"] for row in frame.collect())
    one, other = sorted(every)[:2]
    assert frame.where(f"topic = '{one}'").count() == every[one]
    assert frame.count() == sum(every.values())
    both = frame.where(f"topic = '{one}'").unionAll(frame.where(f"topic = '{other}'"))
    assert Counter(row["topic"] for row in both.collect()) == {one: every[one], other: every[other]}


def counted(spark: SparkSession, store: GoldenStore, report: Path, name: str, condition: str) -> Any:
    frame = load(spark, store, name, pushFilters=True, readReport=str(report)).where(condition)
    rows = sorted(frame.select("physicalOffset").collect())
    return rows, total(report)


@pytest.mark.skipif(not HANDS_CONDITIONS, reason="Spark 4.0 hands no conditions to a source")
@pytest.mark.parametrize(
    ("name", "condition"),
    [
        (NAME, "physicalOffset BETWEEN 60000 AND 70000 AND queueId IN (0, 1) AND tags IS NOT NULL"),
        (QUEUES, "topic = 'Orders' AND queueId = 0 AND queueOffset >= 5"),
        (INDEX, "physicalOffset < 30000 AND storeTimestamp > '2020-01-01'"),
    ],
)
def test_sparks_filters_spare_reading_where_they_are_asked_for(
    spark: SparkSession, golden: GoldenStore, tmp_path: Path, name: str, condition: str
) -> None:
    off, all_read = counted(spark, golden, tmp_path / "off", name, condition)
    spark.conf.set(PUSHDOWN, "true")
    try:
        on, pruned = counted(spark, golden, tmp_path / "on", name, condition)
    finally:
        spark.conf.unset(PUSHDOWN)
    assert off
    assert on == off
    assert pruned.rows < all_read.rows
    assert pruned.files < all_read.files
    assert pruned.read < all_read.read / 2


def test_read_makes_what_is_asked_for(spark: SparkSession, golden: GoldenStore, tmp_path: Path) -> None:
    told: dict[str, Any] = {"brokerConf": golden.root / "broker.conf", "readReport": tmp_path / "report"}
    every = read(spark, golden.root, ["topic", "storeTimestamp", "physicalOffset"], **told).collect()
    middle = every[len(every) // 2]["storeTimestamp"].astimezone()
    found = read(
        spark,
        golden.root,
        ["physicalOffset", "store"],
        [("topic", "in", {"Orders", "Payments"}), ("storeTimestamp", ">=", middle)],
        **told,
    )
    assert found.columns == ["physicalOffset", "store"]
    assert sorted(map(tuple, found.collect())) == sorted(
        (row["physicalOffset"], str(golden.root))
        for row in every
        if row["topic"] in ("Orders", "Payments") and row["storeTimestamp"].astimezone() >= middle
    )
    assert total(tmp_path / "report").copied > 0
    queues = read(spark, [golden.root, golden.root], ["kind"], source=QUEUES, brokerConf=told["brokerConf"])
    assert queues.count() == load(spark, golden, QUEUES).count()
    with pytest.raises(SettingsError, match=r"the source has no such column; .* found queue"):
        read(spark, golden.root, ["queue"])
    with pytest.raises(SettingsError, match="there is no such source; expected one of rocketmq-commitlog"):
        read(spark, golden.root, source="rocketmq")


def test_the_page_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = open_golden("5.3.3-no-index", tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    report, code = tmp_path / "report", "\n".join(blocks)
    for said, here in (
        ("/data/rocketmq/st", str(golden.root)[:-3]),
        ("/tmp/report", str(report)),
        ("/var/lib/reput/store.proofs", str(proven(golden))),
    ):
        code = code.replace(said, here)
    names: dict[str, Any] = {"spark": spark}
    exec(compile(code, "docs/sql.md", "exec"), names)
    shown = capsys.readouterr().out
    orders = names["mine"].where("queueOffset >= 100 OR keys = 'none'")
    assert orders.count() == 0
    assert re.search(r"\| *Orders\| *\d+\| *\d+\|", shown), shown
    assert total(report).rows == 1


@pytest.mark.parametrize(
    "name", ["5.3.3-rocksdb-mixed", "5.5.0-rocksdb-separate-path", "5.5.0-rocksdb-light-only"]
)
def test_queues_in_rocksdb_are_the_same_table(spark: SparkSession, tmp_path: Path, name: str) -> None:
    store = unpack(name, tmp_path / "store")
    store.write_broker_conf()
    (dump,) = (found for place, found in store.dump().items() if place.startswith("consumequeue"))
    expected, light = set(), "light-only" in name
    for key, value in dump[rocksdbqueue.UNITS].items():
        place, unit = rocksdbqueue.parse_unit_key(key), rocksdbqueue.parse_unit(value)
        assert place is not None
        assert unit is not None
        if light and not place.topic.startswith(b"%LMQ%"):
            continue  # in files, too, which come first
        expected.add((place.topic.decode(), *place[1:], unit.position, unit.size, unit.tags, unit.timestamp))
    queues = load(spark, store, QUEUES, partBytes=3_000)
    columns = ("topic", "queueId", "queueOffset", "physicalOffset", "size", "tagsCode")
    rows = queues.selectExpr(*columns, "unix_millis(storeTimestamp)", "kind").collect()
    found = [tuple(row)[:7] for row in rows if row["topic"].startswith("%LMQ%") or not light]
    assert (set(found), len(found)) == (expected, len(expected))
    assert {row["kind"] for row in rows} == {"plain"}
    if light:
        assert any(not row["topic"].startswith("%LMQ%") for row in rows), "the others are in files"
        return
    topic, queue_id = next(iter(sorted(expected)))[:2]
    some = queues.where(f"topic = '{topic}' AND queueId = {queue_id} AND queueOffset BETWEEN 1 AND 2")
    assert some.count() == len([one for one in expected if one[:2] == (topic, queue_id) and 1 <= one[2] <= 2])


def test_an_index_in_rocksdb_is_in_the_table(spark: SparkSession, tmp_path: Path) -> None:
    store = unpack("5.5.0-rocksdb-index", tmp_path / "store")
    store.write_broker_conf()
    entries = load(spark, store, INDEX)
    keys = entries.where("file = 'rocksdbstore'")
    expected = {}
    for key, value in store.dump()[names.ROCKSDB_STORE][rocksdbindex.ENTRIES].items():
        entry = rocksdbindex.parse_key(key)
        words = None if entry is None else rocksdbindex.words_of(entry.middle)
        if entry is not None and words is not None:
            texts = tuple(None if one is None else one.decode() for one in words)
            expected[(*texts, entry.position)] = rocksdbindex.parse_value(value)
    columns = ("topic", "kind", "key", "uniqKey", "physicalOffset")
    rows = keys.selectExpr(
        *columns, "unix_millis(storeTimestamp)", "coalesce(ordinal, slot, keyHash, previous)"
    )
    found = [tuple(row) for row in rows.collect()]
    assert {row[:5]: row[5] for row in found} == expected
    assert (len(found), {row[6] for row in found}) == (len(expected), {None})
    # Files have the same messages, by hashes.
    assert entries.where("file != 'rocksdbstore' AND key IS NULL AND keyHash IS NOT NULL").count() > 0
    times = sorted(str(time) for time in expected.values())
    since = dt.datetime.fromtimestamp(int(times[500]) / 1000, UTC)
    some = read(
        spark, store.root, ["topic", "storeTimestamp"], source=INDEX,
        where=[("file", "=", "rocksdbstore"), ("storeTimestamp", ">=", since)],
        brokerConf=str(store.root / "broker.conf"),
    )  # fmt: skip
    assert some.count() == sum(str(time) >= times[500] for time in expected.values())
    nothing = [("file", "=", "rocksdbstore"), ("keyHash", "=", 5)]
    conf = str(store.root / "broker.conf")
    assert read(spark, store.root, ["topic"], source=INDEX, where=nothing, brokerConf=conf).count() == 0
