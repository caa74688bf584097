"""What can go wrong, and how it is said.

Two kinds of trouble are told apart:

* a :class:`ReputError` ends the run: nothing that was there before has been changed (exit code 2);
* a :class:`Finding` is something wrong in the input that the run could skip: it is reported,
  kept in the ledger, and the run ends with exit code 1.

Both carry the same facts: which file, at what offset, what was expected, what was found, what to do next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from functools import cache
from operator import attrgetter
from os import PathLike, fspath
from typing import Any, ClassVar, NamedTuple, TypeVar


class ReputError(Exception):
    """A refusal or a failure that ends the run.

    Attributes:
        problem: one sentence, without the path.
        path: the file or directory that it is about.
        offset: byte offset in that file or, for the commit log, the physical offset.
        expected: what should have been there.
        found: what was there.
        next_step: what the operator can do now.
        host: where it went wrong; None on the host that the command was given on.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str | PathLike[str] | None = None,
        offset: int | None = None,
        expected: object = None,
        found: object = None,
        next_step: str | None = None,
        host: str | None = None,
    ) -> None:
        self.problem = problem
        self.path = None if path is None else fspath(path)
        self.offset = offset
        self.expected = None if expected is None else str(expected)
        self.found = None if found is None else str(found)
        self.next_step = next_step
        self.host = host
        super().__init__(problem)

    def __str__(self) -> str:
        where = [self.path] if self.path else []
        if self.offset is not None:
            where.append(f"at offset {self.offset}" if where else f"offset {self.offset}")
        text = f"{' '.join(where)}: {self.problem}" if where else self.problem
        if self.expected is not None:
            text += f"; expected {self.expected}"
        if self.found is not None:
            text += f"{',' if self.expected is not None else ';'} found {self.found}"
        if self.next_step is not None:
            text += f". {self.next_step}"
        return text if self.host is None else f"on host {self.host}: {text}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel from executors to the driver by pickle; keyword-only arguments need help.
        return _rebuild, (type(self), self.problem, self.facts())

    def facts(self) -> dict[str, object]:
        """Everything but the problem sentence, as keyword arguments; the host only where there is one."""
        facts: dict[str, object] = {
            "path": self.path,
            "offset": self.offset,
            "expected": self.expected,
            "found": self.found,
            "next_step": self.next_step,
        }
        return facts if self.host is None else {**facts, "host": self.host}

    def document(self) -> dict[str, object]:
        """What a command prints as JSON where this ends it."""
        return {
            "exit_code": 2,
            "error": self.problem,
            "message": str(self),
            "path": self.path,
            "offset": self.offset,
            "expected": self.expected,
            "found": self.found,
            "host": self.host,
            "next_steps": [] if self.next_step is None else [self.next_step],
        }


def _rebuild(kind: type[ReputError], problem: str, facts: dict[str, Any]) -> ReputError:
    return kind(problem, **facts)


class SettingsError(ReputError):
    """A broker.conf value or a command-line option that can't be used."""


class StoreError(ReputError):
    """The store isn't one that can be read: no segments, segments of a wrong size, a foreign layout."""


class SegmentGoneError(StoreError):
    """A segment was deleted between being listed and being opened: it has expired, or the log was cut."""


class LogWentBackError(StoreError):
    """The log ends before what was read of it, or holds something else there: its broker cut it.

    ``offset`` is the first physical offset that is known not to be what it was; it may differ before that.
    """

    @classmethod
    def in_text(cls, text: str) -> int | None:
        """The offset of the last such error in another process's words, as Spark hands them on; else None."""
        found = re.findall(rf"reput\.errors\.{cls.__name__}: .*? at offset ([0-9]+): ", text)
        return int(found[-1]) if found else None


class RemoteStoreError(ReputError):
    """A store elsewhere can't be read, or isn't what it was when the run was planned: that ends a run.

    No :class:`StoreError`: what deals with one of a file here would take it for something that isn't there.
    """


class StoreInUseError(ReputError):
    """A broker, or another reput, holds the store or the output."""


