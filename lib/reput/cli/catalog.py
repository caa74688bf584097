"""``reput catalog``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reput.catalog.options import Cataloged, CatalogOptions
from reput.cli import app as commands
from reput.cli.arguments import AsJson, BrokerConf, Master, Store, WrittenBy, size
from reput.cli.commands import TABLES
from reput.cli.output import Output, ProgressDisplay, cataloged_apart, settings_lines
from reput.config.stand_in import here
from reput.words import counted

_EXAMPLES = """**Examples**

All messages of a store, without their bodies; the same again brings the table up to the log's end:

    reput catalog /data/store --table /data/messages --broker-conf broker.conf

With bodies, for a program:

    reput catalog /data/store --table /data/messages --bodies --json
"""


@commands.app.command("catalog", epilog=_EXAMPLES, rich_help_panel=TABLES)
def catalog_command(
    store: Store,
    table: Annotated[
        Path, typer.Option("--table", metavar="DIR", help="The Delta table; created if missing.")
    ],
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="With the messages' bodies.")] = False,
    max_bytes_per_trigger: Annotated[
        str,
        typer.Option("--max-bytes-per-trigger", metavar="SIZE", help="Maximum log bytes per commit."),
    ] = "1g",
    no_optimize: Annotated[
        bool, typer.Option("--no-optimize", help="Don't merge the table's small files.")
    ] = False,
    allow_gap: Annotated[
        bool,
        typer.Option(
            "--allow-gap", help="Continue even if the table's last message has expired from the log."
        ),
    ] = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Put a store's messages into a Delta table, each once, for Spark SQL.

    The log is only read; a broker may run on it. If the command is killed, run it again to resume.

    Exit code 0: the table is up to the log's end. 2: refused or failed.
    """
    from reput.catalog.run import catalog

    with Output(as_json, interrupted="the same command goes on from the last commit") as output:
        store = here(store, derived=False)
        options = CatalogOptions(
            store=store,
            table=table,
            broker_conf=broker_conf,
            rocketmq_version=rocketmq_version,
            bodies=bodies,
            max_bytes_per_trigger=size("--max-bytes-per-trigger", max_bytes_per_trigger),
            optimize=not no_optimize,
            allow_gap=allow_gap,
        )
        commands.prepare_spark()
        with ProgressDisplay("cataloging") as display:
            done = catalog(
                options, lambda: commands.start_spark("reput catalog", master, display), display.update
            )
    output.end(0, done.to_dict(), _lines(done))


def _lines(done: Cataloged) -> list[str]:
    lines = [
        f"Cataloged {done.table}",
        *settings_lines(done.basis, files=False),
        f"  log        {done.start} to {done.end}: {counted(done.added, 'message')} added",
        f"  table      {counted(done.messages, 'message')}, {counted(done.commits, 'new commit')}",
        f"  took       {done.seconds:.1f} s",
    ]
    lines[-2:-2] = cataloged_apart(done)
    if done.clustered:
        lines.insert(-1, f"  merged     small files of {counted(len(done.clustered), 'day')}")
    return lines
