"""What a verification is going to look at; everything that can be refused is refused here, before Spark."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.config.kept import batch_queue_topics, known_topics
from reput.config.settings import StoreSettings
from reput.errors import SettingsError, StoreError
from reput.format import names
from reput.format.names import Queue
from reput.log.segments import CommitLog, discover, without_unwritten_end
from reput.replay.target import Selection, Target
from reput.store.listing import nearest_queue, queues_in
from reput.store.lock import may_be_running
from reput.store.reading import check_store
from reput.store.swap import refuse_half_replaced


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What ``reput check`` is asked for."""

    store: Path  # the store; holds ``commitlog/`` unless broker.conf says otherwise
    #: another store whose derived files are compared with this one's, None to compare with the log
    against: Path | None = None
    broker_conf: Path | None = None  # the broker's own configuration file, None for what the store shows
    rocketmq_version: str | None = None  # the dialect, None for the one that the store shows
    #: ``TOPIC`` or ``TOPIC:ID``; empty for all. With a choice the index isn't looked at
    queues: tuple[str, ...] = ()
    index: bool = True  # the index is looked at, too
    part_bytes: int = 128 << 20  # bytes of log that one task takes
    #: bytes of log after which queues whose queueOffsets don't follow one by one are looked at
    batch_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """A verification that may begin."""

    options: VerifyOptions
    settings: StoreSettings
    log: CommitLog  # without segments at its end that nothing was written to yet
    end: int  # physical offset up to which the log is looked at
    running: bool  # somebody writes to the store
    crashed: bool  # the broker was killed; a start dispatches again what its databases lack at the end
    selection: Selection
    known: frozenset[str] | None  # the topics of config/topics.json; None without that file
    queue_ext: bool  # a tagsCode may be an address in consumequeue_ext

    @property
    def index(self) -> bool:
        """Whether the index is looked at; it is of the whole log, so that a choice of queues has none."""
        return self.options.index and self.settings.message_index_enable and self.selection.is_all

    @property
    def index_in_rocksdb(self) -> bool:
        """Whether the database of the index is looked at."""
        return self.options.index and self.settings.rocksdb.index and self.selection.is_all

    def target(self) -> Target:
        """What tasks need to know; nothing is ever written to it."""
        return Target(
            settings=self.settings,
            root=self.settings.root,
            scratch=self.settings.root,
            selection=self.selection,
            index=self.index,
            owner=None,
            flush_in_tasks=False,
            keys_in_memory=True,
            index_in_rocksdb=self.index_in_rocksdb,
        )


def prepare(options: VerifyOptions) -> Plan:
    """Look at what there is."""
    from reput.log.end import LogEnd
    from reput.rocksdb.reader import installed

    settings = open_store(options.store, options)
    log = without_unwritten_end(discover(settings))
    running = may_be_running(settings.root)
    known = known_topics(settings.config)
    batch = batch_queue_topics(settings.config) | {
        topic for topic, _ in queues_on_disk(settings.root / names.BATCH_CONSUME_QUEUE, Selection())
    }
    if not (settings.rocksdb.files and settings.dialect.recovery.switches_queue_types):
        batch = set()  # to a database all topics are alike, and 4.x knows plain queues alone
    parsed = Selection.parse(options.queues)
    if settings.rocksdb.queues is not None or (settings.rocksdb.index and options.index and parsed.is_all):
        installed(settings.root)  # before Spark starts
    return Plan(
        options=options,
        settings=settings,
        log=log,
        end=LogEnd(settings).find(log) if running else log.end,
        running=running,
        crashed=not running and (settings.root / names.ABORT).exists(),
        selection=Selection(parsed.queues, batch=frozenset(batch)),
        known=None if known is None else frozenset(known),
        queue_ext=settings.recovery.queue_ext or (settings.root / names.CONSUME_QUEUE_EXT).is_dir(),
    )


# --- two stores ---------------------------------------------------------------------------------------------

# A slave has its master's log byte for byte, so that what is derived of what both have is the same, wherever
# their logs begin and end, and whatever their index files are called.


