"""Moving a stopped broker's queues from files to RocksDB and back.

It is a rebuild with the other form's settings; the swap that puts its result in place also moves away what
the other form doesn't use, and puts in place the files of ``config/`` that its start needs. ``reput undo`` is
that swap the other way round.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reput.config.basis import Basis
from reput.config.broker_conf import BrokerConf, Property, read
from reput.config.kept import Form, Kind, decide
from reput.config.settings import StoreSettings
from reput.derived.last_file import LastFile
from reput.derived.rocksdb import as_units, key_blocks, stored_ends
from reput.errors import ReputError, Result, SettingsError, StoreError, UnsupportedError
from reput.format import consumequeue, names, rocksdbqueue
from reput.format.consumequeue import PRE_BLANK, UNIT_LENGTH
from reput.format.dtypes import UNIT_DTYPE
from reput.job.in_place import discard_if_swapped, staging_of
from reput.job.moved_config import ConfigMove, config_move
from reput.job.options import RebuildOptions
from reput.job.plan import Plan, intended, prepare, with_delivery_state
from reput.job.rebuilding import expired_ends, stage
from reput.job.summary import Summary, kept_ends, queues_without_messages, summarize
from reput.remote.client import check_here
from reput.rocksdb import Database, is_database, opened, traces
from reput.store import files
from reput.store.listing import ignored_features, queues_in
from reput.store.lock import OutputLock, StoreLock
from reput.store.ownership import Owner
from reput.store.reading import check_store, read_file
from reput.store.swap import Swap, check_movable, is_pending, new_stamp, refuse_half_replaced
from reput.words import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from reput.output.writer import Progress

ROCKSDB, FILE = "rocksdb", "file"
_NAMED = 20  # queues, in a line for people
#: What queues are in that are in files.
_FILES = (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)
#: What is to be told after the swap, in staging, for a run that goes on behind a kill.
_TOLD = "migrated.json"
#: What queues are in, in either form.
_FORMS = (*names.QUEUES, names.CONSUME_QUEUE_ROCKSDB)


@dataclass(slots=True)
class Migration(Result):
    """What a migration is going to do; ``to_dict`` is what ``--json`` prints."""

    store: str  # the store
    to: str  # "rocksdb" or "file"
    broker_conf: Path  # the broker's file, as it was before
    settings: StoreSettings  # those of the broker afterwards
    basis: Basis  # what those of before are based on
    already: bool  # the store is in that form; only broker.conf is left
    lines: list[str]  # of broker.conf that have to be set
    config: ConfigMove  # what happens to topics, groups and offsets
    lacking: list[str]  # what the other form doesn't have, and what of it differs
    replaces: list[str]  # what is put in place or moved away, relative to the store
    needed_bytes: int | None = None  # of disk, by a sample of the log; None where none was taken

    hidden = ("broker_conf", "settings", "basis", "lines")

    def more(self) -> dict[str, object]:
        """What isn't a field."""
        return {"broker_conf_lines": self.lines, "config": self.config.said}


@dataclass(slots=True)
class Migrated(Result):
    """What was migrated; ``to_dict`` is what ``--json`` prints."""

    plan: Migration  # what was to be done
    kept: str | None = None  # the directory of what was replaced; None when nothing was
    #: what came of the rebuild; None where only an interrupted swap was finished, or nothing was to be
    #: done
    rebuilt: Summary | None = None
    store: str = ""
    #: what is wrong in the files for consumers that go on from RocksDB; in ``plan.lacking``, too. Of
    #: an interrupted run that had done its work, those of the log as well
    findings: list[str] = field(default_factory=list)
    #: what else the rebuild showed to differ; in ``plan.lacking``, too
    differs: list[str] = field(default_factory=list)

    hidden = ("findings", "differs")

    @property
    def exit_code(self) -> int:
        """0, or 1 when the log is damaged, or committed offsets lead to other messages."""
        return 1 if self.findings else 0 if self.rebuilt is None else self.rebuilt.exit_code


