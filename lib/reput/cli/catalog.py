"""``reput catalog``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.catalog.options import Cataloged, CatalogOptions
from reput.cli import app as commands
from reput.cli.arguments import TABLES, AsJson, BrokerConf, BytesPerCommit, Master, WrittenBy, size
from reput.cli.output import Output, ProgressDisplay, cataloged_apart, inline, noted, settings_lines
from reput.config.stand_in import here
from reput.errors import ReputError, SettingsError, UnsupportedError
from reput.remote.place import is_url
from reput.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.catalog.update import Outcome
    from reput.job.store_list import StoreEntry

_EXAMPLES = """**Examples**

All messages of a store, without their bodies; the same again brings the table up to the log's end:

    reput catalog /data/store --table /data/messages --broker-conf broker.conf

With bodies, for a program:

    reput catalog /data/store --table /data/messages --bodies --json

One broker's messages into a table of many stores, from its host; a table at a URL is always one:

    reput catalog /data/store --table s3://lake/messages --broker-conf broker.conf

All stores of a list, or of a backup, into one table that keeps 30 days:

    reput catalog stores.toml --table s3://lake/messages --retain 30
    reput catalog s3://backup/broker-a/store --table s3://lake/messages --cluster east --broker broker-a
"""


@commands.app.command("catalog", epilog=_EXAMPLES, rich_help_panel=TABLES)
def catalog_command(
    stores: Annotated[
        list[str],
        typer.Argument(
            metavar="STORE…",
            help="Directories that hold commitlog/, or their URLs; or a stores.toml that lists stores.",
        ),
    ],
    table: Annotated[
        Path, typer.Option("--table", metavar="DIR|URL", help="The Delta table; created if missing.")
    ],
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="brokerClusterName, for a table of many stores (default: as broker.conf says).",
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="NAME",
            help="brokerName, for a table of many stores (default: as broker.conf says).",
        ),
    ] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="With the messages' bodies.")] = False,
    max_bytes_per_trigger: BytesPerCommit = "1g",
    no_optimize: Annotated[
        bool, typer.Option("--no-optimize", help="Don't merge the table's small files.")
    ] = False,
    retain: Annotated[
        int | None,
        typer.Option(
            "--retain",
            metavar="DAYS",
            min=1,
            help="In a table of many stores, delete these stores' messages of earlier days (default: none).",
        ),
    ] = None,
    allow_gap: Annotated[
        bool,
        typer.Option(
            "--allow-gap", help="Continue even if the table's last message has expired from the log."
        ),
    ] = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Put stores' messages into a Delta table, each once, for Spark SQL.

    The logs are only read; brokers may run on them. If the command is killed, run it again to resume. Of
    several stores, one that is refused or fails doesn't stop the others.

    Exit code 0: the table is up to the logs' ends. 2: refused or failed.
    """
    from reput.catalog.update import catalog, catalog_many
    from reput.job.store_list import listed

    with Output(as_json, interrupted="the same command goes on from the last commit") as output:
        entries = listed(stores)
        if broker is not None and len(entries) > 1:
            raise SettingsError(
                "--broker is one store's",
                expected="one STORE",
                found=counted(len(entries), "store"),
                next_step="Give each its broker.conf with {store} in its path, or its name in a stores.toml",
            )
        common = CatalogOptions(
            store=Path(),
            table=table,
            broker_conf=broker_conf,
            rocketmq_version=rocketmq_version,
            bodies=bodies,
            max_bytes_per_trigger=size("--max-bytes-per-trigger", max_bytes_per_trigger),
            optimize=not no_optimize,
            allow_gap=allow_gap,
            cluster=cluster,
            broker=broker,
            retain_days=retain,
        )
        is_one = [word.endswith(".toml") for word in stores] == [False]
        options = [_options(common, entry, is_one=is_one) for entry in entries]
        commands.prepare_spark()
        with ProgressDisplay("cataloging") as display:
            session = _once(lambda: commands.start_spark("reput catalog", master, display))
            if is_one:
                done = catalog(options[0], session, display.update)
            else:
                outcomes = catalog_many(options, session, display.update, _told)
    if is_one:
        output.end(0, done.to_dict(), _lines(done))
    code = max(2 if isinstance(one.result, ReputError) else 0 for one in outcomes)
    facts = {"table": _name(table), "stores": [one.to_dict() for one in outcomes]}
    output.end(code, facts, _lines_of_many(_name(table), outcomes))


def _once(start: Callable[[], SparkSession]) -> Callable[[], SparkSession]:
    from reput.job.many import Once

    return Once(start)


def _options(common: CatalogOptions, entry: StoreEntry, *, is_one: bool) -> CatalogOptions:
    """Options for a store: what is said of it itself, else of all."""
    place = entry.place
    if place.host is not None:
        raise UnsupportedError(
            "a catalog reads stores of this host, or at a URL",
            path=str(place),
            next_step="Run `reput catalog` on that host: several may write to one table at a time",
        )
    store = here(place.path, derived=False)
    conf = entry.broker_conf or common.broker_conf
    if conf is not None and not is_one:
        conf = Path(str(conf).replace("{store}", str(place.path)))
    return replace(
        common,
        store=store,
        broker_conf=conf,
        rocketmq_version=entry.rocketmq_version or common.rocketmq_version,
        cluster=entry.cluster or common.cluster,
        broker=entry.broker or common.broker,
        many=not is_one,
    )


def _name(table: Path) -> str:
    from reput.remote.place import url_of

    return url_of(table) if is_url(table) else str(table)


def _told(outcome: Outcome, left: int) -> None:
    result = outcome.result
    what = "failed" if isinstance(result, ReputError) else f"{counted(result.added, 'message')} added"
    noted(f"{outcome.store}: {what}, {counted(left, 'store')} left")


def _lines(done: Cataloged) -> list[str]:
    whose = "" if done.cluster is None else f" for {done.broker} of {done.cluster}"
    lines = [
        f"Cataloged {done.table}{inline(whose)}",
        *settings_lines(done.basis, files=False),
        f"  log        {done.start} to {done.end}: {counted(done.added, 'message')} added",
        f"  table      {counted(done.messages, 'message')}, {counted(done.commits, 'new commit')}",
        *cataloged_apart(done),
    ]
    if done.clustered:
        lines.append(f"  merged     small files of {counted(len(done.clustered), 'day')}")
    lines.append(f"  took       {done.seconds:.1f} s")
    return lines


def _lines_of_many(name: str, outcomes: Sequence[Outcome]) -> Iterator[str]:
    done = [one.result for one in outcomes if isinstance(one.result, Cataloged)]
    yield f"Cataloged {counted(len(done), 'store')} of {len(outcomes):,} into {name}"
    for outcome in outcomes:
        if isinstance(outcome.result, ReputError):
            yield f"  failed     {inline(str(outcome.result))}"
        else:
            one = outcome.result
            yield (
                f"  {inline(f'{one.broker} of {one.cluster}')}: {counted(one.added, 'message')} added, "
                f"{one.messages:,} in the table, {one.seconds:.1f} s"
            )
            yield from cataloged_apart(one)
