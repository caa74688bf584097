"""The jobs: what a command or a spark-submit script calls."""

from reput.job.options import RebuildOptions, TailOptions
from reput.job.output_directory import Undone, undo
from reput.job.rebuilding import rebuild
from reput.job.summary import Summary

__all__ = ["RebuildOptions", "Summary", "TailOptions", "Undone", "rebuild", "undo"]
