"""The result of a rebuild, for people and programs.

A broker keeps the last file of such a queue. It is copied into the rebuilt store as it is, so that consumers'
offsets stay valid; so is its last file in consumequeue_ext, so that addresses continue where they were.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reput.config.basis import Basis
from reput.derived.files import MISSING_SEGMENTS
from reput.derived.last_file import (
    EXPIRED_QUEUES,
    NO_UNIT,
    LastFile,
    Lost,
    last_ext_file,
    last_file,
    own_end,
)
from reput.derived.plain import QueueReader
from reput.errors import Finding, ReputError, Result
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.dtypes import IN_FILES, PLAIN, Form
from reput.replay.state import FILLED, HIDDEN, KEPT
from reput.replay.target import Selection, is_known
from reput.rocksdb import opened
from reput.store import files
from reput.store.listing import ignored_features, nearest_queue, queues_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from reput.catalog import Cataloged
    from reput.errors import Problem
    from reput.job.plan import Plan
    from reput.replay.state import State


#: The kind of a finding: a segment lacks its end.
_TOO_SHORT = "segment-length"
#: Why one isn't in an output beside the store.
STAYS = "its last file stays in the store alone, for this output holds what the log does"


@dataclass(frozen=True, slots=True)
class Gone:
    """A queue in the store that the log has no message of."""

    topic: str  # topic, queue_id: the queue
    queue_id: int
    last: LastFile | str  # its last file, which can be carried over, or why it can't
    form: Form = PLAIN  # the queue's

    def __str__(self) -> str:
        return f"{self.topic}:{self.queue_id}"


def gone_queues(plan: Plan, store: Path) -> Iterator[Gone]:
    """Those of :func:`queues_without_messages` whose files may be carried over; none where none are made."""
    if plan.settings.rocksdb.files:
        yield from queues_without_messages(plan, store)


def queues_without_messages(plan: Plan, store: Path) -> Iterator[Gone]:
    """The queues and batch queues of ``store`` that are wanted and that the journal doesn't name, sorted.

    Nothing where queues were chosen: the others aren't replaced. ``store`` is the store, or the directory of
    what was replaced.
    """
    if not plan.selection.is_all:
        return
    log = plan.log.start, plan.journal.state.cursor
    lost = _lost_of(plan)
    for form in IN_FILES:
        _, size = plan.settings.queue_file_sizes[form.directory]
        for topic, queue_id, directory in _queues(store / form.directory):
            if (topic, queue_id) in plan.journal.state.queues or plan.selection.form_of(topic) != form:
                continue
            wanted = plan.selection.wants_topic(topic.encode("utf-8", "surrogateescape"))
            if wanted and any(directory.iterdir()):
                last = last_file(directory, size, *log, form, lost, plan.log.segment_size)
                yield Gone(topic, queue_id, last, form)


def expired_queues(plan: Plan, path: str, expected: str, found: str, outcome: str, count: int = 1) -> Finding:
    """The finding of queues whose messages have all expired."""
    start = plan.log.start
    return Finding(EXPIRED_QUEUES, path, start, start, expected, found, outcome, count=count)


def odd_queues(
    plan: Plan, gone: Iterable[Gone], skipped: Callable[[Gone], bool] = lambda _: False
) -> Iterator[Finding]:
    """What is told of queues that go on elsewhere than their messages say; ``skipped`` are passed over."""
    at_zero: list[tuple[str, str, str]] = []
    doubtful: list[tuple[str, str, str]] = []
    start = plan.log.start
    for queue in gone:
        last = queue.last
        if skipped(queue) or last == NO_UNIT:
            continue
        if isinstance(last, str):
            at_zero.append((str(queue), "a last file that begins with units", last))
        elif 0 <= last.left_out < plan.journal.state.cursor:
            where = f"a last unit before {start}, where the log begins"
            doubtful.append((str(queue), where, f"one at {last.left_out}"))
    for odd, outcome in (
        (at_zero, "they begin at 0 again"),
        (doubtful, "they go on behind what their files hold"),
    ):
        for named, expected, found in odd[:1]:
            others = f", and {len(odd) - 1:,} more queues" if len(odd) > 1 else ""
            said = f"{named}: {expected}", f"{found}{others}", f"without a message in the log, {outcome}"
            yield expired_queues(plan, plan.settings.place, *said, len(odd))


@dataclass(frozen=True, slots=True)
class KeptEnd:
    """The end of a queue whose last messages the log has lost."""

    topic: str  # topic, queue_id: the queue
    queue_id: int
    first: int  # first, end: queueOffsets, half open: the places of the lost messages
    end: int


def _lost_of(plan: Plan) -> Lost:
    state = plan.journal.state
    lost = [(one.begin, one.end) for one in state.salvaged if one.kind == KEPT]
    lost += [(one.offset, one.end) for one in state.findings if one.kind in (MISSING_SEGMENTS, _TOO_SHORT)]
    return Lost([*lost, *((at, at + 1) for at in plan.settings.passed_over)])


def kept_ends(plan: Plan, store: Path) -> Iterator[KeptEnd]:
    """The plain queues, of those made, that end further on in ``store`` than their messages say, sorted.

    A broker takes a queue's next queueOffset from its last unit (``ConsumeQueue.recover``,
    rocketmq-all-4.9.7, 5.3.3), and groups have committed it. If the queue ended before, new messages would
    get the queueOffsets of old ones, and such a group would never get them. All places are kept up to the
    last whose unit leads into a part of the log that can't be read, or to the queue's last message, as an
    earlier mending left it.
    """
    state = plan.journal.state
    lost = _lost_of(plan)
    if not (lost or state.findings):
        return
    size = plan.settings.consume_queue_file_size
    with QueueReader(store, size) as there:
        for topic, queue_id, _ in _queues(store / names.CONSUME_QUEUE):
            queue = state.queues.get((topic, queue_id))
            if queue is None or queue.is_batch or queue.next <= queue.first:
                continue
            with suppress(OSError, ReputError):  # what can't be read keeps nothing
                end = own_end(
                    partial(there.read, topic, queue_id), queue.next, partial(_are_own, lost, queue.end)
                )
                if end > queue.next:
                    yield KeptEnd(topic, queue_id, queue.next, end)


def _are_own(lost: Lost, end: int, units: NDArray[np.void]) -> NDArray[np.bool_]:
    is_last = units["position"].astype(np.int64) + units["size"] == end
    return np.array(lost.has(units) | is_last)


def _keep_ends(plan: Plan, store: Path) -> None:
    """The unit of the last message that is left stands for those that are lost."""
    if not plan.settings.rocksdb.files:
        return
    size = plan.settings.consume_queue_file_size
    per_file = size // UNIT_LENGTH
    with QueueReader(plan.root, size) as made:
        for one in kept_ends(plan, store):
            unit = made.read(one.topic, one.queue_id, one.first - 1, 1)
            for first in range(one.first - one.first % per_file, one.end, per_file):
                start, end = max(one.first, first), min(one.end, first + per_file)
                path = names.queue_file(plan.root, one.topic, one.queue_id, first * UNIT_LENGTH)
                with files.opened(path, size, plan.owner) as fd:
                    files.pwrite_all(fd, unit * (end - start), (start - first) * UNIT_LENGTH)
                    files.fsync_file(fd)
            files.fsync_dir(path.parent)


def carry_over(plan: Plan, store: Path) -> None:
    """Copy the last files of queues without messages of ``store`` into the output, flushed.

    Queues whose last messages are lost get the ends that they have in ``store`` (:func:`kept_ends`).

    Where nothing at all is left of the store's queues of a kind, or of its index, the output gets an empty
    directory, which takes the old one's place: else units and keys of a lost log would stay.
    """
    recovery = plan.settings.recovery
    if plan.selection.is_all:
        of_files = plan.settings.rocksdb.files
        made = {
            names.CONSUME_QUEUE: of_files,
            names.CONSUME_QUEUE_EXT: of_files and recovery.queue_ext,
            names.BATCH_CONSUME_QUEUE: of_files and bool(plan.selection.batch),
            names.INDEX: plan.index,
        }
        for name, is_made in made.items():
            if is_made and (store / name).is_dir():
                files.make_dirs(plan.root / name, plan.owner)
    sizes = plan.settings.queue_file_sizes
    for gone in gone_queues(plan, store):
        if isinstance(gone.last, str):
            continue
        queue = gone.topic, gone.queue_id
        size = sizes[gone.form.directory][1]
        _put(plan, gone.form.place(plan.root, *queue), gone.last, size)
        to_nothing = not plan.log.start and gone.last.last_position >= 0  # none of them has expired
        for base in range(0, int(gone.last.path.name) if to_nothing else 0, size):
            place = gone.last.path.with_name(names.offset_name(base))
            units = gone.last.units[-gone.form.unit_length :] * (size // gone.form.unit_length)
            earlier = replace(gone.last, path=place, units=units)
            _put(plan, gone.form.place(plan.root, *queue), earlier, size)
        if recovery.queue_ext and gone.form == PLAIN:
            found = names.queue_ext_directory(store, *queue)
            ext = last_ext_file(found, recovery.queue_ext_file_size)
            if ext is not None:
                last = LastFile(ext[0], ext[1], 0, 0, -1, gone.last.modified)
                directory = names.queue_ext_directory(plan.root, *queue)
                _put(plan, directory, last, recovery.queue_ext_file_size)
    _keep_ends(plan, store)


def _put(plan: Plan, directory: Path, last: LastFile, file_size: int) -> None:
    path = directory / last.path.name
    with files.opened(path, file_size, plan.owner) as fd:
        files.pwrite_all(fd, last.units, 0)
        with files.reporting("can't set the file's time", path):
            os.utime(fd, ns=(last.modified, last.modified))
        files.fsync_file(fd)
    files.fsync_dir(path.parent)


def drop_carried(plan: Plan) -> None:
    """Remove what a run carried over that ended before the swap: the log may have grown since."""
    for root in names.QUEUES:
        for topic, queue_id, directory in _queues(plan.root / root):
            if (topic, queue_id) not in plan.journal.state.queues:
                files.remove_tree(directory)
                if not any(directory.parent.iterdir()):
                    files.remove_tree(directory.parent)


def missing_queues(plan: Plan, store: Path) -> set[str]:
    """The directories, relative to ``store``, of queues that the journal doesn't name, by name alone."""
    return {
        path.relative_to(store).as_posix()
        for root in names.QUEUES
        for topic, queue_id, path in _queues(store / root)
        if (topic, queue_id) not in plan.journal.state.queues
    }


