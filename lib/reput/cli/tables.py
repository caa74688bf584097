"""Tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap

from rich.cells import cell_len

from reput.cli.output import inline


def age(ms: int) -> str:
    """``8 ms``, ``12.3 s``, ``4 min``, ``5.6 h``, ``78 d``; 0 ms for what lies in the future."""
    if ms < 1000:
        return f"{max(ms, 0)} ms"
    seconds = ms / 1000
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            value = seconds / unit
            return f"{value:,.1f} {name}" if value < 10 else f"{value:,.0f} {name}"
    return f"{seconds:.1f} s"


def table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[str]) -> Iterator[str]:
    """Lines of a table, each column as wide as what is in it.

    Args:
        names: of the columns.
        rows: texts, in the same order; none can begin another line.
        numbers: the columns that are set to the right.
    """
    tamed = [tuple(map(inline, row)) for row in (names, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*tamed, strict=True)]
    right = [name in set(numbers) for name in names]
    for row in tamed:
        cells = starmap(_cell, zip(row, widths, right, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()


def _cell(text: str, width: int, right: bool) -> str:
    blank = " " * (width - cell_len(text))
    return blank + text if right else text + blank
