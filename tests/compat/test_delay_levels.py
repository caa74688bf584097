"""When a start up to 4.9 knows the delay levels: the units of delayed messages that it makes anew tell it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.format.consumequeue import UNIT
from reput.recovery.plan import plan
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES

pytestmark = pytest.mark.compat

QUEUE = Path("consumequeue", "SCHEDULE_TOPIC_XXXX", "2")
DELAYED = 18


@pytest.mark.parametrize("release", ["4.3.1", "4.8.0", "4.9.1", "4.9.2"])
def test_units_of_delayed_messages_after_a_crash(release: str, tmp_path: Path) -> None:
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(conf_text(SMALL_FILES), encoding="utf-8")
    with JavaStore(release, root, SMALL_FILES) as store:
        assert store.load()
        store.start()
        for n in range(DELAYED):
            store.put(Message("Orders", 0, b"%d" % n, tags="paid", delay_level=3))
        store.wait_dispatched()
        store.store.flush()
        store.kill()
    before = (root / QUEUE / f"{0:020d}").read_bytes()
    shutil.rmtree(root / "consumequeue")
    found = plan(take(StoreSettings.load(root, conf, release)))
    hashed = [loss for loss in found.unrepaired if loss.kind == "delay-tags-hashed"]
    assert sum(loss.count for loss in hashed) == (DELAYED if release == "4.9.2" else 0)
    with JavaStore(release, root, SMALL_FILES) as store:
        assert store.load()
    after = (root / QUEUE / f"{0:020d}").read_bytes()
    if release == "4.9.2":
        tags = [tag for _, size, tag in UNIT.iter_unpack(after) if size]
        assert tags == [3433164] * DELAYED, "the hash of 'paid'"
    else:
        assert after == before
