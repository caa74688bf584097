"""The store's settings: the user's own broker.conf, the store's place and the RocketMQ version.

Names, defaults and units are those of ``MessageStoreConfig``; how a text becomes a value is that of
``MixAll.properties2Object``, with one difference: the broker drops a value that it can't read without a word
(a number) or takes it for false (a switch), and reput refuses it, since a rebuild with other sizes than the
operator believes in is no use. docs/settings.md tells operators the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from reput.config.basis import Asked, Basis, Evidence, Weighing, Writes, look
from reput.config.broker_conf import (
    INT_MAX,
    INTEGER,
    SETTINGS,
    BrokerConf,
    Property,
    in_rocksdb,
    in_rocksdb_alone,
    read,
    reads_rocksdb_first,
    refuse_rocksdb,
    refuse_unsupported,
)
from reput.config.dialect import Dialect, dialect
from reput.config.kept import ConfigPlace, Decided, Form, Kind, batch_queue_topics, decide
from reput.config.log_places import DLedgerSettings, absolute, commit_log_dirs, dledger_settings
from reput.errors import SettingsError, UnsupportedError
from reput.format import names
from reput.format.commitlog import MAX_MESSAGE_SIZE, MOST_BEYOND_BODY
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import file_length
from reput.remote import RemoteStore, known, with_urls
from reput.remote.client import check_here
from reput.rocksdb import CURRENT, is_database
from reput.store.listing import names_seen, queues_in
from reput.store.lock import is_broker_running
from reput.words import next_command

_LONG_MAX = 2**63 - 1
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _default(key: str) -> Any:
    return SETTINGS[key].default


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """What decides how a broker starts on a store, and of queues in log order how they are written."""

    check_crc: bool = _default("checkCRCOnRecover")
    index_safe: bool = _default("messageIndexSafe")  # the walk begins early enough to index again
    most_segments: int = _default("commitLogRecoverMaxNum")  # from 5.4 on, else not looked at
    #: 5.x dispatches from the end of the queues, as 4.9
    recheck_from_queues: bool = _default("recheckReputOffsetFromCq")
    #: a record whose stored place lies outside its segment ends the walk
    check_offsets: bool = _default("checkCommitLogOffsetOnRecover")
    batch_queue_file_size: int = _default("mapperFileSizeBatchConsumeQueue")  # bytes
    queue_ext: bool = _default("enableConsumeQueueExt")
    queue_ext_file_size: int = _default("mappedFileSizeConsumeQueueExt")  # bytes
    accelerated: bool = _default("enableAcceleratedRecovery")
    controller_mode: bool = _default("enableControllerMode")  # the group's epochs decide where the log ends
    index_in_rocksdb: bool = _default("indexRocksDBEnable")  # that index decides, too, if none is made
    #: of queues in files and in RocksDB, these give offsets, or are read
    rocksdb_first: bool = False
    #: segments that a start with both goes further back for those in RocksDB
    extra_segments: int = _default("combineCQMaxExtraSearchCommitLogFiles")
    light_in_rocksdb: bool = _default("combineCQUseRocksdbForLmq")  # for these without such a limit
    reserved_hours: int = _default("fileReservedTime")  # so old may a segment's file become
    #: bytes of a file in ``timerlog``; 0 where the broker has no timer wheel
    timer_log_file_size: int = _default("mappedFileSizeTimerLog")
    timer_snapshots: bool = _default("timerWheelSnapshotFlush")  # the wheel is read from the newest of them
    compaction: bool = _default("enableCompaction")  # False of releases that don't compact topics
    concurrently: bool = _default("recoverConcurrently")  # a queue that fails doesn't end the start
    #: its dispatch goes around what can't be read, as that of a master; that of a slave waits there
    passes_unreadable: bool = True
    #: half messages are in RocksDB, too, and what is there decides where a start's walk begins
    half_in_rocksdb: bool = _default("transRocksDBEnable")

    def deciding(self) -> dict[str, object]:
        """What of it decides which bytes a rebuild writes, JSON-ready; nothing where all is as usual."""
        facts: dict[str, object] = {}
        if self.queue_ext:
            facts["queue_ext_file_size"] = self.queue_ext_file_size
        if self.batch_queue_file_size != _default("mapperFileSizeBatchConsumeQueue"):
            facts["batch_queue_file_size"] = self.batch_queue_file_size
        return facts


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """What broker.conf says of filters."""

    calculates: bool = _default("enableCalcFilterBitMap")  # messages get bit maps
    error_rate: int = _default("maxErrorRateOfBloomFilter")  # in percent
    consumers: int = _default("expectConsumerNumUseFilter")


@dataclass(frozen=True, slots=True)
class RocksDBSettings:
    """What of a store is in RocksDB."""

    #: the directory of the queues' database, relative to the store; None: queues are in files alone
    queues: str | None = None
    files: bool = True  # queues are in files
    lmq: bool = False  # light message queues are in the database (5.3.2 on, with ``enableLmq``)
    index: bool = False  # the index is in ``rocksdbstore/`` (``indexRocksDBEnable``, 5.4 on)

    def deciding(self) -> dict[str, object]:
        """What of it decides which bytes a rebuild writes, JSON-ready; nothing where all is in files."""
        facts: dict[str, object] = {}
        if self.queues is not None:
            facts = {"rocksdb_queues": self.queues, "queue_files": self.files, "rocksdb_lmq": self.lmq}
        return {**facts, **({"rocksdb_index": True} if self.index else {})}


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What a run needs to know of a store; made by :meth:`load`, and sent to executors as it is."""

    root: Path  # the store, absolute
    #: the directories that hold segments, absolute, each once, in the order of broker.conf; those of
    #: ``readOnlyCommitLogStorePaths`` come last
    commit_log_dirs: tuple[Path, ...]
    segment_size: int | None  # ``mappedFileSizeCommitLog`` in bytes; None when broker.conf doesn't say
    consume_queue_file_size: int  # bytes of a consume queue file, a multiple of 20
    max_hash_slot_num: int  # slots of an index file
    max_index_num: int  # entries of an index file; the first stays unused
    message_index_enable: bool  # index files are wanted
    delay_levels_ms: tuple[int, ...]  # delay of each level in ms; index 0 is level 1
    enable_multi_dispatch: bool  # messages may have units in light message queues (LMQ), too
    enable_lmq: bool  # the queue id of an LMQ is 0 instead of the message's own
    force_verify_prop_crc: bool  # ``__CRC32#`` is checked instead of the body CRC
    dialect: Dialect  # the rules of the broker's version
    broker_conf: Path | None = None  # the file that was read, absolute; None when there was none
    recovery: RecoverySettings = RecoverySettings()  # how the broker starts
    dledger: DLedgerSettings | None = None  # set if DLedger writes the commit log (``enableDLegerCommitLog``)
    #: whether and how bit maps are calculated for consumers that filter by SQL92
    filters: FilterSettings = FilterSettings()
    max_message_size: int = MAX_MESSAGE_SIZE  # ``maxMessageSize`` in bytes
    #: what was assumed, and what the store says against what was given
    basis: Basis = field(default=Basis(), compare=False)
    #: where the store lies, if ``root`` only stands for it
    remote: RemoteStore | None = field(default=None, compare=False)
    rocksdb: RocksDBSettings = RocksDBSettings()  # what is in RocksDB
    config_form: Form = Form.FILES  # how topics, groups and offsets are kept
    #: of which of them a JSON file with a higher counter is imported at the start
    config_imports: frozenset[Kind] = frozenset()
    #: physical offsets of messages with a wrong body that aren't taken, though others follow
    passed_over: frozenset[int] = frozenset()

    @property
    def told_release(self) -> str:
        """The release for people: the name of the rules, or what was given where that isn't of its line."""
        name, given = self.dialect.name, self.basis.given_in_full
        return given if given in self.dialect.versions and not given.startswith(name) else name

    @property
    def place(self) -> str:
        """The store's directory, or its URL."""
        return str(self.root) if self.remote is None else self.remote.url

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories that are the store's: its root, and those of its segments."""
        return self.root, *self.commit_log_dirs

    def command(self, name: str, *options: str) -> str:
        """A command about this store, with the settings that it was read with, for people to run next."""
        return next_command(
            name,
            self.place,
            *options,
            broker_conf=self.broker_conf,
            rocketmq_version=self.basis.given,
        )

    @property
    def largest_record(self) -> int:
        """Bytes that no record in the log exceeds."""
        return self.max_message_size + MOST_BEYOND_BODY

    @property
    def entries(self) -> bool:
        """Whether records may stand in DLedger's entries."""
        return self.dledger is not None

    @property
    def has_bit_maps(self) -> bool:
        """Whether units in consumequeue_ext may have bit maps."""
        return self.recovery.queue_ext and self.filters.calculates

    @property
    def consumer_filter_json(self) -> Path:
        """Where the broker keeps the filters of consumers (``BrokerPathConfigHelper``); it may be missing."""
        return self.root / "config" / "consumerFilter.json"

    @property
    def config(self) -> ConfigPlace:
        """Where the broker keeps topics, groups and offsets (``BrokerPathConfigHelper``)."""
        return ConfigPlace(self.root / names.CONFIG, self.config_form, self.config_imports)

    @property
    def config_files(self) -> tuple[Path, ...]:
        """The files below config/ that tasks read; each may be missing.

        Topics are read by those of a tail, which no store elsewhere has.
        """
        if self.remote is not None:
            return (self.consumer_filter_json,) if self.has_bit_maps else ()
        place = self.config
        where = place.where(Kind.TOPICS)
        return where if place.form is Form.FILES else where / CURRENT, self.consumer_filter_json

    @property
    def queue_file_sizes(self) -> dict[str, tuple[str, int]]:
        """By the directory of a kind of queues: the setting that gives its files' length, and the bytes."""
        recovery = self.recovery
        return {
            names.CONSUME_QUEUE: ("mappedFileSizeConsumeQueue", self.consume_queue_file_size),
            names.CONSUME_QUEUE_EXT: ("mappedFileSizeConsumeQueueExt", recovery.queue_ext_file_size),
            names.BATCH_CONSUME_QUEUE: ("mapperFileSizeBatchConsumeQueue", recovery.batch_queue_file_size),
        }

    def batch_topics(self) -> frozenset[str]:
        """Topics whose queues the broker makes as batch queues; none where topics.json can't be read."""
        if not self.dialect.recovery.switches_queue_types:
            return frozenset()
        try:
            return frozenset(batch_queue_topics(self.config))
        except SettingsError:
            return frozenset()  # what is broken there is a problem of its own

    @classmethod
    def load(
        cls,
        store: Path,
        broker_conf: Path | None,
        version: str | None,
        *,
        dledger: bool = False,
        rocksdb: bool = False,
        elsewhere: bool = False,
        asked: Asked = Asked(),  # noqa: B008 - it can't be changed
        changes: Sequence[tuple[str, str]] = (),
    ) -> StoreSettings:
        """The settings of a store: as they are given, else as the store shows them, else RocketMQ's defaults.

        STORE wins over ``storePathRootDir``: a path of broker.conf that lies under the latter is looked for
        at the same place under STORE, so that a copied store is read with the original's file. Other paths of
        broker.conf are taken as they are.

        ``dledger`` and ``rocksdb`` say what the caller can do with; with ``elsewhere`` it looks itself
        whether queues are in a RocksDB that broker.conf doesn't name. ``changes`` take the place of what
        broker.conf says: the files may be as it was before.
        """
        check_here(store)
        root = absolute(store)
        conf, evidence = _read(root, broker_conf, version, changes)
        refuse_unsupported(conf, dledger=dledger, rocksdb=rocksdb)
        in_rocksdb = _rocksdb(conf)
        if rocksdb and conf.path is None and asked.writes is Writes.NOTHING:
            in_rocksdb = _shown_in_rocksdb(root, in_rocksdb)
        elif not changes and not elsewhere:
            refuse_rocksdb(root, conf, in_rocksdb.queues)
        weighing = Weighing(evidence, conf, version)
        weighed = _weigh(weighing, conf, evidence)
        config = decide(root, conf)
        basis = weighing.basis(root, (*config.said, *_unflushed(root, in_rocksdb)))
        basis.refuse(asked, root)
        return _decide(root, conf, weighed, in_rocksdb, config, basis)

    def describe(self) -> dict[str, object]:
        """The settings as a JSON-ready mapping, for people and reports."""
        return {
            "store": self.place,
            "broker_conf": None if self.broker_conf is None else str(self.broker_conf),
            "rocketmq_version": self.dialect.name,
            "rocketmq_releases": list(self.dialect.versions),
            "commit_log_dirs": [with_urls(str(path)) for path in self.commit_log_dirs],
            "segment_size": self.segment_size,
            **self._deciding(),
            "fingerprint": self.fingerprint(),
            **({} if self.dledger is None else {"dledger": with_urls(str(self.dledger.home))}),
            **self.recovery.deciding(),
            **self._filters(),
            **self.rocksdb.deciding(),
        }

    def _deciding(self) -> dict[str, object]:
        """What decides bytes in every store, JSON-ready."""
        return {
            "consume_queue_file_size": self.consume_queue_file_size,
            "max_hash_slot_num": self.max_hash_slot_num,
            "max_index_num": self.max_index_num,
            "message_index_enable": self.message_index_enable,
            "delay_levels_ms": list(self.delay_levels_ms),
            "enable_multi_dispatch": self.enable_multi_dispatch,
            "enable_lmq": self.enable_lmq,
            "duplication_enable": False,  # else refused; kept for the fingerprints that journals hold
            "force_verify_prop_crc": self.force_verify_prop_crc,
        }

    def _filters(self) -> dict[str, object]:
        """What decides the bit maps, JSON-ready; nothing where there are none."""
        if not self.has_bit_maps:
            return {}
        parts = {"filter_parts": self.dialect.filter_parts}
        return {"error_rate": self.filters.error_rate, "consumers": self.filters.consumers, **parts}

    def fingerprint(self) -> str:
        """64 hexadecimal digits over everything that changes an output byte, stable across machines and runs.

        Places, the segment size and the dialect's name are left out: a moved store, and an upgrade of the
        broker that changes no rule, keep their fingerprint.
        """
        facts = {
            **self._deciding(),
            "dialect": self.dialect.rules(),
            **({"dledger": True} if self.entries else {}),
            **self.recovery.deciding(),
            **self._filters(),
            **self.rocksdb.deciding(),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _read(
    root: Path, broker_conf: Path | None, version: str | None, changes: Sequence[tuple[str, str]]
) -> tuple[BrokerConf, Evidence]:
    """What is given, by the rules of the release that is given or shown; and what the store shows."""
    rules = dialect(version)  # refused before anything is read
    path = None if broker_conf is None else absolute(broker_conf)
    lines = {} if path is None else read(path)
    lines.update({key: Property(key, value, 0) for key, value in changes})
    conf = BrokerConf(lines, path, rules)
    remote = known(root)
    place = root if remote is None else remote.evidence_root
    try:
        log_dirs = commit_log_dirs(root, conf, dledger_settings(root, conf))
    except SettingsError:  # refused later, with all that is given
        log_dirs = (root / names.COMMIT_LOG,)
    evidence = look(place, log_dirs, is_maped=version is None and conf.is_maped)
    if version is None:
        conf = BrokerConf(lines, path, evidence.release.assumed)
    return conf, evidence


class _Weighed(NamedTuple):
    """Those settings that a store shows, as they are given or shown."""

    queue_size: int  # queue_size, slots, entries, batch_size, ext_size: of files
    slots: int
    entries: int
    batch_size: int
    ext_size: int
    queue_ext: bool
    multi_dispatch: bool
    lmq: bool


def _weigh(weighing: Weighing, conf: BrokerConf, evidence: Evidence) -> _Weighed:
    """Hold what is given against what the store shows."""
    # MessageStoreConfig.getMappedFileSizeConsumeQueue rounds up.
    queue_size = -(-conf.integer("mappedFileSizeConsumeQueue") // UNIT_LENGTH) * UNIT_LENGTH
    slots, entries = conf.integer("maxHashSlotNum"), conf.integer("maxIndexNum")
    if file_length(slots, entries) > INT_MAX:  # IndexFile computes it in an int
        raise SettingsError(
            "maxHashSlotNum and maxIndexNum make an index file that no broker can create",
            path=conf.path,
            expected=f"40 + 4 x maxHashSlotNum + 20 x maxIndexNum to be at most {INT_MAX} bytes",
            found=f"maxHashSlotNum={slots}, maxIndexNum={entries}",
        )
    (queue_size,) = weighing.sizes(evidence.queues, (queue_size,), names.CONSUME_QUEUE)
    slots, entries = weighing.sizes(evidence.index, (slots, entries), names.INDEX)
    shown = evidence.switches
    queue_ext = weighing.switch(
        "enableConsumeQueueExt",
        shown.queue_ext,
        "the newest units of queues lead to consumequeue_ext/",
        names.CONSUME_QUEUE_EXT,
    )
    batch_size, ext_size = (
        conf.integer(key) for key in ("mapperFileSizeBatchConsumeQueue", "mappedFileSizeConsumeQueueExt")
    )
    (batch_size,) = weighing.sizes(evidence.batch_queues, (batch_size,), names.BATCH_CONSUME_QUEUE)
    if queue_ext:
        (ext_size,) = weighing.sizes(evidence.queue_ext, (ext_size,), names.CONSUME_QUEUE_EXT)
    multi_dispatch, lmq = conf.switch("enableMultiDispatch"), conf.switch("enableLmq")
    if conf.knows("enableMultiDispatch"):
        multi_dispatch = weighing.switch(
            "enableMultiDispatch", shown.multi_dispatch, shown.why, names.CONSUME_QUEUE
        )
        # Where ids are 0 and the messages' own, too, as far as was looked, both write the same.
        lmq = weighing.switch("enableLmq", shown.lmq, "the ids of these queues", names.CONSUME_QUEUE)
    if queue_ext and shown.bit_maps and conf.path is None:
        weighing.unknown("enableCalcFilterBitMap", "bit maps in consumequeue_ext/", names.CONSUME_QUEUE_EXT)
    return _Weighed(queue_size, slots, entries, batch_size, ext_size, queue_ext, multi_dispatch, lmq)


def _decide(
    root: Path,
    conf: BrokerConf,
    weighed: _Weighed,
    in_rocksdb: RocksDBSettings,
    config: Decided,
    basis: Basis,
) -> StoreSettings:
    group = dledger_settings(root, conf)
    most = conf.integer("commitLogRecoverMaxNum")
    # MultiDispatchUtils.checkMultiDispatchQueue (5.5.0): light queues are in one of both.
    light_in_files = in_rocksdb.queues is None or not conf.switch("combineCQUseRocksdbForLmq")
    return StoreSettings(
        root=root,
        commit_log_dirs=commit_log_dirs(root, conf, group),
        segment_size=conf.optional_integer("mappedFileSizeCommitLog"),
        consume_queue_file_size=weighed.queue_size,
        max_hash_slot_num=weighed.slots,
        max_index_num=weighed.entries,
        # From 5.4 on CommitLogDispatcherBuildIndex asks both.
        message_index_enable=conf.switch("messageIndexEnable") and conf.switch("indexFileWriteEnable"),
        delay_levels_ms=_delay_levels(conf),
        enable_multi_dispatch=weighed.multi_dispatch and light_in_files,
        enable_lmq=weighed.lmq,
        force_verify_prop_crc=conf.switch("forceVerifyPropCRC"),
        dialect=conf.rules,
        broker_conf=conf.path,
        recovery=RecoverySettings(
            check_crc=conf.switch("checkCRCOnRecover"),
            # IndexService.isMappedFileMatchedRecover asks both, and not whether index files are written.
            index_safe=conf.switch("messageIndexSafe") and conf.switch("messageIndexEnable"),
            index_in_rocksdb=conf.switch("indexRocksDBEnable"),
            rocksdb_first=reads_rocksdb_first(conf),
            extra_segments=conf.integer("combineCQMaxExtraSearchCommitLogFiles"),
            light_in_rocksdb=conf.switch("combineCQUseRocksdbForLmq"),
            # CommitLog.recoverNormally: what isn't positive means the default.
            most_segments=most if most > 0 else _default("commitLogRecoverMaxNum"),
            recheck_from_queues=conf.switch("recheckReputOffsetFromCq"),
            check_offsets=conf.switch("checkCommitLogOffsetOnRecover"),
            batch_queue_file_size=weighed.batch_size,
            queue_ext=weighed.queue_ext,
            queue_ext_file_size=weighed.ext_size,
            accelerated=conf.switch("enableAcceleratedRecovery"),
            # From 5.0 on.
            controller_mode=conf.switch("enableControllerMode") and conf.rules.recovery.switches_queue_types,
            reserved_hours=conf.integer("fileReservedTime"),
            timer_log_file_size=_timer_log_file_size(conf),
            timer_snapshots=conf.switch("timerWheelSnapshotFlush"),
            compaction=conf.knows("enableCompaction") and conf.switch("enableCompaction"),
            concurrently=conf.switch("recoverConcurrently"),
            passes_unreadable=_is_master(conf),
            half_in_rocksdb=conf.switch("transRocksDBEnable"),
        ),
        filters=FilterSettings(
            calculates=conf.switch("enableCalcFilterBitMap"),
            error_rate=conf.integer("maxErrorRateOfBloomFilter"),
            consumers=conf.integer("expectConsumerNumUseFilter"),
        ),
        dledger=group,
        max_message_size=conf.integer("maxMessageSize"),
        basis=basis,
        remote=known(root),
        rocksdb=in_rocksdb,
        config_form=config.place.form,
        config_imports=config.place.imports,
    )


def _timer_log_file_size(conf: BrokerConf) -> int:
    wheel = conf.knows("timerWheelEnable") and conf.switch("timerWheelEnable")
    return conf.integer("mappedFileSizeTimerLog") if wheel else 0


def _is_master(conf: BrokerConf) -> bool:
    """Whether ``brokerId`` is 0, as where nothing is said; a broker passes over what is no number."""
    number = conf.text("brokerId") or ""
    return INTEGER.fullmatch(number) is None or int(number) == 0


def _rocksdb(conf: BrokerConf) -> RocksDBSettings:
    """What is in RocksDB.

    Source: ``RocksDBMessageStore``, ``CombineConsumeQueueStore``, ``RocksDBConsumeQueueStore`` (5.5.0).
    """
    alone, beside = in_rocksdb_alone(conf), in_rocksdb(conf)
    apart = conf.switch("useSeparateStorePathForRocksdbCQ")
    directory = names.CONSUME_QUEUE_ROCKSDB if apart else names.CONSUME_QUEUE
    return RocksDBSettings(
        queues=directory if alone or beside else None,
        files=not alone,
        lmq=(alone or beside) and conf.rules.rocksdb_lmq and conf.switch("enableLmq"),
        index=conf.switch("messageIndexEnable") and conf.switch("indexRocksDBEnable"),
    )


def _shown_in_rocksdb(root: Path, given: RocksDBSettings) -> RocksDBSettings:
    """What the store shows where no broker.conf says it.

    Two databases of queues are refused: a broker doesn't start with both.
    """
    both = [name for name in (names.CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB) if is_database(root / name)]
    if len(both) > 1:
        raise UnsupportedError(
            "this store has two RocksDBs of consume queues",
            path=root,
            expected="CURRENT in one directory: a broker doesn't start with both",
            found=" and ".join(f"{name}/CURRENT" for name in both),
            next_step="Give broker.conf: its useSeparateStorePathForRocksdbCQ says which is in use; move the "
            "other one away",
        )
    for name in (names.CONSUME_QUEUE_ROCKSDB, names.CONSUME_QUEUE):
        if is_database(root / name):
            files = next(queues_in(root / names.CONSUME_QUEUE), None) is not None
            return replace(given, queues=name, files=files, lmq=True, index=_has_index(root))
    return replace(given, index=_has_index(root))


def _unflushed(root: Path, found: RocksDBSettings) -> tuple[str, ...]:
    """What can't be read of queues while a broker runs: they have no write-ahead log."""
    if found.queues is None or not is_database(root / found.queues) or not is_broker_running(root):
        return ()
    return (f"a broker has {found.queues}/ open: units that it hasn't flushed yet are missing",)


def _has_index(root: Path) -> bool:
    """Whether the index is in RocksDB: index files come first, for rocksdbstore/ is made unused as well."""
    return is_database(root / names.ROCKSDB_STORE) and not names_seen(root / names.INDEX)


def _delay_levels(conf: BrokerConf) -> tuple[int, ...]:
    """``messageDelayLevel`` in ms: ``DefaultMessageStore.parseDelayLevel`` (4.9: ScheduleMessageService)."""
    entry = conf.entry("messageDelayLevel")
    try:
        return _parse_delay_levels(conf.text("messageDelayLevel") or "")
    except ValueError as error:
        if entry is None:
            raise
        raise conf.error(
            entry,
            f"messageDelayLevel has a wrong level, {error.args[0]!r}",
            "whole numbers followed by s, m, h or d, one space between them",
            "A broker doesn't start with it.",
        ) from None


def _parse_delay_levels(text: str) -> tuple[int, ...]:
    # String.split drops empty strings from the end, but keeps one that is all there is.
    words = text.split(" ")
    while len(words) > 1 and not words[-1]:
        words.pop()
    levels = []
    for word in words:
        number, unit = word[:-1], _UNIT_MS.get(word[-1:])
        if unit is None or INTEGER.fullmatch(number) is None or abs(int(number)) * unit > _LONG_MAX:
            raise ValueError(word)
        levels.append(int(number) * unit)
    return tuple(levels)