def plan_migration(
    options: RebuildOptions, to: str, *, estimates: bool = True
) -> tuple[Migration, RebuildOptions]:
    """What a migration to "rocksdb" or "file" would do, and the rebuild that it is; nothing is changed.

    With ``estimates``, a sample of the log tells how much disk it needs.
    """
    check_here(options.store)
    check_store(Path(os.path.abspath(options.store)))
    refuse_half_replaced(Path(os.path.abspath(options.store)), options.broker_conf, options.rocketmq_version)
    if options.broker_conf is None:
        raise SettingsError(
            "a migration needs the broker's own broker.conf, which has to change with it",
            path=options.store,
            expected="--broker-conf FILE",
            next_step="Name the file that the broker is started with",
        )
    broker_conf = options.broker_conf
    entries = read(broker_conf)
    lines = _lines(entries, to)
    changed = tuple((line.partition("=")[0], line.partition("=")[2]) for line in lines)
    options = replace(options, changes=changed, index=False, convert=True)
    then = _settings(options, changed)
    root = then.root
    now_conf = BrokerConf(entries, options.broker_conf, then.dialect)
    if to == ROCKSDB and then.rocksdb.queues is None:
        raise UnsupportedError(
            "this release can't keep queues in RocksDB",
            path=options.broker_conf,
            expected="5.2 or later",
            found=then.dialect.name,
            next_step="Give the release that will start: --rocketmq-version",
        )
    _refuse_delivery_state(root)
    already = _is_already(root, then, to)
    if not already:
        _refuse_changed_conf(root, now_conf)
    config = ConfigMove() if already else _config_move(broker_conf, changed, then)
    there = [name for name in _FORMS if os.path.lexists(root / name)]
    made = [str(then.rocksdb.queues)] if to == ROCKSDB else [names.CONSUME_QUEUE]
    replaces = [] if already else list(dict.fromkeys([*there, *made, *config.write, *config.remove]))
    migration = Migration(
        store=str(root),
        to=to,
        broker_conf=broker_conf,
        settings=then,
        basis=then.basis if already else _settings(options).basis,
        already=already,
        lines=[line for line in lines if not _is_set(entries, line)],
        config=config,
        lacking=[] if already else _lacking(root, then, to, config),
        replaces=replaces,
    )
    if not already:
        check_movable(root, replaces, writable=not estimates)
        if estimates:
            migration.needed_bytes = intended(options).estimate.output_bytes
    return migration, options


def migrate(
    options: RebuildOptions,
    to: str,
    start_spark: Callable[[], SparkSession],
    shown: Callable[[Migration], None] = lambda _plan: None,
    listener: Callable[[Progress, int], None] = lambda _progress, _total: None,
    refuse: Callable[[], None] = lambda: None,
) -> Migrated:
    """Migrate a store to "rocksdb" or "file".

    ``start_spark`` is only called when nothing speaks against the run; ``refuse``, which raises where
    nothing may be made, before anything is written; ``shown`` before anything is done. After an error what
    was there before is unchanged, or a swap is pending that the same command finishes.
    """
    started = time.perf_counter()
    check_here(options.store)
    root = Path(os.path.abspath(options.store))
    finished, told = _finish(root)
    try:
        migration, options = plan_migration(options, to, estimates=False)  # a rebuild does that
    except ReputError:
        _keep_told(root, told)
        raise
    shown(migration)
    findings, differs = told.of_before(to)
    if migration.already:
        migration.lacking += [*findings, *differs]
        return Migrated(migration, finished, None, str(root), findings, differs)
    refuse()
    with prepare(intended(options)) as plan:
        plan = replace(plan, selection=replace(plan.selection, batch=migration.config.batch))
        before = replace(plan.journal.state)
        stages = {"check": time.perf_counter() - started}
        # A broker that was ending when the plan was made may have written its last offsets since.
        if _config_move(migration.broker_conf, options.changes, migration.settings) != migration.config:
            raise StoreError(
                "topics, groups or offsets have changed since the plan was made",
                path=root / names.CONFIG,
                next_step="Run the same command again",
            )
        stages |= stage(plan, start_spark, listener)
        found, others = _from_databases(plan) if to == FILE else (list(_given_up(plan)), [])
        findings, differs = [*findings, *found], [*differs, *others]
        _note(plan, to, findings, differs)
        kept = _swap(plan, migration)
        for path in plan.root.iterdir():
            if path.name != _TOLD:
                files.remove_tree(path)
        files.remove_tree(plan.root)  # what is to be told goes last
        summary = summarize(plan, before, time.perf_counter() - started, kept, stages)
        migration.lacking += [*findings, *differs]
        return Migrated(migration, kept, summary, str(root), findings, differs)


