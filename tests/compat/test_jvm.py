"""A JVM beside Spark's in one process."""

from __future__ import annotations

from itertools import count

from pyspark.sql import SparkSession

from tests.compat.jvm import Jvm


def test_an_exception_is_not_taken_for_the_one_with_its_number_in_sparks_jvm(spark: SparkSession) -> None:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    wrong = [gateway.jvm.java.lang.IllegalArgumentException() for _ in range(200)]
    first = int(wrong[0]._target_id.removeprefix("o"))
    with Jvm("5.5.0") as jvm:
        numbers = jvm.java.java.util.ArrayList()
        numbers.add(1)
        for _ in count():  # each iteration of the list takes two numbers: its iterator's and the exception's
            assert list(numbers) == [1]
            if int(numbers.iterator()._target_id.removeprefix("o")) > first + 20:
                break
