"""``reput report``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from reput.cli import app as commands
from reput.cli.arguments import AsJson, BrokerConf, Master, Store, TimeZone, WrittenBy
from reput.cli.commands import LOOK
from reput.cli.output import Output, ProgressDisplay, inline
from reput.cli.times import zone, zone_name
from reput.config.settings import StoreSettings
from reput.config.stand_in import here
from reput.errors import SettingsError
from reput.remote import with_urls
from reput.spark.java import check_spark
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.report.facts import Facts
    from reput.report.gather import GatherOptions
    from reput.verify import Report

_ROWS = 1000
_MOST_ROWS = 1_000_000
_MOST_NOT_READ = 20
_EXAMPLES = """**Examples**

A page about a store, for a browser:

    reput report /data/store -o report.html --broker-conf broker.conf --rocketmq-version 5.3.3

With every unit and every index entry compared with the log, on Spark:

    reput report /data/store -o report.html --broker-conf broker.conf --verify

Of a very large store, without reading its messages:

    reput report /data/store -o report.html --no-log

In Chinese, to send it to somebody:

    reput report /data/store -o report.html --lang zh

The same facts for a program:

    reput report /data/store --json
"""


@commands.app.command("report", epilog=_EXAMPLES, rich_help_panel=LOOK)
def report_command(
    store: Store,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The page to write; an existing report is replaced."
        ),
    ] = None,
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    with_verify: Annotated[
        bool,
        typer.Option("--verify", help="Also verify the store: starts Spark and reads the log again."),
    ] = False,
    no_log: Annotated[
        bool,
        typer.Option("--no-log", help="Don't read the messages: no traffic, sizes or damage."),
    ] = False,
    rows: Annotated[
        int,
        typer.Option("--rows", metavar="N", min=1, max=_MOST_ROWS, help="Maximum rows per table."),
    ] = _ROWS,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file even if it isn't a report.")
    ] = False,
    lang: Annotated[
        Literal["en", "zh"] | None,
        typer.Option("--lang", help="Language of the page (default: zh where the locale is zh_CN, else en)."),
    ] = None,
    master: Master = None,
    _tz: TimeZone = None,
    as_json: AsJson = False,
) -> None:
    """Write a page about a store: its health, log, traffic, topics, queues and consumers.

    The page is a single HTML file that needs no network. Nothing in the store is changed. Of a damaged store
    it shows what can be read.

    Exit code 0: nothing wrong was found. 1: findings. 2: refused or failed, and no page was written.
    """
    from reput.report.gather import GatherOptions
    from reput.report.language import of_environment
    from reput.report.page import render
    from reput.report.target import check_target
    from reput.report.units import Zone
    from reput.store.temporary import write_alone

    with Output(as_json, interrupted="no page was written") as said:
        store = here(store, derived=True)
        _refuse_unclear(output, master, with_verify=with_verify, as_json=as_json)
        settings = StoreSettings.load(store, broker_conf, rocketmq_version, dledger=True, rocksdb=True)
        target = None if output is None else check_target(output, settings, force=force)
        if with_verify:
            check_spark()
        options = GatherOptions(store, broker_conf, rocketmq_version, read_log=not no_log)
        facts = _gathered(options, master, with_verify=with_verify)
        page = b""
        if target is not None:
            page = render(facts, rows, Zone(zone(), zone_name()), lang or of_environment(os.environ))
            write_alone(target, with_urls(page.decode()).encode())
    said.show(facts, _lines(facts, output, len(page)))


def _refuse_unclear(output: Path | None, master: str | None, *, with_verify: bool, as_json: bool) -> None:
    """Refuse a page without a place, and an option that would change nothing."""
    if output is None and not as_json:
        raise SettingsError(
            "where the page goes is not clear",
            expected="--out FILE, or --json",
            found="neither",
            next_step="Give, for instance, -o report.html.",
        )
    if master is not None and not with_verify:
        raise SettingsError(
            "--master belongs to --verify",
            expected="no --master: without --verify nothing runs on Spark",
            found=master,
            next_step="Leave --master out, or give --verify.",
        )


def _gathered(options: GatherOptions, master: str | None, *, with_verify: bool) -> Facts:
    """The facts, with a bar for what takes long."""
    from reput.report.gather import gather

    with ExitStack() as shown:
        display = shown.enter_context(ProgressDisplay("reading the commit log"))

        def verified() -> Report:
            from reput.verify import VerifyOptions, verify

            shown.close()  # a terminal has one bar at a time
            bar = shown.enter_context(ProgressDisplay("verifying"))
            return verify(
                VerifyOptions(
                    options.store,
                    broker_conf=options.broker_conf,
                    rocketmq_version=options.rocketmq_version,
                ),
                lambda: commands.start_spark("reput report", master, bar),
                bar.update,
            )

        return gather(options, verified if with_verify else None, display.say, display.update)


def _lines(facts: Facts, output: Path | None, size: int) -> Iterator[str]:
    yield f"{facts.store}: {inline(facts.verdict.headline)}"
    for what in facts.not_seen[:_MOST_NOT_READ]:
        yield f"  {'not read':<21} {inline(what)}"
    settings = facts.basis.line()
    if settings is not None:
        yield f"  {'settings':<21} {inline(settings)}"
    for check in facts.checks:
        answer = check.answer if check.ran else f"not run: {check.answer}"
        yield f"  {check.name:<21} {inline(answer)}"
    for step in facts.verdict.next:
        yield f"  next                  {inline(step)}"
    lists = counted(len(facts.findings), "finding")
    yield f"Wrote {output}: {human(size)}, {lists}, {facts.seconds:.1f} s"
