"""``reput verify``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import app as commands
from reput.cli.arguments import (
    AsJson,
    BrokerConf,
    Digests,
    Everything,
    Master,
    Queues,
    Store,
    WrittenBy,
)
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
from reput.errors import OutputError, SettingsError
from reput.remote.place import is_url, url_of
from reput.store.files import new_file, reporting, write_atomically
from reput.store.reading import read_file
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.job.nightly import Again
    from reput.verify import Difference, Report

_EXAMPLES = """**Examples**

Queues, index and checkpoint of a store against its log:

    reput verify /data/store --broker-conf broker.conf --rocketmq-version 5.3.3

A master and its slave:

    reput verify /data/master --against /data/slave --broker-conf broker.conf

Every night, only what isn't proven yet:

    reput verify /data/store --broker-conf broker.conf --proofs /var/lib/reput/store.proofs

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
    proofs: Annotated[
        Path | None,
        typer.Option(
            "--proofs",
            metavar="FILE",
            help="Leave out sealed segments that are as FILE says they were when they were verified, and "
            "write down there what is proven now.",
        ),
    ] = None,
    everything: Everything = False,
    digests: Digests = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Compare a store's queues, index and checkpoint with its commit log, both ways.

    Nothing is changed. If a broker is running, what it writes meanwhile is not checked.

    Exit code 0: sound. 1: findings, with the command to run next. 2: refused or failed.
    """
    from reput.job.nightly import verify_again
    from reput.verify import VerifyOptions, verify, verify_against

    with Output(as_json, interrupted="nothing was changed") as output:
        again = None
        if proofs is not None or everything or digests:
            alone = against is None and not queue
            again = _again(store, proofs, alone=alone, everything=everything, digests=digests)
        store = here(store, derived=True, known={} if again is None else again.known_files)
        options = VerifyOptions(
            store=store,
            against=None if against is None else here(against, derived=True),
            broker_conf=broker_conf,
            rocketmq_version=rocketmq_version,
            queues=tuple(queue or ()),
            index=not no_index,
        )
        kept = None
        commands.prepare_spark()
        if against is None:
            warn_of_unknown(store, queue)
        with ProgressDisplay("verifying") as display:
            if again is not None:
                kept = verify_again(
                    options,
                    again,
                    lambda: commands.start_spark("reput verify", master, display),
                    display.update,
                )
            report = (
                kept.report
                if kept is not None
                else (verify if against is None else verify_against)(
                    options,
                    lambda: commands.start_spark("reput verify", master, display),
                    display.update,
                )
            )
        if kept is not None and proofs is not None:
            write_atomically(proofs, kept.proofs.encode())
    output.show(report if kept is None else kept, _lines(report))


def _again(store: Path, proofs: Path | None, *, alone: bool, everything: bool, digests: bool) -> Again:
    """What the verification goes on from.

    Args:
        store: its directory or URL.
        alone: all of it is to be verified, against its log.

    Raises:
        SettingsError: options don't go together, or what is in the file can't be read, or is another store's.
        OutputError: the file can't be written there.
    """
    from reput.config.log_places import absolute
    from reput.job.nightly import Again
    from reput.verify.proven import Proofs

    if proofs is None:
        raise SettingsError(
            "--all and --digest say how much of earlier proofs is believed",
            expected="--proofs FILE with them",
            found="none",
        )
    if not alone:
        raise SettingsError(
            "proofs are of a whole store against its log",
            expected="--proofs without --against and --queue",
            found="--against or --queue",
        )
    place = url_of(store) if is_url(store) else str(absolute(store))
    new_file(proofs, None if is_url(store) else store, force=True)
    if proofs.exists():
        with reporting("what was proven before can't be read", proofs):
            data = read_file(proofs)
        before = Proofs.decode(data, proofs, any_format=True)
        if before.place not in ("", place):
            raise SettingsError(
                "this is what was proven of another store",
                path=proofs,
                expected=f"proofs of {place}",
                found=f"those of {before.place}",
                next_step="Name another file with --proofs, one for each store",
            )
        return Again(before, everything, digests)
    if not proofs.parent.is_dir() or not os.access(proofs.parent, os.W_OK):
        raise OutputError(
            "proofs can't be written here", path=proofs, expected="a directory that can be written to"
        )
    return Again(None, everything, digests)


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
    if report.remembered is not None and report.remembered.text:
        yield f"  believed   {report.remembered.text}"
    spent = None if report.remembered is None else report.remembered.spent
    if spent is not None:
        yield f"  fetched    {human(spent.fetched)} by {counted(spent.requests, 'request')}"
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
