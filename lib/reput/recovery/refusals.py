"""What ``reput mend --apply`` doesn't mend, and refuses before it does anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from reput.broker.files import NO_FILE
from reput.broker.predict import Prediction, predict
from reput.broker.problem import Problem
from reput.broker.snapshot import Snapshot
from reput.config.evidence import Asked, Writes
from reput.config.settings import StoreSettings
from reput.errors import ReputError, SettingsError, StoreError, UnsupportedError
from reput.format import names
from reput.log.rivals import MISTAKEN, SECOND_FILE
from reput.recovery.losses import LOG_GONE
from reput.recovery.survivors import Cut, first_cut, is_followed

#: Problems of a start that a rebuild of queues and index takes away, wherever they are told.
_DERIVED = frozenset({"empty-queue-file", "dispatch-never-ends", "queue-type"})
_DERIVED_ROOTS = (*names.QUEUES, names.CONSUME_QUEUE_ROCKSDB, names.INDEX)


def are_its_own(settings: StoreSettings) -> bool:
    """Whether a store may be written by these settings: it doesn't speak against them."""
    try:
        settings.basis.refuse(Asked(Writes.IN_PLACE), settings.root)
    except SettingsError:
        return False
    return True


def is_mended(prediction: Prediction, *, cuts: bool) -> bool:
    """Whether none of what a start meets is refused, as far as its first cut tells.

    Args:
        cuts: the log has to be mended, too; then it has to lie in the store.
    """
    snapshot, problems = prediction.snapshot, prediction.problems
    settings = snapshot.settings
    if any(one.kind == SECOND_FILE and is_stray(one, settings) for one in snapshot.problems):
        return is_mended(predict(without_strays(snapshot)), cuts=True)
    first = first_cut(prediction) if cuts and prediction.cuts else None
    if cuts and prediction.cuts and first is None:
        return False
    cuts = cuts or any(is_stray(problem, settings) for problem in problems)
    if cuts and not all(path.is_relative_to(settings.root) for path in settings.commit_log_dirs):
        return False
    if not are_its_own(settings):
        return False
    try:
        refuse_problems(problems, snapshot.settings)
        refuse_other_settings(snapshot)
        refuse_without_log(snapshot)
        if first is not None and is_followed(snapshot, first):
            refuse_sound_record(prediction, first)
    except ReputError:
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


def refuse_other_settings(snapshot: Snapshot) -> None:
    """Refuse settings that no file fits: a rebuild by them makes files that the broker can't load.

    Raises:
        SettingsError: so it is.
    """
    sizes = snapshot.settings.queue_file_sizes
    for directory in _DERIVED_ROOTS:
        root = snapshot.settings.root / directory
        setting, _ = sizes.get(directory, ("maxHashSlotNum, maxIndexNum", 0))
        kind = "wrong-length" if directory in sizes else "index-length"
        wrong = [
            problem
            for problem in snapshot.problems
            if problem.kind == kind and Path(problem.path).is_relative_to(root)
        ]
        fitting = len(snapshot.index) - len(wrong)
        if directory in sizes:
            fitting = sum(len(listing.files) for listing in snapshot.all_queues[directory].values())
        if wrong and not fitting:
            raise SettingsError(
                f"no file was made with this {setting}",
                path=wrong[0].path,
                expected=wrong[0].expected,
                found=wrong[0].found,
                next_step=f"Give the broker's own broker.conf; if this is it, move {root} away first",
            )


def refuse_without_log(snapshot: Snapshot) -> None:
    """Refuse a log with a part missing: a rebuild would make the loss look mended.

    Raises:
        StoreError: so it is.
    """
    for problem in snapshot.problems:
        text = None
        if problem.kind in LOG_GONE:
            text = "a part of the commit log isn't there"
        elif problem.kind in MISTAKEN - {SECOND_FILE} and not is_derived(problem, snapshot.settings):
            text = "a file of the commit log has a name that it can't have"
        if text is not None:
            text += f", and --apply doesn't mend that: {problem.kind}"
            raise problem.error(StoreError, text)


def is_derived(problem: Problem, settings: StoreSettings) -> bool:
    """Whether a rebuild of queues and index takes it away."""
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

    A second file is proven to be one by its bytes.
    """
    return [Path(one.path) for one in snapshot.problems if _is_moved(one, snapshot.settings)]


def without_strays(snapshot: Snapshot) -> Snapshot:
    """The store as it is without them."""
    away = {str(path) for path in strays_of(snapshot)}
    left = [problem for problem in snapshot.problems if not _is_moved(problem, snapshot.settings)]
    segments = tuple(file for file in snapshot.log.files if file.place not in away)
    return replace(snapshot, problems=left, log=replace(snapshot.log, files=segments))


def _is_moved(problem: Problem, settings: StoreSettings) -> bool:
    return (problem.stops or problem.kind == SECOND_FILE) and is_stray(problem, settings)


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
