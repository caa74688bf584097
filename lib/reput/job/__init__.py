"""The jobs: what a command or a spark-submit script calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.lazily import lazily

if TYPE_CHECKING:
    from reput.job.in_place import Undone, undo
    from reput.job.options import RebuildOptions, TailOptions
    from reput.job.rebuilding import rebuild
    from reput.job.summary import Summary

__all__ = ["RebuildOptions", "Summary", "TailOptions", "Undone", "rebuild", "undo"]

__getattr__ = lazily(
    __name__,
    {
        "RebuildOptions": "options",
        "TailOptions": "options",
        "Undone": "in_place",
        "undo": "in_place",
        "rebuild": "rebuilding",
        "Summary": "summary",
    },
)
