"""Which commands save the messages of findings."""

from __future__ import annotations

import pytest

from reput.replay.placing import KINDS, WITHOUT_PLACE, save_steps


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (["missing-entry", "log-cut"], []),
        (["missing-unit", "wrong-unit", "no-queues", "queue-begins-late"], []),
        (["missing-unit", "repeated-queue-offset"], ["repeated-queue-offset"]),
        (["queue-restarted", "repeated-queue-offset"], ["queue-restarted"]),
        (["queue-restarted", "unproven-message"], ["queue-restarted"]),
    ],
)
def test_only_what_no_mending_brings_back_is_saved_and_once(found: list[str], named: list[str]) -> None:
    steps = save_steps(found, lambda _name, _option, kind, *_words: kind)
    assert [step.split("`")[1] for step in steps] == named


def test_what_has_no_place_can_be_asked_for() -> None:
    assert {*KINDS} > WITHOUT_PLACE
