"""What is said of queues and index beside the log: those that end before it, those that lead past its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reput.broker.snapshot import Snapshot
from reput.config.topics import known_topics
from reput.errors import SettingsError
from reput.recovery.past_end import INDEX_AHEAD, PAST_LOG_END, keys_past, named
from reput.report.checks import QUEUES
from reput.report.facts import ATTENTION, BROKEN, Found, QueueFacts
from reput.words import counted

#: Why the last offset of a queue can't be compared with the log's.
IS_BATCH = "batch queue"
REPEATS = "its queueOffsets repeat in the log, as those of a topic that was created anew"


def is_compared(row: QueueFacts) -> bool:
    """Whether its last offset was compared with the log's."""
    return row.past is not None and row.uncompared is None


def _is_without_files(row: QueueFacts) -> bool:
    """The log has messages of it."""
    return not row.is_there and row.problem is None and bool(row.log_messages)


def _differs(row: QueueFacts) -> bool:
    return bool(row.behind or row.past) or _is_without_files(row)


def answer(rows: Sequence[QueueFacts], findings: Sequence[Found]) -> str:
    """What came of comparing queues with the log, in words: how many were, and which couldn't be, and why."""
    if not rows:
        return "there are no queues, and the log has no message of one"
    differing = sum(_differs(row) for row in rows)
    every, compared = counted(len(rows), "queue"), sum(is_compared(row) for row in rows)
    if differing:
        match = "doesn't match the log" if differing == 1 else "don't match the log"
        said = f"{differing:,} of {every} {match}"
    elif compared:
        said = f"{compared:,} of {every} compared: none ends before the log does, or leads past its end"
    else:
        said = f"{every}, none of which could be compared"
    if any(one.kind == INDEX_AHEAD for one in findings):
        said += "; the index leads past the log's end"
    rest = [_why_not(row) for row in rows if not is_compared(row) and not _differs(row)]
    whys = ", ".join(f"{rest.count(why):,} {why}" for why in dict.fromkeys(rest))
    return f"{said}; queues not compared: {whys}" if whys else said


def _why_not(row: QueueFacts) -> str:
    if row.uncompared == IS_BATCH:
        return "whose units are of batches"
    if row.uncompared is not None:
        return "whose queueOffsets repeat in the log"
    return "that can't be read" if row.problem is not None else "without files"


def behind(snapshot: Snapshot, rows: Sequence[QueueFacts]) -> Iterator[Found]:
    """Queues that end before the log does, or have no files."""
    short = [row for row in rows if row.behind]
    if short:
        most = max(short, key=lambda row: row.behind or 0)
        yield _found(
            BROKEN if snapshot.clean else ATTENTION,
            "queue-behind-log",
            short,
            "a unit for each message of the log",
            f"{sum(row.behind or 0 for row in short):,} messages without one, "
            f"{most.behind:,} of them of {most.topic}:{most.queue_id}",
            "consumers don't get these messages; a start after a crash places those that its walk meets",
        )
    # A deleted topic's messages stay in the log: its queues are missing on purpose.
    try:
        known = known_topics(snapshot.settings.config)
    except SettingsError:
        known = None
    without = [row for row in rows if _is_without_files(row)]
    deleted = [row for row in without if known is not None and row.topic not in known]
    lost = [row for row in without if known is None or row.topic in known]
    if lost:
        yield _found(
            BROKEN if known is not None and snapshot.clean else ATTENTION,
            "queue-without-files",
            lost,
            "files of a queue that the log has messages of, or its keys in RocksDB",
            f"none, for {sum(row.log_messages or 0 for row in lost):,} messages",
            "consumers don't get these messages"
            if known is not None
            else "a deleted topic, or lost files: without config/topics.json it can't be told",
        )
    if deleted:
        yield _found(
            ATTENTION,
            "deleted-topic",
            deleted,
            "topics of config/topics.json",
            f"{sum(row.log_messages or 0 for row in deleted):,} messages of topics that it doesn't name",
            "nothing, if they were deleted; a rebuild brings them back unless it gets --known-topics-only",
        )


def past_end(snapshot: Snapshot, rows: Sequence[QueueFacts], end: int) -> Iterator[Found]:
    """What leads past the log's end: messages that it had, and has lost."""
    level = BROKEN if snapshot.clean else ATTENTION
    past = [row for row in rows if row.past]
    units = sum(row.past or 0 for row in past)
    if past:
        yield _found(
            level,
            PAST_LOG_END,
            past,
            f"units of messages before the log's end, {end:,}",
            f"{units:,} {'that leads past it' if units == 1 else 'that lead past it'}",
            "the log doesn't have these messages any more. A broker's start cuts such a queue, and new "
            "messages get the same queueOffsets again: consumers that were further on miss those",
            "Before a broker starts, look for the log's last segments, on a replica or in a backup.",
        )
    ahead = keys_past(snapshot.index, end)
    if ahead and snapshot.log.files:
        last = ahead[-1]
        yield Found(
            source=QUEUES,
            level=level,
            kind=INDEX_AHEAD,
            where="",
            path=str(last.path),
            expected=f"keys of messages before the log's end, {end:,}",
            found=f"one of a message at {last.header.end_physical_offset:,}",
            outcome="no start takes these keys away, and new messages below that offset are never indexed"
            if snapshot.clean
            else "a start after a crash deletes what isn't vouched for; with what stays, new messages below "
            "that offset are never indexed",
            next="Look for the log's end first; if it is gone, rebuild the index before a broker starts.",
            count=len(ahead),
        )


def _found(
    level: str,
    kind: str,
    rows: list[QueueFacts],
    expected: str,
    found: str,
    outcome: str,
    next_step: str = "",
) -> Found:
    return Found(
        source=QUEUES,
        level=level,
        kind=kind,
        where=named([(row.topic, row.queue_id) for row in rows]),
        path="",
        expected=expected,
        found=found,
        outcome=outcome,
        next=next_step,
        count=len(rows),
    )
