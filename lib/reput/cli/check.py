"""``reput check``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import app as commands
from reput.cli.arguments import (
    LOOK,
    AsJson,
    AtOnce,
    BrokerConf,
    Digests,
    Everything,
    Master,
    Queues,
    StartedBy,
    Stores,
    TimeZone,
)
from reput.cli.jvm import spark_wanted
from reput.cli.many import are_several, check_several, refuse_of_one
from reput.cli.output import (
    Output,
    ProgressDisplay,
    at_most,
    settings_lines,
    step_lines,
    warn_of_unknown,
)
from reput.cli.times import moment
from reput.config.stand_in import here
from reput.diagnosis.verdict import COUNTS, TITLES
from reput.errors import OutputError, SettingsError
from reput.remote.place import is_url, url_of
from reput.store.files import new_file, reporting, write_atomically
from reput.store.reading import read_file
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.diagnosis.check import Diagnosis
    from reput.diagnosis.nightly import Again
    from reput.diagnosis.verdict import Finding

_EXAMPLES = """**Examples**

Is anything wrong, what would a start lose, and what is to be done:

    reput check /data/store --broker-conf broker.conf --rocketmq-version 5.3.3

Only what a start reads, as a guard before the broker:

    reput check /data/store --quick --broker-conf broker.conf

A master's queues and index against its slave's:

    reput check /data/master --against /data/slave --broker-conf broker.conf

Every night, only what isn't proven yet:

    reput check /data/store --broker-conf broker.conf --proofs /var/lib/reput/store.proofs

