"""``mend --apply`` and a rebuild in place on a changed store, each taken back by ``undo``.

Spark is left out: the writer's tasks run here, and nothing is written to the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.errors import ReputError
from reput.format import names
from reput.job import RebuildOptions, rebuild, rebuilding, undo
from reput.job.plan import Plan
from reput.mending import mend
from reput.output.log_changes import roll_back
from reput.output.writer import BatchWriter
from reput.recovery.plan import plan
from reput.replay.runner import InlineRunner
from reput.store.lock import OutputLock
from reput.store.swap import KEPT, is_pending
from tests.local import NoLedger, parts_of, tree

_PART_BYTES = 700


class RepairError(AssertionError):
    """A repair, or its undo, that must not be."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """What came of a repair.

    Attributes:
        what: ``apply`` or ``in place``.
        how: "nothing to do", "done", or the error's name.
    """

    what: str
    how: str


def repaired(settings: StoreSettings, version: str) -> Iterator[Repaired]:
    """Repair a store in both ways, one after the other; undo each, so that every file is as it was.

    Raises:
        RepairError: a refusal that changed something, a repair that mends nothing, an undo that leaves
            something changed.
    """
    root, conf = settings.root, settings.broker_conf
    with _without_spark():
        yield _tried(
            "apply",
            root,
            lambda: mend(RebuildOptions(root, broker_conf=conf, rocketmq_version=version), apply=True).kept,
            settings,
        )
        options = RebuildOptions(root, None, conf, version, part_bytes=_PART_BYTES)
        yield _tried("in place", root, lambda: _in_place(options), settings)


def _in_place(options: RebuildOptions) -> str | None:
    log = _files(options.store, names.COMMIT_LOG)
    kept = rebuild(options, _no_spark).kept
    if _files(options.store, names.COMMIT_LOG) != log:
        raise RepairError("a rebuild in place has changed the log")
    return kept


def _tried(what: str, root: Path, act: Callable[[], str | None], settings: StoreSettings) -> Repaired:
    before = _files(root)
    try:
        kept = act()
    except ReputError as error:
        _same(f"{what} was refused ({error})", before, root)
        return Repaired(what, type(error).__name__)
    if kept is None:
        _same(f"{what} did nothing", before, root)
        return Repaired(what, "nothing to do")
    if what == "apply":
        left = plan(take(settings))
        if left.loses:
            raise RepairError(
                f"after {what} a start still loses something: {[*left.losses, *left.unrepaired]}"
            )
    undo(root)
    _same(f"{what} was undone", before, root)
    return Repaired(what, "done")


def _same(what: str, before: dict[str, bytes], root: Path) -> None:
    if is_pending(root):
        raise RepairError(f"{what}, and a swap is pending")
    now = _files(root)
    differing = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if differing:
        raise RepairError(f"{what}, and {differing} isn't what it was")


def _files(root: Path, directory: str = "") -> dict[str, bytes]:
    """Every file but the locks and what was kept of earlier repairs."""
    found = tree(root / directory)
    own = (KEPT, names.REPUT, names.LOCK)
    return {name: data for name, data in found.items() if not name.startswith(own)}


def _no_spark() -> None:
    """Nobody asks the session for anything."""


@contextmanager
def _without_spark() -> Iterator[None]:
    with (
        patch.object(rebuilding, "run", _run_here),
        patch.object(rebuilding, "catch_up", lambda _plan: None),
    ):
        yield


def _run_here(wanted: Plan, _spark: object, _listener: object, _announce: object) -> BatchWriter:
    """As :func:`reput.job.rebuilding.run`, in one batch."""
    target = wanted.target(flush_in_tasks=False)
    with OutputLock(wanted.root, wanted.owner).exclusive():
        roll_back(target, wanted.journal.state)
    writer = BatchWriter(
        target, wanted.journal, wanted.log, InlineRunner(), abort_present=wanted.abort_present
    )
    writer._ledger = NoLedger()  # type: ignore[assignment]
    writer.begin()
    cursor = wanted.journal.state.cursor
    end = max(wanted.end, cursor)
    if end > cursor:
        writer.write(parts_of(wanted.log, cursor, end, _PART_BYTES, cursor), 0)
    writer.finish()
    return writer
