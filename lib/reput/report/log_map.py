"""The commit log as a map: what lies where, and how far checkpoint, queues and index go in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from reput.broker.begin import begin
from reput.broker.snapshot import Snapshot
from reput.errors import StoreError
from reput.log.segments import CommitLog, Segment, discover
from reput.report.facts import (
    CORRUPT,
    EXPIRED,
    MISSING,
    UNREAD,
    UNWRITTEN,
    WRITTEN,
    LogFacts,
    Reach,
    SegmentFacts,
    Stretch,
)
from reput.report.log_scan import LogScan
from reput.report.queues import QueuesSeen

#: Findings whose range holds no message that can be read.
_DAMAGE = frozenset(
    {"bad-size", "bad-magic", "bad-physical-offset", "bad-lengths", "unwritten-range", "torn-tail"}
)
#: Findings about a message that is there all the same.
_BAD_MESSAGES = frozenset({"bad-crc", "bad-property-crc", "bad-delay", "bad-inner-batch", "torn-properties"})


def log_facts(
    snapshot: Snapshot, log: CommitLog, scan: LogScan | None, seen: QueuesSeen, *, end: int
) -> LogFacts:
    """The map of a log.

    Args:
        log: without segments at its end that nothing was written to.
        scan: None where it wasn't read.
        end: physical offset after the last whole message, as far as that is known without a scan.
    """
    every = discover(snapshot.settings).segments
    allocated = every[-1].base + every[-1].length
    reached = end if scan is None else scan.end
    return LogFacts(
        start=log.start,
        end=reached,
        allocated=allocated,
        segment_size=log.segment_size,
        segments=tuple(_segment(segment, scan) for segment in every),
        stretches=tuple(_stretches(every, log.segment_size, scan, reached)),
        reaches=tuple(_reaches(snapshot, log, scan, seen)),
        read=scan is not None,
        messages=None if scan is None else scan.messages,
        bytes=None if scan is None else scan.bytes,
    )


def _segment(segment: Segment, scan: LogScan | None) -> SegmentFacts:
    found = SegmentFacts(os.fspath(segment.path), segment.base, segment.length)
    if scan is None:
        return found
    return replace(scan.segments.get(segment.base, replace(found, messages=0)), length=segment.length)


def _stretches(segments: Iterable[Segment], size: int, scan: LogScan | None, end: int) -> Iterator[Stretch]:
    """What lies where, from 0 on, without gaps."""
    at = 0
    damaged = [] if scan is None else sorted(_damaged(scan), key=lambda one: (one.start, one.end))
    for segment in segments:
        if segment.base > at:
            kind = MISSING if at else EXPIRED
            note = "no segment is there" if at else "deleted: it had expired, or was never copied here"
            yield Stretch(kind, at, segment.base, note)
        stop = segment.base + segment.length
        written = min(max(end, segment.base), stop)
        yield from _written(segment.base, written, damaged, known=scan is not None)
        if written < stop:
            torn = [one for one in damaged if one.start >= written]
            yield Stretch(
                UNWRITTEN,
                written,
                stop,
                torn[0].note if torn else "made ahead of time: the broker goes on writing here",
            )
        at = stop
        if segment.length < size and written == stop:
            yield Stretch(MISSING, stop, segment.base + size, "the segment is shorter than the others")
            at = segment.base + size


def _damaged(scan: LogScan) -> Iterator[Stretch]:
    for finding in scan.findings:
        if finding.kind in _DAMAGE or finding.kind in _BAD_MESSAGES:
            note = f"{finding.kind}: expected {finding.expected}, found {finding.found}; {finding.outcome}"
            yield Stretch(CORRUPT, finding.offset, finding.end, note)


def _written(start: int, end: int, damaged: list[Stretch], *, known: bool) -> Iterator[Stretch]:
    kind = WRITTEN if known else UNREAD
    for one in damaged:
        low, high = max(one.start, start), min(one.end, end)
        if low >= high:
            continue
        if low > start:
            yield Stretch(kind, start, low)
        yield Stretch(CORRUPT, low, high, one.note)
        start = high
    if start < end:
        yield Stretch(kind, start, end)


def _reaches(snapshot: Snapshot, log: CommitLog, scan: LogScan | None, seen: QueuesSeen) -> Iterator[Reach]:
    vouched = [] if scan is None else scan.tally.counts.vouched.tolist()
    names = (
        (
            "checkpoint: log",
            "the log was flushed at least so far (physicMsgTimestamp; a good stop leaves it behind)",
        ),
        ("checkpoint: queues", "units of messages so far are vouched for (logicsMsgTimestamp)"),
        ("checkpoint: index", "the end of the last index file that was full and flushed (indexMsgTimestamp)"),
    )
    if snapshot.checkpoint_exists:
        for (name, note), (time, offset) in zip(names, vouched, strict=False):
            yield Reach(name, offset if offset >= 0 else log.start if time <= 0 else None, time or None, note)
        logics = snapshot.checkpoint.logics_physical_offset
        if logics > 0:
            yield Reach(
                "checkpoint: last unit", logics, None, "logicsPhysicalOffset of RocketMQ 5.4 and later"
            )
    if seen.end >= 0:
        yield Reach("queues", seen.end, None, "the last message that a queue's files know of")
    if snapshot.index:
        header = snapshot.index[-1].header
        yield Reach(
            "index",
            header.end_physical_offset,
            header.end_timestamp or None,
            "the last message with a key in the last index file",
        )
    if snapshot.starts and snapshot.log.files and snapshot.settings.dledger is None:
        with suppress(StoreError):  # a segment that the scan has reported, or that has just expired
            first = snapshot.log.files[begin(snapshot, seen.end)].base
            yield Reach("next start", first, None, "a broker that starts now walks the log from here on")
