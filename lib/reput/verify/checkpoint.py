"""The store checkpoint against the data that it stands for."""

from __future__ import annotations

from pathlib import Path

from reput.broker.snapshot import read_checkpoint
from reput.format import names
from reput.format.checkpoint import LENGTH, LOGICS_FIELDS
from reput.verify.report import CHECKPOINT, Difference


def check_checkpoint(
    root: Path, fields: int, *, log: int, queues: int, index: int, last_unit: int
) -> list[Difference]:
    """What of the checkpoint is ahead of the data: a broker that recovers by it would pass over messages.

    To the millisecond, and of the data as they lie there. What is ahead after a restart, by more than a start
    takes off, :mod:`reput.recovery.plan` says.

    Args:
        fields: how many longs this version's checkpoint has.
        log, queues, index: the greatest storeTimestamp, ms, of a message in the log, with a unit, in the
            index; 0 without one.
        last_unit: physical offset of the last message with a unit, -1 without one.
    """
    path = root / names.CHECKPOINT
    stored, length = read_checkpoint(path)
    if length is None:
        return []  # a broker starts its recovery at the beginning then
    found = []
    for at, (name, value, most) in enumerate(
        (
            ("physicMsgTimestamp", stored.physic_msg_timestamp, log),
            ("logicsMsgTimestamp", stored.logics_msg_timestamp, queues),
            ("indexMsgTimestamp", stored.index_msg_timestamp, index),
        )
    ):
        if value > most:
            found.append(_ahead(path, 8 * at, f"{name} of at most {most}", value))
    if fields >= LOGICS_FIELDS and stored.logics_physical_offset > max(last_unit, 0):
        expected = f"logicsPhysicalOffset of at most {max(last_unit, 0)}"
        found.append(_ahead(path, 40, expected, stored.logics_physical_offset))
    if length not in (0, LENGTH):
        found.append(
            Difference("checkpoint-length", str(path), CHECKPOINT, f"{LENGTH} bytes", f"{length} bytes")
        )
    return found


def _ahead(path: Path, offset: int, expected: str, value: int) -> Difference:
    return Difference("checkpoint-ahead", str(path), CHECKPOINT, expected, str(value), offset=offset)
