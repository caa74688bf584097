"""The scan of a batch, under way beside whatever else there is to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import closing
from queue import SimpleQueue

from reput.output.batch_tasks import BatchTasks
from reput.replay.part_result import PartResult
from reput.replay.runner import in_waves
from reput.scan.part import Part


class Scanning:
    """Scans parts in waves of as many as run at once; begins when it is made.

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
        """What came of the parts, in their order, each as soon as it is known; to be called once.

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
