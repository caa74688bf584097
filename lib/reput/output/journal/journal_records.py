"""The journal's records: length uint32, CRC-32 of the payload uint32 (both big-endian), payload: UTF-8 JSON.

Three kinds: the opening, first in each journal; a snapshot, second where the opening announces one; batches.
A batch's payload begins with ``{"start":``, by which one is found behind damage.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, astuple, fields
from itertools import groupby
from operator import itemgetter
from typing import Any
from zlib import crc32

from reput.errors import Finding
from reput.format.indexfile import IndexHeader
from reput.format.names import Queue
from reput.replay.state import Batch, Opening, QueueState, Salvaged, State

#: 1: queues in a list, no snapshots; still read. 2: queues by topic.
FORMAT = 2
READABLE = (1, 2)

_FRAME = struct.Struct(">II")
_MAX_RECORD = 1 << 31
_BATCH_BEGINS = b'{"start":'
_TOPICS_AT_ONCE = 4096
_SELDOM = (
    "without_unit",
    "breaks",
    "log_start",
    "dropped_index",
    "dropped_index_timestamp",
    "last_record",
    "unproven_until",
)
_OWN_FORM = ("queues", "index", "findings", "salvaged")
_ALWAYS = [each.name for each in fields(Batch) if each.name not in (*_OWN_FORM, *_SELDOM)]
_STATE = [each.name for each in fields(State) if each.name not in _OWN_FORM]


def frame(payload: dict[str, Any], queues: dict[Queue, QueueState] | None = None) -> bytes:
    """A record's bytes.

    Args:
        queues: become its "queues", the last of its fields. Of a million they are made some at a time.
    """
    data = _dumped(payload)
    if queues is not None:
        text = ",".join(_dumped(topics)[1:-1] for topics in _by_topic(queues))
        data = f'{data[:-1]},"queues":{{{text}}}}}'
    encoded = data.encode()
    return _FRAME.pack(len(encoded), crc32(encoded)) + encoded


def opening(begun: Opening, snapshot: int | None) -> bytes:
    """The record of an opening; ``snapshot`` is how many batches are in the snapshot that follows, if any."""
    mark = {} if snapshot is None else {"snapshot": snapshot}
    return frame({"format": FORMAT, **asdict(begun), **mark})


def batch(done: Batch, number: int, committed: int) -> bytes:
    """The record of a batch.

    Args:
        done: the batch.
        number: the batch's, from 1 on; batches without messages may begin and end at the same place.
        committed: when, ms by the wall clock; for stepping back in time, not for anything that is derived.
    """
    payload: dict[str, Any] = {name: getattr(done, name) for name in _ALWAYS}
    if done.index:
        payload["index"] = [[name, header.encode().hex()] for name, header in done.index]
    if done.findings:
        payload["findings"] = [finding.stored() for finding in done.findings]
    if done.salvaged:
        payload["salvaged"] = [astuple(each) for each in done.salvaged]
    for name in _SELDOM:
        if value := getattr(done, name):
            payload[name] = value
    payload["number"] = number
    payload["committed"] = committed
    return frame(payload, done.queues)


def snapshot(state: State) -> bytes:
    """The record of a state."""
    return frame(
        {
            "snapshot": {name: getattr(state, name) for name in _STATE},
            "index": [[name, header.encode().hex()] for name, header in state.index],
            "findings": [finding.stored() for finding in state.findings],
            "salvaged": [astuple(each) for each in state.salvaged],
        },
        state.queues,
    )


def whole_frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The whole records from the start of ``data`` on, as (offset, payload), up to what isn't one."""
    at = 0
    while at + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        # No record is empty, but zeros, which a power loss may leave at the end, look like an empty one.
        if not 0 < length <= _MAX_RECORD or len(payload) < length or crc32(payload) != crc:
            return
        yield at, payload
        at += _FRAME.size + length


def length_of(payload: bytes) -> int:
    """Bytes of the record with this payload."""
    return _FRAME.size + len(payload)


def batch_after(data: bytes, at: int) -> int | None:
    """Offset of a batch after a damaged record, or None. A crash only cuts the last record short."""
    start = data.find(_BATCH_BEGINS, at + _FRAME.size + 1)
    while start >= 0:
        length, crc = _FRAME.unpack_from(data, start - _FRAME.size)
        if crc32(data[start : start + length]) == crc:
            return start - _FRAME.size
        start = data.find(_BATCH_BEGINS, start + 1)
    return None


def to_opening(payload: dict[str, Any]) -> Opening:
    """The opening that a payload holds."""
    settings = payload.get("settings")
    return Opening(
        str(payload["store"]),
        str(payload["fingerprint"]),
        int(payload["start"]),
        settings if isinstance(settings, dict) else {},
    )


def to_batch(payload: bytes) -> tuple[Batch, int | None, int]:
    """A payload's batch, its number (None if not recorded), and when it was committed (0 likewise)."""
    facts: dict[str, Any] = json.loads(payload)
    number, committed = facts.pop("number", None), facts.pop("committed", 0)
    _decode(facts)
    return Batch(**facts), number, committed


def to_state(payload: bytes) -> State:
    """The state that a snapshot's payload holds."""
    facts: dict[str, Any] = json.loads(payload)
    _decode(facts)
    return State(**facts.pop("snapshot"), **facts)


def _dumped(facts: dict[str, Any]) -> str:
    return json.dumps(facts, separators=(",", ":"))


def _by_topic(queues: dict[Queue, QueueState]) -> Iterator[dict[str, list[list[Any]]]]:
    """The rows of some topics at a time, since a topic's name is longer than all the numbers of a queue."""
    topics: dict[str, list[list[Any]]] = {}
    for topic, found in groupby(sorted(queues), key=itemgetter(0)):
        topics[topic] = [_row(queue[1], queues[queue]) for queue in found]
        if len(topics) == _TOPICS_AT_ONCE:
            yield topics
            topics = {}
    if topics:
        yield topics


def _row(queue_id: int, state: QueueState) -> list[Any]:
    row: list[Any] = [queue_id, state.first, state.next, state.end, state.units, state.bytes]
    more: dict[str, Any] = {}
    if state.shift:
        row.append(state.shift)
    if state.lone_zero:
        row.append(state.lone_zero)
    if state.appended:
        more["appended"] = state.appended
    if state.is_batch and state.appended:
        more["is_batch"] = True
    if state.unproven is not None:
        more["unproven"] = state.unproven
    if more:
        row.append(more)
    return row


def _queue(row: list[Any]) -> QueueState:
    more = row.pop() if isinstance(row[-1], dict) else {}
    if isinstance(row[-1], list):
        more["lone_zero"] = tuple(row.pop())
    return QueueState(*row, **more)


def _decode(facts: dict[str, Any]) -> None:
    queues = facts["queues"]
    if isinstance(queues, list):
        facts["queues"] = {(topic, queue_id): _queue(rest) for topic, queue_id, *rest in queues}
    else:
        facts["queues"] = {
            (topic, queue_id): _queue(rest) for topic, rows in queues.items() for queue_id, *rest in rows
        }
    facts["index"] = [
        (name, IndexHeader.decode(bytes.fromhex(header))) for name, header in facts.get("index", ())
    ]
    for name in (*(name for name, _ in facts["index"]), *facts.get("dropped_index", ())):
        if "/" in name or name in ("", ".", ".."):
            raise ValueError(f"no name of an index file: {name!r}")
    facts["findings"] = [Finding(**finding) for finding in facts.get("findings", ())]
    facts["salvaged"] = [Salvaged(*each) for each in facts.get("salvaged", ())]
