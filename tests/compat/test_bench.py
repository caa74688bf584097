"""The benchmark's parts that drive the real store, over a small log."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.generate import KEYS_PER_MESSAGE, log_directory, write_log
from bench.java_load import count_keys, count_units, known_result, measure, reference
from bench.rocksdb import by_java, check_same
from tests.compat import rocksdb
from tests.compat.jvm import Jvm

pytestmark = [pytest.mark.compat, pytest.mark.proof]

SIZE = 2 << 20


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Leave no py4j object for later: finalized while CPython 3.11 parses, it breaks that (gh-106905)."""
    yield
    gc.collect()


@pytest.mark.parametrize(("written_by", "versions"), [("5.5.0", {"4.9.7": 0, "5.5.0": 1}), ("4.9.7", {})])
def test_the_real_store_writes_a_log_and_rebuilds_it(
    written_by: str, versions: dict[str, int], tmp_path: Path
) -> None:
    log = write_log(tmp_path, written_by, SIZE)
    assert SIZE <= log.end < SIZE + 10_000
    assert 600 < log.end / log.messages < 800
    assert [path.name for path in log.store.iterdir()] == ["commitlog"]
    assert len(log.segments) == 1
    written = log.segments[0].stat().st_mtime_ns
    assert write_log(tmp_path, written_by, SIZE) == log
    home = log_directory(tmp_path, written_by, SIZE)
    for version, more_keys in versions.items():
        result = measure(home, log, version, cores=1, repeat=2)
        assert len(result.seconds) == 2
        assert known_result(home, version) == result
        assert measure(home, log, version, cores=1, repeat=1, keep=False).cores == 1
        assert known_result(home, version) == result
        rebuilt = reference(home, version)
        assert count_units(rebuilt) == log.messages
        assert count_keys(rebuilt) == log.messages * (KEYS_PER_MESSAGE + more_keys)
    assert log.segments[0].stat().st_mtime_ns == written


def test_the_real_store_loads_a_log_into_rocksdb(tmp_path: Path) -> None:
    version = "5.5.0"
    log = write_log(tmp_path, version, SIZE)
    measured = by_java(log, tmp_path / "one", version, 2, {"storeType": "defaultRocksDB"})
    assert measured.seconds[0] > 0
    assert measured.peak_bytes > 0
    by_java(log, tmp_path / "other", version, 2, {"storeType": "defaultRocksDB"})
    with Jvm(version) as jvm:
        assert check_same(jvm, tmp_path / "one", tmp_path / "other") == log.messages
        checkpoint = rocksdb.entries(jvm, tmp_path / "other" / "consumequeue", "offset")[rocksdb.CHECKPOINT]
        assert int.from_bytes(checkpoint) == log.end
        rocksdb.change(jvm, tmp_path / "other" / "consumequeue", "offset", {rocksdb.CHECKPOINT: None})
        with pytest.raises(BenchError, match="1 other max or checkpoint keys"):
            check_same(jvm, tmp_path / "one", tmp_path / "other")
