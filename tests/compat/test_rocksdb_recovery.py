"""What reput says of a start on damaged queues in RocksDB, against what the real store does; the rest is
``make matrix``'s.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.format import commitlog, names, rocksdbindex
from reput.recovery.plan import plan
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.jvm import Jvm
from tests.compat.rocksdb_matrix import disagreement, measure
from tests.golden.store import unpack
from tests.levels import tried
from tests.rebuilds import overwrite, record_starts
from tests.rocksdbs import writing

pytestmark = pytest.mark.compat

#: A start that loses a record, one that can't see its messages, one that doesn't come about, one that cuts.
DAMAGES = ("gone", "no_max_keys", "max_low", "hole", "torn_log", "no_table")


@pytest.mark.parametrize("version", tried("5.5.0", more=["5.3.3"]))
def test_a_start_on_queues_in_rocksdb_is_predicted(version: str, tmp_path: Path) -> None:
    rows = measure(version, tmp_path, DAMAGES)
    assert len(rows) == 2 * len(DAMAGES)
    wrong = {(row.damage, row.stop): found for row in rows if (found := disagreement(row))}
    assert wrong == {}
    kinds = {(row.damage, row.stop): row.reput.kinds for row in rows if row.reput is not None}
    assert kinds["gone", "stopped"] == {"missing-unit": 1}
    assert kinds["gone", "crashed"] == {}


@pytest.mark.parametrize("crashed", [True, False])
def test_a_start_goes_back_to_where_the_index_in_rocksdb_ends(crashed: bool, tmp_path: Path) -> None:
    """A wrong body far behind the queues' end cuts the log where the index has missed messages."""
    golden = unpack("5.5.0-rocksdb-index", tmp_path / "store")
    root, size = golden.root, int(str(golden.config["mappedFileSizeCommitLog"]))
    data = (root / names.COMMIT_LOG / names.offset_name(2 * size)).read_bytes()
    starts = [one - 2 * size for one in record_starts(root, 2 * size)]
    at = 2 * size + next(one for one in starts[3:] if commitlog.decode(data, one).body)
    record = commitlog.decode(data, at - 2 * size)
    body = at - 2 * size + data[at - 2 * size :].index(record.body)
    overwrite(root, size, 2 * size + body, bytes([data[body] ^ 1]))
    with writing(root / names.ROCKSDB_STORE, "timer", "trans") as db:
        db[rocksdbindex.LAST_POSITION] = rocksdbindex.value(0)
        db.flush()
    if crashed:
        (root / names.ABORT).touch()
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(golden.config))
    found = plan(take(StoreSettings.load(root, conf, golden.version, rocksdb=True, elsewhere=True)))
    assert found.prediction.log_end == at
    with Jvm(golden.version, heap="512m") as jvm:
        assert JavaStore(golden.version, root, golden.config, jvm=jvm).load()
    left = sorted(int(path.name) for path in (root / names.COMMIT_LOG).iterdir())
    assert left == [one.base for one in found.prediction.segments] == [0, size, 2 * size]
