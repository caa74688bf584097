"""What a start of the tail makes of a log that was cut while none ran, and of one whose clock was set back.

A broker that cuts its log erases nothing: old messages stay behind the new ones until they are overwritten.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reput.errors import OutputError
from reput.format import commitlog, names
from reput.job.tail import _step_back
from reput.log.segments import discover
from reput.output import journal as journals
from reput.output import log_changes
from reput.output.journal import Journal
from reput.output.log_changes import last_standing
from reput.output.writer import BatchWriter
from reput.replay import state as states
from tests.laid_out import Damage, Log, Spec, lay_out, specs, store_of
from tests.levels import examples
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


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals keep three batches."""
    monkeypatch.setattr(journals, "KEEP_BATCHES", 3)
    monkeypatch.setattr(journals, "KEEP_SECONDS", 0)
    monkeypatch.setattr(journals, "_WORTH_IT", -(1 << 20))


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


def cut(store: Store, log: Log, number: int, *, base: int = 0, shorter: int = 0) -> None:
    """Have one message written in the place of another one; what is left of it and old ones are behind it."""
    start, end = log.starts[number], log.starts[number + 1]
    record = commitlog.decode(store.log.segments[-1].path.read_bytes(), start - base)
    new = commitlog.encode(
        replace(
            record,
            store_timestamp=record.store_timestamp + LATER,
            body=b"new".ljust(len(record.body) - shorter, b"."),
            body_crc=None,
        )
    )
    assert len(new) == end - start - shorter
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


#: Twenty messages, and which of them are damaged.
LONGER, DAMAGED = [Spec(body=40, later=100)] * 20, (2, 8, 14, 16, 18)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state keeps the two newest findings as they are, and joins older ones."""
    monkeypatch.setattr(states, "MAX_FINDINGS", 4)


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("number", [4, 6, 9, 10, 12], ids=str)
@pytest.mark.parametrize("shorter", [0, 8, 30], ids=["a whole one", "less", "far less"])
def test_a_cut_between_two_of_many_damages(place: Path, number: int, shorter: int) -> None:
    """Their findings became one, whose range holds messages as well."""
    log = laid(LONGER)
    store = store_of(place / "store", log, "5.5.0")
    change(store, *((log.starts[at], b"\xff" * 8) for at in DAMAGED))
    followed(store, place / "out", [*log.starts[3::2], log.end])
    assert not restarted(store, place / "out"), "the damage is known"
    cut(store, log, number, shorter=shorter)
    assert restarted(store, place / "out")
    with Journal.open(place / "out" / names.REPUT / names.JOURNAL) as journal:
        assert journal.state.last_position < log.starts[number]
    check_as_anew(store, place / "out")


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


@pytest.mark.parametrize("follows", [True, False], ids=["of a tail", "of a rebuild"])
def test_a_cut_in_the_first_batch(place: Path, follows: bool) -> None:
    """The last message shows that it is the same log: nothing of it is refused, and all is placed anew."""
    log = laid(PLAIN)
    store = store_of(place / "store", log, "5.5.0")
    if follows:
        followed(store, place / "out", [log.end])
    else:
        rebuild_locally(store, place / "out")
    assert not restarted(store, place / "out")
    cut(store, log, 4)
    assert restarted(store, place / "out")
    check_as_anew(store, place / "out")


@pytest.mark.usefixtures("short")
def test_a_cut_before_all_batches_that_are_kept(place: Path) -> None:
    log = laid(PLAIN)
    store = store_of(place / "store", log, "5.5.0")
    followed(store, place / "out", [*log.starts[1:], log.end])
    with Journal.open(place / "out" / names.REPUT / names.JOURNAL) as journal:
        assert journal.first_number > 4
    assert not restarted(store, place / "out")
    cut(store, log, 2)
    with pytest.raises(OutputError, match="went back too far"):
        restarted(store, place / "out")


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


def bound(monkeypatch: pytest.MonkeyPatch, of_batch: int, of_state: int) -> None:
    """How many older messages are noted."""
    monkeypatch.setattr(log_changes, "_MOST_IN_BATCH", of_batch)
    monkeypatch.setattr(states, "MAX_OLDER", of_state)


@pytest.mark.parametrize(("of_batch", "of_state"), [(1, 256), (64, 2)], ids=["of a batch", "of a state"])
@pytest.mark.parametrize("batches", [1, 2, 5, 10])
def test_nor_is_one_that_was_set_back_more_often_than_is_noted(
    place: Path, batches: int, of_batch: int, of_state: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, of_batch, of_state)
    log = laid(set_back(1, 2, 3, 4, 7))
    store = store_of(place / "store", log, "5.5.0")
    ends = [*log.starts[1:], log.end]
    followed(store, place / "out", ends[10 // batches - 1 :: 10 // batches])
    with Journal.open(place / "out" / names.REPUT / names.JOURNAL) as journal:
        assert len(journal.state.older) <= of_state
    for _ in range(2):
        assert not restarted(store, place / "out")


@pytest.mark.parametrize(("of_batch", "of_state"), [(1, 256), (64, 2)], ids=["of a batch", "of a state"])
@pytest.mark.parametrize(("number", "shorter"), [(2, 8), (6, 0), (6, 8), (8, 0)])
def test_a_cut_is_seen_there(
    place: Path, number: int, shorter: int, of_batch: int, of_state: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind what wasn't noted, and within it where no record of before begins at the cut."""
    bound(monkeypatch, of_batch, of_state)
    log = laid(set_back(1, 2, 3, 4))
    store = store_of(place / "store", log, "5.5.0")
    followed(store, place / "out", [*log.starts[5::2], log.end])
    cut(store, log, number, shorter=shorter)
    assert restarted(store, place / "out")
    check_as_anew(store, place / "out")