def _queues(root: Path) -> list[tuple[str, int, Path]]:
    with files.reporting("the queues can't be listed", root):
        return sorted((topic, queue_id, Path(path)) for topic, queue_id, path in queues_in(root))


@dataclass(slots=True)
class Summary(Result):
    """The result of a rebuild; ``to_dict`` is what ``--json`` prints."""

    store: str  # store, output: directories
    output: str
    in_place: bool  # the store's own files were replaced
    rocketmq_version: str  # the dialect
    start: int = 0  # start, end: physical offsets, half open: the range of the log that the output covers
    end: int = 0
    messages: int = 0  # messages, bytes: in that range, of whole records
    bytes: int = 0
    new_messages: int = 0  # new_messages, new_bytes: what this run added to an existing output
    new_bytes: int = 0
    queues: int = 0  # queues, units: in the output
    units: int = 0
    index_files: int = 0  # index_files, index_entries: in the output
    index_entries: int = 0
    batches: int = 0  # micro-batches that made the output
    seconds: float = 0.0  # wall time of this run
    #: requested queues for which the log has no message
    absent_queues: list[str] = field(default_factory=list)
    #: the nearest queue that there is, by such a one; none where nothing is like it
    did_you_mean: dict[str, str] = field(default_factory=dict)
    #: queues of the store whose messages have all expired; their last file was carried over
    carried_queues: list[str] = field(default_factory=list)
    #: carried queues whose file points at messages that the log should have
    doubtful_queues: list[str] = field(default_factory=list)
    #: queues whose last file couldn't be carried over, with the reason
    vanished_queues: dict[str, str] = field(default_factory=dict)
    #: topics of the log that config/topics.json lacks; empty without that file
    unknown_topics: list[str] = field(default_factory=list)
    #: messages that got no unit because their topic was left out, by topic; empty if queues were
    #: chosen
    without_units: dict[str, int] = field(default_factory=dict)
    #: damaged ranges kept, places filled and messages hidden, by kind; the newest ones only
    salvaged: dict[str, int] = field(default_factory=dict)
    #: queues whose last messages are lost, and that keep their ends; their places count as filled
    kept_ends: list[KeptEnd] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # what was skipped
    #: what a store rebuilt in place has and no log holds: timer wheel, compaction
    left_alone: list[str] = field(default_factory=list)
    #: what keeps a broker from starting on the store, and isn't mended by what was made
    stops: list[Problem] = field(default_factory=list)
    kept: str | None = None  # the directory that holds what was replaced, None when nothing was
    stages: dict[str, float] = field(default_factory=dict)  # wall time by stage, s
    followed: bool = False  # the log was followed until the tail was stopped
    catalog: Cataloged | None = None  # the result for the table of messages, None when no table was wanted
    basis: Basis = field(default_factory=Basis)  # what the settings are based on

    hidden = ("kept_ends",)

    @property
    def exit_code(self) -> int:
        """0 when all is sound, 1 otherwise.

        With findings, also of the table of messages, broken queues, a requested queue that isn't in the log,
        or a store rebuilt in place on which no broker starts.
        """
        stops = self.in_place and self.stops
        lacks = self.catalog is not None and self.catalog.findings
        return int(bool(self.findings or lacks or self.absent_queues or self.has_broken_queues or stops))

    @property
    def has_broken_queues(self) -> bool:
        """A queue that had messages begins at 0 again, or leads to messages that the log should have."""
        lost = any(reason not in (NO_UNIT, STAYS) for reason in self.vanished_queues.values())
        return lost or bool(self.doubtful_queues)


