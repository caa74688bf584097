"""The geometry of the page's drawings: numbers only, which templates put into SVG.

Drawings have no text: they stretch with the page, and what there is to read stands beside them in HTML.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from reput.report import numbers
from reput.report.facts import CORRUPT, EXPIRED, MISSING, LogFacts, Sizes, Traffic
from reput.report.language import said
from reput.words import counted

#: Units across and, of charts, down.
WIDE, HIGH = 1000.0, 200.0
#: Across, for what isn't drawn to scale: an expired head.
_STUB = 50.0
#: A gap takes at most this share of the map.
_MOST_GAP = 0.1
#: Across, of what would be too thin to be seen.
_LEAST_MARK = 5.0
#: Boxes of one map, and findings that are marked in it one by one.
_MOST_BOXES = 1500


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of a map."""

    kind: str  # of :class:`reput.report.facts.Stretch`
    x: float  # x, width: across
    width: float
    title: str  # what it stands for


@dataclass(frozen=True, slots=True)
class Bar:
    """How far something goes."""

    name: str  # name, note: what
    note: str
    x: float | None  # where it ends; None where that isn't known
    start: float  # where the log begins
    value: str  # value, time: for people
    time: str
    is_point: bool  # it is a place, not a stretch from the log's start on
    past: bool = False  # it lies past the log's end, and what is drawn ends there


@dataclass(frozen=True, slots=True)
class LogMap:
    """The map of a log."""

    boxes: tuple[Box, ...]  # from left to right; damage comes last, above the others
    ticks: tuple[tuple[float, str], ...]  # (percent from the left, label)
    bars: tuple[Bar, ...]  # how far checkpoint, queues and index go
    kinds: tuple[str, ...]  # of the boxes, in the order of a legend
    to_scale: bool  # nothing but an expired head or a gap is out of scale


class _Scale:
    """From physical offsets to places across."""

    def __init__(self, log: LogFacts) -> None:
        stretches = log.stretches
        solid = sum(one.end - one.start for one in stretches if one.kind not in (EXPIRED, MISSING))
        lengths = []
        for one in stretches:
            length = float(one.end - one.start)
            if one.kind == MISSING:
                length = min(length, _MOST_GAP * max(solid, 1))
            lengths.append(0.0 if one.kind == EXPIRED else length)
        self.to_scale = all(
            one.kind != MISSING or length == one.end - one.start
            for one, length in zip(stretches, lengths, strict=True)
        )
        left = _STUB if any(one.kind == EXPIRED for one in stretches) else 0.0
        per_byte = (WIDE - left) / max(sum(lengths), 1.0)
        self.pieces: list[tuple[int, int, float, float]] = []
        x = 0.0
        for one, length in zip(stretches, lengths, strict=True):
            wide = _STUB if one.kind == EXPIRED else length * per_byte
            self.pieces.append((one.start, one.end, x, x + wide))
            x += wide

    def x(self, offset: int) -> float:
        number = bisect_right(self.pieces, offset, key=lambda piece: piece[0]) - 1
        if number < 0:
            return 0.0
        start, end, low, high = self.pieces[number]
        share = min((offset - start) / (end - start), 1.0) if end > start else 1.0
        return low + share * (high - low)


