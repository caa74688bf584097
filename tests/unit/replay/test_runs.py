"""Runs of sorted keys, as those see them who need a share."""

from __future__ import annotations

import mmap
from bisect import bisect_left

import numpy as np
import pytest

from reput.build.placement import Breaks
from reput.output.databases import Totals, shares_of, totals_of
from reput.replay.runs import Keys

KEYS = [b"", b"a", b"a\0", b"abc", b"b" * 70]


@pytest.mark.parametrize("mapped", [False, True])
def test_keys_are_made_when_they_are_asked_for(mapped: bool) -> None:
    text = b"head" + b"".join(KEYS) + b"tail"
    ends = np.cumsum([len(key) for key in KEYS])
    given: bytes | mmap.mmap = text
    if mapped:
        given = mmap.mmap(-1, len(text))
        given[:] = text
    keys = Keys(given, 4, ends)
    assert list(keys) == KEYS
    assert [keys[low:high] for low in range(6) for high in range(6)] == [
        KEYS[low:high] for low in range(6) for high in range(6)
    ]
    assert keys[::2] == KEYS[::2]
    assert [bisect_left(keys, key) for key in (b"a\0", b"ab", b"c")] == [2, 3, 5]


def test_shares_are_of_about_the_same_number_of_units() -> None:
    units = np.array([3, 1, 40, 1, 1, 30, 2], np.int64)
    prefixes = [b"%d" % number for number in range(len(units))]
    regular = np.array([True] * 5 + [False, True])
    totals = Totals(prefixes, np.arange(7), units, regular)
    shares = list(shares_of(totals, 2))
    assert [share.number for share in shares] == list(range(len(shares)))
    assert [share.first for share in shares] == [b"0", b"2", b"2", b"2", b"2", b"3", b"5", b"6"]
    pieces = [share.offsets for share in shares if share.first == b"2"]
    assert pieces == [(2, 12), (12, 22), (22, 32), (32, 42)]
    (alone,) = [share for share in shares if share.first == b"5"]
    assert (alone.stop, alone.offsets) == (b"6", None), "what isn't consecutive is one task's"
    assert [each.prefixes for each in (totals.between(b"1", b"3"), totals.between(b"5", None))] == [
        [b"1", b"2"],
        [b"5", b"6"],
    ]
    none = totals_of([], Breaks([], []))
    assert (none.prefixes, list(shares_of(none, 2))) == ([], [])
