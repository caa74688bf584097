"""The database of queues in a verification: its keys against the log, both ways, and the ends of queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from reput.build.placement import Breaks
from reput.errors import Finding
from reput.format import rocksdbqueue
from reput.format.rocksdbqueue import CHECKPOINT_KEY, MAX, OFFSETS, UNITS, QueueEnd
from reput.newer_python import Self
from reput.output.rocksdb.queue_task import Share
from reput.output.rocksdb.queues import Totals, shares_of, totals_of
from reput.replay.part_result import PartResult
from reput.replay.runner import Runner
from reput.rocksdb import CURRENT, is_database, opened
from reput.rocksdb.snapshot import caught
from reput.store.space import check_free
from reput.verify.explain import Explainer
from reput.verify.plan import Plan
from reput.verify.report import CHECKPOINT, QUEUE, Difference, Note
from reput.verify.rocksdb_units import (
    Bounds,
    QueueStored,
    ShareChecked,
    ShareTask,
    refuse_other_hosts,
)
from reput.verify.tasks import in_waves
from reput.verify.units import add_ranges

_Queue = tuple[bytes, int]
_ROW_BYTES = 40  # of a unit on its way
_LISTED = 16


@dataclass(frozen=True, slots=True)
class _End:
    """The ends of a queue as the log has them: its first message, and its last one."""

    first: QueueEnd
    last: QueueEnd


class QueueDatabaseCheck:
    """The queues' database of one run. A context manager; without one where the settings have none.

    Attributes:
        scratch: where tasks put units of the log for :meth:`compare`; None where there is nothing to compare.
        units: of the log's queues.
        restarts: by topic, the physical offset where a queue of it begins anew.
    """

    def __init__(self, plan: Plan, runner: Runner) -> None:
        self._plan = plan
        self._runner = runner
        self._stack = ExitStack()
        self._held: Path | None = None
        self._runs: list[str] = []
        self._shares: list[ShareChecked] = []
        self._stored: dict[_Queue, QueueStored] = {}
        self._ends: dict[_Queue, _End] = {}
        self._of_queues: list[Difference] = []
        self._counts: dict[_Queue, int] = {}
        self._notes: list[Note] = []
        self.scratch: Path | None = None
        self.units = 0
        self.restarts: dict[str, int] = {}

    @property
    def directory(self) -> Path:
        """The database."""
        return self._plan.settings.root / str(self._plan.settings.rocksdb.queues)

    def __enter__(self) -> Self:
        """Catch the database as it is now.

        Raises:
            ReputError: it can't be read, or tasks run on other hosts.
        """
        if self._plan.settings.rocksdb.queues is None:
            return self
        refuse_other_hosts(self._runner, self.directory)
        if not is_database(self.directory):
            self._of_queues.append(
                Difference(
                    "missing-database",
                    str(self.directory),
                    QUEUE,
                    f"queues in RocksDB, with {CURRENT}",
                    "none",
                    offset=None,
                    cause="database-lost",
                    remark="the queues' database is gone: a start after a clean stop makes it anew, without "
                    "the first message of the log",
                )
            )
            return self
        snapshot = self._stack.enter_context(caught(self.directory))
        self._held = snapshot.directory
        with opened(self._held, required=(UNITS, OFFSETS), named=self.directory) as database:
            units = database.estimate(UNITS)
        self.scratch = self._held.parent / "units"
        check_free(self.scratch.parent, units * _ROW_BYTES, "the log's units, which are compared")
        self.scratch.mkdir()
        return self

    def __exit__(self, *of: object) -> None:
        self._stack.__exit__(*of)  # type: ignore[arg-type]

    def add(self, result: PartResult) -> None:
        """Take what came of a part of the log, the parts in order."""
        self._runs += result.runs

    def compare(self, breaks: Breaks) -> None:
        """Compare all that was taken with the database."""
        plan = self._plan
        if self._held is None:
            return
        with opened(self._held, named=self.directory) as database:
            found = database.get(OFFSETS, CHECKPOINT_KEY)
        checkpoint = None if found is None else rocksdbqueue.parse_checkpoint(found)
        bounds = Bounds.of(plan, checkpoint or 0)
        batch = plan.settings.batch_topics()
        target = replace(plan.target(), selection=replace(plan.selection, batch=batch))
        tasks = [
            ShareTask(
                target,
                self._held,
                self.directory,
                tuple(self._runs),
                breaks,
                plan.log.start == 0,
                bounds,
                share,
                first,
                stop,
            )
            for share, first, stop in self._ranges(totals_of(self._runs, breaks))
        ]
        for done in in_waves(self._runner, tasks):
            self._add(done)
        self._check_ends(bounds)
        if plan.selection.is_all and not plan.running:
            self._check_checkpoint(found, checkpoint)
        if plan.running:
            self._notes.append(
                Note(
                    "not-flushed",
                    f"what the broker hasn't flushed into {self.directory}: from {checkpoint} on",
                )
            )

    def _ranges(self, totals: Totals) -> Iterator[tuple[Share | None, bytes, bytes | None]]:
        """Shares with the ranges of keys that they are compared with, which leave out none that is wanted."""
        for low, high in wanted_keys(self._plan.selection.queues):
            here = totals.between(low, high)
            shares: list[Share | None] = [*shares_of(here, self._runner.slots)] or [None]
            firsts = [low, *(_begin(share) for share in shares[1:] if share is not None)]
            for share, first, stop in zip(shares, firsts, [*firsts[1:], high], strict=True):
                if share is not None and share.stop is None and high is not None:
                    share = replace(share, stop=high)
                yield share, first, stop

    def _add(self, done: ShareChecked) -> None:
        self._shares.append(done)
        self.units += done.units
        for queue, stored in done.queues.items():
            self._stored.setdefault(queue, QueueStored()).add(stored)
        for finding in done.findings:
            if finding.kind == "queue-restarted" and finding.topic is not None:
                topic = finding.topic
                self.restarts[topic] = max(self.restarts.get(topic, -1), finding.offset)
        if done.ends is not None:
            first, last = done.ends.first.tolist(), done.ends.last.tolist()
            for prefix, begin, end in zip(done.ends.prefixes, first, last, strict=True):
                key = rocksdbqueue.parse_unit_key(prefix + bytes(8))
                if key is None:
                    continue
                queue = key.topic, key.queue_id
                known = self._ends.get(queue)
                self._ends[queue] = _End(QueueEnd(*begin) if known is None else known.first, QueueEnd(*end))
        done.ends, done.queues = None, {}

    # --- ends of queues -----------------------------------------------------------------------------------

    def _check_ends(self, bounds: Bounds) -> None:
        selection = self._plan.selection
        with_max: set[_Queue] = set()
        foreign: list[bytes] = []
        assert self._held is not None  # noqa: S101 - of compare
        with opened(self._held, named=self.directory) as database:
            for keys, values in database.blocks(OFFSETS):
                for text, value in zip(keys, values, strict=True):
                    if text == CHECKPOINT_KEY:
                        continue
                    key = rocksdbqueue.parse_offset_key(text)
                    if key is None:
                        foreign.append(text)
                        continue
                    queue = key.topic, key.queue_id
                    if not wants(selection.queues, queue):
                        continue
                    if key.which == MAX:
                        with_max.add(queue)
                    end = rocksdbqueue.parse_offset(value)
                    problem = self._end_problem(queue, key.which, end, bounds)
                    if problem is not None and end is not None and key.which == MAX:
                        unit = database.get(UNITS, rocksdbqueue.unit_key(*queue, end.queue_offset))
                        log = self._ends.get(queue)
                        same = log is not None and log.last.queue_offset == end.queue_offset
                        if same and unit is not None and unit[:8] == value[:8]:
                            continue  # of several messages with this queueOffset, the one that has the unit
                    if problem is not None:
                        self._end_differs(
                            queue, key.which, *problem, "nothing" if end is None else _said(end)
                        )
        for queue in sorted(self._ends.keys() - with_max):
            last = self._ends[queue].last
            if bounds.flushed is None or last.position < bounds.flushed:
                self._end_differs(queue, MAX, "missing-max", _said(last), "nothing")
        if foreign and selection.is_all:
            self._of_queues.append(self._foreign(foreign[:_LISTED], len(foreign), OFFSETS))

    def _end_problem(
        self, queue: _Queue, which: bytes, end: QueueEnd | None, bounds: Bounds
    ) -> tuple[str, str] | None:
        """The kind of what is wrong with a queue's end, and what was expected; None for nothing."""
        log = self._ends.get(queue)
        if end is not None and bounds.live_end is not None and end.position >= bounds.live_end:
            return None
        is_expired = end is not None and 0 <= end.position < bounds.start and end.queue_offset >= 0
        if log is None:
            # Brokers write this when an empty queue is asked for its first offset (5.3.3, 5.5.0).
            if which != MAX and end is not None and (end.position, end.queue_offset) == (0, 0):
                return None
            return None if is_expired else ("extra-end", "nothing, for the log has no message of this queue")
        if which == MAX:
            if end == log.last or (bounds.flushed is not None and log.last.position >= bounds.flushed):
                return None
            return "wrong-max", _said(log.last)
        first = log.first
        if end == first:
            return None
        if end is not None and is_expired and end.queue_offset < first.queue_offset:
            return None
        return "wrong-min", f"{_said(first)}, or an expired one before it"

    def _end_differs(self, queue: _Queue, which: bytes, kind: str, expected: str, found: str) -> None:
        topic = queue[0].decode("utf-8", "replace")
        self._of_queues.append(
            Difference(
                kind,
                str(self.directory),
                QUEUE,
                f"{which.decode()} {expected}" if kind != "extra-end" else expected,
                found if kind != "extra-end" else f"{which.decode()} {found}",
                topic=topic,
                queue_id=queue[1],
                offset=None,
            )
        )

    def _check_checkpoint(self, found: bytes | None, checkpoint: int | None) -> None:
        """The checkpoint key against the log: what a start dispatches depends on it."""
        last = max((share.end for share in self._shares), default=-1)
        end = self._plan.end

        def differs(kind: str, expected: str, remark: str) -> None:
            there = "nothing" if found is None else found.hex() if checkpoint is None else str(checkpoint)
            self._of_queues.append(
                Difference(
                    kind,
                    str(self.directory),
                    CHECKPOINT,
                    expected,
                    there,
                    offset=None,
                    remark=remark,
                )
            )

        if self._plan.crashed and (checkpoint is None or checkpoint <= end):
            return
        if found is None and last < 0:
            return
        expected = f"the key of the last dispatched record's end, {max(last, 0)}"
        if checkpoint is None:
            kind = "checkpoint-missing" if found is None else "checkpoint-length"
            differs(kind, expected, "a start after a clean stop leaves out the first message of the log")
        elif checkpoint > end:
            differs("checkpoint-ahead", f"{expected}; the log ends at {end}", "a start corrects it")
        elif checkpoint < last:
            differs(
                "checkpoint-behind",
                expected,
                "a start after a clean stop dispatches what begins behind it: the record that begins there "
                "is left out if it has no unit yet",
            )

    # --- the report ---------------------------------------------------------------------------------------

    @property
    def queues(self) -> int:
        """How many queues the log has messages of."""
        return len(self._ends)

    def log_findings(self) -> Iterator[Finding]:
        """What is odd about queues in the log."""
        for share in self._shares:
            for finding in share.findings:
                segment = self._plan.log.segment_at(finding.offset)
                yield replace(finding, path="" if segment is None else str(segment.path))

    def is_filled(self, finding: Finding) -> bool:
        """Whether the places of messages that the log has lost have units of the next one."""
        if finding.topic is None or finding.queue_id is None or finding.queue_offset is None:
            return False
        queue = finding.topic.encode("utf-8", "replace"), finding.queue_id
        stored, first = self._stored.get(queue, QueueStored()), finding.queue_offset
        return not any(one.first < first + finding.count and first < one.end for one in stored.ranges)

    def findings(self, explainer: Explainer) -> Iterator[Difference]:
        """What is wrong with the database."""
        deleted: set[tuple[str, int]] = set()
        gone = self._without_key()
        for (topic, queue_id), stored in sorted(self._stored.items()):
            name = topic.decode("utf-8", "replace")
            log = self._ends.get((topic, queue_id))
            lost = (topic, queue_id) in gone
            reason = explainer.deleted(name, log.last.position) if lost and log is not None else None
            if reason is not None:
                deleted.add((name, queue_id))
                text = f"{name}:{queue_id} has no key, and {stored.missing:,} messages in the log: {reason}"
                self._notes.append(Note("deleted-queue", text, name, queue_id, stored.missing))
                continue
            ranges: list = []  # type: ignore[type-arg]
            add_ranges(ranges, sorted(stored.ranges, key=lambda one: one.first))
            end = None if log is None else log.last.queue_offset + 1
            for one in ranges:
                yield explainer.stored((name, queue_id), one, self.directory, end, is_lost=lost)
        for problem in self._of_queues:
            if problem.kind == "missing-max" and (problem.topic, problem.queue_id) in deleted:
                continue
            yield problem
        foreign = [key for share in self._shares for key in share.foreign]
        count = sum(share.foreign_count for share in self._shares)
        if count:
            yield self._foreign(foreign[:_LISTED], count, UNITS)

    def _without_key(self) -> set[_Queue]:
        """The queues of the log that have no unit in the database."""
        lacking = [queue for queue, stored in self._stored.items() if stored.missing and not stored.others]
        if self._held is None or not lacking:
            return set()
        with opened(self._held, named=self.directory) as database:
            prefixes = {queue: rocksdbqueue.prefix(*queue) for queue in lacking}
            return {
                queue
                for queue, prefix in prefixes.items()
                if database.first(UNITS, prefix, prefix[:-1] + rocksdbqueue.CTRL_2) is None
            }

    def _foreign(self, keys: Sequence[bytes], count: int, family: str) -> Difference:
        return Difference(
            "foreign-key",
            str(self.directory),
            QUEUE,
            f"keys of queues in column family {family}",
            ", ".join(key[:40].hex() or "an empty key" for key in keys[:3]),
            count=count,
            offset=None,
        )

    def notes(self) -> Iterator[Note]:
        """What is odd and legal."""
        yield from (note for note in self._notes if note.kind != "not-flushed")
        pending = sum(stored.pending for stored in self._stored.values())
        if pending and not self._plan.running:
            text = (
                f"{pending:,} units that the broker hadn't flushed when it was killed: its start makes them"
            )
            yield Note("to-dispatch", text, count=pending)
        repeated = sum(stored.repeated for stored in self._stored.values())
        if repeated:
            text = (
                f"{repeated:,} places have the unit of an earlier message with the same queueOffset: "
                "of those dispatched together the first wins"
            )
            yield Note("repeated-queue-offset", text, count=repeated)
        expired = sum(share.expired for share in self._shares)
        if expired:
            text = f"{expired:,} units of expired messages, which a compaction will drop"
            yield Note("expired-unit", text, count=expired)

    def not_checked(self) -> Iterator[Note]:
        """What wasn't looked at."""
        yield from (note for note in self._notes if note.kind == "not-flushed")


def wanted_keys(queues: frozenset[tuple[str, int | None]]) -> Iterator[tuple[bytes, bytes | None]]:
    """Ranges of keys, half open, of the queues that are wanted."""
    if not queues:
        yield b"", None
        return
    found = set()
    for topic, queue_id in queues:
        if queue_id is not None and (topic, None) in queues:
            continue
        low = rocksdbqueue.prefix(topic.encode("utf-8", "replace"), queue_id or 0)
        if queue_id is None:
            low = low[: -len(b"\0\0\0\0\1")]
        found.add((low, low[:-1] + rocksdbqueue.CTRL_2))
    yield from sorted(found)


def wants(queues: frozenset[tuple[str, int | None]], queue: _Queue) -> bool:
    """Whether a queue is among those that were chosen."""
    if not queues:
        return True
    topic = queue[0].decode("utf-8", "replace")
    return (topic, None) in queues or (topic, queue[1]) in queues


def _begin(share: Share) -> bytes:
    if share.offsets is None:
        return share.first
    return share.first + share.offsets[0].to_bytes(8, "big", signed=True)


def _said(end: QueueEnd) -> str:
    return f"queueOffset {end.queue_offset} at {end.position}"
