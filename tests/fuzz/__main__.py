"""Turns every bit of a small store, and cuts it at every length: ``make fuzz``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.specimen import ORDERED_PARTS, PARTS, STEPS, STORES, Specimen


def main() -> int:
    """Run what was asked for, and print what came of it; 1 when a case failed."""
    asked = _arguments()
    if asked.bounds:
        # Read when numba is imported. Code with checks must not end up among that without.
        os.environ["NUMBA_BOUNDSCHECK"] = "1"
        cache = os.environ.setdefault(
            "NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir()) / "reput-fuzz-numba")
        )
        print(f"bounds of arrays are checked; kernels are kept in {cache}")
    tried = failed = 0
    for version in asked.version or STORES:
        cases, failures = _run(version, asked)
        tried, failed = tried + cases, failed + failures
    print(f"\n{tried:,} changes, {failed} failed")
    return int(failed > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--version", action="append", choices=STORES, help="only this store")
    parser.add_argument(
        "--part",
        action="append",
        choices=sorted({*PARTS, *ORDERED_PARTS}),
        help="only this part of the store",
    )
    parser.add_argument("--limit", type=int, help="only so many changes of each part")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many work at once")
    parser.add_argument("--only", choices=STEPS, help="only this, instead of all that is asked of a change")
    parser.add_argument("--bounds", action="store_true", help="let numba check the bounds of its arrays")
    return parser.parse_args()


def _run(version: str, asked: argparse.Namespace) -> tuple[int, int]:
    """How many changes were tried, and how many failed."""
    from tests.fuzz.run import Result, run

    with tempfile.TemporaryDirectory() as place:
        specimen = Specimen.make(version, Path(place))
        cases = [
            (part, change)
            for part in specimen.parts
            if not asked.part or part in asked.part
            for change in specimen.chosen(part, asked.limit, asked.seed)
        ]
    started, told, failures = time.monotonic(), 0.0, 0

    def said(result: Result) -> None:
        nonlocal told, failures
        for change, why in result.failures[failures:]:
            print(f"{version}: FAILED {change}: {why}", file=sys.stderr, flush=True)
        failures = len(result.failures)
        if time.monotonic() - told > 30:
            told = time.monotonic()
            done = result.cases.total()
            print(
                f"{version}: {done:,} of {len(cases):,}, {len(result.failures)} failed, "
                f"{told - started:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    result = run(version, cases, asked.processes, said, only=asked.only)
    seconds = time.monotonic() - started
    print(f"\n{version}: {result.cases.total():,} cases in {seconds:.0f} s, {len(result.failures)} failed")
    print(f"  longest case  {result.longest[0] * 1000:.0f} ms ({result.longest[1]})")
    for part in dict.fromkeys((*PARTS, *ORDERED_PARTS)):
        if result.cases[part]:
            _print_part(part, result.cases[part], result.told)
    for change, why in result.failures:
        print(f"  FAILED {change}: {why}")
    sys.stdout.flush()
    return result.cases.total(), len(result.failures)


def _print_part(part: str, cases: int, told: Counter[tuple[str, str]]) -> None:
    print(f"  {part}: {cases:,} cases")
    for (_, name), count in sorted((key, count) for key, count in told.items() if key[0] == part):
        print(f"    {count:9,}  {name}")


if __name__ == "__main__":
    sys.exit(main())
