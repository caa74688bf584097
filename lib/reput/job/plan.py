"""Preparing a job: settings are read, everything is checked, locks are taken, the journal is opened."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from reput.config.basis import Basis
from reput.config.kept import Kind, TopicsNow, batch_queue_topics, known_topics, unknown_queues
from reput.config.settings import RocksDBSettings, StoreSettings
from reput.derived.files import MISSING_SEGMENTS
from reput.errors import JournalError, OutputError, Result, SettingsError, StoreError, UnsupportedError
from reput.format import names, rocksdbindex
from reput.job.in_place import discard_leftovers, finish_swap, staging_of
from reput.job.options import RebuildOptions
from reput.log.segments import CommitLog, discover, likely_end, without_unwritten_end
from reput.newer_python import Self
from reput.remote.client import check_here
from reput.replay.estimate import Estimate, estimate
from reput.replay.target import LiveSelection, Selection, check_batch_file_size
from reput.rocksdb import opened, traces
from reput.rocksdb.reader import installed
from reput.store import files, swap
from reput.store.lock import OutputLock, StoreLock, check_output_free, check_store_free, may_be_running
from reput.store.ownership import Owner
from reput.store.places import check_outside, refuse_links
from reput.store.reading import check_store
from reput.store.swap import check_movable, is_pending, record_in
from reput.store.system import check_can_make, check_free, existing_parent, free_bytes

if TYPE_CHECKING:
    from reput.output.journal import Journal
    from reput.replay.state import Opening, State
    from reput.replay.target import FiltersNow, Target

_LONGEST_VALUE = 60
_KNOWN, _BATCH = "known_topics", "batch_topics"
#: Topics that an output lacks because an earlier release, which wrote no batch queues, began it.
_LEFT_OUT = "left_out_topics"
#: Settings in StoreSettings.describe that no output byte depends on.
_PLACES = frozenset({"store", "broker_conf", "commit_log_dirs", "segment_size"})


def deciding(settings: StoreSettings, options: RebuildOptions, selection: Selection) -> dict[str, object]:
    """Everything that decides what the output holds, JSON-ready."""
    return {
        **{name: value for name, value in settings.describe().items() if name not in _PLACES},
        "index": options.index,
        "queues": sorted(
            topic if queue_id is None else f"{topic}:{queue_id}" for topic, queue_id in selection.queues
        ),
        _KNOWN: None if selection.known is None else sorted(selection.known),
        _BATCH: sorted(selection.batch),
        **({"passed_over": sorted(settings.passed_over)} if settings.passed_over else {}),
    }


def fingerprint(deciding: dict[str, object]) -> str:
    """One text for everything that decides what the output holds."""
    # The version's name, and which others share its rules, add nothing to the rules themselves.
    facts = {name: value for name, value in deciding.items() if not name.startswith("rocketmq_")}
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def check_continues(
    begun: Opening, state: State, now: Opening, log: CommitLog, root: Path, *, follows: bool = False
) -> None:
    """Check that the output was begun from this store, with these settings.

    A store that was moved is accepted if its log still holds the last record that was read. ``begun`` is what
    the output's journal begins with, ``now`` what this run's would. ``follows``: the broker's topics may have
    changed, since a tail reads them each time.
    """
    from reput.output.log_changes import record_mark

    moved = begun.store != now.store
    if moved and (
        not state.last_record or record_mark(log, state.last_position, state.cursor) != state.last_record
    ):
        raise OutputError(
            "the output was begun from another store",
            path=root,
            expected=begun.store,
            found=now.store,
            next_step="Choose another directory, or remove this one",
        )
    changed: list[str] | None = None
    if begun.fingerprint != now.fingerprint and not (begun.settings and _same_but_topics(begun, now)):
        changed = [
            name
            for name in sorted(begun.settings.keys() | now.settings.keys())
            if name != "fingerprint" and begun.settings.get(name) != now.settings.get(name)
        ]
    elif not follows and begun.settings.get(_KNOWN) != now.settings.get(_KNOWN):
        changed = [_KNOWN]
    if changed is not None:
        raise OutputError(
            "the output was begun with other settings",
            path=root,
            expected=_shown(begun.settings, changed),
            found=_shown(now.settings, changed),
            next_step=f"Run with the settings it was begun with, or remove {root} and run again",
        )
    _check_batch(state, begun, now, root)


def _same_but_topics(begun: Opening, now: Opening) -> bool:
    """Whether two openings differ at most in the broker's list of topics; both or neither have to use it."""
    one, other = (
        json.dumps(
            {
                name: value is not None if name == _KNOWN else value
                for name, value in opening.settings.items()
                if name not in (_BATCH, _LEFT_OUT) and not name.startswith("rocketmq_")
            },
            sort_keys=True,
        )
        for opening in (begun, now)
    )
    return one == other


