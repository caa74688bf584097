"""What ``reput mend --apply`` doesn't mend, and refuses before it does anything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from reput.broker.predict import Prediction
from reput.broker.snapshot import Snapshot
from reput.broker.walk import first_written, store_timestamp, written_ranges
from reput.config.basis import Asked, Writes
from reput.config.settings import StoreSettings
from reput.derived.files import NO_FILE, StoreFile
from reput.errors import Problem, SettingsError, StoreError, UnsupportedError
from reput.format import names
from reput.log.segments import SECOND_FILE, map_segment
from reput.scan.extent import Extents


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a start ends the log, and what is behind."""

    segment: StoreFile  # the one that it ends in
    position: int  # where, in the segment
    found: int  # position in the segment of the first whole message from there on, -1 if missing
    written: list[StoreFile]  # the segments behind it that something was written to
    timestamp: int  # storeTimestamp, ms, of the message before it; see :func:`left_from`


def first_cut(prediction: Prediction) -> Cut | None:
    """Where the start ends the log within a segment; None if it deletes whole ones."""
    view, cut = prediction.snapshot, prediction.cuts[0]
    if cut.deleted:
        return None
    segment = next(one for one in view.log.files if one.path == cut.path)
    position = cut.start - segment.base
    written, timestamp = written_behind(view, segment.base), left_from(prediction)
    found = first_whole(view, segment, position, 0 if written else timestamp)
    return Cut(segment, position, found, written, timestamp)


def first_whole(snapshot: Snapshot, segment: StoreFile, start: int, not_before: int) -> int:
    """The position of the first whole message from ``start`` on, -1 if missing.

    ``start``: position in the segment, to which the chain of records has led. ``not_before``: storeTimestamp,
    ms, that it has at least; see :func:`left_from`.
    """
    size, settings = snapshot.segment_size, snapshot.settings
    data = map_segment(segment.path, size)
    stop = max((end for _, end in written_ranges(segment, start, size)), default=start)
    extents = Extents(
        data,
        segment.base,
        size,
        topic_length_v2=settings.dialect.topic_length_v2,
        largest_record=settings.largest_record,
        not_before=not_before or None,
    )
    found = start
    if not extents.is_message(start):
        found = extents.resume(start, stop).position
    return found if found >= 0 and extents.is_message(found) else -1


def written_behind(snapshot: Snapshot, base: int) -> list[StoreFile]:
    """The segments behind the one at ``base`` that something was written to."""
    size = snapshot.segment_size
    return [
        segment
        for segment in snapshot.log.files
        if segment.base > base and first_written(segment, size, 0) < size
    ]


def left_from(prediction: Prediction) -> int:
    """StoreTimestamp of the message before the walk's end, ms; of an earlier one, or 0, if it met none.

    In the last segment that was written, messages older than that are what an earlier truncation left
    behind: the broker moved its position back, and the bytes stayed. They are no part of the log.
    """
    snapshot, walked = prediction.snapshot, prediction.recovered or prediction.tail
    if walked is not None and walked.last_valid >= 0:
        return store_timestamp(snapshot.log.files, snapshot.segment_size, walked.last_valid)
    end = 0 if walked is None else walked.end
    for segment in reversed(snapshot.log.files):
        if segment.base < end and first_whole(snapshot, segment, 0, 0) == 0:
            return store_timestamp(snapshot.log.files, snapshot.segment_size, segment.base)
    return 0


#: Problems of a start that a rebuild of queues and index takes away, wherever they are told.
_DERIVED = frozenset({"empty-queue-file", "dispatch-never-ends", "queue-type"})
_DERIVED_ROOTS = (*names.QUEUES, names.CONSUME_QUEUE_ROCKSDB, names.INDEX, names.CHECKPOINT)


def outside(settings: StoreSettings) -> list[Path]:
    """The directories of the log that lie outside of the store, where nothing can be put in place."""
    return [one for one in settings.commit_log_dirs if not one.is_relative_to(settings.root)]


def place_of_new(settings: StoreSettings, beside: Path) -> Path:
    """The directory where a missing segment is made: one in the store, if the log has any."""
    there = (one for one in (beside, *settings.commit_log_dirs) if one.is_relative_to(settings.root))
    return next(there, beside)


def outside_step(settings: StoreSettings, path: str | Path) -> str:
    """What to do about something in such a directory."""
    if Path(path).resolve().is_relative_to(settings.root.resolve()):
        return f"Name the store by its own path, {settings.root.resolve()}: {path} lies in it by that alone."
    rebuild = settings.command("rebuild", "--out", "DIR")
    return (
        f"{path} lies outside of {settings.root}, where mend changes nothing: with the broker stopped, move "
        "the log into the store and mend storePathCommitLog, or copy the whole segment there from a slave "
        f"that has all of it; `{rebuild}` skips the damage, into a directory of its own."
    )


def refuse_outside(settings: StoreSettings, path: Path) -> None:
    """Refuse to mend something of the log that lies outside of the store: UnsupportedError."""
    if not path.is_relative_to(settings.root):
        raise UnsupportedError(
            "the commit log must be mended, and it lies outside the store's directory",
            path=path,
            expected=f"a path below {settings.root}",
            next_step=outside_step(settings, path),
        )


def are_its_own(settings: StoreSettings) -> bool:
    """Whether a store may be written by these settings: it doesn't speak against them."""
    try:
        settings.basis.refuse(Asked(Writes.IN_PLACE), settings.root)
    except SettingsError:
        return False
    return True


def refuse_problems(problems: list[Problem], settings: StoreSettings) -> None:
    """Refuse what keeps a broker from starting, and neither a rebuild nor moving a file away mends.

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

    ``cut``: of that start; a whole message is behind it. UnsupportedError where a whole message keeps the
    release from reading on.
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
