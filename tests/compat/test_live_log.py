"""A real store under load, watched by another process: what is handed out as settled never changes.

``REPUT_LIVE_SECONDS`` sets how long each store is watched (4 by default).
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from zlib import crc32

import pytest

from bench.generate import writer_in
from reput.config.settings import StoreSettings
from reput.log.live import LiveLog
from reput.log.segments import CommitLog, discover, map_segment
from reput.log.walk import Frame, body_crc_is_wrong, frame
from reput.scan.output import Status
from tests.compat.compiled import instance
from tests.compat.java_store import JavaStore
from tests.levels import tried

pytestmark = pytest.mark.compat

SECONDS = int(os.environ.get("REPUT_LIVE_SECONDS", "4"))
RATE = 20_000
SEGMENT = 1 << 20


def check_whole(log: CommitLog, start: int, end: int, sums: list[tuple[int, int, int]]) -> int:
    """See that [start, end) is one whole record after the other, and note its bytes' CRC by segment.

    Returns:
        How many records.
    """
    count = 0
    for segment in log.segments:
        first, stop = max(start, segment.base), min(end, segment.base + segment.length)
        if first >= stop:
            continue
        view = map_segment(segment.path, segment.length).data
        position = first - segment.base
        while position < stop - segment.base:
            found = frame(view, segment.base, position, True)
            if found is Status.BLANK:
                break
            assert isinstance(found, Frame), f"{segment.base + position}: {found!r}"
            assert not body_crc_is_wrong(view, found)
            properties = bytes(view[slice(*found.properties)])
            assert properties.startswith(b"KEYS\x01order-")
            assert b"\0" not in properties
            position += found.size
            count += 1
        assert position >= stop - segment.base or found is Status.BLANK
        sums.append((first, stop, crc32(view[first - segment.base : stop - segment.base])))
    return count


#: Too few buffers for a disk that stops now and then: the broker writes later segments before earlier ones.
POOL: dict[str, object] = {"transientStorePoolEnable": True, "transientStorePoolSize": 2}


@pytest.mark.parametrize(
    ("version", "config"),
    tried(
        pytest.param("5.5.0", {**POOL, "enabledAppendPropCRC": True}, id="5.5.0-pool-crc"),
        more=[
            pytest.param("4.9.7", {}, id="4.9.7"),
            pytest.param("5.5.0", {}, id="5.5.0"),
            pytest.param("4.9.7", POOL, id="4.9.7-pool"),
        ],
    ),
)
def test_what_is_settled_stays(version: str, config: dict[str, object], tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = {
        **config,
        "mappedFileSizeCommitLog": SEGMENT,
        "messageIndexEnable": False,
        "flushDiskType": "ASYNC_FLUSH",
    }
    with JavaStore(version, root, config, heap="1g") as java:
        writer = writer_in(java.jvm, "PacedWriter")
        assert java.load()
        java.start()
        load = {"store": java.store, "topics": 4, "queues": 4, "body": 120, "rate": RATE}
        writing = [threading.Thread(target=writer.apply, args=({**load, "seconds": SECONDS},))]
        pauses: list[dict[str, int]] = []
        if config.keys() >= POOL.keys():
            disk = instance(java.jvm, Path(__file__).with_name("SlowDisk.java"))
            slow = {"store": java.store, "seconds": SECONDS, "pause": 800, "rest": 100}
            writing.append(threading.Thread(target=lambda: pauses.append(dict(disk.apply(slow)))))
        settings = StoreSettings.load(root, None, version)
        live, chance = LiveLog(settings), random.Random(7)
        at = looks = restarts = records = held = 0
        sums: list[tuple[int, int, int]] = []
        for thread in writing:
            thread.start()
        idle_since = None
        # What was written last is settled after some seconds; on a busy machine they are more.
        while idle_since is None or (records < RATE * SECONDS and time.monotonic() - idle_since < 60):
            is_written = any(thread.is_alive() for thread in writing)
            if chance.random() < 0.02 and is_written:
                live, restarts = LiveLog(settings), restarts + 1
            found = live.look(at)
            looks += 1
            held += live._end.held_before is not None
            if found is not None and found[1].offset > at:
                end = found[1].offset
                records += check_whole(found[0], at, end, sums)
                at = end
            if not is_written:
                idle_since = idle_since or time.monotonic()
            time.sleep(chance.choice([0, 0.0001, 0.002, 0.02]))
        for thread in writing:
            thread.join()
        if len(writing) == 1:
            assert at == java.store.getMaxPhyOffset()
        else:
            # From 5.1 on, the store itself doesn't read what it wrote without a buffer
            # (DefaultMappedFile.getReadPosition), and its shutdown waits for that.
            java.kill()
    assert records == RATE * SECONDS
    log = discover(settings)
    assert len(log.segments) > SECONDS
    for start, stop, expected in sums:
        segment = log.segment_at(start)
        assert segment is not None
        view = map_segment(segment.path, segment.length).data
        assert crc32(view[start - segment.base : stop - segment.base]) == expected
    if len(writing) > 1:
        assert pauses[0]["empty"] > 0
        assert held > 0
    print(
        f"{version}: {records} records, {looks} looks ({held} held), {restarts} restarts, {pauses},"
        f" {len(log.segments)} files"
    )
