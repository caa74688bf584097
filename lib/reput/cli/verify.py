"""``reput verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reput.cli import app as commands
from reput.cli.arguments import AsJson, BrokerConf, Master, Queues, Store, WrittenBy
from reput.cli.outcome import reported
from reput.cli.output import JsonOutput, Output, ProgressDisplay, TextOutput
from reput.cli.verified import printed_json, printed_text
from reput.spark.sessions import check_java, is_submitted

_EXAMPLES = """**Examples**

Queues, index and checkpoint of a store against its log:

    reput verify /data/store --broker-conf broker.conf --rocketmq-version 5.3.3

A master and its slave:

    reput verify /data/master --against /data/slave --broker-conf broker.conf

For a program:

    reput verify /data/store --broker-conf broker.conf --json
"""


@commands.app.command("verify", epilog=_EXAMPLES)
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

    output: Output = JsonOutput() if as_json else TextOutput()
    with reported(output, interrupted="nothing was changed"):
        options = VerifyOptions(
            store=store,
            against=against,
            broker_conf=broker_conf,
            rocketmq_version=rocketmq_version,
            queues=tuple(queue or ()),
            index=not no_index,
        )
        if not is_submitted():
            check_java()
        with ProgressDisplay("verifying") as display:
            report = (verify if against is None else verify_against)(
                options,
                lambda: commands.start_spark("reput verify", master, display),
                display.update,
            )
    (printed_json if as_json else printed_text)(report)
    raise typer.Exit(report.exit_code)
