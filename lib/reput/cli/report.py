"""``reput report``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reput.cli.arguments import LOOK, OnSparkIfWanted, OnStore, Shown, Starts, command, flag, option
from reput.cli.jvm import spark_wanted
from reput.cli.output import Output, ProgressDisplay, inline, settings_lines, step_lines
from reput.cli.times import zone, zone_name
from reput.config.stand_in import here
from reput.diagnosis.verdict import TITLES
from reput.errors import SettingsError
from reput.remote import with_urls
from reput.store.system import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.report.facts import Facts

_EXAMPLES = """Examples:
  A page about a store, for a browser:
    reput report /data/store -o report.html --broker-conf broker.conf --rocketmq-version 5.3.3
  Of a very large store, only what a start reads:
    reput report /data/store -o report.html --quick
  In Chinese, to send it to somebody:
    reput report /data/store -o report.html --lang zh
  The same facts for a program:
    reput report /data/store --json
"""


@dataclass(kw_only=True)
class _Words(OnStore, Starts, OnSparkIfWanted, Shown):
    out: Path | None = option("--out -o FILE", "The page to write; an existing report is replaced.")
    quick: bool = flag("--quick", "Read only what a start reads; compare nothing, and count no traffic.")
    rows: int = option("--rows N", "Maximum rows per table.", 1000, min=1, max=1_000_000)
    force: bool = flag("--force", "Replace the file even if it isn't a report.")
    lang: Literal["en", "zh"] | None = option("--lang", "Language (default: zh where the locale is zh_CN).")


@command("report", _EXAMPLES, LOOK)
def report_command(given: _Words) -> None:
    """Write a page about a store: what `reput check` says, its log, traffic, topics, queues and consumers.

    The page is a single HTML file that needs no network. Nothing in the store is changed. Of a damaged store
    it shows what can be read.

    Exit code: that of `reput check`. 0: start it. 1: start it; messages are gone for good. 3: mend it first.
    4: it will not start. 5: can't be told. 2: refused or failed, and no page was written.
    """
    from reput.diagnosis.check import settings_to_look
    from reput.report.gather import GatherOptions, gather
    from reput.report.language import of_environment
    from reput.report.numbers import Zone
    from reput.report.page import check_target, render
    from reput.store.places import write_alone

    with Output(given.as_json, interrupted="no page was written") as said:
        given.store = here(given.store, derived=True)
        if given.out is None and not given.as_json:
            raise SettingsError(
                "where the page goes is not clear",
                expected="--out FILE, or --json",
                found="neither",
                next_step="Give, for instance, -o report.html.",
            )
        target = None
        if given.out is not None:
            settings = settings_to_look(given.store, given.broker_conf, given.rocketmq_version)
            target = check_target(given.out, settings, force=given.force)
        with ProgressDisplay("checking") as display:
            facts = gather(
                given.to(GatherOptions), spark_wanted("reput report", given.master, display),
                display.say, display.update,
            )  # fmt: skip
        page = b""
        if target is not None:
            page = render(
                facts, given.rows, Zone(zone(), zone_name()), given.lang or of_environment(os.environ)
            )
            write_alone(target, with_urls(page.decode()).encode())
    said.show(facts, _lines(facts, given.out, len(page)))


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
