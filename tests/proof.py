"""``python -m tests.proof``: all that a release is proven by, each once and whole.

Each proof is a command of its own, and a row of docs/data/proof.md. What passed at this commit isn't run
again, so that a run that was cut off goes on where it ended. It first says which proofs can't be run here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from reput.newer_python import UTC
from tests.marked import between, put_between

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "data" / "proof.md"
_PLACE = ROOT / "build" / "proof"
BEGIN, END = "<!-- proof: begin -->", "<!-- proof: end -->"
_HEAD = (
    "| proof | what it shows | command | outcome | minutes | when | commit |\n|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Proof:
    """A command that shows something.

    Attributes:
        words: behind ``make``.
        shows: for docs/data/proof.md.
        needs: programs, and ``root``.
    """

    name: str
    words: tuple[str, ...]
    shows: str
    needs: tuple[str, ...] = ()


PROOFS = (
    Proof("lint", ("lint",), "format, style and types"),
    Proof(
        "tests",
        ("every",),
        "all tests but those of several hosts: bytes against real stores and brokers of each release, every "
        "example, HDFS, S3, Kubernetes, a cluster, notebooks, the site",
        ("root", "go"),
    ),
    Proof(
        "hosts",
        ("hosts",),
        "[several hosts](clusters.md), with hosts killed, cables out and clocks off",
        ("root", "glusterd", "faketime"),
    ),
    Proof("stacks", ("stacks",), "[the Sparks and Pythons that it runs on](stacks.md)"),
    Proof(
        "compose",
        ("compose",),
        "[the containers](../compose.md#what-was-run)",
        ("root", "podman", "debootstrap"),
    ),
    Proof(
        "releases",
        ("releases",),
        "[each release's own store](releases.md) is rebuilt",
    ),
    Proof(
        "matrix",
        ("matrix",),
        "[stores are damaged in each way](recovery-matrix.md), and started by the real releases and by reput",
    ),
    Proof(
        "fixed-point",
        ("fixed-point", "ARGS=--count 3000 --start 300"),
        "stores are damaged in two and three ways at once, mended, and [started](../mend.md) by releases",
    ),
    Proof(
        "fuzz",
        ("fuzz",),
        "[every bit and every length](../proof.md#by-damage) of three stores is changed",
    ),
    Proof(
        "torture",
        ("torture", "ARGS=--kills 1000"),
        "[a tail is killed](../proof.md#by-kill) 1,000 times behind a real store; every byte compared",
    ),
    Proof(
        "day",
        ("day",),
        "[a day](../proof.md#a-day) through one tail: 86,400,000 messages, with restarts, expiry, "
        "cuts and a full disk",
        ("root",),
    ),
    Proof("cluster", ("cluster",), "broker, producer, Spark master, two workers and a tail on this machine"),
    Proof(
        "dist",
        ("dist",),
        "[the wheel and the source archive](../install.md#wheel-and-source-archive), built twice and tried",
    ),
    Proof("site", ("site",), "the pages as a site"),
    Proof("audit", ("audit",), "the locked versions have no known hole"),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a proof: how its output ended, and ``skipped`` tests with their reasons.

    ``lacks``: what of its needs wasn't here, so that it was shown in part.
    """

    exit_code: int
    said: str
    minutes: float
    when: str
    commit: str
    skipped: list[str]
    lacks: list[str]

    @property
    def how(self) -> str:
        """Whether it was shown, and all of it."""
        if self.exit_code:
            return "failed"
        return f"in part, for want of {', '.join(self.lacks)}" if self.lacks else "passed"


def missing(proof: Proof) -> list[str]:
    """What of its needs isn't here."""
    return [
        need for need in proof.needs if (os.geteuid() != 0 if need == "root" else shutil.which(need) is None)
    ]


def commit() -> str:
    """The tree's, with ``+`` if something was changed since."""
    # Some proofs write their own pages below docs.
    return _git("rev-parse", "--short=8", "HEAD") + ("+" if _git("status", "--short", ".", ":!docs") else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def show(proof: Proof, at: str) -> Outcome:
    """Run a proof. All that it prints goes into a log."""
    log = _PLACE / at / f"{proof.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            ["make", "--no-print-directory", *proof.words],
            cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    lines = [line.strip("= \n") for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("make")]
    outcome = Outcome(
        done.returncode,
        lines[-1] if lines else "no output",
        round((time.monotonic() - began) / 60, 1),
        f"{datetime.now(UTC):%Y-%m-%d}",
        at,
        [line for line in lines if re.match(r"SKIPPED|NOT TESTED|NOT RUN", line)],
        missing(proof),
    )
    log.with_suffix(".json").write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    return outcome


def known(proof: Proof, at: str) -> Outcome | None:
    """What came of it at this commit, if it was run; of a tree with changes that isn't known."""
    if at.endswith("+"):
        return None
    path = _PLACE / at / f"{proof.name}.json"
    return Outcome(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def rows(outcomes: dict[str, Outcome]) -> Iterator[str]:
    """The table's, where what wasn't run now keeps its row."""
    before = {line.split("|")[1].strip(): line for line in between(PAGE, BEGIN, END).splitlines() if line}
    for proof in PROOFS:
        found = outcomes.get(proof.name)
        if found is None and proof.name in before:
            yield before[proof.name]
            continue
        command = "make " + " ".join(f"ARGS='{w[5:]}'" if w.startswith("ARGS=") else w for w in proof.words)
        cells = ["not run", "", "", ""]
        if found is not None:
            said = found.said if found.how == "passed" else f"**{found.how}**: {found.said}"
            cells = [said.replace("|", "\\|"), f"{found.minutes:g}", found.when, found.commit]
        yield "| " + " | ".join([proof.name, proof.shows, f"`{command}`", *cells]) + " |"


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 if something failed, or could be run in part only."""
    parser = argparse.ArgumentParser(prog="make proof", description=__doc__)
    names = [proof.name for proof in PROOFS]
    parser.add_argument("only", nargs="*", metavar="PROOF", help=f"these alone: {', '.join(names)}")
    parser.add_argument("--again", action="store_true", help="also what passed at this commit")
    parser.add_argument("--write", action="store_true", help="write the table of docs/data/proof.md")
    asked = parser.parse_args(words)
    if wrong := set(asked.only) - set(names):
        parser.error(f"no such proof: {', '.join(sorted(wrong))}")
    at = commit()
    wanted = [proof for proof in PROOFS if not asked.only or proof.name in asked.only]
    for proof in wanted:
        if lacks := missing(proof):
            print(f"{proof.name}: part of it can't be run here, for want of {', '.join(lacks)}", flush=True)
    outcomes: dict[str, Outcome] = {}
    for proof in wanted:
        found = known(proof, at)
        if found is None or found.exit_code or asked.again or found.lacks != missing(proof):
            print(f"{proof.name}: make {' '.join(proof.words)}", flush=True)
            found = show(proof, at)
        outcomes[proof.name] = found
        log = f" ({_PLACE / at / proof.name}.log)" if found.exit_code else ""
        print(f"{proof.name}: {found.how}{log} in {found.minutes:g} minutes: {found.said}", flush=True)
        for line in found.skipped:
            print(f"    {line}", flush=True)
    if asked.write:
        put_between(PAGE, BEGIN, END, "\n".join([_HEAD, *rows(outcomes)]))
    left = {name: found.how for name, found in outcomes.items() if found.how != "passed"}
    print(
        f"{len(outcomes) - len(left)} of {len(outcomes)} passed at {at}"
        + "".join(f"; {name} {how}" for name, how in left.items())
    )
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
