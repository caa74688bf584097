"""What does a job's tasks here, one after the other, where only files and commits are of interest."""

from __future__ import annotations

from collections.abc import Callable

from reput.replay.runner import InlineRunner


class Here(InlineRunner):
    """Calls ``before`` before each wave of tasks."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._before = before

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        self._before()
        return super().map(function, items)
