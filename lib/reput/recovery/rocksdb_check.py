"""What ``reput check`` says of queues in RocksDB: ends and checkpoint key, against the last units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from reput.broker.problem import Problem
from reput.broker.rocksdb_queues import KeptQueues, Queue, last_units
from reput.broker.snapshot import Snapshot
from reput.errors import StoreError
from reput.log.end import of_any_release
from reput.log.segments import discover, without_unwritten_end
from reput.recovery.past_end import PAST_LOG_END, named


class _Odd(NamedTuple):
    """Queues that are wrong in one way: the first few, and how many."""

    kind: str
    expected: str
    outcome: str
    queues: list[Queue]


def rocksdb_problems(snapshot: Snapshot) -> Iterator[Problem]:
    """Ends of queues that aren't where their units end, and a checkpoint that isn't the log's end.

    Nothing while somebody uses the store: what RocksDB hasn't flushed isn't in its files.

    Raises:
        ReputError: the log can't be read, or the segments contradict each other.
    """
    kept = snapshot.kept
    if kept is None or not kept.exists or snapshot.holder is not None or not snapshot.log.files:
        return
    furthest = -1
    without, before, behind = _odd_ends(), _before(), _behind()
    try:
        for queue, unit in last_units(kept):
            furthest = max(furthest, unit.position + unit.size)
            end = kept.ends[queue].last if queue in kept.ends else None
            if end is None:
                without.queues.append(queue)
            elif end.queue_offset > unit.place:
                behind.queues.append(queue)
            elif end.queue_offset < unit.place and end.position < unit.position:
                before.queues.append(queue)
    except StoreError as error:
        yield _unreadable(snapshot, kept, error)
    for odd in (without, before, behind):
        if odd.queues:
            yield _of_queues(snapshot, kept, odd)
    yield from _checkpoint(snapshot, kept, furthest)


def _odd_ends() -> _Odd:
    outcome = (
        "queues look empty that the start doesn't dispatch again, and new messages are put over old ones"
    )
    return _Odd("no-max-key", "a max key for each queue with units", outcome, [])


def _before() -> _Odd:
    outcome = "units behind it aren't found, and new messages are put over them"
    return _Odd("queue-ends-early", "max keys of the last messages", outcome, [])


def _behind() -> _Odd:
    outcome = "the queue has a hole at its end, which consumers may not get past"
    return _Odd("queue-ends-late", "max keys of the last messages", outcome, [])


def _of_queues(snapshot: Snapshot, kept: KeptQueues, odd: _Odd) -> Problem:
    return Problem(
        kind=odd.kind,
        path=str(kept.directory),
        expected=odd.expected,
        found=f"{len(odd.queues):,} without: {named(odd.queues)}"
        if odd.kind == "no-max-key"
        else f"{len(odd.queues):,} others: {named(odd.queues)}",
        outcome=odd.outcome,
        next_step=_steps(snapshot),
    )


def _unreadable(snapshot: Snapshot, kept: KeptQueues, error: StoreError) -> Problem:
    return Problem(
        kind="broken-rocksdb",
        path=str(error.path or kept.directory),
        expected=str(error.expected or "units that can be read"),
        found=str(error.found or error.problem),
        outcome="the broker starts, and consumers don't get what is there",
        next_step=_steps(snapshot),
    )


def _checkpoint(snapshot: Snapshot, kept: KeptQueues, furthest: int) -> Iterator[Problem]:
    """The key, and what leads past the log's end; that is looked for in the log's last segment."""
    if snapshot.log.unloadable is not None:
        return
    end = of_any_release(snapshot.settings, without_unwritten_end(discover(snapshot.settings))).end
    if furthest > end:
        lost = "the broker starts without the messages that were there, and moves the ends of queues back"
        if not snapshot.clean:
            lost = f"after a crash, these may be messages that were never flushed: {lost}"
        yield Problem(
            kind=PAST_LOG_END,
            path=str(kept.directory),
            expected=f"units of messages before {end}, where the log ends",
            found=f"one that leads up to {furthest}",
            outcome=lost,
            next_step="Before a broker starts, look for the log's end, on a replica or in a backup; "
            f"`{snapshot.settings.command('recover', '--plan')}` says what a start takes away.",
        )
    elif kept.checkpoint is None or kept.checkpoint != end:
        yield Problem(
            kind="rocksdb-checkpoint",
            path=str(kept.directory),
            expected=f"a checkpoint key of {end}, where the log ends",
            found="none" if kept.checkpoint is None else str(kept.checkpoint),
            outcome="the start corrects it, and dispatches again what lies behind it"
            if (kept.checkpoint or 0) < end
            else "the start corrects it",
            next_step=f"`{snapshot.settings.command('recover', '--plan')}` says what that is.",
        )


def _steps(snapshot: Snapshot) -> str:
    plan, rebuild = (
        snapshot.settings.command("recover", "--plan"),
        snapshot.settings.command("rebuild", "--in-place"),
    )
    return f"`{plan}` says what a start mends; with the broker stopped, `{rebuild}` makes all from the log."