@pytest.mark.usefixtures("short")
def test_nor_is_it_before_the_batches_that_are_kept(place: Path) -> None:
    log = laid(set_back(2))
    store = store_of(place / "store", log, "5.5.0")
    followed(store, place / "out", [*log.starts[1:], log.end])
    assert not restarted(store, place / "out")
    cut(store, log, 1)
    with pytest.raises(OutputError, match="went back too far"):
        restarted(store, place / "out")


@pytest.mark.parametrize("number", [2, 3, 5, 8])
@pytest.mark.parametrize("batches", [1, 2, 5])
def test_a_cut_is_seen_behind_and_right_before_a_clock_that_was_set_back(
    place: Path, number: int, batches: int
) -> None:
    log = laid(set_back(4))
    store = store_of(place / "store", log, "5.5.0")
    ends = [*log.starts[1:], log.end]
    followed(store, place / "out", ends[10 // batches - 1 :: 10 // batches])
    cut(store, log, number)
    assert restarted(store, place / "out")
    check_as_anew(store, place / "out")


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


@settings(max_examples=examples(100), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(specs, min_size=1, max_size=12),
    st.lists(
        st.builds(
            Damage,
            at=st.floats(0, 1),
            length=st.sampled_from([1, 3, 40, 300]),
            byte=st.sampled_from([None, 0, 255]),
        ),
        max_size=5,
    ),
    st.lists(st.integers(1, 4000), max_size=6, unique=True).map(sorted),
    st.sampled_from([2, states.MAX_FINDINGS]),
    st.sampled_from([(64, 256), (1, 256), (64, 1)]),
)
def test_a_log_that_is_as_it_was_is_no_cut(
    log: list[Spec], damages: list[Damage], ends: list[int], most: int, most_older: tuple[int, int]
) -> None:
    """Whatever its clock and its damage, and however much of both is kept."""
    made = lay_out(log, segment_size=1500)
    for damage in damages:
        made.segments = damage.apply(made.segments)
    with scratch() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "MAX_FINDINGS", most)
        bound(patch, *most_older)
        store = store_of(place / "store", made, "5.5.0")
        followed(store, place / "out", [*(end for end in ends if end < store.log.end), store.log.end])
        with Journal.open(place / "out" / names.REPUT / names.JOURNAL) as journal:
            assert journal.state.noted_from >= 0 or not journal.state.batches
            assert last_standing(journal, store.log) == journal.state.batches


@settings(max_examples=examples(100), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(specs, max_size=6),
    st.lists(specs, min_size=1, max_size=8),
    st.lists(specs, min_size=1, max_size=6),
    st.lists(st.integers(1, 4000), max_size=6, unique=True).map(sorted),
    st.booleans(),
)
def test_nothing_stands_that_was_cut(
    kept: list[Spec], gone: list[Spec], new: list[Spec], ends: list[int], alike: bool
) -> None:
    """Whatever follows the new messages; ``alike``: they are as long as the old ones."""
    new = [*gone[: len(new)]] if alike else new
    new[0] = replace(new[0], later=100_000)
    before, after = (lay_out([*kept, *rest], segment_size=1500) for rest in (gone, new))
    base, data = after.segments[-1]
    old = dict(before.segments).get(base, data)
    with scratch() as place:
        store = store_of(place / "store", before, "5.5.0")
        followed(store, place / "out", [*(end for end in ends if end < before.end), before.end])
        shutil.rmtree(store.root)
        segments = [*after.segments[:-1], (base, data[: after.end - base] + old[after.end - base :])]
        store = store_of(place / "store", replace(after, segments=segments), "5.5.0")
        with Journal.open(place / "out" / names.REPUT / names.JOURNAL) as journal:
            number = last_standing(journal, store.log)
            assert number is not None
            assert journal.state_after(number).last_position < before.starts[len(kept)]
