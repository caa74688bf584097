"""The status of an output, read from outside: while a tail writes, after it has ended, or after it has died.

Locks are held only for the moment of a check, and nothing is changed. What is read may be some batches apart:
the journal first, then the ledger, a table of messages and the log, which can only be ahead of it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from reput.config.settings import StoreSettings
from reput.errors import OutputError, ReputError, Result, StoreInUseError, counts
from reput.format import names
from reput.job import watch
from reput.job.watch import RunNote, TableStatus
from reput.output.journal import read_state
from reput.remote.client import check_here
from reput.replay.state import Opening, State
from reput.store import files
from reput.store.lock import Holder, output_holder
from reput.store.outside import refuse_links

if TYPE_CHECKING:
    from reput.log.end import Lag

RUNNING, STOPPED, DIED = "running", "stopped", "died"
_PLACES = (
    *names.QUEUES,
    names.CONSUME_QUEUE_ROCKSDB,
    names.INDEX,
    names.ROCKSDB_STORE,
    names.LEDGER,
    names.REPUT,
)
_BLOCK = 512  # bytes that st_blocks counts in, whatever the file system


@dataclass(slots=True)
class Status(Result):
    """The status of an output."""

    root: Path  # the output
    #: ``running``; ``stopped``, with everything committed; or ``died``: the next start rolls back what
    #: was not committed
    state: str
    holder: Holder | None  # the process that writes, None if there is none
    note: RunNote | None  # the note of the last tail, None without one
    opening: Opening  # what the output was begun with
    committed: State  # what its journal says
    committed_ms: int  # when the last batch was committed, ms since the epoch
    ledger_batches: int | None = None  # how many batches the ledger has; None when it can't be read
    ledger_problem: str | None = None  # why it can't be read
    lag: Lag | None = None  # against the log as it is now; None when the log can't be read
    log_problem: str | None = None  # why it can't be read, or that it went back
    catalog: TableStatus | None = None  # the table of messages that the last tail kept, None if it kept none
    disk: dict[str, int] = field(default_factory=dict)  # bytes on disk below each part of the output

    @property
    def exit_code(self) -> int:
        """0 when all is sound, 1 with findings, or when the last run died."""
        return 1 if self.committed.findings or self.state == DIED else 0

    @property
    def rocketmq_version(self) -> str:
        """The dialect that the output is written in; "" where its journal doesn't say."""
        return str(self.opening.settings.get("rocketmq_version", ""))

    @property
    def finding_counts(self) -> dict[str, int]:
        """How many findings there are of each kind."""
        return counts(self.committed.findings)

    @property
    def running(self) -> RunNote | None:
        """The note of the tail that writes now."""
        own = self.note is not None and self.holder is not None and self.note.pid == self.holder.pid
        return self.note if own else None

    def to_dict(self) -> dict[str, object]:
        """The status as a JSON-ready mapping."""
        run, lag, done = self.running, self.lag, self.committed
        releases = self.opening.settings.get("rocketmq_releases")
        releases = list(map(str, releases)) if isinstance(releases, list) else []
        return {
            "output": str(self.root),
            "state": self.state,
            "pid": None if self.holder is None else self.holder.pid,
            "holder": None if self.holder is None else self.holder.what,
            "started_ms": None if run is None else run.started_ms,
            "metrics": None if run is None else run.metrics,
            "store": self.opening.store,
            "rocketmq_version": releases[-1] if releases else self.rocketmq_version or None,
            "rocketmq_releases": releases,
            "start": self.opening.start,
            "offset": done.cursor,
            "last_store_timestamp": done.last_timestamp or None,
            "last_commit_ms": self.committed_ms,
            "log_end": None if lag is None else lag.end,
            "lag_bytes": None if lag is None else lag.bytes,
            "lag_ms": None if lag is None else lag.ms,
            "log_problem": self.log_problem,
            "batches": done.batches,
            "messages": done.messages,
            "bytes": done.bytes,
            "queues": len(done.queues),
            "units": done.units,
            "index_files": len(done.index),
            "index_entries": done.index_entries,
            "ledger_batches": self.ledger_batches,
            "ledger_problem": self.ledger_problem,
            "catalog": None if self.catalog is None else self.catalog.to_dict(),
            "disk_bytes": self.disk,
            "finding_counts": self.finding_counts,
            "findings": [finding.to_dict() for finding in done.findings],
        }


def output_at(directory: Path) -> Path:
    """The absolute path of an output."""
    check_here(directory)
    root = Path(os.path.abspath(directory))
    if not has_begun(root):
        raise OutputError(
            "there is no output of reput here",
            path=root,
            expected=f"{names.REPUT}/{names.JOURNAL} in a directory",
            found=_what(root),
            next_step="Name the DIR that reput tail or reput rebuild was given with --out",
        )
    return root


def has_begun(root: Path) -> bool:
    """Whether an output was begun, even an empty one; False while a tail waits for the first segment."""
    return os.path.lexists(root / names.REPUT / names.JOURNAL)


def died(root: Path) -> bool:
    """Whether the last run was cut off, if none runs now: files may hold more than the journal says."""
    return os.path.lexists(root / names.REPUT / names.SCRATCH)


