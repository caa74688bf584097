"""``python -m tests.compat.matrix``: each damage, way of stopping and release, as brokers and reput leave it.

Every damaged store is opened by the real store of the release. A copy of it is mended by
``reput mend --apply`` and verified, and what came of that is opened by the real store, too. Both are
counted against the undamaged store. docs/data/recovery-matrix.md holds the table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.broker.predict import predict
from reput.broker.snapshot import take
from reput.diagnosis.check import check
from reput.diagnosis.verdict import COUNTS
from reput.errors import ReputError
from reput.job.options import RebuildOptions
from reput.mending import mend
from reput.newer_python import UTC
from reput.verify.plan import VerifyOptions
from tests.compat.damage import DAMAGES, Copy
from tests.compat.jars import VERSIONS
from tests.compat.outcome import SAFETY_MS, Outcome, Written, outcome
from tests.compat.starts import QUEUE_FILE, SEGMENT, Bench, Case, Seen, batched, cases, expected
from tests.marked import put_between

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
STOPS = {"stopped": "stopped", "killed": "killed", "behind": "killed late"}
SOUND = "✓"


@dataclass(slots=True)
class Reput:
    """What ``reput mend --apply`` did.

    Attributes:
        did: ``sound`` (nothing to mend), ``mended`` or ``refused``.
        why: of a refusal.
        changes: kinds of changes of the log.
        rebuilt: queues and index were rebuilt.
        verified: kinds of what ``reput verify`` then finds.
        outcome: of a start of the real store behind it; that of the broker alone unless it mended.
    """

    did: str
    why: str = ""
    changes: list[str] = field(default_factory=list)
    rebuilt: bool = False
    verified: list[str] = field(default_factory=list)
    outcome: Outcome = field(default_factory=lambda: Outcome(starts=False))


@dataclass(slots=True)
class Row:
    """A damaged store, and what became of it.

    Attributes:
        damage: the name of the function in tests/compat/damage.py.
        stop: ``stopped``, ``killed`` or ``behind``.
        version: the release that wrote it and starts on it.
        lost: messages that the damage itself destroyed.
        broker, reput: what came of it.
    """

    damage: str
    stop: str
    version: str
    lost: int
    broker: Outcome
    reput: Reput

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Row:
        """The row that :func:`dataclasses.asdict` made."""
        told = facts["reput"]
        reput = Reput(**{**told, "outcome": Outcome(**told["outcome"])})
        return cls(**{**facts, "broker": Outcome(**facts["broker"]), "reput": reput})


def measure(version: str, directory: Path, spark: SparkSession, only: Sequence[str] = ()) -> list[Row]:
    """Try all damages with one release.

    Args:
        version: the release.
        directory: an empty one.
        spark: for the rebuilds and the verification.
        only: names of damages; empty for all.
    """
    bench = Bench(version, directory)
    rows: list[Row] = []
    try:
        written = Written.of(Copy(bench.stopped, SEGMENT, QUEUE_FILE))
        _check_written_at_once(written)
        started: list[Case] = []
        todo: list[tuple[Row, set[int], Case, Case | None]] = []
        for name, damage, crash in cases():
            if only and damage.__name__ not in only:
                continue
            copy = bench.copy(name, crash=crash)
            damage(copy)
            survivors = written.survivors(copy.root)
            case = _case(bench, name, copy.root)
            mended = bench.tmp / f"{name}-mended"
            shutil.copytree(copy.root, mended)
            reput = _mend(RebuildOptions(mended, broker_conf=bench.conf, rocketmq_version=version), spark)
            again = _case(bench, mended.name, mended) if reput.did == "mended" else None
            row = Row(
                damage=damage.__name__,
                stop=crash or "stopped",
                version=version,
                lost=len(written.records) - len(survivors),
                broker=Outcome(starts=False),
                reput=reput,
            )
            started += [one for one in (case, again) if one is not None]
            todo.append((row, survivors, case, again))
            print(f"matrix: {version} {name}: {reput.did} {reput.why}", file=sys.stderr, flush=True)
        for some in batched(started):
            _start(bench, some)
        for row, survivors, case, again in todo:
            row.broker = outcome(written, survivors, case.seen, case.root, _why(case))
            row.reput.outcome = row.broker
            if again is not None:
                row.reput.outcome = outcome(written, survivors, again.seen, again.root, _why(again))
            rows.append(row)
    finally:
        bench.close()
    return rows


def _check_written_at_once(written: Written) -> None:
    """A start walks from 3 s before the checkpoint on: over all of a killed store that was written in less.

    Raises:
        RuntimeError: it took longer, and a start would leave more wrong than the table says.
    """
    times = [timestamp for _, timestamp in written.records.values()]
    if max(times) - min(times) >= SAFETY_MS:
        raise RuntimeError(
            f"the store took {max(times) - min(times)} ms to write, and may take {SAFETY_MS}: "
            "measure where nothing else needs the processor"
        )


def _start(bench: Bench, cases: Sequence[Case]) -> None:
    """Start the stores, and those once more that gave one name to two index files.

    Files are named by the millisecond, and these are full after 99 keys: the second file then takes the place
    of the first.
    """
    kept = bench.tmp / "kept"
    for case in cases:
        shutil.copytree(case.root, kept / case.name)
    tried = list(cases)
    while tried:
        bench.open_all(tried)
        tried = [case for case in tried if len({name for name, _ in case.seen.index}) < len(case.seen.index)]
        for case in tried:
            print(
                f"matrix: {case.name}: two index files of one millisecond; again", file=sys.stderr, flush=True
            )
            shutil.rmtree(case.root)
            shutil.copytree(kept / case.name, case.root)
            case.seen, case.store = Seen(starts=False), None
    shutil.rmtree(kept)


def _case(bench: Bench, name: str, root: Path) -> Case:
    prediction = predict(take(bench.settings(root)))
    case = Case(name, root, expected(prediction))
    case.why = ", ".join(dict.fromkeys(problem.kind for problem in prediction.problems))
    return case


def _why(case: Case) -> str:
    return case.why or case.error[:200]


def _mend(options: RebuildOptions, spark: SparkSession) -> Reput:
    try:
        mended = mend(options, apply=True)
        kinds = list(dict.fromkeys(change.kind for change in mended.changes))
        reput = Reput("sound" if mended.kept is None else "mended", changes=kinds)
        reput.rebuilt = mended.rebuilt is not None
    except ReputError as error:
        return Reput("refused", why=error.problem)
    wanted = VerifyOptions(options.store, None, options.broker_conf, options.rocketmq_version)
    try:
        found = check(wanted, lambda: spark).findings
        reput.verified = sorted({f"{one.area} {one.kind}" for one in found if one.effect in COUNTS})
    except ReputError as error:
        reput.verified = [f"refused: {error.problem}"]
    return reput


#: What a start leaves wrong: the field of an outcome, and the word of the table.
WORDS = {
    "cut": "cut",
    "missing": "unreached",
    "displaced": "misplaced",
    "hashed": "hashed",
    "dangling": "dangling",
    "repeated": "repeated",
    "keys": "keys",
    "stale_keys": "stale",
    "index_ahead": "index ahead",
    "checkpoint_ahead": "checkpoint ahead",
}
#: Why ``--apply`` refuses, where its message doesn't end with a kind.
REFUSALS = {
    "a message's body doesn't have its CRC, messages follow, and a start cuts the log there": "bad-crc",
    "what --apply can do isn't enough: a start would still lose something, or leave it broken": "not-enough",
}


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown; those of one damage that say the same are one."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row.damage, row.stop), {})[row.version] = row
    versions = [version for version in VERSIONS if any(row.version == version for row in rows)]
    lines = []
    for damage in dict.fromkeys(row.damage for row in rows):
        stops: dict[tuple[str, ...], list[str]] = {}
        for stop, name in STOPS.items():
            if (damage, stop) in found:
                stops.setdefault(_cells(found[damage, stop], versions), []).append(name)
        for cells, names in stops.items():
            stopped = "any" if len(names) == len(STOPS) else ", ".join(names)
            lines.append([f"`{damage}`", stopped, *cells])
    head = ["damage", "broker was", *(f"start of {version}" for version in versions), "reput", "check then"]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def _cells(rows: dict[str, Row], versions: Sequence[str]) -> tuple[str, ...]:
    brokers = [said(rows[version].broker) if version in rows else "not run" for version in versions]
    reput = {version: done(rows[version].reput) for version in versions if version in rows}
    verified = {version: _verified(rows[version].reput) for version in reput}
    return (*brokers, _together(reput, len(reput)), _together(verified, len(reput)))


def said(found: Outcome) -> str:
    """An outcome in short."""
    if not found.starts:
        return f"no start: {found.why}"
    words = []
    for name, word in WORDS.items():
        value = getattr(found, name)
        if value:
            words.append(word if value is True else f"{value} {word}")
    return ", ".join(words) or SOUND


def done(reput: Reput) -> str:
    """What reput did, and what a start behind it then leaves."""
    if reput.did == "refused":
        return f"refused: {REFUSALS.get(reput.why) or reput.why.rpartition(': ')[2]}"
    what = " + ".join([*reput.changes, *(["rebuilt"] if reput.rebuilt else [])]) or "nothing to mend"
    return f"{what}: {said(reput.outcome)}"


def _verified(reput: Reput) -> str:
    if reput.did == "refused" or (reput.did == "sound" and reput.outcome.sound):
        return ""
    return ", ".join(reput.verified) or "sound"


def _together(cells: dict[str, str], releases: int) -> str:
    """One cell of several releases'; which ones is said unless all of them say the same."""
    by_text: dict[str, list[str]] = {}
    for version, text in cells.items():
        if text:
            by_text.setdefault(text, []).append(version)
    if len(by_text) == 1 and len(next(iter(by_text.values()))) == releases:
        return next(iter(by_text))
    return "; ".join(f"{', '.join(versions)}: {text}" for text, versions in by_text.items())


