"""What a start dispatches where the log has damage behind the queues' end, against what reput says of it."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from reput.broker.predict import Prediction, predict
from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.format import commitlog, names
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
        starting.join(60.0 if found.starts else 10.0)
        assert starting.is_alive() is not found.starts
        behind = int(store.store.dispatchBehindBytes())
        jvm.kill()
    assert found.dispatched is not None
    assert found.dispatched.stuck_at == (at if number else None)
    assert behind == (found.log_end - at if number else 0)