@dataclass(frozen=True, slots=True)
class _Told:
    """What a migration has yet to tell."""

    to: str = ""  # the form that it moved to; empty where that isn't known
    findings: tuple[str, ...] = ()  # findings, differs: as those of :class:`Migrated`
    differs: tuple[str, ...] = ()

    def of_before(self, to: str) -> tuple[list[str], list[str]]:
        """Findings, and what else differs, for a migration to a form: it may be the other way round."""
        before = "" if self.to == to else f"of the migration to {self.to or 'the other form'} before: "
        findings, differs = ([before + line for line in lines] for lines in (self.findings, self.differs))
        return findings, differs

    def encode(self) -> bytes:
        return json.dumps({"to": self.to, "findings": self.findings, "differs": self.differs}).encode()

    @classmethod
    def read(cls, staging: Path) -> _Told:
        """What :meth:`encode` made; nothing where there is no such file."""
        try:
            found = json.loads(read_file(staging / _TOLD))
            findings, differs = (tuple(map(str, found[name])) for name in ("findings", "differs"))
            return cls(str(found.get("to", "")), findings, differs)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()


def _finish(root: Path) -> tuple[str | None, _Told]:
    """Finish a swap that was interrupted: where it keeps what was replaced, and what is to be told."""
    staging, pending = staging_of(root), is_pending(root)
    if not pending and not (staging / _TOLD).is_file():
        return None, _Told()
    owner = Owner.of_store(root, [root / names.COMMIT_LOG])
    owner.check_can_apply(root)
    with StoreLock(root, owner), OutputLock(root, owner):
        kept = Swap.resume(root)
        told = _Told.read(staging)
        discard_if_swapped(staging)
    if pending and kept is None:
        raise StoreError("there is no swap to finish any more", path=root, next_step="Run the command again")
    if staging.exists():
        told = _Told()  # nothing was swapped yet: who goes on there finds it again
    return (None if kept is None else str(kept)), told


def _note(plan: Plan, to: str, findings: list[str], differs: list[str]) -> None:
    """Write down what is to be told, before the files change that it comes from."""
    of_log = (str(finding) for finding in plan.journal.state.findings)
    told = _Told(to, (*findings, *of_log), tuple(differs))
    files.write_atomically(plan.root / _TOLD, told.encode(), plan.owner)


def _keep_told(root: Path, told: _Told) -> None:
    """Have the next run tell what this one, which is refused, has taken from a swap that it finished."""
    if told.findings or told.differs:
        owner = Owner.of_store(root, [root / names.COMMIT_LOG])
        staging = staging_of(root)
        files.make_dirs(staging, owner)
        files.write_atomically(staging / _TOLD, told.encode(), owner)


def _config_move(broker_conf: Path, changes: Iterable[tuple[str, str]], then: StoreSettings) -> ConfigMove:
    """What happens in ``config/``, as it is now, when broker.conf gets these changes."""
    now = read(broker_conf)
    changed = {key: Property(key, value, 0) for key, value in changes}
    before, after = (BrokerConf(of, broker_conf, then.dialect) for of in (now, now | changed))
    return config_move(then.root, before, after)


