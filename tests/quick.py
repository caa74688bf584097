"""What ``make quick`` leaves out: what is slow, and most examples and cases of tests that have many.

The full run has all of them.
"""

from __future__ import annotations

import os
from collections import defaultdict

import pytest

QUICK = bool(os.environ.get("REPUT_QUICK_TESTS"))

#: Cases of one parametrized test that stay, evenly chosen.
CASES = 3
#: One of so many of hypothesis' examples stays.
_EXAMPLES = 20


def examples(full: int) -> int:
    """How many examples hypothesis tries where the full run has ``full``."""
    return max(full // _EXAMPLES, 5) if QUICK else full


def chosen(items: list[pytest.Item]) -> list[pytest.Item]:
    """Without a JVM, without what is slow, and of each parametrized test no more than :data:`CASES`."""
    fast = [item for item in items if not any(map(item.get_closest_marker, ("spark", "compat", "slow")))]
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in fast:
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = {
        item.nodeid
        for group in cases.values()
        for number, item in enumerate(group)
        if len(group) <= CASES or number * CASES // len(group) != (number - 1) * CASES // len(group)
    }
    return [item for item in fast if item.nodeid in kept]
