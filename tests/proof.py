"""``python -m tests.proof``: all that a release is proven by, each once and whole.

Each proof is a command of its own, and a row of docs/data/proof.md, written when it ends. What passed with
this code isn't run again, so that a run that was cut off goes on where it ended. It first says which proofs
can't be run here.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from reput.newer_python import UTC
from tests.marked import between, put_between

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "data" / "proof.md"
_LOGS = ROOT / "build" / "proof"
BEGIN, END = "<!-- proof: begin -->", "<!-- proof: end -->"
_HEAD = "| proof | what it shows | command | outcome | minutes | when | code |\n|---|---|---|---|---|---|---|"
#: What is proven. A test that was mended, or a word in the docs, makes no proof of it void.
_CODE = ("lib", "jobs", "conf", "requirements", "pyproject.toml")


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
        ("torture",),
        "[a tail is killed](../proof.md#by-kill) 128 times behind a real store; every byte compared",
    ),
    Proof(
        "commands",
        ("torture", "ARGS=--commands --kills 1000"),
        "[the other commands that write](../proof.md#by-kill) are killed 1,000 times; files, tables and "
        "databases compared",
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
    """What came of a proof, as its row says it.

    Attributes:
        said: how its output ended, behind what of it wasn't shown.
        code: as :func:`code` says it.
        skipped: tests with their reasons; only of a proof that was run now.
    """

    said: str
    minutes: str
    when: str
    code: str
    skipped: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether it was shown, and all of it."""
        return bool(self.said) and not self.said.startswith(("**", "not run"))


def missing(proof: Proof) -> list[str]:
    """What of its needs isn't here."""
    return [
        need for need in proof.needs if (os.geteuid() != 0 if need == "root" else shutil.which(need) is None)
    ]


def code() -> str:
    """The last commit that changed what is proven, with ``+`` if something of it was changed since."""
    return _git("log", "-1", "--format=%h", "--abbrev=8", "--", *_CODE) + (
        "+" if _git("status", "--short", *_CODE) else ""
    )


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def show(proof: Proof, at: str) -> Outcome:
    """Run a proof. All that it prints goes into a log."""
    log = _LOGS / at / f"{proof.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            ["make", "--no-print-directory", *proof.words],
            cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False,
            # ARGS of the make that runs this would be given to the proof as its own.
            env={name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS")},
        )  # fmt: skip
    lines = [line.strip("= \n") for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("make")]
    lacks = missing(proof)
    how = (
        f"**failed** ({log.relative_to(ROOT)}): " if done.returncode
        else f"**in part, for want of {', '.join(lacks)}**: " if lacks
        else ""
    )  # fmt: skip
    return Outcome(
        how + (lines[-1] if lines else "no output").replace("|", "/"),
        f"{(time.monotonic() - began) / 60:.1f}",
        f"{datetime.now(UTC):%Y-%m-%d}",
        at,
        tuple(line for line in lines if re.match(r"SKIPPED|NOT TESTED|NOT RUN", line)),
    )


def known() -> dict[str, Outcome]:
    """What the page says of each proof."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in between(PAGE, BEGIN, END).splitlines()
    ]
    names = {proof.name for proof in PROOFS}
    return {row[0]: Outcome(*row[3:]) for row in rows if row and row[0] in names}


def write(outcomes: dict[str, Outcome]) -> None:
    """Write the page's table."""
    lines = [_HEAD]
    for proof in PROOFS:
        found = outcomes.get(proof.name, Outcome("not run", "", "", ""))
        command = "make " + " ".join(f"ARGS='{w[5:]}'" if w.startswith("ARGS=") else w for w in proof.words)
        cells = [proof.name, proof.shows, f"`{command}`", found.said, found.minutes, found.when, found.code]
        lines.append(f"| {' | '.join(cells)} |")
    put_between(PAGE, BEGIN, END, "\n".join(lines))


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 if something failed, or could be run in part only."""
    parser = argparse.ArgumentParser(prog="make proof", description=__doc__)
    names = [proof.name for proof in PROOFS]
    parser.add_argument("only", nargs="*", metavar="PROOF", help=f"these alone: {', '.join(names)}")
    parser.add_argument("--again", action="store_true", help="also what passed with this code")
    asked = parser.parse_args(words)
    if wrong := set(asked.only) - set(names):
        parser.error(f"no such proof: {', '.join(sorted(wrong))}")
    wanted = [proof for proof in PROOFS if not asked.only or proof.name in asked.only]
    for proof in wanted:
        if lacks := missing(proof):
            print(f"{proof.name}: part of it can't be run here, for want of {', '.join(lacks)}", flush=True)
    outcomes = known()
    for proof in wanted:
        at, found = code(), outcomes.get(proof.name)
        if found is None or found.code != at or at.endswith("+") or not found.passed or asked.again:
            print(f"{proof.name}: make {' '.join(proof.words)}", flush=True)
            found = show(proof, at)
            # Anew: a proof may write this page, and somebody else meanwhile.
            outcomes = known() | {proof.name: found}
            write(outcomes)
        print(f"{proof.name}, {found.minutes} minutes: {found.said}", flush=True)
        for line in found.skipped:
            print(f"    {line}", flush=True)
    left = [proof.name for proof in wanted if not outcomes[proof.name].passed]
    print(
        f"{len(wanted) - len(left)} of {len(wanted)} passed with the code of {code()}"
        + (f"; not {', '.join(left)}" if left else "")
    )
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
