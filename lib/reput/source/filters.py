"""What a query wants of a table, as far as Spark hands it over: ranges of numbers and times, sets of texts.

A filter that is taken is decided exactly; any other is left to Spark. Times are in ms, as the store has them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from reput.format.names import Queue
from reput.newer_python import UTC
from reput.source import stores
from reput.spark.stack import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from reput.source.options import Shared

_Made = TypeVar("_Made")

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MS = 1000


@dataclass(frozen=True, slots=True)
class Range:
    """Some int64 values."""

    low: int = _LEAST  # low, high: the least and the most of them, both inclusive
    high: int = _MOST
    among: tuple[int, ...] | None = None  # only these, in order; None for all between

    @classmethod
    def of(cls, values: Iterable[int]) -> Range:
        """These values and no others."""
        among = tuple(sorted({value for value in values if _LEAST <= value <= _MOST}))
        return cls(among[0], among[-1], among) if among else NOTHING

    def and_(self, other: Range) -> Range:
        """What both hold."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        sets = [one.among for one in (self, other) if one.among is not None]
        if not sets:
            return Range(low, high) if low <= high else NOTHING
        values = set(sets[0]).intersection(*sets[1:])
        return Range.of(value for value in values if low <= value <= high)

    def clip(self, first: int, last: int) -> tuple[int, int] | None:
        """The least and the most of the values in [first, last], both inclusive; None if there are none."""
        low, high = max(first, self.low), min(last, self.high)
        if low > high:
            return None
        if self.among is None:
            return low, high
        begin, end = bisect_left(self.among, low), bisect_left(self.among, high + 1)
        return (self.among[begin], self.among[end - 1]) if begin < end else None

    def holds(self, values: NDArray[np.integer]) -> NDArray[np.bool_]:
        """For each value whether it is one of these: bool[values]."""
        least, most = int(np.iinfo(values.dtype).min), int(np.iinfo(values.dtype).max)
        if self.among is not None:
            within = [value for value in self.among if least <= value <= most]
            return np.isin(values, np.array(within, values.dtype))
        if self.low > self.high or self.low > most or self.high < least:
            return np.zeros(len(values), np.bool_)
        return (values >= max(self.low, least)) & (values <= min(self.high, most))


