"""A query that is stopped while Spark works for a batch. Spark is played here: it takes an unlucky moment."""

from __future__ import annotations

import errno
import os
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from reput import stream
from reput.catalog import CatalogOptions
from reput.catalog.appending import Appending, Standing
from reput.catalog.table import Table
from reput.errors import SparkError
from reput.format.commitlog import Record
from reput.output.writer import PART_COLUMNS
from reput.spark.runner import SparkRunner
from reput.store.lock import OutputLock
from reput.stream import TailQuery, in_few_words, run_available
from tests.local import open_store
from tests.stores import LogWriter

WORDS = "py4j.protocol.Py4JJavaError: An error occurred while calling o97.collectToPython"


class Query:
    """A query and all that leads to it: one batch, whose job lasts until the query is stopped."""

    def __init__(self) -> None:
        self.begun, self.stopped = threading.Event(), threading.Event()
        self.failure: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return self  # readStream, writeStream

    def __call__(self, *_: object, **__: object) -> Query:
        return self  # format, options, load, option, trigger

    def foreachBatch(self, batch: Callable[[Any, int], None]) -> Query:  # noqa: N802 - Spark's
        self.batch = batch
        return self

    def start(self) -> Query:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()

    def collect(self) -> list[Any]:
        self.begun.set()
        self.stopped.wait()
        raise Py4JError(
            f"{WORDS}.\n: org.apache.spark.SparkException: Job 3 cancelled part of cancelled job group"
        )

    def _run(self) -> None:
        try:
            self.batch(self, 0)
        except InterruptedError as error:
            self.failure = error

    def told(self) -> str:
        """What Spark goes over."""
        assert self.failure is not None
        return "".join(traceback.format_exception(self.failure))


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Query:
    query = Query()
    for module in (stream, stream):
        monkeypatch.setattr(module, "register", lambda _: None)
    monkeypatch.setattr(stream, "observed", lambda stream: stream)
    return query


@pytest.fixture
def _interrupted(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        query.begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "_await", interrupt)


@pytest.mark.usefixtures("_interrupted")
def test_a_rebuild_that_is_interrupted(query: Query, tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "store")
    writer.preallocate(0)
    log = open_store(writer.root).log
    with pytest.raises(KeyboardInterrupt):
        run_available(query, SimpleNamespace(), tmp_path / "checkpoint", log, {})  # type: ignore[arg-type]
    assert WORDS not in query.told()


class Context:
    """A session's context, whose one job lasts until it is cancelled."""

    def __init__(self) -> None:
        self.master, self.defaultParallelism = "local[2]", 2
        self.begun, self.cancelled = threading.Event(), threading.Event()

    def addJobTag(self, _: str) -> None:  # noqa: N802 - Spark's
        pass

    def cancelJobsWithTag(self, _: str) -> None:  # noqa: N802 - Spark's
        self.cancelled.set()

    def parallelize(self, *_: object) -> Context:
        return self

    map = parallelize

    def collect(self) -> list[Any]:
        self.begun.set()
        self.cancelled.wait()
        raise Py4JError(WORDS)


def test_a_table_that_is_interrupted(tmp_path: Path) -> None:
    """Tasks are cancelled, and nothing is committed."""
    writer = LogWriter(tmp_path / "store")
    writer.append(Record(b"T", b"x"))
    options = CatalogOptions(writer.root, tmp_path / "table")
    adding = Appending(options, open_store(writer.root).settings, Table(options.table))
    context = Context()

    def interrupt() -> None:
        """Again, for what Python is just in may swallow one, such as a callback of the garbage collector."""
        context.begun.wait()
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGINT)
            if context.cancelled.wait(10):
                return
        context.cancelled.set()  # then the job fails, and with it the test

    threading.Thread(target=interrupt).start()
    runner = SparkRunner(context)  # type: ignore[arg-type]
    with OutputLock(options.table), pytest.raises(KeyboardInterrupt):
        adding.append(lambda: runner, Standing(-1, 0), None)
    assert context.cancelled.is_set()
    assert (adding.commits, Table(options.table).version) == (0, -1)
    assert not (options.table / ".reput" / "catalog-files").exists()


def test_a_tail_that_fails_in_a_batch(query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = TailQuery(query, SimpleNamespace(), tmp_path / "spark", {"stopFile": str(tmp_path / "stop")})  # type: ignore[arg-type]
    query.begun.wait()
    monkeypatch.setattr(tail, "_check", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tail.run(threading.Event())
    assert WORDS not in query.told()


def refused(*_: object) -> None:
    """What Python meets at its JVM's address when the JVM was killed."""
    raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


class GoneQuery(Query):
    """One whose JVM is killed while Spark works for the batch."""

    def collect(self) -> list[Any]:
        self.begun.set()
        return [dict.fromkeys(PART_COLUMNS, 0)]

    def _run(self) -> None:
        try:
            self.batch(self, 0)
        except ConnectionRefusedError as error:
            self.failure = error


@pytest.fixture
def query_gone(query: Query, monkeypatch: pytest.MonkeyPatch) -> GoneQuery:
    monkeypatch.setattr(stream, "_await", refused)
    return GoneQuery()


def test_a_rebuild_whose_jvm_is_killed_does_not_blame_the_output(
    query_gone: GoneQuery, tmp_path: Path
) -> None:
    writer = LogWriter(tmp_path / "store")
    writer.preallocate(0)
    log = open_store(writer.root).log
    killed = SimpleNamespace(write=refused)
    with pytest.raises(SparkError, match="its JVM is gone"):
        run_available(query_gone, killed, tmp_path / "checkpoint", log, {})  # type: ignore[arg-type]
    assert isinstance(query_gone.failure, ConnectionRefusedError)


def test_a_tail_whose_jvm_is_killed_does_not_blame_the_output(
    query_gone: GoneQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = SimpleNamespace(write=refused)
    tail = TailQuery(query_gone, killed, tmp_path / "spark", {"stopFile": str(tmp_path / "stop")})  # type: ignore[arg-type]
    query_gone.thread.join()
    monkeypatch.setattr(tail, "_check", refused)
    with pytest.raises(SparkError, match="its JVM is gone"):
        tail.run(threading.Event())
    assert isinstance(query_gone.failure, ConnectionRefusedError)


def test_what_a_batch_fails_with_by_itself_is_told() -> None:
    with pytest.raises(Py4JError, match="calling o97"), in_few_words(lambda: False):
        raise Py4JError(WORDS)


def test_a_warm_up_that_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is gone, or the run failed: a thread of which nobody knows has nothing to say."""

    def cancelled(*_: object) -> None:
        raise Py4JError(WORDS)

    said: list[object] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    runner = SparkRunner(SimpleNamespace(master="local[2]", defaultParallelism=2))  # type: ignore[arg-type]
    monkeypatch.setattr(runner, "_run", cancelled)
    runner.warm_up()
    for thread in threading.enumerate():
        if thread.name == "reput-warm-up":
            thread.join()
    assert said == []