class OutputError(ReputError):
    """The output can't be written: no space, no permission, files that aren't ours."""


class OtherHostError(OutputError):
    """A task can't write into files that tasks on other hosts write, too: they share no page cache."""


class JournalError(ReputError):
    """The journal in the output can't be trusted or belongs to another run."""


class UnsupportedError(ReputError):
    """A store feature that this version of reput doesn't derive."""


class SparkError(ReputError):
    """Spark can't run here, or failed by itself."""


class PackError(ReputError):
    """An environment can't be packed for other hosts."""


class BrokerError(ReputError):
    """A running broker, or RocketMQ's client, refused or didn't answer; ``path`` is the name server."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What is said of one file or directory: the base of all that commands find.

    Attributes:
        kind: a stable, hyphenated name, e.g. ``"bad-magic"``.
        path: the file or directory.
    """

    kind: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}: {self.said}"

    @property
    def said(self) -> str:
        """The fact in words, without its kind and its path."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, object]:
        """What every command prints as JSON of what it found, in one shape; docs/data/json.md has the fields.

        What doesn't apply is None. Ranges are half open.
        """
        facts: dict[str, object] = {
            "kind": self.kind,
            "said": self.said,
            "path": self.path,
            "file_offset": None,
            "file_end": None,
            "physical_offset": None,
            "physical_end": None,
            "topic": None,
            "queue_id": None,
            "queue_offset": None,
            "queue_end": None,
            "count": 1,
            "expected": None,
            "found": None,
            "outcome": None,
            "next_steps": [],
        }
        return facts | {one.name: getattr(self, one.name) for one in fields(self) if one.name in facts}


#: How a finding ends that is about a record which reput has put in the place of damage.
STAND_IN = "a stand-in of `reput mend`"


@dataclass(frozen=True, slots=True)
class LogFact(Fact):
    """What is said of a range of the commit log: offset, end: physical offsets, half open."""

    offset: int
    end: int

    def to_dict(self) -> dict[str, object]:
        """As :meth:`Fact.to_dict`."""
        return {**Fact.to_dict(self), "physical_offset": self.offset, "physical_end": self.end}


@dataclass(frozen=True, slots=True)
class Finding(LogFact):
    """Something wrong in the input that was reported and skipped; docs/findings.md lists the kinds.

    Attributes:
        expected: what should have been there.
        found: what was there.
        outcome: what reput did about it.
        topic: the topic concerned, or None.
        queue_id: the queue concerned, or None.
        queue_offset: the first queue offset concerned, or None.
        count: how many of the same kind this row stands for (repeats in one queue are grouped).
    """

    expected: str
    found: str
    outcome: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    count: int = 1

    @property
    def is_stand_in(self) -> bool:
        """Whether damage was there, and reput has put a record in its place that brokers pass over."""
        return self.found.endswith(STAND_IN)

    @property
    def said(self) -> str:
        """What was expected and found, and what came of it."""
        return f"expected {self.expected}, found {self.found}; {self.outcome}"

    def stored(self) -> dict[str, object]:
        """The finding by the names of its attributes, as journals keep it."""
        return asdict(self)

    def __str__(self) -> str:
        where = f"{self.path} at physical offset {self.offset}"
        if self.end > self.offset:
            where += f" to {self.end}"
        if self.topic is not None:
            where += f", queue {self.topic}:{self.queue_id}"
        if self.queue_offset is not None:
            where += f" at queueOffset {self.queue_offset}"
        what = f"{where}: {self.kind}: {self.said}"
        return what if self.count == 1 else f"{what} ({self.count} times)"


#: What documents call attributes that code calls otherwise: as in all of them (docs/interface.md).
_NAMES = {
    "made_at": "made_ms",
    "first_time": "first_store_timestamp",
    "last_time": "last_store_timestamp",
    "oldest_stored": "oldest_store_timestamp",
    "least": "min_size",
    "most": "max_size",
    "mean": "mean_size",
    "p50": "p50_size",
    "p90": "p90_size",
    "p99": "p99_size",
    "not_seen": "not_read",
}
_PLAIN = frozenset({"str", "int", "float", "bool", "None"})


class _Form(NamedTuple):
    """How a dataclass becomes an object, of which there may be 100,000."""

    names: dict[str, str]  # what documents call each attribute
    values: Callable[[Any], tuple[Any, ...]]  # gives those of all
    held: list[str]  # of these names, those of values that may have to become something else


@cache
def _form(kind: Any) -> _Form:
    names = {one.name: _NAMES.get(one.name, one.name) for one in fields(kind)}
    held = [
        names[one.name] for one in fields(kind) if not _PLAIN.issuperset(re.findall(r"\w+", str(one.type)))
    ]
    return _Form(names, attrgetter(*names, "__class__"), held)


def json_of(value: Any) -> Any:
    """A value as JSON has it: what is a dataclass as an object, paths as texts."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "__dataclass_fields__"):
        kind: Any = type(value)
        names, values, held = _form(kind)
        found = dict(zip(names.values(), values(value), strict=False))
        for name in held:
            found[name] = json_of(found[name])
        return found
    if isinstance(value, list | tuple):
        return [json_of(one) for one in value]
    if isinstance(value, dict):
        return {name: json_of(one) for name, one in value.items()}
    return fspath(value) if isinstance(value, PathLike) else value


