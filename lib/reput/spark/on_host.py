"""Functions that run on one host of the cluster, named by the caller, and nowhere else.

A task's preferred place is soft: if its host's executors are busy for too long, or gone, Spark runs it
elsewhere. So the task compares where it is with what the host is known by, and elsewhere does nothing. The
driver knows where there are executors, and sends it again. See docs/adr/0036-stores-on-hosts.md.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.serializers import CPickleSerializer

from reput.errors import SparkError

#: Named in a datagram's destination; none is sent.
_ANY_PORT = 9


def addresses(host: str) -> frozenset[str]:
    """The addresses that a name has on this host, or the address that it is; no loopback ones.

    A host's own name often leads to 127.0.1.1, which is another host for each that asks.
    """
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)}
    except (OSError, UnicodeError):
        return frozenset()
    told = {ipaddress.ip_address(one.partition("%")[0]) for one in found}
    return frozenset(str(one) for one in told if not one.is_loopback and not one.is_unspecified)


@dataclass(frozen=True, slots=True)
class HostMark:
    """What one host can be told by."""

    name: str  # as it was named, in lower case
    addresses: frozenset[str]  # of one of its interfaces; empty if only its own name tells it

    @property
    def is_here(self) -> bool:
        """Whether this process is on that host."""
        if self.addresses:
            return any(map(_is_own, self.addresses))
        return socket.gethostname().lower() == self.name


def _is_own(address: str) -> bool:
    """Whether an address is one of this host's: what is sent there would come from there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _ANY_PORT))
            source = str(probe.getsockname()[0])
        except OSError:  # no way leads there
            return False
    return ipaddress.ip_address(source.partition("%")[0]) == ipaddress.ip_address(address)


#: An executor takes some seconds to start, and to come back after a crash.
_EXECUTOR_SECONDS = 30.0
_LOOK_SECONDS = 2.0
#: Tasks that ended elsewhere. If executors are busy, each has waited for spark.locality.wait (3 s).
_MOST_ELSEWHERE = 100
#: Executors that ended while they had the task.
_MOST_LOST = 3

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor."""

    host: str  # as Spark calls it
    cores: int  # tasks that it runs at once


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """A task's answer from another host; ``lost``: an executor that had it before has ended."""

    host: str
    lost: bool


@dataclass(frozen=True, slots=True)
class _Only(Generic[_Result]):
    """A task: the function on the host, an :class:`_Elsewhere` on others."""

    mark: HostMark
    function: Callable[[], _Result]

    def __call__(self, _item: object) -> _Result | _Elsewhere:
        if self.mark.is_here:
            return self.function()
        task = TaskContext.get()
        return _Elsewhere(socket.gethostname(), task is not None and task.attemptNumber() > 0)


