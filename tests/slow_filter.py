"""The slow twins of :mod:`reput.build.bitmaps`: message by message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reput.build.bitmaps import BloomFilter, Column, ConsumerFilter
from reput.build.expression import EvaluationError, Node, Value, units_of
from reput.format import properties


def evaluate(expression: Node, texts: Mapping[str, str]) -> Value:
    """What an expression says of a message.

    Args:
        expression: as :func:`reput.build.grammar.parse` gives it.
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
    """What :func:`reput.build.bitmaps.columns` does, from each record's property bytes."""
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
