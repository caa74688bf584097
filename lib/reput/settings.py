"""The store's settings: the user's own broker.conf, the store's place and the RocketMQ version.

Names, defaults and units are those of ``MessageStoreConfig``; how a text becomes a value is that of
``MixAll.properties2Object``, with one difference: the broker drops a value that it can't read without a word
(a number) or takes it for false (a switch), and reput refuses it, since a rebuild with other sizes than the
operator believes in is no use. docs/settings.md tells operators the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reput.dialect import Dialect, dialect
from reput.errors import SettingsError, UnsupportedError
from reput.javaproperties import Property, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Bytes of a consume queue unit: ``ConsumeQueue.CQ_STORE_UNIT_SIZE``.
_UNIT = 20
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
#: ``IndexFile`` computes its length in an int: 40 + 4 a slot + 20 an entry.
_INDEX_HEADER, _INDEX_SLOT, _INDEX_ENTRY = 40, 4, 20
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_INTEGER = re.compile(r"[+-]?[0-9]{1,99}", re.ASCII)
#: DLedgerCommitLog takes what follows the first character for a number.
_MEMBER = re.compile(r"[A-Za-z][0-9]{1,9}", re.ASCII)
_PATH_SEPARATOR = ","  # MessageStoreConfig.MULTI_PATH_SPLITTER
#: What String.trim takes away: every character up to the space.
_JAVA_WHITE = "".join(map(chr, range(0x21)))

# Defaults: MessageStoreConfig, the same from 4.9.0 to 5.5.1.
_CONSUME_QUEUE_FILE_SIZE = 300_000 * _UNIT
_MAX_HASH_SLOT_NUM = 5_000_000
_MAX_INDEX_NUM = 5_000_000 * 4
_MESSAGE_DELAY_LEVEL = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """What decides how a broker starts on a store, and of queues in log order how they are written.

    Attributes:
        check_crc: ``checkCRCOnRecover``.
        index_safe: ``messageIndexSafe``: the walk begins early enough to index again.
        most_segments: ``commitLogRecoverMaxNum``; from 5.4 on, else not looked at.
        recheck_from_queues: ``recheckReputOffsetFromCq``: 5.x dispatches from the end of the queues, as 4.9.
        check_offsets: ``checkCommitLogOffsetOnRecover``: a record whose stored place lies outside its segment
            ends the walk.
        batch_queue_file_size: ``mapperFileSizeBatchConsumeQueue`` in bytes.
        queue_ext: ``enableConsumeQueueExt``.
        queue_ext_file_size: ``mappedFileSizeConsumeQueueExt`` in bytes.
        accelerated: ``enableAcceleratedRecovery``.
        controller_mode: ``enableControllerMode``: the group's epochs decide where the log ends.
    """

    check_crc: bool = True
    index_safe: bool = False
    most_segments: int = 10
    recheck_from_queues: bool = False
    check_offsets: bool = False
    batch_queue_file_size: int = 300_000 * 46
    queue_ext: bool = False
    queue_ext_file_size: int = 48 << 20
    accelerated: bool = False
    controller_mode: bool = False

    def deciding(self) -> dict[str, object]:
        """What of it decides which bytes a rebuild writes, JSON-ready; nothing where all is as usual."""
        facts: dict[str, object] = {}
        if self.queue_ext:
            facts["queue_ext_file_size"] = self.queue_ext_file_size
        if self.batch_queue_file_size != RecoverySettings().batch_queue_file_size:
            facts["batch_queue_file_size"] = self.batch_queue_file_size
        return facts


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """What broker.conf says of filters: names and defaults of ``BrokerConfig``, the same from 4.9.0 to 5.5.0.

    Attributes:
        calculates: ``enableCalcFilterBitMap``: messages get bit maps.
        error_rate: ``maxErrorRateOfBloomFilter``, in percent.
        consumers: ``expectConsumerNumUseFilter``.
    """

    calculates: bool = False
    error_rate: int = 20
    consumers: int = 32


@dataclass(frozen=True, slots=True)
class DLedgerSettings:
    """What a store with ``enableDLegerCommitLog`` has beside its segments.

    Attributes:
        home: ``dledger-SELFID`` in the store, absolute; its ``checkpoint`` tells what is committed.
        dirs: of the segments that DLedger writes, in the order of broker.conf; the other directories of the
            commit log hold what was written before it.
        alone: the group has one member, so that whatever it has written is committed.
    """

    home: Path
    dirs: tuple[Path, ...]
    alone: bool


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What a run needs to know of a store; made by :meth:`load`, and sent to executors as it is.

    Attributes:
        root: the store, absolute.
        commit_log_dirs: the directories that hold segments, absolute, each once, in the order of broker.conf;
            those of ``readOnlyCommitLogStorePaths`` come last.
        segment_size: ``mappedFileSizeCommitLog`` in bytes; None when broker.conf doesn't say.
        consume_queue_file_size: bytes of a consume queue file, a multiple of 20.
        max_hash_slot_num: slots of an index file.
        max_index_num: entries of an index file; the first stays unused.
        message_index_enable: index files are wanted.
        delay_levels_ms: delay of each level in ms; index 0 is level 1.
        enable_multi_dispatch: messages may have units in light message queues (LMQ), too.
        enable_lmq: the queue id of an LMQ is 0 instead of the message's own.
        duplication_enable: recovery rejects records without a sound DUP_INFO.
        force_verify_prop_crc: ``__CRC32#`` is checked instead of the body CRC.
        dialect: the rules of the broker's version.
        broker_conf: the file that was read, absolute; None when there was none.
        release: the release as it was given, None when none was.
        recovery: how the broker starts.
        filters: whether and how bit maps are calculated for consumers that filter by SQL92.
        dledger: set if DLedger writes the commit log (``enableDLegerCommitLog``).
    """

    root: Path
    commit_log_dirs: tuple[Path, ...]
    segment_size: int | None
    consume_queue_file_size: int
    max_hash_slot_num: int
    max_index_num: int
    message_index_enable: bool
    delay_levels_ms: tuple[int, ...]
    enable_multi_dispatch: bool
    enable_lmq: bool
    duplication_enable: bool
    force_verify_prop_crc: bool
    dialect: Dialect
    broker_conf: Path | None = None
    recovery: RecoverySettings = RecoverySettings()
    dledger: DLedgerSettings | None = None
    filters: FilterSettings = FilterSettings()
    release: str | None = None

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
    def topics_json(self) -> Path:
        """Where the broker keeps its topics (``BrokerPathConfigHelper``); the file may be missing."""
        return self.root / "config" / "topics.json"

    @classmethod
    def load(
        cls,
        store: Path,
        broker_conf: Path | None,
        version: str | None,
        *,
        dledger: bool = False,
    ) -> StoreSettings:
        """The settings of a store.

        STORE wins over ``storePathRootDir``: a path of broker.conf that lies under the latter is looked for
        at the same place under STORE, so that a copied store is read with the original's file. Other paths of
        broker.conf are taken as they are.

        Args:
            store: the store's directory, wherever it is now.
            broker_conf: the broker's own file, or None for RocketMQ's defaults.
            version: see :func:`reput.dialect.dialect`.
            dledger: the caller can do with a commit log that DLedger writes.

        Raises:
            SettingsError: the file can't be read, a value can't be used, the version isn't known, or it can't
                be told where the commit log is.
            UnsupportedError: the store uses a feature that reput doesn't derive.
        """
        rules = dialect(version)
        root = _absolute(store)
        conf_path = None if broker_conf is None else _absolute(broker_conf)
        conf = _Conf({} if conf_path is None else _read(conf_path), conf_path, rules)
        _refuse_unsupported(conf, dledger=dledger)
        _refuse_rocksdb(root, conf)
        group = _dledger(root, conf)

        queue_size = conf.integer(
            "mappedFileSizeConsumeQueue", _CONSUME_QUEUE_FILE_SIZE, least=1, most=_INT_MAX // _UNIT * _UNIT
        )
        slots = conf.integer("maxHashSlotNum", _MAX_HASH_SLOT_NUM, least=1)
        # With a single entry, which stays unused, every new file is full and putKey never ends.
        entries = conf.integer("maxIndexNum", _MAX_INDEX_NUM, least=2)
        if _INDEX_HEADER + slots * _INDEX_SLOT + entries * _INDEX_ENTRY > _INT_MAX:
            raise SettingsError(
                "maxHashSlotNum and maxIndexNum make an index file that no broker can create",
                path=conf_path,
                expected=f"40 + 4 x maxHashSlotNum + 20 x maxIndexNum to be at most {_INT_MAX} bytes",
                found=f"maxHashSlotNum={slots}, maxIndexNum={entries}",
            )
        # From 5.4 on CommitLogDispatcherBuildIndex asks both.
        index_enable = conf.switch("messageIndexEnable", True)
        index_file_write = conf.switch("indexFileWriteEnable", True)
        return cls(
            root=root,
            commit_log_dirs=_commit_log_dirs(root, conf)
            if group is None
            else _dledger_dirs(root, conf, group),
            segment_size=conf.optional_integer("mappedFileSizeCommitLog", least=1),
            # MessageStoreConfig.getMappedFileSizeConsumeQueue rounds up.
            consume_queue_file_size=-(-queue_size // _UNIT) * _UNIT,
            max_hash_slot_num=slots,
            max_index_num=entries,
            message_index_enable=index_enable and index_file_write,
            delay_levels_ms=_delay_levels(conf),
            enable_multi_dispatch=conf.switch("enableMultiDispatch", False),
            enable_lmq=conf.switch("enableLmq", False),
            duplication_enable=conf.switch("duplicationEnable", False) and rules.dup_info_check,
            force_verify_prop_crc=conf.switch("forceVerifyPropCRC", False),
            dialect=rules,
            broker_conf=conf_path,
            recovery=_recovery(conf),
            filters=FilterSettings(
                # BrokerConfig.
                calculates=conf.switch("enableCalcFilterBitMap", False),
                error_rate=conf.integer("maxErrorRateOfBloomFilter", 20, least=1, most=99),
                consumers=conf.integer("expectConsumerNumUseFilter", 32, least=1),
            ),
            dledger=group,
            release=version,
        )

    def describe(self) -> dict[str, object]:
        """The settings as a JSON-ready mapping, for people and reports."""
        return {
            "store": str(self.root),
            "broker_conf": None if self.broker_conf is None else str(self.broker_conf),
            "rocketmq_version": self.dialect.name,
            "rocketmq_releases": list(self.dialect.versions),
            "commit_log_dirs": [str(path) for path in self.commit_log_dirs],
            "segment_size": self.segment_size,
            "consume_queue_file_size": self.consume_queue_file_size,
            "max_hash_slot_num": self.max_hash_slot_num,
            "max_index_num": self.max_index_num,
            "message_index_enable": self.message_index_enable,
            "delay_levels_ms": list(self.delay_levels_ms),
            "enable_multi_dispatch": self.enable_multi_dispatch,
            "enable_lmq": self.enable_lmq,
            "duplication_enable": self.duplication_enable,
            "force_verify_prop_crc": self.force_verify_prop_crc,
            "fingerprint": self.fingerprint(),
            **({} if self.dledger is None else {"dledger": str(self.dledger.home)}),
            **self.recovery.deciding(),
            **self._filters(),
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
            "consume_queue_file_size": self.consume_queue_file_size,
            "max_hash_slot_num": self.max_hash_slot_num,
            "max_index_num": self.max_index_num,
            "message_index_enable": self.message_index_enable,
            "delay_levels_ms": list(self.delay_levels_ms),
            "enable_multi_dispatch": self.enable_multi_dispatch,
            "enable_lmq": self.enable_lmq,
            "duplication_enable": self.duplication_enable,
            "force_verify_prop_crc": self.force_verify_prop_crc,
            "dialect": self.dialect.rules(),
            **({"dledger": True} if self.entries else {}),
            **self.recovery.deciding(),
            **self._filters(),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class _Conf:
    """broker.conf as one version of the broker sees it: keys that it doesn't know are not there."""

    def __init__(self, entries: Mapping[str, Property], path: Path | None, rules: Dialect) -> None:
        self._entries = entries
        self.path = path
        self.rules = rules

    def entry(self, key: str) -> Property | None:
        return None if key in self.rules.unknown_settings else self._entries.get(key)

    def text(self, key: str) -> str | None:
        """A String setter's value."""
        entry = self.entry(key)
        if entry is None:
            return None
        return entry.value.strip(_JAVA_WHITE) if self.rules.trims_text_settings else entry.value

    def integer(self, key: str, default: int, *, least: int, most: int = _INT_MAX) -> int:
        """An int setter's value (Integer.parseInt): no white space around it."""
        value = self.optional_integer(key, default=default, least=least, most=most)
        return default if value is None else value

    def optional_integer(
        self, key: str, *, default: int | None = None, least: int, most: int = _INT_MAX
    ) -> int | None:
        entry = self.entry(key)
        if entry is None:
            return None
        expected = f"a whole number from {least} to {most}, nothing around it"
        if _INTEGER.fullmatch(entry.value) is None or not -_INT_MAX - 1 <= int(entry.value) <= _INT_MAX:
            instead = "its default" if default is None else f"its default, {default}"
            raise self.error(
                entry,
                f"{key} isn't a number",
                expected,
                f"The broker passes over such a value without a word and uses {instead}: "
                "write the number that it should use, or remove the line.",
            )
        value = int(entry.value)
        if not least <= value <= most:
            raise self.error(entry, f"{key} is out of range", expected, "No broker can run with it.")
        return value

    def switch(self, key: str, default: bool) -> bool:
        """A boolean setter's value (Boolean.parseBoolean), but only what is surely meant."""
        entry = self.entry(key)
        if entry is None:
            return default
        if entry.value.lower() not in ("true", "false"):
            raise self.error(
                entry,
                f"{key} isn't a switch",
                "true or false, nothing around it",
                "The broker takes everything but true for false: write which one is meant.",
            )
        return entry.value.lower() == "true"

    def error(
        self, entry: Property, problem: str, expected: str, next_step: str | None = None
    ) -> SettingsError:
        return SettingsError(
            f"line {entry.line}: {problem}",
            path=self.path,
            expected=expected,
            found=f"{entry.key}={entry.value!r}",
            next_step=next_step,
        )


def _recovery(conf: _Conf) -> RecoverySettings:
    usual = RecoverySettings()
    most = conf.integer("commitLogRecoverMaxNum", usual.most_segments, least=-_INT_MAX - 1)
    return RecoverySettings(
        check_crc=conf.switch("checkCRCOnRecover", usual.check_crc),
        index_safe=conf.switch("messageIndexSafe", usual.index_safe),
        # CommitLog.recoverNormally: what isn't positive means the default.
        most_segments=most if most > 0 else usual.most_segments,
        recheck_from_queues=conf.switch("recheckReputOffsetFromCq", usual.recheck_from_queues),
        check_offsets=conf.switch("checkCommitLogOffsetOnRecover", usual.check_offsets),
        batch_queue_file_size=conf.integer(
            "mapperFileSizeBatchConsumeQueue", usual.batch_queue_file_size, least=1
        ),
        queue_ext=conf.switch("enableConsumeQueueExt", usual.queue_ext),
        queue_ext_file_size=conf.integer("mappedFileSizeConsumeQueueExt", usual.queue_ext_file_size, least=1),
        accelerated=conf.switch("enableAcceleratedRecovery", usual.accelerated),
        # BrokerConfig, from 5.0 on.
        controller_mode=conf.switch("enableControllerMode", usual.controller_mode)
        and conf.rules.recovery.switches_queue_types,
    )


def _read(path: Path) -> dict[str, Property]:
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        found = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError("this broker.conf can't be read", path=path, found=found) from error
    return parse(data, path)


def _absolute(path: Path) -> Path:
    """Absolute, without ``..``; symbolic links stay, so that errors show what the user wrote."""
    return Path(os.path.normpath(Path.cwd() / path))


def _delay_levels(conf: _Conf) -> tuple[int, ...]:
    """``messageDelayLevel`` in ms: ``DefaultMessageStore.parseDelayLevel`` (4.9: ScheduleMessageService)."""
    entry = conf.entry("messageDelayLevel")
    text = conf.text("messageDelayLevel")
    if entry is None or text is None:
        return _parse_delay_levels(_MESSAGE_DELAY_LEVEL)
    try:
        return _parse_delay_levels(text)
    except ValueError as error:
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
        if unit is None or _INTEGER.fullmatch(number) is None or abs(int(number)) * unit > _LONG_MAX:
            raise ValueError(word)
        levels.append(int(number) * unit)
    return tuple(levels)


def _commit_log_dirs(root: Path, conf: _Conf) -> tuple[Path, ...]:
    """Where the segments are (``CommitLog``, ``MultiPathMappedFileQueue``), with STORE in its place."""
    entry = conf.entry("storePathCommitLog")
    text = conf.text("storePathCommitLog")
    if entry is None or text is None:
        return (root / "commitlog",)
    several = conf.rules.multi_path_commit_log and _PATH_SEPARATOR in text
    dirs = [_place(part, entry, root, conf) for part in _parts(text, several)]
    if several:  # only the queue of several paths looks at the read-only ones
        dirs += _read_only(root, conf)
    dirs = list(dict.fromkeys(dirs))
    _refuse_ambiguous(dirs, entry, root, conf, root / "commitlog")
    return tuple(dirs)


def _dledger(root: Path, conf: _Conf) -> DLedgerSettings | None:
    """DLedger's own settings: ``DLedgerConfig.getDefaultPath``, ``getDataStorePath``."""
    if not conf.switch("enableDLegerCommitLog", False):
        return None
    entry = conf.entry("dLegerSelfId")
    member = conf.text("dLegerSelfId")
    if entry is None or member is None or _MEMBER.fullmatch(member) is None:
        raise SettingsError(
            "dLegerSelfId doesn't name a member of the group, so that it isn't known where the commit log is",
            path=conf.path,
            expected="n and a number, e.g. n0",
            found="nothing" if entry is None else f"{entry.key}={entry.value!r}",
            next_step="Write down the dLegerSelfId of the broker whose store this is.",
        )
    home = root / f"dledger-{member}"
    dirs = [home / "data"]
    place, text = conf.entry("storePathDLedgerCommitLog"), conf.text("storePathDLedgerCommitLog")
    if place is not None and text is not None:
        several = _PATH_SEPARATOR in text
        dirs = [_place(part, place, root, conf) for part in _parts(text, several)]
        if several:
            dirs += _read_only(root, conf)
        dirs = list(dict.fromkeys(dirs))
        _refuse_ambiguous(dirs, place, root, conf, home / "data")
    peers = [peer for peer in (conf.text("dLegerPeers") or "").split(";") if peer.strip(_JAVA_WHITE)]
    return DLedgerSettings(home, tuple(dirs), alone=len(peers) == 1)


def _dledger_dirs(root: Path, conf: _Conf, group: DLedgerSettings) -> tuple[Path, ...]:
    """DLedger's directories, and those of the commit log from before it, if there are any."""
    entry, text = conf.entry("storePathCommitLog"), conf.text("storePathCommitLog")
    dirs = [root / "commitlog"]
    if entry is not None and text is not None:
        several = conf.rules.multi_path_commit_log and _PATH_SEPARATOR in text
        dirs = [_place(part, entry, root, conf) for part in _parts(text, several)]
    return tuple(dict.fromkeys((*group.dirs, *(path for path in dirs if _holds_anything(path)))))


def _read_only(root: Path, conf: _Conf) -> list[Path]:
    entry, text = conf.entry("readOnlyCommitLogStorePaths"), conf.text("readOnlyCommitLogStorePaths")
    if entry is None or text is None or not text.strip(_JAVA_WHITE):
        return []
    return [_place(part, entry, root, conf) for part in _parts(text, True)]


def _parts(text: str, several: bool) -> list[str]:
    if not several:
        return [text]
    parts = text.strip(_JAVA_WHITE).split(_PATH_SEPARATOR)
    while len(parts) > 1 and not parts[-1]:  # as String.split does
        parts.pop()
    return parts


def _place(text: str, entry: Property, root: Path, conf: _Conf) -> Path:
    """The directory that a path of broker.conf stands for, now that the store is at ``root``."""
    if not text or text != text.strip(_JAVA_WHITE):
        raise conf.error(
            entry,
            f"{entry.key} has a directory with white space around its name, or without one",
            "directories, separated by a comma and nothing else",
            "The broker takes the white space as part of the name.",
        )
    if not _can_be_a_name(text):
        raise conf.error(
            entry,
            f"{entry.key} names a directory that can't be",
            "no NUL, and no half of a surrogate pair",
            "A broker can't open it, either.",
        )
    path = Path(os.path.normpath(text))
    conf_root = _conf_root(conf)
    if conf_root is not None and path.is_relative_to(conf_root):
        return root / path.relative_to(conf_root)
    if not path.is_absolute():
        raise conf.error(
            entry,
            f"{entry.key} is relative to where the broker was started, which isn't known here",
            "absolute directories, or ones under storePathRootDir",
            "Give reput a copy of the file with the whole path.",
        )
    return path


def _conf_root(conf: _Conf) -> Path | None:
    text = conf.text("storePathRootDir")
    return Path(os.path.normpath(text)) if text and _can_be_a_name(text) else None


def _can_be_a_name(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _refuse_ambiguous(dirs: list[Path], entry: Property, root: Path, conf: _Conf, own: Path) -> None:
    """Refuse to read the original's commit log beside a copied store, and a commit log that isn't there.

    The directories of broker.conf that lie outside the original's root keep their place: on the original's
    own machine they are the live broker's, while a copy brings its ``own``.
    """
    if any(path.is_relative_to(root) or _same(path, own) for path in dirs):
        return
    copied = _holds_anything(own)
    conf_root = _conf_root(conf)
    if conf_root is not None and _same(conf_root, root):
        return
    if not any(_is_dir(path) for path in dirs):
        step = f"Remove the line from a copy of the file to read {own}." if copied else None
        raise conf.error(entry, f"the commit log isn't where {entry.key} says", "a directory here", step)
    if copied:
        raise conf.error(
            entry,
            f"two commit logs could be meant: the one that {entry.key} names, and {own}",
            f"storePathRootDir={root}, or no {entry.key}",
            "Give reput a copy of the file that says which: with storePathRootDir set to the store that you "
            f"named for the first, without {entry.key} for the second.",
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, or a directory that may not be looked into
        return False


def _same(left: Path, right: Path) -> bool:
    try:
        return left.samefile(right)
    except OSError:
        return _absolute(left) == _absolute(right)


def _holds_anything(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False


def _refuse_unsupported(conf: _Conf, *, dledger: bool) -> None:
    """Say no to what changes the files and isn't derived, before anything is read."""
    if conf.switch("enableDLegerCommitLog", False) and not dledger:
        raise UnsupportedError(
            _where(conf, "enableDLegerCommitLog")
            + "enableDLegerCommitLog asks for a commit log that DLedger writes; this command doesn't read it",
            path=conf.path,
            found="enableDLegerCommitLog=true",
            next_step="rebuild, verify and query can do it (docs/formats/dledger.md); what a start would cut "
            "and what is committed is the group's to decide.",
        )
    if (conf.text("storeType") or "").lower() == "defaultrocksdb":
        raise _unsupported(
            conf,
            "storeType",
            "consume queues in RocksDB",
            "The broker rebuilds those by itself. For consume queue files, run the broker with "
            "storeType=default, and reput with the same file.",
        )
    if conf.switch("rocksdbCQDoubleWriteEnable", False):
        types = conf.text("combineCQLoadingCQTypes")
        # StoreType.fromString: names between ';', large or small.
        if types is not None and "default" not in [
            name.strip(_JAVA_WHITE).lower() for name in types.split(";")
        ]:
            raise _unsupported(
                conf,
                "combineCQLoadingCQTypes",
                "consume queues in RocksDB alone",
                "Add default to the list, so that the broker keeps consume queue files, too.",
            )
        if conf.switch("combineCQUseRocksdbForLmq", False) and conf.switch("enableMultiDispatch", False):
            raise _unsupported(
                conf,
                "combineCQUseRocksdbForLmq",
                "light message queues in RocksDB",
                "Set enableMultiDispatch=false in a copy of the file to get the other queues: "
                "the broker brings back those in RocksDB itself.",
            )


def _refuse_rocksdb(root: Path, conf: _Conf) -> None:
    """Say no to a store whose queues are in RocksDB, though broker.conf doesn't say so.

    Source: ``RocksDBConsumeQueueStore`` (rocketmq-all-5.3.3; in 5.5.0 it asks for this file at both places).
    """
    if conf.switch("rocksdbCQDoubleWriteEnable", False):
        return  # consume queue files are kept as well
    for name in ("consumequeue", "consumequeue_rocksdb"):
        mark = root / name / "CURRENT"
        if _is_file(mark):
            raise UnsupportedError(
                "this store's consume queues are in RocksDB, which reput doesn't build, though broker.conf "
                "doesn't say so",
                path=mark.parent,
                expected="consume queue files alone, as with storeType=default",
                found=f"{mark.name}, which is RocksDB's",
                next_step="Give reput the broker's own broker.conf. With rocksdbCQDoubleWriteEnable=true the "
                "broker keeps consume queue files, too; what an earlier storeType left can be moved away.",
            )


def _unsupported(conf: _Conf, key: str, what: str, next_step: str) -> UnsupportedError:
    entry = conf.entry(key)
    return UnsupportedError(
        f"{_where(conf, key)}{key} asks for {what}, which reput doesn't build",
        path=conf.path,
        found=None if entry is None else f"{entry.key}={entry.value}",
        next_step=next_step,
    )


def _where(conf: _Conf, key: str) -> str:
    entry = conf.entry(key)
    return "" if entry is None else f"line {entry.line}: "
