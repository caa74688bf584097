"""How a run's tasks write: into the same files where all share one page cache, else each its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from reput.errors import OtherHostError

if TYPE_CHECKING:
    from reput.job.plan import Plan
    from reput.replay.target import Target
    from reput.spark.runner import SparkRunner

_Result = TypeVar("_Result")


def as_hosts_allow(
    plan: Plan, runner: SparkRunner, announce: Callable[[str], None], work: Callable[[Target], _Result]
) -> _Result:
    """Do a run's work, with tasks that write as the hosts of the executors allow.

    If an executor comes later, on a host that the others' way excludes, the work is begun again from what is
    committed.

    Args:
        announce: gets a line that says how tasks write, where that isn't the way of one host.
        work: begins by rolling back what isn't committed.

    Raises:
        ReputError: the work's; or a worker doesn't see what this process sees.
    """
    wanted = plan.options.single_host
    others = runner.other_hosts(plan.root) if wanted is None else []
    if wanted is None and not others and not runner.is_local:
        try:
            with runner.sharing_pages(plan.root):
                return work(plan.target(flush_in_tasks=True))
        except OtherHostError as error:
            others = [str(error.host)]
    several = bool(others) or wanted is False
    if several:
        where = f"executors on {_listed(others)}" if others else "executors may be on several hosts"
        announce(f"{where}: each queue file and index file is written by one process")
    return work(plan.target(flush_in_tasks=not runner.is_local, several_hosts=several))


def _listed(hosts: list[str]) -> str:
    shown = ", ".join(hosts[:3])
    return shown if len(hosts) <= 3 else f"{shown} and {len(hosts) - 3} more hosts"
