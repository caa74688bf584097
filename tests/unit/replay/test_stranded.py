"""Which commands save the messages of findings."""

from __future__ import annotations

import pytest

from reput.replay.stranded import save_steps


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (["index-missing", "log-cut"], ["log-cut"]),
        (["missing-unit", "no-queues"], ["missing-unit"]),
        (["missing-unit", "units-missing", "wrong-unit"], ["units-missing"]),
        (["queue-begins-late", "units-missing"], ["queue-begins-late"]),
        (["units-missing", "repeated-queue-offset"], ["repeated-queue-offset", "units-missing"]),
        (["queue-restarted", "repeated-queue-offset"], ["queue-restarted"]),
        (["log-cut", "segment-deleted"], ["log-cut", "segment-deleted"]),
    ],
)
def test_the_same_messages_are_saved_once(found: list[str], named: list[str]) -> None:
    steps = save_steps(found, lambda _name, _option, kind, *_words: kind)
    assert [step.split("`")[1] for step in steps] == named
