"""How far DLedger's group has committed the log: what a member has written beyond may be taken back.

A leader's entry is committed when most members have it; a new leader cuts what others have beyond its own. A
broker dispatches committed entries alone. Each member keeps the index of the last one it knows of in
``dledger-SELFID/checkpoint``, every three seconds and when it stops. Source:
``DLedgerMmapFileStore.persistCheckPoint``, ``updateCommittedIndex`` (dledger 0.3.1.2),
``DLedgerCommitLog.getMaxOffset`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from reput.config import broker_conf
from reput.config.log_places import DLedgerSettings
from reput.errors import StoreError
from reput.format import dledger
from reput.remote import remote_store
from reput.store.reading import extents, read_file, reading

CHECKPOINT = "checkpoint"  # DLedgerMmapFileStore.CHECK_POINT_FILE
_COMMITTED = "committedIndex"  # COMMITTED_INDEX_KEY
#: Positions [start, stop) of a segment.
_Read = Callable[[int, int], bytes]
#: How many bytes are looked at together.
_LOOK_AT = 1 << 20
#: Where the byte of an entry's magic stands that isn't zero.
_ONE_AT = 3
_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def committed_index(group: DLedgerSettings) -> int:
    """The index of the last entry that this member knows to be committed, -1 for none."""
    path = group.home / CHECKPOINT
    try:
        entry = broker_conf.parse(read_file(path), path).get(_COMMITTED)
    except OSError as error:
        raise _unknown(group, error.strerror) from error
    if entry is None or _NUMBER.fullmatch(entry.value.strip()) is None:
        raise _unknown(group, "no such number" if entry is None else repr(entry.value))
    return int(entry.value)


def end_of(segments: Sequence[tuple[str, int, int]], index: int) -> int | None:
    """Where the first entry after ``index`` begins, None if missing: the whole log is committed.

    It is looked for by its index and its own place, so that damage before it doesn't matter. ``segments`` are
    (path, base, length) of each that DLedger wrote, in log order.
    """
    for path, base, length in reversed(segments):
        elsewhere = remote_store(path)
        try:
            if elsewhere is not None:
                found = _end_in(partial(elsewhere.read, path), [(0, length)], length, base, index)
            else:
                with reading(path, by_ranges=True) as fd:
                    found = _end_in(_reader(fd), extents(fd, 0, length), length, base, index)
        except OSError as error:
            raise StoreError(
                "the segment can't be read",
                path=path,
                expected=f"{length} bytes",
                found=error.strerror or str(error),
                next_step="Check the file and its permissions, then run the same command again",
            ) from error
        if found is not None:
            return found
    return None


def _reader(descriptor: int) -> _Read:
    return lambda start, stop: os.pread(descriptor, stop - start, start)


def _end_in(
    read: _Read, written: Iterable[tuple[int, int]], length: int, base: int, index: int
) -> int | None:
    head = read(0, min(dledger.HEADER_LENGTH, length))
    first = dledger.entry_index(head, 0, base)
    if first is not None and first > index + 1:
        return None
    for at, stop in written:
        for start in range(at, stop, _LOOK_AT):
            # The magic's zeros may lie in a hole before, and a header reaches into the next piece.
            begin = max(start - _ONE_AT, 0)
            end = min(start + _LOOK_AT, stop)
            data = read(begin, min(end + dledger.HEADER_LENGTH, length))
            for position in candidates(data, end - begin, index + 1):
                if dledger.entry_index(data, position, base + begin) == index + 1:
                    return base + begin + position
    return None


def candidates(data: bytes, end: int, index: int) -> list[int]:
    """Where an entry of an index may begin: its magic stands there, and the index where it belongs.

    An entry's magic ends in the one byte that isn't zero, so that zeros are passed over fast. Entries whose
    magic ends by the position ``end`` are looked for.
    """
    piece = np.frombuffer(data, np.uint8)
    found = np.flatnonzero(piece[:end] == dledger.ENTRY_MAGIC) - _ONE_AT
    found = found[(found >= 0) & (found + dledger.HEADER_LENGTH <= len(piece))]
    wanted = dledger.ENTRY_MAGIC.to_bytes(_ONE_AT + 1, "big"), struct.pack(">q", index)
    for field, expected in zip((dledger.MAGIC, dledger.INDEX), wanted, strict=True):
        for place, byte in enumerate(expected):
            found = found[piece[found + field + place] == byte]
    return found.tolist()


def _unknown(group: DLedgerSettings, found: str | None) -> StoreError:
    return StoreError(
        "it can't be told which entries the group has committed",
        path=group.home / CHECKPOINT,
        expected=f"{_COMMITTED}=NUMBER, as every member of a group writes it",
        found=found,
        next_step="Start this broker with its group and stop it, or take the store of another member. If the "
        "group has this one member alone, say so in dLegerPeers of broker.conf",
    )
