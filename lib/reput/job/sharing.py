"""What executors on other hosts have to prove before they do a job's work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from reput.job.plan import Plan

if TYPE_CHECKING:
    from reput.spark.runner import SparkRunner


@contextmanager
def shared(runner: SparkRunner, plan: Plan) -> Iterator[None]:
    """Have every worker prove that it sees the plan's output, for as long as the block has tasks.

    That it sees the plan's log it proves with each part: see :mod:`reput.store.witness`.

    Raises:
        OutputError: nothing can be written to the output.
    """
    if runner.is_local:
        yield
        return
    from reput.spark.shared_output import shared_output
    from reput.store.witness import config_seen

    with shared_output(plan.root, plan.owner) as output:
        runner.demand(output, config_seen(plan.settings.config_files))
        yield
