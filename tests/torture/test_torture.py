"""A few of the kills of ``make torture``, behind a real store under load."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture.run import Torture
from tests.torture.steps import BY_NAME

pytestmark = [pytest.mark.compat, pytest.mark.spark]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Leave no py4j object for later: finalized while CPython 3.11 parses, it breaks that (gh-106905)."""
    yield
    gc.collect()


def test_a_tail_that_is_killed_comes_to_the_real_stores_bytes(tmp_path: Path) -> None:
    steps = [BY_NAME["journal record half written"], BY_NAME["units half written"]]
    result = Torture(tmp_path / "torture", "5.5.0", seed=20, rate=400).run(2, steps)
    assert sum(result.kills.values()) == 4
    assert result.end.queue_bytes > 1_000_000
    assert result.messages > 2_000
    assert result.missed == []