class HostRunner:
    """Runs functions on hosts, one at a time on each; several threads may ask."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._known: list[Executor] = []
        self._at = float("-inf")
        self._addresses = cache(addresses)

    def run(self, host: str, function: Callable[[int], Callable[[], _Result]]) -> _Result:
        """The result of a function that runs on a host.

        Args:
            host: a name in lower case, or an address.
            function: made for so many cores: those of the executors there.

        Raises:
            SparkError: there is no executor, or none keeps up; Spark fails.
        """
        elsewhere = lost = 0
        while True:
            executors = self._wait(host, lost)
            mark = self._mark(host, executors)
            cores = max(sum(one.cores for one in executors), 1)
            found = self._run(host, executors[0].host, _Only(mark, function(cores)))
            if not isinstance(found, _Elsewhere):
                return found
            elsewhere, lost = elsewhere + 1, lost + found.lost
            if lost > _MOST_LOST:
                raise SparkError(
                    "its executor ended each time while it had the task",
                    found=f"{lost} executors that ended",
                    next_step="See their logs (too little memory?), and run the same command again",
                    host=host,
                )
            if elsewhere > _MOST_ELSEWHERE:
                raise SparkError(
                    "Spark has an executor on this host, but runs the task on others",
                    expected=_known_by(mark),
                    found=f"{elsewhere} tasks elsewhere, the last on {found.host}",
                    next_step="Name the host as Spark does; or raise spark.locality.wait, if it is busy",
                    host=host,
                )
            time.sleep(1.0)

    def _now(self) -> list[Executor]:
        """All of them, of at most two seconds ago."""
        with self._lock:
            if time.monotonic() - self._at >= _LOOK_SECONDS:
                self._known = self._look()
                self._at = time.monotonic()
            return self._known

    def _on(self, host: str) -> list[Executor]:
        """Those on a host, by its name in lower case or an address."""
        wanted = self._addresses(host)
        return [one for one in self._now() if one.host.lower() == host or self._addresses(one.host) & wanted]

    def _mark(self, host: str, executors: list[Executor]) -> HostMark:
        """What a host with these executors can be told by.

        Raises:
            SparkError: the name leads to several hosts.
        """
        names = sorted({one.host for one in executors})
        if len(names) > 1:
            raise SparkError(
                "this name leads to several hosts with executors, or to one that has several names",
                expected="one host",
                found=", ".join(names),
                next_step="Name the store's host by its address",
                host=host,
            )
        return HostMark(host, self._addresses(host) & self._addresses(names[0]))

    def _look(self) -> list[Executor]:
        # Scala's, through the gateway: the public StatusTracker doesn't know cores.
        scala: Any = self._context._jsc.sc()
        listed = scala.statusStore().executorList(True)
        found = []
        for number in range(listed.size()):
            one = listed.apply(number)
            if one.id() != "driver":
                host = str(one.hostPort()).rpartition(":")[0]
                found.append(Executor(host.removeprefix("[").removesuffix("]"), int(one.totalCores())))
        return found

    def _wait(self, host: str, lost: int) -> list[Executor]:
        """The executors on a host, as soon as there are some."""
        deadline = time.monotonic() + _EXECUTOR_SECONDS
        while True:
            executors = self._on(host)
            if executors:
                return executors
            if time.monotonic() >= deadline:
                raise self._none(host, lost > 0)
            time.sleep(_LOOK_SECONDS / 4)

    def _none(self, host: str, was_there: bool) -> SparkError:
        hosts = sorted({one.host for one in self._now()})
        return SparkError(
            "the executor on this host has ended, and no other came"
            if was_there
            else "no executor is on this host",
            expected=f"one within {_EXECUTOR_SECONDS:.0f} s",
            found=f"executors on {', '.join(hosts)}" if hosts else "no executors",
            next_step="Start a Spark worker there, or name the host as Spark does; then run the same command "
            "again",
            host=host,
        )

    def _run(self, host: str, place: str, task: _Only[_Result]) -> _Result | _Elsewhere:
        """One task's result; its preferred place is ``place``.

        Where no executor is left on any host, Spark would wait for ever.
        """
        from reput.spark.sessions import converting_spark_errors, spark_error

        tag = f"reput-{uuid.uuid4()}"
        results: list[_Result | _Elsewhere] = []
        errors: list[BaseException] = []

        def collect() -> None:
            try:
                self._context.addJobTag(tag)
                results.extend(self._placed(place).map(task).collect())
            except BaseException as error:  # noqa: BLE001 - told by the thread that waits
                errors.append(error)

        thread = threading.Thread(target=collect, name=f"reput-{host}", daemon=True)
        thread.start()
        missed = None
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)
            with converting_spark_errors():
                executors = self._on(host)
            now = time.monotonic()
            missed = None if executors else now if missed is None else missed
            if missed is not None and thread.is_alive() and now - missed >= _EXECUTOR_SECONDS:
                with suppress(PySparkException, Py4JError, ConnectionError):
                    self._context.cancelJobsWithTag(tag)
                raise self._none(host, was_there=True)
        if errors:
            if isinstance(errors[0], (PySparkException, Py4JError, ConnectionError)):
                raise spark_error(errors[0])
            raise errors[0]
        (found,) = results
        return found

    def _placed(self, host: str) -> RDD[object]:
        """One item, whose preferred place is a host. Only Scala's API takes places."""
        context: Any = self._context
        jvm = context._jvm
        pickled: Any = CPickleSerializer()
        item = jvm.scala.Tuple2(pickled.dumps(None), jvm.PythonUtils.toSeq([host]))
        of_bytes = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
        placed = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq([item]), of_bytes)
        return RDD(placed.toJavaRDD(), context, pickled)


def _known_by(mark: HostMark) -> str:
    return f"{mark.name} with address {', '.join(sorted(mark.addresses))}" if mark.addresses else mark.name
