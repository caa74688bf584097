"""A broker's log as another process sees it while it is written: bytes appear late, and out of order.

What is written is *issued* byte after byte, in order. Of what was issued before the last nap everything is
seen; of what was issued since, any subset of blocks. That is more than any memory or file system does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from reput.format import commitlog
from reput.format.commitlog import Record
from tests.stores import LogWriter


@dataclass
class BrokerMemory:
    """Writes records of a :class:`LogWriter`'s log so that they appear in pieces.

    Attributes:
        root: the store.
        chance: decides what is seen when.
        segment_size: bytes of a segment.
        end: physical offset where the next record goes.
        block: bytes that appear together.
        spoil: how often some bytes of what is written are wrong.
        direct: how often a broker with buffers (``transientStorePoolEnable``) has none left for a segment,
            and writes it before what is still in the buffers of earlier ones.
    """

    root: Path
    chance: random.Random
    segment_size: int = 8192
    end: int = 0
    block: int = 8
    spoil: float = 0.0
    direct: float = 0.0
    _queue: list[tuple[int, bytes]] = field(default_factory=list)
    _hidden: list[tuple[int, bytes]] = field(default_factory=list)
    _directs: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.disk = LogWriter(self.root, self.segment_size)
        self.disk.preallocate(0)

    def put(self, *records: Record) -> None:
        """Have records written as one piece, as a batch is; nothing is issued yet."""
        left = self.segment_size - self.end % self.segment_size
        if sum(len(commitlog.encode(record)) for record in records) + commitlog.BLANK_LENGTH > left:
            self._append(commitlog.encode_blank(left)[: commitlog.BLANK_LENGTH])
            self.end += left - commitlog.BLANK_LENGTH
        piece = b""
        for record in records:
            piece += commitlog.encode(replace(record, physical_offset=self.end + len(piece)))
        if self.chance.random() < self.spoil:
            # Times stay: the rules for leftovers go by them.
            at = self.chance.choice([self.chance.randrange(25), len(piece) - self.chance.randrange(1, 25)])
            piece = piece[:at] + bytes(byte ^ 0x55 for byte in piece[at : at + 30]) + piece[at + 30 :]
        self._append(piece)

    def _append(self, data: bytes) -> None:
        if data:
            self._queue.append((self.end, data))
            self.end += len(data)

    def issue(self, most: int) -> None:
        """Write the next bytes, up to ``most``; some blocks of them are not seen before the next nap."""
        while most > 0 and self._queue:
            number = self._next()
            offset, data = self._queue.pop(number)
            base = offset - offset % self.segment_size
            for made in range(0, base + 1, self.segment_size):
                self.disk.preallocate(made)
            if offset - base > self.segment_size // 2:
                self.disk.preallocate(base + self.segment_size)
            now, rest = data[:most], data[most:]
            most -= len(now)
            if rest:
                self._queue.insert(number, (offset + len(now), rest))
            blocks = []
            at = offset
            while at < offset + len(now):
                stop = min(at - at % self.block + self.block, offset + len(now))
                blocks.append((at, now[at - offset : stop - offset]))
                at = stop
            self.chance.shuffle(blocks)
            seen = self.chance.randint(0, len(blocks)) if self.chance.random() < 0.5 else len(blocks)
            for at, block in blocks[:seen]:
                self.disk.overwrite(at, block)
            self._hidden += blocks[seen:]

    def _next(self) -> int:
        """Which piece of the queue is written next: its first one, or the first that needs no buffer."""
        if not self.direct or self.chance.random() < 0.3:
            return 0
        return next((number for number, (offset, _) in enumerate(self._queue) if self._is_direct(offset)), 0)

    def _is_direct(self, offset: int) -> bool:
        segment = offset // self.segment_size
        return self._directs.setdefault(segment, self.chance.random() < self.direct)

    def nap(self, _seconds: float = 0.0) -> None:
        """Time passes: what was issued is seen, and more is issued."""
        for at, block in self._hidden:
            self.disk.overwrite(at, block)
        self._hidden.clear()
        if self.chance.random() < 0.5:
            self.issue(self.chance.choice([1, 7, 60, 200, 1000, 10_000]))

    def is_final(self, end: int) -> bool:
        """Whether all that was put before ``end`` is to be seen; zeros look as if they were."""
        pending = [
            at + len(data) - len(data.lstrip(b"\0")) for at, data in self._hidden + self._queue if any(data)
        ]
        return not pending or end <= min(pending)
