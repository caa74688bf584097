"""``reput rebuild-many`` and ``reput verify-many``: many stores in one Spark session, each where it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import app as commands
from reput.cli.arguments import (
    BROKER_CONF_VARIABLE,
    AsJson,
    KnownTopicsOnly,
    Master,
    NoIndex,
    SingleHost,
    WrittenAs,
    WrittenBy,
    by_hand,
    size,
)
from reput.cli.commands import LOOK, MEND
from reput.cli.output import Output, at_most, inline, table, told
from reput.errors import ReputError, SettingsError
from reput.spark.java import check_spark
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.job.many import Job, Outcome, Result
    from reput.spark.on_host import HostRunner

_REBUILD_EXAMPLES = """**Examples**

Each broker's store, with its own broker.conf beside it, two at a time:

    reput rebuild-many /brokers/*/store --out-root /rebuilt --broker-conf '{store}/../broker.conf' --at-once 2

Stores on the brokers' own hosts, where a Spark worker runs:

    reput rebuild-many broker-a:/data/store broker-b:/data/store --out-root /data/rebuilt --master spark://host:7077
"""
_VERIFY_EXAMPLES = """**Examples**

Each broker's store, with its own broker.conf beside it, two at a time:

    reput verify-many /brokers/*/store --broker-conf '{store}/../broker.conf' --at-once 2

Stores on the brokers' own hosts, where a Spark worker runs:

    reput verify-many broker-a:/data/store broker-b:/data/store --master spark://host:7077 --at-once 2
"""

_Stores = Annotated[
    list[str],
    typer.Argument(
        metavar="STORE",
        help="Directories that hold commitlog/, here (PATH) or on a host with a Spark worker (HOST:/PATH); "
        "or a stores.toml that lists stores.",
    ),
]
_BrokerConf = Annotated[
    Path | None,
    typer.Option(
        "--broker-conf",
        "-c",
        metavar="FILE",
        envvar=BROKER_CONF_VARIABLE,
        help="The brokers' configuration file, on each store's host; {store} in it stands for each store's "
        "path, {host} for its host.",
    ),
]
_AtOnce = Annotated[
    int,
    typer.Option("--at-once", metavar="N", min=1, help="How many stores at a time; on each host one."),
]


@commands.app.command("rebuild-many", epilog=_REBUILD_EXAMPLES, rich_help_panel=MEND)
def rebuild_many_command(
    ctx: typer.Context,
    stores: _Stores,
    out_root: Annotated[
        Path,
        typer.Option(
            "--out-root",
            metavar="DIR",
            help="On each store's host: each output goes to the place below DIR that its store has below the "
            "common directory of that host's stores. {host} in it stands for the host.",
        ),
    ],
    broker_conf: _BrokerConf = None,
    rocketmq_version: WrittenAs = None,
    no_index: NoIndex = False,
    known_topics_only: KnownTopicsOnly = False,
    max_bytes_per_trigger: Annotated[
        str,
        typer.Option("--max-bytes-per-trigger", metavar="SIZE", help="Log bytes between two commits."),
    ] = "4g",
    at_once: _AtOnce = 1,
    single_host: SingleHost = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild many stores, each to an output of its own, in one Spark session.

    A store given as HOST:/PATH is rebuilt by a task on that host alone, into an output there. A store that
    is refused or fails doesn't stop the others. Run the same command again to resume unfinished outputs;
    finished ones are skipped.

    Exit code: the highest of all stores. 0: done and sound. 1: done, with findings. 2: refused or failed.
    """
    from reput.job.many import plan_rebuilds
    from reput.job.options import RebuildOptions
    from reput.job.store_list import listed

    with Output(as_json) as output:
        common = RebuildOptions(
            store=Path(),
            broker_conf=broker_conf,
            rocketmq_version=rocketmq_version,
            index=not no_index,
            known_topics_only=known_topics_only,
            single_host=single_host,
            max_bytes_per_trigger=size("--max-bytes-per-trigger", max_bytes_per_trigger),
            conf_by_hand=by_hand(ctx, "broker_conf"),
            version_by_hand=by_hand(ctx, "rocketmq_version"),
        )
        outcomes = _done(
            plan_rebuilds(listed(stores), out_root, common), "reput rebuild-many", master, at_once
        )
    facts = {"out_root": str(out_root), "stores": [outcome.to_dict() for outcome in outcomes]}
    output.end(_worst(outcomes), facts, _lines(outcomes, "Rebuilt", f" into {inline(str(out_root))}"))


