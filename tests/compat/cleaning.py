"""A real store's own deletion of its log's head, at once; by itself it waits a minute after its start."""

from __future__ import annotations

import os
import time

from reput.format import names
from tests.compat.java_store import JavaStore

#: For a store that is to delete queues' files: it leaves one that its flush holds, and doesn't come back
#: for it before its log's start moves.
UNFLUSHED = {"flushIntervalConsumeQueue": 3_600_000}

_HOUR = 3600.0
_TRIES, _PAUSE = 240, 0.25


def expire(store: JavaStore, segments: int) -> None:
    """Have the store delete the log's first segments, and what goes with them, by its own services.

    These segments are made older than ``fileReservedTime``; the others must be younger.
    """
    _await_index_flushes(store)
    log = sorted((store.root / names.COMMIT_LOG).iterdir())
    old = time.time() - (int(store.store.getMessageStoreConfig().getFileReservedTime()) + 24) * _HOUR
    for _ in range(_TRIES):
        for path in log[:segments]:
            if path.exists():
                os.utime(path, (old, old))
        store.store.executeDeleteFilesManually()
        _call(store, store.store, "cleanFilesPeriodically")
        left = sorted((store.root / names.COMMIT_LOG).iterdir())[0]
        if left == log[segments]:
            break
        time.sleep(_PAUSE)  # the store's flush made a file young again, or its dispatch held one
    assert left == log[segments], f"the log begins with {left.name}, not with {log[segments].name}"
    if store.version.startswith("5."):
        owner = store.store if store.version.startswith("5.3") else store.store.getQueueStore()
        _call(store, owner, "cleanQueueFilesPeriodically")


def _await_index_flushes(store: JavaStore) -> None:
    """Wait for the threads that each flush a full index file, and hold it as a queue's flush does."""
    threads, latest = store.jvm.java.java.lang.Thread, time.monotonic() + 120
    while any(str(one.getName()) == "FlushIndexFileThread" for one in threads.getAllStackTraces().keySet()):
        assert time.monotonic() < latest
        time.sleep(_PAUSE)


def _call(store: JavaStore, owner: object, name: str) -> None:
    java, new = store.jvm.gateway.jvm.java.lang, store.jvm.gateway.new_array
    method = owner.getClass().getDeclaredMethod(name, new(java.Class, 0))  # type: ignore[attr-defined]
    method.setAccessible(True)
    method.invoke(owner, new(java.Object, 0))
