"""The page of a fleet: a row for each store, what was found, and how it was before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from reput.diagnosis.nightly import REFUSED
from reput.diagnosis.verdict import Sort
from reput.job.many import REFUSED as REFUSED_CODE
from reput.job.many import badness
from reput.newer_python import time_of_iso
from reput.remote import with_urls
from reput.report import numbers
from reput.report.facts import ATTENTION, BROKEN, SOUND
from reput.report.page import ROWS, Tile, filled
from reput.store.places import write_alone
from reput.words import counted

#: A store's facts of one run: a row of the history (:mod:`reput.job.history`).
Row = Mapping[str, Any]

#: The verdicts of ``reput check``, from bad to good: the level of each, and its words for a number of stores.
_VERDICTS = {
    REFUSED: (BROKEN, "not checked"),
    Sort.NO_START: (BROKEN, "that will not start"),
    Sort.UNKNOWN: (ATTENTION, "that can't be told"),
    Sort.MEND: (BROKEN, "to be mended"),
    Sort.START_WITH_LOSS: (ATTENTION, "with losses for good"),
    Sort.START: (SOUND, "sound"),
}
#: Those that reput 1 wrote into a history; all others of it were broken.
_EARLIER = {"sound": SOUND, "nothing-found": ATTENTION}
_ORDER = (SOUND, ATTENTION, BROKEN)
_WIDE, _HIGH, _LEAST, _SLOT = 1000.0, 100.0, 6.0, 60
_RUNS = 60


@dataclass(frozen=True, slots=True)
class Bar:
    """A run in a store's trend; geometry as in :mod:`reput.report.charts`."""

    kind: str
    x: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class StoreRow:
    """A store on the page."""

    row: Row  # its facts
    name: str  # cluster and broker, where they are known
    level: str  # of its verdict
    numbers: list[tuple[str, float | None, str]]  # (label, value, as it is shown) of each column of numbers
    bars: list[Bar]  # its runs
    trend: str  # these in words


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run on the page: time in ms, and as :class:`StoreRow`."""

    time: int
    level: str
    numbers: list[tuple[str, float | None, str]]


def write(path: Path, rows: Sequence[Row], earlier: Sequence[Row], zone: numbers.Zone) -> None:
    """Write the page of a run.

    ``rows``: of the run, one a store. ``earlier``: of runs before, in the order of time.
    """
    write_alone(path, with_urls(render(rows, earlier, zone).decode()).encode())


def render(rows: Sequence[Row], earlier: Sequence[Row], zone: numbers.Zone | None = None) -> bytes:
    """The page, as UTF-8; arguments as for :func:`write`."""
    with numbers.in_zone(numbers.Zone() if zone is None else zone):
        return _rendered(rows, earlier)


def _rendered(rows: Sequence[Row], earlier: Sequence[Row]) -> bytes:
    ordered = sorted(rows, key=lambda row: (-badness(row["exit_code"]), -(row.get("findings") or 0)))
    stores = [_store(row, [one for one in earlier if one["place"] == row["place"]]) for row in ordered]
    findings = [
        (row["place"], one, _ms(one["first_seen"]))
        for row in ordered
        for one in row.get("finding_list") or []
    ]
    level = max((_level(row) for row in rows), key=_ORDER.index, default=SOUND)
    runs: dict[str, list[Row]] = {}
    for row in (*earlier, *rows):
        if row.get("run"):
            runs.setdefault(row["run"], []).append(row)
    return filled(
        "fleet.html.j2",
        {"traffic": None},
        level=level,
        headline=_headline(rows),
        sentences=_sentences(rows),
        made_at=max((_ms(row["time"]) or 0 for row in rows), default=0),
        run=next((row["run"] for row in rows if row.get("run")), None),
        tiles=_tiles(rows),
        stores=stores,
        findings=findings[:ROWS],
        all_findings=sum(row.get("findings") or 0 for row in rows),
        runs=[_run(found) for found in list(runs.values())[::-1][:_RUNS]],
    )


def _level(row: Row) -> str:
    known = _VERDICTS.get(row["verdict"])
    return _EARLIER.get(row["verdict"], BROKEN) if known is None else known[0]


def _headline(rows: Sequence[Row]) -> str:
    all_ = counted(len(rows), "store")
    number = Counter(row["verdict"] for row in rows if row["exit_code"])
    if not number:
        return f"{all_}: nothing is wrong."
    said = [f"{number[verdict]:,} {words}" for verdict, (_, words) in _VERDICTS.items() if number[verdict]]
    if earlier := sum(count for verdict, count in number.items() if verdict not in _VERDICTS):
        said.append(f"{earlier:,} with findings")
    return f"{all_}: {', '.join(said)}."


def _sentences(rows: Sequence[Row]) -> list[str]:
    skipped = sum(row.get("bytes_skipped") or 0 for row in rows)
    if not skipped:
        return []
    said = (
        f"{numbers.size(skipped)} of sealed segments weren't read again, since they are as they were when "
        "they were compared: by size, inode and times of files on hosts, by the ETag in object stores. "
        "Run with --digest to have all bytes read and compared."
    )
    return [said]


def _tiles(rows: Sequence[Row]) -> list[Tile]:
    def total(key: str) -> int:
        return sum(row.get(key) or 0 for row in rows)

    log = sum((row.get("log_end") or 0) - (row.get("log_start") or 0) for row in rows)
    tiles = [Tile("Commit logs", numbers.size(log), f"{total('messages'):,} messages")]
    broken = sum(bool(row.get("findings")) for row in rows)
    where = f"in {broken:,} of {counted(len(rows), 'store')}"
    tiles.append(Tile("Findings", numbers.number(total("findings")), where))
    if any(row.get("growth") is not None for row in rows):
        tiles.append(Tile("Growth", numbers.size(max(total("growth"), 0)), "since the last run"))
    if any(row.get("lag") is not None for row in rows):
        tiles.append(Tile("Lag", numbers.number(total("lag")), "messages to be read"))
    if any(row.get("bytes_read") is not None for row in rows):
        skipped = numbers.size(total("bytes_skipped"))
        tiles.append(Tile("Read", numbers.size(total("bytes_read")), f"{skipped} left out"))
    return tiles


def _store(row: Row, earlier: Sequence[Row]) -> StoreRow:
    log = None if row.get("log_end") is None else row["log_end"] - row["log_start"]
    name = ", ".join(filter(None, (row.get("broker"), row.get("cluster"))))
    numbers = [
        _number("Findings", row.get("findings")),
        _number("Lag", row.get("lag")),
        _size("Growth", row.get("growth")),
        _size("Log", log),
        _size("Read", row.get("bytes_read")),
        ("Took", row["seconds"], f"{row['seconds']:.1f} s"),
    ]
    runs = [*earlier, row][-_SLOT:]
    return StoreRow(row, name, _level(row), numbers, _bars(runs) if earlier else [], _trend(runs))


def _bars(runs: Sequence[Row]) -> list[Bar]:
    most = max((row.get("growth") or 0 for row in runs), default=0)
    width = _WIDE / len(runs)
    return [
        Bar(
            _level(row),
            number * width,
            width * 0.8,
            max(_HIGH * max(row.get("growth") or 0, 0) / most if most else 0.0, _LEAST),
            f"{numbers.moment(_ms(row['time']) or 0)}: {_said(row)}",
        )
        for number, row in enumerate(runs)
    ]


def _said(row: Row) -> str:
    if row["exit_code"] == REFUSED_CODE:
        return "not checked"
    growth = "" if row.get("growth") is None else f", growth {numbers.size(max(row['growth'], 0))}"
    lag = "" if row.get("lag") is None else f", lag {row['lag']:,}"
    return f"{counted(row.get('findings') or 0, 'finding')}{growth}{lag}"


def _trend(runs: Sequence[Row]) -> str:
    odd = sum(row["exit_code"] > 0 for row in runs)
    return f"{counted(len(runs), 'run')}, {odd:,} of them with findings or not checked"


def _run(rows: Sequence[Row]) -> RunRow:
    def total(key: str) -> int | None:
        known = [row[key] for row in rows if row.get(key) is not None]
        return sum(known) if known else None

    level = max((_level(row) for row in rows), key=_ORDER.index)
    numbers = [
        _number("Stores", len(rows)),
        _number("Findings", total("findings")),
        _number("Lag", total("lag")),
        _size("Growth", total("growth")),
        _size("Read", total("bytes_read")),
    ]
    return RunRow(min(_ms(row["time"]) or 0 for row in rows), level, numbers)


def _number(label: str, value: int | None) -> tuple[str, float | None, str]:
    return label, value, "" if value is None else numbers.number(value)


def _size(label: str, value: int | None) -> tuple[str, float | None, str]:
    if value is None:
        return label, None, ""
    return label, value, f"-{numbers.size(-value)}" if value < 0 else numbers.size(value)


def _ms(moment: datetime | str | None) -> int | None:
    """Ms since 1970."""
    found = time_of_iso(moment) if isinstance(moment, str) else moment
    return None if found is None else int(found.timestamp() * 1000)