def _check_batch(state: State, begun: Opening, now: Opening, root: Path) -> None:
    """Check that no topic was written with queues of another type than it has now.

    Topics come and go while a log is followed; only topics that were written count.
    """
    batch = _topics(now, _BATCH)
    written = sorted({topic for (topic, _), queue in state.queues.items() if not queue.is_batch} & batch)
    if written:
        raise OutputError(
            f"topic {written[0]} has queues of type BatchCQ now, but the output has consume queues of it",
            path=root,
            next_step=f"Remove {root} and run again",
        )
    left_out = sorted(_topics(begun, _LEFT_OUT))
    if left_out:
        raise OutputError(
            f"the output was begun by a release that wrote no batch queues, and lacks topic {left_out[0]}",
            path=root,
            next_step=f"Remove {root} and run again",
        )


def _topics(opening: Opening, key: str) -> frozenset[str]:
    found = opening.settings.get(key)
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


def check_same_log(state: State, log: CommitLog, root: Path) -> None:
    """Check that the log still holds what the output was made from: a broker may have cut or expired it."""
    from reput.output.log_changes import stands

    gaps = [one for one in state.findings if one.kind == MISSING_SEGMENTS]
    if state.cursor < log.start:
        problem, expected, found = (
            "the log has lost segments that this output hasn't got yet",
            f"a log that begins at {state.cursor} or before",
            f"one that begins at {log.start}",
        )
    elif back := [one for one in log.segments if any(gap.offset <= one.base < gap.end for gap in gaps)]:
        problem, expected, found = (
            "the log has segments that this output was made without",
            f"no segment at {back[0].base}",
            str(back[0].path),
        )
    elif stands(log, state):
        return
    else:
        problem, expected, found = (
            "the log isn't the one that this output was made from: it was cut, or is another one",
            f"a message stored at {state.last_timestamp} ms, at physical offset {state.last_position}",
            "none",
        )
    raise OutputError(
        problem,
        path=root,
        expected=expected,
        found=found,
        next_step=f"Remove {root} and run again, for a rebuild from the log's start",
    )


def _shown(settings: dict[str, object], names: list[str]) -> str:
    """Some settings as ``name=value``, long values cut short."""
    texts = {name: json.dumps(settings.get(name)) for name in names}
    shown = (
        f"{name}={text if len(text) <= _LONGEST_VALUE else f'{text[:_LONGEST_VALUE]}…'}"
        for name, text in texts.items()
    )
    return ", ".join(shown) or "rules of another release"


@dataclass(frozen=True, slots=True)
class Intended:
    """What a run is asked to do; found without changing anything."""

    options: RebuildOptions
    settings: StoreSettings
    log: CommitLog  # without segments at its end to which nothing was written yet
    known: frozenset[str] | None  # the broker's topics; None where nothing tells
    selection: Selection
    filters: FiltersNow | None
    estimate: Estimate  # how much there is to do, by a sample
    opening: Opening  # what its journal begins with
    root: Path  # where it writes; for a rebuild in place, beside the store's files
    #: the run continues with a log that was cut or has expired; otherwise such a log is refused
    follows: bool

    @property
    def journal_path(self) -> Path:
        """The run's journal, if it was begun."""
        return self.root / names.REPUT / names.JOURNAL

    @property
    def is_begun(self) -> bool:
        """Whether it goes on with what a run has begun; in place only with its own, in a log as it was."""
        from reput.output.journal import read

        if not self.in_place or not self.journal_path.exists():
            return self.journal_path.exists()
        try:
            begun = read(self.journal_path)[0]
        except JournalError:
            return False
        return (begun.store, begun.fingerprint) == (self.opening.store, self.opening.fingerprint)

    @property
    def replaced(self) -> tuple[str, ...]:
        """What of a store it replaces in place, relative to it."""
        return names.OUTPUT if self.selection.is_all else names.QUEUES

    @property
    def in_place(self) -> bool:
        """Whether the store's own files are to be replaced."""
        return self.options.out is None

    @property
    def index(self) -> bool:
        """Whether index files are built; not for chosen queues, since an index is of the whole log."""
        return self.options.index and self.settings.message_index_enable and self.selection.is_all

    @property
    def index_in_rocksdb(self) -> bool:
        """Whether the database of the index is made."""
        return self.options.index and self.settings.rocksdb.index and self.selection.is_all


