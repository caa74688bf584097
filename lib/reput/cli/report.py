"""``reput report``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from reput.cli import app as commands
from reput.cli.arguments import LOOK, AsJson, BrokerConf, Master, StartedBy, Store, TimeZone
from reput.cli.jvm import spark_wanted
from reput.cli.output import Output, ProgressDisplay, inline, settings_lines, step_lines
from reput.cli.times import zone, zone_name
from reput.config.settings import StoreSettings
from reput.config.stand_in import here
from reput.diagnosis.verdict import TITLES
from reput.errors import SettingsError
from reput.remote import with_urls
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.report.facts import Facts

_ROWS = 1000
_MOST_ROWS = 1_000_000
_EXAMPLES = """**Examples**

A page about a store, for a browser:

    reput report /data/store -o report.html --broker-conf broker.conf --rocketmq-version 5.3.3

Of a very large store, only what a start reads:

    reput report /data/store -o report.html --quick

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
    rocketmq_version: StartedBy = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Read only what a start reads: nothing is compared, and there is no traffic."
        ),
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
    """Write a page about a store: what `reput check` says, its log, traffic, topics, queues and consumers.

    The page is a single HTML file that needs no network. Nothing in the store is changed. Of a damaged store
    it shows what can be read.

    Exit code: that of `reput check`. 0: start it. 1: start it; messages are gone for good. 3: mend it first.
    4: it will not start. 5: can't be told. 2: refused or failed, and no page was written.
    """
    from reput.report.gather import GatherOptions, gather
    from reput.report.language import of_environment
    from reput.report.numbers import Zone
    from reput.report.page import render
    from reput.report.target import check_target
    from reput.store.temporary import write_alone

    with Output(as_json, interrupted="no page was written") as said:
        store = here(store, derived=True)
        if output is None and not as_json:
            raise SettingsError(
                "where the page goes is not clear",
                expected="--out FILE, or --json",
                found="neither",
                next_step="Give, for instance, -o report.html.",
            )
        settings = StoreSettings.load(store, broker_conf, rocketmq_version, dledger=True, rocksdb=True)
        target = None if output is None else check_target(output, settings, force=force)
        options = GatherOptions(store, broker_conf, rocketmq_version, quick)
        with ProgressDisplay("checking") as display:
            facts = gather(
                options, spark_wanted("reput report", master, display), display.say, display.update
            )
        page = b""
        if target is not None:
            page = render(facts, rows, Zone(zone(), zone_name()), lang or of_environment(os.environ))
            write_alone(target, with_urls(page.decode()).encode())
    said.show(facts, _lines(facts, output, len(page)))


def _lines(facts: Facts, output: Path | None, size: int) -> Iterator[str]:
    yield inline(facts.verdict.text)
    yield from step_lines(facts.not_seen, facts.next_steps)
    yield from settings_lines(facts.basis)
    kinds = Counter(one.effect for one in facts.findings)
    for effect, title in TITLES.items():
        if kinds[effect]:
            yield f"  {title:<10} {counted(kinds[effect], 'finding')}"
    if output is not None:
        yield f"Wrote {output}: {human(size)}, {facts.seconds:.1f} s"