NOTHING = Range(0, -1)
ALL = Range()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows that a query wants: those that fit every range and every set of texts."""

    ranges: Mapping[str, Range] = field(default_factory=dict)  # by column, of numbers and of times in ms
    texts: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by column
    present: frozenset[str] = frozenset()  # columns that must not be null
    #: the queueOffsets of each queue, by topic and queueId; None for all queues
    queues: Mapping[Queue, Range] | None = None

    def range_of(self, column: str) -> Range:
        """The values of a number or time that are wanted."""
        return self.ranges.get(column, ALL)

    def wants_text(self, column: str, text: str) -> bool:
        """Whether rows with this text in the column may be wanted."""
        return column not in self.texts or text in self.texts[column]

    def in_queues(self, queues: Mapping[Queue, tuple[int, int]] | None) -> Wanted:
        """This, and of these queues alone, the queueOffsets [start, end) of each; None for all."""
        if queues is None:
            return self
        topics = frozenset(topic for topic, _ in queues)
        topics &= self.texts.get("topic", topics)
        ids = self.range_of("queueId").and_(Range.of(queue_id for _, queue_id in queues))
        return replace(
            self,
            texts={**self.texts, "topic": topics},
            ranges={**self.ranges, "queueId": ids},
            queues={queue: Range(start, end - 1) for queue, (start, end) in queues.items()},
        )

    @property
    def columns(self) -> frozenset[str]:
        """The columns that decide."""
        return frozenset(self.ranges) | frozenset(self.texts) | self.present

    @property
    def is_nothing(self) -> bool:
        """Whether no row can fit."""
        return any(one.low > one.high for one in self.ranges.values()) or not all(self.texts.values())

    def and_(self, found: Filter, columns: Mapping[str, str]) -> Wanted | None:
        """This and one more filter; None when the filter can't be decided here.

        Args:
            columns: those that can be decided, with their types.
        """
        path: tuple[str, ...] = getattr(found, "attribute", ())
        name = path[0] if len(path) == 1 else ""
        kind = columns.get(name)
        if kind is None:
            return None
        if isinstance(found, IsNotNull):
            return replace(self, present=self.present | {name})
        if kind == "string":
            texts = _texts(found)
            if texts is None:
                return None
            return replace(self, texts={**self.texts, name: self.texts.get(name, texts) & texts})
        wanted = _range(found, is_time=kind == "timestamp")
        if wanted is None:
            return None
        return replace(self, ranges={**self.ranges, name: self.range_of(name).and_(wanted)})


class FilteredReader(DataSourceReader):
    """A batch reader that takes filters: those of the option ``where``, and Spark's if asked to.

    Args:
        shared: which stores, and the other common options. With ``pushFilters`` Spark's filters are
            taken, too, where ``spark.sql.python.filterPushdown.enabled`` is on. PySpark 4.2.0 then reads for
            other queries on the same frame what it has planned for this one
            (``PythonDataSourceV2.setReadInfo``): nobody should take filters without having been asked to.
        columns: those whose filters can be decided, with their types.
        where: what is wanted from the start.
    """

    def __init__(self, shared: Shared, columns: Mapping[str, str], where: Wanted) -> None:
        self._shared = shared
        self._decided = columns if shared.push_filters else {}
        self.wanted = where

    def of_each_store(self, make: Callable[[int], _Made]) -> Iterator[tuple[int, _Made]]:
        """What can be made of each store that may hold a wanted row, by its number.

        Raises:
            ReputError: as :func:`reput.source.stores.each` says.
        """
        numbers = tuple(
            number
            for number, settings in enumerate(self._shared.stores)
            if self.wanted.wants_text("store", settings.place)
        )
        return stores.each(numbers, make, skips=self._shared.skips)

    @property
    def pushFilters(self) -> Callable[[Sequence[Filter]], Iterator[Filter]]:  # noqa: N802
        """Takes filters before the read is planned; yields those that Spark has to see to."""
        return _Offered(self._take)

    def _take(self, filters: Sequence[Filter]) -> Iterator[Filter]:
        for found in filters:
            wanted = self.wanted.and_(found, self._decided)
            if wanted is None:
                yield found
            else:
                self.wanted = wanted


class _Offered:
    """A ``pushFilters`` that nobody has to call.

    PySpark 4.2 doesn't read from a class that overrides the method while the setting is off, which is its
    default; it looks at ``__func__`` for that (``pyspark.sql.worker.plan_data_source_read``). The sources are
    as right without Spark's filters, only slower.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", id))

    def __init__(self, take: Callable[[Sequence[Filter]], Iterator[Filter]]) -> None:
        self._take = take

    def __call__(self, filters: Sequence[Filter]) -> Iterator[Filter]:
        return self._take(filters)


def _texts(found: Filter) -> frozenset[str] | None:
    values = _values(found)
    if values is None or not all(value is None or isinstance(value, str) for value in values):
        return None
    return frozenset(value for value in values if isinstance(value, str))


def _range(found: Filter, *, is_time: bool) -> Range | None:
    """The numbers, or the times in ms, that a filter lets through; None for a filter of another sort."""
    values = _values(found)
    if values is not None:
        exact = [_integer(value, is_time) for value in values if value is not None]
        if any(value is None for value in exact):
            return None
        unit = _MS if is_time else 1
        return Range.of(value // unit for value in exact if value is not None and not value % unit)
    if not isinstance(found, LessThan | LessThanOrEqual | GreaterThan | GreaterThanOrEqual):
        return None
    if found.value is None:
        return NOTHING
    value = _integer(found.value, is_time)
    if value is None:
        return None
    value += isinstance(found, GreaterThan) - isinstance(found, LessThan)
    if isinstance(found, LessThan | LessThanOrEqual):
        return Range(high=value // _MS if is_time else value)
    return Range(low=-(-value // _MS) if is_time else value)


def _values(found: Filter) -> Sequence[object] | None:
    """What a column must be one of; nothing is equal to None."""
    if isinstance(found, In):
        return found.value
    if isinstance(found, EqualTo) or (isinstance(found, EqualNullSafe) and found.value is not None):
        return [found.value]
    return None


def milliseconds(time: datetime) -> int:
    """A time with its zone in ms since the epoch, rounded up."""
    return -((_EPOCH - time) // (_MS * _MICROSECOND))


def _integer(value: object, is_time: bool) -> int | None:
    """A number as it is, a time in microseconds."""
    if is_time:
        known = isinstance(value, datetime) and value.tzinfo is not None
        return (value - _EPOCH) // _MICROSECOND if known and isinstance(value, datetime) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
