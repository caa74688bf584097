"""From a diagnosis to what is to be done: what is moved, which log is closed, and what is made anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from reput.derived.files import NO_FILE
from reput.diagnosis.check import Diagnosis
from reput.diagnosis.start import QUEUE_CUT
from reput.diagnosis.verdict import Area, Effect
from reput.format import names
from reput.format.names import Queue
from reput.job.options import RebuildOptions
from reput.job.plan import Plan as Rebuilding
from reput.log.segments import SECOND_FILE
from reput.newer_python import Self
from reput.recovery.losses import named
from reput.recovery.replica import Comparison
from reput.store.system import human
from reput.words import counted

#: More queues than this aren't made one by one.
_MOST_QUEUES = 200
#: What is wrong with a queue that the log has messages of: those can be made one by one.
_IN_LOG = frozenset({"missing-unit", "wrong-unit", "misplaced-unit"})
#: Files in the log's directory that are none of the log's.
_STRAY = frozenset({"stray-file", "stray-directory", NO_FILE, SECOND_FILE})


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do."""

    #: ``move-aside``, ``take``, ``close-log``, ``make-queues``, ``make-index``, ``make-checkpoint``,
    #: or ``by-hand``
    kind: str
    text: str  # what it changes, for people

    @property
    def by_hand(self) -> bool:
        """Nobody but the operator can do it."""
        return self.kind == "by-hand"

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {"kind": self.kind, "said": self.text}

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Making:
    """What of queues, index and checkpoint is to be made anew."""

    queues: frozenset[Queue] | None = frozenset()  # these; None for all, and whatever lies beside them
    index: bool = False  # index, checkpoint: these, too
    checkpoint: bool = False

    @classmethod
    def whole(cls) -> Self:
        """All of it."""
        return cls(None, index=True, checkpoint=True)

    @property
    def anything(self) -> bool:
        """Whether there is anything to make."""
        return self.queues is None or bool(self.queues) or self.index or self.checkpoint

    @property
    def alone(self) -> bool:
        """Only some queues."""
        return bool(self.queues) and not self.index and not self.checkpoint

    def options(self, options: RebuildOptions) -> RebuildOptions:
        """Those of the rebuild that makes it."""
        if not self.alone or self.queues is None:
            return options
        return replace(
            options, queues=tuple(f"{topic}:{queue_id}" for topic, queue_id in sorted(self.queues))
        )

    def staged(self, rebuilding: Rebuilding) -> tuple[list[str], list[str]]:
        """What takes its place in the store, the checkpoint last, and what goes without a successor."""
        staging, root = rebuilding.root, rebuilding.settings.root
        there = {path.name for path in staging.iterdir()} - {names.REPUT, names.COMMIT_LOG}
        staged: list[str] = []
        removed: list[str] = []
        batch = names.BATCH_CONSUME_QUEUE
        if self.queues is None and batch not in there and (root / batch).is_dir():
            # No topic has such queues, and none of them has messages that have expired.
            reads = rebuilding.settings.dialect.recovery.switches_queue_types
            removed += [batch] if reads and rebuilding.settings.rocksdb.files else []
        if self.queues is None and self.index and self.checkpoint:
            return sorted(there, key=lambda name: (name == names.CHECKPOINT, name)), removed
        directories = (names.queue_directory, names.queue_ext_directory, names.batch_queue_directory)
        if self.queues is None:
            staged += [name for name in (*names.QUEUES, names.CONSUME_QUEUE_ROCKSDB) if name in there]
        for queue in sorted(self.queues or ()):
            for directory in directories:
                name = directory(Path(), *queue).as_posix()
                if (staging / name).exists():
                    staged.append(name)
                elif (root / name).exists():
                    removed.append(name)
        if self.index:
            staged += [name for name in (names.INDEX, names.ROCKSDB_STORE) if name in there]
            removed += [names.INDEX] if names.INDEX not in there and (root / names.INDEX).exists() else []
        if (self.checkpoint or self.index) and names.CHECKPOINT in there:
            staged.append(names.CHECKPOINT)
        return staged, removed


def making(before: Diagnosis) -> Making:
    """What of queues, index and checkpoint has to be made anew."""
    found = [one for one in before.mendable if one.area is not Area.LOG or one.kind not in _STRAY]
    if before.all_lost:
        return Making.whole() if before.mendable else Making()
    # Units that go with a cut of the log stay when the log is closed.
    of_queues = [one for one in found if one.area is Area.QUEUE and one.kind != QUEUE_CUT]
    # What a start puts right depends on where the log ends, how far all queues reach, and on the checkpoint.
    healed = [one for one in before.findings if found and one.effect is Effect.HEALS]
    closes = any(one.area is Area.LOG for one in found)
    of_queues += [one for one in healed if one.area is Area.QUEUE and (closes or one.kind in _IN_LOG)]
    index = any(one.area is Area.INDEX for one in (*found, *healed))
    checkpoint = index or any(one.area is Area.CHECKPOINT for one in found)
    if not of_queues:
        return Making(frozenset(), index, checkpoint)
    queues = frozenset(one.queue for one in of_queues if one.queue is not None)
    by_one = all(
        one.queue is not None and one.offset is not None and one.kind in _IN_LOG for one in of_queues
    )
    if not by_one or len(queues) > _MOST_QUEUES:
        return Making.whole()
    return Making(queues, index, checkpoint)


def steps_of(before: Diagnosis, replica: Comparison | None) -> Iterator[Step]:
    """What there is to do, in order; nothing where nothing can be done."""
    asked = before.asks_first
    for step in asked or before.by_hand:
        yield Step("by-hand", step)
    if asked:
        return
    root = before.settings.root
    found = before.mendable
    for one in found:
        if one.area is Area.LOG and one.kind in _STRAY:
            yield Step("move-aside", f"move {_below(one.path, root)} aside: {one.said}")
    if replica is not None and replica.taken:
        size = human(sum(one.end - one.offset for one in replica.taken))
        messages = counted(sum(one.count for one in replica.taken), "message")
        ranges = counted(len(replica.taken), "range")
        yield Step("take", f"take {ranges} of the log with {messages}, {size}, from {replica.replica}")
    log = [one for one in found if one.area is Area.LOG and one.kind not in _STRAY]
    if log:
        places = ", ".join(dict.fromkeys(_below(one.path, root) for one in log[:_MOST_NAMED]))
        more = f" and {len(log) - _MOST_NAMED:,} more" if len(log) > _MOST_NAMED else ""
        yield Step(
            "close-log",
            f"close {counted(len(log), 'damaged place')} of the log, on copies of its segments, so that a "
            f"start goes on behind: {places}{more}",
        )
    anew = Making.whole() if replica is not None and replica.taken else making(before)
    if anew.queues is None:
        yield Step("make-queues", "make all queues anew from the log")
    elif anew.queues:
        some = named(sorted(anew.queues))
        yield Step("make-queues", f"make {counted(len(anew.queues), 'queue')} anew from the log: {some}")
    if anew.index:
        yield Step("make-index", "make the index anew from the log")
    if anew.checkpoint:
        yield Step("make-checkpoint", "make the checkpoint anew")


_MOST_NAMED = 5


def _below(path: str, root: Path) -> str:
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path
