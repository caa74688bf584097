"""A share of what ``make fuzz`` tries: lengths and heads of records by the scan, a few by everything."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import pytest

from reput.cli.dump_lines import Lines
from reput.format import names
from reput.format.commitlog import BLANK_LENGTH, MIN_RECORD_LENGTH
from reput.log import segments
from reput.log.segments import map_segment
from reput.query import QueryStore
from reput.query.log import LogReader
from reput.source import messages
from tests.fuzz.asking import ID, KEY, OFFSET, PLACE, TIME, WrongAnswerError, asked
from tests.fuzz.cases import Cases, FailedCaseError
from tests.fuzz.changes import BIT, CUT, Change, bits, cuts
from tests.fuzz.dumping import WrongDumpError
from tests.fuzz.guarded import guarded, guarded_segments
from tests.fuzz.repairs import RepairError
from tests.fuzz.run import run
from tests.fuzz.scanning import scan_alike
from tests.fuzz.specimen import (
    CHECKPOINT,
    CONFIG,
    DUMPS,
    INDEX,
    LOG,
    ORDERED,
    PARTS,
    QUEUE,
    REPAIRS,
    VERSIONS,
    Specimen,
)
from tests.levels import examples, tried
from tests.memory import scratch
from tests.rebuilds import record_starts

#: Changes of each part that go through everything; of the log they cost most.
_FULL = {LOG: 25, QUEUE: 12, INDEX: 15, CHECKPOINT: 6, CONFIG: 15}
SHARE = {part: examples(full) for part, full in _FULL.items()}


@pytest.fixture(scope="module", params=tried("5.5.0", more=[one for one in VERSIONS if one != "5.5.0"]))
def specimen(request: pytest.FixtureRequest) -> Iterator[Specimen]:
    with scratch() as place:
        yield Specimen.make(request.param, place)


@pytest.fixture(scope="module")
def cases(specimen: Specimen) -> Cases:
    return Cases(specimen)


def heads(specimen: Specimen) -> Iterator[int]:
    """The bytes of a segment up to where each record's body begins, and what closes it."""
    base, data = specimen.segments()[0]
    starts = record_starts(specimen.golden.root, base)
    last = starts[-1] + int.from_bytes(data[starts[-1] : starts[-1] + 4], "big")
    return chain(*(range(at, at + MIN_RECORD_LENGTH) for at in starts), range(last, last + BLANK_LENGTH))


@pytest.mark.slow
def test_kernel_and_twin_see_the_same_and_nothing_past_the_end(specimen: Specimen) -> None:
    file = specimen.of(names.COMMIT_LOG)[0]
    data = specimen.files[file]
    base = int(Path(file).name)
    # Where CRCs make the kernel read most, bits; where it reads the newest forms, every length.
    changes = {
        "4.9.7": cuts(file, len(data)),
        "5.3.3": bits(file, sorted(set(heads(specimen)))),
        "5.5.0": cuts(file, len(data)),
    }[specimen.version]
    for change in islice(changes, 0, None, {"4.9.7": 5, "5.3.3": 5, "5.5.0": 1}[specimen.version]):
        scan_alike(specimen.settings, base, change.apply(data))


@pytest.mark.parametrize("store", tried(ORDERED[0], more=ORDERED[1:]))
@pytest.mark.slow
def test_changed_units_in_log_order_are_told_or_equal(store: str) -> None:
    with scratch() as place:
        specimen = Specimen.make(store, place)
        cases = Cases(specimen)
        told: Counter[str] = Counter()
        for part in specimen.parts:
            for change in specimen.chosen(part, 6, seed=1):
                told += cases.run(part, change)
    assert {"5.3.3-queue-ext": "verify: wrong-ext-unit", "5.3.3-batch-queue": "verify: wrong-unit"}[
        store
    ] in told


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.slow
def test_a_changed_store_is_told_or_equal(cases: Cases, specimen: Specimen, part: str) -> None:
    for change in specimen.chosen(part, SHARE[part], seed=1):
        try:
            cases.run(part, change)
        except AssertionError as error:
            raise AssertionError(f"{change}: {error}") from error