@dataclass(frozen=True, slots=True)
class Pair:
    """Two stores to compare."""

    options: VerifyOptions
    first: StoreSettings  # first, second: their settings
    second: StoreSettings
    start: int  # start, end: physical offsets that both logs have, half open
    end: int
    running: bool  # somebody writes to one of them
    #: a tagsCode may be an address in consumequeue_ext, which each broker gives by itself
    queue_ext: bool
    #: where each log begins and ends, half open; of the first one alone where the second has none
    logs: tuple[tuple[int, int], ...] = ()

    @property
    def stores(self) -> tuple[StoreSettings, StoreSettings]:
        """The settings of both."""
        return self.first, self.second

    def parts(self) -> Iterator[tuple[int, int]]:
        """What both logs have, in half-open ranges of physical offsets that a task takes."""
        step = self.options.part_bytes
        for start in range(self.start, self.end, step):
            yield start, min(start + step, self.end)


def prepare_pair(options: VerifyOptions) -> Pair:
    """Look at what there is; a second store without a commit log is taken to have the first one's.

    ReputError: they can't be compared.
    """
    from reput.log.end import LogEnd

    if options.against is None:
        raise SettingsError("there is nothing to compare with", expected="--against DIR")
    stores = [open_store(root, options) for root in (options.store, options.against)]
    _refuse_other_sizes(stores, index=options.index)
    bounds: list[tuple[int, int]] = []
    for settings in stores:
        try:
            log = without_unwritten_end(discover(settings))
        except StoreError:
            if not bounds:
                raise
            continue
        bounds.append((log.start, LogEnd(settings).find(log)))
    start, end = max(low for low, _ in bounds), min(high for _, high in bounds)
    if stores[0].rocksdb.files:
        _refuse_unknown(stores, Selection.parse(options.queues))
    return Pair(
        options=options,
        first=stores[0],
        second=stores[1],
        start=start,
        end=max(start, end),
        running=any(may_be_running(settings.root) for settings in stores),
        queue_ext=any((settings.root / names.CONSUME_QUEUE_EXT).is_dir() for settings in stores),
        logs=tuple(bounds),
    )


def _refuse_other_sizes(stores: list[StoreSettings], *, index: bool) -> None:
    """See that broker.conf, where one was given, is that of both: by another one's sizes all would differ."""
    for settings in stores:
        for one in settings.basis.hiding:
            if one.given and (index or one.directory != names.INDEX):
                raise SettingsError(
                    "this broker.conf isn't that of both stores",
                    path=settings.root / one.directory,
                    expected=one.used,
                    found=one.shown,
                    next_step="Give none: each store is then read by the lengths of its own files",
                )


def _refuse_unknown(stores: list[StoreSettings], selection: Selection) -> None:
    """See that one of the stores has what was asked for: two that don't have it are the same."""
    kinds = (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)
    for topic, queue_id in sorted(selection.queues, key=str):
        one = Selection(frozenset({(topic, queue_id)}))
        if not any(queues_on_disk(each.root / kind, one) for each in stores for kind in kinds):
            expected = "a queue that has files in one of the stores"
            raise no_such_queue(stores[0].root, (topic, queue_id), expected)


def open_store(root: Path, options: VerifyOptions) -> StoreSettings:
    """The settings of a store that is there and whole."""
    check_store(root)
    refuse_half_replaced(root, options.broker_conf, options.rocketmq_version)
    return StoreSettings.load(root, options.broker_conf, options.rocketmq_version, dledger=True, rocksdb=True)


def no_such_queue(
    root: Path, chosen: tuple[str, int | None], expected: str, there: Iterable[tuple[str, int | None]] = ()
) -> SettingsError:
    """Why a queue that was chosen is refused, with the nearest one that there is."""
    topic, queue_id = chosen
    meant = nearest_queue(root, topic, queue_id, there)
    return SettingsError(
        "there is no such queue",
        path=root,
        expected=expected,
        found=topic if queue_id is None else f"{topic}:{queue_id}",
        next_step="Check --queue; names of topics are case-sensitive"
        if meant is None
        else f"Did you mean --queue {shlex.quote(meant)}?",
    )


def queues_on_disk(directory: Path, selection: Selection) -> list[Queue]:
    """The wanted queues that have a directory, such as ``consumequeue/TOPIC/3``, by name."""
    try:
        return [
            (topic, queue_id)
            for topic, queue_id, _ in queues_in(directory)
            if selection.wants_topic(topic.encode("utf-8", "replace"))
            and selection.wants_queue(topic, queue_id)
        ]
    except OSError as error:
        raise StoreError("the queues can't be listed", path=error.filename, found=error.strerror) from error
