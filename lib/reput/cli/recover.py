"""``reput check`` and ``reput recover``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.api import store as api
from reput.cli import app as commands
from reput.cli.arguments import AsJson, BrokerConf, LocalStore, Master, StartedBy, TimeZone
from reput.cli.commands import LOOK, MEND
from reput.cli.output import (
    Output,
    ProgressDisplay,
    at_most,
    fact_lines,
    printed,
    remarks,
    settings_lines,
    step_lines,
)
from reput.cli.times import moment
from reput.config.settings import StoreSettings
from reput.errors import SettingsError
from reput.next_command import next_command
from reput.spark.java import check_spark
from reput.store.ignored_features import ignored_features
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.broker.snapshot import Snapshot
    from reput.job.options import RebuildOptions
    from reput.recovery.check import Check
    from reput.recovery.mending import Mended
    from reput.recovery.plan import Plan
    from reput.recovery.replica import Comparison


_CHECK_EXAMPLES = """**Examples**

What a broker would load of these files, and what would stop it:

    reput check /data/store --broker-conf broker.conf --rocketmq-version 5.3.3

For a program:

    reput check /data/store --json
"""

_RECOVER_EXAMPLES = """**Examples**

What the next start will do, and what it will lose or leave broken:

    reput recover /data/store --plan --broker-conf broker.conf --rocketmq-version 5.3.3

The same, with all of the log that the broker would read:

    reput recover /data/store --plan --full --broker-conf broker.conf

Mend it, with the broker stopped; and take that back:

    reput recover /data/store --apply --broker-conf broker.conf

    reput undo /data/store

What is damaged or missing in the log, and whole in a slave's or a backup's; and take it over:

    reput recover /data/store --from /data/slave --plan --broker-conf broker.conf

    reput recover /data/store --from /data/slave --apply --broker-conf broker.conf
