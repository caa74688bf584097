"""The changes that are tried: a file cut at a length, or one of its bits turned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

CUT, BIT = "cut", "bit"


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One change to one file.

    Attributes:
        file: the file, relative to the store's parent directory.
        kind: CUT or BIT.
        at: bytes that are left; or number of the bit, byte x 8 + bit, the least significant first.
    """

    file: str
    kind: str
    at: int

    @property
    def byte(self) -> int:
        """The byte that is turned, or the first one that is gone."""
        return self.at if self.kind == CUT else self.at >> 3

    def apply(self, data: bytes) -> bytes:
        """The changed bytes."""
        if self.kind == CUT:
            return data[: self.at]
        changed = bytearray(data)
        changed[self.at >> 3] ^= 1 << (self.at & 7)
        return bytes(changed)

    def __str__(self) -> str:
        if self.kind == CUT:
            return f"{self.file} cut to {self.at} bytes"
        return f"{self.file} byte {self.byte} bit {self.at & 7}"


def cuts(file: str, length: int) -> Iterator[Change]:
    """Every shorter length."""
    return (Change(file, CUT, at) for at in range(length))


def bits(file: str, places: Iterable[int]) -> Iterator[Change]:
    """Every bit of some bytes."""
    return (Change(file, BIT, place * 8 + bit) for place in places for bit in range(8))
