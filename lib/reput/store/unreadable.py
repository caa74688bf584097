"""Why a file of a store can't be read."""

from __future__ import annotations

from os import PathLike

from reput.errors import SegmentGoneError, StoreError


def unreadable(what: str, path: str | PathLike[str], error: OSError) -> StoreError:
    """The error for it: SegmentGoneError where the file isn't there any more.

    Args:
        what: the file is called so.
        path: the file, or the directory of several: the error's own file is named where it knows one.
        error: what came of the attempt.
    """
    gone = isinstance(error, FileNotFoundError)
    return (SegmentGoneError if gone else StoreError)(
        f"{what} can't be read",
        path=error.filename or path,
        found=error.strerror or str(error),
        next_step="A running broker deletes what has expired: ask the same again"
        if gone
        else "Check the file and its permissions, then ask the same again",
    )
