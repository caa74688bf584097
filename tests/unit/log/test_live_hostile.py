"""A live log whose messages hold records: the settled end never lies within a message, whatever is seen."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.format import commitlog
from reput.format.commitlog import Record
from reput.log.end import LogEnd
from reput.log.live import LiveEnd
from reput.log.segments import discover
from tests.hostile import NOW, fake
from tests.stores import LogWriter

SEGMENT = 1 << 16
PAGE = 4096


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def body_of(place: int, length: int, fill: str) -> bytes:
    """A hostile body for a record at a physical offset."""
    start = place + 88
    body = bytearray(b"\xee" * length)
    at = 1 if fill == "odd" else 40
    while at + 300 < length:
        one = fake(start + at, queue_offset=80)
        body[at : at + len(one)] = one
        at += len(one) if fill == "chain" else 700
        if fill == "blank":
            left = SEGMENT - (start + at - 300)
            body[at - 300 : at - 292] = commitlog.encode_blank(left)[:8]
    return bytes(body)


def begun(root: Path) -> LogWriter:
    log = LogWriter(root / "store", SEGMENT)
    log.preallocate(0)
    log.append(*(Record(b"Victim", b"honest", queue_offset=at, store_timestamp=NOW + at) for at in range(3)))
    return log


def pieces(whole: bytes, place: int, order: str, step: int) -> list[tuple[int, bytes]]:
    """(offset, bytes) in the order in which they are seen: pieces as they are copied, or whole pages."""
    if order == "copied":
        return [(place + at, whole[at : at + step]) for at in range(0, len(whole), step)]
    found = []
    at = 0
    while at < len(whole):
        stop = min(at + PAGE - (place + at) % PAGE, len(whole))
        found.append((place + at, whole[at:stop]))
        at = stop
    if order == "pages from the last":
        found.reverse()
    elif order == "pages in any order":
        random.Random(step).shuffle(found)
    return found


ORDERS = [("copied", 997), ("copied", 4096), ("copied", 17_000), ("pages from the first", 0)]
ORDERS += [("pages from the last", 0), *(("pages in any order", seed) for seed in range(4))]


@pytest.mark.parametrize("fill", ["chain", "apart", "odd", "blank"])
@pytest.mark.parametrize(("order", "step"), ORDERS)
def test_a_message_that_is_being_copied_is_never_entered(
    tmp_path: Path, fill: str, order: str, step: int
) -> None:
    """At every moment by a reader that was there before, by one that comes new, and after long pauses."""
    log = begun(tmp_path)
    store = StoreSettings.load(log.root, None, None)
    clock = Clock()
    live = LiveEnd(store, clock=clock, nap=lambda _: None)
    live.find(discover(store))
    clock.now += 3
    place = log.end
    assert live.find(discover(store)).offset == place
    record = Record(
        b"Victim", body_of(place, 20_000, fill), b"KEYS\x01k\x02", queue_offset=3, store_timestamp=NOW + 3
    )
    whole = commitlog.encode(replace(record, physical_offset=place))
    parts = pieces(whole, place, order, step)
    for number, (at, data) in enumerate(parts, 1):
        log.overwrite(at, data)
        for _ in range(2):
            ends = {live.find(discover(store)).offset}
            if "any" not in order:  # of a log at rest, zeros behind a chain of records are its end
                ends.add(LogEnd(store).find(discover(store)))
            fresh = LiveEnd(store, clock=clock, nap=lambda _: None)
            fresh.find(discover(store))
            clock.now += 3
            ends |= {fresh.find(discover(store)).offset, live.find(discover(store)).offset}
            fresh.close()
            whole_is_there = number == len(parts)
            assert ends <= {place, *([place + len(whole)] if whole_is_there else [])}, f"{number}: {ends}"
    assert live.find(discover(store)).offset == place + len(whole)
    live.close()
