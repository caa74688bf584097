"""The work of a batch before its commit: parts are scanned, units are placed, index keys are put."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from queue import SimpleQueue

from reput.format.indexfile import IndexHeader
from reput.output.batch_tasks import BatchTasks
from reput.output.index.batch_index import BatchIndex
from reput.replay.chain import Chain
from reput.replay.part_result import PartResult
from reput.replay.queues import BatchQueues
from reput.replay.runner import in_waves
from reput.replay.state import State
from reput.scan.rules import Part
from reput.store.file_system import FileSystem


class BatchScan:
    """The work of one batch before its commit, done by the caller of :meth:`finish`, or beside it.

    Args:
        tasks: does the work.
        parts: from the cursor on, in log order, at least one.
        state: what is committed.
        index: takes the keys, None where no index is wanted.
        listener: gets each accepted part, in log order; called by the thread that works.
        write_files: does with this scan what is to be done with queues once all parts are accepted.

    Attributes:
        tasks, parts: the arguments.
        batches: how many batches were committed when it was begun; it builds on these.
        accepted: the results of the parts that were accepted.
        chain, queues, index: what they add up to.
        last_position: physical offset of the last record so far, -1 if there was none.
        end: physical offset that the batch reaches.
        scanned: time.perf_counter when the last part was scanned.
        written: time.perf_counter when units that had been put aside were in their files; 0 if none had.
        whole: the output's file system, to flush what tasks wrote; :meth:`close` closes it.
        audited: the files that the batch wrote have been checked.
    """

    def __init__(
        self,
        tasks: BatchTasks,
        parts: list[Part],
        state: State,
        index: BatchIndex | None,
        listener: Callable[[PartResult], None],
        write_files: Callable[[BatchScan], None] = lambda _scan: None,
    ) -> None:
        self.tasks = tasks
        self.parts = parts
        self.batches = state.batches
        self.accepted: list[PartResult] = []
        self.chain = Chain(parts[0].start, state.last_timestamp)
        self.queues = BatchQueues(state.queues)
        self.index = index
        self.last_position = state.last_position
        self.end = parts[0].start
        self.scanned = 0.0
        self.written = 0.0
        self.audited = False
        self._write_files = write_files
        self._listener = listener
        self._scanning: _PartScans | None = None
        self._ahead: Future[None] | None = None
        # Opened before anything is written.
        self.whole = FileSystem(tasks.target.root, tasks.target.settings.root)

    @property
    def changed_index(self) -> dict[str, IndexHeader]:
        """The index files that the batch wrote to, by name."""
        return {} if self.index is None else self.index.changed

    def begin(self) -> None:
        """Work beside the caller, who calls :meth:`finish` or :meth:`stop` later."""
        # Not created by the thread: stop() may come at once, and needs it.
        self._scanning = _PartScans(self.tasks, self.parts)
        pool = ThreadPoolExecutor(1, "reput-batch")
        self._ahead = pool.submit(self._work)
        pool.shutdown(wait=False)

    def finish(self) -> None:
        """Wait for what was begun, or do all of it now."""
        if self._ahead is None:
            self._work()
        else:
            self._ahead.result()

    def stop(self) -> None:
        """Give up what was begun; no task writes any more when this returns."""
        if self._scanning is not None:
            self._scanning.close()
        if self._ahead is not None:
            self._ahead.exception()
        self.close()

    def close(self) -> None:
        """Close what was opened for the batch."""
        self.whole.close()

    def _work(self) -> None:
        try:
            for result in self._scan():
                for fitting in self._fit(result):
                    self.accepted.append(fitting)
                    self.queues.add(fitting)
                    if not self.tasks.target.queue_files:
                        fitting.forget_queues()
                    if self.index is not None and fitting.messages:
                        self.index.offer(fitting.spill, fitting.outcome.first_timestamp)
                    if fitting.messages:
                        self.last_position = fitting.last_position
                    self._listener(fitting)
            self.end = self.chain.finish()
            self.scanned = time.perf_counter()
            with ThreadPoolExecutor(1, "reput-queue-files") as pool:
                writing = pool.submit(self._write_files, self)
                if self.index is not None:
                    self.index.finish(self.last_position)
                writing.result()
        except BaseException:
            if self.index is not None:
                self.index.give_up()
            raise

    def _scan(self) -> Iterator[PartResult]:
        if self.tasks.is_here:
            yield from self.tasks.scan(self.parts)
            return
        scanning = self._scanning or _PartScans(self.tasks, self.parts)
        try:
            yield from scanning.results()
        finally:
            scanning.close()

    def _fit(self, result: PartResult) -> Iterator[PartResult]:
        verdict = self.chain.judge(result)
        if verdict.accepted:
            yield result
            return
        self.queues.distrust(result)
        if verdict.again is not None:
            (again,) = self.tasks.scan([verdict.again])
            yield from self._fit(again)


class _PartScans:
    """Scans parts in waves, each as large as what runs at once; starts when it is created.

    Args:
        tasks: scans.
        parts: in log order.
    """

    def __init__(self, tasks: BatchTasks, parts: list[Part]) -> None:
        self.tasks = tasks
        self.parts = parts
        self._results: SimpleQueue[PartResult | BaseException | None] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reput-scan", daemon=True)
        self._thread.start()

    def results(self) -> Iterator[PartResult]:
        """The results of the parts, in their order, each as soon as it is known; to be called once.

        Raises:
            ReputError: a part could not be scanned.
            CancelledError: :meth:`close` came first.
        """
        while (found := self._results.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found

    def close(self) -> None:
        """Begin no further task, and wait for those that run: none may write after its batch."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with closing(in_waves(self.tasks.runner, self.tasks.scan, self.parts)) as results:
                for result in results:
                    self._results.put(result)
                    if self._closing.is_set():
                        raise CancelledError
        except BaseException as error:  # noqa: BLE001 - raised by results(), in the thread that wants them
            self._results.put(error)
        else:
            self._results.put(None)
