"""Building index files by tasks: which keys go to which file, by prefix sums of the key counts.

Order matters in an index file, so spills are taken in log order; but a file's entries can be built while
later parts are still being scanned, and several files at once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from reput.errors import ReputError
from reput.format import names
from reput.format.indexfile import FIRST_ORDINAL, IndexHeader
from reput.output.index.batch_index import BatchIndex
from reput.output.index.index_task import IndexTask, message_of_key
from reput.replay.key_spill import Spill
from reput.replay.target import Target

# Building starts when this many keys wait: enough to be worth a task, few enough to start early.
_KEYS_AT_ONCE = 2_000_000

RunTasks = Callable[[list[IndexTask]], list[Any]]


class IndexBuilder(BatchIndex):
    """Builds the index files of one batch by tasks, beside its scan.

    Args:
        target: where and what.
        known: the index files so far, in order: (name, header).
        run: runs tasks somewhere and returns their results in order; called from another thread.
    """

    def __init__(self, target: Target, known: list[tuple[str, IndexHeader]], run: RunTasks) -> None:
        super().__init__(target, known)
        self._run = run
        self._running: Future[list[Any]] | None = None
        self._planned: list[str] = []
        self._pool = ThreadPoolExecutor(1, "reput-index")

    def offer(self, spill: Spill | None, first_timestamp: int) -> None:
        """Take the next part's keys; start building when it is worth it."""
        super().offer(spill, first_timestamp)
        if self._running is not None and self._running.done():
            self._collect()
        if self._running is None and sum(spill.keys for spill in self._waiting) >= _KEYS_AT_ONCE:
            self._start()

    def _put_waiting(self) -> None:
        try:
            self._collect()
            if self._waiting:
                self._start()
                self._collect()
        finally:
            self._pool.shutdown()

    def give_up(self) -> None:
        """Wait for the task under way."""
        self._pool.shutdown()

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
            self.moved(name, result)

    def _plan(self) -> list[IndexTask]:
        """One task for each file that the waiting keys reach."""
        spills, self._waiting, self._planned = tuple(self._waiting), [], []
        tasks: list[IndexTask] = []
        name, header = self.name, self.header
        first_key, end = 0, sum(spill.keys for spill in spills)
        while first_key < end:
            if tasks:
                header = None  # follows a file whose last entry only its own task will know
                _, before = message_of_key(spills, first_key - 1)
                name = self.next_name(before, name)
            else:
                name, header = self.for_next_key()
            room = self._settings.max_index_num - (FIRST_ORDINAL if header is None else header.index_count)
            keys = min(room, end - first_key)
            tasks.append(
                IndexTask(
                    root=self._target.root,
                    path=self._target.root / names.INDEX / str(name),
                    header=header,
                    first_key=first_key,
                    keys=keys,
                    spills=spills,
                    max_hash_slot_num=self._settings.max_hash_slot_num,
                    max_index_num=self._settings.max_index_num,
                    counts_keys=self._settings.dialect.counts_keys,
                    owner=self._target.owner,
                    flush=self._target.flush_in_tasks,
                )
            )
            self._planned.append(str(name))
            first_key += keys
        return tasks
