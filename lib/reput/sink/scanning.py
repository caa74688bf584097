"""The scan of a batch, under way beside whatever else there is to do."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import SimpleQueue

from reput.scan.part import Part
from reput.sink.crew import Crew
from reput.sink.scan_task import PartResult

#: Waves of tasks under way at once: while one's results are fetched, the next one works.
_AT_ONCE = 2


class Scanning:
    """Scans parts in waves of as many as run at once; begins when it is made.

    Args:
        crew: scans.
        parts: in log order.
    """

    def __init__(self, crew: Crew, parts: list[Part]) -> None:
        self.crew = crew
        self.parts = parts
        self._results: SimpleQueue[list[PartResult] | BaseException | None] = SimpleQueue()
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
            yield from found

    def close(self) -> None:
        """Begin no further task, and wait for those that run: none may write after its batch."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with ThreadPoolExecutor(_AT_ONCE, "reput-wave") as pool:
                under_way: deque[Future[list[PartResult]]] = deque()
                for wave in self._waves():
                    under_way.append(pool.submit(self.crew.scan, wave))
                    if len(under_way) == _AT_ONCE:
                        self._results.put(under_way.popleft().result())
                for future in under_way:
                    self._results.put(future.result())
            if self._closing.is_set():
                raise CancelledError
        except BaseException as error:  # noqa: BLE001 - raised by results(), in the thread that wants them
            self._results.put(error)
        else:
            self._results.put(None)

    def _waves(self) -> Iterator[list[Part]]:
        at = 0
        while at < len(self.parts) and not self._closing.is_set():
            # Asked each time: a cluster's executors come one by one.
            stop = at + max(self.crew.runner.slots, 1)
            yield self.parts[at:stop]
            at = stop
