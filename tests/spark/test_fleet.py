"""Several stores as one table, a master beside its slave, dead letters: the fleet that comes with reput."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from explore import Workspace, dead_letters, fleet, replicas
from explore.fleet import Fleet, Member, open_fleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return open_fleet(Workspace(tmp_path_factory.mktemp("workspace")))


def test_the_logs_have_what_the_queues_have(spark: SparkSession, shop: Fleet) -> None:
    by = ["broker", "topic", "queue"]
    queues = fleet.queues(shop.messages(spark))
    offsets = fleet.offsets(Fleet(shop.masters))
    both = queues.merge(offsets, on=by, how="outer", suffixes=("", "_files"))
    assert len(both) == len(queues) == len(offsets) == 25
    assert (both["messages"] == both["messages_files"]).all()
    assert (both["next_offset"] == both["max_offset"]).all()
    assert (both["last_stored"] == both["last_stored_files"]).all()
    fullest = queues.loc[queues["times"].idxmax()]
    assert tuple(fullest[by]) == ("broker-b", "Orders", 3)
    assert fullest["times"] == pytest.approx(616 / (1500 / 8))


def test_a_slave_that_is_behind(spark: SparkSession, shop: Fleet) -> None:
    master, slave = shop.pair()
    found = replicas.beside(spark, master, slave)
    assert (found.same, found.differing, found.parted_at, found.ahead) == (852, 0, None, 0)
    assert (found.start, found.end, found.master_end) == (0, 259_898, 317_300)
    of = shop["broker-a"].store.open()
    assert found.missing["messages"].sum() == sum(1 for _ in of.messages(start=found.end)) == 190
    assert found.missing["bytes"].sum() == 57_221, "without the blank at the segment's end"
    assert (found.last_common, found.first_missing) == (251_840, 259_898)
    turned = replicas.beside(spark, slave, master)
    assert (turned.same, turned.ahead, len(turned.missing)) == (852, 190, 0)
    assert turned.first_missing is None


def test_logs_that_part_ways(spark: SparkSession, shop: Fleet) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    columns = ("physicalOffset", *replicas.COMPARED)
    master, slave = (fleet.log(spark, one, columns).drop("broker") for one in shop.pair())
    at = 200_000
    first = master.where(f"physicalOffset >= {at}").agg(F.min("physicalOffset")).collect()[0][0]
    # The body's CRC alone differs, and one message isn't there at all; null equals null.
    other = slave.withColumn(
        "bodyCRC", F.when(F.col("physicalOffset") == first, 1).otherwise(F.col("bodyCRC"))
    )
    other = other.where("physicalOffset != 251840")
    found = replicas.compared(master, other, "m", "s")
    assert (found.same, found.differing, found.parted_at) == (850, 2, first)
    assert found.last_common is not None
    assert found.last_common < 251_840
    stranger = replicas.beside(spark, *shop.masters)
    assert stranger.parted_at == 0
    assert stranger.same == 0
    nothing = replicas.compared(master, slave.limit(0), "m", "s")
    assert (nothing.start, nothing.end, nothing.same) == (0, 0, 0)
    assert nothing.text == "The logs of m and s have no range in common"


def test_dead_letters(spark: SparkSession, shop: Fleet) -> None:
    letters = dead_letters.dead_letters(spark, shop)
    totals = dead_letters.totals(letters)
    assert totals[["group", "origin_topic", "broker", "messages"]].to_numpy().tolist() == [
        ["billing", "Payments", "broker-a", 5],
        ["billing", "Payments", "broker-b", 6],
        ["mailer", "Shipments", "broker-a", 3],
        ["mailer", "Shipments", "broker-b", 5],
    ]
    # After two more deliveries, 10 s and 30 s later; some consumers began late.
    assert totals["oldest"].between(pd.Timedelta("40s"), pd.Timedelta("60s")).all()
    assert set(totals["most_tries"]) == {3}
    newest = dead_letters.newest(letters, 10)
    assert len(newest) == 10
    assert newest["came"].is_monotonic_decreasing
    assert newest["came"].iloc[0] == totals["last"].max()
    assert (newest["came"] - newest["born"]).equals(newest["age"])
    assert dead_letters.originals(shop, newest)["origin_broker"].tolist() == newest["broker"].tolist()
    keys = dead_letters.by_key(letters)
    assert keys[["group", "key", "messages"]].to_numpy().tolist() == [
        ["billing", "customer-0077", 7],
        ["mailer", "customer-0011", 5],
        ["billing", "customer-0042", 4],
    ]


def test_a_fleet_without_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    store = Workspace(tmp_path).open()
    healthy = Fleet((Member("shop", store),))
    letters = dead_letters.dead_letters(spark, healthy)
    for frame in (dead_letters.totals(letters), dead_letters.newest(letters), dead_letters.by_key(letters)):
        assert not len(frame)
    assert not len(dead_letters.originals(healthy, dead_letters.newest(letters)))
