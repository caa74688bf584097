"""The slow twins of :mod:`reput.filter`: message by message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mmh3
import numpy as np

from reput.filter.bloom import BloomFilter
from reput.filter.columns import Column
from reput.filter.consumers import ConsumerFilter
from reput.filter.expression import EvaluationError, Node, Value
from reput.filter.javavalue import units_of
from reput.format import properties


def evaluate(expression: Node, texts: Mapping[str, str]) -> Value:
    """What an expression says of a message.

    Args:
        expression: as :func:`reput.filter.grammar.parse` gives it.
        texts: all properties of the message.

    Returns:
        True, False or None. Only True sets bits.

    Raises:
        EvaluationError: a text that has to be a number isn't one, or what is compared can't be.
    """
    return expression.value({name: units_of(value) for name, value in texts.items()})


def bit_map(filters: Sequence[ConsumerFilter], bloom: BloomFilter, texts: Mapping[str, str]) -> bytes | None:
    """One message's bit map; None when its unit has none."""
    if not filters:
        return None
    bits = np.zeros(bloom.size, np.uint8)
    for each in filters:
        if each.condition is None:
            continue
        try:
            matches = evaluate(each.condition, texts) is True
        except EvaluationError:
            matches = False
        if matches:
            mask = bloom.mask(each.positions)
            if mask is None:
                return None
            bits |= mask
    return bits.tobytes()


def columns(records: Sequence[bytes], names: Sequence[str]) -> dict[str, Column]:
    """What :func:`reput.filter.columns.columns` does, from each record's property bytes."""
    parsed = [properties.parse(record) for record in records]
    found = {}
    for name in names:
        values: dict[bytes, int] = {}
        codes = [
            -1 if value is None else values.setdefault(value, len(values))
            for value in (record.get(name.encode("ascii")) for record in parsed)
        ]
        found[name] = Column(np.array(codes, np.int32), tuple(values))
    return found


def positions(bloom: BloomFilter, group: str, topic: str) -> tuple[int, ...]:
    """The bits that a new consumer of this group gets for this topic: ``calcBitPositions``.

    A broker keeps them in ``consumerFilter.json`` and goes by what stands there.
    """
    # Pairs of surrogates are whole after the way through UTF-16; half of one becomes a question mark.
    text = f"{group}#{topic}".encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
    first = mmh3.hash64(text.encode("utf-8", "replace"), 0, True, signed=False)[0] & 0xFFFFFFFFFFFFFFFF
    low, high = first & 0xFFFFFFFF, first >> 32
    found = []
    for i in range(1, bloom.hashes + 1):
        combined = (low + i * high) & 0xFFFFFFFF
        # As an int it would be negative, and is turned over.
        found.append((combined ^ 0xFFFFFFFF if combined >> 31 else combined) % bloom.bits)
    return tuple(found)
