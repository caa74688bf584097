"""Segments whose end never came, and were passed by time alone: what comes there later is noticed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from reput.format import commitlog
from reput.log.segments import Segment
from reput.store.reading import open_file

#: How much behind a segment's last byte is seen to stay zero, bytes.
ZEROS = 4096


@dataclass(frozen=True, slots=True)
class Passed:
    """Such a segment."""

    segment: Segment  # the segment
    end: int  # position up to which there were records
    marks: tuple[tuple[int, bytes], ...]  # (position, bytes) that stood there when it was passed

    def changed(self) -> int | None:
        """The first physical offset where other bytes are now than were passed, None if missing.

        A BLANK where the records ended is no change: it was all that was missing.
        """
        try:
            descriptor = open_file(self.segment.path)
        except FileNotFoundError:
            return None  # expired
        try:
            head = os.pread(descriptor, commitlog.BLANK_LENGTH, self.end)
            if head[4:] == commitlog.MAGIC_BLANK.to_bytes(4, "big"):
                return None
            for position, data in sorted(self.marks):
                if os.pread(descriptor, len(data), position) != data:
                    return self.segment.base + position
        finally:
            os.close(descriptor)
        return None
