"""What a tail leaves to be watched, and the status of an output: of one that runs, has ended, or has died.

Locks are held only for the moment of a check, and nothing is changed. What is read may be some batches apart:
the journal first, then the ledger, a table of messages and the log, which can only be ahead of it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from reput.config.settings import StoreSettings
from reput.errors import OutputError, ReputError, Result, StoreInUseError, counts
from reput.format import names
from reput.newer_python import Self
from reput.output.journal import read_state
from reput.remote.client import check_here
from reput.replay.state import Opening, State
from reput.store import files
from reput.store.lock import Holder, output_holder
from reput.store.places import refuse_links
from reput.store.reading import read_file

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from reput.job.metrics import Metrics, MetricsServer, TableMetrics
    from reput.log.end import Lag


@dataclass(frozen=True, slots=True)
class _Note:
    """A file in an output, for people and for ``reput tail --status``; no run depends on it."""

    name: ClassVar[str]

    def write(self, root: Path) -> None:
        """Leave the note in an output; it stays there after the run."""
        files.write_atomically(root / names.REPUT / self.name, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, root: Path) -> Self | None:
        """The note of the last tail; None if there is no such note, or it can't be read."""
        try:
            note = cls(**_facts(root / names.REPUT / cls.name))
        except TypeError:
            return None
        kinds = get_type_hints(cls)
        # JSON doesn't ensure that each value is of its type.
        are_typed = all(
            isinstance(value, kinds[name]) and "\0" not in str(value) for name, value in asdict(note).items()
        )
        return note if are_typed and note.is_sound else None

    @property
    def is_sound(self) -> bool:
        """Whether what its values say can be."""
        return True


@dataclass(frozen=True, slots=True)
class RunNote(_Note):
    """What the last tail was run with."""

    name = names.RUN

    pid: int  # the tail's process
    started_ms: int  # when it began, ms since the epoch
    broker_conf: str | None = None  # the broker.conf that it was given, absolute, or None
    metrics: str | None = None  # the URL of its metrics, or None


@dataclass(frozen=True, slots=True)
class TableNote(_Note):
    """The state of the table of messages that the last tail kept up to date."""

    name = names.TABLE

    table: str  # its directory, absolute
    failures: int = 0  # how often it could not be brought up to date since the tail began
    #: when it was last brought up to date, ms since the epoch; None before the first time
    last_success_ms: int | None = None
    last_failure: str | None = None  # the message of the last failure; None without one

    @property
    def is_sound(self) -> bool:
        """Whether the table's directory is an absolute path that Delta Lake can take."""
        try:
            return Path(self.table).is_absolute() and bool(self.table.encode())
        except UnicodeEncodeError:
            return False


def _facts(path: Path) -> dict[str, Any]:
    """The facts of a note; none if it can't be read."""
    try:
        facts = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


_LOG = logging.getLogger(__name__)


class TableWatch:
    """Reports on the table of a running tail; the note of an earlier tail in the output is replaced."""

    def __init__(self, root: Path, table: Path, metrics: TableMetrics | None) -> None:
        self._root = root
        self._metrics = metrics
        self._note = TableNote(str(table.absolute()))
        self._note.write(root)

    def succeeded(self) -> None:
        """See :class:`reput.catalog.update.Watch`."""
        self._write(replace(self._note, last_success_ms=int(time.time() * 1000)))
        if self._metrics is not None:
            self._metrics.succeeded()

    def failed(self, error: BaseException) -> None:
        """See :class:`reput.catalog.update.Watch`."""
        failures = self._note.failures + 1
        self._write(replace(self._note, failures=failures, last_failure=" ".join(str(error).split())))
        if self._metrics is not None:
            self._metrics.failed()

    def _write(self, note: TableNote) -> None:
        self._note = note
        try:
            note.write(self._root)
        except OutputError as error:  # without its note the table is still good
            _LOG.warning("%s", error)


@dataclass(frozen=True, slots=True)
class TableStatus(TableNote):
    """What the last tail noted of its table, and the table's status."""

    #: physical offset up to which it holds the log; None before its first commit, or if it can't be
    #: read
    offset: int | None = None
    #: of the log that are committed in the output and not in the table; None if it can't be read
    lag_bytes: int | None = None
    problem: str | None = None  # why it can't be read


def table_status(root: Path, start: int, committed: int) -> TableStatus | None:
    """The status of the table that an output's last tail kept; None if it kept none.

    The output has the log of [start, committed), physical offsets.
    """
    note = TableNote.read(root)
    if note is None:
        return None
    from reput.catalog.table import Table

    try:
        offset = Table(Path(note.table)).cursor
    except OutputError as error:
        return TableStatus(**asdict(note), problem=str(error))
    lag = max(committed - (start if offset is None else offset), 0)
    return TableStatus(**asdict(note), offset=offset, lag_bytes=lag)


