"""``make torture``: kill a tail, or other commands, a hundred times; count what differs in the end."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.compat.jars import VERSIONS
from tests.torture.commands import CASES, Commands
from tests.torture.going_back import GoingBack
from tests.torture.run import Torture
from tests.torture.steps import STEPS
from tests.torture.verify import WrongError


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torture ARGS=…", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="at random moments (default: %(default)s)")
    parser.add_argument(
        "--going-back", type=int, metavar="N", help="lose the broker's power N times instead; no other kills"
    )
    parser.add_argument(
        "--broker", action="store_true", help="behind a whole broker with clients, not its store alone"
    )
    parser.add_argument(
        "--commands",
        nargs="*",
        metavar="NAME",
        choices=[case.name for case in CASES],
        help="not a tail, but the other commands that write, or these; of 5.x",
    )
    parser.add_argument("--no-steps", action="store_true", help="no kills at the protocol's named steps")
    parser.add_argument(
        "--version", choices=VERSIONS, default="5.5.0", help="RocketMQ's (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=None, help="of moments and messages (default: the time)")
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second (default: %(default)s)")
    parser.add_argument("--directory", type=Path, help="stays afterwards (default: one that is removed)")
    arguments = parser.parse_args()
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    place = arguments.directory or Path(tempfile.mkdtemp(prefix="reput-torture-"))
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {line}", flush=True)

    say(f"RocketMQ {arguments.version}, seed {seed}, in {place}")
    settings = {"seed": seed, "rate": arguments.rate, "say": say}
    try:
        if arguments.commands is not None:
            cases = [case for case in CASES if not arguments.commands or case.name in arguments.commands]
            commands = Commands(place, arguments.version, seed=seed, say=say)
            lines = commands.run(arguments.kills, cases).lines()
        elif arguments.going_back is not None:
            lines = _go_back(GoingBack(place, arguments.version, **settings), arguments.going_back)
        else:
            torture = Torture(place, arguments.version, broker=arguments.broker, **settings)
            lines = torture.run(arguments.kills, [] if arguments.no_steps else STEPS).lines()
    except WrongError as error:
        say(f"WRONG: {error}")
        say(f"{place} has the store and the output; the same seed: --seed {seed}")
        return 1
    except BaseException:
        say(f"ended early; {place} has the store and the output; the same seed: --seed {seed}")
        raise
    if arguments.directory is None:
        shutil.rmtree(place)
    print(f"\nRocketMQ {arguments.version}, seed {seed}")
    print("\n".join(lines))
    return 0


def _go_back(scenario: GoingBack, times: int) -> list[str]:
    end = scenario.run(times)
    found = f"{end.queue_bytes:,} bytes of queues, {end.index_bytes:,} bytes of index files"
    lost = ", ".join(f"{count} lost {kind}" for kind, count in sorted(scenario.kinds.items()))
    return [
        f"the broker's power was lost {times} times: {lost}",
        f"compared at the end: {found}, and the ledger: 0 bytes differ",
    ]


if __name__ == "__main__":
    sys.exit(main())