def _settings(options: RebuildOptions, changes: tuple[tuple[str, str], ...] = ()) -> StoreSettings:
    return StoreSettings.load(
        options.store,
        options.broker_conf,
        options.rocketmq_version,
        rocksdb=True,
        asked=options.asked,
        changes=changes,
    )


def _lines(entries: dict[str, Property], to: str) -> list[str]:
    """The lines of broker.conf that make a broker keep its queues in the form."""
    if to == ROCKSDB:
        return ["storeType=defaultRocksDB"]
    double = entries.get("rocksdbCQDoubleWriteEnable")
    off = (
        ["rocksdbCQDoubleWriteEnable=false"] if double is not None and double.value.lower() == "true" else []
    )
    return ["storeType=default", *off]


def _is_set(entries: dict[str, Property], line: str) -> bool:
    key, _, value = line.partition("=")
    entry = entries.get(key)
    return entry is not None and entry.value.strip() == value


def _is_already(root: Path, then: StoreSettings, to: str) -> bool:
    """Whether the queues are in the form alone."""
    bases = [root / name for name in (names.CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB)]
    has_files = any(True for name in _FILES for _ in queues_in(root / name))
    if to == ROCKSDB:
        return is_database(root / str(then.rocksdb.queues)) and not has_files
    return has_files and not any(map(is_database, bases))


def _refuse_changed_conf(root: Path, conf: BrokerConf) -> None:
    """Refuse a broker.conf that was changed before: by it, nothing of ``config/`` would move."""
    bases = [root / name for name in (names.CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB)]
    databases_there = any(map(traces, bases))
    files_there = any(any(True for _ in queues_in(root / name)) for name in names.QUEUES)
    entry = conf.entries.get("storeType")
    in_rocksdb = entry is not None and entry.value.strip().lower() == "defaultrocksdb"
    found = None
    if databases_there is not files_there:
        if in_rocksdb is not databases_there:
            found = f"queues in {'RocksDB' if databases_there else 'files'} alone"
    else:  # both or none: what the broker kept beside them tells
        decided = decide(root, conf)
        place = decided.place
        kinds = [kind for kind in Kind if place.file(kind).is_file()]
        found = next((line for line in decided.said if line.startswith("BUT ")), None)
        lost = not any(is_database(place.database(kind)) for kind in Kind)
        if in_rocksdb and place.form in (Form.SEPARATE, Form.SINGLE) and kinds and lost:
            found = f"{names.CONFIG}/{place.file(kinds[0]).name}, and no RocksDB of settings"
    if found is not None:
        raise SettingsError(
            "broker.conf contradicts the store: it seems to have been changed already",
            path=conf.path,
            expected=f"what the broker leaves with storeType={entry.value.strip() if entry else 'default'}",
            found=found,
            next_step="Give the broker.conf that the broker was stopped with; its lines change after the "
            "migration",
        )


def _refuse_delivery_state(root: Path) -> None:
    family = with_delivery_state(root / names.ROCKSDB_STORE, marks=False)
    if family is not None:
        raise UnsupportedError(
            "the store has timers or half messages in RocksDB that are still to be delivered, and the log "
            "can't give them back",
            path=root / names.ROCKSDB_STORE,
            expected=f"no entry in column family {family}",
            found=f"{family} has entries",
            next_step="Let the broker deliver them, with no new ones coming, stop it, and run the same "
            "command again",
        )


