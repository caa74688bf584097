"""A broker's Bloom filter of consumers: which bits of a message's bit map belong to a consumer.

Source: ``BloomFilter``, ``BitsArray`` of the module filter, ``BrokerConfig``, ``ConsumerFilterManager``
(rocketmq-all-4.9.7 and 5.3.3, which agree).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mmh3
import numpy as np
from numpy.typing import NDArray

from reput.config.settings import FilterSettings
from reput.errors import SettingsError
from reput.newer_python import Self

_INT_MAX = 2**31 - 1
_LONG_BITS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """How many bits a bit map has, and how many of them a consumer sets."""

    bits: int  # ``m``, a multiple of 8; a broker also sets ``bitMapLengthConsumeQueueExt`` to it
    hashes: int  # ``k``

    @classmethod
    def create(cls, settings: FilterSettings) -> Self:
        """``BloomFilter.createByFn``.

        Raises:
            SettingsError: values with which a broker doesn't start.
        """
        error_rate, consumers = settings.error_rate, settings.consumers
        if not 1 <= error_rate < 100:
            raise SettingsError(
                "maxErrorRateOfBloomFilter is out of range: a broker doesn't start with it",
                expected="1 to 99",
                found=error_rate,
            )
        if consumers < 1:
            raise SettingsError(
                "expectConsumerNumUseFilter is out of range: a broker doesn't start with it",
                expected="1 or more",
                found=consumers,
            )
        rate = error_rate / 100.0
        hashes = math.ceil(_log(0.5, rate))
        bits = math.ceil(consumers * _log(2, 1 / rate) * _log(2, math.e))
        bits = 8 * math.ceil(bits / 8.0)
        if bits > _INT_MAX:
            raise SettingsError(
                "expectConsumerNumUseFilter asks for a bit map of more than 2147483647 bits", found=consumers
            )
        return cls(bits, hashes)

    @property
    def size(self) -> int:
        """Bytes of a bit map."""
        return self.bits // 8

    def positions(self, group: str, topic: str) -> tuple[int, ...]:
        """The bits that a new consumer of this group gets for this topic: ``calcBitPositions``.

        A broker keeps them in ``consumerFilter.json`` and goes by what stands there.
        """
        # Pairs of surrogates are whole after the way through UTF-16; half of one becomes a question mark.
        text = f"{group}#{topic}".encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
        first = mmh3.hash64(text.encode("utf-8", "replace"), 0, True, signed=False)[0] & _LONG_BITS
        low, high = first & 0xFFFFFFFF, first >> 32
        positions = []
        for i in range(1, self.hashes + 1):
            combined = (low + i * high) & 0xFFFFFFFF
            # As an int it would be negative, and is turned over.
            positions.append((combined ^ 0xFFFFFFFF if combined >> 31 else combined) % self.bits)
        return tuple(positions)

    def mask(self, positions: tuple[int, ...]) -> NDArray[np.uint8] | None:
        """uint8[size] with these bits set, the lowest of a byte first (``BitsArray.setBit``).

        None when a position is outside the bit map: a broker fails to set it.
        """
        if any(not 0 <= position < self.bits for position in positions):
            return None
        mask = np.zeros(self.size, np.uint8)
        for position in positions:
            mask[position // 8] |= 1 << position % 8
        return mask


def _log(base: float, value: float) -> float:
    return math.log(value) / math.log(base)
