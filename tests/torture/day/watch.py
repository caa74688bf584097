"""A day's tail from outside: its memory, how far it is behind, its restarts; and the file of results."""

from __future__ import annotations

import json
import re
import statistics
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from bench import usage
from reput.job.status import RunNote
from reput.newer_python import UTC
from tests.torture import processes
from tests.torture.tailing import Tailing
from tests.torture.verify import WrongError

_METRIC = re.compile(r"^(reput_\w+)(?:\{reason=\"([^\"]*)\"\})? ([0-9.e+-]+)$", re.MULTILINE)
_RESTARTS = "reput_restarts_total"
#: Memory that grew by no more than this is called flat.
FLAT = 0.10
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a tail.

    Attributes:
        at: seconds since the day began.
        tail: which of its tails.
        own: bytes of anonymous memory of all its processes, what forks share counted once.
        anonymous: the same, what forks share counted in each.
        by_kind: ``own`` by kind of process.
        behind: bytes of log that it hasn't committed.
        lag: seconds since the oldest message in these was stored.
    """

    at: float
    tail: int
    own: int
    anonymous: int
    by_kind: dict[str, int]
    behind: int
    lag: float


@dataclass(slots=True)
class Watch:
    """Samples of all tails of a day.

    Attributes:
        samples: in order.
        restarts: of pipelines within tails that have ended, by reason.
    """

    samples: list[Sample] = field(default_factory=list)
    restarts: Counter[str] = field(default_factory=Counter)
    _now: Counter[str] = field(default_factory=Counter)

    def look(self, tail: Tailing, number: int, at: float) -> Sample | None:
        """Take a sample; None while the tail serves no metrics."""
        values = metrics(tail)
        if values is None:
            return None
        self._now = Counter(
            {reason: int(value) for (name, reason), value in values.items() if name == _RESTARTS}
        )
        used = usage.look(processes.marked(tail.mark), tail.process.pid).values()
        kinds: Counter[str] = Counter()
        for one in used:
            kinds[one.name] += one.own
        sample = Sample(
            at=at,
            tail=number,
            own=kinds.total(),
            anonymous=sum(one.anonymous for one in used),
            by_kind=dict(kinds),
            behind=int(values.get(("reput_lag_bytes", ""), 0)),
            lag=values.get(("reput_lag_seconds", ""), 0.0),
        )
        self.samples.append(sample)
        return sample

    def ended(self) -> None:
        """The tail has ended; the next one counts its restarts from 0."""
        self.restarts += self._now
        self._now = Counter()

    def all_restarts(self) -> dict[str, int]:
        """By reason, of the present tail, too."""
        return {reason: count for reason, count in (self.restarts + self._now).items() if count}

    def since(self, at: float) -> list[Sample]:
        """The samples from this second on."""
        return [sample for sample in self.samples if sample.at >= at]

    def memory(self) -> dict[str, object]:
        """How memory has changed: over the whole day, and in the longest life of one tail.

        Each is the median of the first hour, and that of the last (of less than two hours, of the first and
        the last quarter). The first twelfth of that life isn't counted: it catches up, and comes to rest.
        Only of that life is said whether it is flat: a day has many young tails, more in one hour than in
        another.

        Raises:
            WrongError: there is no sample.
        """
        if not self.samples:
            raise WrongError("memory was never looked at: no tail served its metrics")
        lives: dict[int, list[Sample]] = {}
        for sample in self.samples:
            lives.setdefault(sample.tail, []).append(sample)
        longest = max(lives.values(), key=lambda life: life[-1].at - life[0].at)
        rest = longest[0].at + (longest[-1].at - longest[0].at) / 12
        return {
            "day": _change(self.samples),
            "longest_life": {
                **(life := _change([one for one in longest if one.at >= rest])),
                "flat": _flat(life),
            },
            "peak_bytes": max(sample.own for sample in self.samples),
            "peak_anonymous_bytes": max(sample.anonymous for sample in self.samples),
        }


def _change(samples: list[Sample]) -> dict[str, float]:
    first, last = samples[0].at, samples[-1].at
    span = _HOUR if last - first >= 2 * _HOUR else (last - first) / 4
    begin = int(statistics.median(sample.own for sample in samples if sample.at <= first + span))
    end = int(statistics.median(sample.own for sample in samples if sample.at >= last - span))
    return {
        "seconds": round(last - first),
        "window_seconds": round(span),
        "first_bytes": begin,
        "last_bytes": end,
        "change": round(end / begin - 1, 4),
    }


def _flat(life: dict[str, float]) -> bool | None:
    """Whether memory stayed as it was; of less than an hour, in which a JVM's heap rests, nothing is said."""
    return life["change"] <= FLAT if life["seconds"] >= 0.9 * _HOUR else None


def metrics(tail: Tailing) -> dict[tuple[str, str], float] | None:
    """The values that a tail serves, by name and reason (empty for most); None while it serves none."""
    note = RunNote.read(tail.out)
    if note is None or note.pid != tail.process.pid or note.metrics is None:
        return None
    try:
        with urllib.request.urlopen(note.metrics, timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    return {(name, reason): float(value) for name, reason, value in _METRIC.findall(text)}


class Results:
    """A file with one JSON object a line, each on disk as soon as it is written.

    Args:
        path: the file; what it holds stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, kind: str, **facts: object) -> None:
        """Add a line."""
        line = json.dumps({"kind": kind, "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", **facts})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
