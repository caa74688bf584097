"""The scan of changed bytes: numba and its slow twin see the same, and neither reads past the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.log import walk, walk_kernel
from reput.scan import kernel, output
from reput.scan.frames import FrameWalk, frames, has_stored_crc
from reput.scan.output import Status
from reput.scan.rules import Rules, rules
from reput.scan.table import QueueTable
from tests import slow_scan
from tests.fuzz.guarded import guarded
from tests.property.test_scan import columns, queues, topics

_MANY = 1 << 30


class DisagreementError(AssertionError):
    """Two ways to the same answer gave two."""


def scan_alike(settings: StoreSettings, base: int, data: bytes) -> list[str]:
    """Scan a segment both ways, with the fast way's bytes between guard pages.

    Args:
        data: the segment; it need not be whole.

    Returns:
        Why the scan stopped, each time it did.

    Raises:
        DisagreementError: the results differ.
    """
    usual = rules(settings)
    stops: list[str] = []
    plain = np.frombuffer(data, np.uint8)
    find = lru_cache(None)(
        lambda start: slow_scan.find_record(plain, base, start, len(data), usual.topic_length_v2)
    )
    for switches in (usual, usual._replace(check_crc=False)):
        slow = scan(slow_scan, settings, base, plain, switches, find)
        for at_end in (True, False):
            fast = scan(kernel, settings, base, guarded(data, at_end=at_end), switches)
            if fast != slow:
                raise DisagreementError(f"kernel: {_first_difference(fast, slow)}")
        stops = [stop.status.name for stop, _, _ in slow[0]]
    starts = list(_starts(base, plain, usual.topic_length_v2, find))
    for at_end in (True, False):
        _walk_alike(settings, base, data, guarded(data, at_end=at_end), starts)
    return stops


def scan(
    scanner: ModuleType,
    settings: StoreSettings,
    base: int,
    data: NDArray[np.uint8],
    switches: Rules,
    find: Callable[[int], int] | None = None,
) -> tuple[list[Any], Any, Any]:
    """Everything that a scanner finds in a segment, around what is damaged.

    Args:
        find: where the next record begins at or after a position; None to let the scanner search.

    Returns:
        (stop, where it goes on, columns) of each run; queues; topics.
    """
    excludes = settings.dialect.lmq_excludes
    table = QueueTable(excludes_lmq=lambda topic: excludes(topic.decode(errors="replace")))
    out = output.output(1, 1)
    position, seen = 0, []
    while True:
        out.counts.fill(0)
        stop = scanner.scan(data, base, position, len(data), switches, table, out)
        if find is not None:
            position = find(stop.position + 1)
        else:
            position = scanner.find_record(data, base, stop.position + 1, len(data), switches.topic_length_v2)
        seen.append((stop, position, columns(out)))
        if stop.status is Status.END or position < 0:
            return seen, queues(table), topics(table)


def _walk_alike(
    settings: StoreSettings, base: int, data: bytes, memory: NDArray[np.uint8], starts: list[int]
) -> None:
    """The other kernels that go over a segment."""
    v2, view = settings.dialect.topic_length_v2, memoryview(data)
    plain = np.frombuffer(data, np.uint8)
    for start in starts:
        _same("walk", kernel.walk, slow_scan.walk, memory, plain, base, start, len(data), v2)
        fast = walk_kernel.walk(memory, base, start, 0, v2, 0, _MANY)
        if fast != walk.walk(view, base, start, 0, v2, 0, _MANY):
            raise DisagreementError(f"walk of the log's tail from {start}")
        rest = np.flatnonzero(plain[start:])
        first = start + int(rest[0]) if len(rest) else len(data)
        if kernel.first_written(memory, start, len(data)) != first:
            raise DisagreementError(f"first byte that isn't zero after {start}")
    collected = frames(16)
    going = FrameWalk(
        memory,
        base,
        len(data),
        len(data),
        last=False,
        topic_length_v2=v2,
        is_whole=lambda position: has_stored_crc(memory.data, position),
    )
    while going.advance(len(data), collected, _MANY):
        collected.counts.fill(0)


def _starts(base: int, data: NDArray[np.uint8], v2: bool, find: Callable[[int], int]) -> Iterator[int]:
    """The segment's begin, and where each damage ends."""
    start = 0
    while 0 <= start < len(data):
        yield start
        stop = slow_scan.walk(data, base, start, len(data), v2)
        start = find(stop.position + 1)


def _same(what: str, fast: Any, slow: Any, memory: Any, plain: Any, *arguments: Any) -> None:
    one, other = fast(memory, *arguments), slow(plain, *arguments)
    if one != other:
        raise DisagreementError(f"{what}: {one} by the kernel, {other} by its twin")


def _first_difference(fast: Any, slow: Any) -> str:
    for one, other in zip(fast[0], slow[0], strict=False):
        if one != other:
            return f"{one[:2]} by the kernel, {other[:2]} by its twin"
    return "another number of runs, or other queues"
