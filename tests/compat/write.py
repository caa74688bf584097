"""Lets the real store write a workload."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from reput.format.dledger import HEADER_LENGTH
from tests.compat.cleaning import UNFLUSHED
from tests.compat.java_store import JavaStore, Put
from tests.compat.message import Message
from tests.compat.workloads import (
    Batch,
    DeleteTopic,
    FillSegment,
    Hostile,
    LoseHead,
    Operation,
    Pause,
    QueryMin,
    Restart,
    Workload,
)
from tests.hostile import hostile_body

# Bytes of a version-1 record with IPv4 hosts beside body, topic and properties; and what __CRC32# adds.
_RECORD = 91
_PROPERTY_CRC = 20
_BODY = 88


@dataclass(slots=True)
class Written:
    """What was written.

    Attributes:
        counts: messages, batches and other operations by kind.
        log_start, log_end: physical offsets, half open.
        java: the JVM's version.
    """

    counts: Counter[str] = field(default_factory=Counter)
    log_start: int = 0
    log_end: int = 0
    java: str = ""


def write(workload: Workload, root: Path) -> Written:
    """Write the workload into a new store.

    Args:
        workload: what to write.
        root: the store's directory; empty or missing.

    Raises:
        JavaError: the store refused something.
    """
    written = Written()
    rest, config = list(workload.operations), dict(workload.config)
    if any(isinstance(operation, DeleteTopic) for operation in rest):
        config |= UNFLUSHED
    while True:
        with JavaStore(workload.version, root, config, topics=workload.topics) as store:
            if not store.load():
                raise RuntimeError(f"{root}: the store did not load; {store.jvm.log_tail()}")
            store.start()
            stopped_by: Operation | None = None
            while rest and stopped_by is None:
                operation = rest.pop(0)
                written.counts[type(operation).__name__] += 1
                if isinstance(operation, Restart | LoseHead):
                    stopped_by = operation
                else:
                    _apply(store, workload, operation, written)
            store.wait_dispatched()
            written.log_start = int(store.store.getMinPhyOffset())
            written.log_end = int(store.store.getMaxPhyOffset())
            written.java = str(store.jvm.java.java.lang.System.getProperty("java.version"))
            if workload.crash:
                store.kill()
        if stopped_by is None:
            return written
        if isinstance(stopped_by, LoseHead):
            _lose_head(root, stopped_by.segments)


def _apply(store: JavaStore, workload: Workload, operation: Operation, written: Written) -> Put | None:
    match operation:
        case Message():
            return store.put(operation)
        case Batch(messages):
            written.counts["messages in batches"] += len(messages)
            return store.put_batch(messages)
        case Hostile(topic, victim, fill, length):
            start = int(store.store.getMaxPhyOffset())
            segment = int(str(workload.config["mappedFileSizeCommitLog"]))
            if segment - start % segment < length + _RECORD + len(topic) + 100:
                start += segment - start % segment  # it goes to the next one
            end = start - start % segment + segment
            body = hostile_body(start + _BODY, length, fill, victim.encode(), end)
            put = store.put(Message(topic, body=body))
            if put.physical_offset != start:
                raise RuntimeError(f"the message should lie at {start}: {put}")
            return put
        case Pause(seconds):
            time.sleep(seconds)
            return None
        case QueryMin(topic, queue_id):
            store.wait_dispatched()
            store.store.getMinOffsetInQueue(topic, queue_id)
            return None
        case DeleteTopic(topic):
            store.wait_dispatched()
            store.delete_topic(topic)
            return None
        case FillSegment(leave, topic):
            segment = int(str(workload.config["mappedFileSizeCommitLog"]))
            room = segment - store.log_end() % segment
            overhead = _RECORD + len(topic) + leave
            if workload.config.get("enabledAppendPropCRC"):
                overhead += _PROPERTY_CRC
            if workload.config.get("enableDLegerCommitLog"):
                overhead += HEADER_LENGTH
            if room < overhead:  # the next segment, then: this one is closed by the message
                room = segment
            put = store.put(Message(topic, body=b"-" * (room - overhead)))
            end = store.log_end()
            if segment - end % segment != leave:
                raise RuntimeError(f"{leave} bytes of the segment should be left, and the log ends at {end}")
            return put
        case _:
            raise TypeError(f"no such operation: {operation}")


def _lose_head(root: Path, count: int) -> None:
    for segment in sorted((root / "commitlog").iterdir())[:count]:
        segment.unlink()
    for derived in ("consumequeue", "consumequeue_ext", "index"):
        shutil.rmtree(root / derived, ignore_errors=True)
    (root / "checkpoint").unlink()
    (root / "abort").touch()
