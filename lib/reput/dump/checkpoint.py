"""The fields of a store checkpoint."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

from reput.derived.files import read_bytes
from reput.dump.places import store_of
from reput.errors import StoreError
from reput.format.checkpoint import FIELDS, LENGTH, StoreCheckpoint
from reput.words import next_command

#: By the names of docs/formats/checkpoint.md; the first three are times in ms, the others physical offsets.
NAMES = (
    "physicMsgTimestamp",
    "logicsMsgTimestamp",
    "indexMsgTimestamp",
    "masterFlushedOffset",
    "confirmPhyOffset",
    "logicsPhysicalOffset",
)
TIMES = 3


def read(path: Path) -> dict[str, int]:
    """The fields by name, in the order of the file."""
    data = read_bytes("the checkpoint", path, 0, LENGTH)
    store = store_of(path)
    if len(data) < 8 * FIELDS:
        raise StoreError(
            "the checkpoint is too short",
            path=path,
            offset=len(data),
            expected=f"{FIELDS} fields in {LENGTH} bytes",
            found=f"{len(data)} bytes",
            next_step=f"`{next_command('check', store)}` says what a broker makes of it when it starts"
            if store is not None
            else "A check of its store says what a broker makes of it when it starts",
        )
    return dict(zip(NAMES, astuple(StoreCheckpoint.decode(data)), strict=True))
