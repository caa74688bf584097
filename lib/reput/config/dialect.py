"""What differs between RocketMQ releases for building consume queues, index files and the checkpoint.

This module is the one table: nothing else decides bytes by a version. By what a store shows its release is
in ``config/release.py``, which names rows. Each row is written as its difference
from the row before it, with the Java class that proves it, so reading downwards gives the history; those of
4.0 to 4.8 stand behind that of 4.9.0 and say, the newest first, what the next release doesn't do yet. Up to
5.3.3 the proof is the source at the tag ``rocketmq-all-<version>``; for 5.3.4, 5.4.0, 5.5.0 and 5.5.1, whose
sources were not at hand, it is the bytecode of the released ``rocketmq-store`` jar.

docs/settings.md says the same for operators, and lists the differences that don't reach the files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from reput.errors import SettingsError
from reput.format.commitlog import SCHEDULE_TOPIC, TIMER_TOPIC


class CleanStart(Enum):
    """Where a clean start begins to walk the log (``CommitLog.recoverNormally``)."""

    THIRD_LAST = "the third-last segment"
    QUEUE_END = "the last segment that begins at or before the end of the queues, else the first"
    FIRST_RECORD = "the last segment whose first record is whole and lies at or before the end of the queues"


class CrashStart(Enum):
    """Which segment a start after a crash takes for sound (``CommitLog.isMappedFileMatchedRecover``)."""

    TIMESTAMP = "the magic of its first record is known, and its time is old enough"
    RECORD_AND_TIMESTAMP = "its first record is whole, and its time is old enough"
    PHYSICAL_OFFSET = "its first record is whole, and lies at or before the checkpoint's logicsPhysicalOffset"


@dataclass(frozen=True, slots=True)
class Recovery:
    """How a broker loads and recovers a store: nothing of this changes what a rebuild writes."""

    skips_directories: bool  # a directory among segments or queue files is passed over, not a wrong length
    drops_empty_last_file: bool  # the last file of a directory is deleted when it has no bytes
    index_failure_refuses: bool  # an index file that can't be opened stops the start
    clean_start: CleanStart  # where a clean start begins
    crash_start: CrashStart  # where a start after a crash begins
    limits_segments: bool  # ``commitLogRecoverMaxNum`` ends the search for that segment
    dispatches_after_clean: bool  # a clean start dispatches what lies behind the end of the queues
    cuts_by_new_end: bool  # whether the queues are cut is asked with their end after that dispatch
    begins_at_queue_end: bool  # dispatch goes on from the end of the queues, not from that of the log
    searches_min_offset: bool  # a queue's min offset is searched for by halving
    fails_on_empty_queue_file: bool  # the search fails when a queue's last file, not its first, has no unit
    #: delay levels are known while recovering; without them the units of the schedule topic hold the
    #: hash of the tags
    knows_delay_levels: bool
    checks_room: bool  # a record's size is compared with the room left, that of a BLANK too
    refuses_negative_size: bool  # also a BLANK's
    switches_queue_types: bool  # batch queues exist, and a queue of the wrong type stops the start
    flushes_logics_later: bool  # the checkpoint's logics fields move with the thorough flush of the queues
    knows_message_ends: bool = True  # a queue knows where its last message ends; else where that begins
    #: the queues are cut when one of them knows of the log's end or more; else never after a stop in
    #: good order, and always after a crash
    cuts_by_queue_end: bool = True
    #: without a segment, a start after a stop in good order deletes the queues, too
    destroys_after_clean: bool = True
    #: a file of another length stops the start; else nothing of its directory is loaded from there on
    refuses_wrong_length: bool = True
    #: after a crash, a record whose lengths don't add up is taken for a message without a topic, of
    #: the size that it says
    counts_bad_lengths: bool = False
    finds_across_gaps: bool = True  # what lies behind a gap in the log is found
    takes_lock: bool = True  # the broker holds ``lock`` while it runs
    #: ``abort`` is written beside its place and renamed, even over a loop of links
    replaces_abort: bool = False

    @property
    def makes_lost_queues(self) -> bool:
        """Whether a start after a stop in good order makes queues anew when all of them are gone."""
        return self.begins_at_queue_end or self.dispatches_after_clean


@dataclass(frozen=True, slots=True)
class Queries:
    """How a broker answers: nothing of this changes what a rebuild writes."""

    #: an offset by time is searched for by the times of messages and has a lower and an upper
    #: boundary; else by the times of files, and is the nearest
    time_boundaries: bool
    clamps_time: bool  # an offset by time lies within the queue
    skips_before_full: bool  # a pull passes over units of a missing segment before it asks whether it is full
    scans_units: bool  # a pull's limit of 16,000 counts units, not their bytes
    scans_past_limit: bool  # the unit at that limit is still looked at
    overflow_begins_again: bool  # past the end of a queue that begins at 0 the next offset is 0, not the end
    stops_one_short: bool = False  # a pull of more than one message ends one before those asked for


@dataclass(frozen=True, slots=True)
class Dialect:
    """The rules of one run of RocketMQ releases."""

    name: str  # the name that ``--rocketmq-version`` takes and that reports show
    versions: tuple[str, ...]  # every release with these rules, oldest first, as ``major.minor.patch``
    #: records of magic 0xDAA320AB, with a topic length of two bytes, are messages; without it they are
    #: an illegal magic
    topic_length_v2: bool
    index_tags: bool  # the index holds TAGS as ``topic#T#tag``, after UNIQ_KEY and KEYS
    multi_dispatch: bool  # light message queues (LMQ) exist; without it INNER_MULTI_DISPATCH means nothing
    lmq_excluded_prefixes: tuple[str, ...]  # a message whose topic starts with one of these has no LMQ units
    lmq_excluded_topics: tuple[str, ...]  # a message of one of these topics has no LMQ units
    lmq_rejects_slash: bool  # an LMQ whose name holds ``/`` gets no unit; the others of that message still do
    empty_index_count: int  # indexCount on disk of an index file without entries, after a clean stop
    checkpoint_fields: int  # how many longs the store checkpoint holds, from byte 0 on
    #: INNER_BASE and INNER_NUM are parsed when a record has both; one that isn't an integer (of 64 and
    #: of 16 bits) makes the record invalid
    inner_batch_properties: bool
    append_prop_crc: bool  # the record may end in ``__CRC32#``, and forceVerifyPropCRC checks it
    multi_path_commit_log: bool  # storePathCommitLog may list several directories
    trims_text_settings: bool  # text values of broker.conf lose the white space around them
    rocksdb_lmq: bool  # queues in RocksDB have light message queues, too
    #: CONTAINS, STARTSWITH and ENDSWITH are operators of consumers' expressions; asked for where units
    #: have bit maps
    filter_parts: bool
    recovery: Recovery  # how these releases start on a store
    queries: Queries  # how they look for messages
    #: hashSlotCount of an index file counts its keys; else the slots that hold a chain
    counts_keys: bool = False
    #: ``mappedFileSizeCommitLog`` and ``mappedFileSizeConsumeQueue`` have one p less
    maped_settings: bool = False
    settings_in_rocksdb: bool = False  # topics, groups and offsets may be in RocksDB
    imports_json_settings: bool = False  # there, a JSON file with a higher counter is imported at the start

    def lmq_excludes(self, topic: str) -> bool:
        """Whether a message of this topic gets no LMQ units, whatever its properties say."""
        return (
            not self.multi_dispatch
            or topic in self.lmq_excluded_topics
            or topic.startswith(self.lmq_excluded_prefixes)
        )

    def rules(self) -> dict[str, object]:
        """The rules that decide which bytes are written, JSON-ready.

        Two dialects with equal rules write the same: the name, the releases, how broker.conf is read, how a
        broker recovers and how it answers are left out, and what only decides bit maps.
        """
        return {
            "topic_length_v2": self.topic_length_v2,
            "index_tags": self.index_tags,
            "multi_dispatch": self.multi_dispatch,
            "lmq_excluded_prefixes": list(self.lmq_excluded_prefixes),
            "lmq_excluded_topics": list(self.lmq_excluded_topics),
            "lmq_rejects_slash": self.lmq_rejects_slash,
            "empty_index_count": self.empty_index_count,
            "checkpoint_fields": self.checkpoint_fields,
            "inner_batch_properties": self.inner_batch_properties,
            "append_prop_crc": self.append_prop_crc,
            # No rule any more, and kept for the fingerprints that journals hold.
            "dup_info_check": self.inner_batch_properties,
            # Absent where it doesn't hold, so that journals of other releases go on.
            **({"counts_keys": True} if self.counts_keys else {}),
        }


_RETRY_PREFIX = "%RETRY%"  # MixAll.RETRY_GROUP_TOPIC_PREFIX
_SYSTEM_PREFIX = "rmq_sys_"  # TopicValidator.SYSTEM_TOPIC_PREFIX
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.decode()
_TIMER_TOPIC = TIMER_TOPIC.decode()

# CommitLog.MESSAGE_MAGIC_CODE is the only magic; StoreCheckpoint.flush puts three longs;
# IndexService.shutdown is empty, so the indexCount of 1 that IndexHeader starts with reaches the file only
# with the first entry; CommitLog takes storePathCommitLog as one directory; MixAll.properties2Object takes
# text as it stands.
_4_9_0 = Dialect(
    name="4.9.0",
    versions=("4.9.0", "4.9.1"),
    topic_length_v2=False,
    index_tags=False,
    multi_dispatch=False,
    lmq_excluded_prefixes=(),
    lmq_excluded_topics=(),
    lmq_rejects_slash=False,
    empty_index_count=0,
    checkpoint_fields=3,
    inner_batch_properties=False,
    append_prop_crc=False,
    multi_path_commit_log=False,
    trims_text_settings=False,
    rocksdb_lmq=False,
    filter_parts=False,
    # 4.9.7 MappedFileQueue.doLoad; DefaultMessageStore.load, which passes over what IndexService.load says
    # (4.9.0 loads the delay levels first); CommitLog.recoverNormally, recoverAbnormally,
    # isMappedFileMatchedRecover; DefaultMessageStore.start; ConsumeQueue.correctMinOffset.
    recovery=Recovery(
        skips_directories=False,
        drops_empty_last_file=False,
        index_failure_refuses=False,
        clean_start=CleanStart.THIRD_LAST,
        crash_start=CrashStart.TIMESTAMP,
        limits_segments=False,
        dispatches_after_clean=False,
        cuts_by_new_end=False,
        begins_at_queue_end=True,
        searches_min_offset=False,
        fails_on_empty_queue_file=False,
        knows_delay_levels=True,
        checks_room=False,
        refuses_negative_size=False,
        switches_queue_types=False,
        flushes_logics_later=False,
    ),
    # 4.9.7 ConsumeQueue.getOffsetInQueueByTime, MappedFileQueue.getMappedFileByTime;
    # DefaultMessageStore.getMessage.
    queries=Queries(
        time_boundaries=False,
        clamps_time=False,
        skips_before_full=True,
        scans_units=False,
        scans_past_limit=False,
        overflow_begins_again=True,
    ),
)

# 4.7.1 has the MessageStoreConfig of 4.9.0 as far as reput reads it.
_4_8 = replace(_4_9_0, name="4.8", versions=("4.7.1", "4.8.0"))

# 4.7.0 IndexFile.putKey: incHashSlotCount for every key; 4.7.1 if the slot was empty.
_4_7_0 = replace(_4_8, name="4.7.0", versions=("4.6.0", "4.6.1", "4.7.0"), counts_keys=True)

# 4.5.2 MessageExtBrokerInner has hosts of four bytes only.
_4_5 = replace(_4_7_0, name="4.5", versions=("4.5.2",))

# 4.5.1 MessageStoreConfig: mapedFileSizeCommitLog, mapedFileSizeConsumeQueue.
_4_5_0 = replace(_4_5, name="4.5.0", versions=("4.5.0", "4.5.1"), maped_settings=True)

# 4.4.0 MessageStoreConfig, CommitLog: no DLedger.
_4_4 = replace(
    _4_5_0,
    name="4.4",
    versions=("4.3.2", "4.4.0"),
    # 4.4.0 DefaultMessageStore.start: commitLog.getMaxOffset; ConsumeQueue.recover, putMessagePositionInfo,
    # truncateDirtyLogicFiles: maxPhysicOffset; CommitLog.recoverNormally; MappedFileQueue.load.
    recovery=replace(
        _4_5_0.recovery,
        begins_at_queue_end=False,
        knows_message_ends=False,
        destroys_after_clean=False,
        refuses_wrong_length=False,
    ),
)

_4_3_0 = replace(
    _4_4,
    name="4.3.0",
    versions=("4.3.0", "4.3.1"),
    # 4.3.1 CommitLog.recoverNormally, recoverAbnormally, which asks for the size alone.
    recovery=replace(_4_4.recovery, cuts_by_queue_end=False, counts_bad_lengths=True),
)

_4_2 = replace(
    _4_3_0,
    name="4.2",
    # 4.2.0 has no TransactionalMessageUtil: half messages are prepared ones of their own topics, without
    # units. A log says so itself (DefaultMessageStore.CommitLogDispatcherBuildConsumeQueue).
    versions=("4.2.0",),
    # 4.2.0 MappedFileQueue.findMappedFileByOffset counts segments.
    recovery=replace(_4_3_0.recovery, finds_across_gaps=False),
)

_4_1 = replace(
    _4_2,
    name="4.1",
    versions=("4.1.0",),  # its tag, like that of 4.0.0, ends in -incubating
    # 4.1.0 DefaultMessageStore.start.
    recovery=replace(_4_2.recovery, takes_lock=False),
    # 4.1.0 DefaultMessageStore.isTheBatchFull.
    queries=replace(_4_2.queries, stops_one_short=True),
)

_4_0 = replace(
    _4_1,
    name="4.0",
    versions=("4.0.0",),
)

_4_9_2 = replace(
    _4_9_0,
    name="4.9.2",
    versions=("4.9.2",),
    # 4.9.2 CommitLog: MultiPathMappedFileQueue when the path holds MULTI_PATH_SPLITTER.
    multi_path_commit_log=True,
    # DefaultMessageStore.load: ScheduleMessageService.load comes before recover up to 4.9.1, then behind it.
    # 4.9.2 MappedFileQueue.doLoad; 4.9.1 and 4.9.3 refuse.
    recovery=replace(_4_9_0.recovery, knows_delay_levels=False, refuses_wrong_length=False),
)

_4_9_3 = replace(
    _4_9_2,
    name="4.9.3",
    versions=("4.9.3",),
    # 4.9.3 DefaultMessageStore.checkMultiDispatchQueue and ConsumeQueue.multiDispatchLmqQueue: no topic is
    # excluded, a slash in a queue name is not looked at.
    multi_dispatch=True,
    recovery=replace(_4_9_2.recovery, refuses_wrong_length=True),
)

_4_9 = replace(
    _4_9_3,
    name="4.9",
    versions=("4.9.4", "4.9.5", "4.9.6", "4.9.7", "4.9.8"),
    # 4.9.4 DefaultMessageStore.getMessage: nextOffsetCorrection(offset, maxOffset) always.
    queries=replace(_4_9_3.queries, overflow_begins_again=False),
)

_5_0 = replace(
    _4_9,
    name="5.0",
    versions=("5.0.0",),
    # 5.0.0 StoreCheckpoint.flush: masterFlushedOffset at byte 24.
    checkpoint_fields=4,
    # 5.0.0 IndexService.shutdown flushes every file, and IndexFile.flush writes the whole header.
    empty_index_count=1,
    # 5.0.0 CommitLog.setBatchSizeIfNeeded: Long.parseLong and Short.parseShort inside
    # checkMessageAndReturnSize.
    inner_batch_properties=True,
    # 5.0.0 DefaultMessageStore: start takes the confirm offset, parseDelayLevel comes first;
    # ConsumeQueue.correctMinOffset; ConsumeQueueStore.queueTypeShouldBe.
    recovery=replace(
        _4_9.recovery,
        begins_at_queue_end=False,
        searches_min_offset=True,
        fails_on_empty_queue_file=True,
        knows_delay_levels=True,
        switches_queue_types=True,
        replaces_abort=True,  # 5.0.0 MixAll.string2File
    ),
    # 5.0.0 ConsumeQueueStore.getOffsetInQueueByTime; DefaultMessageStore.getMessage.
    queries=replace(
        _4_9.queries, clamps_time=True, skips_before_full=False, scans_units=True, scans_past_limit=True
    ),
)

_5_1_0 = replace(
    _5_0,
    name="5.1.0",
    versions=("5.1.0",),
    # 5.1.0 MessageVersion.MESSAGE_VERSION_V2, CommitLog.checkMessageAndReturnSize.
    topic_length_v2=True,
    # 5.1.0 MappedFileQueue.doLoad; DefaultMessageStore.load.
    recovery=replace(_5_0.recovery, skips_directories=True, index_failure_refuses=True, replaces_abort=False),
    # 5.1.0 DefaultMessageStore.getMessage.
    queries=replace(_5_0.queries, scans_units=False),
)

_5_1_1 = replace(
    _5_1_0,
    name="5.1.1",
    versions=("5.1.1",),
    # 5.1.1 StoreCheckpoint.flush: confirmPhyOffset at byte 32.
    checkpoint_fields=5,
    # 5.1.1 ConsumeQueue.checkMultiDispatchQueue.
    lmq_excluded_prefixes=(_RETRY_PREFIX,),
    # 5.1.1 ConsumeQueue.binarySearchInQueueByTime, MappedFileQueue.getConsumeQueueMappedFileByTime.
    queries=replace(_5_1_0.queries, time_boundaries=True),
)

_5_1_2 = replace(
    _5_1_1,
    name="5.1.2",
    versions=("5.1.2",),
    # 5.1.2 ConsumeQueue.checkMultiDispatchQueue and multiDispatchLmqQueue (File.separator).
    lmq_excluded_topics=(_SCHEDULE_TOPIC, _TIMER_TOPIC),
    lmq_rejects_slash=True,
)

_5_1 = replace(
    _5_1_2,
    name="5.1",
    versions=("5.1.3", "5.1.4"),
    # 5.1.3 SelectorParserConstants.
    filter_parts=True,
    # 5.1.4 BrokerController.isEnableRocksDBStore.
    settings_in_rocksdb=True,
    # 5.1.3 MappedFileQueue.doLoad.
    recovery=replace(_5_1_2.recovery, drops_empty_last_file=True),
)

_5_2 = replace(
    _5_1,
    name="5.2",
    versions=("5.2.0",),
    # 5.2.0 MultiDispatchUtils.isNeedHandleMultiDispatch.
    lmq_excluded_prefixes=(_RETRY_PREFIX, _SYSTEM_PREFIX),
    lmq_excluded_topics=(_SCHEDULE_TOPIC,),
    # 5.2.0 CommitLog.checkMessageAndReturnSize: isForceVerifyPropCRC, CRC32_RESERVED_LEN.
    append_prop_crc=True,
    # 5.2.0 MixAll.properties2Object: property.trim() for String.
    trims_text_settings=True,
)

# Keys of broker.conf alone are new there.
_5_3_0 = replace(
    _5_2,
    name="5.3.0",
    versions=("5.3.0", "5.3.1"),
)

_5_3 = replace(
    _5_3_0,
    name="5.3",
    versions=("5.3.2", "5.3.3", "5.3.4"),
    # 5.3.2 RocksDBConsumeQueueStore.dispatchLMQ.
    rocksdb_lmq=True,
    # 5.3.2 RocksDBTopicConfigManager.merge, ConfigManagerVersion.
    imports_json_settings=True,
    # 5.3.2 CommitLog.recoverNormally, checkMessageAndReturnSize.
    recovery=replace(
        _5_3_0.recovery,
        clean_start=CleanStart.QUEUE_END,
        dispatches_after_clean=True,
        checks_room=True,
    ),
    # 5.3.3 DefaultMessageStore.getMessage; 5.3.2 still looks at one unit more.
    queries=replace(_5_3_0.queries, scans_past_limit=False),
)

_5_4 = replace(
    _5_3,
    name="5.4",
    versions=("5.4.0",),
    # 5.4.0 IndexService.buildIndex: buildKey(topic, tags, "T"), last.
    index_tags=True,
    # 5.4.0 CommitLog.recoverNormally, isMappedFileMatchedRecover; ConsumeQueueStore.truncateDirty.
    recovery=replace(
        _5_3.recovery,
        clean_start=CleanStart.FIRST_RECORD,
        crash_start=CrashStart.RECORD_AND_TIMESTAMP,
        limits_segments=True,
        cuts_by_new_end=True,
    ),
)

_5_5 = replace(
    _5_4,
    name="5.5",
    versions=("5.5.0", "5.5.1"),
    # 5.5.0 StoreCheckpoint.flush: logicsPhysicalOffset at byte 40.
    checkpoint_fields=6,
    # 5.5.0 ConsumeQueueStore.isMappedFileMatchedRecover, FlushConsumeQueueService;
    # ConsumeQueue.correctMinOffset.
    recovery=replace(
        _5_4.recovery,
        crash_start=CrashStart.PHYSICAL_OFFSET,
        fails_on_empty_queue_file=False,
        flushes_logics_later=True,
        # 5.5.1 CommitLog.checkMessageAndReturnSize; 5.5.0 passes over such a closing record. By its bytes a
        # store doesn't show which one it is of, so that what the later one loses counts.
        refuses_negative_size=True,
    ),
)

#: Every dialect, oldest first.
DIALECTS: tuple[Dialect, ...] = (
    _4_0,
    _4_1,
    _4_2,
    _4_3_0,
    _4_4,
    _4_5_0,
    _4_5,
    _4_7_0,
    _4_8,
    _4_9_0,
    _4_9_2,
    _4_9_3,
    _4_9,
    _5_0,
    _5_1_0,
    _5_1_1,
    _5_1_2,
    _5_1,
    _5_2,
    _5_3_0,
    _5_3,
    _5_4,
    _5_5,
)

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", re.ASCII)
_BY_RELEASE: dict[str, Dialect] = {release: row for row in DIALECTS for release in row.versions}


def dialect(version: str | None) -> Dialect:
    """The dialect of a RocketMQ version, given as ``major.minor.patch``.

    ``major.minor`` is the newest release of that line that reput knows; None, or one newer than all that
    reput knows, the newest of all.
    """
    if version is None:
        return DIALECTS[-1]
    match = _VERSION.fullmatch(version)
    if match is None:
        raise SettingsError(
            "that isn't a RocketMQ version",
            expected=f"a release ({_accepted()}), or a line such as 5.3 for its newest",
            found=repr(version),
        )
    major, minor, patch = match.groups()
    line = f"{major}.{minor}"
    if patch is not None:
        found = _BY_RELEASE.get(version)
    else:
        # Rows are in order of release, so the last with one of the line holds its newest release.
        rows = (row for row in reversed(DIALECTS) if any(one.startswith(line + ".") for one in row.versions))
        found = next(rows, None)
    if found is None and is_newer(version):
        return DIALECTS[-1]
    if found is None:
        raise _unknown(version, line)
    return found


def in_full(version: str | None) -> str | None:
    """The release of a version that was given, ``major.minor.patch``: of a line, the newest that is known."""
    if version is None or version.count(".") != 1 or is_newer(version):
        return version
    return next(one for one in reversed(dialect(version).versions) if one.startswith(f"{version}."))


def is_newer(version: str) -> bool:
    """Whether a version, ``major.minor`` or ``major.minor.patch``, is newer than all that reput knows."""
    newest = DIALECTS[-1].versions[-1].split(".")
    return [*map(int, version.split("."))] > [*map(int, newest)]


def _unknown(version: str, line: str) -> SettingsError:
    releases = [release for release in _BY_RELEASE if release.startswith(line + ".")]
    if releases:
        step = (
            f"If its store is that of {releases[-1]}, say {line} for the rules of {releases[-1]}, "
            "and compare the result with the broker's own files first."
        )
    else:
        step = "Rules change between minor versions: the nearest is taken only when you name it."
    return SettingsError(
        "this RocketMQ version isn't known", expected=_accepted(), found=version, next_step=step
    )


def _accepted() -> str:
    """Every accepted release, one range a line of releases."""
    lines: dict[str, list[str]] = {}
    for release in _BY_RELEASE:
        lines.setdefault(release.rpartition(".")[0], []).append(release)
    return ", ".join(
        releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"
        for releases in lines.values()
    )
