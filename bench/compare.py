"""``python -m bench.compare TREE_A TREE_B``: which figures of two trees differ beyond noise.

Both trees rebuild the same logs and answer about the same stores, by turns (A B, B A, …), each time in a new
process, so that what the machine does beside hits both alike. What they write is compared. A figure is called
different if so great a mean of the pairs' ratios would come of swapping A and B at random in at most one of
twenty cases (a sign test by all swaps): that needs six pairs at least.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from bench import machine
from bench.__main__ import size
from bench.errors import BenchError, say, told
from bench.generate import Log, log_directory, warm_page_cache, write_log
from bench.process import run
from bench.queues import SMALL_FILES, many_queues
from reput.format import names
from reput.store.compare import compare
from tests.compat.conf import conf_text

FIGURES = ("cold", "warm", "queues", "check", "lag")
_VERSION = "5.5.0"
_SURE = 0.05
_MOST_SWAPPED = 14


@dataclass(frozen=True, slots=True)
class Ratio:
    """What came of a figure's pairs.

    Attributes:
        median: of B's seconds divided by A's.
        low, high: the least and the greatest.
        chance: how often swapping A and B at random would make as great a difference.
    """

    median: float
    low: float
    high: float
    chance: float

    @property
    def is_sure(self) -> bool:
        """Whether it is beyond noise."""
        return self.chance <= _SURE


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Compare two trees by the seconds of A and B in some pairs of runs, at most 14."""
    ratios = [b / a for a, b in pairs]
    logs = [math.log(each) for each in ratios]
    seen = abs(sum(logs)) - 1e-12
    swapped = [
        abs(sum(sign * each for sign, each in zip(signs, logs, strict=True)))
        for signs in product((1, -1), repeat=len(logs))
    ]
    chance = sum(each >= seen for each in swapped) / len(swapped)
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), chance)


class _Measuring:
    """Takes the figures of one tree at a time.

    Args:
        home: a directory of its own; what is written stays until the end.
        log: for ``cold`` and ``warm``.
        many: for the others: a log of many queues.
    """

    def __init__(self, home: Path, log: Log | None, many: Log | None, cores: int) -> None:
        self._home = home
        self._log = log
        self._many = many
        self._cores = cores
        self._count = 0
        self._conf = home / "broker.conf"
        self._conf.write_text(conf_text(SMALL_FILES), encoding="utf-8")
        self._written: dict[str, Path] = {}
        self._full: Path | None = None

    def take(self, figure: str, tree: Path) -> float:
        """Seconds of one run."""
        takes: dict[str, Callable[[Path], float]] = {
            "cold": self._cold,
            "warm": self._warm,
            "queues": self._queues,
            "check": lambda tree: self._asked("check", tree),
            "lag": lambda tree: self._asked("lag", tree),
        }
        return takes[figure](tree)

    def _out(self) -> Path:
        self._count += 1
        return self._home / f"out-{self._count}"

    def _run(self, tree: Path, *words: str) -> tuple[float, str]:
        done = run(words, self._cores, self._home, tree / "lib")
        return done.seconds, done.output

    def _cold(self, tree: Path) -> float:
        log, out = self._needed(self._log), self._out()
        words = ("rebuild", str(log.store), "--out", str(out), "--rocketmq-version", _VERSION)
        seconds, _ = self._run(tree, "-m", "reput.cli", *words, "--master", f"local[{self._cores}]")
        self._same("rebuild", out)
        return seconds

    def _warm(self, tree: Path) -> float:
        log, outs = self._needed(self._log), [self._out(), self._out()]
        words = (str(log.store), _VERSION, f"local[{self._cores}]", *map(str, outs))
        _, said = self._run(tree, "-m", "bench.warm", *words)
        self._same("rebuild", outs[-1])
        return float(json.loads(said)[-1]["seconds"])

    def _queues(self, tree: Path) -> float:
        log, out = self._needed(self._many), self._out()
        words = ("--one", str(log.store), _VERSION, str(self._conf), str(out))
        _, said = self._run(tree, "-m", "bench.queues", *words)
        self._same("queues", out / "1")
        return float(json.loads(said)["seconds"])

    def _asked(self, command: str, tree: Path) -> float:
        store = self._store(tree)
        words = (command, str(store), "--broker-conf", str(self._conf), "--rocketmq-version", _VERSION)
        seconds, _ = self._run(tree, "-m", "reput.cli", *words, "--json")
        return seconds

    def _store(self, tree: Path) -> Path:
        """A store of many queues, with what a group has committed of each; made once."""
        if self._full is None:
            log, self._full = self._needed(self._many), self._out()
            words = ("rebuild", str(log.store), "--out", str(self._full), "--rocketmq-version", _VERSION)
            self._run(tree, "-m", "reput.cli", *words, "--broker-conf", str(self._conf))
            (self._full / names.COMMIT_LOG).symlink_to(log.store / names.COMMIT_LOG)
            queues = self._full / names.CONSUME_QUEUE
            table = {
                f"{topic.name}@group": {queue.name: 1 for queue in topic.iterdir()}
                for topic in queues.iterdir()
            }
            (self._full / names.CONFIG).mkdir()
            offsets = self._full / names.CONFIG / "consumerOffset.json"
            offsets.write_text(json.dumps({"offsetTable": table}), encoding="utf-8")
        return self._full

    def _needed(self, log: Log | None) -> Log:
        if log is None:
            raise BenchError("no log was made for this figure")
        warm_page_cache(log)
        return log

    def _same(self, what: str, out: Path) -> None:
        """See that both trees write the same, and keep only the first."""
        first = self._written.setdefault(what, out)
        found = compare(first, out).differences if first != out else ()
        if found:
            raise BenchError(f"the trees write different bytes: {found[0]} ({len(found)} in all)")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE", help="two work trees of reput")
    parser.add_argument("--pairs", type=int, default=6, help="runs of each tree (default: %(default)s)")
    parser.add_argument("--size", type=size, default=1 << 30, help="bytes of commit log (default: 1g)")
    parser.add_argument("--queues", type=int, default=10_000, help="of the store of many queues")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "reput-bench")
    parsed = parser.parse_args(words)
    if not 1 <= parsed.pairs <= _MOST_SWAPPED:
        parser.error(f"--pairs: 1 to {_MOST_SWAPPED}")
    for tree in parsed.trees:
        if not (tree / "lib" / "reput").is_dir():
            parser.error(f"{tree}: no work tree of reput")
    return parsed


