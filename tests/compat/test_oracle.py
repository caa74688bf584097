"""The real store writes while the test runs; what reput builds from its commit log has the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.store.compare import compare
from tests.compat.conf import conf_text
from tests.compat.workloads import workload
from tests.compat.write import write
from tests.levels import tried
from tests.local import Store, rebuild_locally

pytestmark = pytest.mark.compat

# Not the seed of the golden stores: other messages, in another order.
SEED = 20261121


@pytest.mark.parametrize("version", tried("4.9.7", "5.5.0", more=["5.3.3"]))
def test_a_store_written_now_is_rebuilt_to_the_byte(version: str, tmp_path: Path) -> None:
    chosen = workload("mixed", version, SEED)
    root = tmp_path / "store"
    write(chosen, root)
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(chosen.config), encoding="utf-8")

    store = Store(root, StoreSettings.load(root, conf, version))
    state = rebuild_locally(store, tmp_path / "out", part_bytes=20_000, ends=[100_001, 250_000])

    found = compare(root, tmp_path / "out")
    assert found.differences == ()
    assert found.empty_directories == ()
    assert found.queue_files > 40
    assert found.index_files > 4
    assert state.findings == []
