"""Where the units of a ConsumeQueueExt go, and their bytes.

Source: ``ConsumeQueueExt.put``, ``fullFillToEnd`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reput.format.consumequeueext import (
    END_BLANK,
    END_MARK,
    HEAD_LENGTH,
    MAX_PLACE,
    MAX_UNIT_LENGTH,
    TRIES,
    address,
)
from reput.format.dtypes import EXT_HEAD_DTYPE


@dataclass(slots=True)
class ExtLayout:
    """Where units of one length go."""

    end: int  # byte offset of the next unit
    unit_length: int  # bytes of each unit
    #: (place, first, stop): units [first, stop) follow one another from the byte offset ``place`` on
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)  # byte offsets of the marks that end a file early

    def addresses(self, tags: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[units], the values for consume queue units: addresses, or tagsCodes if none was stored."""
        held = tags.astype(np.int64)
        for place, first, stop in self.runs:
            held[first:stop] = address(place) + self.unit_length * np.arange(stop - first, dtype=np.int64)
        return held


def lay_out(start: int, count: int, unit_length: int, file_size: int) -> ExtLayout:
    """Where ``count`` units of one length go, from the byte offset ``start`` on.

    A unit that is too long for its size field, or that would go past the last address, is not stored. One
    that leaves less than four bytes free in a file goes to the next file; one that fits into no file ends
    three files early, and is not stored either.
    """
    layout = ExtLayout(start, unit_length)
    if unit_length > MAX_UNIT_LENGTH:
        return layout
    done = 0
    while done < count:
        if layout.end + unit_length > MAX_PLACE:
            break
        for _ in range(TRIES):
            wrote = layout.end % file_size
            fit = min(max(file_size - wrote - END_BLANK, 0) // unit_length, count - done)
            fit = min(fit, max(MAX_PLACE - layout.end, 0) // unit_length)
            if fit:
                layout.runs.append((layout.end, done, done + fit))
                layout.end += fit * unit_length
                done += fit
                break
            if file_size - wrote < len(END_MARK):
                done += 1  # the broker fails to write the mark, and continues without the unit
                break
            layout.marks.append(layout.end)
            layout.end += file_size - wrote
        else:
            done += 1
    return layout


def pack(
    layout: ExtLayout,
    tags: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    bit_maps: NDArray[np.uint8],
) -> Iterator[tuple[int, bytes]]:
    """(byte offset, bytes) of each run and mark.

    ``bit_maps`` are uint8[units, bytes], of no bytes where there are none.
    """
    width = bit_maps.shape[1]
    row = np.dtype([*EXT_HEAD_DTYPE.descr, ("bit_map", "u1", (width,))])
    for place, first, stop in layout.runs:
        packed = np.empty(stop - first, row)
        packed["size"] = HEAD_LENGTH + width
        packed["tags"] = tags[first:stop]
        packed["timestamp"] = timestamps[first:stop]
        packed["width"] = width
        packed["bit_map"] = bit_maps[first:stop]
        yield place, packed.tobytes()
    for place in layout.marks:
        yield place, END_MARK