def summarize(
    plan: Plan,
    before: State,
    seconds: float,
    kept: str | None,
    stages: dict[str, float],
    carried_from: Path | None = None,
) -> Summary:
    """The summary of a run that has ended, and that began with the journal's state ``before``.

    Queues that the log has no message of were carried over from ``carried_from``, else from ``kept``.
    """
    state = plan.journal.state
    known = plan.known
    topics = {topic for topic, _ in state.queues} | set(state.without_unit)
    if carried_from is None and kept is not None:
        carried_from = Path(kept)
    gone = [] if carried_from is None else list(gone_queues(plan, carried_from))
    odd = list(odd_queues(plan, gone)) if plan.log.start else []
    beside = carried_from is None and not plan.in_place and plan.settings.remote is None
    keeps = plan.settings.rocksdb.files  # a database has no place without a message
    ends = list(kept_ends(plan, carried_from)) if carried_from is not None and keeps else []
    stay: dict[str, str] = {}
    if beside and plan.log.start:
        with suppress(ReputError, OSError):  # the output is whole, whatever is odd about the store's queues
            stay = dict.fromkeys(_staying(plan), STAYS)
    absent = _absent(plan.selection, state)
    carried = [(queue, queue.last) for queue in gone if isinstance(queue.last, LastFile)]
    return Summary(
        store=plan.settings.place,
        output=str(plan.settings.root if plan.in_place else plan.root),
        in_place=plan.in_place,
        rocketmq_version=plan.settings.told_release,
        start=plan.journal.opening.start,
        end=state.cursor,
        messages=state.messages,
        bytes=state.bytes,
        new_messages=state.messages - before.messages,
        new_bytes=state.bytes - before.bytes,
        queues=len(state.queues),
        units=state.units,
        index_files=len(state.index),
        index_entries=state.index_entries,
        batches=state.batches,
        seconds=seconds,
        absent_queues=sorted(absent),
        did_you_mean=_meant(plan, state, absent),
        carried_queues=[str(queue) for queue, _ in carried],
        doubtful_queues=[str(queue) for queue, last in carried if 0 <= last.left_out < state.cursor],
        vanished_queues=stay | {str(queue): queue.last for queue in gone if isinstance(queue.last, str)},
        unknown_topics=sorted(topic for topic in topics if known is not None and not is_known(topic, known)),
        without_units=dict(sorted(state.without_unit.items())) if plan.selection.is_all else {},
        salvaged={
            kind: sum(each.count for each in state.salvaged if each.kind == kind)
            + (sum(end.end - end.first for end in ends) if kind == FILLED else 0)
            for kind in (KEPT, FILLED, HIDDEN)
        },
        kept_ends=ends,
        findings=[*state.findings, *odd],
        left_alone=ignored_features(plan.settings.root) if plan.in_place else [],
        kept=kept,
        stages=stages,
        basis=plan.settings.basis,
    )


