"""``reput doctor`` with a Spark session."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import pytest

import reput
from reput.doctor import Status, spark_check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_that_works(spark: SparkSession) -> None:
    check = spark_check(lambda: spark)
    assert (check.status, "a Python worker after" in check.found) == (Status.OK, True)


def test_workers_take_the_package_and_no_module_of_it_for_pythons_own(spark: SparkSession) -> None:
    """`reput.statistics`, say, isn't `statistics`."""

    def found(_: int) -> list[str | None]:
        from importlib.util import find_spec

        return [spec.origin for name in ("reput", "statistics") if (spec := find_spec(name)) is not None]

    (origins,) = spark.sparkContext.parallelize([0], 1).map(found).collect()
    assert origins == [reput.__file__, statistics.__file__]
