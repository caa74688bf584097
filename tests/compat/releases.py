"""``python -m tests.compat.releases``: a store by each release's own classes, rebuilt, and compared.

Of each release in the table of dialects whose rocketmq-store the Java registry serves: its real store
writes a workload with queues and index, one with ``consumequeue_ext``, and from 4.5 on one through DLedger;
reput rebuilds each with the release given, and without an option (but broker.conf, with DLedger). With
``--starts`` it also starts on damaged stores, as tests/compat/test_recovery.py does, and what reput foretold
is compared: two minutes a release.
docs/data/releases.md gets the table with ``--write``; of a release whose starts weren't made, the figures
stay.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reput.config.basis import look
from reput.config.broker_conf import SETTINGS
from reput.config.dialect import DIALECTS, Dialect, dialect
from reput.errors import ReputError
from reput.format import names
from reput.job.options import RebuildOptions
from reput.job.rebuilding import rebuild
from reput.store.compare import compare
from tests.compat.jars import JarsUnavailableError, jars
from tests.compat.java_store import spelled
from tests.compat.starts import compared, odd, whole
from tests.compat.workloads import of_release
from tests.compat.write import write
from tests.marked import between, put_between

PAGE = Path(__file__).parents[2] / "docs" / "data" / "releases.md"
_BEGIN, _END = "<!-- releases: begin -->", "<!-- releases: end -->"
_HEAD = (
    "| release | row | its store without an option | messages | bytes that differ | without an option "
    "| starts as foretold |"
)


@dataclass(frozen=True)
class Swept:
    """What came of one release's stores.

    Attributes:
        release, row: which, and its rules.
        shown: the releases that a store's marks allow, and the one that is assumed.
        messages: that were compared.
        differing: bytes that differ, with the release given.
        without: the same without an option.
        starts: how many went as foretold, and how many were made.
        problem: why there are no figures; "" where there are.
    """

    release: str
    row: Dialect
    shown: str = ""
    messages: int = 0
    differing: int = 0
    without: int = 0
    starts: tuple[int, int] = (0, 0)
    problem: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        if self.problem:
            return self.release, f"`{self.row.name}`", self.problem, "", "", "", ""
        figures = (self.messages, self.differing, self.without)
        foretold, made = self.starts
        starts = f"{foretold} of {made}" if made else ""
        return self.release, f"`{self.row.name}`", self.shown, *(f"{one:,}" for one in figures), starts

    @property
    def differs(self) -> bool:
        """Whether a byte does, or a start."""
        return bool(self.differing or self.without or self.starts[0] != self.starts[1])


def sweep(release: str, directory: Path, kinds: Sequence[str] = ()) -> Swept:
    """Let a release's store write, rebuild what it wrote, and count the bytes that differ."""
    row, shown, messages, differing, without = dialect(release), "", 0, 0, 0
    if not kinds:
        needed = {"mixed": "", "queue-ext": "enableConsumeQueueExt", "dledger": "enableDLegerCommitLog"}
        kinds = [kind for kind, key in needed.items() if not key or SETTINGS[key].is_known(row)]
    try:
        jars(release)
    except JarsUnavailableError as error:
        print(error, file=sys.stderr)
        return Swept(release, row, problem="its jars aren't to be had")
    for kind in kinds:
        root = directory / release / kind / "store"
        wanted = of_release(kind, release)
        write(wanted, root)
        conf = root.parent / "broker.conf"
        conf.write_text(
            "".join(f"{key}={_word(value)}\n" for key, value in spelled(wanted.config, release).items())
        )
        try:
            given = RebuildOptions(root, root.parent / "out", conf, release)
            messages += rebuild(given, None).messages
            differing += compare(root, root.parent / "out").differing_bytes
            told = conf if kind == "dledger" else None
            rebuild(RebuildOptions(root, root.parent / "unasked", told), None)
            without += compare(root, root.parent / "unasked").differing_bytes
        except ReputError as error:
            return Swept(release, row, problem=f"{kind}: {error}")
        if kind != "dledger":
            found = look(root, [root / names.COMMIT_LOG]).release
            shown = f"{found.range}; {found.assumed.name} assumed"
    return Swept(release, row, shown, messages, differing, without)


def starts(release: str, directory: Path) -> tuple[int, int]:
    """Let a release start on damaged stores, and count the starts that went as foretold, and all."""
    made, wrong = 0, 0
    for name, damages in (("whole", whole()), ("odd", odd())):
        (place := directory / release / name).mkdir(parents=True)
        tried, differing = compared(release, damages, place)
        made, wrong = made + tried, wrong + len(differing)
        for case, found in differing.items():
            print(f"{release} {case}: {'; '.join(found)}", file=sys.stderr)
    return made - wrong, made


def _rows(text: str) -> dict[str, str]:
    """The lines of a table, by release."""
    return {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row(swept: Swept, before: str) -> str:
    """A line of the table, with the starts of the line before where none were made."""
    *cells, starts = swept.cells
    known = before.split("|")[-2].strip() if before else ""
    return f"| {' | '.join([*cells, starts or known])} |"


def main(words: Sequence[str] | None = None) -> int:
    """Sweep; returns 1 if a byte or a start differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat.releases", description=__doc__)
    parser.add_argument("releases", nargs="*", help="these alone; the others' rows stay (default: all)")
    parser.add_argument("--starts", action="store_true", help="start on damaged stores, too")
    parser.add_argument("--write", action="store_true", help="write the table into docs/data/releases.md")
    options = parser.parse_args(words)
    known = [release for row in DIALECTS for release in row.versions]
    rows, swept = _rows(between(PAGE, _BEGIN, _END)), []
    with tempfile.TemporaryDirectory(prefix="reput-releases-") as directory:
        for release in options.releases or known:
            found = sweep(release, Path(directory))
            if options.starts and not found.problem:
                found = replace(found, starts=starts(release, Path(directory)))
            swept.append(found)
            rows[release] = _row(found, rows.get(release, ""))
            print(rows[release], flush=True)
    if options.write:
        lines = [_HEAD, "|---|---|---|---|---|---|---|", *(rows[one] for one in known if one in rows)]
        put_between(PAGE, _BEGIN, _END, "\n".join(lines))
    wrong = sum(one.differs for one in swept)
    tried = sum(not one.problem for one in swept)
    print(f"{tried} of {len(swept)} releases, of which {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
