"""``python -m bench.kernel STORE``: what each nanosecond of a message goes to, on one core.

The log is gone over from the page cache by more and more of what a rebuild does: its bytes alone, frames,
properties and units, the CRC, the keys of the index. Then what comes of it is packed and put into an index
file. Nothing is written; ``python -m bench.floor`` has the whole.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numba import njit
from numpy.typing import NDArray

from reput.build.index import KeyRows, put_keys
from reput.build.units import pack
from reput.config.settings import StoreSettings
from reput.format.indexfile import IndexHeader
from reput.log.segments import discover, map_segment
from reput.scan import kernel, output
from reput.scan.output import OutputArrays, Status
from reput.scan.rules import Rules, rules
from reput.scan.table import QueueTable

Segments = list[tuple[NDArray[np.uint8], int]]


@njit(nogil=True)
def _sum(words):  # type: ignore[no-untyped-def]
    """The sum of 64-bit words, by eight at once: as fast as memory gives them."""
    total = np.uint64(0)
    for word in words:
        total += word
    return total


def _read(segments: Segments) -> None:
    for data, _ in segments:
        _sum(data[: len(data) // 8 * 8].view(np.uint64))


def _walk(segments: Segments) -> None:
    for data, base in segments:
        kernel.walk(data, base, 0, len(data), True)


def _scan(segments: Segments, wanted: Rules) -> Iterator[tuple[OutputArrays, QueueTable]]:
    """What a scan yields, block by block; the arrays are used again."""
    out, table = output.output(), QueueTable()
    for data, base in segments:
        position, status = 0, Status.FULL
        while status is Status.FULL:
            out.counts.fill(0)
            status, position = kernel.scan(data, base, position, len(data), wanted, table, out)
            yield out, table


def _all(segments: Segments, wanted: Rules) -> None:
    for _ in _scan(segments, wanted):
        pass


def _pack(segments: Segments, wanted: Rules) -> None:
    for out, table in _scan(segments, wanted):
        pack(out, int(table.queue_count[0]))


def _put(segments: Segments, wanted: Rules) -> None:
    slots, header = np.zeros(5_000_000, np.int32), IndexHeader()
    for out, _ in _scan(segments, wanted):
        rows, keys = int(out.counts[output.ROWS]), int(out.counts[output.KEYS])
        columns = out.row_position[:rows], out.row_timestamp[:rows], out.row_keys[:rows]
        header = put_keys(header, slots, KeyRows(*columns, out.key_hash[:keys]), 0, 1 << 30).header


def _steps(segments: Segments, full: Rules) -> dict[str, Callable[[], None]]:
    """What is done, each with all before it, but for the last two, which come on top of a whole scan."""
    bare = full._replace(check_crc=False, index_keys=False, index_tags=False)
    checked, keyed = bare._replace(check_crc=True), full._replace(index_tags=False)
    return {
        "its bytes, added up": lambda: _read(segments),
        "frames: lengths, magic, place": lambda: _walk(segments),
        "topic, queue, properties, tagsCode": lambda: _all(segments, bare),
        "CRC of the body": lambda: _all(segments, checked),
        "hashes of UNIQ_KEY and KEYS": lambda: _all(segments, keyed),
        "hashes of TAGS": lambda: _all(segments, full),
        "units packed by queue": lambda: _pack(segments, full),
        "entries and slots of an index file": lambda: _put(segments, full),
    }


def main(
    store: Annotated[Path, typer.Argument(help="A store of a log without damage.")],
    version: Annotated[str, typer.Option("--rocketmq-version", help="The release to derive for.")] = "5.5.0",
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Rounds; the median counts.")] = 5,
) -> None:
    """Say what a message costs, step by step."""
    settings = StoreSettings.load(store, None, version)
    log = discover(settings)
    segments = [(map_segment(one.path, one.length), one.base) for one in log.segments]
    full = rules(settings)
    steps = _steps(segments, full)
    counts = np.sum([out.counts.copy() for out, _ in _scan(segments, full)], axis=0)
    messages = int(counts[output.MESSAGES])
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeat):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - began)
    median = {name: statistics.median(found) * 1e9 / messages for name, found in seconds.items()}
    print(f"{messages:,} messages of {counts[output.BYTES] / messages:.0f} bytes; ns a message\n")
    print("| step | ns more | ns |\n| --- | ---: | ---: |")
    names = list(steps)
    for name, before in zip(names, ["", "", *names[1:5], names[5], names[5]], strict=True):
        more = median[name] - (median[before] if before else 0)
        print(f"| {name} | {more:.0f} | {median[name]:.0f} |")


if __name__ == "__main__":
    typer.run(main)
