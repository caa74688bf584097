"""Damages stores in two or three ways at once, mends them, and says which don't come to rest."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tests.compat.jars import VERSIONS
from tests.compat.starts import QUEUE_FILE, SEGMENT, Bench
from tests.fixed_point.cases import STATES, Case, Original, drawn
from tests.fixed_point.damages import ALL
from tests.fixed_point.proof import Outcome, proven
from tests.fixed_point.starting import Started, start
from tests.fuzz.calm import calm

#: The bench's stores get their topics from the test, not from a file.
_OF_TOPICS = {"batch_topic", "config_broken"}


def main() -> int:
    """Run what was asked for; 1 when a case failed."""
    asked = _arguments()
    stores = asked.stores or Path(tempfile.mkdtemp(prefix="reput-stores-"))
    try:
        cases = list(_cases(asked))
        originals = _originals(stores, tuple(dict.fromkeys(case.version for case in cases)))
        return _run(cases, originals, asked)
    finally:
        if not asked.stores:
            shutil.rmtree(stores)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fixed_point", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many cases (300)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--skip", type=int, default=0, help="pass over so many of them")
    parser.add_argument("--versions", nargs="+", choices=VERSIONS, default=VERSIONS, help="of these releases")
    parser.add_argument("--kinds", nargs="+", choices=ALL, default=ALL, help="of these damages alone")
    parser.add_argument("--but", nargs="+", choices=ALL, default=[], help="not of these damages")
    parser.add_argument("--case", action="append", help="run this one, by the name in a line of a failure")
    parser.add_argument(
        "--start", type=int, default=0, metavar="N", help="let the real store start on N results"
    )
    parser.add_argument(
        "--stores",
        type=Path,
        help="where the written stores are, or are to be kept; after two hours 4.9 delivers what is delayed",
    )
    return parser.parse_args()


def _cases(asked: argparse.Namespace) -> Iterator[Case]:
    if asked.case:
        yield from map(Case.of, asked.case)
        return
    kinds = tuple(one for one in asked.kinds if one not in asked.but)
    yield from islice(drawn(asked.seed, tuple(asked.versions), kinds), asked.skip, asked.skip + asked.count)


def _originals(stores: Path, versions: tuple[str, ...]) -> dict[tuple[str, str], Original]:
    """What the real store writes, of each release in each state."""
    found = {}
    for version in versions:
        place = stores / version
        if not (place / STATES[-1]).exists():
            place.mkdir(parents=True)
            bench = Bench(version, place)
            bench.copy(STATES[-1], crash=STATES[-1])
            bench.close()
        for state in STATES:
            found[version, state] = Original(
                place / state, place / "broker.conf", version, SEGMENT, QUEUE_FILE
            )
    return found


def _run(cases: list[Case], originals: dict[tuple[str, str], Original], asked: argparse.Namespace) -> int:
    outcomes: dict[Case, Outcome] = {}
    started_at, every = time.monotonic(), max(len(cases) // asked.start, 1) if asked.start else 0
    with tempfile.TemporaryDirectory(prefix="reput-fixed-point-") as place, calm():
        kept: list[tuple[Case, Path, Path]] = []
        for number, case in enumerate(cases):
            directory = Path(place, str(number))
            directory.mkdir()
            keep = bool(asked.start) and len(kept) < asked.start and number >= len(kept) * every
            keep &= not _OF_TOPICS.intersection(case.kinds)
            outcome = outcomes[case] = proven(case, originals[case.version, case.state], directory, keep=keep)
            if outcome.why:
                print(f"FAILED {case}", *(f"    {why}" for why in outcome.why), sep="\n", flush=True)
            elif asked.case:
                print(f"{case}: {outcome.before} -> {outcome.after} {outcome.by_hand}")
            if (directory / "mended").exists() and outcome.starts:
                kept.append((case, directory / "mended", originals[case.version, case.state].conf))
                shutil.rmtree(directory / "store")
            else:
                shutil.rmtree(directory)
            if (number + 1) % 50 == 0:
                failed = sum(bool(one.why) for one in outcomes.values())
                seconds = time.monotonic() - started_at
                print(f"{number + 1:,} of {len(cases):,}, {failed} failed, {seconds:.0f} s", flush=True)
        started = start(kept, Path(place)) if kept else []
    return _said(outcomes, started)


def _said(outcomes: dict[Case, Outcome], started: list[Started]) -> int:
    failed = 0
    print(f"\n{'release':8} {'cases':>6} {'passed':>7} {'mended':>7} {'by hand':>8}")
    for version in sorted({case.version for case in outcomes}):
        of_it = [one for case, one in outcomes.items() if case.version == version]
        passed = sum(not one.why for one in of_it)
        failed += len(of_it) - passed
        mended, by_hand = sum(one.changed for one in of_it), sum(bool(one.by_hand) for one in of_it)
        print(f"{version:8} {len(of_it):6,} {passed:7,} {mended:7,} {by_hand:8,}")
    print("\nverdict before, and after")
    for (before, after), count in sorted(
        Counter((one.before, one.after) for one in outcomes.values()).items()
    ):
        print(f"{before or '-':16} {after or '-':16} {count:6,}")
    print("\nkind of damage: cases, failed")
    tried = Counter(kind for case in outcomes for kind in case.kinds)
    wrong = Counter(kind for case, one in outcomes.items() if one.why for kind in case.kinds)
    for kind in sorted(tried):
        print(f"{kind:32} {tried[kind]:6,} {wrong[kind]:6,}")
    for kind, count in Counter(kind for one in outcomes.values() for kind in one.by_hand).items():
        print(f"left to be done by hand: {kind} {count:,}")
    for one in started:
        if one.wrong:
            print(f"STARTED OTHERWISE {one.case}", *(f"    {why}" for why in one.wrong), sep="\n")
    otherwise = sum(bool(one.wrong) for one in started)
    print(
        f"\n{len(outcomes):,} cases, {failed} failed; the real store started on {len(started)} results, "
        f"on {otherwise} otherwise than foretold"
    )
    return int(failed > 0 or otherwise > 0)


if __name__ == "__main__":
    sys.exit(main())
