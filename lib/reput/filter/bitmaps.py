"""The bit maps of a topic's messages: the bits of every consumer whose condition is True, in one map.

Source: ``CommitLogDispatcherCalcBitMap.dispatch`` (rocketmq-all-4.9.7 and 5.3.3, which agree).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reput.filter.bloom import BloomFilter
from reput.filter.columns import Column, columns
from reput.filter.consumers import ConsumerFilter
from reput.filter.expression import NULL, And, Cast, Equal, EvaluationError, Node, Not, Or, Property
from reput.filter.javavalue import text_of

# The tree is cut where AND, OR and NOT end. What hangs below is evaluated by the slow evaluator
# (:mod:`reput.filter.expression`), once for each distinct value of the properties that it looks at; AND, OR
# and NOT go by tables of four outcomes: False, True, null, and an evaluation that throws.

FALSE, TRUE, UNKNOWN, ERROR = range(4)

_MOST_REMEMBERED = 1 << 16

# [left, right]: what stands left of an operator is evaluated first, and may throw or decide alone.
_AND: Final = np.array(
    [
        [FALSE, FALSE, FALSE, FALSE],
        [FALSE, TRUE, UNKNOWN, ERROR],
        [FALSE, UNKNOWN, UNKNOWN, ERROR],
        [ERROR, ERROR, ERROR, ERROR],
    ],
    np.uint8,
)
_OR: Final = np.array(
    [
        [FALSE, TRUE, UNKNOWN, ERROR],
        [TRUE, TRUE, TRUE, TRUE],
        [UNKNOWN, TRUE, UNKNOWN, ERROR],
        [ERROR, ERROR, ERROR, ERROR],
    ],
    np.uint8,
)
_NOT: Final = np.array([TRUE, FALSE, UNKNOWN, ERROR], np.uint8)


class BlockEvaluator:
    """A condition, ready for blocks of messages.

    Attributes:
        condition: what is evaluated.
        names: the properties whose values it needs, sorted.
        present: the properties of which it only matters whether a message has them, sorted.
    """

    def __init__(self, condition: Node) -> None:
        self.condition = condition
        self._root = _part(condition)
        names, present = self._root.needs()
        self.names = tuple(sorted(names))
        self.present = tuple(sorted(present - names))

    def __reduce__(self) -> tuple[type[BlockEvaluator], tuple[Node]]:
        return BlockEvaluator, (self.condition,)

    def outcomes(self, columns: Mapping[str, Column], count: int) -> NDArray[np.uint8]:
        """uint8[count]: :data:`FALSE`, :data:`TRUE`, :data:`UNKNOWN` (null) or :data:`ERROR` of each message.

        Args:
            columns: one for each of :attr:`names` and :attr:`present`.
            count: how many messages.
        """
        return self._root.outcomes(columns, count)

    def matches(self, columns: Mapping[str, Column], count: int) -> NDArray[np.bool_]:
        """bool[count]: where the condition is True; arguments as for :meth:`outcomes`."""
        matches: NDArray[np.bool_] = self.outcomes(columns, count) == TRUE
        return matches


def outcome(condition: Node, properties: Mapping[str, str]) -> int:
    """One of the four outcomes for one message, whose texts are of UTF-16 code units."""
    try:
        value = condition.value(properties)
    except EvaluationError:
        return ERROR
    return UNKNOWN if value is None else TRUE if value else FALSE


class _Fold:
    """AND or OR."""

    def __init__(self, parts: list[_Part], table: NDArray[np.uint8]) -> None:
        self._parts = parts
        self._table = table

    def needs(self) -> tuple[set[str], set[str]]:
        needed = [part.needs() for part in self._parts]
        return set().union(*(names for names, _ in needed)), set().union(*(present for _, present in needed))

    def outcomes(self, columns: Mapping[str, Column], count: int) -> NDArray[np.uint8]:
        result = self._parts[0].outcomes(columns, count)
        for part in self._parts[1:]:
            result = self._table[result, part.outcomes(columns, count)]
        return result


class _Turned:
    """NOT."""

    def __init__(self, part: _Part) -> None:
        self._part = part

    def needs(self) -> tuple[set[str], set[str]]:
        return self._part.needs()

    def outcomes(self, columns: Mapping[str, Column], count: int) -> NDArray[np.uint8]:
        return _NOT[self._part.outcomes(columns, count)]


class _Leaf:
    """Anything else."""

    def __init__(self, condition: Node) -> None:
        self._condition = condition
        self._names = tuple(sorted(condition.names()))
        self._presence = _is_presence(condition)
        self._remembered: dict[tuple[bytes | None, ...], int] = {}

    def needs(self) -> tuple[set[str], set[str]]:
        names = set(self._names)
        return (set(), names) if self._presence else (names, set())

    def outcomes(self, columns: Mapping[str, Column], count: int) -> NDArray[np.uint8]:
        wanted = [columns[name] for name in self._names]
        if not wanted:
            return np.full(count, self._outcome(()), np.uint8)
        if self._presence:
            absent, present = self._outcome((None,)), self._outcome((b"-",))
            return np.where(wanted[0].codes < 0, absent, present).astype(np.uint8)
        if len(wanted) == 1:
            column = wanted[0]
            # Code -1 takes the last.
            table = [self._outcome((value,)) for value in column.values] + [self._outcome((None,))]
            return np.array(table, np.uint8)[column.codes]
        keys = np.zeros(count, np.int64)
        for column in wanted:
            # Kept dense, so that no product of sizes overflows.
            _, keys = np.unique(keys * (len(column.values) + 1) + column.codes + 1, return_inverse=True)
        _, firsts, keys = np.unique(keys, return_index=True, return_inverse=True)
        table = [
            self._outcome(
                tuple(
                    None if (code := int(column.codes[first])) < 0 else column.values[code]
                    for column in wanted
                )
            )
            for first in firsts.tolist()
        ]
        return np.array(table, np.uint8)[keys]

    def _outcome(self, values: tuple[bytes | None, ...]) -> int:
        found = self._remembered.get(values)
        if found is None:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            named = zip(self._names, values, strict=True)
            properties = {name: text_of(value) for name, value in named if value is not None}
            found = self._remembered[values] = outcome(self._condition, properties)
        return found


_Part = _Fold | _Turned | _Leaf


def _part(condition: Node) -> _Part:
    if isinstance(condition, And | Or):
        return _Fold(list(map(_part, condition.operands)), _AND if isinstance(condition, And) else _OR)
    if isinstance(condition, Not):
        return _Turned(_part(condition.operand))
    return _Leaf(condition)


def _is_presence(condition: Node) -> bool:
    """Whether the only property's value doesn't matter: IS NULL, or a property as a condition."""
    if isinstance(condition, Cast):
        return isinstance(condition.operand, Property)
    return isinstance(condition, Equal) and isinstance(condition.left, Property) and condition.right == NULL


@dataclass(frozen=True, slots=True)
class BitMaps:
    """Bit maps of N messages."""

    bits: NDArray[np.uint8]  # uint8[N, size]
    stored: NDArray[np.bool_]  # bool[N]: the message has one. Without, its unit ends after its 20 fixed bytes


class TopicFilters:
    """The filters of one topic, ready for blocks of messages; it can be pickled.

    Attributes:
        names: the properties whose values are needed, sorted.
        present: those of which it only matters whether a message has them, sorted.
    """

    def __init__(self, filters: Sequence[ConsumerFilter], bloom: BloomFilter) -> None:
        if not filters:
            raise ValueError("a topic without filters has no bit maps")
        self._filters = tuple(filters)
        self._bloom = bloom
        self._evaluators = [
            (BlockEvaluator(each.condition), bloom.mask(each.positions))
            for each in filters
            if each.condition is not None
        ]
        names = {name for evaluator, _ in self._evaluators for name in evaluator.names}
        present = {name for evaluator, _ in self._evaluators for name in evaluator.present}
        self.names = tuple(sorted(names))
        self.present = tuple(sorted(present - names))

    def __reduce__(self) -> tuple[type[TopicFilters], tuple[tuple[ConsumerFilter, ...], BloomFilter]]:
        return TopicFilters, (self._filters, self._bloom)

    def of_records(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> BitMaps:
        """Bit maps of N records; arguments as for :func:`reput.filter.columns.columns`."""
        found = columns(data, starts, lengths, self.names, present=self.present)
        return self.of_columns(found, len(starts))

    def of_columns(self, found: Mapping[str, Column], count: int) -> BitMaps:
        """Bit maps of ``count`` messages from a column for each of :attr:`names` and :attr:`present`."""
        bits = np.zeros((count, self._bloom.size), np.uint8)
        stored = np.ones(count, np.bool_)
        for evaluator, mask in self._evaluators:
            matches = evaluator.matches(found, count)
            if mask is None:
                # The broker fails to set a bit, and gives up the whole bit map of that message.
                stored &= ~matches
            else:
                bits[matches] |= mask
        bits[~stored] = 0
        return BitMaps(bits, stored)
