"""Which bytes of a segment hold something: whole records, their proof, and where written bytes end.

Nothing here loads numba.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from reput.format import commitlog, properties
from reput.scan.reference import Frame, _body_crc_is_wrong, _property_crc_is_wrong, frame
from reput.store.reading import extents

_LOOK_AT = 1 << 20
#: How far before a segment's end its BLANK is looked for, bytes, one after the other. The room that a broker
#: leaves is less than what its next message takes, mostly a few hundred bytes and at most 4 MiB.
_BLANK_WITHIN = (4 << 10, 256 << 10, 8 << 20)
_MAGIC_BLANK = commitlog.MAGIC_BLANK.to_bytes(4, "big")


class Records:
    """The records of one segment, looked at one by one.

    Args:
        data: the segment, uint8[segment_length].
        base: physical offset of its first byte.
        topic_length_v2: records of magic v2 are known.
        property_crc_only: the body's CRC isn't looked at (``forceVerifyPropCRC``).
    """

    def __init__(
        self, data: NDArray[np.uint8], base: int, *, topic_length_v2: bool, property_crc_only: bool
    ) -> None:
        self._view = data.data
        self._base = base
        self._v2 = topic_length_v2
        self._property_crc_only = property_crc_only

    def end(self, position: int) -> int:
        """Position after the whole frame at ``position``, -1 if missing."""
        found = self._frame(position)
        return -1 if found is None else position + found.size

    def has_stored_crc(self, position: int) -> bool:
        """Whether a whole frame stands there, with the CRCs that it names: of its body, of all its bytes."""
        found = self._frame(position)
        if found is None or (not self._property_crc_only and _body_crc_is_wrong(self._view, found)):
            return False
        raw = self._properties(found)
        return not _property_crc_is_wrong(self._view, found, raw, properties.parse(raw))

    def is_proven(self, position: int) -> bool:
        """Whether the record has a CRC of all its bytes, and it is right (``enabledAppendPropCRC``)."""
        found = self._frame(position)
        if found is None:
            return False
        raw = self._properties(found)
        values = properties.parse(raw)
        stored = values.get(properties.CRC32, b"")
        return (
            len(stored) == 10
            and raw.endswith(properties.CRC32 + b"\x01" + stored + b"\x02")
            and not _property_crc_is_wrong(self._view, found, raw, values)
        )

    def is_ended(self, position: int) -> bool:
        """Whether the last byte of the record that isn't zero by its layout has been written.

        That is the last one of the properties or, without any, of the topic. Over zeros, and written from
        the first byte to the last, the record is then all there.
        """
        found = self._frame(position)
        if found is None:
            return False
        start, end = found.properties
        if start == end:
            start, end = found.topic
        return start < end and self._view[end - 1] != 0

    def _properties(self, found: Frame) -> bytes:
        return bytes(self._view[slice(*found.properties)])

    def _frame(self, position: int) -> Frame | None:
        found = frame(self._view, self._base, position, self._v2)
        return found if isinstance(found, Frame) else None


def written_end(descriptor: int, data: NDArray[np.uint8], start: int) -> int:
    """Position after the last byte from ``start`` on that isn't zero, ``start`` if all are."""
    for first, stop in reversed(list(extents(descriptor, start, len(data)))):
        at = stop
        while at > first:
            piece = data[max(at - _LOOK_AT, first) : at]
            if piece.any():
                # A copy, for the broker writes meanwhile.
                return at - len(piece) + len(piece.tobytes().rstrip(b"\0"))
            at -= len(piece)
    return start


def is_written_out(descriptor: int, length: int) -> bool:
    """Whether a BLANK that reaches to the end of a segment of ``length`` bytes stands in it.

    A broker writes it after all that comes before it, whether directly or from a buffer
    (``CommitLog.DefaultAppendMessageCallback.doAppend``, ``DefaultMappedFile.commit0``). One that leaves more
    than 8 MiB isn't found.
    """
    for within in _BLANK_WITHIN:
        start = max(length - within, 0)
        piece = os.pread(descriptor, length - start, start)
        magic = len(piece)
        while (magic := piece.rfind(_MAGIC_BLANK, 0, magic + 3)) >= 4:
            at = magic - 4
            if int.from_bytes(piece[at:magic], "big") == length - start - at:
                return True
        if not start:
            return False
    return False
