"""What a start dispatches where the log has damage behind the queues' end, against what reput says of it."""

from __future__ import annotations

import shutil
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from reput.broker.predict import Prediction, predict
from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.format import commitlog, names
from reput.format.dtypes import UNIT_DTYPE
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.jvm import Jvm
from tests.golden.store import GoldenStore, unpack
from tests.rebuilds import overwrite, record_starts

pytestmark = pytest.mark.compat

SEGMENT = 65536


def without_queues(name: str, tmp_path: Path) -> GoldenStore:
    golden = unpack(name, tmp_path / "store")
    shutil.rmtree(golden.root / names.CONSUME_QUEUE)
    return golden


def foretold(root: Path, version: str, config: dict[str, object]) -> Prediction:
    conf = root.with_name("broker.conf")
    conf.write_text(conf_text(config))
    return predict(take(StoreSettings.load(root, conf, version)))


@pytest.mark.parametrize(
    ("version", "name", "setting"),
    [("4.9.7", "4.9.7-mixed", {}), ("5.1.4", "5.3.3-mixed", {"recheckReputOffsetFromCq": True})],
)
@pytest.mark.parametrize("number", [0, 1])
def test_a_slave_waits_for_ever_where_its_dispatch_cannot_read_on(
    number: int, version: str, name: str, setting: dict[str, object], tmp_path: Path
) -> None:
    golden = without_queues(name, tmp_path)
    at = record_starts(golden.root, SEGMENT)[3]
    overwrite(golden.root, SEGMENT, at + commitlog.MAGIC, b"\0\0\0\1")
    config = {**golden.config, **setting}
    found = foretold(golden.root, version, {**config, "brokerId": number})
    with Jvm(version, heap="512m") as jvm:
        store = JavaStore(version, golden.root, config, broker={"brokerId": number}, jvm=jvm)
        assert store.load()

        def start() -> None:
            with suppress(Exception):  # the JVM is gone
                store.store.start()

        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        starting.join(180.0 if found.starts else 10.0)
        assert starting.is_alive() is not found.starts
        wanted, latest = (found.log_end - at if number else 0), time.monotonic() + 120
        while (behind := int(store.store.dispatchBehindBytes())) != wanted and time.monotonic() < latest:
            time.sleep(0.1)
        jvm.kill()
    assert found.dispatched is not None
    assert found.dispatched.stuck_at == (at if number else None)
    assert behind == wanted


@pytest.mark.parametrize(("more", "unreadable"), [(20_000, False), (3, False), (3, True), (-3, False)])
def test_a_wrong_size_moves_where_the_dispatch_goes_on(more: int, unreadable: bool, tmp_path: Path) -> None:
    """Behind the segment's closing record, or behind what can't be read; a whole segment may be left out."""
    golden = without_queues("4.9.7-mixed", tmp_path)
    starts = record_starts(golden.root, SEGMENT)
    path = golden.root / names.COMMIT_LOG / names.offset_name(SEGMENT)
    (size,) = struct.unpack_from(">i", path.read_bytes(), starts[5] - SEGMENT)
    overwrite(golden.root, SEGMENT, starts[5], struct.pack(">i", size + more))
    if unreadable:
        overwrite(golden.root, SEGMENT, starts[-5] + commitlog.MAGIC, b"\0\0\0\1")
    found = foretold(golden.root, golden.version, golden.config)
    with (
        Jvm(golden.version, heap="512m") as jvm,
        JavaStore(golden.version, golden.root, golden.config, jvm=jvm) as store,
    ):
        assert store.load()
        store.start()
        ends = {
            queue: int(store.store.findConsumeQueue(*queue).getMaxOffsetInQueue()) for queue in found.queues
        }
        store.shutdown()
    assert ends == {queue: model.max_offset for queue, model in found.queues.items()}
    by_segment: Counter[int] = Counter()
    for file in (golden.root / names.CONSUME_QUEUE).rglob("0*"):
        if file.is_file():
            units = np.frombuffer(file.read_bytes(), UNIT_DTYPE)
            # As those that stand for expired messages.
            whole = (units["size"] > 0) & (units["size"] < 2**31 - 1)
            by_segment.update((units["position"][whole] // SEGMENT).tolist())
    assert sum(by_segment.values()) == found.units_added
    assert (2 not in by_segment) is (more == 20_000 or unreadable)
