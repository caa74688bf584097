"""Writes golden stores: ``python -m tests.compat.write_golden [VERSION-WORKLOAD ...]``.

Without names it writes those that are missing; one that is there is replaced only when it is named. CI never
runs it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from reput.newer_python import UTC
from tests.compat import rocksdb
from tests.compat.jvm import Jvm
from tests.compat.rocksdb_workloads import rocksdb_workload
from tests.compat.workloads import workload
from tests.compat.write import write
from tests.golden.store import (
    ARCHIVE,
    DIRECTORY,
    MANIFEST,
    NAMES,
    ROCKSDB,
    describe,
    pack,
    write_dump,
)

# 5.5 opens a RocksDB beside the store; by default nothing is kept in it, and its files name absolute paths.
# DLedger's own index takes 160 MiB, nearly all of it zeros, and nobody asks it here.
_SKIPPED = ("rocksdbstore", "dledger-n0/index")


def write_golden(name: str) -> None:
    """Let the real store write one fixture, in place of the one that is there.

    Raises:
        ValueError: no such fixture.
    """
    if name not in (*NAMES, *ROCKSDB):
        raise ValueError(f"no such golden store: {name}; there are {', '.join((*NAMES, *ROCKSDB))}")
    version, _, kind = name.partition("-")
    in_rocksdb = name in ROCKSDB
    planned = (
        rocksdb_workload(kind.removeprefix("rocksdb-"), version) if in_rocksdb else workload(kind, version)
    )
    target = DIRECTORY / name
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        root = Path(scratch) / "store"
        written = write(planned, root)
        target.mkdir(exist_ok=True)
        if in_rocksdb:
            with Jvm(version) as jvm:
                write_dump(name, rocksdb.text(rocksdb.dump(jvm, root)))
        else:
            for directory in _SKIPPED:
                shutil.rmtree(root / directory, ignore_errors=True)
        pack(root, target / ARCHIVE)
        files = describe(root)
    manifest = {
        "rocketmq": version,
        "java": written.java,
        "written": datetime.now(UTC).strftime("%Y-%m-%d"),
        "workload": kind,
        "seed": planned.seed,
        "config": planned.config,
        "topics": planned.topics,
        "crashed": planned.crash,
        "log": {"start": written.log_start, "end": written.log_end},
        "counts": dict(sorted(written.counts.items())),
        "files": files,
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    (target / MANIFEST).write_text(text, encoding="utf-8")


def main(names: list[str]) -> None:
    """Write these fixtures, or all that are missing."""
    every = (*NAMES, *ROCKSDB)
    for name in names or [name for name in every if not (DIRECTORY / name / MANIFEST).exists()]:
        write_golden(name)
        print(f"{name}: {(DIRECTORY / name / ARCHIVE).stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
