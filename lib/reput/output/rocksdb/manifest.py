"""Which runs of units are those of committed batches: one file for each batch, written before its commit.

What names a batch that the journal doesn't have, and runs that no such file names, was left by a crash or by
a task that failed, and is removed when a run of reput begins.

A broker takes a directory with a file CURRENT for a database. That name comes last, when all else is on disk,
and is the commit: without it, whatever lies there is made anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from reput.build.placement import Breaks
from reput.errors import OutputError
from reput.replay.target import Target
from reput.rocksdb import CURRENT
from reput.store import files
from reput.store.listing import names_in
from reput.store.reading import read_file

if TYPE_CHECKING:
    from reput.output.batch import BatchScan


class Tasks(Protocol):
    """Runs a function of a target and an item in tasks."""

    def run(self, function: Callable[..., object], items: list[object]) -> list[Any]:
        """The function's results in the items' order."""
        ...


def is_whole(directory: Path) -> bool:
    """Whether a database is there."""
    return (directory / CURRENT).is_file()


def name_files(made: Path, directory: Path, target: Target) -> None:
    """Move a database's files into their directory, in which queues' files may lie; CURRENT is the last."""
    files.make_dirs(directory, target.owner)
    for name in names_in(directory):
        if not (directory / name).is_dir():
            files.remove_tree(directory / name)  # of a try that got no further
    for name in names_in(made):
        if name != CURRENT:
            with files.reporting("can't rename it", made / name):
                files.system.rename(made / name, directory / name)
    files.fsync_dir(directory)
    files.rename(made / CURRENT, directory / CURRENT)


_SUFFIX = ".batch"


@dataclass(frozen=True, slots=True)
class Committed:
    """What the committed batches have for a database."""

    runs: list[str]  # paths of runs of units, in log order
    keys: list[str]  # paths of runs of index keys
    breaks: Breaks  # where the log isn't whole


def keep_runs(target: Target, start: int, scan: BatchScan, breaks: Breaks) -> None:
    """Name the runs of a batch that is about to be committed, and where the log isn't whole; on disk then."""
    found = {
        "end": scan.end,
        "runs": [Path(run).name for result in scan.accepted for run in result.runs],
        "keys": [Path(run).name for result in scan.accepted for run in result.key_runs],
        "breaks": breaks.places,
        "unproven": breaks.unproven,
        "parts": [(result.part.path, result.part.base, result.part.segment_size) for result in scan.accepted],
    }
    files.make_dirs(target.runs, target.owner)
    files.fsync_dir(target.runs)
    files.write_atomically(target.runs / f"{start:020d}{_SUFFIX}", json.dumps(found).encode())


def committed(target: Target, start: int, cursor: int) -> Committed:
    """The runs of all batches of [start, cursor), physical offsets.

    Raises OutputError where they aren't all there.
    """
    runs: list[str] = []
    keys: list[str] = []
    places: set[int] = set()
    unproven: set[tuple[int, int]] = set()
    reached = start
    for path in _batches(target, cursor):
        found = _read(path)
        if int(path.stem) != reached:
            break
        reached = found.get("end", start)
        runs += [str(target.runs / name) for name in found["runs"]]
        keys += [str(target.runs / name) for name in found["keys"]]
        places.update(found["breaks"])
        unproven.update((start, end) for start, end in found["unproven"])
    if reached != cursor:
        raise OutputError(
            "what was put aside for a database isn't all there",
            path=target.runs,
            expected=f"batches from {start} to {cursor}",
            found=f"up to {reached}",
            next_step="Remove the output and run the same command again",
        )
    return Committed(runs, keys, Breaks(sorted(places), sorted(unproven)))


def segment_of(target: Target, cursor: int, position: int) -> str:
    """The path of the segment that holds a physical offset, as a task that scanned it had it."""
    for path in _batches(target, cursor):
        for segment, base, size in _read(path)["parts"]:
            if base <= position < base + size:
                return str(segment)
    return ""


def tidy_runs(target: Target, start: int, cursor: int) -> None:
    """Make the directory of runs, and remove from it what no committed batch names."""
    files.make_dirs(target.runs, target.owner)
    found = committed(target, start, cursor)
    known = {Path(run).name for run in (*found.runs, *found.keys)}
    known.update(path.name for path in _batches(target, cursor))
    for name in names_in(target.runs):
        if name not in known:
            files.remove_tree(target.runs / name)


def _batches(target: Target, cursor: int) -> list[Path]:
    names = sorted(name for name in names_in(target.runs) if name.endswith(_SUFFIX))
    return [target.runs / name for name in names if int(name.removesuffix(_SUFFIX)) < cursor]


def _read(path: Path) -> dict[str, Any]:
    with files.reporting("the list of a batch's units can't be read back", path):
        data = read_file(path)
    try:
        return dict(json.loads(data))
    except ValueError as error:
        raise OutputError(
            "the list of a batch's units is not what was written",
            path=path,
            found=str(error),
            next_step="Remove the output and run the same command again",
        ) from error
