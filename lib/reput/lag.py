"""Lag by group, topic and queue.

A broker's own answer (``AdminBrokerProcessor.getConsumeStats``, rocketmq-all-4.9.7, 5.3.3) is max offset less
committed offset, with 0 for a queue that the group never committed. Here messages that have expired are
counted separately, since they can't be read any more: a broker's number is ``lag`` + ``expired``.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from reput.config.basis import Basis
from reput.config.committed import FILE, LMQ_PREFIX, Committed, Offsets, committed_offsets
from reput.config.kept import of_either, parse, unknown_queues
from reput.errors import Result, SettingsError, StoreError, StoreInUseError, UnsupportedError
from reput.format import commitlog, names
from reput.format.names import Queue
from reput.newer_python import StrEnum
from reput.query.store import QueryStore
from reput.remote import remote_store
from reput.replay.state import collector_paused
from reput.store import files
from reput.store.listing import nearest
from reput.store.lock import may_be_running
from reput.store.places import write_alone
from reput.store.reading import check_store, read_file, unreadable

if TYPE_CHECKING:
    from reput.config.settings import StoreSettings
    from reput.derived.queues import View


# How far the broker is with delayed messages. The file holds ``{"offsetTable": {LEVEL: OFFSET, …}}``: the
# queueOffset of each level's next message; a level without one begins at 0. A start moves an offset outside
# of its queue to the queue's nearest end.
# Source: ``ScheduleMessageService.start``, ``correctDelayOffset`` (rocketmq-all-4.9.7, 5.3.3).
_DELAY_OFFSETS = "delayOffset.json"
_DELAY_TOPIC = commitlog.SCHEDULE_TOPIC.decode()
PAST_END, EXPIRED = "past-end", "expired"
_LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DelayLag:
    """A delay level."""

    level: int  # 1 and on
    delay_ms: int | None  # how long it delays; None where broker.conf doesn't have the level
    offset: int | None  # queueOffset of the next message to deliver; None where the broker noted none: 0
    min_offset: int  # min_offset, max_offset: half-open range of the queue's offsets
    max_offset: int
    waiting: int  # messages that wait
    due_ms: int | None  # deliver time of the next one, ms; None without one
    #: "past-end" or "expired" (before the first message), which a start corrects; "unreadable"
    flag: str | None


def delay_lags(settings: StoreSettings) -> list[DelayLag]:
    """The levels that have messages, or an offset."""
    return list(_level_rows(settings, _offsets(settings.root / names.CONFIG / _DELAY_OFFSETS)))


def _level_rows(settings: StoreSettings, offsets: dict[int, int]) -> Iterator[DelayLag]:
    store = QueryStore(settings)
    levels = settings.delay_levels_ms
    there = {number + 1 for number in store.queue_ids(_DELAY_TOPIC)}
    for level in sorted({*there, *(level for level in offsets if level > 0)}):
        offset, delay = offsets.get(level), levels[level - 1] if level <= len(levels) else None
        try:
            view = store.queue(_DELAY_TOPIC, level - 1)
        except StoreError:
            yield DelayLag(level, delay, offset, 0, 0, 0, None, Flag.UNREADABLE)
            continue
        least, end = max(view.min_offset, 0), max(view.max_offset, 0)
        begin = min(max(offset or 0, least), end)
        flag = None
        if offset is not None and offset > end:
            flag = PAST_END
        elif offset is not None and offset < least:
            flag = EXPIRED
        units = view.units_from(begin, 1) if begin < end else None
        due = units[0].tags_code if units else None
        yield DelayLag(level, delay, offset, least, end, end - begin, due, flag)


def _offsets(path: Path) -> dict[int, int]:
    """The file's offsets by level, or its backup's; empty without either."""
    return of_either(path, "delay offsets", _levels, (FileNotFoundError, NotADirectoryError)) or {}


def _levels(data: bytes, path: Path) -> dict[int, int]:
    try:
        document = parse(data)
        table = document.get("offsetTable", {}) if isinstance(document, dict) else None
        if not isinstance(table, dict):
            raise ValueError("no offsetTable")
        found = {int(level): int(offset) for level, offset in table.items()}
        if not all(-_LONG_MAX <= offset <= _LONG_MAX for offset in found.values()):
            raise ValueError("an offset beyond 64 bits")
    except (ValueError, TypeError, RecursionError) as error:
        raise _broken(path, "offsets by level", str(error)) from error
    return found


def _broken(path: Path, expected: str, found: str) -> SettingsError:
    return SettingsError(
        "this file of delay offsets is broken",
        path=path,
        expected=expected,
        found=found,
        next_step="Bring it back from a copy: without it all that is still in the queues is delivered again.",
    )


_BROADCAST_SUFFIX = "@broadcast"
_MOST_NAMES = 5


class Flag(StrEnum):
    """What is odd about an offset."""

    EXPIRED = "expired"  # before the queue's first message: some messages expired without having been read
    # Past the queue's end: the log was cut, or the offsets are from another store. Consumers get nothing
    # until their offset is reset.
    PAST_END = "past-end"
    NO_QUEUE = "no-queue"  # there is no such queue, although messages of it were consumed
    UNREADABLE = "unreadable"  # the next message isn't where the queue points, or no file of it can be read
    # The group commits other queues of the topic, but never this one. Its client decides where it will
    # begin. By itself this isn't a problem.
    NOT_COMMITTED = "not-committed"


class AgesTo(StrEnum):
    """Up to when ages count."""

    NOW = "now"  # the present, or the moment that was given: a broker uses the store
    # When the log's last message was stored. A store at rest, or a copy of one, has no present: with its
    # own age all of it would be late.
    LAST_MESSAGE = "last-message"


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far behind a group is on a queue."""

    #: its name; ends in ``@broadcast`` where 5.x keeps offsets for consumers that get every message
    group: str
    topic: str  # topic, queue_id: which queue
    queue_id: int
    committed: int | None  # queue offset of the next message it wants; None when it never committed any
    pulled: int | None  # queue offset after what it had pulled, if the broker wrote that down
    #: min_offset, max_offset: half-open range of the queue's offsets, as the broker answers; 0 and 0
    #: where there is no queue
    min_offset: int
    max_offset: int
    lag: int  # messages that it still has to read
    expired: int  # messages that expired before it read them
    #: storeTimestamp of the next one to read, ms; None if missing, or it isn't there
    oldest_stored: int | None
    flags: tuple[Flag, ...] = ()  # what is odd


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The queues of a group and topic together."""

    group: str  # group, topic: the group and the topic
    topic: str
    queues: int  # how many
    lag: int  # lag, expired: their sums
    expired: int
    oldest_stored: int | None  # the least of theirs
    flags: dict[Flag, int]  # how many queues have each


@dataclass(frozen=True)
class LagReport(Result):
    """What :func:`lag` found."""

    store: Path  # the store
    rocketmq_version: str  # the release whose rules were used
    offsets: Path  # the file with the committed offsets
    taken: int  # ms since 1970 when it was read
    rows: tuple[QueueLag, ...]  # one a group, topic and queue; the greatest lag first, then by name
    basis: Basis = field(default_factory=Basis)  # what the settings are based on
    delays: tuple[DelayLag, ...] = ()  # the delay levels; empty where only a group or a topic was asked for
    corrected: Path | None = None  # the file of corrected offsets that was written; None without one
    moved: int = 0  # how many are other there
    ages_to: AgesTo = AgesTo.NOW  # up to when ages count
    ages_to_ms: int | None = None  # that moment, ms since 1970; None for ``taken``
    check: str = ""  # the command that checks the store, with what it was read with

    @property
    def reference(self) -> int:
        """Ms since 1970 up to which ages count, and from which what is due is late or early."""
        return self.taken if self.ages_to_ms is None else self.ages_to_ms

    def age(self, stored: int | None) -> int | None:
        """How old what was stored at a time is, ms; None without a time."""
        return None if stored is None else self.reference - stored

    @cached_property
    def groups(self) -> tuple[GroupLag, ...]:
        """One a group and topic; the greatest lag first."""
        found: dict[tuple[str, str], list[QueueLag]] = {}
        for row in self.rows:
            found.setdefault((row.group, row.topic), []).append(row)
        sums = [_sum(group, topic, rows) for (group, topic), rows in found.items()]
        return tuple(sorted(sums, key=lambda one: (-one.lag, -one.expired, one.group, one.topic)))

    @property
    def exit_code(self) -> int:
        """1 with any flag other than NOT_COMMITTED, also of a delay level; else 0."""
        odd = any(set(row.flags) - {Flag.NOT_COMMITTED} for row in self.rows)
        return int(odd or any(level.flag is not None for level in self.delays))

    @property
    def next_steps(self) -> list[str]:
        """What to do about queues that can't be read, and with the corrected file."""
        broken = any(Flag.UNREADABLE in row.flags for row in self.rows)
        broken = broken or any(level.flag == Flag.UNREADABLE for level in self.delays)
        steps = [f"`{self.check}` says why queues can't be read"] if broken else []
        if self.corrected is None:
            return steps
        config, name = self.store / names.CONFIG, self.offsets.name.removesuffix(".bak")
        target = config / (name if self.offsets.parent == config else FILE)
        if remote_store(self.store) is not None:
            target = Path("STORE", names.CONFIG, target.name)  # the broker's own, wherever that is
        return [
            f"`{self.check}`: what lost its files looks expired; mend it, ask again",
            f"With the broker stopped: {shlex.join(['cp', str(self.corrected), str(target)])}",
        ]

    hidden = ("taken", "rows", "delays", "check")

    def more(self) -> dict[str, object]:
        """What isn't a field by this name."""
        return {
            "taken_ms": self.taken,
            "ages_to_ms": self.reference,
            "lag": sum(row.lag for row in self.rows),
            "expired": sum(row.expired for row in self.rows),
            "groups": self.groups,
            "queues": self.rows,
            "delay_levels": self.delays,
            "next_steps": self.next_steps,
        }


