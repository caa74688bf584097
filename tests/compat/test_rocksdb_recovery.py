"""What reput says of a start on damaged queues in RocksDB, against what the real store does; the rest is
``make matrix``'s.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.rocksdb_matrix import disagreement, measure
from tests.levels import tried

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
