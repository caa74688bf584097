"""How much of the tests is run: ``quick``, ``gate`` or ``proof``, from REPUT_TESTS.

- ``make quick``: no JVM, nothing that is slow, few examples, and few cases of what has many.
- ``make test``, the gate: all that a change can break. Starts, loads, mending, replicas, retention and lost
  files of ``config/`` go by an old release and the newest; what all releases do alike by the newest alone.
- ``make proof``: everything, with every release and every example.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import pytest

_Case = TypeVar("_Case")
#: One of so many of hypothesis' examples stays.
_SHARES = {"quick": 20, "gate": 4, "proof": 1}
_LEVEL = os.environ.get("REPUT_TESTS", "gate")
if _LEVEL not in _SHARES:
    raise pytest.UsageError(f"REPUT_TESTS is {_LEVEL}; give one of {', '.join(_SHARES)}")
QUICK, PROOF = _LEVEL == "quick", _LEVEL == "proof"
#: Marks of tests that a level leaves out.
_LEFT_OUT = {"quick": ("spark", "compat", "slow", "proof"), "gate": ("proof",), "proof": ()}[_LEVEL]
#: Cases of one parametrized test that stay in a quick run, evenly chosen.
CASES = 3


def examples(full: int) -> int:
    """How many examples hypothesis tries where the proof has ``full``."""
    return max(full // _SHARES[_LEVEL], min(full, 5))


def tried(*cases: _Case, more: Sequence[_Case]) -> list[_Case]:
    """The cases that a long test runs with; ``more`` in the proof alone."""
    return [*cases, *(more if PROOF else ())]


def sampled(at: Sequence[_Case]) -> list[_Case]:
    """Where or how a long test harms; outside the proof one in three, the first and the last among them."""
    return [*at] if PROOF else [*at[:-1:3], *at[-1:]]


def chosen(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests of this level."""
    kept = [item for item in items if not any(map(item.get_closest_marker, _LEFT_OUT))]
    if not QUICK:
        return kept
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in kept:
        groups[item.nodeid.partition("[")[0]].append(item)
    names = {
        item.nodeid
        for group in groups.values()
        for number, item in enumerate(group)
        if len(group) <= CASES or number * CASES // len(group) != (number - 1) * CASES // len(group)
    }
    return [item for item in kept if item.nodeid in names]
