"""Reading a commit log once: what is damaged in it, what it holds of each queue, and its traffic.

Two threads go over each segment side by side, so that it comes from the disk once: the scan of
:mod:`reput.scan.part`, which checks CRCs and follows queues, and a walk over frames that counts
(:mod:`reput.report.tally`). Both take the same messages, but for those that a broker can't dispatch: the walk
counts them all the same, as messages that the log holds. Nothing grows with the log but the table of queues.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.errors import Finding
from reput.format.names import Queue
from reput.log.parts import part_of
from reput.log.segments import CommitLog, map_segment
from reput.replay.chain import Chain, ScannedPart
from reput.report.facts import SegmentFacts
from reput.report.tally import Tally
from reput.scan import output
from reput.scan.frames import Frames, FrameWalk, frames
from reput.scan.part import PartOutcome, scan_part
from reput.scan.rules import Part, rules
from reput.scan.table import QUEUE_REPEAT, QueueTable
from reput.statistics.count import Listener


@dataclass(frozen=True, slots=True)
class InLog:
    """What the log has of a queue."""

    messages: int  # how many
    next: int  # the queueOffset after the last one
    last_time: int  # storeTimestamp of the last one, ms
    regular: bool  # each message came right after the one before it


@dataclass(slots=True)
class LogScan:
    """What came of reading a log."""

    end: int  # physical offset after the last message or BLANK
    tally: Tally  # the traffic
    messages: int = 0  # messages, bytes: of it
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)  # what is wrong in it
    #: by the physical offset of their first byte
    segments: dict[int, SegmentFacts] = field(default_factory=dict)
    queues: dict[Queue, InLog] = field(default_factory=dict)  # by topic and queue id

    @property
    def last_time(self) -> int:
        """StoreTimestamp of its last message, ms; 0 without one."""
        times = [one.last_time for one in self.segments.values() if one.last_time is not None]
        return times[-1] if times else 0


def scan_log(
    settings: StoreSettings,
    log: CommitLog,
    end: int,
    tally: Tally,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> LogScan:
    """Read a log from its first segment up to a physical offset.

    Args:
        end: a live log is read up to its end at the moment of the start.
    """
    result = LogScan(log.start, tally, findings=list(log.findings))
    chain = Chain(log.start, 0)
    table = QueueTable(
        excludes_lmq=lambda topic: settings.dialect.lmq_excludes(topic.decode("utf-8", "replace"))
    )
    total = sum(max(min(one.length, end - one.base), 0) for one in log.segments)
    out, block = output.output(), frames()
    scan_rules = rules(settings, index=False)
    done = 0
    with ThreadPoolExecutor(1, "reput-tally") as pool:
        for segment in log.segments:
            stop = min(segment.base + segment.length, end)
            if stop <= segment.base and result.segments:
                continue
            data = map_segment(segment.path, segment.length)
            part = replace(part_of(log, segment, segment.base, stop), after_timestamp=chain.newest)
            ended = Event()
            counted = pool.submit(_count, settings, part, data, block, tally, ended)
            outcome = PartOutcome()
            try:
                for chunk in scan_part(part, data, scan_rules, table, out, outcome):
                    at = int(chunk.counts[output.LAST_POSITION]) - segment.base
                    listener(done + at, result.messages + int(chunk.counts[output.MESSAGES]), total)
                messages, size, first, last_time = counted.result()
            finally:
                ended.set()
            result.segments[segment.base] = SegmentFacts(
                os.fspath(segment.path), segment.base, segment.length, messages, first, last_time
            )
            result.messages += messages
            result.bytes += size
            # Of the whole segment: messages without unit and keys make no chunk.
            taken, last = int(out.counts[output.MESSAGES]), int(out.counts[output.LAST_TIMESTAMP])
            chain.judge(ScannedPart(part, outcome, taken, last))
            done += stop - segment.base
            listener(done, result.messages, total)
    result.end = chain.finish()
    result.findings += chain.findings
    result.queues = _queues(table)
    return result


def _count(
    settings: StoreSettings,
    part: Part,
    data: NDArray[np.uint8],
    block: Frames,
    tally: Tally,
    ended: Event,
) -> tuple[int, int, int | None, int | None]:
    """Count the messages of a segment; ends early when the scan beside it has failed.

    Returns:
        How many, bytes of these, storeTimestamp of the first and of the last one, ms.
    """
    stop = part.end - part.base
    walk = FrameWalk.over(part, data, settings, part.after_timestamp)
    messages = size = 0
    first = last = None
    for rows in walk.blocks(stop, block):
        if rows:
            tally.add(data, part.base, block)
            messages, size = messages + rows, size + int(block.size[:rows].sum())
            first = int(block.store_timestamp[0]) if first is None else first
            last = int(block.store_timestamp[rows - 1])
        if ended.is_set():
            break
    return messages, size, first, last


def _queues(table: QueueTable) -> dict[Queue, InLog]:
    names = [name.decode("utf-8", "replace") for name in table.topic_names]
    found = {}
    columns = table.queues
    number = int(table.queue_count[0])
    for topic, queue_id, units, after, last, irregular in zip(
        *(
            column[:number].tolist()
            for column in (
                columns.topic,
                columns.queue_id,
                columns.units,
                columns.next,
                columns.last_timestamp,
                columns.irregular,
            )
        ),
        strict=True,
    ):
        if after >= 0:
            found[names[topic], queue_id] = InLog(units, after, last, not irregular & QUEUE_REPEAT)
    return found
