"""Placing odd queues: against a queue that takes one unit after the other, and in batches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reput.build.placement import Placement, last_is_lone_zero, place
from tests.levels import examples
from tests.slow_rebuild import Message, Queue

LENGTH = 100


@dataclass
class Placed:
    """A queue as placements leave it: the position of the message at each place."""

    units: dict[int, int] = field(default_factory=dict)
    first: int | None = None
    next: int = 0
    end: int = -1
    shift: int = 0
    from_zero: bool = False

    def go_on(self, offsets: list[int], positions: list[int], breaks: list[int]) -> Placement:
        """Place a batch's rows, as the task that does it."""
        if last_is_lone_zero(self.next, self.shift):
            offsets, positions = [0, *offsets], [self.units[self.next - 1], *positions]
        placement = place(
            np.array(offsets, np.int64),
            np.array(positions, np.int64),
            np.full(len(offsets), LENGTH, np.int32),
            self.first,
            self.next,
            self.end,
            self.shift,
            breaks,
            from_zero=self.from_zero,
        )
        if placement.restarted:
            self.units.clear()
        for offset, start, stop in placement.runs:
            for row in range(start, stop):
                assert offset + row - start not in self.units
                self.units[offset + row - start] = positions[row]
        for offset, end, row in placement.fills:
            for hole in range(offset, end):
                assert hole not in self.units
                self.units[hole] = positions[row]
        self.first, self.next, self.shift = placement.first, placement.next, placement.shift
        if placement.runs:
            self.end = positions[placement.runs[-1][2] - 1] + LENGTH
        return placement


steps = st.sampled_from([1, 1, 1, 1, 2, 3, 60, 0, -1, -3, None])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int]]:
    """queueOffsets, positions, breaks in the log, and where batches end."""
    offset, position = draw(st.integers(0, 4)), draw(st.integers(0, 5)) * LENGTH
    offsets, positions = [], []
    for step in draw(st.lists(steps, max_size=25)):
        offsets.append(offset)
        positions.append(position)
        offset = 0 if step is None else max(offset + step, 0)
        position += LENGTH * draw(st.sampled_from([1, 1, 1, 2, 40]))
    breaks = draw(st.lists(st.integers(0, position // LENGTH).map(lambda row: row * LENGTH), max_size=3))
    cuts = draw(st.lists(st.integers(0, len(offsets)), max_size=3))
    return offsets, positions, sorted(breaks), sorted(cuts)


@settings(max_examples=examples(400), deadline=None)
@given(histories(), st.booleans())
@example(([0, 1, 2, 0, 1], [0, 100, 200, 300, 400], [], [4]), False)
@example(([0, 1, 5, 6, 7], [0, 100, 200, 300, 900], [900], [4]), False)
@example(([3, 4, 9, 10], [300, 400, 1000, 1100], [0, 500], [2]), True)
def test_batches_come_to_what_one_unit_after_the_other_does(
    history: tuple[list[int], list[int], list[int], list[int]], from_zero: bool
) -> None:
    offsets, positions, breaks, cuts = history
    slow = Queue(from_zero=from_zero)
    for offset, position in zip(offsets, positions, strict=True):
        slow.put(Message(position, LENGTH, "T", 0, offset, 0, 0, {}), offset, 0, breaks)
    placed = Placed(from_zero=from_zero)
    for start, stop in zip([0, *cuts], [*cuts, len(offsets)], strict=True):
        if start < stop:
            placed.go_on(offsets[start:stop], positions[start:stop], breaks)
    assert placed.units == {
        place: int.from_bytes(unit[:8], "big") for place, unit in sorted(slow.units.items())
    }
    assert (placed.next, placed.first) == (slow.next, None if slow.first < 0 else slow.first)
    assert set(placed.units) == set(range(max(slow.first, 0), slow.next))


def test_no_rows_change_nothing() -> None:
    none = np.zeros(0, np.int64)
    placement = place(none, none, np.zeros(0, np.int32), 3, 9, 500)
    assert (placement.first, placement.next, placement.runs, placement.oddities) == (3, 9, [], [])


def test_a_queue_without_a_message_in_the_log_begins_anew_after_a_break() -> None:
    """Above the due place and below it; not where it goes on, and not while a message is left."""

    def go_on(offset: int, first: int, breaks: list[int]) -> Placement:
        offsets, positions = np.array([offset, offset + 1]), np.array([9000, 9100])
        return place(offsets, positions, np.full(2, LENGTH, np.int32), first, 7, 700, 0, breaks)

    for offset in (3, 12, 0):
        placement = go_on(offset, 7, [5000])
        assert (placement.restarted, placement.first, placement.next) == (True, offset, offset + 2)
        assert (placement.runs, placement.fills, placement.oddities) == ([(offset, 0, 2)], [], [])
    assert not go_on(7, 7, [5000]).restarted
    assert not go_on(12, 7, []).restarted
    assert go_on(12, 6, [5000]).fills == [(7, 12, 0)]
