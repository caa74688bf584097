"""The log of a Delta table that was written by the package deltalake, made durable."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from reput.store import files
from reput.store.delta_log import flush_log


def test_all_entries_and_checkpoints_since_are_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    real = files.fsync_path
    monkeypatch.setattr(files, "fsync_path", lambda path: (flushed.append(path.name), real(path)))

    def commit(times: int) -> None:
        for number in range(times):
            write_deltalake(str(tmp_path), pa.table({"a": [number]}), mode="append")

    commit(3)
    assert flush_log(tmp_path) == 2  # left by a process that was killed, perhaps
    assert sorted(flushed) == [f"{version:020d}.json" for version in range(3)]
    flushed.clear()
    commit(2)  # another process's among them
    DeltaTable(str(tmp_path)).create_checkpoint()
    DeltaTable(str(tmp_path)).optimize.compact()
    assert flush_log(tmp_path, 2) == 5
    entries = [f"{version:020d}.json" for version in (3, 4, 5)]
    assert sorted(flushed) == sorted([*entries, f"{4:020d}.checkpoint.parquet", "_last_checkpoint"])
    # A checkpoint that another process has made of a version that was flushed.
    flushed.clear()
    assert flush_log(tmp_path, 5) == 5
    assert sorted(flushed) == [f"{4:020d}.checkpoint.parquet", "_last_checkpoint"]
    # Another process begins with the checkpoint.
    flushed.clear()
    assert flush_log(tmp_path) == 5
    assert f"{3:020d}.json" not in flushed
    assert entries[2] in flushed