def look(directory: Path, broker_conf: Path | None = None) -> Status:
    """The status of an output, whose log is where ``broker_conf`` says, else where the last tail was told."""
    root = output_at(directory)
    state, holder = _writer(root)
    path = root / names.REPUT / names.JOURNAL
    opening, committed = read_state(path)
    note = RunNote.read(root)
    try:
        committed_ms = path.stat().st_mtime_ns // 1_000_000
    except OSError as error:
        raise OutputError("the output can't be read", path=path, found=error.strerror) from error
    status = Status(
        root=root,
        state=state,
        holder=holder,
        note=note,
        opening=opening,
        committed=committed,
        committed_ms=committed_ms,
        disk=_disk(root),
    )
    status.ledger_batches, status.ledger_problem = _ledger(root)
    status.catalog = watch.table_status(root, opening.start, committed.cursor)
    if broker_conf is None and note is not None and note.broker_conf is not None:
        broker_conf = Path(note.broker_conf)
    _measure_lag(status, broker_conf)
    return status


def _what(root: Path) -> str:
    if not os.path.lexists(root):
        return "nothing"
    if (holder := output_holder(root)) is not None:
        return f"{holder.what}, which begins, or waits for the log's first segment"
    return "a directory without it" if root.is_dir() else "a file"


def _writer(root: Path) -> tuple[str, Holder | None]:
    # A run that ends removes its scratch directory before it unlocks; one that starts locks first.
    for _ in range(3):
        holder = output_holder(root)
        if holder is not None:
            return RUNNING, holder
        if not died(root):
            return STOPPED, None
        time.sleep(0.01)
    return DIED, None


def _measure_lag(status: Status, broker_conf: Path | None) -> None:
    from reput.log.end import LagProbe

    opening, committed = status.opening, status.committed
    try:
        settings = StoreSettings.load(
            Path(opening.store),
            broker_conf,
            status.rocketmq_version or None,
            rocksdb=True,
            elsewhere=True,
        )
        force = bool(opening.settings.get("force_verify_prop_crc", settings.force_verify_prop_crc))
        probe = LagProbe(replace(settings, force_verify_prop_crc=force))
        status.lag = probe.look(committed.cursor, committed.last_timestamp)
    except (ReputError, OSError) as error:
        status.log_problem = str(error)
        return
    if status.lag.end < committed.cursor and committed.batches:
        status.log_problem = f"the log ends at {status.lag.end}, before what is committed: it went back"


def _ledger(root: Path) -> tuple[int | None, str | None]:
    from reput.output.ledger import Ledger

    try:
        return Ledger(root).version(), None
    except OSError as error:
        return None, " ".join(str(error).split())


def _disk(root: Path) -> dict[str, int]:
    # Few outputs have other queues than consume queues, or anything in RocksDB.
    of_queues = (names.CONSUME_QUEUE_EXT, names.BATCH_CONSUME_QUEUE)
    rare = (*of_queues, names.CONSUME_QUEUE_ROCKSDB, names.ROCKSDB_STORE)
    return {name: _allocated(root / name) for name in _PLACES if name not in rare or (root / name).exists()}


def _allocated(directory: Path) -> int:
    """Bytes that a directory's files take on disk, often much less than their lengths; files may vanish."""
    total = 0
    waiting = [os.fspath(directory)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
        except (FileNotFoundError, NotADirectoryError):
            continue
    return total


_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Stopped:
    """The result of a request to stop."""

    root: Path  # the output
    holder: Holder | None  # the process that wrote there, None if there was none
    seconds: float  # how long it took to end
    clean: bool  # the output is a committed state; otherwise the last run was cut off


def stop(directory: Path, timeout: float = 90.0) -> Stopped:
    """Ask the tail of an output to stop, and wait until it has, or StoreInUseError after ``timeout`` seconds.

    Does nothing if no process writes there. A request that was not fulfilled in time stays in place.
    """
    # A tail that waits for the log's first segment has no output yet, and stops all the same.
    check_here(directory)
    root = Path(os.path.abspath(directory))
    refuse_links(root, [names.REPUT])
    holder = _holder(root)
    if holder is None:
        output_at(root)
        return Stopped(root, None, 0.0, clean=not died(root))
    stop_file = root / names.REPUT / names.STOP
    began = time.monotonic()
    while output_holder(root) == holder:
        if time.monotonic() - began >= timeout:
            raise StoreInUseError(
                f"the writer has not ended within {timeout:g} s",
                path=root,
                found=holder.what,
                next_step="A tail ends when its batch is done: the request stays in place, run the same "
                "command again to wait longer. A rebuild ends by itself, or by Ctrl-C. Killing the process "
                "is safe, too: the next start rolls back what it hadn't committed",
            )
        # Repeatedly: a tail that is just starting removes a stop file that an earlier request may have left.
        if not os.path.lexists(stop_file):
            files.write_atomically(stop_file, b"")
        time.sleep(_POLL_SECONDS)
    seconds = time.monotonic() - began
    files.remove_tree(stop_file)
    return Stopped(root, holder, seconds, clean=output_holder(root) is not None or not died(root))


def _holder(root: Path) -> Holder | None:
    """Who writes to an output; not the writer before, whose note a starting one hasn't yet replaced."""
    holder = output_holder(root)
    while holder is not None:
        time.sleep(_POLL_SECONDS)
        before, holder = holder, output_holder(root)
        if holder == before:
            break
    return holder