def measure(options: argparse.Namespace, home: Path) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """The pairs of each figure, seconds of A and B.

    Raises:
        BenchError: a run failed, or the trees write different bytes.
    """
    log = many = None
    if {"cold", "warm"}.intersection(options.only):
        log = write_log(options.dir, _VERSION, options.size)
    if {"queues", "check", "lag"}.intersection(options.only):
        many = many_queues(home, _VERSION, options.queues)
    measuring = _Measuring(home, log, many, len(os.sched_getaffinity(0)))
    first, second = (tree.resolve() for tree in options.trees)
    for figure in options.only:
        pairs = []
        for turn in range(options.pairs):
            trees = (first, second) if turn % 2 == 0 else (second, first)
            took = {tree: measuring.take(figure, tree) for tree in trees}
            pairs.append((took[first], took[second]))
            say(f"{figure}: A {took[first]:.2f} s, B {took[second]:.2f} s")
        yield figure, pairs


def lines(found: Sequence[tuple[str, list[tuple[float, float]]]]) -> Iterator[str]:
    """The figures as a table in Markdown."""
    yield "| figure | A | B | B / A | runs | |"
    yield "| --- | ---: | ---: | ---: | --- | --- |"
    for figure, pairs in found:
        one = ratio(pairs)
        seconds = [statistics.median(column) for column in zip(*pairs, strict=True)]
        verdict = "within noise"
        if one.is_sure:
            verdict = "B takes longer" if one.median > 1 else "B is faster"
        yield (
            f"| {figure} | {seconds[0]:.2f} s | {seconds[1]:.2f} s | {one.median:.2f} "
            f"| {one.low:.2f} to {one.high:.2f} | {verdict} ({one.chance:.2f} by chance) |"
        )


@told
def main(words: Sequence[str] | None = None) -> int:
    """Compare two trees; returns the exit code."""
    options = arguments(words)
    began = time.perf_counter()
    home = log_directory(options.dir, _VERSION, options.size)
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        found = list(measure(options, Path(place)))
    print(*lines(found), sep="\n")
    print(f"\n{options.pairs} pairs, {time.perf_counter() - began:.0f} s")
    print(*(f"{name}: {fact}" for name, fact in machine.facts(options.dir).items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
