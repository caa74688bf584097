"""Units that wait for their turn are read back in log order, however their chunks were put together."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from random import Random

import numpy as np
import pytest

from reput.errors import OutputError
from reput.format.names import Queue
from reput.replay import spills
from reput.replay.spills import ROW, BitMaps, Rows, RowSpill, RowSpillWriter, SpillFiles

Expected = dict[Queue, list[tuple[int, bytes]]]


def written(writer: RowSpillWriter, seed: int) -> tuple[RowSpill, Expected]:
    """Chunks of some queues, a few of them with bit maps now and then; (position, bit map) by queue."""
    random, position = Random(seed), 0
    expected: Expected = {}
    for _ in range(random.randrange(1, 12)):
        rows: Rows = np.zeros(random.randrange(0, 60), ROW)
        queues: list[tuple[Queue, int, int]] = []
        bit_maps: dict[Queue, BitMaps] = {}
        at = 0
        for number in sorted(random.sample(range(20), random.randrange(1, 20))):
            queue = (f"topic{number // 4}", number % 4)
            first, stop = at + random.choice([0, 0, 1]), at + random.randrange(2, 6)  # some are nobody's
            if stop > len(rows):
                break
            width = random.choice([0, 2, 2, 5]) if number < 4 else 0
            if width:
                rows["mapped"][first:stop] = True
                bits = bytes(random.randrange(256) for _ in range(width * (stop - first)))
                bit_maps[queue] = np.frombuffer(bits, np.uint8).reshape(-1, width)
            for row in range(first, stop):
                position += 1
                rows["position"][row] = position
                bit_map = bit_maps[queue][row - first].tobytes() if width else b""
                expected.setdefault(queue, []).append((position, bit_map))
            queues.append((queue, first, stop))
            at = stop
        writer.add(rows, queues, bit_maps)
    return writer.close(), expected


@pytest.mark.parametrize("few", [0, 3, 1000], ids=["collected", "both", "one by one"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_units_are_read_back_in_log_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool, few: int
) -> None:
    monkeypatch.setattr(spills, "_FEW_QUEUES", few)
    for seed in range(60):
        monkeypatch.setattr(spills, "_MOST_COLLECTED", Random(seed).choice([1, 70, 10_000]))
        path = None if in_memory else tmp_path / str(seed)
        spill, expected = written(RowSpillWriter(path), seed)
        assert spill.keys() == expected.keys()
        with SpillFiles() as files:
            for queue, stretches in spill.items():
                blocks = files.blocks(stretches)
                found = [
                    (int(row["position"]), bits.tobytes())
                    for rows, maps in blocks
                    for row, bits in zip(rows, maps, strict=True)
                ]
                assert found == expected[queue]
                # One block as long as bit maps have one length.
                lengths = [length for length, _ in groupby(len(bit_map) for _, bit_map in found)]
                assert [maps.shape[1] for _, maps in blocks] == lengths


def test_many_queues_have_a_stretch_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_file(path: str, flags: int) -> int:
        opened.append(path)
        return real(path, flags)

    writer = RowSpillWriter(tmp_path / "units")
    count = 2000
    for number in range(30):
        rows: Rows = np.zeros(count, ROW)
        rows["position"] = np.arange(count) * 100 + number
        writer.add(rows, [(("T", queue), queue, queue + 1) for queue in range(count)], {})
    spill = writer.close()
    assert {len(stretches) for stretches in spill.values()} == {1}
    real = os.open
    monkeypatch.setattr(os, "open", open_file)
    with SpillFiles() as files:
        for queue in (0, 7, count - 1):
            ((rows, _),) = files.blocks(spill["T", queue])
            assert rows["position"].tolist() == [queue * 100 + number for number in range(30)]
    assert opened == [str(tmp_path / "units")]


def test_a_scratch_file_that_was_cut_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "units"
    writer = RowSpillWriter(path)
    writer.add(np.zeros(9, ROW), [(("T", 0), 0, 9)], {})
    spill = writer.close()
    path.write_bytes(path.read_bytes()[:-1])
    with SpillFiles() as files, pytest.raises(OutputError, match="can't be read back; expected 432 bytes"):
        files.blocks(spill["T", 0])