def _staying(plan: Plan) -> Iterator[str]:
    """Queues of the store whose messages have all expired, and that an output beside it hasn't got."""
    from reput.job.rebuilding import expired_ends

    if plan.settings.rocksdb.files:
        yield from (
            str(one) for one in gone_queues(plan, plan.settings.root) if isinstance(one.last, LastFile)
        )
    elif plan.selection.is_all:
        directory = plan.settings.root / str(plan.settings.rocksdb.queues)
        with opened(directory) as database:
            for topic, queue_id in sorted(expired_ends(database, plan)):
                name = topic.decode("utf-8", "replace")
                if (name, queue_id) not in plan.journal.state.queues:
                    yield f"{name}:{queue_id}"


def left_to_mend(plan: Plan) -> list[Problem]:
    """What keeps a broker from starting on a store, but for what was made; nothing while one runs on it."""
    from reput.broker.snapshot import take

    root = plan.settings.root
    if plan.settings.remote is not None:
        return []
    try:
        found = take(plan.settings)
    except ReputError:  # who reads the store next says why
        return []
    made = [] if plan.in_place else [root / name for name in names.OUTPUT]
    return [
        problem
        for problem in found.problems
        if problem.stops and found.holder is None and not any(map(Path(problem.path).is_relative_to, made))
    ]


def _absent(selection: Selection, state: State) -> dict[str, tuple[str, int | None]]:
    """The requested queues that got no unit, by how they were named."""
    topics = {topic for topic, _ in state.queues}
    return {
        topic if queue_id is None else f"{topic}:{queue_id}": (topic, queue_id)
        for topic, queue_id in selection.queues
        if (topic not in topics if queue_id is None else (topic, queue_id) not in state.queues)
    }


def _meant(plan: Plan, state: State, absent: Mapping[str, tuple[str, int | None]]) -> dict[str, str]:
    """For such queues the nearest of those that the store, its topics or its log have."""
    if not absent:
        return {}
    topics = {*state.without_unit, *(plan.known or ())}
    also = [*state.queues, *((topic, None) for topic in topics)]
    found = {name: nearest_queue(plan.settings.root, *one, also) for name, one in sorted(absent.items())}
    return {name: meant for name, meant in found.items() if meant is not None}
