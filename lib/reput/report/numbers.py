"""Numbers, sizes, times and ticks of axes, as a page shows them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from reput.newer_python import UTC
from reput.report.language import CHINESE, ENGLISH, current, said
from reput.words import counted

_STEP = 1024
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_SPANS = ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute"), (_SECOND, "second"), (1, "millisecond"))
_SHORT = {
    ENGLISH: ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")),
    CHINESE: ((1e12, "万亿"), (1e8, "亿"), (1e4, "万")),
}
#: Distances of ticks on an axis of time, ms.
_TICKS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500,
    *(number * _SECOND for number in (1, 2, 5, 10, 15, 30)),
    *(number * _MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * _HOUR for number in (1, 2, 3, 6, 12)),
    *(number * _DAY for number in (1, 2, 7, 14, 28, 56, 168, 364, 728, 1456)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Zone:
    """The zone of a page's times."""

    info: tzinfo | None = UTC  # None for the machine's own
    name: str = "UTC"  # what the page calls it


_zone: ContextVar[Zone] = ContextVar("_zone", default=Zone())  # noqa: B039 - it is frozen


@contextmanager
def in_zone(zone: Zone) -> Iterator[None]:
    """Show times in this zone."""
    before = _zone.set(zone)
    try:
        yield
    finally:
        _zone.reset(before)


def zone_name() -> str:
    """What the zone is called that times are shown in."""
    return _zone.get().name


def number(value: float) -> str:
    """``1,234``."""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes for people, with three figures: ``474 KiB``, ``3.81 GiB``; ``4 MiB`` where that is exact."""
    unit = 0
    scaled = float(value)
    while scaled >= _STEP and unit + 1 < len(_BYTES):
        scaled /= _STEP
        unit += 1
    if not unit or scaled.is_integer():
        return f"{scaled:,.0f} {_BYTES[unit]}"
    figures = 2 if scaled < 10 else 1 if scaled < 100 else 0
    return f"{scaled:,.{figures}f} {_BYTES[unit]}"


def short_size(value: float) -> str:
    """Bytes on an axis: ``0.5 MiB``, ``20 MiB``, in the unit of the whole axis."""
    text = size(value)
    figures, unit = text.split(" ")
    return f"{figures.rstrip('0').rstrip('.') if '.' in figures else figures} {unit}"


def short(value: float) -> str:
    """A number on an axis: ``250``, ``1.5 k``, ``20 M``; in Chinese by ten thousands."""
    for power, unit in _SHORT[current()]:
        if value >= power:
            return f"{_figures(value / power)} {unit}"
    return _figures(value)


def _figures(value: float) -> str:
    return number(value) if value >= 1000 else f"{value:.3g}"


def when(ms: int | None, zone: Zone | None = None) -> datetime | None:
    """A time in the page's zone, or another one; None where a calendar has none."""
    if ms is None:
        return None
    shown = _zone.get() if zone is None else zone
    try:
        found = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
        return found.astimezone(shown.info)
    except (OverflowError, ValueError, OSError):
        return None


def moment(ms: int | None) -> str:
    """A time to the second, ``2026-11-22 02:53:11``; as it is where a calendar has none."""
    found = when(ms)
    if found is None:
        return "" if ms is None else f"{ms} ms"
    return f"{found:%Y-%m-%d %H:%M:%S}"


def moment_fine(ms: int | None) -> str:
    """A moment to the millisecond, to the second where that is 0."""
    found = when(ms)
    fine = 0 if found is None else found.microsecond // 1000
    return f"{moment(ms)}.{fine:03d}" if fine else moment(ms)


def iso(ms: int | None) -> str:
    """A time for machines, in UTC; empty if missing."""
    found = when(ms, Zone())
    return "" if found is None else f"{found:%Y-%m-%dT%H:%M:%S}.{found.microsecond // 1000:03d}Z"


def span(ms: float) -> str:
    """A length of time in two units at most: ``3 days 4 hours``, ``12 seconds``, ``80 milliseconds``."""
    rest = int(ms)
    words: list[str] = []
    for length, name in _SPANS:
        count, rest = divmod(rest, length)
        if count or (length == 1 and not words):
            if length == 1 and words:
                break
            words.append(said(counted(count, name)))
        if len(words) == 2 or (words and not count):
            break
    return " ".join(words)


def width(ms: int) -> str:
    """Of a bucket, for "per …": ``10 minutes``, ``hour``."""
    text = span(ms)
    return text.removeprefix("1 ") if text.startswith("1 ") and text.count(" ") == 1 else text


def value_ticks(most: float, *, binary: bool = False, wanted: int = 4) -> list[float]:
    """Round values from 0 to one that is at least ``most``, some ``wanted`` of them.

    ``binary``: round in units of 1,024.
    """
    if most <= 0:
        return [0.0, 1.0]
    unit = 1.0
    if binary:
        unit = float(_STEP ** min(int(math.log(max(most, 1), _STEP)), len(_BYTES) - 1))
    scaled = most / unit
    rough = scaled / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    if not binary or unit == 1.0:
        step = max(step, 1.0)
    count = math.ceil(scaled / step - 1e-9)
    return [step * number * unit for number in range(count + 1)]


def _ahead_of_utc(ms: int) -> int:
    """By how many ms the zone's clocks are ahead of UTC at a time."""
    found = when(ms)
    offset = None if found is None else found.utcoffset()
    return 0 if offset is None else int(offset.total_seconds() * 1000)


def _day(found: datetime, *, year: bool = False) -> str:
    if current() == CHINESE:
        return f"{found.year}年{found.month}月{found.day}日" if year else f"{found.month}月{found.day}日"
    return f"{found:%b %-d, %Y}" if year else f"{found:%b %-d}"


def time_ticks(start: int, end: int, wanted: int = 6) -> list[tuple[int, str]]:
    """Round times within [start, end] with their labels, some ``wanted`` of them at most.

    A label has what the one before it doesn't say: the date where the day changes, seconds where they matter.
    """
    step = next((step for step in _TICKS if (end - start) / step <= wanted), _TICKS[-1])
    ticks = []
    day = None
    ahead = _ahead_of_utc(start)
    for ms in range(-(-(start + ahead) // step) * step - ahead, end + 1, step):
        found = when(ms)
        if found is None:
            continue
        if step >= _DAY:
            label = _day(found, year=day is None or day.year != found.year)
        elif step >= _MINUTE:
            label = f"{found:%H:%M}"
        elif step >= _SECOND:
            label = f"{found:%H:%M:%S}"
        else:
            label = f"{found:%H:%M:%S}.{found.microsecond // 1000:03d}"
        if step < _DAY and (day is None or day.date() != found.date()):
            label = f"{_day(found)} {label}"
        ticks.append((ms, label))
        day = found
    return ticks