Each broker's store, with its own broker.conf beside it, two at a time:

    reput check /brokers/*/store --broker-conf '{store}/../broker.conf' --at-once 2

A fleet every night: only what is new is read, and a page shows how it stands:

    reput check stores.toml --history /var/lib/reput/fleet -o fleet.html --at-once 4

Stores on the brokers' own hosts, where a Spark worker runs:

    reput check broker-a:/data/store broker-b:/data/store --master spark://host:7077 --at-once 2
"""


@commands.app.command("check", epilog=_EXAMPLES, rich_help_panel=LOOK)
def check_command(
    stores: Stores,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Read only what a start reads, at most 3 GiB of the log; compare nothing."
        ),
    ] = False,
    for_start: Annotated[
        bool,
        typer.Option(
            "--for-start",
            help="--quick for a guard before the broker: what loses no message is no reason (conf/guard).",
        ),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="DIR",
            help="Compare queues and index with those of another store, such as a slave's, and do no more.",
        ),
    ] = None,
    broker_conf: BrokerConf = None,
    rocketmq_version: StartedBy = None,
    queue: Queues = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Don't look at the index files.")] = False,
    proofs: Annotated[
        Path | None,
        typer.Option(
            "--proofs",
            metavar="FILE",
            help="Leave out sealed segments that are as FILE says they were when they were compared, and "
            "write down there what is proven now.",
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            "--history",
            metavar="DIR",
            help="Of several stores: add a row for each to the Delta table DIR/runs, and leave out sealed "
            "segments that are as they were when they were compared.",
        ),
    ] = None,
    everything: Everything = False,
    digests: Digests = False,
    page: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Of several stores: write a page about all; replaces such a page.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --out: replace the file even if it isn't a report.")
    ] = False,
    at_once: AtOnce = None,
    master: Master = None,
    _tz: TimeZone = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a broker can start on a store, what its start would lose, and what is wrong with its files.

    The whole log is read, and every unit of the queues and every key of the index compared with it. Nothing
    is changed. Neither Spark nor Java is needed, unless --master names a cluster.

    Of several stores each gets a line; one that is refused or fails doesn't stop the others. In --broker-conf
    {store} stands for each store's path, {host} for its host. With --history, a run that was killed is
    continued by the same command.

    Exit code 0: start it. 1: start it; messages are gone for good, and nothing more can be done here.
    3: mend it first (`reput mend`). 4: it will not start. 5: can't be told. 2: a wrong call, or reput failed.
    Of several stores the worst, from 0 by 1, 3, 5 and 4 to 2.
    """
    from reput.diagnosis.check import check, compare
    from reput.diagnosis.nightly import check_again
    from reput.verify.plan import VerifyOptions

    with Output(as_json, interrupted="nothing was changed") as output:
        quick = quick or for_start
        if force and page is None:
            raise SettingsError("--force is about the page", expected="--out FILE with it", found="none")
        several = are_several(stores, history, page, at_once)
        if (everything or digests) and (history if several else proofs) is None:
            raise SettingsError(
                "--all and --digest say how much of earlier proofs is believed",
                expected=f"{'--history DIR' if several else '--proofs FILE'} with them",
                found="none",
            )
        if several:
            refuse_of_one({"--quick": quick, "--against": against, "--queue": queue, "--proofs": proofs})
    store = Path(stores[0])
    options = VerifyOptions(
        store, broker_conf=broker_conf, rocketmq_version=rocketmq_version, index=not no_index
    )
    if several:
        check_several(
            output, stores, options, master, at_once,
            history=history, everything=everything, digests=digests, page=page, force=force,
        )  # fmt: skip
    with output:
        _refuse_unclear(quick=quick, against=against, proofs=proofs, queue=queue)
        again = None
        if proofs is not None:
            again = _again(store, proofs, alone=not queue, everything=everything, digests=digests)
        store = here(store, derived=True, known={} if again is None else again.known_files)
        options = replace(
            options,
            store=store,
            against=None if against is None else here(against, derived=True),
            queues=tuple(queue or ()),
        )
        with ProgressDisplay("checking") as display:
            start_spark = spark_wanted("reput check", master, display)
            if against is not None:
                found = compare(options, start_spark, display.update)
            else:
                warn_of_unknown(store, queue)
                if again is None:
                    found = check(options, start_spark, display.update, quick=quick)
                    found = found.for_start() if for_start else found
                else:
                    kept = check_again(options, again, start_spark, display.update)
                    found = kept.diagnosis
                    if proofs is not None:
                        write_atomically(proofs, kept.proofs.encode())
    output.show(found if again is None else kept, check_lines(found))


def _refuse_unclear(
    *, quick: bool, against: Path | None, proofs: Path | None, queue: Sequence[str] | None
) -> None:
    """Refuse options that speak against each other."""
    more = [
        name for name, given in (("--against", against), ("--proofs", proofs), ("--queue", queue)) if given
    ]
    if quick and more:
        raise SettingsError(
            "--quick compares nothing", expected="--quick alone", found=f"--quick {' '.join(more)}"
        )
    if against is not None and proofs is not None:
        raise SettingsError(
            "proofs are of a whole store against its log",
            expected="--proofs without --against",
            found="both",
        )


def _again(store: Path, proofs: Path, *, alone: bool, everything: bool, digests: bool) -> Again:
    """What the comparison goes on from.

    Args:
        store: its directory or URL.
        alone: all of it is to be compared.

    Raises:
        SettingsError: options don't go together, or what is in the file can't be read, or is another store's.
        OutputError: the file can't be written there.
    """
    from reput.config.log_places import absolute
    from reput.diagnosis.nightly import Again
    from reput.verify.proven import Proofs

    if not alone:
        raise SettingsError(
            "proofs are of a whole store against its log",
            expected="--proofs without --queue",
            found="--queue",
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


def check_lines(found: Diagnosis) -> Iterator[str]:
    """A diagnosis, for people."""
    yield found.verdict.text
    yield from step_lines((), found.next_steps)
    yield from step_lines(found.not_read, ())
    yield from settings_lines(found.settings.basis)
    yield from _state(found)
    yield from _start(found)
    yield from _compared(found)
    yield from at_most("  legal      ", found.notes, "             and {} more; --json lists all")
    yield from finding_lines(found.findings, found.settings.root)


def _state(found: Diagnosis) -> Iterator[str]:
    snapshot = found.snapshot
    if snapshot is None:
        return
    if snapshot.holder is not None:
        yield f"  in use     by {snapshot.holder.what}: what is said here may be out of date"
    else:
        yield f"  stopped    {'cleanly' if snapshot.clean else 'by a crash: the file abort is there'}"
    if snapshot.checkpoint_exists:
        known = snapshot.checkpoint
        times = (
            ("physic", known.physic_msg_timestamp),
            ("logics", known.logics_msg_timestamp),
            ("index", known.index_msg_timestamp),
        )
        said = (f"{name} {moment(value) if value > 0 else value}" for name, value in times)
        yield f"  checkpoint {', '.join(said)}"


def _start(found: Diagnosis) -> Iterator[str]:
    """What a start does."""
    plan = found.plan
    if plan is None or plan.prediction.began_at is None:
        return
    prediction = plan.prediction
    walked, begun = prediction.recovered, prediction.began_at
    if walked is None or begun is None:
        return
    messages = f"{counted(walked.messages, 'message')}, {human(walked.bytes)}"
    more = prediction.dispatched
    also = f", and dispatches {counted(more.messages, 'message')} more" if more and more.messages else ""
    yield f"  a start    begins at {begun.path.name} and walks {messages}, up to {walked.end}{also}"
    units, keys = counted(prediction.units_added, "unit"), counted(prediction.index.added, "key")
    if prediction.units_added or prediction.index.added:
        yield f"             adds {units} and {keys}"


def _compared(found: Diagnosis) -> Iterator[str]:
    """How much was compared."""
    report = found.report
    if report is None:
        return
    messages = f": {counted(report.messages, 'message')}, {human(report.bytes)}"
    both = messages if report.against is None else ", which both have"
    yield f"  log        {report.start} to {report.end}{both}"
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
    yield f"  took       {found.seconds:.1f} s{rate}"


def finding_lines(findings: Sequence[Finding], root: Path) -> Iterator[str]:
    """A section for each effect; each kind once, with the first of its findings."""
    if not any(one.effect in COUNTS for one in findings):
        yield "  findings   none" if not findings else "  findings   none that matters"
    for effect, title in TITLES.items():
        some = [one for one in findings if one.effect is effect]
        if not some:
            continue
        yield f"  {title:<10} {len(some):,}"
        for kind in dict.fromkeys((one.kind, one.remark) for one in some):
            yield from _of_kind([one for one in some if (one.kind, one.remark) == kind], root)


def _of_kind(findings: Sequence[Finding], root: Path) -> Iterator[str]:
    first = findings[0]
    count = sum(one.count for one in findings)
    ranges = f" in {counted(len(findings), 'range')}" if count != len(findings) and len(findings) > 1 else ""
    remark = "" if first.remark is None else f": {first.remark}"
    yield f"    {first.area} {first.kind}, {count:,}{ranges}{remark}"
    shown = (str(one).replace(f"{root}/", "") for one in findings)
    yield from at_most("      ", list(shown), "      and {} more; --json lists all")
