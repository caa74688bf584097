"""What reput says of a broker's start, against what the real store does, damage by damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat import damage, recorded
from tests.compat.starts import compared, odd, whole
from tests.levels import tried

pytestmark = pytest.mark.compat

#: One of each that a start does: nothing, cut the log, cut queues, make them, refuse, skip files.
MECHANISMS = (
    damage.nothing,
    damage.bad_magic_early,
    damage.zeroed_tail,
    damage.queues_gone,
    damage.short_segment,
    damage.short_queue_file,
    damage.topic_gone,
)


@pytest.mark.parametrize("version", tried("4.3.1", "4.9.7", "5.5.0", more=["4.4.0", "4.8.0", "5.3.3"]))
def test_what_starts_made_is_predicted(version: str, tmp_path: Path) -> None:
    made, wrong = recorded.replayed(version, tmp_path)
    assert not wrong, said(made, wrong)


@pytest.mark.parametrize("version", ["4.3.1", "5.5.0"])
def test_a_start_is_predicted(version: str, tmp_path: Path) -> None:
    made, wrong = compared(version, [one for one in whole() if one[1] in MECHANISMS], tmp_path)
    assert not wrong, said(made, wrong)


@pytest.mark.proof
@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_every_start_is_predicted(version: str, tmp_path: Path) -> None:
    made, wrong = compared(version, [*whole(), *odd()], tmp_path)
    assert not wrong, said(made, wrong)


def said(made: int, wrong: dict[str, list[str]]) -> str:
    lines = [f"{len(wrong)} of {made} differ"]
    for name, found in wrong.items():
        lines += [name, *(f"    {line}" for line in found)]
    return "\n".join(lines)
