"""What a verification leaves to the next one, and the row that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.job.many import Job, Outcome
from reput.job.nightly import Again, row_of, verify_again
from reput.job.place import Place
from reput.replay.runner import InlineRunner
from reput.verify.plan import VerifyOptions, prepare
from reput.verify.proofs import GONE, Proofs, Remembering
from reput.verify.report import LOG, Difference
from reput.verify.run import check
from tests.unit.verify.test_verify import open_golden, options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def no_spark() -> SparkSession:
    pytest.fail("nothing is compared")


def test_a_wrong_broker_conf_leaves_what_was_proven(tmp_path: Path) -> None:
    store = open_golden("5.3.3-mixed", tmp_path)
    proven = Remembering(None)
    check(prepare(options(store, batch_bytes=1)), InlineRunner(), proven=proven)
    before = proven.after
    before.told = [Difference(GONE, "path", LOG, "a", "b")]
    conf = tmp_path / "wrong.conf"
    conf.write_text("maxIndexNum=77\nmaxHashSlotNum=33\nmappedFileSizeConsumeQueue=60000\n")
    job = Job(Place(store.root), VerifyOptions(store.root, broker_conf=conf))
    verified = verify_again(job.options, Again(before), no_spark)  # type: ignore[arg-type]
    assert {one.kind for one in verified.report.findings} == {"other-settings"}
    assert before.segments
    assert verified.proofs == before
    assert verify_again(job.options, Again(), no_spark).proofs == Proofs()  # type: ignore[arg-type]

    outcome = Outcome(job, verified, 1.0)
    row = row_of(outcome, outcome.to_dict(), {"log_end": 10})
    assert (row["exit_code"], row["messages"], row["log_end"], row["growth"]) == (1, None, None, None)
    # The night after that doesn't know how far the log went.
    good = {**outcome.to_dict(), "findings": [], "end": 30, "messages": 2}
    assert row_of(outcome, good, row)["growth"] is None
    assert row_of(outcome, good, {"log_end": 10})["growth"] == 20