@collector_paused()
def lag(
    settings: StoreSettings,
    *,
    group: str | None = None,
    topic: str | None = None,
    offsets: Path | None = None,
    now: int | None = None,
    store: QueryStore | None = None,
) -> LagReport:
    """How far behind the consumers of a store are.

    The committed offsets are read before the queues, so that those of a live store aren't past its end. A
    broker writes them every 5 s; in between they are behind what its consumers have done.

    With a ``group``, what 5.x keeps for its broadcasting consumers counts, too; nothing committed of a group
    or topic is an error. Ages count up to ``now``, ms: by default the clock's time if a broker uses the
    store, else when the log's last message was stored. ``store`` is one that no broker uses, with queues that
    have been looked at.
    """
    check_store(settings.root)
    read = committed_offsets(settings, offsets)
    wanted = [
        (one, of) for one, topics in read.topics.items() for of in topics if _fits(one, of, group, topic)
    ]
    if not wanted and (group is not None or topic is not None):
        gone = {} if topic is None else unknown_queues(settings.root, [(topic, None)], settings.config)
        raise _unknown(read.topics, group, topic, gone)
    taken = time.time_ns() // 1_000_000 if now is None else now
    queues = _Queues(settings, store)
    by_pair = _by_pair(read, wanted).items()
    rows = [row for (one, of), found in by_pair for row in _rows(queues, one, of, found)]
    rows.sort(key=lambda row: (-row.lag, -row.expired, row.group, row.topic, row.queue_id))
    delays = tuple(delay_lags(settings)) if group is None and topic is None else ()
    last = None if now is not None or may_be_running(settings.root) else queues.last_stored
    return LagReport(
        settings.root,
        settings.told_release,
        read.path,
        taken,
        tuple(rows),
        settings.basis,
        delays,
        ages_to=AgesTo.NOW if last is None else AgesTo.LAST_MESSAGE,
        ages_to_ms=last,
        check=settings.command("check"),
    )