def _lacking(root: Path, then: StoreSettings, to: str, config: ConfigMove) -> list[str]:
    found = []
    if to == ROCKSDB and (root / names.CONSUME_QUEUE_EXT).is_dir():
        found.append(
            f"{names.CONSUME_QUEUE_EXT}: with queues in RocksDB there is none, and so there are no bit maps: "
            "the broker filters by SQL92 message by message"
        )
    if config.batch:
        topics = ", ".join(sorted(config.batch))
        made = (
            "a unit for each batch in RocksDB" if to == ROCKSDB else f"queues in {names.BATCH_CONSUME_QUEUE}"
        )
        found.append(f"batch queues of {topics}: {made}, as the release makes them")
        if to == FILE:
            found.append("batch queues whose messages have all expired: they begin at 0 again")
    if to == ROCKSDB and then.enable_multi_dispatch and not then.rocksdb.lmq:
        found.append("light message queues: there are none in RocksDB without enableLmq=true, from 5.3.2 on")
    if to == FILE and then.enable_lmq and not then.enable_multi_dispatch:
        found.append("light message queues: there are none in files without enableMultiDispatch=true")
    if to == FILE and (problem := _database_problem(root)) is not None:
        found.append(f"queues whose messages have all expired: they begin at 0 again, since {problem}")
    elif to == FILE:
        found.append(
            "queueOffsets: where a message has another one in files than in RocksDB, committed offsets lead "
            "to other messages; only known after the rebuild, which names these queues"
        )
    if beside := ignored_features(root):
        found.append(f"{', '.join(beside)}: left as they are")
    return found


def _few(queues: list[str]) -> str:
    more = f", and {len(queues) - _NAMED:,} more" if len(queues) > _NAMED else ""
    return f"{', '.join(queues[:_NAMED])}{more}"


def _database_problem(root: Path) -> StoreError | None:
    """Why a database of queues can't be looked into; None where it can, or where there is none."""
    try:
        for name in (names.CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB):
            if is_database(root / name):
                with opened(root / name) as database:
                    for _ in database.blocks(rocksdbqueue.OFFSETS):
                        pass
    except StoreError as error:
        return error
    return None


def _given_up(plan: Plan) -> Iterator[str]:
    """Ends of queues that a mending kept: a database has no place without a message."""
    found = [f"{one.topic}:{one.queue_id}" for one in kept_ends(plan, plan.settings.root)]
    if not plan.log.start:  # else it keeps those of queues without messages
        gone = queues_without_messages(plan, plan.settings.root)
        found += [str(one) for one in gone if isinstance(one.last, LastFile)]
    if found:
        yield (
            f"{counted(len(found), 'queue')} where new messages get the queueOffsets of lost ones, which "
            f"groups may have committed: {_few(sorted(found))}"
        )


def _from_databases(plan: Plan) -> tuple[list[str], list[str]]:
    """Take over what only the databases of queues say, and compare them with what was made.

    Returns what is wrong in the files for who goes on from RocksDB, and what else differs.
    """
    findings: list[str] = []
    differs: list[str] = []
    for name in (names.CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB):
        directory = plan.settings.root / name
        if not is_database(directory):
            continue
        try:
            with opened(directory) as database:
                _carry_from_database(plan, database)
                if moved := list(_moved_queues(plan, database)):
                    findings.append(
                        f"{counted(len(moved), 'queue')} where committed offsets lead to other messages than "
                        f"in RocksDB: {_few(moved)}"
                    )
                if back := _queues_that_come_back(plan, database):
                    differs.append(
                        f"{counted(len(back), 'queue')} that the log has and RocksDB doesn't, as of a topic "
                        f"that was deleted, come back: {_few(back)}"
                    )
        except StoreError as error:
            findings.append(
                "queues without a message in the log may begin at 0 again, and queueOffsets couldn't be "
                f"compared, since {error}"
            )
    return findings, differs


