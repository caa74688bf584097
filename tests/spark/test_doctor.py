"""``reput doctor`` with a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reput.doctor import Status, spark_check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_that_works(spark: SparkSession) -> None:
    check = spark_check(lambda: spark)
    assert (check.status, "a Python worker after" in check.found) == (Status.OK, True)
