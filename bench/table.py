"""The numbers as text: Markdown that also reads well in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.errors import BenchError
from bench.result import JAVA, Result, times_as_fast
from reput.store.system import human

BEGIN = "<!-- bench: begin -->"
END = "<!-- bench: end -->"

_SHORT = 0.005
"""Stages below this many seconds are left out."""


def render(results: list[Result], messages: int, size: int, machine: dict[str, str]) -> str:
    """Everything that was measured: the log, the table, reput's stages, the machine.

    Args:
        results: the lines.
        messages, size: the log's messages and bytes.
        machine: facts by name.
    """
    runs = max((len(result.seconds) for result in results), default=0)
    said = [
        f"A log of {human(size)} with {messages:,} messages; "
        + ("one run each." if runs == 1 else f"medians of {runs} runs, the fastest and the slowest beside."),
        markdown(
            [
                "",
                "bytes as",
                "cores",
                "seconds",
                "runs",
                "times RocketMQ's",
                "messages/s",
                "MB/s",
                "peak memory",
            ],
            [_line(result, results, messages, size) for result in results],
        ),
    ]
    of_reput = [result for result in results if result.who != JAVA]
    if of_reput:
        said += ["Where reput's seconds went:", _stages(of_reput)]
    said.append(markdown(["", "measured on"], [[name, value] for name, value in machine.items()]))
    return "\n\n".join(said) + "\n"


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; numbers stand on the right."""
    columns = list(zip(header, *lines, strict=True))
    widths = [max(*map(len, column), 2) for column in columns]  # the least that a rule takes
    right = [all(cell[:1].isdigit() or not cell for cell in column[1:]) for column in columns]
    rule = [
        "-" * (width - 1) + ":" if on_right else "-" * width
        for width, on_right in zip(widths, right, strict=True)
    ]
    return "\n".join(
        "| "
        + " | ".join(
            cell.rjust(width) if on_right else cell.ljust(width)
            for cell, width, on_right in zip(line, widths, right, strict=True)
        )
        + " |"
        for line in (header, rule, *lines)
    )


def check(path: Path) -> None:
    """Look whether :func:`write` will find its markers.

    Raises:
        BenchError: the document doesn't have both.
    """
    _around(path)


def write(path: Path, text: str) -> None:
    """Put the text between the two markers of a document, in place of what stood there.

    Raises:
        BenchError: the document doesn't have both.
    """
    before, after = _around(path)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def _around(path: Path) -> tuple[str, str]:
    """What stands before and behind the markers."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"{path} lacks the lines {BEGIN} and {END}: between them the numbers go")
    return before, after


def _line(result: Result, results: list[Result], messages: int, size: int) -> list[str]:
    seconds = result.median_seconds
    ratio = times_as_fast(result, results)
    spread = f"{min(result.seconds):.2f} to {max(result.seconds):.2f}" if len(result.seconds) > 1 else ""
    return [
        result.who,
        result.version,
        str(result.cores),
        f"{seconds:.2f}",
        spread,
        "" if ratio is None else f"{ratio:.2f}",
        f"{messages / seconds:,.0f}",
        f"{size / seconds / 1e6:,.0f}",
        human(result.median_peak_bytes),
    ]


def _stages(results: list[Result]) -> str:
    stages = [result.median_stages for result in results]
    names = [
        name
        for name in dict.fromkeys(name for run in stages for name in run)
        if any(run.get(name, 0.0) >= _SHORT for run in stages)
    ]
    return markdown(
        ["", "bytes as", "cores", *names],
        [
            [result.who, result.version, str(result.cores), *(_seconds(run.get(name)) for name in names)]
            for result, run in zip(results, stages, strict=True)
        ],
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{max(value, 0.0):.2f}"
