"""``reput migrate``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Literal

from reput.cli import app as commands
from reput.cli.arguments import MEND, AsJson, OnLocalStore, OnSpark, Starts, command, flag, option
from reput.cli.output import Output, ProgressDisplay, at_most, listed, printed, settings_lines, step_lines
from reput.errors import SettingsError
from reput.spark.java import check_spark
from reput.store.system import human
from reput.words import counted, next_command

if TYPE_CHECKING:
    from reput.job.migrate import Migrated, Migration

_EXAMPLES = """Examples:
  What moving the queues to RocksDB would do, and which lines of broker.conf it changes:
    reput migrate /data/store --to rocksdb --plan --broker-conf broker.conf --rocketmq-version 5.5.0
  Do it, with the broker stopped; then change these lines and start the broker:
    reput migrate /data/store --to rocksdb --apply --broker-conf broker.conf --rocketmq-version 5.5.0
  Take it back, before the broker has run:
    reput undo /data/store
  From RocksDB to files:
    reput migrate /data/store --to file --apply --broker-conf broker.conf --rocketmq-version 5.3.3
"""


@dataclass(kw_only=True)
class _Words(OnLocalStore, Starts, OnSpark, AsJson):
    to_form: Literal["rocksdb", "file"] = option("--to", "Where the queues shall be.", MISSING)
    plan: bool = flag("--plan", "Report what would be done.")
    apply: bool = flag("--apply", "Do it. The broker must be stopped.")


@command("migrate", _EXAMPLES, MEND)
def migrate_command(given: _Words) -> None:
    """Move a store's queues, and what its broker keeps with them in config/, to RocksDB or to files.

    broker.conf is the one that the broker was stopped with; which lines of it have to change is reported. The
    queues are made from the commit log, as by `reput rebuild`; all that is replaced is kept, and `reput undo`
    puts it back. If it is killed, the same command continues.

    Exit code 0: planned, or done. 1: done, and the log has damage, or committed offsets lead
    to other messages. 2: refused or failed, with the store's
    files as they were.
    """
    from reput.diagnosis.check import refuse_no_start
    from reput.job.migrate import migrate, plan_migration
    from reput.job.options import RebuildOptions
    from reput.verify.plan import VerifyOptions

    def refuse() -> None:
        if given.apply:
            check_spark()
        refuse_no_start(VerifyOptions(given.store, None, given.broker_conf, given.rocketmq_version))

    with Output(
        given.as_json,
        interrupted="the same command finishes what was begun" if given.apply else "interrupted",
    ) as output:
        if given.plan == given.apply:
            raise SettingsError(
                "what to do about the migration is not clear",
                expected="either --plan or --apply",
                found="both" if given.plan else "neither",
                next_step="Begin with --plan, which changes nothing.",
            )
        options = RebuildOptions(
            given.store, broker_conf=given.broker_conf, rocketmq_version=given.rocketmq_version
        )
        if given.plan:
            if given.master is not None:
                raise SettingsError(
                    "--master belongs to --apply",
                    expected="--plan alone, which runs without Spark",
                    found="--plan --master",
                    next_step="Leave --master out.",
                )
            migration, _ = plan_migration(options, given.to_form)
            if not migration.already:
                refuse()
        else:
            with ProgressDisplay() as display:
                done = migrate(
                    options,
                    given.to_form,
                    lambda: commands.start_spark("reput migrate", given.master, display),
                    lambda found: None if given.as_json else printed(*_plan_lines(found, applying=True)),
                    display.derived,
                    refuse,
                )
    if given.plan:
        output.show(migration, _plan_lines(migration))
    output.show(done, _done_lines(done))


def _plan_lines(migration: Migration, *, applying: bool = False) -> Iterator[str]:
    settings = migration.settings
    form = "RocksDB" if migration.to == "rocksdb" else "files"
    if migration.already:
        yield f"Nothing to move in {migration.store}: its queues are in {form} already"
    else:
        yield f"{'Moving' if applying else 'Would move'} the queues of {migration.store} to {form}"
    if not applying and not migration.already:
        apply = settings.command("migrate", "--to", migration.to, "--apply")
        yield from step_lines((), [f"with the broker stopped, `{apply}`"])
    yield from settings_lines(migration.basis)
    for line in migration.lines or ["(all lines are as they have to be)"]:
        yield f"  broker.conf {line}"
    if migration.already:
        return
    for line in migration.config.said:
        yield f"  config     {line}"
    for line in migration.lacking:
        yield f"  differs    {line}"
    yield f"  replaces   {listed(migration.replaces)}"
    if migration.needed_bytes is not None:
        yield f"  needs      {human(migration.needed_bytes)} of disk, estimated"


def _done_lines(done: Migrated) -> Iterator[str]:
    rebuilt = done.rebuilt
    if done.kept is None:
        yield from _differs(done)
        return
    form = "RocksDB" if done.plan.to == "rocksdb" else "files"
    yield f"The queues of {done.store} are in {form}"
    if done.plan.lines:
        yield f"  next       set in broker.conf before the broker starts: {', '.join(done.plan.lines)}"
    if rebuilt is None:
        yield "  finished   the replacing of files that was interrupted"
    else:
        yield f"  queues     {counted(rebuilt.queues, 'queue')} with {counted(rebuilt.units, 'unit')}"
        yield f"  took       {rebuilt.seconds:.1f} s"
    yield from _differs(done)
    if rebuilt is not None:
        yield from at_most("  findings   ", [str(one) for one in rebuilt.findings], "    and {} more")
    undo = next_command("undo", done.store)
    yield f"  replaced   the old files are kept in {done.kept}; `{undo}` puts them back"


def _differs(done: Migrated) -> Iterator[str]:
    for line in done.differs:
        yield f"  differs    {line}"
    yield from at_most("  findings   ", done.findings, "    and {} more")
