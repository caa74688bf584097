"""How much may be read by now: a bucket that fills with time."""

from __future__ import annotations

import time
from collections.abc import Callable


class Rate:
    """Bytes a second, with a second's worth in hand at most.

    Args:
        bytes_per_second: at least 1.
        clock: seconds that only go up.
    """

    def __init__(self, bytes_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._left = float(bytes_per_second)
        self._at = clock()

    def available(self) -> int:
        """Bytes that may be taken now; below 0 while what was taken ahead is being made up for."""
        now = self._clock()
        self._left = min(self._left + (now - self._at) * self.bytes_per_second, float(self.bytes_per_second))
        self._at = now
        return int(self._left)

    def take(self, size: int) -> None:
        """Count ``size`` bytes as taken."""
        self._left -= size

    def seconds_until(self, size: int) -> float:
        """How long until ``size`` bytes, or as many as can ever be in hand, may be taken."""
        return max(min(size, self.bytes_per_second) - self.available(), 0) / self.bytes_per_second
