"""A diagnosis that goes on from what was proven before, with its row in the history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from reput.config.settings import StoreSettings
from reput.diagnosis.verdict import COUNTS, Effect
from reput.errors import ReputError, Result
from reput.format.names import Queue
from reput.job.many import Outcome
from reput.newer_python import UTC
from reput.remote import client, remote_store, with_urls
from reput.remote.store import KnownFile
from reput.verify.plan import VerifyOptions
from reput.verify.proofs import Remembering
from reput.verify.proven import Proofs
from reput.verify.report import OTHER_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.diagnosis.check import Diagnosis
    from reput.job.history import Row
    from reput.statistics import Listener

REFUSED = "refused"
#: Findings that a row lists.
MOST_FINDINGS = 1000


@dataclass(frozen=True, slots=True)
class Again:
    """What a check goes on from."""

    before: Proofs | None = None  # what was proven; None for the first one
    #: nothing: all is compared again, and what was told of changed segments is forgotten
    everything: bool = False
    digests: bool = False  # what the bytes say; those of all files are read

    @property
    def known_files(self) -> dict[str, KnownFile]:
        """Queue and index files of a store elsewhere that needn't be copied while they stay as they are."""
        if self.before is None or self.everything or self.digests:
            return {}
        return self.before.known_files()


@dataclass(slots=True)
class Checked(Result):
    """What came of it."""

    diagnosis: Diagnosis  # the store's
    lag: int | None  # messages that consumer groups still have to read; None where that can't be told
    proofs: Proofs  # for the next run

    @property
    def exit_code(self) -> int:
        """That of the diagnosis."""
        return self.diagnosis.exit_code

    def to_dict(self) -> dict[str, object]:
        """The diagnosis, and the lag."""
        return {**self.diagnosis.to_dict(), "lag": self.lag}


def check_again(
    options: VerifyOptions,
    again: Again,
    start_spark: Callable[[], SparkSession] | None,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Checked:
    """Diagnose a store, compare what isn't proven yet, and look at consumers' lag."""
    from reput.diagnosis.check import check

    proven = Remembering(again.before, read_all=again.digests, anew=again.everything)
    found = check(options, start_spark, listener, proven=proven)
    report = found.report
    # By settings that aren't the files', nothing is compared, and nothing of what is known goes.
    is_compared = report is not None and report.remembered is not None
    left = proven.after if is_compared else again.before or Proofs()
    elsewhere = remote_store(options.store)
    # Elsewhere files aren't opened for what the log and they were just found to say.
    behind = _lag(options, proven.settings, {} if elsewhere is None else proven.ends)
    if elsewhere is not None and report is not None and report.remembered is not None:
        report.remembered = replace(report.remembered, spent=client.total(elsewhere.url))
    return Checked(found, behind, left)


def _lag(
    options: VerifyOptions, settings: StoreSettings | None, ends: Mapping[Queue, tuple[int, int]]
) -> int | None:
    """Messages that consumer groups still have to read; None without committed offsets, or a queue."""
    from reput.lag import total_lag

    try:
        if settings is None:
            settings = StoreSettings.load(
                options.store, options.broker_conf, options.rocketmq_version, dledger=True, rocksdb=True
            )
        return total_lag(settings, ends)
    except ReputError:
        return None


def that_count(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of a document's findings those that a verdict is made of; all where none says what comes of it."""
    return [one for one in findings if one.get("effect", Effect.LACKS) in COUNTS]


def row_of(outcome: Outcome, facts: dict[str, Any], last: Row | None) -> Row:
    """The history's row of a store.

    ``facts``: :meth:`Outcome.to_dict` of it. ``last``: its last row that wasn't refused.
    """
    job = outcome.job
    row: Row = {
        "time": datetime.now(UTC),
        "cluster": job.cluster,
        "broker": job.broker,
        "place": str(job.place),
        "exit_code": outcome.exit_code,
        "next_steps": [with_urls(step) for step in facts["next_steps"]],
        "seconds": outcome.seconds,
    }
    if isinstance(outcome.result, ReputError):
        return {**row, "verdict": REFUSED, "summary": with_urls(str(outcome.result))}
    remembered = facts.get("remembered") or {}
    findings = that_count(facts["findings"])
    shown = ("kind", "area", "said", "path", "topic", "queue_id", "count", "first_seen")
    compared = facts["end"] is not None and all(one["kind"] != OTHER_SETTINGS for one in findings)
    is_growth = compared and last is not None and last["log_end"] is not None
    return {
        **row,
        "verdict": facts["verdict"],
        "summary": with_urls(facts["summary"]),
        "findings": len(findings),
        "finding_list": [
            {key: with_urls(one[key]) if key in ("said", "path") else one.get(key) for key in shown}
            for one in findings[:MOST_FINDINGS]
        ],
        "messages": facts["messages"] if compared else None,
        "log_start": facts["start"] if compared else None,
        "log_end": facts["end"] if compared else None,
        "growth": facts["end"] - last["log_end"] if last is not None and is_growth else None,
        "lag": facts.get("lag"),
        "segments": remembered.get("segments"),
        "segments_skipped": remembered.get("segments_skipped"),
        "bytes_read": remembered.get("bytes_read"),
        "bytes_skipped": remembered.get("bytes_skipped"),
        "requests": remembered.get("requests"),
        "bytes_fetched": remembered.get("bytes_fetched"),
    }