def total_lag(settings: StoreSettings, ends: Mapping[Queue, tuple[int, int]]) -> int:
    """The sum over :attr:`LagReport.rows`, for which no time is looked up.

    ``ends`` are the minimum and maximum offset of queues that are known already, whose files aren't read
    then.
    """
    check_store(settings.root)
    queues, total = _Queues(settings), 0
    read = committed_offsets(settings)
    wanted = [(group, topic) for group, topics in read.topics.items() for topic in topics]
    for (_, topic), found in _by_pair(read, wanted).items():
        ids = queues.ids(topic)
        for queue_id in _asked(ids, topic, found):
            known = ends.get((topic, queue_id))
            if known is None and queue_id in ids:
                known = queues.ends(topic, queue_id)
            if known is not None:
                committed = _committed(found.get(queue_id))
                least, end = (max(one, 0) for one in known)
                total += max(end - (least if committed is None else max(committed, least)), 0)
    return total


def _by_pair(read: Offsets, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], dict[int, Committed]]:
    """By group and topic, what was committed for each queue."""
    found: dict[tuple[str, str], dict[int, Committed]] = {pair: {} for pair in wanted}
    for entry in read.committed:
        pair = found.get((entry.group, entry.topic))
        if pair is not None:
            pair[entry.queue_id] = entry
    return found


