"""The database of a store's index: planned here, written by tasks, made and named at the end."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

from reput.format import names, rocksdbindex
from reput.output.journal import Journal
from reput.output.rocksdb.manifest import Tasks, committed, is_whole, name_files
from reput.replay.runs import SAMPLED, KeyRun
from reput.replay.target import Target
from reput.rocksdb.reader import assemble, write_sorted
from reput.store import files
from reput.store.temporary import attempt_directory

#: Keys of a share: a task holds some 300 bytes for each.
_MOST_KEYS = 1 << 19
_SHARES_A_SLOT = 3
_SORTED = "sorted-index"  # directory below the runs'
_MADE = "made-index"


@dataclass(frozen=True, slots=True)
class Share:
    """A range of keys: from ``first`` on, before ``stop``; None for the end."""

    first: bytes
    stop: bytes | None


def directory_of(target: Target) -> Path:
    """Where the database goes."""
    return target.root / names.ROCKSDB_STORE


def make(target: Target, journal: Journal, tasks: Tasks, slots: int) -> None:
    """Make the database of all that the journal has committed, unless it is there.

    After an error the same command makes it anew.
    """
    if is_whole(directory_of(target)):
        return
    scratch, made = target.runs / _SORTED, target.runs / _MADE
    for left in (scratch, made):
        files.remove_tree(left)
    files.make_dirs(scratch, target.owner)
    runs = committed(target, journal.opening.start, journal.state.cursor).keys
    samples: list[bytes] = []
    last_timestamp = last_position = -1
    for path in runs:
        with KeyRun(path) as run:
            samples += run.samples()
            last_timestamp = max(last_timestamp, run.last_timestamp)
            last_position = max(last_position, run.last_position)
    written = tasks.run(partial(write, runs=runs, scratch=scratch), list(shares_of(samples, slots)))
    paths = [path for path in written if path is not None]
    if runs:
        paths.append(scratch / "marks.sst")
        marks = (
            (rocksdbindex.LAST_POSITION, rocksdbindex.value(last_position)),
            (rocksdbindex.LAST_TIMESTAMP, rocksdbindex.value(last_timestamp)),
        )
        write_sorted(paths[-1], marks, compressed=True)
    families = {
        rocksdbindex.ENTRIES: (True, paths),
        rocksdbindex.TIMER: (True, []),
        rocksdbindex.TRANS: (True, []),
    }
    assemble(made, families, target.owner)
    name_files(made, directory_of(target), target)
    shutil.rmtree(scratch, ignore_errors=True)


def shares_of(samples: Sequence[bytes], slots: int) -> list[Share]:
    """Cut the keys into shares of about the same number, by a sample of them."""
    ordered = sorted(samples)
    most = min(_MOST_KEYS, -(-len(ordered) * SAMPLED // max(slots * _SHARES_A_SLOT, 1)))
    bounds = sorted(set(ordered[:: max(most // SAMPLED, 1)]))
    firsts = [b"", *bounds[1:]] if bounds else []
    return [Share(first, stop) for first, stop in zip_longest(firsts, firsts[1:])]


def write(_target: Target, share: Share, runs: Sequence[str], scratch: Path) -> Path | None:
    """Write one share into a new file below ``scratch``; None where it has no key."""
    entries: dict[bytes, bytes] = {}
    for path in runs:
        with KeyRun(path) as run:
            entries |= run.entries(share.first, share.stop)
    if not entries:
        return None
    target = attempt_directory(scratch) / "index.sst"
    write_sorted(target, ((key, entries[key]) for key in sorted(entries)), compressed=True)
    return target
