"""Stores of far more queues than a process may have files open."""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.format import names
from reput.format.commitlog import Record
from tests import slow_rebuild
from tests.local import in_log_order, open_store, rebuild_locally, tree
from tests.memory import scratch
from tests.stores import LogWriter

LIGHT, A_MESSAGE, ROUNDS = 20_000, 20, 3
SEGMENT = 512 << 10
OPEN_FILES = 1024
#: Bytes of memory that this many queues may take on top of what some hundred take.
GROWTH = 192 << 20

REBUILD = (
    "import sys\nfrom tests.unit.output.test_many_queues import rebuild_here\nrebuild_here(*sys.argv[1:])"
)


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory: tens of thousands of files are flushed."""
    with scratch() as directory:
        yield directory


def rebuild_here(place: str, kind: str) -> None:
    """Rebuild two stores with few descriptors, and print by how much the second raised the memory's peak."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    peaks = []
    for name in ("few", "many"):
        store = open_store(
            Path(place, name), version="5.5.0", enable_multi_dispatch=True, enable_lmq=kind == "light"
        )
        if kind == "ordered":
            store = in_log_order(store)
        state = rebuild_locally(store, Path(place, f"{name}-out"), part_bytes=SEGMENT // 2, index=False)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
    findings = [finding.kind for finding in state.findings]
    print(json.dumps({"growth": peaks[1] - peaks[0], "findings": findings, "queues": len(state.queues)}))


def rebuilt(place: Path, kind: str) -> dict[str, Any]:
    """What :func:`rebuild_here` says in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", REBUILD, place, kind],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def write_light(root: Path, count: int) -> list[tuple[int, bytes]]:
    """A log whose messages go to ``A_MESSAGE`` light queues each, until each has ``ROUNDS``; its segments."""
    chance = random.Random(20261124)
    writer = LogWriter(root, SEGMENT)
    parents: Counter[int] = Counter()
    for number in range(ROUNDS):
        order = list(range(count))
        chance.shuffle(order)
        for at in range(0, count, A_MESSAGE):
            light = order[at : at + A_MESSAGE]
            listed = ",".join(f"%LMQ%device-{n}" for n in light)
            offsets = ",".join([str(number)] * len(light))
            properties = f"INNER_MULTI_DISPATCH\x01{listed}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02"
            properties += f"TAGS\x01t{at % 4}\x02"
            parent = chance.randrange(3)
            record = Record(
                b"Parent", b"x", properties.encode(), queue_id=parent, queue_offset=parents[parent]
            )
            writer.append(record)
            parents[parent] += 1
    directory = root / names.COMMIT_LOG
    return [(int(path.name), path.read_bytes()) for path in sorted(directory.iterdir())]


@pytest.mark.slow
def test_light_queues_in_great_number(place: Path) -> None:
    write_light(place / "few", 200)
    segments = write_light(place / "many", LIGHT)
    said = rebuilt(place, "light")
    assert said["findings"] == []
    assert said["queues"] == LIGHT + 3
    assert said["growth"] < GROWTH
    slow = slow_rebuild.rebuild(segments, slow_rebuild.Settings(multi_dispatch=True, lmq=True, index=False))
    directory = place / "many-out" / names.CONSUME_QUEUE
    assert {path.name for path in directory.iterdir()} == {path.split("/")[0] for path in slow.queues}
    for path in random.Random(7).sample(sorted(slow.queues), 2000):
        assert (directory / path).read_bytes() == slow.queues[path]


@pytest.mark.slow
def test_queues_in_log_order_in_great_number(place: Path) -> None:
    """Each has files of two kinds, which are written at the same time."""
    count = 2400
    for name, how_many in (("few", 3), ("many", count)):
        writer = LogWriter(place / name, SEGMENT)
        for number in range(2 * how_many):
            offset, queue_id = divmod(number, how_many)
            writer.append(Record(b"T", queue_id=queue_id, queue_offset=offset, store_timestamp=number))
    said = rebuilt(place, "ordered")
    assert (said["findings"], said["queues"]) == ([], count)
    out = place / "many-out"
    length = writer.records[1].physical_offset
    found = {name: data.rstrip(b"\0") for name, data in tree(out / names.CONSUME_QUEUE_EXT).items()}
    expected: dict[str, bytes] = {}
    for queue_id in range(count):
        stamps = [queue_id, count + queue_id]
        data = b"".join(struct.pack(">hqqh", 20, 0, stamp, 0) for stamp in stamps)
        expected[f"T/{queue_id}/{0:020d}"] = data.rstrip(b"\0")
        units = b"".join(
            struct.pack(">qiq", writer.records[number].physical_offset, length, n * 20 - (1 << 63))
            for n, number in enumerate(stamps)
        )
        path = out / names.CONSUME_QUEUE / "T" / str(queue_id) / f"{0:020d}"
        assert path.read_bytes() == units.ljust(100, b"\0")
    assert found == expected
