"""What a check leaves to the next one, and the row that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.diagnosis.nightly import Again, check_again, row_of
from reput.diagnosis.verdict import COUNTS, Effect
from reput.job.many import Job, Outcome, Place
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
    found = check_again(job.options, Again(before), no_spark)  # type: ignore[arg-type]
    assert {one.kind for one in found.diagnosis.findings} == {"other-settings"}
    assert before.segments
    assert found.proofs == before
    assert check_again(job.options, Again(), no_spark).proofs == Proofs()  # type: ignore[arg-type]

    outcome = Outcome(job, found, 1.0)
    row = row_of(outcome, outcome.to_dict(), {"log_end": 10})
    assert (row["messages"], row["log_end"], row["growth"]) == (None, None, None)
    assert (row["exit_code"], row["verdict"]) == (found.exit_code, found.diagnosis.verdict.sort)
    # The night after that doesn't know how far the log went.
    good = {**outcome.to_dict(), "findings": [], "end": 30, "messages": 2}
    assert row_of(outcome, good, row)["growth"] is None
    assert row_of(outcome, good, {"log_end": 10})["growth"] == 20


def test_a_row_counts_what_a_verdict_is_made_of(tmp_path: Path) -> None:
    """What a start heals, and what is harmless, is no finding of a night."""
    store = open_golden("5.3.3-mixed", tmp_path)
    job = Job(Place(store.root), options(store))
    outcome = Outcome(job, check_again(job.options, Again(), None), 1.0)  # type: ignore[arg-type]
    facts = outcome.to_dict()
    some = [{"kind": kind, "effect": kind, "said": "", "path": ""} for kind in Effect]
    row = row_of(outcome, {**facts, "findings": some}, None)
    assert {one["kind"] for one in row["finding_list"]} == set(COUNTS)
    assert row["findings"] == len(COUNTS)
    # What another host with an earlier release says has no effect.
    some = [{"kind": "wrong-unit", "said": "", "path": ""}]
    assert row_of(outcome, {**facts, "findings": some}, None)["findings"] == 1