@dataclass(frozen=True, slots=True)
class Plan(Intended):
    """A rebuild that may begin: settings read, locks held, journal open."""

    end: int  # physical offset up to which the log is read
    owner: Owner | None
    journal: Journal
    abort_present: bool
    swapped: str | None = None  # where an earlier run's swap, finished by this one, keeps what it replaced

    def for_slots(self, slots: int) -> Self:
        """This plan for so many tasks at once."""
        return replace(self, options=self.options.for_slots(slots, self.log.end - self.log.start))

    def target(self, *, flush_in_tasks: bool, several_hosts: bool = False) -> Target:
        """What tasks need to know."""
        from reput.replay.target import Target

        return Target(
            settings=self.settings,
            root=self.root,
            scratch=self.root / names.REPUT / names.SCRATCH,
            selection=self.selection,
            index=self.index,
            owner=self.owner,
            flush_in_tasks=flush_in_tasks,
            several_hosts=several_hosts,
            filters=self.filters,
            index_in_rocksdb=self.index_in_rocksdb,
        )

    @property
    def last_timestamp(self) -> int:
        """The storeTimestamp of the last message that was taken, ms; 0 for one of the future."""
        found = self.journal.state.last_timestamp
        return found if 0 < found <= time.time() * 1000 else 0

    def source(self, **more: object) -> dict[str, str]:
        """The options of the stream of parts from the cursor on; ``more`` adds to them, without None."""
        options: dict[str, object] = {
            "path": self.settings.root,
            "content": "parts",
            "startOffset": self.journal.state.cursor,
            "afterTimestamp": self.last_timestamp or None,
            # What expires unread is told by the job itself.
            "failOnDataLoss": "false",
            "partBytes": self.options.part_bytes,
            "maxBytesPerTrigger": self.options.max_bytes_per_trigger,
            "brokerConf": self.settings.broker_conf,
            "rocketmqVersion": self.settings.dialect.versions[-1],
            **more,
        }
        return {name: str(value) for name, value in options.items() if value is not None}


_FILES_ALL_THE_SAME = (
    "the broker keeps its queues in RocksDB: files are made of the log as with storeType=default"
)


def intended(options: RebuildOptions, *, follows: bool = False) -> Intended:
    """Read a run's settings, and look at its log and its output."""
    from reput.replay.state import Opening
    from reput.replay.target import FiltersNow

    check_store(options.store)
    settings = StoreSettings.load(
        options.store,
        options.broker_conf,
        options.rocketmq_version,
        dledger=not follows,
        rocksdb=True,
        elsewhere=follows,
        asked=options.asked,
        changes=options.changes,
    )
    if follows:  # files alone: a database isn't added to while its broker writes it
        said = () if settings.rocksdb.files else (_FILES_ALL_THE_SAME,)
        basis = replace(settings.basis, kept=(*settings.basis.kept, *said))
        settings = replace(settings, rocksdb=RocksDBSettings(), basis=basis)
    log = without_unwritten_end(discover(settings))
    topics = known_topics(settings.config)
    known = None if topics is None else frozenset(topics)
    selection = _selection(options, settings, known)
    _check_databases(options, settings, selection)
    filters = FiltersNow.of(settings)
    guess = estimate(
        settings,
        log,
        index=options.index and settings.message_index_enable and selection.is_all,
        bytes_per_batch=options.max_bytes_per_trigger,
        batch_topics=selection.batch,
        databases=selection.is_all,
    )
    settings = replace(settings, passed_over=frozenset(options.without))
    decided = deciding(settings, options, selection)
    if follows:
        selection = LiveSelection(
            selection.queues,
            selection.known,
            batch=selection.batch,
            topics=TopicsNow(settings.config),
            batches=settings.dialect.recovery.switches_queue_types,
            batch_file_size=settings.recovery.batch_queue_file_size,
            broker_conf=settings.broker_conf,
        )
    if options.out is None:
        root = staging_of(settings.root)
        check_utf8(root)
        # What was found isn't gone on with in a log that somebody has repaired since, or a broker written to.
        decided["log_files"] = sha256(json.dumps(log_files(settings)).encode()).hexdigest()
    else:
        root = output_root(options.out, settings)
    opening = Opening(settings.place, fingerprint(decided), log.start, decided)
    return Intended(options, settings, log, known, selection, filters, guess, opening, root, follows)


