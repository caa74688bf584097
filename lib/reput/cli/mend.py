"""``reput mend`` and ``reput undo``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reput.cli.arguments import (
    MEND,
    AsJson,
    Dry,
    OnLocalStore,
    OnSparkIfWanted,
    Starts,
    argument,
    command,
    flag,
    option,
)
from reput.cli.check import finding_lines
from reput.cli.jvm import spark_wanted
from reput.cli.output import Output, ProgressDisplay, at_most, listed, remarks, settings_lines
from reput.errors import Fact
from reput.store.system import human
from reput.words import counted, next_command

if TYPE_CHECKING:
    from reput.job import Undone
    from reput.job.in_place import UndoPreview
    from reput.mending import Mended
    from reput.recovery.replica import Comparison

_EXAMPLES = """Examples:
  What there is to do, and what each step changes:
    reput mend /data/store --broker-conf broker.conf --rocketmq-version 5.3.3
  Do it, with the broker stopped; and take that back:
    reput mend /data/store --apply --broker-conf broker.conf
    reput undo /data/store
  Take what is damaged or missing in the log from a slave, a backup or a copy first:
    reput mend /data/store --from /data/slave --apply --broker-conf broker.conf
"""


@dataclass(kw_only=True)
class _Words(OnLocalStore, Starts, OnSparkIfWanted, AsJson):
    apply: bool = flag("--apply", "Take the steps. The broker must be stopped.")
    replica: Path | None = option(
        "--from REPLICA",
        "Take what the log lacks from a slave, a backup or a copy: a store, or segments. Nobody may "
        "write there meanwhile.",
    )


@command("mend", _EXAMPLES, MEND)
def mend_command(given: _Words) -> None:
    """Say what puts a store right, in order; with --apply, do it.

    Files that are in the way are moved aside, the log's damage is closed so that a broker goes on behind it,
    and queues, index and checkpoint are made anew from the log where they are wrong. All that is replaced is
    kept; `reput undo` puts it back. A run that was killed is finished, or given up, by the same command.

    Exit code: that of `reput check` for the store as it then is. 0: start it. 1: start it; messages are gone
    for good. 3: there is something to mend, and --apply wasn't given. 4: it will not start. 5: can't be told.
    2: refused or failed: the store's files are as they were, unless it says that they are half replaced.
    """
    from reput.job.options import RebuildOptions
    from reput.mending import mend

    interrupted = "the same command finishes what was begun" if given.apply else "nothing was changed"
    with Output(given.as_json, interrupted=interrupted) as output, ProgressDisplay("checking") as display:
        result = mend(
            RebuildOptions(
                given.store, broker_conf=given.broker_conf, rocketmq_version=given.rocketmq_version
            ),
            given.replica,
            apply=given.apply,
            start_spark=spark_wanted("reput mend", given.master, display),
            checking=display.update,
            comparing=display.read,
            listener=display.derived,
            begins=lambda found: display.say(f"mending: {counted(len(found.steps), 'step')}"),
        )
    output.show(result, mend_lines(result))


def mend_lines(result: Mended) -> Iterator[str]:
    """What there is to do, or was done, for people; the result first."""
    settings = result.before.settings
    if result.finished is not None:
        yield f"Finished what was begun: the old files are kept in {result.finished}"
    yield result.verdict.text
    if not result.applied:
        yield from _todo(result)
    yield from settings_lines(settings.basis)
    if result.replica is not None:
        yield from _replica(result.replica, applied=result.applied)
    if result.applied:
        yield from _done(result)
    if result.now.left or not result.applied:
        yield from finding_lines(result.now.findings, settings.root)


def _todo(result: Mended) -> Iterator[str]:
    if not result.steps:
        yield "  steps      none: there is nothing to mend here"
        return
    for number, step in enumerate(result.steps, 1):
        yield f"  {'' if number > 1 else 'steps':<10} {number}. {'by hand: ' if step.by_hand else ''}{step}"
    if all(step.by_hand for step in result.steps):
        return
    words = ["--apply"]
    if result.replica is not None:
        words = ["--from", str(result.replica.replica), "--apply"]
    apply = result.before.settings.command("mend", *words)
    yield f"  next       With the broker stopped: `{apply}` takes the steps; `{_undo(result)}` undoes them."
    yield from (f"             {step}" for step in result.before.unless_deleted)


def _undo(result: Mended) -> str:
    return next_command("undo", result.before.settings.root)


def _replica(comparison: Comparison, *, applied: bool) -> Iterator[str]:
    same = f"{human(comparison.same)} of it sound in both, and the same"
    yield f"  compared   {comparison.start} to {comparison.end} of the log, {same}"
    yield from _facts("taken" if applied else "take", comparison.taken)
    yield from _facts("left", comparison.left)


def _facts(title: str, facts: Sequence[Fact]) -> Iterator[str]:
    if facts:
        yield f"  {title:<10} {len(facts):,}"
        said = [f"{one.kind}: {one.said}" for one in facts]
        yield from at_most("    ", said, "    and {} more; --json prints all")


def _done(result: Mended) -> Iterator[str]:
    if result.changes:
        yield f"  log        {len(result.changes):,}"
        yield from at_most("    ", result.changes, "    and {} more; --json prints all")
    rebuilt = result.rebuilt
    if rebuilt is None:
        yield "  queues     as they were, and the index, too"
    else:
        yield from at_most("  made anew  ", result.made, "             and {} more; --json prints all")
        units, keys = counted(rebuilt.units, "unit"), counted(rebuilt.index_entries, "key")
        yield f"  from       {counted(rebuilt.messages, 'message')} of the log: {units}, {keys}"
        yield from remarks(rebuilt)
    if result.lost:
        yield f"  lost       {counted(result.lost, 'message')}: neither the log nor what was given has them"
    if result.kept is not None:
        yield f"  replaced   the old files are kept in {result.kept}; `{_undo(result)}` puts them back"


_UNDO_EXAMPLES = """Examples:
  After a rebuild in place, or a mending, that isn't what was wanted:
    reput undo /data/store
  An earlier one:
    reput undo /data/store --kept /data/store/replaced-20261121T100000Z
