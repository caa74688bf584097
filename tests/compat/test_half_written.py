"""A last message whose properties were half written when the broker died: taken as a broker takes it, told.

Its frame is whole and its body has the stored CRC; no checksum covers the properties, whose end is zeros.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.format import names
from reput.store.compare import compare
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried
from tests.local import Store, rebuild_locally

pytestmark = pytest.mark.compat


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7"]))
@pytest.mark.parametrize("missing", [3, 25], ids=["in the last value", "from a name on"])
def test_half_written_properties(version: str, missing: int, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with JavaStore(version, root, SMALL_FILES) as store:
        assert store.load()
        store.start()
        for n in range(3):
            store.put(Message("Orders", 0, b"body", tags="aTag", keys="a-key another", uniq_key=f"unique{n}"))
        store.wait_dispatched()
        end = int(store.store.getMaxPhyOffset())
        store.kill()
    with (root / names.COMMIT_LOG / names.offset_name(0)).open("r+b") as log:
        log.seek(end - missing)
        assert log.read(missing).count(0) == 0, "all of it properties"
        log.seek(end - missing)
        log.write(bytes(missing))
    for path in sorted((root / names.COMMIT_LOG).iterdir())[1:]:
        path.unlink()  # made ahead of time
    for name in (names.CONSUME_QUEUE, names.INDEX):
        shutil.rmtree(root / name)
    (root / names.CHECKPOINT).unlink()

    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(SMALL_FILES), encoding="utf-8")
    out = tmp_path / "out"
    state = rebuild_locally(Store(root, StoreSettings.load(root, conf, version)), out)
    assert (state.messages, state.cursor) == (3, end)
    (finding,) = state.findings
    assert (finding.kind, finding.end) == ("torn-properties", end)
    assert finding.found.startswith(f"zeros in the last {missing} of ")

    with JavaStore(version, root, SMALL_FILES) as store:
        assert store.load()
        store.start()
        store.wait_dispatched()
        assert int(store.store.getMaxPhyOffset()) == end
        assert int(store.store.getMaxOffsetInQueue("Orders", 0)) == 3
    found = compare(root, out)
    assert [line for line in found.differences if not line.startswith("index")] == []