@commands.app.command("verify-many", epilog=_VERIFY_EXAMPLES, rich_help_panel=LOOK)
def verify_many_command(
    stores: _Stores,
    broker_conf: _BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Don't look at the index files.")] = False,
    at_once: _AtOnce = 1,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Compare many stores' queues, index and checkpoint with their commit logs, in one Spark session.

    A store given as HOST:/PATH is verified by a task on that host alone. A store that is refused or fails
    doesn't stop the others. Nothing is changed.

    Exit code: the highest of all stores. 0: sound. 1: findings. 2: refused or failed.
    """
    from reput.job.many import plan_verifications
    from reput.job.store_list import listed
    from reput.verify import VerifyOptions

    with Output(as_json, interrupted="nothing was changed") as output:
        common = VerifyOptions(
            store=Path(), broker_conf=broker_conf, rocketmq_version=rocketmq_version, index=not no_index
        )
        outcomes = _done(plan_verifications(listed(stores), common), "reput verify-many", master, at_once)
    facts = {"stores": [outcome.to_dict() for outcome in outcomes]}
    output.end(_worst(outcomes), facts, _lines(outcomes, "Verified"))


def _done(jobs: Sequence[Job], application: str, master: str | None, at_once: int) -> list[Outcome]:
    """What came of all; a line on stderr for each."""
    from reput.job.many import Once, run_many

    check_spark()
    if any(job.place.host is not None for job in jobs):
        _check_cluster(master)
    left = len(jobs)

    def told_of(outcome: Outcome) -> None:
        nonlocal left
        left -= 1
        told(f"{outcome.job.place}: exit code {outcome.exit_code}, {counted(left, 'store')} left")

    session = Once(lambda: commands.start_spark(application, master))
    return run_many(jobs, _worker(session), at_once, told_of)


def _check_cluster(master: str | None) -> None:
    """Check that there may be executors on other hosts.

    Raises:
        SettingsError: the session will be a local one.
    """
    from reput.spark.sessions import master_of

    found = master_of(master)
    if found is not None and found.startswith("local"):
        raise SettingsError(
            "a store on a host needs a Spark executor there",
            expected="a cluster's master",
            found=found,
            next_step="Name it with --master, or run it by spark-submit; a path without a host is one here",
        )


def _worker(session: Callable[[], SparkSession]) -> Callable[[Job], Result]:
    """What does a job, here or on its host."""
    from reput.cli.elsewhere import run_on
    from reput.job.many import Once
    from reput.job.options import RebuildOptions
    from reput.job.run import rebuild
    from reput.verify import verify

    def start() -> HostRunner:
        from reput.spark.on_host import HostRunner

        return HostRunner(session().sparkContext)

    runner = Once(start)

    def work(job: Job) -> Result:
        if job.place.host is not None:
            return run_on(job.place.host, runner(), job)
        if isinstance(job.options, RebuildOptions):
            return rebuild(job.options, session)
        return verify(job.options, session)

    return work


def _worst(outcomes: Sequence[Outcome]) -> int:
    return max(outcome.exit_code for outcome in outcomes)


_NUMBERS = ("code", "messages", "log", "queues", "index", "findings", "seconds")


def _lines(outcomes: Sequence[Outcome], did: str, where: str = "") -> Iterator[str]:
    done = sum(not isinstance(outcome.result, ReputError) for outcome in outcomes)
    yield f"{did} {done:,} of {counted(len(outcomes), 'store')}{where}"
    yield from table((*_NUMBERS, "store"), [_row(outcome) for outcome in outcomes], _NUMBERS)
    for outcome in outcomes:
        place = inline(str(outcome.job.place))
        if isinstance(outcome.result, ReputError):
            yield f"  failed     {outcome.result}"
        elif outcome.exit_code:
            ledger = "" if outcome.job.is_verification else ", and in its ledger"
            yield f"  findings   of {place}: in --json{ledger}"
            steps: Any = outcome.to_dict()["next_steps"]
            on_host = "" if outcome.job.place.host is None else f"on {outcome.job.place.host}: "
            yield from at_most(f"  next       {on_host}", steps, "             and {} more; --json has all")


def _row(outcome: Outcome) -> tuple[str, ...]:
    facts: tuple[str, ...] = ("",) * 5
    if not isinstance(outcome.result, ReputError):
        found: Any = outcome.result.to_dict()
        numbers = (found["queues"], found["index_files"], len(found["findings"]))
        facts = (f"{found['messages']:,}", human(found["bytes"]), *(f"{number:,}" for number in numbers))
    return str(outcome.exit_code), *facts, f"{outcome.seconds:.1f}", str(outcome.job.place)
