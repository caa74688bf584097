"""The three sources in Spark SQL: by name, with conditions, with and without Spark's own filters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reput.errors import SettingsError
from reput.source import INDEX, NAME, QUEUES, read, register
from reput.source.read_statistics import total
from tests.golden.store import GoldenStore, unpack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
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
    store = unpack("5.3.3-no-index", tmp_path / "store").root
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    report = tmp_path / "report"
    code = "\n".join(blocks).replace("/data/rocketmq/st", str(store)[:-3]).replace("/tmp/report", str(report))
    names: dict[str, Any] = {"spark": spark}
    exec(compile(code, "docs/sql.md", "exec"), names)
    shown = capsys.readouterr().out
    orders = names["mine"].where("queueOffset >= 100 OR keys = 'none'")
    assert orders.count() == 0
    assert re.search(r"\| *Orders\| *\d+\| *\d+\|", shown), shown
    assert total(report).rows == 1
