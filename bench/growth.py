"""``python -m bench.growth``: whether time and memory grow with the log.

One log is written, and rebuilt and verified at several lengths, which are its first segments. Each length has
a process and a Spark session of its own, which first rebuild and verify a short log, so that what is measured
is warm. A log that fits into memory lies in the page cache; each is also read from the disk, after its pages
were dropped. Each verification has to find nothing. With ``--shapes`` logs of 1 GiB with few and many queues,
short and long bodies, and few and many keys as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import machine
from bench.__main__ import size
from bench.errors import BenchError, say, told
from bench.generate import Log, log_directory, warm_page_cache, write_log
from bench.process import run
from bench.table import markdown
from bench.warm import rebuilds
from reput.format import names
from reput.job import Summary
from reput.spark.sessions import session
from reput.store.system import human
from reput.verify.plan import VerifyOptions
from reput.verify.report import Report
from reput.verify.run import verify
from tests.compat.jars import VERSIONS

_GIB = 1 << 30
_DERIVED = (names.CONSUME_QUEUE, names.INDEX, names.CHECKPOINT)
#: Of logs of 1 GiB: what differs, its values, and what MassWriter.java is told of each.
SHAPES: dict[str, tuple[tuple[int, ...], Callable[[int], dict[str, int]]]] = {
    "queues": (
        (1, 16, 128, 1024, 10_000),
        lambda value: {"topics": max(value // 8, 1), "queues": min(value, 8)},
    ),
    "bytes of a body": ((100, 1_000, 10_000, 100_000, 1_000_000), lambda value: {"body": value}),
    "keys of a message": ((0, 1, 2, 5, 10, 20), lambda value: {"keys": value}),
}
#: Of the memory, so that the outputs' pages don't push the log's out.
_MOST_CACHED = 0.75


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument(
        "--sizes",
        type=size,
        nargs="+",
        default=[1 * _GIB, 4 * _GIB, 16 * _GIB, 48 * _GIB],
        help="bytes of commit log, whole segments of 1g (default: 1g 4g 16g 48g)",
    )
    parser.add_argument("--shapes", action="store_true", help="logs of other shapes, too")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--version", choices=VERSIONS, default="5.5.0")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "reput-bench")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, too")
    parser.add_argument(
        "--one", nargs=5, metavar=("STORE", "SHORT", "VERSION", "WAY", "WORK"), help=argparse.SUPPRESS
    )
    return parser.parse_args(words)


def drop_pages(log: Log) -> None:
    """Have the system forget what it has read of the log."""
    for segment in log.segments:
        with segment.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def one(store: str, short: str, version: str, way: str, work: str) -> None:
    """Rebuild and verify once; prints one JSON object."""
    master = f"local[{len(os.sched_getaffinity(0))}]"
    log = Log(Path(store), version, 0, 0, 0)
    prepare = drop_pages if way == "disk" else warm_page_cache

    def rebuild_and_verify(
        of: Path, out: Path, before: Callable[[], None]
    ) -> tuple[float, float, Summary, Report]:
        before()
        [(rebuilt, summary)] = rebuilds(of, version, master, [out])
        for name in _DERIVED:
            (out / name).rename(of / name)
        os.sync()
        before()
        began = time.perf_counter()
        report = verify(
            VerifyOptions(store=of, rocketmq_version=version), lambda: session("reput bench", master)
        )
        return rebuilt, time.perf_counter() - began, summary, report

    rebuild_and_verify(Path(short), Path(work, "short"), lambda: None)
    rebuilt, verified, summary, report = rebuild_and_verify(
        log.store, Path(work, "out"), lambda: prepare(log)
    )
    if summary.findings or report.findings or report.messages != summary.messages:
        raise BenchError(f"{len(summary.findings)} and {len(report.findings)} findings")
    print(json.dumps({"messages": summary.messages, "rebuild": rebuilt, "verify": verified}))


def measure(log: Log, home: Path, options: argparse.Namespace) -> list[dict[str, object]]:
    """Every length, in each way that is possible.

    Raises:
        BenchError: a run failed, or found something.
    """
    cached = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _MOST_CACHED
    say(f"a log of up to {human(int(cached))} is read from the page cache")
    lines: list[dict[str, object]] = []
    for length in options.sizes:
        for way in ("page cache", "disk"):
            if way == "page cache" and length > cached:
                continue
            found = _runs(log, length, log, way, home, options)
            say(f"{human(length)}, {way}: {found}")
            lines.append({"bytes": length, "way": way, **found})
    return lines


def measure_shapes(short: Log, options: argparse.Namespace) -> list[dict[str, object]]:
    """Each shape, from the page cache; its log is written before, and removed.

    Raises:
        BenchError: a run failed, or found something.
    """
    lines: list[dict[str, object]] = []
    for what, (values, shape) in SHAPES.items():
        for value in values:
            log = write_log(options.dir, options.version, _GIB, shape(value))
            home = log.store.parent
            try:
                found = _runs(log, _GIB, short, "page cache", home, options)
            finally:
                shutil.rmtree(home)
            say(f"{value:,} {what}: {found}")
            lines.append({"what": what, "value": value, **found})
    return lines


def _runs(
    log: Log, length: int, short: Log, way: str, home: Path, options: argparse.Namespace
) -> dict[str, object]:
    """The medians of runs of one log, of which the first segments are read."""
    cores, runs = len(os.sched_getaffinity(0)), []
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory(dir=home) as place:
            work = Path(place)
            stores = [_first(log, work / "store", length), _first(short, work / "s", _GIB)]
            words = ["-m", "bench.growth", "--one", *map(str, stores), options.version]
            done = run([*words, way.rsplit(maxsplit=1)[-1], place], cores, home)
            runs.append({**json.loads(done.output), "peak_bytes": done.peak_bytes})
    measured = ("rebuild", "verify", "peak_bytes")
    middle = {what: statistics.median(each[what] for each in runs) for what in measured}
    return {"messages": runs[0]["messages"], "runs": runs, **middle}


def _first(log: Log, store: Path, length: int) -> Path:
    """A store with the first segments of a log."""
    (store / names.COMMIT_LOG).mkdir(parents=True)
    for segment in log.segments[: -(-length // _GIB)]:
        os.link(segment, store / names.COMMIT_LOG / segment.name)
    return store


def table(lines: Sequence[dict[str, object]]) -> str:
    """The lines as a table in Markdown."""

    def row(line: dict[str, object]) -> list[str]:
        length, rebuild, verified = (float(line[what]) for what in ("bytes", "rebuild", "verify"))  # type: ignore[arg-type]
        return [
            human(int(length)),
            str(line["way"]),
            f"{line['messages']:,}",
            f"{rebuild:.2f}",
            f"{rebuild / length * _GIB:.3f}",
            f"{verified:.2f}",
            f"{rebuild / verified:.2f}",
            human(int(line["peak_bytes"])),  # type: ignore[call-overload]
        ]

    header = [
        "log",
        "read from",
        "messages",
        "rebuild, s",
        "s a GiB",
        "verify, s",
        "times as fast",
        "peak memory",
    ]
    return markdown(header, [row(line) for line in lines])


def shapes_table(lines: Sequence[dict[str, object]]) -> str:
    """The shapes as a table in Markdown."""
    rows = [
        [
            f"{line['value']:,} {line['what']}",
            f"{line['messages']:,}",
            f"{line['rebuild']:.2f}",
            f"{line['verify']:.2f}",
            human(int(line["peak_bytes"])),  # type: ignore[call-overload]
        ]
        for line in lines
    ]
    return markdown(["1 GiB with", "messages", "rebuild, s", "verify, s", "peak memory"], rows)


def plot(lines: Sequence[dict[str, object]], shapes: Sequence[dict[str, object]], path: Path) -> None:
    """Draw seconds and memory over the log's length, and over what shapes differ in."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels: list[Any] = [["time"] * 3 + ["memory"] * 3]
    panels += [[what for what in SHAPES for _ in range(2)]] if shapes else []
    axes_of: dict[str, Any]
    figure, axes_of = pyplot.subplot_mosaic(panels, figsize=(10, 4 * len(panels)), layout="constrained")
    time_axes, memory_axes = axes_of["time"], axes_of["memory"]
    for way, style in (("page cache", "o-"), ("disk", "s--")):
        of_way = [line for line in lines if line["way"] == way]
        gib = [line["bytes"] / _GIB for line in of_way]  # type: ignore[operator]
        for what in ("rebuild", "verify"):
            seconds = [line[what] for line in of_way]
            time_axes.plot(gib, seconds, style, label=f"{what}, from the {way}")
        memory_axes.plot(gib, [line["peak_bytes"] / _GIB for line in of_way], style, label=f"from the {way}")  # type: ignore[operator]
    time_axes.set(xlabel="GiB of commit log", ylabel="seconds", title="Time", xlim=(0, None), ylim=(0, None))
    memory_axes.set(
        xlabel="GiB of commit log",
        ylabel="GiB",
        title="Peak memory of all processes",
        xlim=(0, None),
        ylim=(0, None),
    )
    for axes in (time_axes, memory_axes):
        axes.grid(alpha=0.3)
        axes.legend()
    for what in SHAPES if shapes else ():
        of_what, axes = [line for line in shapes if line["what"] == what], axes_of[what]
        values = [line["value"] for line in of_what]
        for style, name, unit in (
            ("o-", "rebuild", 1),
            ("s--", "verify", 1),
            ("^:", "peak_bytes", _GIB),
        ):
            label = "peak memory, GiB" if unit > 1 else f"{name}, s"
            found = [line[name] / unit for line in of_what]  # type: ignore[operator]
            axes.plot(values, found, style, label=label)
        axes.set_xscale("symlog" if 0 in values else "log")
        axes.set(xlabel=what, title=f"1 GiB by {what}", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


@told
def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = arguments(words)
    if options.one:
        one(*options.one)
        return 0
    if any(length % _GIB for length in options.sizes):
        raise BenchError("--sizes: whole segments of 1g")
    longest = max(options.sizes)
    log = write_log(options.dir, options.version, longest)
    lines = measure(log, log_directory(options.dir, options.version, longest), options)
    shapes = measure_shapes(log, options) if options.shapes else []
    print(json.dumps({"machine": machine.facts(options.dir), "lines": lines, "shapes": shapes}))
    print(table(lines))
    if shapes:
        print(shapes_table(shapes))
    if options.plot is not None:
        plot(lines, shapes, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
