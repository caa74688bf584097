"""How far DLedger's group has committed the log: what a member has written beyond may be taken back.

A leader's entry is committed when most members have it; a new leader cuts what others have beyond its own. A
broker dispatches committed entries alone. Each member keeps the index of the last one it knows of in
``dledger-SELFID/checkpoint``, every three seconds and when it stops. Source:
``DLedgerMmapFileStore.persistCheckPoint``, ``updateCommittedIndex`` (dledger 0.3.1.2),
``DLedgerCommitLog.getMaxOffset`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Sequence

from reput import javaproperties
from reput.errors import StoreError
from reput.format import dledger
from reput.settings import DLedgerSettings

CHECKPOINT = "checkpoint"  # DLedgerMmapFileStore.CHECK_POINT_FILE
_COMMITTED = "committedIndex"  # COMMITTED_INDEX_KEY
_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def committed_index(group: DLedgerSettings) -> int:
    """The index of the last entry that this member knows to be committed, -1 for none.

    Raises:
        StoreError: its checkpoint can't be read or doesn't tell.
    """
    path = group.home / CHECKPOINT
    try:
        entry = javaproperties.parse(path.read_bytes(), path).get(_COMMITTED)
    except OSError as error:
        raise _unknown(group, error.strerror) from error
    if entry is None or _NUMBER.fullmatch(entry.value.strip()) is None:
        raise _unknown(group, "no such number" if entry is None else repr(entry.value))
    return int(entry.value)


def end_of(segments: Sequence[tuple[str, int, int]], index: int) -> int | None:
    """Where the first entry after ``index`` begins, None if there is none: the whole log is committed.

    It is looked for by its index and its own place, so that damage before it doesn't matter.

    Args:
        segments: (path, base, length) of each that DLedger wrote, in log order.

    Returns:
        A physical offset.

    Raises:
        StoreError: a segment can't be read.
    """
    for path, base, length in reversed(segments):
        try:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), length, prot=mmap.PROT_READ) as data:
                found = _end_in(data, base, index)
        except (OSError, ValueError) as error:
            raise StoreError(
                "the segment can't be read",
                path=path,
                expected=f"{length} bytes",
                found=str(error),
                next_step="Check the file and its permissions, then run the same command again",
            ) from error
        if found is not None:
            return found
    return None


def _end_in(data: mmap.mmap, base: int, index: int) -> int | None:
    head = data[: dledger.HEADER_LENGTH]
    first = dledger.entry_index(head, 0, base)
    if first is not None and first > index + 1:
        return None
    wanted = struct.pack(">q", index + 1)
    at = data.find(wanted, dledger.INDEX)
    while at >= 0:
        start = at - dledger.INDEX
        header = data[start : start + dledger.HEADER_LENGTH]
        if dledger.entry_index(header, 0, base + start) == index + 1:
            return base + start
        at = data.find(wanted, at + 1)
    return None


def _unknown(group: DLedgerSettings, found: str | None) -> StoreError:
    return StoreError(
        "it can't be told which entries the group has committed",
        path=group.home / CHECKPOINT,
        expected=f"{_COMMITTED}=NUMBER, as every member of a group writes it",
        found=found,
        next_step="Start this broker with its group and stop it, or take the store of another member. If the "
        "group has this one member alone, say so in dLegerPeers of broker.conf",
    )
