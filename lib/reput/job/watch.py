"""What a tail does to be watched: notes in its output for ``tail --status``, and metrics if asked for."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from reput.errors import OutputError
from reput.format import names
from reput.newer_python import Self
from reput.store import files
from reput.store.reading import read_file

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from reput.config.settings import StoreSettings
    from reput.job.metrics import Metrics, MetricsServer, TableMetrics
    from reput.replay.state import State


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
class TableStatus:
    """The status of the table of the last tail."""

    note: TableNote  # the tail's note about it
    #: physical offset up to which it holds the log; None before its first commit, or if it can't be
    #: read
    offset: int | None = None
    #: of the log that are committed in the output and not in the table; None if it can't be read
    lag_bytes: int | None = None
    problem: str | None = None  # why it can't be read

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "table": self.note.table,
            "offset": self.offset,
            "lag_bytes": self.lag_bytes,
            "last_success_ms": self.note.last_success_ms,
            "failures": self.note.failures,
            "last_failure": self.note.last_failure,
            "problem": self.problem,
        }


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
        return TableStatus(note, problem=str(error))
    return TableStatus(note, offset, max(committed - (start if offset is None else offset), 0))


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
