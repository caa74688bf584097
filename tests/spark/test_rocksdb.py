"""Queues and index in RocksDB, rebuilt from the log alone: the keys and values that the real store wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.errors import OutputError
from reput.format import names, rocksdbqueue
from reput.format.rocksdbqueue import OFFSETS, UNITS
from reput.job import rebuild
from reput.rocksdb import opened
from reput.store.compare import compare
from tests.golden.store import ROCKSDB, GoldenStore, unpack
from tests.levels import tried
from tests.spark.test_golden import options, settle, workload

if TYPE_CHECKING:
    from tests.compat.rocksdb import Families
    from tests.spark.test_golden import StartSpark

# A topic whose deletion left no trace in the log.
FINDINGS = {
    "rocksdb-lmq": {"repeated-message", "queue-offset-jump", "repeated-queue-offset"},
    "rocksdb-light-only": {"repeated-message", "queue-offset-jump", "repeated-queue-offset"},
    "rocksdb-recreated-topic": {"queue-restarted"},
}
NOT_DERIVED = {"rocksdb-recreated-topic": (b"Again", 2)}


EVERY = ROCKSDB
#: What is rebuilt on Spark; without it all are.
ON_SPARK = tried("5.3.3-rocksdb-mixed", "5.5.0-rocksdb-lmq", "5.5.0-rocksdb-index", more=EVERY)
RUNS = [
    *((name, "processes") for name in EVERY),
    *(pytest.param(name, "spark", marks=pytest.mark.spark) for name in dict.fromkeys(ON_SPARK)),
]


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return unpack(request.param, tmp_path / "store")


def contents(directory: Path) -> Families:
    """All keys and values of a database, by column family."""
    with opened(directory) as database:
        return {
            family: {
                key: value
                for keys, values in database.blocks(family)
                for key, value in zip(keys, values, strict=True)
            }
            for family in database.families
        }


def check_queues(found: Families, expected: Families, left_out: tuple[bytes, int] | None) -> None:
    """Hold a queues' database against the real one; of ``min`` keys the real one has what was asked for."""
    assert list(found) == list(expected) == [UNITS, OFFSETS]
    units, ends = dict(found[UNITS]), dict(found[OFFSETS])
    firsts = {
        key: value
        for key, value in ends.items()
        if (parsed := rocksdbqueue.parse_offset_key(key)) is not None and parsed.which == rocksdbqueue.MIN
    }
    for key, value in firsts.items():
        parsed = rocksdbqueue.parse_offset_key(key)
        end = rocksdbqueue.parse_offset(value)
        assert parsed is not None
        assert end is not None
        first = min(
            key for key in units if key.startswith(rocksdbqueue.prefix(parsed.topic, parsed.queue_id))
        )
        unit = rocksdbqueue.parse_unit(units[first])
        assert unit is not None
        assert first == rocksdbqueue.unit_key(parsed.topic, parsed.queue_id, end.queue_offset)
        assert unit.position == end.position
        if key not in expected[OFFSETS]:
            del ends[key]
    if left_out is not None:
        more = [key for key in units if key.startswith(rocksdbqueue.prefix(*left_out))]
        for key in more:
            assert key not in expected[UNITS]
            del units[key]
        assert more
        del ends[rocksdbqueue.offset_key(*left_out, rocksdbqueue.MAX)]
    assert units == expected[UNITS]
    assert ends == expected[OFFSETS]


@pytest.mark.parametrize(("golden", "start_spark"), RUNS, indirect=True)
def test_every_key_is_that_of_the_java_store(golden: GoldenStore, start_spark: StartSpark) -> None:
    summary = rebuild(options(golden, settle(golden)), start_spark)
    out = Path(summary.output)
    expected = golden.dump()
    for directory in (name for name in expected if name.startswith("consumequeue")):
        found = contents(out / directory)
        check_queues(found, expected[directory], NOT_DERIVED.get(workload(golden)))
    index = golden.manifest["config"].get("indexRocksDBEnable", False)
    assert (out / names.ROCKSDB_STORE).exists() == bool(index)
    if index:
        assert contents(out / names.ROCKSDB_STORE) == expected[names.ROCKSDB_STORE]
    in_files = golden.manifest["config"].get("rocksdbCQDoubleWriteEnable", False)
    assert any(path.is_dir() for path in (out / "consumequeue").glob("*")) == bool(in_files)
    # All else is in files, as ever.
    of_rocksdb = tuple(f"{directory}/" for directory in expected)
    differences = compare(golden.root, out).differences
    assert [
        line for line in differences if not (line.startswith(of_rocksdb) and "/" not in line.split("/", 1)[1])
    ] == []
    kinds = {finding.kind for finding in summary.findings}
    assert kinds <= FINDINGS.get(workload(golden), set())
    assert not (out / names.REPUT / names.ROCKSDB).exists()


def test_a_database_is_not_added_to(tmp_path: Path, start_spark: StartSpark) -> None:
    golden = unpack("5.5.0-rocksdb-mixed", tmp_path / "store")
    last = sorted((golden.root / names.COMMIT_LOG).iterdir())[-1]
    data = last.read_bytes()
    last.unlink()
    asked = options(golden, settle(golden))
    first = rebuild(asked, start_spark)
    before = contents(Path(first.output) / "consumequeue")
    assert rebuild(asked, start_spark).new_messages == 0
    last.write_bytes(data)
    with pytest.raises(OutputError, match="a database isn't added to") as refused:
        rebuild(asked, start_spark)
    assert refused.value.path == str(Path(first.output) / "consumequeue")
    assert contents(Path(first.output) / "consumequeue") == before
