"""Handing index keys to tasks: which keys go to which file, by prefix sums of the key counts.

Order matters in an index file, so spills are taken in log order; but a file's entries can be built while
later parts are still being scanned, and several files at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from reput.errors import ReputError
from reput.format import names
from reput.format.indexfile import FIRST_ORDINAL, IndexHeader, file_length
from reput.sink.index_task import IndexTask, message_of_key
from reput.sink.opened import opened
from reput.sink.scan_task import Target
from reput.sink.spill import Spill
from reput.store import files

# Building starts when this many keys wait: enough to be worth a task, few enough to start early.
_KEYS_AT_ONCE = 2_000_000

RunTasks = Callable[[list[IndexTask]], list[Any]]


class IndexBuilder:
    """Builds the index files of one batch beside its scan.

    Args:
        target: where and what.
        known: the index files so far, in order: (name, header).
        run: runs tasks somewhere and returns their results in order; called from another thread.
    """

    def __init__(self, target: Target, known: list[tuple[str, IndexHeader]], run: RunTasks) -> None:
        self._target = target
        self._settings = target.settings
        self._directory = target.root / names.INDEX
        self._run = run
        self._name: str | None = known[-1][0] if known else None
        self._header: IndexHeader | None = known[-1][1] if known else None
        self._first_timestamp: int | None = None
        self._waiting: list[Spill] = []
        self._running: Future[list[Any]] | None = None
        self._planned: list[str] = []
        self._pool = ThreadPoolExecutor(1, "reput-index")
        self.changed: dict[str, IndexHeader] = {}

    def offer(self, spill: Spill | None, first_timestamp: int) -> None:
        """Take the next part's keys, in log order; start building when it is worth it.

        Args:
            spill: the keys, None where the part has none.
            first_timestamp: storeTimestamp of the part's first message, ms; parts without messages are not
                offered.

        Raises:
            ReputError: an earlier task failed.
        """
        if self._first_timestamp is None:
            self._first_timestamp = first_timestamp
        if spill is not None:
            self._waiting.append(spill)
        if self._running is not None and self._running.done():
            self._collect()
        if self._running is None and sum(spill.keys for spill in self._waiting) >= _KEYS_AT_ONCE:
            self._start()

    def finish(self, last_position: int) -> None:
        """Build what waits, and the file that the broker makes for the message after a full one.

        Args:
            last_position: physical offset of the last message dispatched so far, -1 if there was none.

        Raises:
            ReputError: a task failed.
        """
        try:
            self._collect()
            if self._waiting:
                self._start()
                self._collect()
        finally:
            self._pool.shutdown()
        if last_position < 0:
            return
        if self._header is None:
            self._create_empty(IndexHeader(), self._next_name())
        elif self._is_full(self._header) and last_position > self._header.end_physical_offset:
            self._create_empty(self._header.successor(), self._next_name(self._header.end_timestamp))

    def _start(self) -> None:
        tasks = self._plan()
        self._running = self._pool.submit(self._run, tasks)

    def _collect(self) -> None:
        if self._running is None:
            return
        results = self._running.result()
        self._running = None
        for name, result in zip(self._planned, results, strict=True):
            if isinstance(result, ReputError):
                raise result
            self._name, self._header = name, result
            self.changed[name] = result

    def _plan(self) -> list[IndexTask]:
        """One task for each file that the waiting keys reach."""
        spills, self._waiting, self._planned = tuple(self._waiting), [], []
        tasks: list[IndexTask] = []
        name, header = self._name, self._header
        first_key, end = 0, sum(spill.keys for spill in spills)
        while first_key < end:
            if tasks or header is None or self._is_full(header):
                if tasks:
                    header = None  # follows a file whose last entry only its own task will know
                    _, before = message_of_key(spills, first_key - 1)
                    name = self._next_name(before, name)
                elif header is None:
                    name, header = self._next_name(), IndexHeader()
                else:
                    name, header = self._next_name(header.end_timestamp), header.successor()
            room = self._settings.max_index_num - (FIRST_ORDINAL if header is None else header.index_count)
            keys = min(room, end - first_key)
            tasks.append(
                IndexTask(
                    root=self._target.root,
                    path=self._directory / str(name),
                    header=header,
                    first_key=first_key,
                    keys=keys,
                    spills=spills,
                    max_hash_slot_num=self._settings.max_hash_slot_num,
                    max_index_num=self._settings.max_index_num,
                    owner=self._target.owner,
                    flush=self._target.flush_in_tasks,
                )
            )
            self._planned.append(str(name))
            first_key += keys
        return tasks

    def _is_full(self, header: IndexHeader) -> bool:
        return header.index_count >= self._settings.max_index_num

    def _next_name(self, end_timestamp: int | None = None, than: str | None = None) -> str:
        """The name of the file after the one ``than`` (by default the last) that ends at ``end_timestamp``.

        A broker names a file by its clock when the message after the full file comes, the first one when the
        log begins. Here the log's times stand for the clock, and how the log was cut up leaves no trace: the
        first message's time, then the time at which the file before ends. A broker goes on with the file of
        the greatest name, so that none may lie in its future, whatever a damaged message says.
        """
        timestamp = end_timestamp if end_timestamp is not None else self._first_timestamp or 0
        timestamp = min(max(timestamp, 0), int(time.time() * 1000))
        return names.later_index_name(timestamp, than or self._name)

    def _create_empty(self, header: IndexHeader, name: str) -> None:
        path = self._directory / name
        length = file_length(self._settings.max_hash_slot_num, self._settings.max_index_num)
        on_disk = replace(header, index_count=self._settings.dialect.empty_index_count)
        with opened(path, length, self._target.owner) as fd:
            files.pwrite_all(fd, on_disk.encode(), 0)
            if self._target.flush_in_tasks:
                files.fsync_file(fd)
                files.fsync_dir(path.parent)
        self._name, self._header = name, header
        self.changed[name] = header
