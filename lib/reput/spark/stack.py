"""What differs between the releases of Spark that reput runs on: 4.0, 4.1 and 4.2.

Found by trying, not by comparing numbers. What an older Spark lacks has a stand-in here, so that nothing else
has to ask; but :data:`LIMITS_READS`, for a stream in Spark 4.0 and 4.1 takes all that is there.
"""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import TYPE_CHECKING

try:
    import pyspark.sql.datasource as _datasource
except ImportError:  # the light reput: its sources are read without Spark
    _datasource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        InputPartition,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
        SimpleDataSourceStreamReader,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

#: Spark hands conditions to a source: from 4.1 on. Before, only the option ``where`` makes any.
HANDS_CONDITIONS = hasattr(_datasource, "Filter")
try:
    import pyspark.sql.streaming.datasource as _streaming
except ImportError:
    _streaming = None  # type: ignore[assignment]
#: Spark asks a stream for so many bytes, and fixes the end of a run over what is available: from 4.2 on.
LIMITS_READS = _streaming is not None
#: Spark's own writer of stream checkpoints that doesn't ask Hadoop's FileContext; 4.1 moved it.
CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming."
    f"{'checkpointing.' if HANDS_CONDITIONS else ''}FileSystemBasedCheckpointFileManager"
)

if not TYPE_CHECKING:

    class _WithoutSpark:
        def __init__(self, *_: object) -> None:
            """Take what Spark's own class takes."""

    def _base(name: str) -> type:
        return getattr(_datasource, name, _WithoutSpark)

    DataSource, DataSourceReader = _base("DataSource"), _base("DataSourceReader")
    DataSourceStreamReader = _base("DataSourceStreamReader")
    SimpleDataSourceStreamReader = _base("SimpleDataSourceStreamReader")
    InputPartition = getattr(_datasource, "InputPartition", make_dataclass("InputPartition", ["value"]))
    Filter = getattr(_datasource, "Filter", object)

    def _condition(name: str, *fields: str) -> type:
        return getattr(_datasource, name, None) or make_dataclass(name, fields, frozen=True)

    _BOTH = ("attribute", "value")
    EqualNullSafe = _condition("EqualNullSafe", *_BOTH)
    EqualTo = _condition("EqualTo", *_BOTH)
    GreaterThan = _condition("GreaterThan", *_BOTH)
    GreaterThanOrEqual = _condition("GreaterThanOrEqual", *_BOTH)
    In = _condition("In", *_BOTH)
    IsNotNull = _condition("IsNotNull", "attribute")
    LessThan = _condition("LessThan", *_BOTH)
    LessThanOrEqual = _condition("LessThanOrEqual", *_BOTH)

    ReadLimit = getattr(_streaming, "ReadLimit", object)
    ReadAllAvailable = getattr(_streaming, "ReadAllAvailable", type("ReadAllAvailable", (), {}))
    ReadMaxBytes = getattr(_streaming, "ReadMaxBytes", make_dataclass("ReadMaxBytes", ["max_bytes"]))
    ReadMaxRows = getattr(_streaming, "ReadMaxRows", make_dataclass("ReadMaxRows", ["max_rows"]))
    SupportsTriggerAvailableNow = getattr(
        _streaming, "SupportsTriggerAvailableNow", type("SupportsTriggerAvailableNow", (), {})
    )

__all__ = [
    "CHECKPOINT_MANAGER",
    "HANDS_CONDITIONS",
    "LIMITS_READS",
    "DataSource",
    "DataSourceReader",
    "DataSourceStreamReader",
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "InputPartition",
    "IsNotNull",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SimpleDataSourceStreamReader",
    "SupportsTriggerAvailableNow",
]
