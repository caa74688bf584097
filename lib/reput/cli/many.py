"""``reput rebuild-many``: many stores in one Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    by_hand,
    size,
)
from reput.cli.commands import MEND
from reput.cli.output import Output, inline, table, told
from reput.errors import ReputError
from reput.spark.java import check_spark
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.job.many import Outcome

_EXAMPLES = """**Examples**

Each broker's store, with its own broker.conf beside it, two at a time:

    reput rebuild-many /brokers/*/store --out-root /rebuilt --broker-conf '{store}/../broker.conf' --at-once 2
"""


@commands.app.command("rebuild-many", epilog=_EXAMPLES, rich_help_panel=MEND)
def rebuild_many_command(
    ctx: typer.Context,
    stores: Annotated[
        list[Path], typer.Argument(metavar="STORE", help="Stores: directories that hold commitlog/.")
    ],
    out_root: Annotated[
        Path,
        typer.Option(
            "--out-root",
            metavar="DIR",
            help="Each output goes to the place below DIR that its store has below their common directory.",
        ),
    ],
    broker_conf: Annotated[
        Path | None,
        typer.Option(
            "--broker-conf",
            "-c",
            metavar="FILE",
            envvar=BROKER_CONF_VARIABLE,
            help="The brokers' configuration file; {store} in it stands for each store's path.",
        ),
    ] = None,
    rocketmq_version: WrittenAs = None,
    no_index: NoIndex = False,
    known_topics_only: KnownTopicsOnly = False,
    max_bytes_per_trigger: Annotated[
        str,
        typer.Option("--max-bytes-per-trigger", metavar="SIZE", help="Log bytes between two commits."),
    ] = "4g",
    at_once: Annotated[
        int, typer.Option("--at-once", metavar="N", min=1, help="How many stores to rebuild at a time.")
    ] = 1,
    single_host: SingleHost = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild many stores, each to an output of its own, in one Spark session.

    A store that is refused or fails doesn't stop the others. Run the same command again to resume unfinished
    outputs; finished ones are skipped.

    Exit code: the highest of all stores. 0: done and sound. 1: done, with findings. 2: refused or failed.
    """
    from reput.job.many import plan_many, rebuild_many
    from reput.job.options import RebuildOptions

    with Output(as_json) as output:
        common = RebuildOptions(
            store=stores[0],
            broker_conf=broker_conf,
            rocketmq_version=rocketmq_version,
            index=not no_index,
            known_topics_only=known_topics_only,
            single_host=single_host,
            max_bytes_per_trigger=size("--max-bytes-per-trigger", max_bytes_per_trigger),
            conf_by_hand=by_hand(ctx, "broker_conf"),
            version_by_hand=by_hand(ctx, "rocketmq_version"),
        )
        planned = plan_many(stores, out_root, common)
        check_spark()
        left = len(planned)

        def done(outcome: Outcome) -> None:
            nonlocal left
            left -= 1
            told(f"{outcome.options.store}: exit code {outcome.exit_code}, {counted(left, 'store')} left")

        outcomes = rebuild_many(
            planned, lambda: commands.start_spark("reput rebuild-many", master), at_once, done
        )
    code = max(outcome.exit_code for outcome in outcomes)
    facts = {"out_root": str(out_root), "stores": [outcome.to_dict() for outcome in outcomes]}
    output.end(code, facts, _lines(outcomes, out_root))


_NUMBERS = ("code", "messages", "log", "queues", "index", "findings", "seconds")


def _lines(outcomes: Sequence[Outcome], out_root: Path) -> list[str]:
    done = sum(not isinstance(outcome.result, ReputError) for outcome in outcomes)
    lines = [f"Rebuilt {done:,} of {counted(len(outcomes), 'store')} into {inline(str(out_root))}"]
    lines += table((*_NUMBERS, "store"), [_row(outcome) for outcome in outcomes], _NUMBERS)
    for outcome in outcomes:
        if isinstance(outcome.result, ReputError):
            lines.append(f"  failed     {outcome.result}")
        elif outcome.exit_code:
            lines.append(
                f"  findings   of {inline(str(outcome.options.store))}: in --json, and in its ledger"
            )
    return lines


def _row(outcome: Outcome) -> tuple[str, ...]:
    result = outcome.result
    facts: tuple[str, ...] = ("",) * 5
    if not isinstance(result, ReputError):
        numbers = (result.queues, result.index_files, len(result.findings))
        facts = (f"{result.messages:,}", human(result.bytes), *(f"{number:,}" for number in numbers))
    return str(outcome.exit_code), *facts, f"{outcome.seconds:.1f}", str(outcome.options.store)
