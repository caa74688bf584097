"""The real stores serve what a RocksDB leads to: every message, the next ones, and after a compaction."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.compat import rocksdb
from tests.compat.jvm import Jvm
from tests.compat.rocksdb import Families
from tests.compat.served import places, problems, serve
from tests.golden.store import ROCKSDB, GoldenStore, read_dump, unpack
from tests.levels import tried

pytestmark = pytest.mark.compat

#: In each of these something is special; the others have what these have.
SERVED = {"5.3.3": ("mixed", "light"), "5.5.0": ("lost-head", "light", "double-write", "separate-path")}


@pytest.fixture(scope="module", params=tried("5.5.0", more=["5.3.3"]))
def jvm(request: pytest.FixtureRequest) -> Iterator[Jvm]:
    with Jvm(request.param, heap="1g") as jvm:
        yield jvm


def queues_of(golden: GoldenStore) -> Families:
    found = golden.dump()
    return found.get("consumequeue_rocksdb") or found["consumequeue"]


def config_of(golden: GoldenStore) -> dict[str, object]:
    """The store's settings; under double write, RocksDB is what is read."""
    more = {} if golden.version == "5.3.3" else {"combineCQPreferCQType": "defaultRocksDB"}
    return {**golden.config, **more}


def test_what_the_real_store_wrote_is_served(jvm: Jvm, tmp_path: Path) -> None:
    def found(kind: str) -> list[str]:
        golden = unpack(f"{jvm.version}-rocksdb-{kind}", tmp_path / kind)
        expected = places(queues_of(golden))
        report = serve(jvm, golden.root, config_of(golden), expected)
        assert sum(len(queue.messages) for queue in report.first.values()) > 10
        return problems(report, expected, golden.manifest["log"]["start"])

    with ThreadPoolExecutor() as pool:  # a stop is mostly sleep
        assert list(pool.map(found, SERVED[jvm.version])) == [[]] * len(SERVED[jvm.version])


@pytest.mark.proof
def test_what_is_missing_is_found(jvm: Jvm, tmp_path: Path) -> None:
    golden = unpack(f"{jvm.version}-rocksdb-mixed", tmp_path / "store")
    queues = queues_of(golden)
    expected = places(queues)
    unit = next(key for key in queues["default"] if b"Payments" in key)
    most = next(key for key in queues["offset"] if b"Transfers\x01max" in key)
    directory = golden.root / "consumequeue"
    rocksdb.change(jvm, directory, "default", {unit: None})
    rocksdb.change(jvm, directory, "offset", {most: None})
    found = problems(serve(jvm, golden.root, config_of(golden), expected), expected)
    assert any(
        "('Payments', 0) at first: 1 of" in line or "('Payments', 0) at first: empty" in line
        for line in found
    )
    assert any("('Transfers', 0): the next message is put at 0, not at 3" in line for line in found)


def test_a_dump_is_what_the_databases_hold(jvm: Jvm, tmp_path: Path) -> None:
    for name in ROCKSDB:
        if name.startswith(jvm.version) and name.endswith(("tiny", "lmq", "separate-path")):
            golden = unpack(name, tmp_path / name)
            assert rocksdb.dump(jvm, golden.root) == read_dump(name)
