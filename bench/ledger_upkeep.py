"""``python -m bench.ledger_upkeep``: what a batch of a tail costs journal and ledger, early and late."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from reput.format import names
from reput.output.journal import Journal
from reput.output.ledger import Ledger, LedgerUpkeep
from reput.replay.state import Batch, Opening, QueueState
from reput.store.system import human

_WINDOW = 100


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print a line for each tenfold number of batches."""
    parser = argparse.ArgumentParser(prog="python -m bench.ledger_upkeep", description=__doc__)
    parser.add_argument("--batches", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--queues", type=int, default=128, help="that each changes (default: %(default)s)")
    parser.add_argument("--rate", type=float, help="batches a second (default: as many as it takes)")
    parser.add_argument("--dir", type=Path, help="where to write; it is emptied at the end")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        measure(Path(place), options.batches, options.queues, options.rate)
    return 0


def measure(root: Path, batches: int, queues: int, rate: float | None) -> None:
    """Commit batches as a tail does, upkeep beside it."""
    appends: list[float] = []
    commits: list[float] = []
    print("| batches | journal p50 | p99 | ledger p50 | p99 | live files | files | on disk | memory |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    ledger = Ledger(root)
    with Journal.create(root / names.JOURNAL, Opening("/store", "bench", 0), None) as journal:
        with LedgerUpkeep(ledger) as upkeep:
            start = time.perf_counter()
            for number in range(batches):
                batch = _batch(number, queues)
                if rate:
                    time.sleep(max(0.0, start + number / rate - time.perf_counter()))
                before = time.perf_counter()
                journal.append(batch)
                between = time.perf_counter()
                ledger.catch_up(journal)
                appends.append(between - before)
                commits.append(time.perf_counter() - between)
                if _is_told(number + 1, batches):
                    print(_line(root, ledger, number + 1, appends, commits), flush=True)
        if upkeep.failure is not None:
            print(f"upkeep failed: {upkeep.failure}", file=sys.stderr)
    print(
        f"\nAll {batches:,}: journal p99 {_ms(appends, 0.99)}, longest {_ms(appends, 1)}; "
        f"ledger p99 {_ms(commits, 0.99)}, longest {_ms(commits, 1)}"
    )


def _batch(number: int, queues: int) -> Batch:
    return Batch(
        start=number * 750_000,
        end=(number + 1) * 750_000,
        batch_id=number,
        messages=2500,
        bytes=750_000,
        last_position=(number + 1) * 750_000 - 300,
        last_timestamp=1_700_000_000_000 + number * 50,
        last_unit_timestamp=1_700_000_000_000 + number * 50,
        last_unit_position=(number + 1) * 750_000 - 300,
        queues={
            (f"some-topic-{queue % 16}", queue // 16): QueueState(
                0, 20 * (number + 1), (number + 1) * 750_000 - queue, 20, 6000
            )
            for queue in range(queues)
        },
    )


def _is_told(number: int, batches: int) -> bool:
    return number == batches or (number >= _WINDOW and number == 10 ** (len(str(number)) - 1))


def _line(root: Path, ledger: Ledger, number: int, appends: list[float], commits: list[float]) -> str:
    live = len(ledger.table.files) if ledger.table is not None else 0
    sizes = [Path(place, name).stat().st_blocks * 512 for place, _, found in os.walk(root) for name in found]
    window = 10 * _WINDOW if number >= 10 * _WINDOW else _WINDOW
    cells = [
        f"{number:,}",
        _ms(appends[-window:], 0.5),
        _ms(appends[-window:], 0.99),
        _ms(commits[-window:], 0.5),
        _ms(commits[-window:], 0.99),
        live,
        len(sizes),
        human(sum(sizes)),
        human(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _ms(times: list[float], share: float) -> str:
    ordered = sorted(times)
    return f"{1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
