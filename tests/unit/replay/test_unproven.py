"""Records that nothing proves give way to proven ones, in one batch and over many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reput.build.placement import giving_way
from reput.format import commitlog
from reput.format.commitlog import Record
from tests.hostile import NOW, fake
from tests.local import Store, in_log_order, kinds, outputs, rebuild_locally, units, write_store
from tests.memory import scratch

EVIL = b"\x04Evil\x00\x07KEYS\x01k\x02"  # what stands behind a hostile body
ORDERS = {
    "the next ones": [5, 6],
    "the next ones and more": [5, 6, 7, 8, 9, 10, 11],
    "to come": [80],
    "to come, twice": [7, 9],
    "of the past": [2],
    "a topic created anew": [0, 1],
    "anew and far": [0, 1, 2, 80, 5],
}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with scratch() as place:
        yield place


def honest(number: int, place: int) -> bytes:
    record = Record(b"Victim", b"honest", b"KEYS\x01k\x02", queue_offset=number, store_timestamp=NOW + number)
    return commitlog.encode(replace(record, physical_offset=place))


def attacked(root: Path, forged: list[int], *, batch: bool = False) -> tuple[Store, list[int], list[int]]:
    """Ten honest messages; amid them one with a chain of records that ends where it ends, its head gone.

    Returns:
        The store; where the honest messages lie; where the forged ones do.
    """
    data, places, fakes = bytearray(), [], []
    for number in range(10):
        if number == 5:
            start = len(data)
            body = bytearray()
            for at, queue_offset in enumerate(forged):
                place = start + 88 + len(body)
                fakes.append(place)
                one = fake(place, queue_offset=queue_offset)
                if at == len(forged) - 1:
                    one = fake_with_end(place, queue_offset)
                body += one
            whole = commitlog.encode(
                Record(b"Evil", bytes(body), b"KEYS\x01k\x02", physical_offset=start, store_timestamp=NOW + 5)
            )
            assert whole.endswith(bytes(body) + EVIL)
            data += bytes(88) + whole[88:]
        places.append(len(data))
        data += honest(number, len(data))
    return write_store(root, [(0, bytes(data) + bytes(1000))]), places, fakes


def fake_with_end(place: int, queue_offset: int) -> bytes:
    """A forged record whose properties go on to the hostile record's end."""
    record = Record(
        b"Victim",
        b"forged",
        b"KEYS\x01" + EVIL,
        queue_offset=queue_offset,
        physical_offset=place,
        store_timestamp=NOW + 10_000,
    )
    whole = commitlog.encode(record)
    assert whole.endswith(EVIL)
    return whole[: -len(EVIL)]


@pytest.mark.parametrize("ext", [False, True], ids=["plain", "consumequeue_ext"])
@pytest.mark.parametrize("forged", ORDERS.values(), ids=ORDERS)
def test_no_forged_record_has_a_queue_offset_that_a_proven_one_has(
    tmp_path: Path, forged: list[int], ext: bool
) -> None:
    store, places, fakes = attacked(tmp_path / "store", forged)
    if ext:
        store = in_log_order(store)
    ends = {"one batch": [], "behind each record": [*places[1:], places[-1] + 120]}
    ends |= {
        f"at {at}": [at] for at in (places[5] - 1, places[5], places[5] + 1, *fakes, places[6], places[9])
    }
    expected = None
    for name, at in ends.items():
        out = tmp_path / f"out {name}"
        state = rebuild_locally(store, out, ends=sorted(at))
        found = [unit[0] for unit in units(out, "Victim")]
        assert found[:10] == places, name
        told = " ".join(str(finding) for finding in state.findings)
        assert all(place in fakes for place in found[10:]), name
        for place in fakes:
            assert f"at {place}" in told, name
        if not ext:  # consumequeue_ext keeps a unit of each message that ever had one
            expected = expected or outputs(out)
            assert {
                path: data for path, data in outputs(out).items() if path.startswith("consumequeue/")
            } == {path: data for path, data in expected.items() if path.startswith("consumequeue/")}, name


def test_what_gave_way_is_told(tmp_path: Path) -> None:
    store, _, fakes = attacked(tmp_path / "store", [5, 80])
    state = rebuild_locally(store, tmp_path / "out")
    assert "unproven-message" in kinds(state.findings)
    finding = next(one for one in state.findings if one.kind == "unproven-message")
    assert (finding.topic, finding.queue_id, finding.count) == ("Victim", 0, 2)
    assert [one.begin for one in state.salvaged if one.topic == "Victim"] == fakes


def test_unproven_rows_stay_only_between_proven_ones() -> None:
    offset = np.array([3, 4, 9, 5, 5, 6, 2, 7], np.int64)
    unproven = np.array([0, 1, 1, 1, 0, 1, 1, 0], bool)
    assert giving_way(offset, unproven).tolist() == [False, True, True, True, False, True, True, False]
    assert giving_way(offset[:2], unproven[:2]).tolist() == [False, False]
    assert giving_way(offset[:2], unproven[:2], 5).tolist() == [False, True]
