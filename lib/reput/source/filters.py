"""What a query wants of a table, as far as Spark hands it over: ranges of numbers and times, sets of texts.

A filter that is taken is decided exactly; any other is left to Spark. Times are in ms, as the store has them.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from reput.errors import ReputError, SettingsError
from reput.format.names import Queue
from reput.newer_python import UTC, time_of_iso
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


# The option ``where``: filters as text, so that they reach the source whatever Spark does with its own. It is
# a JSON list of conditions that must all hold: ``[["topic", "=", "orders"], ["queueId", "in", [0, 1]]]``.

#: A column, how it is compared, and with what; nothing for ``is not null``.
Condition = Sequence[Any]

_COMPARED: Mapping[str, Callable[[tuple[str, ...], Any], Filter]] = {
    "=": EqualTo,
    "==": EqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "in": lambda path, values: In(path, tuple(values)),
}
_IS_NOT_NULL = "is not null"
_FORM = '[["column", "=", value], …], compared by ' + ", ".join((*_COMPARED, _IS_NOT_NULL))


def text_of(conditions: Iterable[Condition]) -> str:
    """The option's text.

    Raises:
        SettingsError: a value is neither text, number nor a time with its zone, nor some of them.
    """
    return json.dumps([[*condition[:2], *map(_plain, condition[2:])] for condition in conditions])


def parse(text: str | None, columns: Mapping[str, str]) -> Wanted:
    """What the option asks for.

    Args:
        text: the option; None for all.
        columns: those that can be asked, with their types.

    Raises:
        SettingsError: it can't be read, or asks for something else.
    """
    wanted = Wanted()
    if text is None:
        return wanted
    try:
        conditions = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError("where can't be read", expected=_FORM, found=repr(text)) from error
    if not isinstance(conditions, list):
        raise SettingsError("where is no list", expected=_FORM, found=repr(text))
    for condition in conditions:
        narrower = wanted.and_(_filter(condition, columns), columns)
        if narrower is None:
            raise SettingsError(
                "where compares with something of another type",
                expected="text, whole numbers, or times such as 2026-01-31T08:00:00Z",
                found=json.dumps(condition),
            )
        wanted = narrower
    return wanted


def _filter(condition: Any, columns: Mapping[str, str]) -> Filter:
    is_list = isinstance(condition, list) and len(condition) in (2, 3) and isinstance(condition[1], str)
    how = condition[1].strip().lower() if is_list else ""
    if len(condition if is_list else ()) != (2 if how == _IS_NOT_NULL else 3) or (
        how != _IS_NOT_NULL and how not in _COMPARED
    ):
        raise SettingsError("where has no such condition", expected=_FORM, found=json.dumps(condition))
    name = condition[0]
    if not isinstance(name, str) or name not in columns:
        raise SettingsError(
            "where can't ask for this column",
            expected=f"one of {', '.join(columns)}" if columns else "no where, with this content",
            found=name,
            next_step="Ask Spark for the others, with .where()",
        )
    if how == _IS_NOT_NULL:
        return IsNotNull((name,))
    value = condition[2]
    if (how == "in") != isinstance(value, list):
        raise SettingsError("where has no such condition", expected=_FORM, found=json.dumps(condition))
    if columns[name] == "timestamp":
        value = [_time(one) for one in value] if isinstance(value, list) else _time(value)
    return _COMPARED[how]((name,), value)


def _time(value: object, what: str = "where") -> datetime:
    try:
        time = time_of_iso(value) if isinstance(value, str) else None
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise SettingsError(
            f"{what} has a time that can't be told",
            expected="a date and time with its zone, e.g. 2026-01-31T08:00:00Z",
            found=value,
        )
    return time


def moment(text: str, what: str) -> int:
    """A time as a condition has it, in ms, rounded up.

    Args:
        what: is called so in the error.

    Raises:
        SettingsError: it can't be told.
    """
    return milliseconds(_time(text, what))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str | int):
        return value
    if isinstance(value, Iterable):
        return [_plain(one) for one in value]
    raise SettingsError(
        "where compares with something of another type",
        expected="text, a whole number, a time, or some of one sort",
        found=repr(value),
    )


_LOG = logging.getLogger(__name__)

_Store = TypeVar("_Store")
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
            ReputError: as :func:`each` says.
        """
        numbers = tuple(
            number
            for number, settings in enumerate(self._shared.stores)
            if self.wanted.wants_text("store", settings.place)
        )
        return each(numbers, make, skips=self._shared.skips)

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


def each(
    stores: tuple[_Store, ...], work: Callable[[_Store], _Made], *, skips: bool
) -> Iterator[tuple[_Store, _Made]]:
    """What ``work`` makes of each store; one that it refuses is left out, with a warning, or ends it all.

    Raises:
        ReputError: that of the first refusal, without ``skips`` or when no store is left.
    """
    first: ReputError | None = None
    is_any = False
    for store in stores:
        try:
            made = work(store)
        except ReputError as error:
            if not skips:
                raise
            first = first or error
            _LOG.warning("a store is left out: %s", error)
            continue
        is_any = True
        yield store, made
    if first is not None and not is_any:
        raise first
