"""What reput says of a broker's start, against what the real store does, damage by damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.compat.starts import compared, odd, whole
from tests.levels import tried

pytestmark = pytest.mark.compat


def both() -> list[Any]:
    return [*whole(), *odd()]


_MORE = [("4.9.7", odd), *((version, both) for version in ("4.4.0", "4.8.0", "5.3.3"))]


# One of each way to start; `make releases ARGS=--starts` tries every release.
@pytest.mark.parametrize(
    ("version", "damages"), tried(("4.3.1", both), ("4.9.7", whole), ("5.5.0", both), more=_MORE)
)
def test_a_start_is_predicted(version: str, damages: Callable[[], list[Any]], tmp_path: Path) -> None:
    made, wrong = compared(version, damages(), tmp_path)
    lines = [f"{len(wrong)} of {made} differ"]
    for name, found in wrong.items():
        lines += [name, *(f"    {line}" for line in found)]
    assert not wrong, "\n".join(lines)