@contextmanager
def prepare(run: Intended, lock: OutputLock | None = None) -> Iterator[Plan]:
    """Check everything, take the locks, open or begin the output's journal; a refusal changes nothing.

    ``lock`` is the output's, if the caller already holds it. In place all is looked at again under the locks.
    """
    from reput.log.end import LogEnd
    from reput.output.journal import Journal

    root = run.root
    if not run.journal_path.exists() and not is_pending(run.settings.root):
        check_free(root, run.estimate.output_bytes, "the rebuild")
    with ExitStack() as stack:
        owner = kept = None
        if run.in_place:
            owner = Owner.of_store(run.settings.root, run.settings.commit_log_dirs)
            check_movable(run.settings.root, run.replaced, writable=run.selection.is_all)
            run, kept = _enter_store(run, owner, stack)
        settings, selection, opening = run.settings, run.selection, run.opening
        begun = run.journal_path.exists()
        if not begun:
            check_free(root, run.estimate.output_bytes, "the rebuild")
        files.make_dirs(root / names.REPUT, owner)
        if lock is None:
            stack.enter_context(OutputLock(root, owner))
        if begun:
            journal = Journal.open(run.journal_path)
        else:
            journal = Journal.create(run.journal_path, opening, owner)
        stack.enter_context(journal)
        if begun:
            check_continues(journal.opening, journal.state, opening, run.log, root, follows=run.follows)
            # An output that was moved away from its broker's config/ continues as it was begun.
            written = {topic for (topic, _), queue in journal.state.queues.items() if queue.is_batch}
            selection = replace(selection, batch=selection.batch | written)
            selection.remember(journal.state.queues)
            if not run.follows:
                check_same_log(journal.state, run.log, root)
            if journal.opening.store != opening.store:
                journal.move_store(opening.store)
        # What a broker is still writing isn't damage: a half-written end is left for the next run.
        live = not run.in_place and may_be_running(settings.root)
        yield Plan(
            **{one.name: getattr(run, one.name) for one in fields(run) if one.name != "selection"},
            selection=selection,
            end=LogEnd(settings).find(run.log) if live else run.log.end,
            owner=owner,
            journal=journal,
            abort_present=(settings.root / names.ABORT).exists(),
            swapped=kept,
        )


def _selection(options: RebuildOptions, settings: StoreSettings, known: frozenset[str] | None) -> Selection:
    selection = Selection.parse(options.queues)
    if options.known_topics_only:
        if known is None:
            raise SettingsError(
                "--known-topics-only needs the broker's list of topics",
                path=settings.config.where(Kind.TOPICS),
                found="no such file",
                next_step="Copy config/topics.json beside the commit log, or leave the option out",
            )
        selection = replace(selection, known=known)
    if not settings.dialect.recovery.switches_queue_types:
        return selection
    batch_topics = frozenset(batch_queue_topics(settings.config))
    if batch_topics:
        check_batch_file_size(settings.recovery.batch_queue_file_size, settings.broker_conf)
    return replace(selection, batch=batch_topics)


def _enter_store(run: Intended, owner: Owner, stack: ExitStack) -> tuple[Intended, str | None]:
    """Lock the store; returns the run as it is to be now, and :attr:`Plan.swapped`.

    A swap that was interrupted is finished, whatever it was for: it may put segments or settings in place. If
    this same run began it, all is done.
    """
    store = run.settings.root
    owner.check_can_apply(store)
    stack.enter_context(StoreLock(store, owner))
    stack.enter_context(OutputLock(store, owner))
    kept = finish_swap(store)
    run = intended(run.options, follows=run.follows)
    done = None if kept is None else record_in(kept)
    rebuilt, is_begun = done is not None and not done.of_undo, run.is_begun
    if done is not None and rebuilt and is_begun and _is_whole(run, done):
        return run, str(kept)
    if rebuilt or not is_begun:  # nothing of the store depends on what was begun otherwise
        files.remove_tree(run.root)
    discard_leftovers(store)
    return run, None


