"""Which consumers have filters: ``config/consumerFilter.json``.

``ConsumerFilterManager.encode`` writes it with fastjson every ten seconds and at a clean stop:

``{"filterDataByTopic": {TOPIC: {"topic": TOPIC, "groupFilterData": {GROUP: {…}, …}}, …}}``

with ``expression``, ``expressionType``, ``bornTime``, ``deadTime``, ``clientVersion`` and ``bloomFilterData``
(``bitNum``, ``bitPos``) of each group. A consumer that is gone stays in it for a day
(``filterDataCleanTimeSpan``), and counts as long as it is there: a broker that starts takes all of them for
gone, and evaluates all of them.

Source: ``ConsumerFilterManager``, ``ConfigManager.load``, ``CommitLogDispatcherCalcBitMap.dispatch``,
``BloomFilter``, ``BitsArray`` of the module filter, ``BrokerConfig`` (rocketmq-all-4.9.7 and 5.3.3, which
agree).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmh3
import numpy as np
from numpy.typing import NDArray

from reput.config.kept import of_either
from reput.config.settings import FilterSettings
from reput.errors import SettingsError
from reput.newer_python import Self

if TYPE_CHECKING:
    from reput.filter.expression import Node

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
    from reput.filter.grammar import NotAnExpressionError, TooDeepError, parse

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