def _carry_from_database(plan: Plan, database: Database) -> None:
    """Make a last file of each queue of the database whose messages have all expired from the log.

    A broker goes on behind its last unit, so that consumers' offsets stay valid.
    """
    size = plan.settings.consume_queue_file_size
    for (topic, queue_id), end in expired_ends(database, plan).items():
        text = topic.decode("utf-8", "replace")
        if (text, queue_id) in plan.journal.state.queues or names.topic_problem(topic) is not None:
            continue
        if plan.selection.is_batch(text):
            continue  # with a consume queue file for one, a broker doesn't start
        value = database.get(rocksdbqueue.UNITS, rocksdbqueue.unit_key(topic, queue_id, end.queue_offset))
        unit = None if value is None else rocksdbqueue.parse_unit(value)
        last = PRE_BLANK if unit is None else consumequeue.unit(unit.position, unit.size, unit.tags)
        at = end.queue_offset * UNIT_LENGTH
        path = names.queue_file(plan.root, text, queue_id, at - at % size)
        files.make_dirs(path.parent, plan.owner)
        with files.opened(path, size, plan.owner) as fd:
            files.pwrite_all(fd, PRE_BLANK * (at % size // UNIT_LENGTH) + last, 0)
            files.fsync_file(fd)
        files.fsync_dir(path.parent)


def _moved_queues(plan: Plan, database: Database) -> Iterator[str]:
    """Queues with a message of the log that has another queueOffset in the files than in the database."""
    for topic, queue_id in sorted(plan.journal.state.queues):
        if not plan.selection.is_batch(topic) and _is_moved(plan, database, topic, queue_id):
            yield f"{topic}:{queue_id}"


def _is_moved(plan: Plan, database: Database, topic: str, queue_id: int) -> bool:
    name, after = topic.encode(), 0
    for path in sorted(names.queue_file(plan.root, topic, queue_id, 0).parent.iterdir()):
        first = int(path.name) // UNIT_LENGTH
        made = np.fromfile(path, UNIT_DTYPE)["position"]
        after = first + len(made)
        for offsets, positions in _units(plan, database, name, queue_id, first, after):
            if (made[offsets - first] != positions).any():
                return True
    behind = _units(plan, database, name, queue_id, after, (1 << 63) - 1)
    return any(len(offsets) > 0 for offsets, _ in behind)


def _units(
    plan: Plan, database: Database, topic: bytes, queue_id: int, first: int, after: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """QueueOffset and physicalOffset of the database's units of [first, after) that point into the log."""
    for keys, values in key_blocks(database, topic, queue_id, first, after):
        found = as_units(topic, keys, values)
        if found is None:
            raise StoreError(
                "a unit of this RocksDB is broken",
                path=database.path,
                expected=f"{rocksdbqueue.UNIT_LENGTH} bytes",
                found=f"another length in {topic.decode('utf-8', 'replace')}:{queue_id}",
            )
        offsets, positions = found[0], found[1]["position"].astype(np.int64)
        inside = (positions >= plan.log.start) & (positions < plan.end)
        yield offsets[inside], positions[inside]


def _queues_that_come_back(plan: Plan, database: Database) -> list[str]:
    found = (one.key for one in stored_ends(database))
    known = {(key.topic.decode("utf-8", "replace"), key.queue_id) for key in found if key is not None}
    return [f"{topic}:{queue_id}" for topic, queue_id in sorted(plan.journal.state.queues.keys() - known)]


def _swap(plan: Plan, migration: Migration) -> str:
    """Put in place what was made, and move away what the other form doesn't use."""
    root, config = plan.settings.root, migration.config
    for name, data in config.write.items():
        files.make_dirs((plan.root / name).parent, plan.owner)
        files.write_atomically(plan.root / name, data, plan.owner)
    made = [name for name in names.OUTPUT if (plan.root / name).exists()]
    wanted = [*(name for name in made if name != names.CHECKPOINT), *config.write]
    wanted += [name for name in made if name == names.CHECKPOINT]
    remove = [name for name in _FORMS if name not in wanted] + config.remove
    return str(Swap(root, plan.root, wanted, new_stamp(root), remove=remove, owner=plan.owner).run())
