"""``reput catalog``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from reput.catalog import Cataloged, CatalogOptions
from reput.cli.arguments import (
    TABLES,
    AsJson,
    Broker,
    OnSparkIfWanted,
    PerCommit,
    argument,
    command,
    flag,
    option,
)
from reput.cli.jvm import spark_wanted
from reput.cli.output import Output, ProgressDisplay, at_most, cataloged_apart, inline, noted, settings_lines
from reput.config.stand_in import here
from reput.errors import ReputError, SettingsError, UnsupportedError
from reput.remote.client import is_url
from reput.words import counted

if TYPE_CHECKING:
    from reput.catalog.update import Outcome
    from reput.job.many import StoreEntry
    from reput.replay.runner import Runner

_EXAMPLES = """Examples:
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


@dataclass(kw_only=True)
class _Words(Broker, PerCommit, OnSparkIfWanted, AsJson):
    stores: list[str] = argument("STORE…", "Directories that hold commitlog/, their URLs, or a stores.toml.")
    table: Path = option("--table DIR|URL", "The Delta table; created if missing.", MISSING)
    cluster: str | None = option(
        "--cluster NAME", "In a table of many: brokerClusterName (default: broker.conf's)."
    )
    broker: str | None = option("--broker NAME", "In a table of many: brokerName (default: broker.conf's).")
    bodies: bool = flag("--bodies", "With the messages' bodies.")
    no_optimize: bool = flag("--no-optimize", "Don't merge the table's small files.")
    retain_days: int | None = option(
        "--retain DAYS", "In a table of many: delete these stores' messages of earlier days.", min=1
    )
    allow_gap: bool = flag(
        "--allow-gap", "Continue even if the table's last message has expired from the log."
    )

    @property
    def optimize(self) -> bool:
        """Whether small files are merged."""
        return not self.no_optimize


@command("catalog", _EXAMPLES, TABLES)
def catalog_command(given: _Words) -> None:
    """Put stores' messages into a Delta table, each once, for Spark SQL.

    The logs are only read; brokers may run on them. If the command is killed, run it again to resume. Of
    several stores, one that is refused or fails doesn't stop the others.

    Neither Spark nor Java is needed, unless --master names a cluster.

    Exit code 0: the table is up to the logs' ends. 1: so it is, but lacks what can't be read or is missing in
    a log. 2: refused or failed.
    """
    from reput.catalog.update import catalog, catalog_many
    from reput.job.many import listed

    interrupted = "the same command goes on from the last commit"
    with Output(given.as_json, interrupted=interrupted) as output:
        entries = listed(given.stores)
        if given.broker is not None and len(entries) > 1:
            raise SettingsError(
                "--broker is one store's",
                expected="one STORE",
                found=counted(len(entries), "store"),
                next_step="Give each its broker.conf with {store} in its path, or its name in a stores.toml",
            )
        common = given.to(CatalogOptions, store=Path())
        is_one = [word.endswith(".toml") for word in given.stores] == [False]
        with _runner(given.master) as start, ProgressDisplay("cataloging") as display:
            options = [_options(common, entry, is_one=is_one) for entry in entries]
            if is_one:
                done = catalog(options[0], start, display.update)
            else:
                outcomes = catalog_many(options, start, display.update, _told)
    if is_one:
        output.show(done, _lines(done))
    code = max(one.exit_code for one in outcomes)
    facts = {"table": _name(given.table), "stores": [one.to_dict() for one in outcomes]}
    output.end(code, facts, _lines_of_many(_name(given.table), outcomes))


@contextmanager
def _runner(master: str | None) -> Iterator[Callable[[], Runner]]:
    """What gives what runs the tasks: Spark where it is wanted, else processes of this host."""
    start_spark = spark_wanted("reput catalog", master)
    if start_spark is None:
        import reput.catalog.rows  # noqa: F401 - once, for all of them
        from reput.replay.runner import Processes

        # Before a store or a table is opened: their clients have threads, which a fork doesn't copy.
        with Processes() as processes:
            yield lambda: processes
    else:
        from reput.spark.runner import SparkRunner

        yield cache(lambda: SparkRunner(start_spark().sparkContext))


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
    from reput.remote.client import url_of

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
        *_findings(done),
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
            yield from _findings(one)


def _findings(done: Cataloged) -> Iterator[str]:
    return at_most("    ", done.findings, "    and {} more; --json prints all")