def log_map(log: LogFacts, past: frozenset[str] = frozenset()) -> LogMap:
    """Lay a log out from left to right.

    ``past``: names of reaches that lead past the log's end.
    """
    scale = _Scale(log)
    boxes: list[Box] = []
    marks: list[Box] = []
    thin = WIDE / _MOST_BOXES
    for one, (_start, _end, low, high) in zip(log.stretches, scale.pieces, strict=True):
        title = said(f"{one.kind}: {one.start:,} to {one.end:,}, {numbers.size(one.end - one.start)}")
        if one.note:
            title += f": {said(one.note)}"
        into = marks if one.kind == CORRUPT else boxes
        wide = max(high - low, _LEAST_MARK if one.kind == CORRUPT else 0.0)
        box = Box(one.kind, min(low, WIDE - wide), wide, title)
        last = into[-1] if into else None
        reach = box.x if one.kind == CORRUPT else box.x + wide
        if last is not None and last.kind == box.kind and reach - last.x < thin:
            several = said("several, too thin to be told apart")
            into[-1] = Box(last.kind, last.x, box.x + wide - last.x, several)
        else:
            into.append(box)
    begin = scale.x(log.start)
    bars = tuple(
        Bar(
            name=one.name,
            note=one.note,
            x=None if one.offset is None else scale.x(one.offset),
            start=begin,
            value="" if one.offset is None else f"{one.offset:,}",
            time=numbers.moment(one.time_ms),
            is_point=one.name == "next start",
            past=one.name in past,
        )
        for one in log.reaches
    )
    kinds = tuple(dict.fromkeys(box.kind for box in (*boxes, *marks)))
    return LogMap((*boxes, *marks), tuple(_log_ticks(log, scale)), bars, kinds, scale.to_scale)


def _log_ticks(log: LogFacts, scale: _Scale) -> list[tuple[float, str]]:
    ticks = [(scale.x(log.start) / WIDE * 100, numbers.size(log.start) if log.start else "0")]
    end = scale.x(log.end) / WIDE * 100
    if end - ticks[0][0] > 12:
        ticks.append((end, said(f"end {numbers.size(log.end)}")))
    return ticks


@dataclass(frozen=True, slots=True)
class Layer:
    """One topic of a stacked chart."""

    name: str  # the topic's, or what the others are called
    colour: int  # number of its colour; the last one is that of the others
    path: str  # what to draw
    total: str  # of it, for people


@dataclass(frozen=True, slots=True)
class Slice:
    """One bucket of a chart."""

    x: float  # x, width: across
    width: float
    title: str  # what is in it


@dataclass(frozen=True, slots=True)
class Chart:
    """A stacked chart over time."""

    layers: tuple[Layer, ...]  # from the bottom up
    slices: tuple[Slice, ...]  # the buckets
    y_ticks: tuple[tuple[float, str], ...]  # y_ticks, x_ticks: (percent from below or from the left, label)
    x_ticks: tuple[tuple[float, str], ...]
    x_few: tuple[tuple[float, str], ...]  # as ``x_ticks``, for a narrow page
    unit: str  # of the vertical axis
    summary: str  # what it shows, in a sentence


OTHERS_COLOUR = 7


def traffic_chart(traffic: Traffic, *, what: str) -> Chart:
    """Stack the topics of each bucket.

    ``what``: "messages" or "bytes".
    """
    binary = what == "bytes"
    shown = numbers.size if binary else numbers.number
    values = [list(getattr(one, what)) for one in traffic.series]
    totals = [sum(column) for column in zip(*values, strict=True)]
    ticks = numbers.value_ticks(max(totals), binary=binary)
    top = ticks[-1]
    others = said(counted(traffic.topics_in_others, "other topic"))
    layers = [
        Layer(
            name=others if one.topic is None else one.topic,
            colour=OTHERS_COLOUR if one.topic is None else min(number, OTHERS_COLOUR),
            path=path,
            total=shown(sum(column)),
        )
        for number, (one, column, path) in enumerate(
            zip(traffic.series, values, _stacked(values, top), strict=True)
        )
    ]
    wide = WIDE / len(totals)
    slices = []
    for bucket, total in enumerate(totals):
        held = shown(total) if binary else said(f"{shown(total)} messages")
        title = f"{numbers.moment(traffic.start_ms + bucket * traffic.width_ms)}: {held}"
        slices.append(Slice(bucket * wide, wide, title))
    end = traffic.start_ms + len(totals) * traffic.width_ms
    busiest = max(range(len(totals)), key=totals.__getitem__)
    per = numbers.width(traffic.width_ms)
    summary = said(
        f"{shown(sum(totals))}{'' if binary else ' messages'} in {numbers.span(end - traffic.start_ms)}, "
        f"{numbers.moment(traffic.start_ms)} to {numbers.moment(end)} {numbers.zone_name()}; most in one "
        f"bar: {shown(totals[busiest])} at {numbers.moment(traffic.start_ms + busiest * traffic.width_ms)}."
    )
    return Chart(
        layers=tuple(layers),
        slices=tuple(slices),
        y_ticks=tuple(
            (tick / top * 100, (numbers.short_size(tick) if binary else numbers.short(tick)) if tick else "0")
            for tick in ticks
        ),
        x_ticks=_time_axis(traffic.start_ms, end, 6),
        x_few=_time_axis(traffic.start_ms, end, 2),
        unit=said(f"bytes per {per}" if binary else f"messages per {per}"),
        summary=summary,
    )