class Watch:
    """Reports on a running tail; without an endpoint (``url`` None) only by the note."""

    def __init__(self, endpoint: MetricsServer | None = None) -> None:
        self._endpoint = endpoint
        self._metrics: Metrics | None = None
        self._root: Path | None = None
        self._last: Callable[[], StreamingQueryProgress | None] = lambda: None
        self.url = None if endpoint is None else endpoint.url

    def begin(self, settings: StoreSettings, root: Path, state: State) -> None:
        """Before the first batch, with the output's lock held."""
        conf = None if settings.broker_conf is None else str(settings.broker_conf)
        RunNote(os.getpid(), int(time.time() * 1000), conf, self.url).write(root)
        files.remove_tree(root / names.REPUT / names.TABLE)  # an earlier tail's
        self._root = root
        if self._endpoint is not None:
            from reput.job.metrics import Metrics
            from reput.log.end import LagProbe
            from reput.stream import TriggerCollector

            registry, dialect = self._endpoint.registry, settings.dialect.name
            self._metrics = Metrics(registry, settings.root, root, dialect, state, LagProbe(settings))
            registry.register(TriggerCollector(self._last_progress))

    def table(self, table: Path, reached: Callable[[], int]) -> TableWatch:
        """Watch the table of messages, too; after :meth:`begin`.

        ``reached`` returns the physical offset up to which it holds the log.
        """
        if self._root is None:
            raise ValueError("it has not begun")
        metrics = None
        if self._metrics is not None and self._endpoint is not None:
            from reput.job.metrics import TableMetrics

            metrics = TableMetrics(self._endpoint.registry, self._metrics, reached)
        return TableWatch(self._root, table, metrics)

    def follow(self, last: Callable[[], StreamingQueryProgress | None]) -> None:
        """Report a query's triggers from now on; ``last`` returns its last progress."""
        self._last = last

    def batch(self, state: State, stages: Mapping[str, float]) -> None:
        """After each batch; see :meth:`reput.job.metrics.Metrics.batch`."""
        if self._metrics is not None:
            self._metrics.batch(state, stages)

    def restarted(self, reason: str) -> None:
        """When the pipeline is restarted; see :meth:`reput.job.metrics.Metrics.restarted`."""
        if self._metrics is not None:
            self._metrics.restarted(reason)

    def _last_progress(self) -> StreamingQueryProgress | None:
        return self._last()


@contextmanager
def watching(metrics_port: int | None, metrics_address: str = "127.0.0.1") -> Iterator[Watch]:
    """Serve a tail's metrics while the block runs, before anything else begins.

    Port 0 stands for one that is free, None for no metrics.
    """
    with ExitStack() as stack:
        endpoint = None
        if metrics_port is not None:
            from reput.job.metrics import served

            endpoint = stack.enter_context(served(metrics_port, metrics_address))
        yield Watch(endpoint)


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

    output: Path
    #: ``running``; ``stopped``, with everything committed; or ``died``: the next start rolls back what
    #: was not committed
    state: str
    holder: Holder | None  # the process that writes, None if there is none
    note: RunNote | None  # the note of the last tail, None without one
    opening: Opening  # what the output was begun with
    committed: State  # what its journal says
    last_commit_ms: int  # when the last batch was committed, ms since the epoch
    ledger_batches: int | None = None  # how many batches the ledger has; None when it can't be read
    ledger_problem: str | None = None  # why it can't be read
    lag: Lag | None = None  # against the log as it is now; None when the log can't be read
    log_problem: str | None = None  # why it can't be read, or that it went back
    catalog: TableStatus | None = None  # the table of messages that the last tail kept, None if it kept none
    disk_bytes: dict[str, int] = field(default_factory=dict)  # bytes on disk below each part of the output

    hidden = ("holder", "note", "opening", "committed", "lag")

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

    def more(self) -> dict[str, object]:
        """What the holder, the journal and the log say, by JSON names."""
        run, lag, done = self.running, self.lag, self.committed
        releases = self.opening.settings.get("rocketmq_releases")
        releases = list(map(str, releases)) if isinstance(releases, list) else []
        return {
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
            "log_end": None if lag is None else lag.end,
            "lag_bytes": None if lag is None else lag.bytes,
            "lag_ms": None if lag is None else lag.ms,
            **{name: getattr(done, name) for name in ("batches", "messages", "bytes", "units")},
            "queues": len(done.queues),
            "index_files": len(done.index),
            "index_entries": done.index_entries,
            "finding_counts": self.finding_counts,
            "findings": done.findings,
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
        output=root,
        state=state,
        holder=holder,
        note=note,
        opening=opening,
        committed=committed,
        last_commit_ms=committed_ms,
        disk_bytes=_disk(root),
    )
    status.ledger_batches, status.ledger_problem = _ledger(root)
    status.catalog = table_status(root, opening.start, committed.cursor)
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
class Stopped(Result):
    """The result of a request to stop."""

    output: Path
    holder: Holder | None  # the process that wrote there, None if there was none
    waited_seconds: float  # how long it took to end
    clean: bool  # the output is a committed state; otherwise the last run was cut off
    status: Status | None = None  # that of the output afterwards; None without a first batch

    hidden = ("holder", "status")

    @property
    def exit_code(self) -> int:
        """1 when the last run was cut off, now or before."""
        return int(not self.clean)

    def more(self) -> dict[str, object]:
        """Who was stopped, and the status."""
        holder = None if self.holder is None else self.holder.what
        of_output = {} if self.status is None else self.status.to_dict()
        waited = round(self.waited_seconds, 3)
        return {
            "stopped": holder is not None,
            "stopped_holder": holder,
            "waited_seconds": waited,
            **of_output,
        }


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
        # Repeatedly: a tail that is just starting removes a stop file that an earlier request may have left.
        if not os.path.lexists(stop_file):
            files.write_atomically(stop_file, b"")
        if time.monotonic() - began >= timeout:
            raise StoreInUseError(
                f"the writer has not ended within {timeout:g} s",
                path=root,
                found=holder.what,
                next_step="A tail ends when its batch is done: the request stays in place, run the same "
                "command again to wait longer. A rebuild ends by itself, or by Ctrl-C. Killing the process "
                "is safe, too: the next start rolls back what it hadn't committed",
            )
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
