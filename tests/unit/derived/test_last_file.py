"""The last file of a consume queue: what is carried over when the log has no message of the queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.derived.last_file import LastFile, last_ext_file, last_file
from reput.errors import OutputError
from reput.format.consumequeue import PRE_BLANK, unit
from reput.format.dtypes import BATCH
from reput.format.names import offset_name
from tests import encoders

SIZE = 100
#: Where the log ends.
END = 10_000
ONE, TWO, THREE = (unit(n * 1000, 200, n) for n in (1, 2, 3))


def write(directory: Path, base: int, *parts: bytes, size: int = SIZE) -> None:
    (directory / offset_name(base)).write_bytes(b"".join(parts).ljust(size, b"\0"))


def found(directory: Path) -> tuple[str, bytes, int, int]:
    last = last_file(directory, SIZE, END, END)
    assert isinstance(last, LastFile), last
    return last.path.name, last.units, last.next_offset, last.last_position


def test_the_last_file_with_a_unit(tmp_path: Path) -> None:
    write(tmp_path, 100, *[ONE] * 5)
    write(tmp_path, 200, TWO, THREE)
    assert found(tmp_path) == (offset_name(200), TWO + THREE, 12, 3000)
    write(tmp_path, 300)
    (tmp_path / "notes.txt").touch()
    assert found(tmp_path) == (offset_name(200), TWO + THREE, 12, 3000), "an empty one says nothing more"


def test_a_full_file(tmp_path: Path) -> None:
    write(tmp_path, 0, ONE, TWO, TWO, TWO, THREE)  # a hole that reput filled repeats its unit
    assert found(tmp_path) == (offset_name(0), ONE + TWO * 3 + THREE, 5, 3000)


def test_blanks_before_the_first_unit(tmp_path: Path) -> None:
    write(tmp_path, 400, PRE_BLANK, PRE_BLANK, ONE)
    assert found(tmp_path) == (offset_name(400), PRE_BLANK * 2 + ONE, 23, 1000)


@pytest.mark.parametrize("end", [3001, 3000, 2001, 2000, 1001])
def test_units_past_the_logs_end_are_left_out(tmp_path: Path, end: int) -> None:
    write(tmp_path, 0, *[ONE] * 5)
    write(tmp_path, 100, TWO, THREE)
    last = last_file(tmp_path, SIZE, end, end)
    assert isinstance(last, LastFile)
    kept = {3001: (100, TWO + THREE, 7), 3000: (100, TWO, 6)}
    kept[2001], kept[2000], kept[1001] = kept[3000], (0, ONE * 5, 5), (0, ONE * 5, 5)
    assert (int(last.path.name), last.units, last.next_offset) == kept[end]


def test_a_queue_that_leads_past_the_logs_end_alone(tmp_path: Path) -> None:
    write(tmp_path, 0, *[ONE] * 5)
    write(tmp_path, 100, unit((1 << 63) - 1, 200, 7))
    assert (
        last_file(tmp_path, SIZE, 1000, 1000)
        == "all its units (6) lead behind 1000, where the log begins, and the log has no message of it"
    )


def test_blanks_before_units_past_the_logs_end_stay(tmp_path: Path) -> None:
    write(tmp_path, 0, PRE_BLANK * 3, ONE)
    last = last_file(tmp_path, SIZE, 1000, 1000)
    assert isinstance(last, LastFile)
    # A broker that ends with a blank puts no unit behind it: tests/compat/test_lost_end.py.
    assert (last.units, last.next_offset, last.last_position) == (PRE_BLANK * 2 + unit(0, 1, 0), 3, -1)


@pytest.mark.parametrize(
    ("start", "units"),
    [
        (2500, ONE + TWO + TWO + TWO),  # the third leads into the log
        (1500, ONE * 4),
        (500, unit(0, 1, 0) * 4),
        (0, b""),  # nothing leads before such a log, and consumers would get what stands at 0
    ],
)
def test_places_of_units_that_lead_into_the_log_are_kept(tmp_path: Path, start: int, units: bytes) -> None:
    write(tmp_path, 0, ONE, TWO, THREE, THREE, unit(9000, 200, 7))
    last = last_file(tmp_path, SIZE, start, 9000)
    if not units:
        assert isinstance(last, str)
        return
    assert isinstance(last, LastFile)
    assert (last.units, last.next_offset) == (units, 4)
    assert last.left_out == {2500: 3000, 1500: 2000, 500: 1000}[start]


def test_places_behind_blanks_are_kept(tmp_path: Path) -> None:
    write(tmp_path, 0, PRE_BLANK, ONE, TWO)
    last = last_file(tmp_path, SIZE, 500, END)
    assert isinstance(last, LastFile)
    assert (last.units, last.next_offset) == (PRE_BLANK + unit(0, 1, 0) * 2, 3)


def test_places_of_a_batch_queue_are_kept(tmp_path: Path) -> None:
    write(tmp_path, 0, B_ONE, B_TWO, size=92)
    last = last_file(tmp_path, 92, 1100, END, form=BATCH)
    assert isinstance(last, LastFile)
    assert (last.next_offset, last.last_position, last.left_out) == (40, 1000, 1200)
    assert last.units == B_ONE + encoders.batch_unit(1000, 200, 7, 2, base_offset=34, batch_size=6)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([PRE_BLANK], "doesn't begin with units"),
        ([bytes(20), ONE], "doesn't begin with units"),
        ([unit(-5, 100, 0)], "doesn't begin with units"),
        ([b"\xff" * SIZE], "doesn't begin with units"),
        ([TWO, ONE], "aren't in the log's order"),
    ],
)
def test_what_is_no_sane_file(tmp_path: Path, parts: list[bytes], reason: str) -> None:
    write(tmp_path, 0, ONE)
    write(tmp_path, 100, *parts)
    problem = last_file(tmp_path, SIZE, END, END)
    assert isinstance(problem, str)
    assert reason in problem


@pytest.mark.parametrize("rest", [[bytes(20), TWO], [unit(2000, 0, 7)], [b"\xff" * 20]])
def test_a_queue_ends_at_its_first_gap(tmp_path: Path, rest: list[bytes]) -> None:
    """As for a start: what lies behind is nothing."""
    write(tmp_path, 100, ONE, *rest)
    last = last_file(tmp_path, SIZE, END, END)
    assert isinstance(last, LastFile)
    assert (last.units, last.next_offset, last.left_out) == (ONE, 6, -1)


def test_what_is_no_file_of_this_queue(tmp_path: Path) -> None:
    assert last_file(tmp_path, SIZE, END, END) == "it has no file with a unit"
    write(tmp_path, 0, ONE, size=80)
    assert last_file(tmp_path, SIZE, END, END) == "its last file has 80 bytes, not 100"
    write(tmp_path, 120, ONE)
    assert last_file(tmp_path, SIZE, END, END) == "its last file's name is no multiple of 100"
    with pytest.raises(OutputError, match="the queue's last file can't be read"):
        last_file(tmp_path / "gone", SIZE, END, END)


B_ONE = encoders.batch_unit(1000, 200, 7, 1, base_offset=30, batch_size=4)
B_TWO = encoders.batch_unit(1200, 200, 7, 2, base_offset=34, batch_size=6)


def test_the_last_file_of_a_batch_queue(tmp_path: Path) -> None:
    write(tmp_path, 0, B_ONE, B_ONE, size=92)
    write(tmp_path, 92, B_ONE, B_TWO, size=92)
    write(tmp_path, 184, size=92)
    last = last_file(tmp_path, 92, END, END, form=BATCH)
    assert isinstance(last, LastFile)
    assert (last.path.name, last.units) == (offset_name(92), B_ONE + B_TWO)
    assert (last.next_offset, last.last_position) == (40, 1200)


def test_units_of_a_batch_queue_past_the_logs_end_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, 0, B_ONE, B_TWO, size=92)
    last = last_file(tmp_path, 92, 1200, 1200, form=BATCH)
    assert isinstance(last, LastFile)
    assert (last.units, last.next_offset) == (B_ONE, 34)
    assert (
        last_file(tmp_path, 92, 1000, 1000, form=BATCH)
        == "all its units (2) lead behind 1000, where the log begins, and the log has no message of it"
    )


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([bytes(46), B_ONE], "doesn't begin with units"),
        ([B_TWO, B_ONE], "aren't in the log's order"),
    ],
)
def test_what_is_no_sane_file_of_a_batch_queue(tmp_path: Path, parts: list[bytes], reason: str) -> None:
    write(tmp_path, 0, *parts, size=92)
    assert reason in str(last_file(tmp_path, 92, END, END, form=BATCH))


def test_the_last_file_in_consumequeue_ext(tmp_path: Path) -> None:
    assert last_ext_file(tmp_path / "none", SIZE) is None
    write(tmp_path, 0, b"records")
    write(tmp_path, 100)
    assert last_ext_file(tmp_path, SIZE) == (tmp_path / offset_name(0), b"records")
