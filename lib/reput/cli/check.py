"""``reput check``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from reput.cli.arguments import (
    LOOK,
    OfQueues,
    OnSparkIfWanted,
    OnStores,
    Shown,
    Starts,
    are_several,
    command,
    flag,
    option,
    refuse_of_one,
)
from reput.cli.jvm import spark_wanted
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
from reput.remote.client import is_url, url_of
from reput.store.files import new_file, reporting, write_atomically
from reput.store.reading import read_file
from reput.store.system import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.diagnosis.check import Diagnosis
    from reput.diagnosis.nightly import Again
    from reput.diagnosis.verdict import Finding

_EXAMPLES = """Examples:
  Is anything wrong, what would a start lose, and what is to be done:
    reput check /data/store --broker-conf broker.conf --rocketmq-version 5.3.3
  Only what a start reads, as a guard before the broker:
    reput check /data/store --quick --broker-conf broker.conf
  Every night, only what isn't proven yet:
    reput check /data/store --broker-conf broker.conf --proofs /var/lib/reput/store.proofs
  A fleet every night: only what is new is read, and a page shows how it stands:
    reput check stores.toml --history /var/lib/reput/fleet -o fleet.html --at-once 4
"""


@dataclass(kw_only=True)
class CheckWords(OnStores, Starts, OfQueues, OnSparkIfWanted, Shown):
    """What ``check`` is given."""

    quick: bool = flag("--quick", "Read only what a start reads, at most 3 GiB of the log; compare nothing.")
    for_start: bool = flag(
        "--for-start",
        "--quick where what loses no message is no reason.",
    )
    against: Path | None = option("--against DIR", "Only compare queues and index with another store's.")
    no_index: bool = flag("--no-index", "Don't look at the index files.")
    proofs: Path | None = option("--proofs FILE", "Leave out what FILE says is proven; update it.")
    history: Path | None = option(
        "--history DIR", "Of several stores: add rows to DIR/runs, a Delta table; read only what is new."
    )
    everything: bool = flag("--all", "Compare all again, and forget which segments have changed.")
    digests: bool = flag("--digest", "Believe no file's size and times: read and compare all bytes.")
    page: Path | None = option("--out -o FILE", "Of several stores: write or replace a page about all.")
    force: bool = flag("--force", "With --out: replace the file even if it isn't a report.")


@command("check", _EXAMPLES, LOOK)
def check_command(given: CheckWords) -> None:
    """Say whether a broker can start on a store, what its start would lose, and what is wrong with its files.

    The whole log is read, and every unit of the queues and every key of the index compared with it. Nothing
    is changed. Neither Spark nor Java is needed, unless --master names a cluster.

    Of several stores each gets a line; one that fails doesn't stop the others. In --broker-conf {store}
    stands for each store's path, {host} for its host. With --history, a killed run is continued.

    Exit code 0: start it. 1: start it; messages are gone for good. 3: mend it first (`reput mend`). 4: it
    will not start. 5: can't be told. 2: a wrong call, or reput failed. Of several the worst, in the order
    0, 1, 3, 5, 4, 2.
    """
    from reput.diagnosis.check import check, compare
    from reput.diagnosis.nightly import check_again
    from reput.verify.plan import VerifyOptions

    stores, against, proofs, history = given.stores, given.against, given.proofs, given.history
    everything, digests = given.everything, given.digests
    with Output(given.as_json, interrupted="nothing was changed") as output:
        quick = given.quick or given.for_start
        if given.force and given.page is None:
            raise SettingsError("--force is about the page", expected="--out FILE with it", found="none")
        several = are_several(stores, history, given.page, given.at_once)
        if (everything or digests) and (history if several else proofs) is None:
            raise SettingsError(
                "--all and --digest say how much of earlier proofs is believed",
                expected=f"{'--history DIR' if several else '--proofs FILE'} with them",
                found="none",
            )
        if several:
            refuse_of_one(
                {"--quick": quick, "--against": against, "--queue": given.queue, "--proofs": proofs}
            )
    store = Path(stores[0])
    options = given.to(VerifyOptions, store=store, against=None, index=not given.no_index)
    if several:
        from reput.cli.many import check_several

        check_several(output, options, given)
    with output:
        _refuse_unclear(quick=quick, against=against, proofs=proofs, queue=given.queue)
        again = None
        if proofs is not None:
            again = _again(store, proofs, alone=not given.queue, everything=everything, digests=digests)
        store = here(store, derived=True, known={} if again is None else again.known_files)
        options = replace(
            options, store=store, against=None if against is None else here(against, derived=True)
        )
        with ProgressDisplay("checking") as display:
            start_spark = spark_wanted("reput check", given.master, display)
            if against is not None:
                found = compare(options, start_spark, display.update)
            else:
                warn_of_unknown(store, given.queue)
                if again is None:
                    found = check(options, start_spark, display.update, quick=quick)
                    found = found.for_start() if given.for_start else found
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

    ``store``: its directory or URL. ``alone``: all of it is to be compared.

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
    both = ": what is derived of it was compared, not the log itself"
    if report.against is None or report.start < report.end:
        yield f"  log        {report.start} to {report.end}{messages if report.against is None else both}"
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
