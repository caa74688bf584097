"""Rows that follow each other, as few pieces as can be told."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pieces(rows: NDArray[np.int64], numbers: NDArray[np.int64], most: int) -> list[NDArray[np.int64]]:
    """``rows`` cut where ``numbers`` (int64[rows]) don't go up by one, into at most ``most`` pieces.

    The last piece holds all that is left, gaps included.
    """
    if not len(rows):
        return []
    starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers) != 1) + 1])[:most].tolist()
    ends = [*starts[1:], len(rows)]
    return [rows[start:end] for start, end in zip(starts, ends, strict=True)]
