"""``make day``: a day's messages through one tail, with restarts, expiry, cuts and a full disk on the way.

The real store is fed at a steady rate, and its oldest segments expire; ``reput tail`` follows it. At moments
drawn by chance the tail is stopped, killed, or its disk is full, and the store is stopped, killed, or loses
the end of its log. What the tail has committed is compared all along with what a real store that is never
killed derives from the same log, and all that hasn't expired once more in the end.

Exit code 0: no byte differs, no message is missing. 1: something is wrong, or memory has grown. 2: it can't
be run here.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.compat.jars import VERSIONS
from tests.torture.day.disk import DiskError, unmount
from tests.torture.day.run import Day
from tests.torture.day.watch import Results
from tests.torture.verify import WrongError

_OF_A_DAY = 86_400_000
_ROOT = Path(__file__).parents[3]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make day ARGS=…", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=_OF_A_DAY, help="in all (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=10_000, help="messages a second (default: %(default)s)")
    parser.add_argument(
        "--each",
        type=int,
        help="how often each event happens (default: 4, or 1 of less than 10,000,000 messages)",
    )
    parser.add_argument(
        "--every", type=float, help="seconds between two lines of results (default: 60; 5 of a short run)"
    )
    parser.add_argument(
        "--version", choices=VERSIONS, default="5.5.0", help="RocketMQ's (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="of what happens, and when (default: the time)"
    )
    parser.add_argument(
        "--directory", type=Path, help="emptied first, stays afterwards (default: one that is removed)"
    )
    parser.add_argument("--results", type=Path, help="gets a line a minute (default: build/day-SEED.jsonl)")
    arguments = parser.parse_args()
    is_short = arguments.messages < 10_000_000
    each = (1 if is_short else 4) if arguments.each is None else arguments.each
    every = (5.0 if is_short else 60.0) if arguments.every is None else arguments.every
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    results = Results((arguments.results or _ROOT / "build" / f"day-{seed}.jsonl").resolve())
    place = (arguments.directory or Path(tempfile.mkdtemp(prefix="reput-day-"))).resolve()
    unmount(place / "disk")  # of a run that was killed
    shutil.rmtree(place, ignore_errors=True)
    # So that stores, tail and disk go with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {line}", flush=True)

    say(f"RocketMQ {arguments.version}, seed {seed}, in {place}; results: {results.path}")
    settings = {"messages": arguments.messages, "rate": arguments.rate, "each": each, "every": every}
    results.write("settings", version=arguments.version, seed=seed, **settings)
    try:
        day = Day(place, arguments.version, seed=seed, results=results, say=say, **settings)
        outcome = day.run()
    except DiskError as error:
        say(f"the output needs a file system of its own, which root can mount: {error}")
        return 2
    except BaseException as error:
        results.write(
            "end", outcome="wrong" if isinstance(error, WrongError) else "ended early", error=str(error)
        )
        say(f"{'WRONG' if isinstance(error, WrongError) else 'ended early'}: {error}")
        say(f"{place} has the stores, and the output in {place / 'image'}; the same moments: --seed {seed}")
        if isinstance(error, WrongError):
            return 1
        raise
    flat = outcome.is_flat is not False
    results.write("end", outcome="0 bytes differ" if flat else "memory has grown", **outcome.facts)
    if arguments.directory is None:
        shutil.rmtree(place)
    print(f"\nRocketMQ {arguments.version}, seed {seed}")
    print("\n".join(outcome.lines()))
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
