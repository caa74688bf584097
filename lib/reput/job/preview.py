"""What a rebuild or an undo would do, without doing any of it: ``--dry-run``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from reput.config.evidence import Basis
from reput.config.topics import unknown_queues
from reput.errors import Result
from reput.format import names
from reput.job.options import RebuildOptions
from reput.job.output_directory import chosen
from reput.job.plan import check_continues, check_same_log, intended
from reput.log.segments import likely_end
from reput.replay.selection import Selection
from reput.store import swap
from reput.store.lock import check_output_free, check_store_free
from reput.store.ownership import Owner
from reput.store.reading import check_store
from reput.store.space import check_free, free_bytes


@dataclass(frozen=True, slots=True)
class Preview(Result):
    """What a rebuild would do; ``to_dict`` is what ``--json`` prints."""

    store: str  # the store
    output: str  # where it would write
    in_place: bool  # it would replace the store's own files
    rocketmq_version: str  # as this release writes them
    start: int  # physical offset at which it would begin: the log's start, or where an earlier run stopped
    likely_end: int  # physical offset near which the written log ends, by a megabyte
    continues: bool  # an earlier run would be continued
    #: a swap that was interrupted would be finished first, and nothing else if it was of this same
    #: command
    finishes_swap: bool
    estimated_messages: int  # estimated_messages, estimated_keys: in the whole log, by a sample of it
    estimated_keys: int
    needed_bytes: int  # needed_bytes, free_bytes: of disk, by that sample; a continued run needs less
    free_bytes: int
    replaces: list[str]  # what of the store would be replaced, relative to it
    #: requested queues that neither a directory nor config/topics.json has, each with the nearest one,
    #: or None
    unknown_queues: dict[str, str | None] = field(default_factory=dict)
    basis: Basis = field(default_factory=Basis)  # what the settings are based on
    dry_run: bool = True  # nothing was done


@dataclass(frozen=True, slots=True)
class UndoPreview(Result):
    """What an undo would do; ``to_dict`` is what ``--json`` prints."""

    store: str  # the store
    finishes_swap: bool  # a swap that was interrupted would be finished first; then ``kept`` may be another
    kept: str | None  # the directory that it would put back; None when only the swap would be finished
    put_back: list[str]  # put_back, taken_away: names in the store, relative to it
    taken_away: list[str]
    dry_run: bool = True  # nothing was done


def preview(options: RebuildOptions) -> Preview:
    """What a rebuild with these options would do. Nothing is changed, and no lock is taken."""
    from reput.output.journal import read_state

    run = intended(options)
    settings, root, in_place = run.settings, run.root, options.out is None
    pending = in_place and swap.is_pending(settings.root)
    if in_place:
        Owner.of_store(settings.root, settings.commit_log_dirs).check_can_apply(settings.root)
        swap.check_movable(settings.root, run.replaced)
        check_store_free(settings.root)
    check_output_free(settings.root if in_place else root)
    start, continues = run.log.start, run.journal.exists() and not pending
    if continues:
        opening, state = read_state(run.journal)
        check_continues(opening, state, run.opening, run.log, root)
        check_same_log(state, run.log, root)
        start = state.cursor
    elif not pending:
        check_free(root, run.estimate.output_bytes, "the rebuild")
    return Preview(
        store=settings.place,
        output=str(settings.root if in_place else root),
        in_place=in_place,
        rocketmq_version=settings.told_release,
        start=start,
        likely_end=max(likely_end(run.log), start),
        continues=continues,
        finishes_swap=pending,
        estimated_messages=run.estimate.messages,
        estimated_keys=run.estimate.keys,
        needed_bytes=run.estimate.output_bytes,
        free_bytes=free_bytes(root),
        replaces=[name for name in run.replaced if in_place and os.path.lexists(settings.root / name)],
        unknown_queues=unknown_queues(settings.root, Selection.parse(options.queues).queues, settings.config),
        basis=settings.basis,
    )


def preview_undo(store: Path, kept: Path | None = None) -> UndoPreview:
    """What :func:`reput.job.undo` would do. Nothing is changed, and no lock is taken."""
    root = Path(os.path.abspath(store))
    check_store(root)
    pending = swap.is_pending(root)
    Owner.of_store(root, [root / names.COMMIT_LOG]).check_can_apply(root)
    check_store_free(root)
    check_output_free(root)
    if pending:
        return UndoPreview(str(root), True, None, [], [])
    directory = chosen(root, kept)
    put_back, taken_away = swap.undone_names(root, directory)
    return UndoPreview(str(root), False, str(directory), put_back, taken_away)
