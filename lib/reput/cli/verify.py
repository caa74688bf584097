"""``reput verify``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import app as commands
from reput.cli.arguments import AsJson, BrokerConf, Master, Queues, Store, WrittenBy
from reput.cli.commands import LOOK
from reput.cli.output import (
    Output,
    ProgressDisplay,
    at_most,
    settings_lines,
    step_lines,
    warn_of_unknown,
)
from reput.config.stand_in import here
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.verify import Difference, Report

_EXAMPLES = """**Examples**

Queues, index and checkpoint of a store against its log:

    reput verify /data/store --broker-conf broker.conf --rocketmq-version 5.3.3

A master and its slave:

    reput verify /data/master --against /data/slave --broker-conf broker.conf

For a program:

    reput verify /data/store --broker-conf broker.conf --json
"""


@commands.app.command("verify", epilog=_EXAMPLES, rich_help_panel=LOOK)
def verify_command(
    store: Store,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="DIR",
            help="Compare queues and index with those of another store, such as a slave's, not with the log.",
        ),
    ] = None,
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    queue: Queues = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Don't look at the index files.")] = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Compare a store's queues, index and checkpoint with its commit log, both ways.

    Nothing is changed. If a broker is running, what it writes meanwhile is not checked.

    Exit code 0: sound. 1: findings, with the command to run next. 2: refused or failed.
    """
    from reput.verify import VerifyOptions, verify, verify_against

    with Output(as_json, interrupted="nothing was changed") as output:
        store = here(store, derived=True)
        options = VerifyOptions(
            store=store,
            against=None if against is None else here(against, derived=True),
            broker_conf=broker_conf,
            rocketmq_version=rocketmq_version,
            queues=tuple(queue or ()),
            index=not no_index,
        )
        commands.prepare_spark()
        if against is None:
            warn_of_unknown(store, queue)
        with ProgressDisplay("verifying") as display:
            report = (verify if against is None else verify_against)(
                options,
                lambda: commands.start_spark("reput verify", master, display),
                display.update,
            )
    output.show(report, _lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield report.summary
    yield from step_lines([str(note) for note in report.not_checked], report.next)
    yield from settings_lines(report.basis)
    log = f"  log        {report.start} to {report.end}"
    if report.against is None:
        yield f"{log}: {counted(report.messages, 'message')}, {human(report.bytes)}"
    else:
        yield f"{log}, which both have"
    yield f"  queues     {counted(report.queues, 'queue')} with {counted(report.units, 'unit')}"
    if report.index_files:
        files, keys = counted(report.index_files, "file"), counted(report.index_entries, "key")
        yield f"  index      {files} with {keys}"
    rate = f", {human(int(report.bytes / max(report.seconds, 1e-9)))}/s" if report.bytes else ""
    yield f"  took       {report.seconds:.1f} s{rate}"
    if report.broker_running:
        yield f"  live       a broker is running; what it wrote past {report.end} wasn't looked at"
    yield from at_most("  legal      ", report.notes, "             and {} more; --json lists all")
    yield f"  findings   {len(report.findings):,}" if report.findings else "  findings   none"
    for kind in dict.fromkeys((one.area, one.kind, one.remark) for one in report.findings):
        yield from _of_kind([one for one in report.findings if (one.area, one.kind, one.remark) == kind])


def _of_kind(findings: list[Difference]) -> Iterator[str]:
    first = findings[0]
    count = sum(one.count for one in findings)
    ranges = "" if count == len(findings) else f" in {counted(len(findings), 'range')}"
    remark = "" if first.remark is None else f": {first.remark}"
    yield f"  {first.area:<10} {count:,} {first.kind}{ranges}{remark}"
    yield from at_most("    ", findings, "    and {} more: --json lists all")