def _asked(there: Collection[int], topic: str, found: Mapping[int, Committed]) -> list[int]:
    """The queues that a group has to read, of those that are there and those that it has committed to."""
    # A light queue has its offset in lmqOffsetTable, and its topic has no other queues.
    if topic.startswith(LMQ_PREFIX) and found:
        return [*found]
    return sorted({*there, *found})


def _committed(entry: Committed | None) -> int | None:
    return None if entry is None or entry.offset < 0 else entry.offset


class _Queues:
    """The queues of a store, each read once."""

    def __init__(self, settings: StoreSettings, store: QueryStore | None = None) -> None:
        self._store = QueryStore(settings) if store is None else store
        self._queues: dict[str, dict[int, View | None]] = {}
        self._ids: dict[str, frozenset[int]] = {}

    @property
    def last_stored(self) -> int | None:
        """The storeTimestamp of the log's last message, ms; None when none is found."""
        times = self._store.log.times
        return None if times is None else times[1]

    def views(self, topic: str) -> dict[int, View | None]:
        """Those of a topic that are there, in order; some may have no files, or no keys. None: unreadable."""
        if topic not in self._queues:
            try:
                self._queues[topic] = {**self._store.queues(topic)}
            except StoreError:
                self._queues[topic] = {one: self._view(topic, one) for one in self._store.queue_ids(topic)}
        return self._queues[topic]

    def _view(self, topic: str, queue_id: int) -> View | None:
        try:
            return self._store.queue(topic, queue_id)
        except StoreError:
            return None

    def ids(self, topic: str) -> frozenset[int]:
        """The numbers of :meth:`views`, without looking into the queues."""
        if topic not in self._ids:
            self._ids[topic] = frozenset(self._store.queue_ids(topic))
        return self._ids[topic]

    def ends(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """Minimum and maximum offset of a queue; None when it has no files, or no keys."""
        view = self._store.queue(topic, queue_id)
        return (view.min_offset, view.max_offset) if view.exists else None

    def stored(self, view: View, offset: int) -> int | None:
        """The storeTimestamp of the message at a queue offset, ms; None when it isn't there."""
        units = view.units_from(offset, 1)
        if not units:
            return None
        found = self._store.log.store_timestamp(units[0].physical_offset, units[0].size)
        return found if found >= 0 else None


def _rows(queues: _Queues, group: str, topic: str, found: dict[int, Committed]) -> Iterator[QueueLag]:
    views = queues.views(topic)
    for queue_id in _asked(views, topic, found):
        entry = found.get(queue_id)
        committed = _committed(entry)
        view = views.get(queue_id)
        pulled = None if entry is None else entry.pulled
        if view is None and queue_id in views:
            flags: tuple[Flag, ...] = (Flag.UNREADABLE,)
            yield QueueLag(group, topic, queue_id, committed, pulled, 0, 0, 0, 0, None, flags)
            continue
        if view is None or not view.exists:
            flags = (Flag.NO_QUEUE,) if committed else ()
            if entry is not None:
                yield QueueLag(group, topic, queue_id, committed, pulled, 0, 0, 0, 0, None, flags)
            continue
        least, end = max(view.min_offset, 0), max(view.max_offset, 0)
        begin = least if committed is None else max(committed, least)
        flags = ()
        expired, oldest = 0, None
        if committed is None and begin < end:
            flags = (Flag.NOT_COMMITTED,)
        elif committed is not None and committed < least:
            flags = (Flag.EXPIRED,)
            expired = least - committed
        elif committed is not None and committed > end:
            flags = (Flag.PAST_END,)
        if begin < end:
            oldest = queues.stored(view, begin)
            if oldest is None:
                flags = (*flags, Flag.UNREADABLE)
        behind = max(end - begin, 0)
        yield QueueLag(group, topic, queue_id, committed, pulled, least, end, behind, expired, oldest, flags)


def _sum(group: str, topic: str, rows: list[QueueLag]) -> GroupLag:
    flags: dict[Flag, int] = {}
    for row in rows:
        for flag in row.flags:
            flags[flag] = flags.get(flag, 0) + 1
    times = [row.oldest_stored for row in rows if row.oldest_stored is not None]
    return GroupLag(
        group,
        topic,
        len(rows),
        sum(row.lag for row in rows),
        sum(row.expired for row in rows),
        min(times, default=None),
        flags,
    )


def _fits(group: str, topic: str, wanted_group: str | None, wanted_topic: str | None) -> bool:
    if wanted_topic is not None and topic != wanted_topic:
        return False
    return wanted_group is None or group in (wanted_group, wanted_group + _BROADCAST_SUFFIX)


def _unknown(
    known: Mapping[str, Iterable[str]], group: str | None, topic: str | None, gone: Mapping[str, str | None]
) -> SettingsError:
    groups = sorted(known)
    shown = ", ".join(groups[:_MOST_NAMES]) or "none at all"
    if len(groups) > _MOST_NAMES:
        shown += f" and {len(groups) - _MOST_NAMES} more"
    asked = [f"--group {group}"] if group is not None else []
    asked += [f"--topic {topic}"] if topic is not None else []
    meant = None if group is None else nearest(group, groups)
    step = None if meant is None else f"Did you mean --group {meant}?"
    if step is None and topic is not None:
        of_groups = known if group is None else {one: of for one, of in known.items() if one == group}
        meant = nearest(topic, {name for of in of_groups.values() for name in of}) or gone.get(topic)
        step = None if meant is None else f"Did you mean --topic {meant}?"
    return SettingsError(
        f"nothing was committed for {' '.join(asked)}",
        expected=f"of groups {shown}",
        found="no such topic" if topic in gone else "no such entry",
        next_step=step,
    )


_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_TABLE, _LMQ_TABLE = "offsetTable", "lmqOffsetTable"


def write_corrected(report: LagReport, file: Path) -> LagReport:
    """Write the offsets that a report is of to a new file, those outside of their queue moved to its end.

    Nothing is written where no offset lies outside. Returns the report, which says what was written. Offsets
    that have changed meanwhile raise SettingsError, those in RocksDB UnsupportedError, and those of a store
    in use StoreInUseError.
    """
    file = files.new_file(file, report.store)
    moved = sum(_outside(row) for row in report.rows)
    if moved and report.offsets.is_dir():
        raise UnsupportedError(
            "offsets in RocksDB can't be corrected by a file",
            path=report.offsets,
            expected="a file of committed offsets",
            found="a RocksDB",
            next_step="Start the broker, and reset the groups that the report names: "
            "mqadmin resetOffsetByTime, or skipAccumulatedMessage",
        )
    if moved and may_be_running(report.store):
        raise StoreInUseError(
            "a broker that stops writes its offsets anew",
            path=report.store,
            expected="a store that no broker uses",
            found="one in use",
            next_step="Stop the broker; then run the same command again.",
        )
    if moved:
        try:
            data = read_file(report.offsets)
        except OSError as error:
            raise unreadable("the file of committed offsets", report.offsets, error) from error
        write_alone(file, corrected(data, report.rows, report.offsets))
    return replace(report, corrected=file if moved else None, moved=moved)


def corrected(data: bytes, rows: Iterable[QueueLag], path: Path) -> bytes:
    """The file with a queue's min offset in place of one before it, and its max in place of one past it.

    Only ``rows`` outside of a queue that is there count. Raises SettingsError where an offset isn't found in
    its place, or isn't what it was.
    """
    wanted = {(f"{row.topic}@{row.group}", row.queue_id): row for row in rows if _outside(row)}
    text = data.decode("utf-8", "surrogateescape")
    pieces, end, left = [], 0, dict(wanted)
    for key, queue_id, start, stop in _numbers(text):
        row = left.pop((key, queue_id), None)
        if row is not None:
            if text[start:stop] != str(row.committed):
                raise SettingsError(
                    "the committed offsets have changed meanwhile",
                    path=path,
                    expected=f"{key}, queue {queue_id}: {row.committed}",
                    found=text[start:stop],
                    next_step="Stop the broker, or copy the file first, and run the command again",
                )
            low, high = row.min_offset, row.max_offset
            pieces += [text[end:start], str(min(max(row.committed or 0, low), high))]
            end = stop
    if left:
        (key, queue_id), _ = left.popitem()
        raise SettingsError(
            "an offset isn't where it should be in the file", path=path, expected=f"{key}, queue {queue_id}"
        )
    changed = "".join([*pieces, text[end:]]).encode("utf-8", "surrogateescape")
    parse(changed)
    return changed


def _outside(row: QueueLag) -> bool:
    """Whether it is committed, its queue is there, and has no place for it."""
    is_read = Flag.UNREADABLE not in row.flags or row.max_offset > 0
    there = row.committed is not None and is_read and Flag.NO_QUEUE not in row.flags
    return there and not row.min_offset <= (row.committed or 0) <= row.max_offset


def _numbers(text: str) -> Iterator[tuple[str, int, int, int]]:
    """Each committed offset: its key, its queue id, and where the number stands."""
    path: list[str | None] = []
    name: str | None = None
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word in "{[":
            path.append(name)
            name = None
        elif word in "}]":
            path.pop()
            name = None
        elif word == ",":
            name = None
        elif word == ":":
            continue
        elif name is None:
            name = _string(word)
        elif path[1:2] == [_TABLE] and len(path) == 3 and name.lstrip("+-").isdecimal():
            yield path[2] or "", int(name), *_number(token)
        elif path[1:2] == [_LMQ_TABLE] and len(path) == 2:
            yield name, 0, *_number(token)


def _number(token: re.Match[str]) -> tuple[int, int]:
    """Where a number stands; fastjson takes it from a string, too."""
    return (token.start() + 1, token.end() - 1) if token[0].startswith('"') else token.span()


def _string(word: str) -> str:
    if not word.startswith('"'):
        return word
    found = parse(word.encode("utf-8", "surrogateescape"))
    return found if isinstance(found, str) else word
