"""The real store writes through DLedger; what reput builds from its entries has the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.store.compare import compare
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.message import Message
from tests.compat.workloads import workload
from tests.compat.write import write
from tests.levels import tried
from tests.local import Store, queues, rebuild_locally, units

pytestmark = [pytest.mark.compat, pytest.mark.proof]

# Not the seed of the golden stores: other messages, in another order.
SEED = 20261122


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7"]))
def test_a_log_of_dledger_is_rebuilt_to_the_byte(version: str, tmp_path: Path) -> None:
    chosen = workload("dledger", version, SEED)
    root, out = tmp_path / "store", tmp_path / "out"
    write(chosen, root)
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(chosen.config), encoding="utf-8")

    store = Store(root, StoreSettings.load(root, conf, version, dledger=True))
    assert len(store.log.segments) > 5
    state = rebuild_locally(store, out, part_bytes=5_000, ends=[30_001, 80_000])

    found = compare(root, out)
    assert found.differences == ()
    assert found.empty_directories == ()
    assert found.queue_files > 40
    assert found.index_files >= 1
    assert state.findings == []
    if version == "5.5.0":
        _goes_on(chosen.config, root, out)


def _goes_on(config: dict[str, object], root: Path, out: Path) -> None:
    """The real store starts on what was rebuilt, changes nothing, and places the next message behind it."""
    for name in (names.CONSUME_QUEUE, names.INDEX, names.CHECKPOINT):
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        (shutil.copytree if (out / name).is_dir() else shutil.copy2)(out / name, path)
    before = queues(root)
    with JavaStore("5.5.0", root, config) as store:
        assert store.load()
        store.start()
        put = store.put(Message("Orders", body=b"one more"))
        store.wait_dispatched()
    assert put.queue_offset == len([unit for unit in units(out, "Orders") if unit[1]])
    changed = {path for path, data in queues(root).items() if before.get(path) != data}
    file_size = int(str(config["mappedFileSizeConsumeQueue"]))
    place = put.queue_offset * UNIT_LENGTH
    assert changed == {f"Orders/0/{names.offset_name(place - place % file_size)}"}
