"""A message's body is never log: damage is skipped as far as the damaged record reaches."""

from __future__ import annotations

import numpy as np
import pytest

from reput.scan.frames import FrameWalk, frames, has_stored_crc
from tests.hostile import FILLS, Hostile, flips, hostile, taken


def real(log: Hostile) -> list[tuple[int, int]]:
    return [(place, number) for number, (place, _) in enumerate(log.places)]


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "last"])
@pytest.mark.parametrize("fill", FILLS)
def test_a_sound_log_holds_no_forged_record(fill: str, closed: bool) -> None:
    log = hostile(fill, closed=closed)
    for part_bytes in (None, 700, 97):
        assert taken(bytes(log.data), log.base, part_bytes=part_bytes, last=not closed)[0] == real(log)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "last"])
@pytest.mark.parametrize("fill", FILLS)
def test_no_flipped_bit_lets_a_body_in(fill: str, closed: bool) -> None:
    """Of each hostile record each bit that leads through the log, and of the honest one before it."""
    log = hostile(fill, closed=closed)
    places = real(log)
    for number in (1, *log.attacks):
        for name, data in flips(log, number):
            found, outcomes = taken(data, log.base, last=not closed)
            told = "; ".join(one.outcome for outcome in outcomes for one in outcome.findings)
            positions = [position for position, _ in found]
            assert set(positions) <= {position for position, _ in places}, f"{number} {name}"
            lost = {position for position, _ in places} - set(positions)
            if "disagree" in told:
                continue  # a size that leads to another record: what lies between is listed
            assert lost <= {places[number][0]}, f"{number} {name}: {told}"


@pytest.mark.parametrize("fill", FILLS)
def test_walk_and_scan_find_the_same(fill: str) -> None:
    log = hostile(fill, closed=True)
    for number in log.attacks:
        for name, data in list(flips(log, number))[::5]:
            array = np.frombuffer(data, np.uint8)
            found = frames()
            walk = FrameWalk(
                array,
                log.base,
                log.size,
                log.size,
                last=False,
                topic_length_v2=True,
                is_whole=lambda position, view=array.data: has_stored_crc(view, position),  # type: ignore[misc]
            )
            assert not walk.advance(log.size, found, 1 << 30)
            positions = found.position[: found.counts[0]].tolist()
            assert positions == [at for at, _ in taken(data, log.base, last=False)[0]], f"{number} {name}"


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "last"])
@pytest.mark.parametrize("fill", FILLS)
def test_parts_may_begin_anywhere(fill: str, closed: bool) -> None:
    log = hostile(fill, closed=closed)
    for number in log.attacks:
        for name, data in list(flips(log, number))[::11]:
            whole = taken(data, log.base, last=not closed)[0]
            for part_bytes in (500, 4096):
                found = taken(data, log.base, part_bytes=part_bytes, last=not closed)[0]
                assert found == whole, f"{number} {name}, parts of {part_bytes}"


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "last"])
@pytest.mark.parametrize("fill", FILLS)
def test_without_a_witness_only_listed_records_appear(fill: str, closed: bool) -> None:
    """A page of zeros over a record's head."""
    log = hostile(fill, closed=closed)
    places = {position for position, _ in real(log)}
    for number in log.attacks:
        place, size = log.places[number]
        for length in (60, 88, 300):
            data = bytearray(log.data)
            data[place : place + length] = bytes(length)
            found, outcomes = taken(bytes(data), log.base, last=not closed)
            told = "; ".join(one.outcome for outcome in outcomes for one in outcome.findings)
            for position, queue_offset in found:
                if position not in places:
                    assert f"Victim:0 queueOffset {queue_offset} at {log.base + position}" in told
            if fill == "reaching over":
                continue  # the forged record takes honest ones with it, whose places it covers
            assert {position for position, _ in found} >= {
                at for at in places if at < place or at >= place + size
            }
            if fill in ("one", "broken chain", "places", "blank"):
                assert {position for position, _ in found} <= places, length


def test_a_chain_that_breaks_off_before_the_log_is_not_taken() -> None:
    log = Hostile()
    log.honest()
    log.attack("broken chain")
    log.honest()
    log.close()
    data = bytearray(log.data)
    place, size = log.places[1]
    data[place : place + 88] = bytes(88)
    found, outcomes = taken(bytes(data), log.base, last=False)
    assert [at for at, _ in found] == [log.places[0][0], log.places[2][0]]
    (finding,) = outcomes[0].findings
    assert "nothing proves that one begins there" in finding.outcome
    assert f"Victim:0 queueOffset 2 at {log.base + place + size}" in finding.outcome


def test_a_size_that_leads_on_to_a_later_record_counts_and_what_lies_between_is_listed() -> None:
    log = Hostile()
    for _ in range(5):
        log.honest()
    log.close()
    place, size = log.places[1]
    data = bytearray(log.data)
    data[place : place + 4] = (2 * size).to_bytes(4, "big")
    found, outcomes = taken(bytes(data), log.base, last=False)
    assert [at for at, _ in found] == [log.places[number][0] for number in (0, 3, 4)]
    assert f"Victim:0 queueOffset 2 at {log.base + log.places[2][0]}" in outcomes[0].findings[0].outcome


def test_half_a_record_at_the_end_is_never_searched() -> None:
    log = Hostile()
    log.honest()
    log.attack("one")
    place, size = log.places[1]
    log.data += bytes(log.size - len(log.data))
    tail = len(b"KEYS\x01k\x02")  # without a CRC of their own
    for length in range(1, size - tail):
        data = bytes(log.data[: place + length]).ljust(log.size, b"\0")
        found, _ = taken(data, log.base, last=True)
        assert [at for at, _ in found] == [log.places[0][0]], length


def test_what_lies_between_two_destroyed_heads_is_taken_if_the_log_misses_it() -> None:
    """A chain that breaks off is none of a body if later queueOffsets leave room for just it."""
    log = Hostile()
    for _ in range(9):
        log.honest()
    log.close()
    data = bytearray(log.data)
    for number in (2, 5):
        place, size = log.places[number]
        data[place : place + size] = b"\xee" * size
    found, outcomes = taken(bytes(data), log.base, last=False)
    assert [at for at, _ in found] == [log.places[number][0] for number in (0, 1, 3, 4, 6, 7, 8)]
    assert "Victim:0 queueOffset 3" in outcomes[0].findings[0].outcome
