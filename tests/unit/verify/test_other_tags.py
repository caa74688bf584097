"""Indexes that hold tags in part: an upgrade to 5.4, or a return from there, and no damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.build.index import KeyRows
from reput.verify.index import EntriesCompared, KeyRange, TagsOtherwise
from reput.verify.report import INDEX, Difference

_LENGTH = 100


def _keys(messages: int, *, tags: bool) -> KeyRows:
    position = np.arange(messages, dtype=np.int64) * _LENGTH
    keys = np.full(messages, 2 if tags else 1, np.int32)
    return KeyRows(position, position, keys, np.ones(int(keys.sum()), np.int64))


def _compared(there: list[bool]) -> tuple[EntriesCompared, EntriesCompared]:
    """By the keys with tags, and by those without, where only some messages have entries of tags."""
    lacks = [n for n, one in enumerate(there) if not one]
    missing = [KeyRange(n * _LENGTH, n * _LENGTH + 1, 1, 0) for n in lacks]
    extra = [Difference("dangling-entry", "index", INDEX, "", "", count=1) for one in there if one]
    return EntriesCompared(missing), EntriesCompared([], extra)


def _tags(there: list[bool], *, own_has_tags: bool) -> TagsOtherwise | None:
    full, plain = _compared(there)
    with_tags, without = [_keys(len(there), tags=True)], [_keys(len(there), tags=False)]
    if own_has_tags:
        return TagsOtherwise.of(full, plain, with_tags, without)
    return TagsOtherwise.of(plain, full, without, with_tags)


@given(st.integers(8, 40), st.integers(0, 40), st.booleans())
def test_the_first_messages_may_be_another_releases(other: int, own: int, own_has_tags: bool) -> None:
    found = _tags([not own_has_tags] * other + [own_has_tags] * own, own_has_tags=own_has_tags)
    end = own_has_tags or not own
    assert found == TagsOtherwise(
        other, (other - 1) * _LENGTH + 1 if end else other * _LENGTH, to_end=not own
    )


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.booleans())
def test_anything_else_is_damage(there: list[bool], own_has_tags: bool) -> None:
    otherwise = [one != own_has_tags for one in there]
    count = sum(otherwise)
    if not count:
        return  # nothing differs: it isn't asked
    expected = count >= 8 and all(otherwise[:count])
    assert (_tags(there, own_has_tags=own_has_tags) is not None) == expected


@pytest.mark.parametrize("own_has_tags", [True, False])
def test_damage_beside_it_is_told(own_has_tags: bool) -> None:
    full, plain = _compared([not own_has_tags] * 20)
    lost = KeyRange(0, 1, 1, 0)
    with_tags, without = [_keys(20, tags=True)], [_keys(20, tags=False)]
    one, other = (full, with_tags), (plain, without)
    if not own_has_tags:
        one, other = other, one
    assert TagsOtherwise.of(one[0], other[0], one[1], other[1]) is not None
    full.missing.insert(0, lost)
    plain.missing.insert(0, lost)
    assert TagsOtherwise.of(one[0], other[0], one[1], other[1]) is None