"""


@commands.app.command("check", epilog=_CHECK_EXAMPLES, rich_help_panel=LOOK)
def check_command(
    store: LocalStore,
    broker_conf: BrokerConf = None,
    rocketmq_version: StartedBy = None,
    _tz: TimeZone = None,
    as_json: AsJson = False,
) -> None:
    """Look at a store as a broker loads it, and say what would keep the broker from starting.

    Nothing is changed. The log isn't read, except for one message: if the furthest one that a queue points to
    is there, the log reaches that far. `reput recover --plan` reads the log, too.

    Exit code 0: sound. 1: findings. 2: the store or the settings can't be read.
    """
    with Output(as_json, interrupted="interrupted") as output:
        check = api.Store(store, broker_conf=broker_conf, rocketmq_version=rocketmq_version).check()
    output.show(check, _check_lines(check))


@commands.app.command("recover", epilog=_RECOVER_EXAMPLES, rich_help_panel=MEND)
def recover_command(
    store: LocalStore,
    plan: Annotated[bool, typer.Option("--plan", help="Report what the broker's restart will do.")] = False,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Mend what the restart would lose or leave broken. The broker must be stopped."
        ),
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="With --plan: read everything the broker would, not just 3 GiB of the log. "
            "--apply always does.",
        ),
    ] = False,
    replica: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="REPLICA",
            help="Take what is damaged or missing in the log from a slave, a backup or a copy: a store's "
            "directory, or one of segments. It is only read, and mustn't be written meanwhile.",
        ),
    ] = None,
    broker_conf: BrokerConf = None,
    rocketmq_version: StartedBy = None,
    master: Master = None,
    _tz: TimeZone = None,
    as_json: AsJson = False,
) -> None:
    """Report what a broker's restart will do to a store, what it won't repair, and what to do; or mend it.

    --plan changes nothing, and reads the log where the broker would. Exit code 0: as far as the broker reads,
    the restart loses nothing and leaves nothing broken. 1: it does, or there is more to read than fits
    without --full. 2: the store or the settings can't be read, or aren't supported.

    --apply rebuilds queues and index, and mends the places where the restart would cut the log. If the
    restart loses nothing, it changes nothing. All that is replaced is kept; `reput undo` puts it back. Exit
    code 0: nothing to mend, or mended. 1: mended, and messages are gone. 2: refused or failed, with
    the store's files as they were.

    --from REPLICA compares the whole log with a replica's. --plan then reports what would be taken from there
    (exit code 1) and what would stay damaged; --apply takes it over first. What is sound here is never
    replaced: a replica that differs there is refused.
    """
    from reput.job.options import RebuildOptions

    with Output(
        as_json, interrupted="the same command finishes what was begun" if apply else "interrupted"
    ) as output:
        _refuse_unclear(plan=plan, apply=apply, full=full, master=master, replica=replica)
        result: Mended | Plan | Comparison
        if apply:
            result = _mended(
                RebuildOptions(store, broker_conf=broker_conf, rocketmq_version=rocketmq_version),
                master,
                replica,
                as_json=as_json,
            )
            lines = _mended_lines(result)
        elif replica is not None:
            settings = StoreSettings.load(store, broker_conf, rocketmq_version, rocksdb=True)
            result = _compared(settings, replica)
            lines = _comparison_lines(result)
        else:
            opened = api.Store(store, broker_conf=broker_conf, rocketmq_version=rocketmq_version)
            result = opened.plan(full=full)
            lines = _plan_lines(result)
    output.show(result, lines)


def _compared(settings: StoreSettings, replica: Path) -> Comparison:
    from reput.recovery.replica import compare_logs

    with ProgressDisplay("comparing") as display:
        return compare_logs(settings, replica, lambda done, total: display.update(done, 0, total))


def _comparison_lines(comparison: Comparison, *, applying: bool = False) -> Iterator[str]:
    """What a replica has; without what to do next where that is being done."""
    root = comparison.settings.root
    yield comparison.text
    if not applying:
        yield from step_lines(comparison.not_read, comparison.next_steps)
    same = f"{human(comparison.same)} of it sound in both, and the same"
    yield f"  compared   {comparison.start} to {comparison.end} of the log, {same}"
    yield from fact_lines("take", comparison.taken, root, "nothing")
    yield from fact_lines("left", comparison.left, root, "nothing")


def _refuse_unclear(*, plan: bool, apply: bool, full: bool, master: str | None, replica: Path | None) -> None:
    """Refuse neither and both, and options that would change nothing: something is expected of them."""
    if plan == apply:
        raise SettingsError(
            "what to do about the restart is not clear",
            expected="either --plan or --apply",
            found="both" if plan else "neither",
            next_step="Begin with --plan, which changes nothing.",
        )
    if apply and full:
        raise SettingsError(
            "--full belongs to --plan",
            expected="--apply alone, which reads all that the broker would",
            found="--apply --full",
            next_step="Leave --full out.",
        )
    if replica is not None and full:
        raise SettingsError(
            "--full belongs to a plan without --from",
            expected="--from alone, which reads all of both logs",
            found="--from --full",
            next_step="Leave --full out.",
        )
    if not apply and master is not None:
        raise SettingsError(
            "--master belongs to --apply",
            expected="--plan alone, which runs without Spark",
            found="--plan --master",
            next_step="Leave --master out.",
        )


def _mended(options: RebuildOptions, master: str | None, replica: Path | None, *, as_json: bool) -> Mended:
    from reput.recovery.mending import mend

    with ProgressDisplay() as display:
        return mend(
            options,
            lambda: commands.start_spark("reput recover", master, display),
            lambda result: None if as_json else printed(*_plan_lines(result, applying=True)),
            lambda progress, total: display.update(progress.bytes_done, progress.messages, total),
            replica,
            lambda done, total: display.update(done, 0, total),
            lambda found: None if as_json else printed(*_comparison_lines(found, applying=True)),
            check_spark,
        )


def _mended_lines(mended: Mended) -> Iterator[str]:
    settings = mended.plan.snapshot.settings
    if mended.finished is not None:
        yield f"Finished what was begun: the old files are kept in {mended.finished}"
    if mended.kept is None:
        yield f"Nothing to mend in {settings.root}"
        return
    yield f"Mended {settings.root} for a start of RocketMQ {settings.release_name}, which now loses nothing"
    if mended.replica is not None and mended.replica.taken:
        taken = mended.replica.taken
        size = human(sum(one.end - one.offset for one in taken))
        yield f"  taken      {counted(len(taken), 'range')}, {size}, from {mended.replica.replica}"
    if mended.changes:
        yield from _listed("log", [str(change) for change in mended.changes])
    rebuilt = mended.rebuilt
    if rebuilt is None:
        yield "  queues     as they were, and the index, too"
    else:
        units = counted(rebuilt.units, "unit")
        yield f"  queues     {counted(rebuilt.queues, 'queue')} with {units}, rebuilt"
        entries = counted(rebuilt.index_entries, "key")
        yield f"  index      {counted(rebuilt.index_files, 'file')} with {entries}, rebuilt"
        if rebuilt.findings:
            yield from _listed("findings", [str(finding) for finding in rebuilt.findings])
        yield from remarks(rebuilt)
    undo = next_command("undo", settings.root)
    yield f"  replaced   the old files are kept in {mended.kept}; `{undo}` puts them back"


def _check_lines(check: Check) -> Iterator[str]:
    snapshot = check.snapshot
    settings = snapshot.settings
    yield check.verdict.text
    yield from step_lines((), check.next_steps)
    yield from step_lines(check.not_read, ())
    yield from _state_lines(snapshot)
    sizes = f"{snapshot.segment_size:,} bytes each"
    yield f"  log        {counted(len(snapshot.log.files), 'segment')} of {sizes}{_assumed(snapshot)}"
    if snapshot.kept is not None:
        queues = counted(len(snapshot.kept.ends), "queue")
        yield f"  queues     {queues} in RocksDB, {settings.rocksdb.queues}/"
    else:
        queues = counted(len(snapshot.queues) + len(snapshot.batch_queues), "queue")
        yield f"  queues     {queues} in {counted(check.queue_files, 'file')}"
    yield f"  index      {counted(len(snapshot.index), 'file')}"
    yield _checkpoint_line(snapshot)
    if beside := ignored_features(settings.root):
        yield f"  left alone {', '.join(beside)}: the commit log alone doesn't hold them"
    yield from fact_lines("findings", check.problems, settings.root)


def _checkpoint_line(snapshot: Snapshot) -> str:
    if not snapshot.checkpoint_exists:
        return "  checkpoint none"
    checkpoint = snapshot.checkpoint
    times = (
        ("physic", checkpoint.physic_msg_timestamp),
        ("logics", checkpoint.logics_msg_timestamp),
        ("index", checkpoint.index_msg_timestamp),
    )
    said = (f"{name} {moment(value) if value > 0 else value}" for name, value in times)
    return f"  checkpoint {', '.join(said)}"


def _assumed(snapshot: Snapshot) -> str:
    return "" if snapshot.segment_size_known else " (as the files are: broker.conf doesn't say)"


def _state_lines(snapshot: Snapshot) -> Iterator[str]:
    yield from settings_lines(snapshot.settings.basis)
    if snapshot.holder is not None:
        yield f"  in use     by {snapshot.holder.what}: what is said here may be out of date"
    else:
        yield f"  stopped    {'in good order' if snapshot.clean else 'by a crash: the file abort is there'}"


def _plan_lines(plan: Plan, *, applying: bool = False) -> Iterator[str]:
    """The plan; without what to do next where that is being done."""
    prediction, snapshot = plan.prediction, plan.snapshot
    settings, walked = snapshot.settings, prediction.recovered
    yield plan.verdict.text
    if not applying:
        yield from step_lines(plan.not_read, plan.next_steps)
    yield from _state_lines(snapshot)
    if any(loss.kind == "checkpoint-ahead" for loss in plan.unrepaired):
        yield _checkpoint_line(snapshot)
    if prediction.problems:
        yield from fact_lines("stops at", prediction.problems, settings.root)
    if prediction.began_at is not None:
        yield f"  begins     at {prediction.began_at.path.name}, {_why(plan)}"
    if walked is not None:
        taken = f"{counted(walked.messages, 'message')}, {human(walked.bytes)}"
        segments = counted(walked.segments, "segment")
        yield f"  walks      {segments}: {taken}, up to {walked.end}: {walked.why}"
    if prediction.dispatched is not None and prediction.dispatched.messages:
        messages = counted(prediction.dispatched.messages, "message")
        yield f"  dispatches {messages} more, from the end of its queues on"
    if prediction.starts and prediction.unread is not None:
        yield from _bounds(plan, prediction.unread)
    elif prediction.starts:
        there = (
            f"{prediction.log_start} to {prediction.log_end} afterwards" if prediction.segments else "none"
        )
        yield f"  log        {there}"
        units = counted(prediction.units_added, "unit")
        kept = "" if prediction.rocksdb is None else " in RocksDB"
        yield f"  queues     {counted(prediction.queue_count, 'queue')}{kept}, {units} added"
        index = counted(len(prediction.index.files), "file")
        yield f"  index      {index} afterwards, {counted(prediction.index.added, 'key')} added"
        rate = f"{human(plan.rate)}/s, with the files in memory"
        yield f"  takes      {_time(plan.seconds)} of reading, reckoned with {rate}"
        yield from fact_lines("loses", plan.losses, settings.root, "nothing")
        nothing = "nothing that its walk goes through"
        yield from fact_lines("not mended", [*plan.unrepaired, *plan.lost_config], settings.root, nothing)


def _bounds(plan: Plan, unread: tuple[int, int]) -> Iterator[str]:
    """What is known without reading all that the broker reads."""
    prediction, (start, end) = plan.prediction, unread
    does = "dispatches" if prediction.recovered is not None or not plan.snapshot.clean else "walks"
    yield f"  {does:<10} {start} to {end} of the log, which wasn't read: {human(end - start)}"
    yield f"  log        {prediction.log_start} to {prediction.log_end} afterwards, or less"
    kept = 0 if plan.snapshot.kept is None else len(plan.snapshot.kept.ends)
    number = len(plan.snapshot.queues) + len(plan.snapshot.batch_queues) + kept
    queues = f"{counted(number, 'queue')} now, up to {prediction.queue_end} of the log"
    yield f"  queues     {queues if number else 'none now'}"
    yield f"  takes      up to {_time(plan.seconds)} of reading, reckoned with {human(plan.rate)}/s"
    root = plan.snapshot.settings.root
    yield from fact_lines("loses", plan.losses, root, "nothing that was seen so far")
    if unrepaired := [*plan.unrepaired, *plan.lost_config]:
        yield from fact_lines("not mended", unrepaired, root)


def _time(seconds: float) -> str:
    return f"some {seconds:.0f} s" if seconds >= 1 else "less than a second"


def _why(plan: Plan) -> str:
    if plan.prediction.rocksdb is not None:
        return f"by the checkpoint key in RocksDB, {plan.prediction.queue_end}"
    rules, clean = plan.snapshot.settings.dialect.recovery, plan.snapshot.clean
    return f"by its rule: {rules.clean_start.value if clean else rules.crash_start.value}"


def _listed(title: str, lines: list[str]) -> Iterator[str]:
    yield f"  {title:<10} {len(lines):,}"
    yield from at_most("    ", lines, "    and {} more; --json prints all")
