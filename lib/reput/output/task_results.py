"""What a task hands to the process that commits: small results through Spark, large ones through a file.

Spark's JVM has each result several times, and keeps the heap that they needed. A part of a log with a million
queues is 150 MB.
"""

from __future__ import annotations

import os
import pickle
import secrets
import zlib
from dataclasses import dataclass
from pathlib import Path

from reput.errors import OutputError
from reput.store import files

#: Bytes of a result that goes through Spark.
_LARGEST_SENT = 1 << 20
_READ_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Sent:
    """A result as it goes through Spark.

    Attributes:
        data: it, pickled; empty where it is in the file.
        path: the file, which is there until :meth:`taken`.
        length, crc: of the file: bytes, and their CRC-32.
    """

    data: bytes
    path: str = ""
    length: int = 0
    crc: int = 0

    def taken(self) -> object:
        """The result; to be called once.

        Raises:
            OutputError: the file isn't what was written.
        """
        if not self.path:
            return pickle.loads(self.data)
        path, length, crc = Path(self.path), 0, 0
        with files.reporting("a task's result can't be read back", path), path.open("rb") as file:
            while data := file.read(_READ_AT_ONCE):
                length, crc = length + len(data), zlib.crc32(data, crc)
            if (length, crc) != (self.length, self.crc):
                raise OutputError(
                    "a task's result can't be read back",
                    path=path,
                    expected=f"{self.length} bytes with CRC-32 {self.crc:08x}",
                    found=f"{length} bytes with CRC-32 {crc:08x}",
                    next_step="Check the disk, then run the same command again",
                )
            file.seek(0)
            result: object = pickle.load(file)
            path.unlink()
        return result


def sent(result: object, scratch: Path) -> Sent:
    """Have a task's result sent.

    Args:
        scratch: a directory that the process which takes it sees as it is here; it gets the file.

    Raises:
        OutputError: there is no room for the file, or the run is over and ``scratch`` gone.
    """
    pieces = _Pieces(scratch)
    try:
        pickle.Pickler(pieces, pickle.HIGHEST_PROTOCOL).dump(result)
        return pieces.sent()
    finally:
        pieces.close()


class _Pieces:
    """What pickle writes: in memory, or once it is large in a file of its own."""

    def __init__(self, scratch: Path) -> None:
        self._path = scratch / f"{os.getpid()}-{secrets.token_hex(8)}.result"
        self._pieces: list[bytes] = []
        self._fd: int | None = None
        self._length = self._crc = 0

    def write(self, data: bytes) -> int:
        """Take some bytes, which may change when this has returned."""
        view = memoryview(data)
        if self._fd is None and self._length + view.nbytes <= _LARGEST_SENT:
            self._pieces.append(view.tobytes())
        else:
            if self._fd is None:
                self._fd = files.create_file(self._path, None)
                files.pwrite_all(self._fd, b"".join(self._pieces), 0)
            files.pwrite_all(self._fd, view, self._length)
        self._length += view.nbytes
        self._crc = zlib.crc32(view, self._crc)
        return view.nbytes

    def sent(self) -> Sent:
        """What was written."""
        if self._fd is None:
            return Sent(b"".join(self._pieces))
        return Sent(b"", str(self._path), self._length, self._crc)

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._fd is not None:
            files.system.close(self._fd)
