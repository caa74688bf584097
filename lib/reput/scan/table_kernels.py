"""What is done to a whole table at once when it grows; apart, so that a table doesn't load numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from reput.caches import CACHED
from reput.scan.table import HASH_MULTIPLIER


@njit(cache=CACHED)
def queue_hashes(topic, queue_id, count):  # type: ignore[no-untyped-def]
    """uint64[count]: what :func:`reput.scan.table.queue_hash` says of the first queues."""
    keys = np.empty(count, np.uint64)
    for number in range(count):
        key = np.uint64(topic[number]) << np.uint64(32) ^ np.uint64(np.uint32(queue_id[number]))
        key *= HASH_MULTIPLIER
        keys[number] = key ^ (key >> np.uint64(29))
    return keys


@njit(cache=CACHED)
def slots_of(keys, size):  # type: ignore[no-untyped-def]
    """int32[size]: what :func:`reput.scan.table._insert` makes of the hashes of the numbers from 0 on."""
    slots = np.zeros(size, np.int32)
    for number in range(len(keys)):
        slot = np.int64(keys[number] & np.uint64(size - 1))
        while slots[slot]:
            slot = (slot + 1) & (size - 1)
        slots[slot] = number + 1
    return slots
