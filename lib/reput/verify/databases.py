"""A database, compared key by key: with what the log says, or with another store's.

Keys are read in their order beside the expected ones, so that a task holds its share of these and a block of
the database, however many keys there are. :mod:`reput.verify.rocksdb_queues` and
:mod:`reput.verify.rocksdb_index` know what keys and values mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reput.errors import UnsupportedError
from reput.newer_python import Self
from reput.replay.runner import Runner
from reput.rocksdb import is_database, opened
from reput.verify.plan import Plan
from reput.verify.report import ONLY_FIRST, ONLY_SECOND, Difference

#: A key, and its value as it is expected and as it is there; None where it isn't.
Odd = tuple[bytes, bytes | None, bytes | None]
KeyBlocks = Iterator[tuple[Sequence[bytes], Sequence[bytes]]]

#: Ranges of keys that a slot gets to compare.
RANGES_A_SLOT = 3


def odd_keys(expected: Mapping[bytes, bytes], found: KeyBlocks) -> Iterator[Odd]:
    """What isn't as it is expected: what is there, by keys, block by block; then what is missing, by keys."""
    missing = dict(expected)
    for keys, values in found:
        there = dict(zip(keys, values, strict=True))
        yield from (
            (key, expected.get(key), value) for key, value in sorted(there.items() - expected.items())
        )
        for key in missing.keys() & there.keys():
            del missing[key]
    yield from ((key, missing[key], None) for key in sorted(missing))


@dataclass(slots=True)
class Listed:
    """What differs, by kind: the first ones, and how many of all."""

    odd: dict[str, list[Odd]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, odd: Odd, most: int = 64) -> None:
        """Take one more."""
        self.counts[kind] += 1
        if len(listed := self.odd.setdefault(kind, [])) < most:
            listed.append(odd)

    def each(self) -> Iterator[tuple[str, Odd, int]]:
        """(kind, what differs, how many it stands for): the last of a kind stands for those not listed."""
        for kind, listed in self.odd.items():
            rest = self.counts[kind] - len(listed)
            for number, odd in enumerate(listed, 1):
                yield kind, odd, 1 + (rest if number == len(listed) else 0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What of the log a database is compared with, in physical offsets."""

    start: int  # where the log begins
    live_end: int | None  # where a broker writes meanwhile: up to which the log was looked at
    #: from which on the database needn't have anything, since a start dispatches it again; None: it has all
    flushed: int | None

    @classmethod
    def of(cls, plan: Plan, marked: int) -> Self:
        """Those of a verification; ``marked`` is up to where the database has all, by its own mark."""
        again = plan.running or plan.crashed
        return cls(plan.log.start, plan.end if plan.running else None, marked if again else None)

    def is_live(self, position: int) -> bool:
        """Whether a broker may have added this meanwhile."""
        return self.live_end is not None and position >= self.live_end


def refuse_other_hosts(runner: Runner, directory: Path) -> None:
    """See that all tasks run where a database was caught."""
    if not runner.is_local:
        raise UnsupportedError(
            "a database is compared on one host, which holds it still for all tasks",
            path=directory,
            expected="--master local[*]",
            found="tasks on other hosts",
            next_step="Run this on the store's host, or name the store with its host: HOST:/PATH",
        )


class DatabaseCheck:
    """A database of one run; nothing is done where the settings have none.

    ``scratch`` is where tasks put what the log has for ``compare``; None where nothing is compared.
    """

    def __init__(self, plan: Plan, runner: Runner, directory: Path, area: str) -> None:
        self.scratch: Path | None = None
        self.directory = directory
        self._plan = plan
        self._runner = runner
        self._area = area
        self._held: Path | None = None  # where it was caught
        self._runs: list[str] = []
        self._problems: list[Difference] = []

    def _differs(self, kind: str, expected: str, found: str, **facts: Any) -> Difference:
        area = facts.pop("area", self._area)
        return Difference(kind, str(self.directory), area, expected, found, offset=None, **facts)


def differing_keys(
    held: Sequence[Path], places: Sequence[Path], family: str, first: bytes, stop: bytes | None
) -> Iterator[tuple[Sequence[bytes], list[Odd]]]:
    """The first store's keys of [first, stop), many at once, and what differs there, by keys."""
    with opened(held[0], named=places[0]) as one, opened(held[1], named=places[1]) as other:
        here = first
        for keys, values in one.blocks(family, first, stop):
            end = keys[-1] + b"\0"
            mine = dict(zip(keys, values, strict=True))
            yield keys, sorted(odd_keys(mine, other.blocks(family, here, end)), key=lambda odd: odd[0])
            here = end
        if stop is None or here < stop:
            yield (), list(odd_keys({}, other.blocks(family, here, stop)))


def lacking(places: Sequence[Path], area: str, what: str) -> Difference | None:
    """That one of two stores has no database; None where both have theirs."""
    there = [is_database(place) for place in places]
    if all(there):
        return None
    kind = ONLY_FIRST if there[0] else ONLY_SECOND
    return Difference(kind, str(places[there[0]]), area, what, "none", offset=None)