def _is_whole(run: Intended, done: swap.Intent) -> bool:
    """Whether a swap has put in place all that a run makes; a mend, which begins one, may take some of it."""
    queues = {*names.QUEUES, str(run.settings.rocksdb.queues)}
    return not run.selection.is_all or not queues.isdisjoint(done.names)


def log_files(settings: StoreSettings) -> dict[str, tuple[int, ...]]:
    """Of each file of a store's log what changes where it is brought back, or written to."""
    found: dict[str, tuple[int, ...]] = {}
    for directory in settings.commit_log_dirs:
        with files.reporting("the log can't be looked at", directory):
            for path in sorted(directory.iterdir()) if directory.is_dir() else ():
                one = path.lstat()
                found[str(path)] = one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns
    return found


#: Keys in the column families of timers and half messages that are no message's (``MessageRocksDBStorage``).
_DELIVERY_MARKS = (rocksdbindex.LAST_POSITION, b"timeline_checkpoint", b"sys_topic_scan_offset_checkpoint")


def _check_databases(options: RebuildOptions, settings: StoreSettings, selection: Selection) -> None:
    """Refuse what can't be done with what is in RocksDB."""
    rocksdb = settings.rocksdb
    index = rocksdb.index and options.index and selection.is_all
    if rocksdb.queues is None and not index:
        return
    if not selection.is_all:
        if rocksdb.files:
            return  # the chosen queues' files are made, and the database stays as it is
        raise UnsupportedError(
            "chosen queues can't be put into a database, which has the queues of the whole store",
            path=settings.root / str(rocksdb.queues),
            expected="a rebuild of all queues",
            found=f"--queue {options.queues[0]}",
            next_step="Leave --queue out. For files of these queues, set storeType=default in a copy of "
            "broker.conf, and rebuild with --out",
        )
    installed(settings.root)
    if options.out is None and index:
        _check_delivery(settings)


def _check_delivery(settings: StoreSettings) -> None:
    """Refuse to replace what the log can't give back: timers and half messages that a broker has noted."""
    directory = settings.root / names.ROCKSDB_STORE
    try:
        family = with_delivery_state(directory)
    except StoreError as error:
        raise StoreError(
            f"it can't be told whether timers or half messages are in this database: {error.problem}",
            path=error.path or directory,
            offset=error.offset,
            expected=error.expected,
            found=error.found,
            next_step="Rebuild with --no-index, which leaves it as it is; or if none are awaited, move "
            f"{directory} away, and run the same command again",
        ) from error
    if family is not None:
        raise UnsupportedError(
            "this database also says which messages are still to be delivered, which the log doesn't",
            path=directory,
            expected=f"no entry in column family {family}",
            found=f"{family} has entries"
            if with_delivery_state(directory, marks=False) is not None
            else f"{family} has marks alone, of how far the broker has come",
            next_step="Rebuild with --no-index, which leaves it as it is, or with --out",
        )


def with_delivery_state(directory: Path, *, marks: bool = True) -> str | None:
    """The column family of ``rocksdbstore/`` that says what is still to be delivered; None if none does.

    With ``marks``, how far the broker has come counts, too, which stays when all was delivered.
    """
    if not traces(directory):
        return None
    with opened(directory) as database:
        for family in (rocksdbindex.TIMER, rocksdbindex.TRANS):
            if family not in database.families:
                continue
            keys, _ = next(database.blocks(family, most=len(_DELIVERY_MARKS) + 1), ((), ()))
            if any(marks or key not in _DELIVERY_MARKS for key in keys):
                return family
    return None


def output_root(out: Path, settings: StoreSettings) -> Path:
    """The output directory, absolute, if it may be one."""
    check_here(out)
    root = Path(os.path.abspath(out))
    with files.reporting("the output can't be looked at", out):
        if root.exists() and root.samefile(settings.root):
            raise OutputError(
                "the output is the store itself",
                path=root,
                next_step="Use --in-place to replace the store's files, or another directory",
            )
        # Anywhere else in the store is fine: that is where a user has room on the same disk.
        own = [settings.root / name for name in (*names.QUEUES, names.INDEX)]
        check_outside("the output", root, [*settings.commit_log_dirs, *own], "Choose a directory elsewhere")
        refuse_links(root, (*names.OUTPUT, names.REPUT))
        _check_empty_or_ours(root)
    check_utf8(settings.root)
    check_utf8(root)
    return root


