"""Segments of a store elsewhere, copied here while they are scanned."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from reput.errors import OutputError, ReputError
from reput.newer_python import Self
from reput.remote.client import RANGE, RemoteFile
from reput.remote.store import client_of, copying_mark
from reput.store import files
from reput.unforeseen import unforeseen

#: Ends the name of a copy that isn't whole yet; no file of a broker's ends so.
PARTIAL = ".partial"
#: Ranges of one segment that are read at once.
_AT_ONCE = 4


class SegmentCopies:
    """Copies files one after the other, in a thread, while a ``with`` block runs.

    A copy gets its name when it is whole and flushed; whoever needs it waits for that
    (:func:`reput.remote.store.await_copy`).
    Ranges of zeros become holes. Leaving the block without an error waits for the last copy.

    Args:
        url: the store.
        wanted: the files in log order, and where each copy goes.
        directory: the store that is restored.

    Attributes:
        copied: bytes copied so far.

    Raises:
        ReputError: a file can't be read or written; when the block is left.
    """

    def __init__(self, url: str, wanted: Sequence[tuple[RemoteFile, Path]], directory: Path) -> None:
        self._url, self._wanted, self._running = url, wanted, copying_mark(directory)
        self._stopping = threading.Event()
        self._error: ReputError | None = None
        self._thread = threading.Thread(target=self._run, name="copying", daemon=True)
        self.copied = 0

    def __enter__(self) -> Self:
        files.write_atomically(self._running, b"")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stopping.set()
        self._thread.join()
        # A run that waited in vain has failed because of this.
        if self._error is not None and (error is None or isinstance(error, Exception)):
            raise self._error from None

    def _run(self) -> None:
        try:
            for file, path in self._wanted:
                if not self._stopping.is_set():
                    self._copy(file, path)
        except ReputError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - in a thread nobody else would say it
            self._error = unforeseen(error)
        finally:
            with suppress(OutputError):
                files.remove_tree(self._running)

    def _copy(self, file: RemoteFile, path: Path) -> None:
        partial = path.with_name(path.name + PARTIAL)
        files.remove_tree(partial)
        # The pool ends before the descriptor is closed: another file may get its number.
        with files.opened(partial, file.size, None) as fd, ThreadPoolExecutor(_AT_ONCE, "copying") as pool:

            def copy(start: int) -> int:
                if self._stopping.is_set():
                    return 0
                stop = min(start + RANGE, file.size)
                data = client_of(self._url).read(file, start, stop)
                if np.frombuffer(data, np.uint8).any():
                    files.pwrite_all(fd, data, start)
                return stop - start

            try:
                for length in pool.map(copy, range(0, file.size, RANGE)):
                    self.copied += length
            except BaseException:
                self._stopping.set()
                raise
            if self._stopping.is_set():
                return
            files.fsync_file(fd)
        files.rename(partial, path)
