"""What a start of the tail makes of a log that was cut while none ran, and of one whose clock was set back.

A broker that cuts its log erases nothing: old messages stay behind the new ones until they are overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reput.format import commitlog, names
from reput.job.tail import _step_back
from reput.log.segments import discover
from reput.output.journal import Journal
from reput.output.writer import BatchWriter
from tests.laid_out import Log, Spec, lay_out, store_of
from tests.local import (
    NoLedger,
    Runner,
    Store,
    kinds,
    open_store,
    opened_output,
    outputs,
    rebuild_locally,
    target_of,
)
from tests.memory import scratch

SEGMENT = 4000
LATER = 60_000
#: Ten messages of one size, a tenth of a second apart.
PLAIN = [Spec(body=40, later=100)] * 10


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as path:
        yield path


def laid(specs: list[Spec]) -> Log:
    return lay_out(specs, segment_size=SEGMENT)


def followed(store: Store, out: Path, ends: list[int]) -> None:
    """Follow the log as a tail does, in batches that end there."""
    out.mkdir(exist_ok=True)
    target = target_of(store, out)
    with opened_output(target, store.log) as journal:
        writer = BatchWriter(target, journal, store.log, Runner(), look=lambda: discover(store.settings))
        writer._ledger = NoLedger()  # type: ignore[assignment]
        writer.begin()
        for number, end in enumerate(ends):
            writer.write_to(end, number)
        writer.finish()
        writer.close()


def restarted(store: Store, out: Path) -> bool:
    """What a start of the tail does first; whether it stepped back."""
    target = target_of(store, out)
    with opened_output(target, store.log) as journal:
        return _step_back(target, journal, store.log)


def count(out: Path) -> int:
    with Journal.open(out / names.REPUT / names.JOURNAL) as journal:
        return journal.state.batches


def change(store: Store, *ranges: tuple[int, bytes]) -> None:
    """Write bytes at physical offsets of the last segment."""
    path = store.log.segments[-1].path
    base = store.log.segments[-1].base
    with path.open("r+b") as file:
        for at, data in ranges:
            file.seek(at - base)
            file.write(data)


def cut(store: Store, log: Log, number: int, *, base: int = 0) -> None:
    """Have one message written in the place of another one; old ones are behind it."""
    start, end = log.starts[number], log.starts[number + 1]
    record = commitlog.decode(store.log.segments[-1].path.read_bytes(), start - base)
    new = commitlog.encode(
        replace(
            record,
            store_timestamp=record.store_timestamp + LATER,
            body=b"new".ljust(len(record.body), b"."),
        )
    )
    assert len(new) == end - start
    change(store, (start, new))


def check_as_anew(store: Store, out: Path) -> None:
    state = rebuild_locally(store, out)
    fresh = rebuild_locally(store, out.parent / "fresh")
    assert outputs(out) == outputs(out.parent / "fresh")
    assert (state.messages, state.cursor) == (fresh.messages, fresh.cursor)


@pytest.mark.parametrize("number", [4, 7, 8], ids=["before", "after", "its last but one"])
def test_a_cut_before_the_end_of_a_batch_with_damage(place: Path, number: int) -> None:
    log = laid(PLAIN)
    store = store_of(place / "store", log, "5.5.0")
    change(store, (log.starts[5], b"\xff" * 8))
    followed(store, place / "out", [log.starts[2], log.starts[4], log.end])
    assert not restarted(store, place / "out"), "the damage is known"
    cut(store, log, number)
    assert restarted(store, place / "out")
    check_as_anew(store, place / "out")


def test_a_cut_before_damage_that_a_later_batch_has(place: Path) -> None:
    log = laid(PLAIN)
    store = store_of(place / "store", log, "5.5.0")
    change(store, (log.starts[6], b"\xff" * 8))
    followed(store, place / "out", [log.starts[2], log.starts[5], log.starts[8], log.end])
    cut(store, log, 3)
    assert restarted(store, place / "out")
    assert count(place / "out") == 2, "the first, and what tells of it"
    check_as_anew(store, place / "out")


def test_a_damaged_message_that_is_whole_but_for_its_crc_is_known(place: Path) -> None:
    """It is passed over as nothing follows it: what stands where it ends is damaged, too."""
    log = laid(PLAIN)
    store = store_of(place / "store", log, "5.5.0")
    change(store, (log.starts[5] + 90, b"\xff"), (log.starts[6], b"\xff" * 8))
    followed(store, place / "out", [log.starts[2], log.starts[8], log.end])
    for _ in range(2):
        assert not restarted(store, place / "out")


def test_a_cut_behind_what_expired_unread(place: Path) -> None:
    log = laid([Spec(body=40, later=100)] * 40)
    store = store_of(place / "store", log, "5.5.0")
    base = log.segments[-1][0]
    assert base
    followed(store, place / "out", [log.starts[2]])
    for segment in store.log.segments[:-1]:
        segment.path.unlink()
    store = open_store(store.root, version="5.5.0")
    followed(store, place / "out", [log.end])
    assert not restarted(store, place / "out")
    cut(store, log, 37, base=base)
    assert restarted(store, place / "out")
    state = rebuild_locally(store, place / "out")
    assert state.cursor == log.end
    assert "log-went-back" in kinds(state.findings)


def set_back(*numbers: int) -> list[Spec]:
    """The broker's clock is set back by an hour before these messages."""
    return [replace(spec, later=-3_600_000) if at in numbers else spec for at, spec in enumerate(PLAIN)]


@pytest.mark.parametrize("batches", [1, 3, 10])
@pytest.mark.parametrize("numbers", [(4,), (4, 7), (1, 2, 3, 9)])
def test_a_clock_that_was_set_back_is_no_cut(place: Path, batches: int, numbers: tuple[int, ...]) -> None:
    log = laid(set_back(*numbers))
    store = store_of(place / "store", log, "5.5.0")
    ends = [*log.starts[1:], log.end]
    followed(store, place / "out", ends[10 // batches - 1 :: 10 // batches])
    for _ in range(2):
        assert not restarted(store, place / "out")


def test_what_a_rebuild_did_not_note_is_doubted_once(place: Path) -> None:
    """As is what earlier releases placed."""
    log = laid(set_back(4))
    store = store_of(place / "store", log, "5.5.0")
    rebuild_locally(store, place / "out", ends=[log.starts[2]])
    assert restarted(store, place / "out")
    followed(store, place / "out", [log.end])
    for _ in range(2):
        assert not restarted(store, place / "out")
    check_as_anew(store, place / "out")
