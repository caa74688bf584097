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

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """The facts of a progress.

    Attributes:
        batch_id: Spark's.
        start, end: physical offsets of the batch, half open.
        log_end: the log's end when the batch was planned, physical offset; None when the source didn't say.
        log_end_timestamp: storeTimestamp of the last message before it, ms; None when the source didn't say.
        parts, bytes: of the batch; None when they were not observed.
        messages: of those parts that were counted; None when none was, as in the batches of a backlog.
        lag_ms: how long their first message had been in the log when the batch was done; None as above.
        trigger_ms: how long each step of Spark's took, by Spark's names; ``triggerExecution`` is the total.
    """

    batch_id: int
    start: int
    end: int
    log_end: int | None = None
    log_end_timestamp: int | None = None
    parts: int | None = None
    bytes: int | None = None
    messages: int | None = None
    lag_ms: int | None = None
    trigger_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def lag_bytes(self) -> int | None:
        """What was left in the log behind the batch, gaps included."""
        return None if self.log_end is None else max(self.log_end - self.end, 0)


def observed(parts: DataFrame) -> DataFrame:
    """The source's parts, with their sums observed in Spark's progress; to be used before ``writeStream``."""
    from pyspark.sql import functions as sql

    return parts.observe(
        NAME,
        sql.count(sql.lit(1)).alias("parts"),
        sql.sum(sql.col("end") - sql.col("start")).alias("bytes"),
        sql.sum("messages").alias("messages"),
        sql.min("firstTimestamp").alias("firstTimestamp"),
    )


def facts(progress: StreamingQueryProgress | None) -> StreamFacts | None:
    """A progress in reput's terms; None without a progress, or for one without a batch's range."""
    if progress is None or not progress.sources:
        return None
    (source, *_) = progress.sources
    start, end, latest = (
        _offset(text) for text in (source.startOffset, source.endOffset, source.latestOffset)
    )
    if "offset" not in end:
        return None
    seen = progress.observedMetrics.get(NAME)
    return StreamFacts(
        batch_id=progress.batchId,
        start=start.get("offset", 0),
        end=end["offset"],
        log_end=latest.get("offset"),
        log_end_timestamp=latest.get("storeTimestamp"),
        parts=None if seen is None else seen["parts"],
        bytes=None if seen is None else seen["bytes"] or 0,
        messages=None if seen is None else seen["messages"],
        lag_ms=None if seen is None else _lag_ms(progress, seen["firstTimestamp"]),
        trigger_ms=dict(progress.durationMs),
    )


def _lag_ms(progress: StreamingQueryProgress, first: int | None) -> int | None:
    if first is None:
        return None
    begun = datetime.fromisoformat(progress.timestamp).timestamp() * 1000
    return max(int(begun) + progress.durationMs.get("triggerExecution", 0) - first, 0)


class TriggerCollector(Collector):
    """How long Spark's last trigger took, at the moment of each scrape.

    Args:
        last: the query's last progress, or None.
    """

    def __init__(self, last: Callable[[], StreamingQueryProgress | None]) -> None:
        self._last = last

    def describe(self) -> Iterable[Metric]:
        """The name, for the registry, without a value."""
        return [self._family(None)]

    def collect(self) -> Iterable[Metric]:
        """The values; none when the query's session is gone."""
        found = None
        with suppress(PySparkException, Py4JError, ConnectionError):
            found = facts(self._last())
        return [self._family(found)]

    def _family(self, found: StreamFacts | None) -> Metric:
        family = GaugeMetricFamily(
            "reput_trigger_duration_seconds", "Spark's last trigger, by what it did", labels=["step"]
        )
        for step, duration in sorted(found.trigger_ms.items()) if found else ():
            family.add_metric([step], duration / 1000)
        return family


def _offset(text: object) -> dict[str, Any]:
    """An offset as the source gave it; Spark hands it on as JSON, or as ``null`` before the first batch."""
    found = json.loads(text) if isinstance(text, str) and text else None
    return found if isinstance(found, dict) else {}
