"""A compaction log whose files aren't those of its queue: whether a store loads, against what reput says."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.format import names
from reput.recovery.plan import plan
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.golden.store import unpack
from tests.levels import sampled, tried

pytestmark = pytest.mark.compat

#: Of a queue's file, and of the log's as CompactionLog.getCompactionLogSize rounds it.
QUEUE, LOG = 46_000, 6 * 46_000
CONFIG = {"compactionCqMappedFileSize": QUEUE, "compactionMappedFileSize": 5 * QUEUE}
#: By files of the log and of the queue, None without its directory: whether the store loads.
CASES: dict[str, tuple[list[int], list[int] | None, bool]] = {
    "matched": ([0, 1], [0, 1], True),
    "no directory": ([0, 1], None, True),
    "no file": ([0, 1], [], False),
    "not the first": ([0, 1], [1], False),
    "not the last, which is deleted": ([0, 1], [0], True),
    "log without its first": ([1], [0, 1], False),
    "log without its last": ([0], [0, 1], False),
}


@pytest.mark.parametrize("switch", [True, False])
@pytest.mark.parametrize("case", sampled([*CASES]))
@pytest.mark.parametrize("version", tried("5.5.0", more=["5.3.3"]))
def test_files_that_dont_match(version: str, case: str, switch: bool, tmp_path: Path) -> None:
    golden = unpack(f"{version}-tiny", tmp_path / "store")
    of_log, of_queue, loads = CASES[case]
    log, queue = (
        golden.root / "compaction" / name / "Topic" / "0" for name in ("compactionLog", "compactionCq")
    )
    log.mkdir(parents=True)
    for number in of_log:
        (log / names.offset_name(number * LOG)).write_bytes(bytes(LOG))
    if of_queue is not None:
        queue.mkdir(parents=True)
    for number in of_queue or ():
        unit = struct.pack(">qiqqqh", number * LOG, 100, 1, 1, 0, 1)
        (queue / names.offset_name(number * LOG)).write_bytes(unit.ljust(QUEUE, b"\0"))
    config = {**golden.config, **CONFIG, "enableCompaction": switch}
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(config))
    found = plan(take(StoreSettings.load(golden.root, conf, version))).prediction
    assert [one.kind for one in found.problems] == ([] if loads or not switch else ["compaction-mismatch"])
    with JavaStore(version, golden.root, config) as store:
        assert bool(store.load()) is found.starts is (loads or not switch)
