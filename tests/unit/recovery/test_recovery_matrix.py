"""docs/data/recovery-matrix.md against the code: a damage without a row, or an unexplained cell, fails."""

from __future__ import annotations

from pathlib import Path

from tests.compat.damage import DAMAGES
from tests.compat.jars import VERSIONS
from tests.compat.matrix import BEGIN, END, STOPS, WORDS
from tests.compat.outcome import Outcome
from tests.compat.rocksdb_damage import DAMAGES as ROCKSDB_DAMAGES
from tests.compat.rocksdb_damage import switched_to_rocksdb
from tests.compat.rocksdb_matrix import BEGIN as ROCKSDB_BEGIN
from tests.compat.rocksdb_matrix import END as ROCKSDB_END

DOCUMENT = Path(__file__).parents[3] / "docs" / "data" / "recovery-matrix.md"


def rows(begin: str = BEGIN, end: str = END) -> list[list[str]]:
    text = DOCUMENT.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| `")
    ]


def test_every_damage_has_its_rows_for_every_way_of_stopping_and_every_release() -> None:
    measured = [row for row in rows() if len(row) > 2]
    named = {row[0].strip("`") for row in measured}
    assert named == {damage.__name__ for damage in DAMAGES}
    for name in named:
        stops = [stop for row in measured if row[0] == f"`{name}`" for stop in row[1].split(", ")]
        assert sorted(stops) in (["any"], sorted(STOPS.values())), name
    assert {len(row) for row in measured} == {2 + len(VERSIONS) + 2}
    assert not [row for row in measured if "not run" in row]


def test_every_damage_is_described_as_in_the_code() -> None:
    described = {row[0].strip("`"): row[1] for row in rows() if len(row) == 2}
    assert described == {damage.__name__: " ".join((damage.__doc__ or "").split()) for damage in DAMAGES}


def test_nothing_is_refused_and_each_word_has_its_field() -> None:
    assert not [row for row in rows() for cell in row if "refused" in cell]
    assert set(WORDS) == set(Outcome.__dataclass_fields__) - {"starts", "why"}


def test_every_damage_of_a_rocksdb_has_its_rows_and_is_described_as_in_the_code() -> None:
    found = rows(ROCKSDB_BEGIN, ROCKSDB_END)
    measured, described = [row for row in found if len(row) > 2], [row for row in found if len(row) == 2]
    damages = (*ROCKSDB_DAMAGES, switched_to_rocksdb)
    assert dict(described) == {f"`{one.__name__}`": " ".join((one.__doc__ or "").split()) for one in damages}
    for name, _ in described:
        stops = [stop for row in measured if row[0] == name for stop in row[1].split(", ")]
        assert sorted(set(stops) - {"killed"}) == ["crashed", "stopped"], name
        assert len(stops) == len(set(stops)), name
    assert {len(row) for row in measured} == {2 + 2 + 1}