class Result:
    """What came of a command: a dataclass. Its document has its fields but ``hidden`` ones, and ``more``."""

    __slots__ = ()

    hidden: ClassVar[tuple[str, ...]] = ()

    @property
    def exit_code(self) -> int:
        """0 when nothing is wrong, 1 with findings."""
        return int(bool(getattr(self, "findings", ())))

    def more(self) -> dict[str, Any]:
        """What isn't a field, or stands in the place of one."""
        return {}

    def to_dict(self) -> dict[str, object]:
        """The facts as a JSON-ready mapping."""
        kind: Any = type(self)
        shown = {name: said for name, said in _form(kind).names.items() if name not in self.hidden}
        facts = {said: getattr(self, name) for name, said in shown.items()}
        settings, basis = (facts.pop(name, None) for name in ("settings", "basis"))
        if settings is not None:
            basis = settings.basis
            facts = {"store": settings.place, "rocketmq_version": "", "settings": basis, **facts}
        if basis is not None:
            facts |= {"rocketmq_version": basis.rocketmq_version, "settings": basis}
        if "seconds" in facts:
            facts["seconds"] = round(facts["seconds"], 3)
        return {name: json_of(one) for name, one in (facts | self.more()).items()}


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """How often each kind was found, by kind."""
    found: dict[str, int] = {}
    for finding in findings:
        found[finding.kind] = found.get(finding.kind, 0) + finding.count
    return dict(sorted(found.items()))


_E = TypeVar("_E", bound=ReputError)


@dataclass(frozen=True, slots=True)
class Problem(Fact):
    """One thing that a start stumbles over; docs/findings.md lists the kinds."""

    expected: str  # what should have been there
    found: str  # what was there
    outcome: str  # what the broker does about it
    next_step: str  # what the operator can do
    stops: bool = False  # the broker doesn't start
    hides: bool = False  # it loads nothing of the directory from here on

    @property
    def unloads(self) -> bool:
        """Whether files of the directory aren't loaded."""
        return self.stops or self.hides

    @property
    def said(self) -> str:
        """What was expected and found, and what comes of it."""
        return f"expected {self.expected}, found {self.found}; {self.outcome}"

    def to_dict(self) -> dict[str, object]:
        """As :meth:`Fact.to_dict`, and whether it stops the start."""
        return {**Fact.to_dict(self), "next_steps": [self.next_step], "stops": self.stops}

    def error(self, kind: type[_E], text: str) -> _E:
        """The problem as what ends a run: ``text`` says in one sentence what can't be done."""
        return kind(text, path=self.path, expected=self.expected, found=self.found, next_step=self.next_step)


class StartFailsError(Exception):
    """The broker fails here, and doesn't start."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem
