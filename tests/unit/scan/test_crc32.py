"""The CRC kernels against zlib: every length, every alignment, both ways of computing it."""

from __future__ import annotations

from random import Random
from zlib import crc32 as zlib_crc32

import numpy as np
import pytest

from reput.scan.crc32 import crc32, table_crc32

DATA = np.frombuffer(Random(1).randbytes(5000), np.uint8)


def by_table(data: np.ndarray, start: int, end: int) -> int:
    return int(table_crc32(data, start, end, np.uint32(0xFFFFFFFF))) ^ 0xFFFFFFFF


@pytest.mark.parametrize("start", [0, 1, 3, 8, 15])
def test_every_length(start: int) -> None:
    for length in [*range(300), 511, 512, 513, 4095, 4096]:
        expected = zlib_crc32(DATA[start : start + length].tobytes())
        assert int(crc32(DATA, start, start + length)) == expected
        assert by_table(DATA, start, start + length) == expected


def test_bytes_that_are_all_alike() -> None:
    for byte in (0, 0xFF):
        data = np.full(1000, byte, np.uint8)
        for length in (0, 1, 63, 64, 65, 128, 1000):
            assert int(crc32(data, 0, length)) == zlib_crc32(data[:length].tobytes())


def test_a_known_value() -> None:
    data = np.frombuffer(b"123456789", np.uint8)
    assert int(crc32(data, 0, 9)) == by_table(data, 0, 9) == 0xCBF43926