"""


@dataclass(kw_only=True)
class _UndoWords(Dry, AsJson):
    store: Path = argument("STORE", "The store that was rebuilt, mended or migrated.")
    kept: Path | None = option(
        "--kept DIR", "Put back this replaced-... directory (default: of the last rebuild not yet undone)."
    )


@command("undo", _UNDO_EXAMPLES, MEND)
def undo_command(given: _UndoWords) -> None:
    """Put back what `rebuild --in-place`, `mend --apply` or `migrate --apply` replaced.

    The rebuilt files are kept in another replaced-... directory. Refused while a broker runs, and once one
    has run since: the files would lack what it has written.

    Exit code 0: done. 2: refused or failed.
    """
    from reput.job import undo

    with Output(given.as_json, interrupted="the same command finishes what was begun") as output:
        if given.dry_run:
            from reput.job.in_place import preview_undo

            would = preview_undo(given.store, given.kept)
        else:
            undone = undo(given.store, given.kept)
    if given.dry_run:
        output.show(would, _preview_lines(would))
    output.show(undone, _lines(undone))


def _preview_lines(preview: UndoPreview) -> Iterator[str]:
    if preview.kept is None:
        yield f"Nothing was done. Would finish the replacing of files in {preview.store} that was interrupted"
        return
    yield f"Nothing was done. Would put back what was replaced in {preview.store}"
    yield f"  put back   {listed(preview.put_back) or 'nothing'}, from {preview.kept}"
    if preview.taken_away:
        yield f"  take away  {listed(preview.taken_away)}"
    yield "  kept       what is in place now would be kept in another replaced-... directory"


def _lines(undone: Undone) -> Iterator[str]:
    yield f"Put back what was replaced in {undone.store}"
    yield f"  put back   {listed(undone.put_back) or 'nothing'}"
    if undone.taken_away:
        yield f"  taken away {listed(undone.taken_away)}"
    yield f"  kept       what was in place is kept in {undone.kept}"
