"""Consumers' conditions, and bit maps of messages: the bits of every consumer whose condition is True.

Source: ``CommitLogDispatcherCalcBitMap.dispatch`` (rocketmq-all-4.9.7 and 5.3.3, which agree).

The values of properties are columns of codes. By ``MessageDecoder.string2messageProperties`` the first 0x01
of an entry ends its name, entries without a name or a value don't count, the last of a repeated name does.
The slow twin goes by :func:`reput.format.properties.parse`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mmh3
import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.build.expression import NULL, And, Cast, Equal, EvaluationError, Node, Not, Or, Property, text_of
from reput.caches import CACHED
from reput.config.kept import of_either
from reput.config.settings import FilterSettings
from reput.errors import SettingsError
from reput.format.commitlog import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from reput.newer_python import Self

# ``ConsumerFilterManager.encode`` writes it with fastjson every ten seconds and at a clean stop:
#
# ``{"filterDataByTopic": {TOPIC: {"topic": TOPIC, "groupFilterData": {GROUP: {…}, …}}, …}}``
#
# with ``expression``, ``expressionType``, ``bornTime``, ``deadTime``, ``clientVersion`` and
# ``bloomFilterData`` (``bitNum``, ``bitPos``) of each group. A consumer that is gone stays in it for a day
# (``filterDataCleanTimeSpan``), and counts as long as it is there: a broker that starts takes all of them for
# gone, and evaluates all of them.
#
# Source: ``ConsumerFilterManager``, ``ConfigManager.load``, ``CommitLogDispatcherCalcBitMap.dispatch``,
# ``BloomFilter``, ``BitsArray`` of the module filter, ``BrokerConfig`` (rocketmq-all-4.9.7 and 5.3.3, which
# agree).

_INT_MAX = 2**31 - 1
_LONG_BITS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """How many bits a bit map has, and how many of them a consumer sets."""

    bits: int  # ``m``, a multiple of 8; a broker also sets ``bitMapLengthConsumeQueueExt`` to it
    hashes: int  # ``k``

    @classmethod
    def create(cls, settings: FilterSettings) -> Self:
        """``BloomFilter.createByFn``; SettingsError for values with which a broker doesn't start."""
        error_rate, consumers = settings.error_rate, settings.consumers
        if not 1 <= error_rate < 100:
            raise SettingsError(
                "maxErrorRateOfBloomFilter is out of range: a broker doesn't start with it",
                expected="1 to 99",
                found=error_rate,
            )
        if consumers < 1:
            raise SettingsError(
                "expectConsumerNumUseFilter is out of range: a broker doesn't start with it",
                expected="1 or more",
                found=consumers,
            )
        rate = error_rate / 100.0
        hashes = math.ceil(_log(0.5, rate))
        bits = math.ceil(consumers * _log(2, 1 / rate) * _log(2, math.e))
        bits = 8 * math.ceil(bits / 8.0)
        if bits > _INT_MAX:
            raise SettingsError(
                "expectConsumerNumUseFilter asks for a bit map of more than 2147483647 bits", found=consumers
            )
        return cls(bits, hashes)

    @property
    def size(self) -> int:
        """Bytes of a bit map."""
        return self.bits // 8

    def positions(self, group: str, topic: str) -> tuple[int, ...]:
        """The bits that a new consumer of this group gets for this topic: ``calcBitPositions``.

        A broker keeps them in ``consumerFilter.json`` and goes by what stands there.
        """
        # Pairs of surrogates are whole after the way through UTF-16; half of one becomes a question mark.
        text = f"{group}#{topic}".encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
        first = mmh3.hash64(text.encode("utf-8", "replace"), 0, True, signed=False)[0] & _LONG_BITS
        low, high = first & 0xFFFFFFFF, first >> 32
        positions = []
        for i in range(1, self.hashes + 1):
            combined = (low + i * high) & 0xFFFFFFFF
            # As an int it would be negative, and is turned over.
            positions.append((combined ^ 0xFFFFFFFF if combined >> 31 else combined) % self.bits)
        return tuple(positions)

    def mask(self, positions: tuple[int, ...]) -> NDArray[np.uint8] | None:
        """uint8[size] with these bits set, the lowest of a byte first (``BitsArray.setBit``).

        None when a position is outside the bit map: a broker fails to set it.
        """
        if any(not 0 <= position < self.bits for position in positions):
            return None
        mask = np.zeros(self.size, np.uint8)
        for position in positions:
            mask[position // 8] |= 1 << position % 8
        return mask


def _log(base: float, value: float) -> float:
    return math.log(value) / math.log(base)


_SQL92 = "SQL92"  # ExpressionType.SQL92, the one type that FilterFactory knows
_INT_MIN = -(2**31)


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """A consumer group's filter on a topic."""

    group: str  # the key that it has in the file
    text: str | None  # ``expression``; None if missing
    #: the expression; None when a broker can't compile it. It then logs an error of each message, and
    #: the consumer sets no bit
    condition: Node | None
    problem: str | None  # why there is no condition
    positions: tuple[int, ...]  # ``bitPos``: the bits that it sets


@dataclass(frozen=True, slots=True)
class ConsumerFilters:
    """The filters that a broker has when it has just started."""

    #: those of each topic, in the order of the file; a topic is here only with at least one
    by_topic: Mapping[str, tuple[ConsumerFilter, ...]]
    ignored: str | None = None  # why all that is in the file counts for nothing; None when it counts


NO_FILTERS = ConsumerFilters({})


def load(consumer_filter_json: Path, bloom: BloomFilter, *, parts: bool) -> ConsumerFilters:
    """The filters in ``config/consumerFilter.json``.

    When it is missing, empty or broken, the ``.bak`` beside it is read instead, as ``ConfigManager.load``
    does. No filters without both. When the broker's Bloom filter doesn't fit what the file says of one
    consumer, nothing in the file counts: the settings have changed since it was written.

    An expression that is nested so deeply that what a broker does with it can't be told raises SettingsError.
    """
    found = of_either(consumer_filter_json, "consumers' filters", _entries_of)
    return NO_FILTERS if found is None else _filters(*found, bloom, parts)


def _entries_of(data: bytes, path: Path) -> tuple[list[_Entry], Path]:
    try:
        # fastjson takes control characters inside strings, and Java replaces what isn't UTF-8.
        document = json.loads(data.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError) as error:
        raise _broken(path, "JSON", str(error)) from error
    return list(_entries(document, path)), path


def _filters(entries: list[_Entry], path: Path, bloom: BloomFilter, parts: bool) -> ConsumerFilters:
    for entry in entries:
        found = None if entry.positions is None else len(entry.positions)
        if (entry.bits, found) != (bloom.bits, bloom.hashes):
            return ConsumerFilters(
                {},
                f"the Bloom filter data {entry.where} have {entry.bits} bits and {found or 'no'} positions, "
                f"and the settings ask for {bloom.bits} and {bloom.hashes}",
            )
    by_topic: dict[str, list[ConsumerFilter]] = {}
    for entry in entries:
        condition, problem = _compiled(entry, parts, path)
        by_topic.setdefault(entry.topic, []).append(
            ConsumerFilter(entry.group, entry.text, condition, problem, entry.positions or ())
        )
    return ConsumerFilters({topic: tuple(filters) for topic, filters in by_topic.items()})


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the file says of one consumer; ``bits`` is 0 and ``positions`` None where it doesn't say."""

    topic: str
    group: str
    text: str | None
    kind: str | None
    bits: int
    positions: tuple[int, ...] | None

    @property
    def where(self) -> str:
        return f"of group {self.group}, topic {self.topic}"


def _entries(document: Any, path: Path) -> Iterator[_Entry]:
    table = _object(document, path, "an object").get("filterDataByTopic", {})
    for topic, value in _object(table, path, "filterDataByTopic to be an object").items():
        of_topic = _object(value, path, f"the filters of topic {topic} to be an object")
        groups = of_topic.get("groupFilterData", {})
        for group, entry in _object(
            groups, path, f"groupFilterData of topic {topic} to be an object"
        ).items():
            where = f"of group {group}, topic {topic}"
            fields = _object(entry, path, f"the filter {where} to be an object")
            bloom_data = fields.get("bloomFilterData")
            if bloom_data is None:
                bloom_data = {}
            bloom_data = _object(bloom_data, path, f"bloomFilterData {where} to be an object")
            bits, positions = bloom_data.get("bitNum", 0), bloom_data.get("bitPos")
            if not _is_int(bits):
                raise _broken(path, f"bitNum {where} to be an integer", json.dumps(bits))
            if positions is not None and not (isinstance(positions, list) and all(map(_is_int, positions))):
                raise _broken(path, f"bitPos {where} to be a list of integers", json.dumps(positions))
            yield _Entry(
                topic,
                group,
                _text(fields.get("expression"), path, "expression", where),
                _text(fields.get("expressionType"), path, "expressionType", where),
                bits,
                None if positions is None else tuple(positions),
            )


def _compiled(entry: _Entry, parts: bool, path: Path) -> tuple[Node | None, str | None]:
    if entry.kind != _SQL92:
        return None, f"there is no filter of type {entry.kind}"
    if entry.text is None:
        return None, "there is no expression"
    # Not before: the parser takes longer to be loaded than most stores have filters.
    from reput.build.grammar import NotAnExpressionError, TooDeepError, parse

    try:
        return parse(entry.text, parts=parts), None
    except NotAnExpressionError as error:
        return None, str(error)
    except TooDeepError as error:
        raise SettingsError(
            "an expression is nested too deeply: whether a broker can evaluate it depends on its stack",
            path=path,
            expected=f"the expression {entry.where} to have fewer levels",
            found=error,
            next_step="Have that consumer use a simpler expression, or take it out of the file.",
        ) from error


def _object(value: Any, path: Path, expected: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _broken(path, expected, json.dumps(value))
    return value


def _text(value: Any, path: Path, name: str, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _broken(path, f"{name} {where} to be a string", json.dumps(value))
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and _INT_MIN <= value <= _INT_MAX


def _broken(path: Path, expected: str, found: str) -> SettingsError:
    return SettingsError(
        "this file of consumers' filters is broken",
        path=path,
        expected=expected,
        found=found[:80],
        next_step="Repair it, or move it and its .bak away to go on without filters.",
    )


# mypy: disable-error-code="untyped-decorator, no-untyped-call"

_OFFSET = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_SHIFT = np.uint64(29)


@dataclass(frozen=True, slots=True)
class Column:
    """One property of N messages."""

    codes: NDArray[np.int32]  # int32[N]: index into ``values``; -1 where the message lacks the property
    values: tuple[bytes, ...]  # distinct values, as bytes of the record


def columns(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    names: Sequence[str],
    *,
    present: Sequence[str] = (),
) -> dict[str, Column]:
    """Columns of the properties of N records in ``data``, by name.

    ``starts`` and ``lengths``, int64[N], are those of each record's properties, in bytes. Of the properties
    ``present`` only matters whether a message has them: all their values count as one, which is some
    message's.
    """
    wanted = [*names, *present]
    texts = [name.encode("ascii") for name in wanted]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    blob = np.frombuffer(b"".join(texts), np.uint8)
    value_starts, value_lengths = _find_values(data, starts, lengths, blob, ends)
    found = {}
    for at, name in enumerate(wanted):
        if at < len(names):
            codes, firsts = _encode(data, value_starts[at], value_lengths[at])
        else:
            codes = np.where(value_starts[at] < 0, -1, 0).astype(np.int32)
            firsts = np.flatnonzero(codes == 0)[:1]
        places = zip(value_starts[at][firsts].tolist(), value_lengths[at][firsts].tolist(), strict=True)
        found[name] = Column(codes, tuple(data[start : start + size].tobytes() for start, size in places))
    return found


@njit(cache=CACHED, nogil=True)
def _find_values(data, starts, lengths, names, ends):  # type: ignore[no-untyped-def]
    """Start (-1 for none) and length of each value: int64[P, N] twice; ``names`` one after the other."""
    count, wanted = len(starts), len(ends)
    value_starts = np.full((wanted, count), -1, np.int64)
    value_lengths = np.zeros((wanted, count), np.int64)
    for record in range(count):
        at = starts[record]
        limit = at + lengths[record]
        while at < limit:
            name_end = at
            while (
                name_end < limit
                and data[name_end] != NAME_VALUE_SEPARATOR
                and data[name_end] != PROPERTY_SEPARATOR
            ):
                name_end += 1
            end = name_end
            while end < limit and data[end] != PROPERTY_SEPARATOR:
                end += 1
            # With a name, a separator and a value.
            if name_end > at and name_end + 1 < end:
                size = name_end - at
                name = np.int64(0)
                for which in range(wanted):
                    if ends[which] - name == size:
                        same = True
                        for i in range(size):
                            if data[at + i] != names[name + i]:
                                same = False
                                break
                        if same:
                            value_starts[which, record] = name_end + 1
                            value_lengths[which, record] = end - name_end - 1
                    name = ends[which]
            at = end + 1
    return value_starts, value_lengths


@njit(cache=CACHED, nogil=True)
def _encode(data, starts, lengths):  # type: ignore[no-untyped-def]
    """int32[N] codes in order of appearance, and int64[distinct]: the first message with each."""
    count = len(starts)
    codes = np.full(count, -1, np.int32)
    firsts = np.empty(count, np.int64)
    slots = 16
    while slots < 2 * count:
        slots *= 2
    table = np.full(slots, -1, np.int32)
    distinct = 0
    for record in range(count):
        start, size = starts[record], lengths[record]
        if start < 0:
            continue
        value = _OFFSET
        for i in range(start, start + size):
            value = np.uint64((value ^ np.uint64(data[i])) * _PRIME)
        slot = np.int64((value ^ (value >> _SHIFT)) & np.uint64(slots - 1))
        while True:
            code = table[slot]
            if code < 0:
                table[slot] = distinct
                codes[record] = distinct
                firsts[distinct] = record
                distinct += 1
                break
            other = firsts[code]
            if lengths[other] == size:
                same = True
                for i in range(size):
                    if data[starts[other] + i] != data[start + i]:
                        same = False
                        break
                if same:
                    codes[record] = code
                    break
            slot = (slot + 1) & (slots - 1)
    return codes, firsts[:distinct].copy()


# The tree is cut where AND, OR and NOT end. What hangs below is evaluated by the slow evaluator
# (:mod:`reput.build.expression`), once for each distinct value of the properties that it looks at; AND, OR
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

    It needs the values of the properties ``names``; of those in ``present`` only whether a message has them.
    Both are sorted.
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

        There is a column for each of :attr:`names` and :attr:`present`.
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

    ``names`` and ``present`` are, sorted, the properties whose values are needed, and those of which it only
    matters whether a message has them.
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
        """Bit maps of N records; arguments as for :func:`columns`."""
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
