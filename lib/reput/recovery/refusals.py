"""What ``reput mend --apply`` doesn't mend, and refuses before it does anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from reput.broker.files import NO_FILE
from reput.broker.predict import Prediction
from reput.broker.problem import Problem
from reput.broker.snapshot import Snapshot
from reput.config.evidence import Asked, Writes
from reput.config.settings import StoreSettings
from reput.errors import SettingsError, StoreError, UnsupportedError
from reput.format import names
from reput.log.rivals import SECOND_FILE
from reput.recovery.survivors import Cut

#: Problems of a start that a rebuild of queues and index takes away, wherever they are told.
_DERIVED = frozenset({"empty-queue-file", "dispatch-never-ends", "queue-type"})
_DERIVED_ROOTS = (*names.QUEUES, names.CONSUME_QUEUE_ROCKSDB, names.INDEX, names.CHECKPOINT)


def are_its_own(settings: StoreSettings) -> bool:
    """Whether a store may be written by these settings: it doesn't speak against them."""
    try:
        settings.basis.refuse(Asked(Writes.IN_PLACE), settings.root)
    except SettingsError:
        return False
    return True


def refuse_problems(problems: list[Problem], settings: StoreSettings) -> None:
    """Refuse what keeps a broker from starting, and neither a rebuild nor moving a file away mends.

    Raises:
        StoreError: such a problem.
    """
    for problem in problems:
        if not (is_derived(problem, settings) or is_stray(problem, settings)):
            text = f"a broker doesn't start here, and --apply doesn't mend that: {problem.kind}"
            raise problem.error(StoreError, text)


def is_derived(problem: Problem, settings: StoreSettings) -> bool:
    """Whether a rebuild of queues, index and checkpoint takes it away."""
    path = Path(problem.path)
    if problem.kind == "rocksdb-elsewhere":
        return False  # broker.conf has to be mended, or what is old moved away
    return problem.kind in _DERIVED or any(path.is_relative_to(settings.root / one) for one in _DERIVED_ROOTS)


def is_stray(problem: Problem, settings: StoreSettings) -> bool:
    """Whether it is something in the commit log that is no segment, nor could be one."""
    if Path(problem.path).parent not in settings.commit_log_dirs:
        return False
    empty = problem.kind == "wrong-length" and problem.found == "0 bytes"
    return empty or problem.kind in ("stray-file", "stray-directory", NO_FILE, SECOND_FILE)


def strays_of(snapshot: Snapshot) -> list[Path]:
    """What is moved aside: what keeps a broker from starting, and second files, which it takes for the log.

    A second file is proven to be one by its bytes. Up to 4.4.0, what keeps it from loading all segments.
    """
    return [Path(one.path) for one in snapshot.problems if _is_moved(one, snapshot.settings)]


def without_strays(snapshot: Snapshot) -> Snapshot:
    """The store as it is without them."""
    away = {str(path) for path in strays_of(snapshot)}
    left = [problem for problem in snapshot.problems if not _is_moved(problem, snapshot.settings)]
    segments = tuple(file for file in snapshot.log.files if file.place not in away)
    of_log = tuple(problem for problem in snapshot.log.problems if problem.path not in away)
    return replace(snapshot, problems=left, log=replace(snapshot.log, files=segments, problems=of_log))


def _is_moved(problem: Problem, settings: StoreSettings) -> bool:
    goes = problem.unloads or problem.kind in (SECOND_FILE, NO_FILE)
    return goes and is_stray(problem, settings)


def refuse_sound_record(prediction: Prediction, cut: Cut) -> None:
    """Refuse what isn't damage to the log's frame: a consumer may still want that message.

    Args:
        cut: of that start; a whole message is behind it.

    Raises:
        UnsupportedError: a whole message keeps the release from reading on.
    """
    if cut.found == cut.position:
        raise UnsupportedError(
            "a whole message keeps this release from reading on",
            path=cut.segment.path,
            offset=cut.segment.base + cut.position,
            found=prediction.recovered.why if prediction.recovered else None,
            next_step=rebuild_out(prediction.snapshot.settings),
        )


def rebuild_out(settings: StoreSettings) -> str:
    """What to do about damage that isn't mended."""
    command = settings.command("rebuild", "--out", "DIR")
    return f"`{command}` skips the damage, into a directory of its own."