def check_utf8(path: Path) -> None:
    """Check that a path is in UTF-8, else it can't be passed to Spark."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise OutputError(
            "this path can't be passed to Spark, since it is not UTF-8",
            path=path,
            next_step="Rename the directory, or choose another one",
        ) from None


def _check_empty_or_ours(root: Path) -> None:
    place = existing_parent(root)
    if not place.is_dir():
        raise OutputError(
            "there is a file where the output is to go",
            path=root,
            expected="a directory, or nothing yet",
            found=place,
            next_step="Choose another directory",
        )
    if place != root:
        return
    if (root / names.REPUT).is_dir():
        _check_has_journal(root)
        return
    found = next(root.iterdir(), None)
    if found is not None:
        raise OutputError(
            "the output directory is not empty",
            path=root,
            expected="an empty directory, or one that reput began",
            found=found.name,
            next_step="Choose another directory",
        )


def _check_has_journal(root: Path) -> None:
    """Refuse to begin among files of an output whose journal is missing."""
    if (root / names.REPUT / names.JOURNAL).exists():
        return
    for name in (*names.QUEUES, names.INDEX, names.LEDGER):
        if (root / name).exists():
            raise OutputError(
                "the output's journal is gone",
                path=root / names.REPUT / names.JOURNAL,
                found=f"{name}/ without it",
                next_step="Put it back, or remove the output and start again",
            )


@dataclass(frozen=True, slots=True)
class Preview(Result):
    """What a rebuild would do; ``to_dict`` is what ``--json`` prints."""

    store: str  # the store
    output: str  # where it would write
    in_place: bool  # it would replace the store's own files
    rocketmq_version: str  # as this release writes them
    start: int  # physical offset at which it would begin: the log's start, or where an earlier run stopped
    likely_end: int  # physical offset near which the written log ends, by a megabyte
    continues: bool  # an earlier run would be continued
    #: a swap that was interrupted would be finished first, and nothing else if it was of this same
    #: command
    finishes_swap: bool
    estimated_messages: int  # estimated_messages, estimated_keys: in the whole log, by a sample of it
    estimated_keys: int
    needed_bytes: int  # needed_bytes, free_bytes: of disk, by that sample; a continued run needs less
    free_bytes: int
    replaces: list[str]  # what of the store would be replaced, relative to it
    #: requested queues that neither a directory nor config/topics.json has, each with the nearest one,
    #: or None
    unknown_queues: dict[str, str | None] = field(default_factory=dict)
    basis: Basis = field(default_factory=Basis)  # what the settings are based on
    dry_run: bool = True  # nothing was done


def preview(options: RebuildOptions) -> Preview:
    """What a rebuild with these options would do. Nothing is changed, and no lock is taken."""
    from reput.output.journal import read_state

    run = intended(options)
    settings, root, in_place = run.settings, run.root, options.out is None
    pending = in_place and swap.is_pending(settings.root)
    if in_place:
        Owner.of_store(settings.root, settings.commit_log_dirs).check_can_apply(settings.root)
        swap.check_movable(settings.root, run.replaced, writable=run.selection.is_all)
        check_store_free(settings.root)
    check_output_free(settings.root if in_place else root)
    check_can_make(settings.root if in_place else root)
    start, continues = run.log.start, run.is_begun and not pending
    if continues:
        opening, state = read_state(run.journal_path)
        check_continues(opening, state, run.opening, run.log, root)
        check_same_log(state, run.log, root)
        start = state.cursor
    elif not pending and not run.journal_path.exists():  # else what was begun makes room
        check_free(root, run.estimate.output_bytes, "the rebuild")
    return Preview(
        store=settings.place,
        output=str(settings.root if in_place else root),
        in_place=in_place,
        rocketmq_version=settings.told_release,
        start=start,
        likely_end=max(likely_end(run.log), start),
        continues=continues,
        finishes_swap=pending,
        estimated_messages=run.estimate.messages,
        estimated_keys=run.estimate.keys,
        needed_bytes=run.estimate.output_bytes,
        free_bytes=free_bytes(root),
        replaces=[name for name in run.replaced if in_place and os.path.lexists(settings.root / name)],
        unknown_queues=unknown_queues(settings.root, Selection.parse(options.queues).queues, settings.config),
        basis=settings.basis,
    )
