"""What is there of a segment whose bytes come while it is scanned."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reput.scan import kernel
from reput.scan.output import Status

#: More than the fixed fields of an entry and its record.
_HEAD = 1 << 10
#: Bytes that are searched for a first record before more is asked for.
_SEARCHED = 8 << 20


class Arriving(Protocol):
    """A segment whose bytes come while it is scanned; what isn't there yet reads as anything."""

    def fetch(self, start: int, stop: int) -> None:
        """Have positions [start, stop) there, as far as the segment goes."""
        ...

    def until(self, start: int, wanted: int) -> int:
        """Have some of what follows ``start`` there, as far as ``wanted``; up to which position all is."""
        ...

    def passed(self, position: int) -> None:
        """What lies before ``position`` isn't looked at any more, unless it is fetched again."""
        ...


class Visible:
    """What a kernel is shown of a segment: never a byte that isn't there.

    ``stop_at`` is the position before which the records begin that are looked for.
    """

    def __init__(
        self, data: NDArray[np.uint8], arriving: Arriving | None, stop_at: int, largest: int
    ) -> None:
        self._data = data
        self._arriving = arriving
        self._stop_at = stop_at
        self._largest = largest
        self._enough = min(stop_at + largest, len(data))
        self._shown = 0

    def at(self, position: int) -> tuple[NDArray[np.uint8], int]:
        """The bytes that are there, and up to where records in them may begin: behind ``position``."""
        if self._arriving is None:
            return self._data, self._stop_at
        # What the last record has behind the end is fetched when it is asked for.
        there = self._arriving.until(position, self._stop_at)
        while there < self._stop_at and there - _HEAD <= position:
            self._arriving.fetch(position, min(there + _SEARCHED, self._stop_at))
            there = self._arriving.until(position, self._stop_at)
        self._shown = there
        return self._data[:there], self._stop_at if there >= self._stop_at else there - _HEAD

    def passed(self, position: int) -> None:
        """What lies before ``position`` isn't looked at any more."""
        if self._arriving is not None:
            self._arriving.passed(position)

    def more(self, position: int, status: Status) -> bool:
        """Have more there, since a scan stopped at ``position``; False if all is that can change its result.

        Whether zeros lead to the end is told by what is there; all else may depend on the whole rest of the
        segment.
        """
        if self._arriving is None:
            return False
        there = self._arriving.until(position, self._enough)
        if there > self._shown:
            return True
        if there < self._enough:
            self._arriving.fetch(position, min(there + _SEARCHED, self._enough))
            return True
        to_the_end = kernel.first_written(self._data, position, self._stop_at) == self._stop_at
        if status is Status.UNWRITTEN and to_the_end:
            return False
        self._arriving.fetch(position - _HEAD, len(self._data))
        self._arriving = None
        return True

    def find(self, base: int, position: int, v2: bool, entries: bool) -> int:
        """Find the next record up to the end, as :func:`reput.scan.kernel.find_record` does."""
        if self._arriving is not None:
            self._arriving.fetch(position - _HEAD, position)  # an entry's header may begin there
        while True:
            data, end = self.at(position)
            is_all = self._arriving is None or len(data) >= self._enough
            # What begins in the last bytes may go on in those that aren't there.
            last = self._stop_at if is_all else max(position, end - self._largest)
            found = kernel.find_record(data, base, position, last, v2, entries)
            if found >= 0 or self._arriving is None or is_all:
                return found
            self._arriving.fetch(position, min(len(data) + _SEARCHED, self._enough))
