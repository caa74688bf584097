"""A tail's progress as Spark reports it.

Spark knows the rows of a micro-batch, which are parts of the log, and the offsets of its source. More facts
are added to its progress as observed metrics of the stream: a few sums over these rows, which Spark computes
while the batch is read, under the name :data:`NAME`. They are right if the batch is read once; reading the
batch's data frame again adds to them.

A listener in Python isn't used. It is called over a socket for each batch: on two cores that slowed a batch
from 75 ms to 107 ms, and the calls fell behind. Reading ``query.lastProgress`` now and then doesn't slow
batches down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryProgress

#: The name of the observed metrics, in the progress's ``observedMetrics``.
NAME = "reput"


def observed(parts: DataFrame) -> DataFrame:
    """The source's parts, with their sums observed in Spark's progress; to be used before ``writeStream``."""
    from pyspark.sql import functions as sql

    return parts.observe(
        NAME,
        sql.count(sql.lit(1)).alias("parts"),
        sql.sum(sql.col("end") - sql.col("start")).alias("bytes"),
        sql.sum("messages").alias("messages"),
        sql.min("firstTimestamp").alias("firstTimestamp"),
        sql.max("logEnd").alias("logEnd"),
        sql.max("logTimestamp").alias("logTimestamp"),
    )


class TriggerCollector(Collector):
    """How long Spark's last trigger took, at the moment of each scrape.

    Args:
        last: the query's last progress, or None.
    """

    def __init__(self, last: Callable[[], StreamingQueryProgress | None]) -> None:
        self._last = last

    def describe(self) -> Iterable[Metric]:
        """The name, for the registry, without a value."""
        return [self._family({})]

    def collect(self) -> Iterable[Metric]:
        """The values; none when the query's session is gone."""
        steps: Mapping[str, int] = {}
        with suppress(PySparkException, Py4JError, ConnectionError):
            progress = self._last()
            # Before the first batch there is no end, or the text "null".
            if (
                progress is not None
                and progress.sources
                and progress.sources[0].endOffset not in (None, "null")
            ):
                steps = progress.durationMs
        return [self._family(steps)]

    def _family(self, steps: Mapping[str, int]) -> Metric:
        family = GaugeMetricFamily(
            "reput_trigger_duration_seconds", "Spark's last trigger, by what it did", labels=["step"]
        )
        for step, duration in sorted(steps.items()):
            family.add_metric([step], duration / 1000)
        return family
