"""``python -m bench.floor``: the floor below a rebuild's time, with the same code on processes without Spark.

It is the part ``floor`` of ``python -m bench``, alone with the warm rebuilds that it is compared with: the
same scan, placement, journal and flushes on as many processes as cores, which were forked when everything was
loaded. What a warm rebuild takes more is Spark's: the query, its tasks, and its way from process to process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from reput.job import RebuildOptions
from reput.job.plan import intended, prepare
from reput.job.rebuilding import bytes_per_batch
from reput.job.summary import Summary, summarize
from reput.log.segments import cut
from reput.output.writer import BatchWriter
from reput.replay.runner import Processes

PART = "floor"


def rebuilds(
    store: Path, version: str, conf: Path | None, outs: Iterable[Path]
) -> Iterator[tuple[float, Summary]]:
    """Rebuild into each of the directories; the seconds that it took, and its summary.

    Raises:
        ReputError: it is refused, or fails.
    """
    with Processes() as runner:
        for out in outs:
            yield _rebuild(RebuildOptions(store, out, conf, version), runner)


def _rebuild(options: RebuildOptions, runner: Processes) -> tuple[float, Summary]:
    began = time.perf_counter()
    with prepare(intended(options)) as plan:
        options = options.for_slots(runner.slots, plan.log.end - plan.log.start)
        before = replace(plan.journal.state)
        target = plan.target(flush_in_tasks=False)
        writer = BatchWriter(target, plan.journal, plan.log, runner, announce=lambda _: None)
        writer.begin()
        most = bytes_per_batch(plan.log.end, plan.log.end, options.max_bytes_per_trigger)
        for begin in range(0, plan.log.end, most):
            end = min(begin + most, plan.log.end)
            writer.write(list(cut(plan.log, begin, end, options.part_bytes, 0)), 0)
        writer.finish()
        seconds = time.perf_counter() - began
        summary = summarize(plan, before, seconds, None, writer.stages.seconds)
    return time.perf_counter() - began, summary


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["--one"]:
        store, version, conf, *outs = words[1:]
        done = rebuilds(Path(store), version, Path(conf) if conf else None, map(Path, outs))
        print(json.dumps([{"seconds": seconds, "summary": summary.to_dict()} for seconds, summary in done]))
        return 0
    from bench.__main__ import main as bench

    return bench([*words, "--only", "warm", PART])


if __name__ == "__main__":
    sys.exit(main())
