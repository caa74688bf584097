"""A run on Spark goes on where one on processes of this host stopped, and the other way round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from reput.errors import ReputError
from reput.format import names
from reput.job import rebuild
from reput.store.compare import compare
from tests.golden.store import unpack
from tests.levels import tried
from tests.spark.test_golden import options, settle
from tests.spark.test_rocksdb import contents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.output.writer import Progress

pytestmark = pytest.mark.spark


class StoppedError(ReputError):
    """What ends a run in its third batch."""


@pytest.mark.parametrize("on_spark", [True, False])
@pytest.mark.parametrize("name", tried("5.3.3-mixed", more=["4.9.7-mixed", "5.5.0-rocksdb-mixed"]))
def test_it_goes_on(
    name: str, on_spark: bool, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput.replay.runner._SMALL", -1)
    golden = unpack(name, tmp_path / "store")
    asked = replace(options(golden, settle(golden)), max_bytes_per_trigger=100_000)

    def stop(progress: Progress, _total: int) -> None:
        if progress.bytes_done > 210_000:
            raise StoppedError("stopped")

    first, then = (lambda: spark, None) if on_spark else (None, lambda: spark)
    with pytest.raises(StoppedError):
        rebuild(asked, first, stop)
    summary = rebuild(asked, then)
    assert 0 < summary.new_messages < summary.messages
    whole = rebuild(replace(asked, out=tmp_path / "whole"), first)
    assert (summary.findings, summary.batches) == (whole.findings, whole.batches)
    found = compare(Path(whole.output), Path(summary.output))
    if "rocksdb" in name:
        one, other = (contents(Path(each.output) / names.CONSUME_QUEUE) for each in (whole, summary))
        assert one == other
    else:
        assert found.differences == ()
        assert found.queue_files
    ledger = DeltaTable(f"{summary.output}/{names.LEDGER}").to_pyarrow_table()
    assert len(set(ledger["batch_end"].to_pylist())) == summary.batches