def legend() -> str:
    """What the damages are."""
    lines = ["| damage | what it is |", "| --- | --- |"]
    for damage in DAMAGES:
        text = " ".join((damage.__doc__ or "").split())
        lines.append(f"| `{damage.__name__}` | {text} |")
    return "\n".join(lines)


def write(path: Path, rows: Sequence[Row]) -> None:
    """Put the tables between the markers of a document.

    Raises:
        ValueError: the document hasn't both.
    """
    releases = ", ".join(version for version in VERSIONS if any(row.version == version for row in rows))
    stores = len({(row.damage, row.stop, row.version) for row in rows})
    about = f"Measured on {datetime.now(UTC):%Y-%m-%d}: {stores} damaged stores, RocketMQ {releases}."
    text = "\n\n".join([about, table(rows), legend()])
    put_between(path, BEGIN, END, text)


def arguments(
    words: Sequence[str] | None,
    module: str,
    about: str | None,
    versions: Sequence[str],
    damages: Sequence[Callable[..., object]],
) -> argparse.Namespace:
    """The command line of a matrix: its module, what it is, its releases and its kinds of damage."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--versions", nargs="+", choices=versions, default=list(versions))
    known = [damage.__name__ for damage in damages]
    parser.add_argument("--damages", nargs="+", choices=known, default=[], help="these alone (default: all)")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="put what was measured into FILE, as JSON")
    parser.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="measure nothing: print what such files hold"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into FILE, too")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    options = arguments(words, "tests.compat.matrix", __doc__, VERSIONS, DAMAGES)
    rows: list[Row] = []
    if options.read:
        for path in options.read:
            rows += [Row.from_dict(facts) for facts in json.loads(path.read_text(encoding="utf-8"))]
    else:
        rows = _measured(options)
    if options.rows is not None:
        options.rows.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    if options.write is not None:
        write(options.write, rows)
    print(table(rows))
    return 0


def _measured(options: argparse.Namespace) -> list[Row]:
    from reput.spark.sessions import session

    rows = []
    spark = session("reput matrix", "local[2]", {})
    try:
        for version in options.versions:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="reput-matrix-") as directory:
                rows += measure(version, Path(directory), spark, options.damages)
            print(f"matrix: {version}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    finally:
        spark.stop()
    return rows


if __name__ == "__main__":
    sys.exit(main())