@pytest.mark.parametrize("part", [LOG, QUEUE, INDEX, CHECKPOINT])
def test_a_repair_mends_and_can_be_undone(
    cases: Cases, specimen: Specimen, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(cases, "_only", REPAIRS)
    for change in specimen.chosen(part, 2, seed=3):
        cases.run(part, change)


def test_an_undo_that_leaves_something_is_caught(
    cases: Cases, specimen: Specimen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "_only", REPAIRS)
    monkeypatch.setattr("tests.fuzz.repairs.undo", lambda _root: None)
    change = Change(specimen.of(names.INDEX)[0], CUT, 100)
    with pytest.raises(RepairError, match="was undone, and"):
        cases.run(INDEX, change)
    assert (specimen.place / change.file).read_bytes() == specimen.files[change.file]


def test_every_bit_of_a_checkpoint_page_is_known(specimen: Specimen) -> None:
    (file,) = specimen.of(names.CHECKPOINT)
    assert len(set(specimen.changes(CHECKPOINT))) == 4096 + 48 * 8 + 4096 - 48
    assert Change(file, BIT, 48 * 8) in set(specimen.changes(CHECKPOINT))


# --- the harness itself -------------------------------------------------------------------------------------


def test_a_rebuild_that_says_nothing_of_damage_is_caught(
    cases: Cases, specimen: Specimen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cases, "_rebuild", lambda *_: (set(), cases._sound, 0))
    # The tag of the first message: another tagsCode, which the slow rebuild sees.
    data = specimen.files[specimen.of(names.COMMIT_LOG)[0]]
    change = Change(specimen.of(names.COMMIT_LOG)[0], BIT, (data.index(b"TAGS") + 5) * 8)
    with pytest.raises(FailedCaseError):
        cases.run(LOG, change)


def test_an_answer_of_another_place_is_caught(
    cases: Cases, specimen: Specimen, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = QueryStore(specimen.settings).message_at(0)
    monkeypatch.setattr(LogReader, "message", lambda *_: first)
    with pytest.raises(WrongAnswerError, match="is no answer"):
        asked(specimen.settings, cases._questions)


def test_a_question_whose_files_nobody_touched_has_its_answer(
    cases: Cases, specimen: Specimen, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {name: replace(said, document="") for name, said in cases._answers.items()}
    monkeypatch.setattr(cases, "_answers", others)
    with pytest.raises(FailedCaseError, match="query --offset"):
        cases.run(INDEX, Change(specimen.of(names.INDEX)[0], BIT, 0))


def test_every_kind_of_question_finds_something(cases: Cases) -> None:
    found = {said.kind for said in cases._answers.values() if said.how == "found"}
    assert found == {OFFSET, ID, KEY, PLACE, TIME}


def test_a_dump_that_keeps_damage_to_itself_or_shows_other_files_is_caught(
    cases: Cases, specimen: Specimen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "_only", DUMPS)
    change = Change(specimen.of(names.INDEX)[0], CUT, 100)
    assert cases.run(INDEX, change)["dump commitlog: equal"] == 1
    others = {what: replace(shown, text="") for what, shown in cases._shown.items()}
    with monkeypatch.context() as patched:
        patched.setattr(cases, "_shown", others)
        with pytest.raises(FailedCaseError, match="dump commitlog: another answer"):
            cases.run(INDEX, change)
    monkeypatch.setattr(Lines, "show", lambda lines, event, text: lines.put(json.dumps(event.to_dict())))
    with pytest.raises(WrongDumpError, match="exit codes 0 and 0"):
        cases.run(INDEX, change)


def test_a_change_is_taken_back(cases: Cases, specimen: Specimen) -> None:
    file = specimen.of(names.INDEX)[0]
    cases.run(INDEX, Change(file, CUT, 100))
    assert (specimen.place / file).read_bytes() == specimen.files[file]


def read_past(at_end: bool) -> None:
    from numba import njit

    from reput.scan.load import u8

    faulthandler.disable()
    data = guarded(b"x" * 10, at_end=at_end)
    njit(lambda array, at: u8(array, at) + 0)(data, 10 if at_end else -1)


@pytest.mark.parametrize("at_end", [True, False])
def test_a_read_past_either_end_of_guarded_memory_is_a_crash(at_end: bool) -> None:
    process = multiprocessing.get_context("fork").Process(target=read_past, args=(at_end,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGSEGV


def test_all_that_reads_a_segment_gets_guarded_memory(specimen: Specimen) -> None:
    path = specimen.place / specimen.of(names.COMMIT_LOG)[0]
    with guarded_segments(at_end=True):
        found = messages.__dict__["open_segment"](path, 100).data
        assert found.ctypes.data % os.sysconf("SC_PAGESIZE") == os.sysconf("SC_PAGESIZE") - 100
    assert segments.map_segment is map_segment
    assert found.tobytes() == path.read_bytes()[:100]


@pytest.mark.slow
def test_cases_run_in_processes_of_their_own() -> None:
    with scratch() as place:
        chosen = Specimen.make("4.9.7", place).chosen(QUEUE, 4, seed=2)
    result = run("4.9.7", [(QUEUE, change) for change in chosen], processes=2)
    assert (result.cases[QUEUE], result.failures) == (4, [])
    assert sum(count for (part, _), count in result.told.items() if part == QUEUE) >= 8