def _stacked(values: Sequence[Sequence[int]], top: float) -> list[str]:
    """Paths of layers, one on the other.

    ``values``: of each layer, one for each bucket; at least one layer. ``top``: value at the upper edge.
    """
    wide = WIDE / len(values[0])
    gap = min(wide * 0.15, 1.0)
    floors = [0.0] * len(values[0])
    paths = []
    for column in values:
        bars = []
        for bucket, value in enumerate(column):
            if value:
                high = value / top * HIGH
                y = HIGH - floors[bucket] - high
                bars.append(
                    f"M{_n(bucket * wide + gap / 2)} {_n(y)}h{_n(wide - gap)}v{_n(high)}h{_n(gap - wide)}z"
                )
                floors[bucket] += high
        paths.append("".join(bars))
    return paths


def _time_axis(start: int, end: int, wanted: int) -> tuple[tuple[float, str], ...]:
    ticks = numbers.time_ticks(start, end, wanted)
    return tuple(((ms - start) / (end - start) * 100, label) for ms, label in ticks)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram."""

    #: (percent from the left, percent of the height, percent across, title)
    bars: tuple[tuple[float, float, float, str], ...]
    labels: tuple[tuple[float, str], ...]  # (percent from the left, text) below the borders of the bars
    y_ticks: tuple[tuple[float, str], ...]  # (percent from below, label)
    marks: tuple[tuple[float, str, str], ...]  # (percent from the left, name, value), such as the median


def size_histogram(sizes: Sizes) -> Histogram:
    """Bars of octaves, on an axis of logarithms."""
    ticks = numbers.value_ticks(max(sizes.counts))
    wide = 100 / len(sizes.counts)
    total = sum(sizes.counts)
    bars = [
        (
            number * wide,
            value / ticks[-1] * 100,
            wide,
            said(f"{numbers.size(low)} to {numbers.size(high)}: {value:,} messages, {value / total:.1%}"),
        )
        for number, (value, low, high) in enumerate(
            zip(sizes.counts, sizes.bounds, sizes.bounds[1:], strict=False)
        )
    ]
    named = (("median", sizes.p50), ("90 %", sizes.p90), ("99 %", sizes.p99))
    return Histogram(
        bars=tuple(bars),
        labels=tuple((number * wide, numbers.short_size(bound)) for number, bound in enumerate(sizes.bounds)),
        y_ticks=tuple((tick / ticks[-1] * 100, numbers.short(tick) if tick else "0") for tick in ticks),
        marks=tuple((_log_place(sizes.bounds, value), name, numbers.size(value)) for name, value in named),
    )


def _log_place(bounds: Sequence[int], value: int) -> float:
    """Where a size stands, percent; each octave takes as much room."""
    number = max(bisect_right(bounds, value) - 1, 0)
    if number >= len(bounds) - 1:
        return 100.0
    low, high = bounds[number], bounds[number + 1]
    return (number + (value - low) / (high - low)) / (len(bounds) - 1) * 100


def _n(value: float) -> str:
    """A number with at most one decimal."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")
