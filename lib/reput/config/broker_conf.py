"""broker.conf as a broker reads it: how a text becomes a value, and which keys a release knows.

Source: ``MixAll.properties2Object`` (rocketmq-all-4.9.7, 5.3.3).

The broker hands the file's bytes to ``java.util.Properties.load(InputStream)`` (``BrokerStartup``, 4.9.0 to
5.5.1), so every byte is one ISO-8859-1 character, whatever the editor wrote. The grammar is that of the
Javadoc of ``Properties.load(Reader)``; where it is silent (a comment sign after a continuation, a backslash
at the end of the file) this follows what OpenJDK 17 does, but for the entry with an empty key that a lone
backslash at the very end makes there: nothing asks for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from reput.config.dialect import Dialect
from reput.errors import SettingsError, UnsupportedError
from reput.format import names
from reput.format.batchconsumequeue import UNIT_LENGTH as BATCH_UNIT_LENGTH
from reput.format.commitlog import MAX_MESSAGE_SIZE
from reput.format.consumequeue import UNIT_LENGTH
from reput.store.reading import read_file, step_to_read

_WHITE = " \t\f"
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\r|\n")
_UNICODE = re.compile(r"[0-9A-Fa-f]{4}")


@dataclass(frozen=True, slots=True)
class Property:
    """One entry of a properties file."""

    key: str  # unescaped, like the value
    value: str  # leading white space is gone, trailing white space is kept
    line: int  # number of the line that it starts on, from 1


def parse(data: bytes, path: str | PathLike[str] | None = None) -> dict[str, Property]:
    r"""The properties by key; of a repeated key the last entry stays, as in the broker.

    Like the JVM, this refuses a file with a ``\u`` that four hexadecimal digits don't follow.
    """
    entries: dict[str, Property] = {}
    for number, line in _logical_lines(data.decode("iso-8859-1")):
        raw_key, raw_value = _split(line)
        try:
            entry = Property(_unescape(raw_key), _unescape(raw_value), number)
        except _MalformedEscapeError as error:
            raise SettingsError(
                f"line {number}: a broken \\u escape; no broker starts with this file",
                path=path,
                expected="four hexadecimal digits after \\u",
                found=repr(error.args[0]),
                next_step="Write a backslash that isn't an escape twice.",
            ) from None
        entries[entry.key] = entry
    return entries


class _MalformedEscapeError(ValueError):
    """A Unicode escape without four digits; holds the text from its backslash on."""


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """First line number and text of each entry: no comments, no blank lines, continued lines joined."""
    logical = ""
    start = 0
    continued = False
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(_WHITE)
        if not logical:
            # A continued line that is still empty is a new one: it may be a comment (Properties.LineReader,
            # len == 0).
            if not line or line[0] in "#!":
                continued = False
                continue
            start = number
        logical += line
        # The run of backslashes is that of this line alone: the one that continued the line before is gone.
        backslashes = len(line) - len(line.rstrip("\\"))
        continued = backslashes % 2 == 1
        if continued:
            logical = logical[:-1]
        else:
            yield start, logical
            logical = ""
    if continued and logical:
        yield start, logical


def _split(line: str) -> tuple[str, str]:
    """Key and value of a logical line, both still escaped; the separator is ``=``, ``:`` or white space."""
    end = 0
    while end < len(line) and line[end] not in "=:" and line[end] not in _WHITE:
        # Whatever follows a backslash belongs to the key.
        end += 2 if line[end] == "\\" else 1
    value = line[end:].lstrip(_WHITE)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(_WHITE)
    return line[:end], value


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            parts.append(char)
            continue
        char = text[at]
        at += 1
        if char == "u":
            digits = _UNICODE.match(text, at)
            if digits is None:
                raise _MalformedEscapeError(text[at - 2 : at + 4])
            parts.append(chr(int(digits.group(), 16)))
            at += 4
        else:
            parts.append(_ESCAPES.get(char, char))
    # Java's characters are UTF-16 units: two escapes may make one character here.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


INT_MAX = 2**31 - 1
INTEGER = re.compile(r"[+-]?[0-9]{1,99}", re.ASCII)
#: What String.trim takes away: every character up to the space.
JAVA_WHITE = "".join(map(chr, range(0x21)))


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of broker.conf that reput reads, as ``MessageStoreConfig`` and ``BrokerConfig`` have it."""

    default: Any = None  # from 4.0.0 to 5.5.1; its type is the setter's, None for a text
    least: int = 1  # least, most: of a whole number
    most: int = INT_MAX
    since: str = ""  # the first release that has it; empty for all
    until: str = ""  # the first that no longer has it

    def is_known(self, rules: Dialect) -> bool:
        """Whether a release with these rules has it."""
        first, last = _number(rules.versions[0]), _number(rules.versions[-1])
        return _number(self.since) <= last and not (self.until and first >= _number(self.until))


def _number(release: str) -> list[int]:
    return [int(part) for part in release.split(".") if part]


_SWITCH, _TEXT = Setting(False), Setting()
SETTINGS: Mapping[str, Setting] = {
    # Where the files are.
    "storePathRootDir": _TEXT,
    "storePathCommitLog": _TEXT,
    "readOnlyCommitLogStorePaths": Setting(since="4.9.2"),  # CommitLog: MultiPathMappedFileQueue
    "storePathDLedgerCommitLog": Setting(since="4.9.4"),
    "enableDLegerCommitLog": Setting(False, since="4.5.0"),
    "dLegerSelfId": _TEXT,
    "dLegerPeers": _TEXT,
    # The commit log.
    "mappedFileSizeCommitLog": _TEXT,  # a number; without one the files say it
    "maxMessageSize": Setting(MAX_MESSAGE_SIZE, least=0),
    "messageDelayLevel": Setting("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"),
    "forceVerifyPropCRC": Setting(False, since="5.2.0"),
    "duplicationEnable": _SWITCH,
    # Queues.
    "mappedFileSizeConsumeQueue": Setting(300_000 * UNIT_LENGTH, most=INT_MAX // UNIT_LENGTH * UNIT_LENGTH),
    "mapperFileSizeBatchConsumeQueue": Setting(300_000 * BATCH_UNIT_LENGTH, since="5.0.0"),
    "enableConsumeQueueExt": Setting(False, since="4.1.0"),
    "mappedFileSizeConsumeQueueExt": Setting(48 << 20, since="4.1.0"),
    "enableMultiDispatch": Setting(False, since="4.9.3"),
    "enableLmq": Setting(False, since="4.9.3"),
    "enableCalcFilterBitMap": _SWITCH,
    "maxErrorRateOfBloomFilter": Setting(20, most=99),
    "expectConsumerNumUseFilter": Setting(32),
    # The index. With a single entry, which stays unused, every new file is full and putKey never ends.
    "messageIndexEnable": Setting(True),
    "indexFileWriteEnable": Setting(True, since="5.4.0"),  # CommitLogDispatcherBuildIndex
    "maxHashSlotNum": Setting(5_000_000),
    "maxIndexNum": Setting(20_000_000, least=2),
    # RocksDB.
    "storeType": Setting(since="5.2.0"),
    "rocksdbCQDoubleWriteEnable": Setting(False, since="5.3.0"),  # 5.3.1
    "combineCQLoadingCQTypes": Setting(since="5.3.0"),  # 5.3.4 CombineConsumeQueueStore
    # Which of both gives offsets, and is read, and how far a start goes back for the other one.
    "combineAssignOffsetCQType": Setting(since="5.3.0"),
    "combineCQPreferCQType": Setting(since="5.3.0"),
    "combineCQMaxExtraSearchCommitLogFiles": Setting(3, least=-INT_MAX - 1, since="5.3.0"),
    "combineCQUseRocksdbForLmq": Setting(False, since="5.5.0"),
    "rocksdbCQSelectiveDoubleWriteEnable": Setting(False, since="5.5.0"),  # 5.5.1 CombineConsumeQueueStore
    "useSeparateStorePathForRocksdbCQ": Setting(False, since="5.5.0"),  # RocksDBConsumeQueueStore
    "indexRocksDBEnable": Setting(False, since="5.4.0"),
    "transRocksDBEnable": Setting(False, since="5.4.0"),  # TransMessageRocksDBStore
    # Topics, groups and offsets.
    "configManagerVersion": Setting(since="5.3.2"),
    "useSingleRocksDBForAllConfigs": Setting(False, since="5.4.0"),
    # 5.3.1 RocksDBTopicConfigManager.merge; from 5.3.2 on it always imports.
    "transferMetadataJsonToRocksdb": Setting(False, since="5.3.0", until="5.3.2"),
    "transferOffsetJsonToRocksdb": Setting(False, since="5.3.0", until="5.3.2"),
    # How a broker starts.
    "checkCRCOnRecover": Setting(True),
    "messageIndexSafe": _SWITCH,
    "commitLogRecoverMaxNum": Setting(10, least=-INT_MAX - 1, since="5.4.0"),
    "recheckReputOffsetFromCq": Setting(False, since="5.0.0"),
    "checkCommitLogOffsetOnRecover": Setting(False, since="5.5.0"),
    "enableAcceleratedRecovery": Setting(False, since="5.4.0"),
    "enableControllerMode": _SWITCH,
    "fileReservedTime": Setting(72, least=-INT_MAX - 1),  # hours
    "timerWheelEnable": Setting(True, since="5.0.0"),
    "mappedFileSizeTimerLog": Setting(100 << 20, since="5.0.0"),
    "timerWheelSnapshotFlush": Setting(False, since="5.4.0"),
    "enableCompaction": Setting(True, since="5.1.0"),
    "recoverConcurrently": Setting(False, since="5.1.0"),
    "brokerId": _TEXT,  # a number, and the broker passes over what is none
    # Whose store it is.
    "brokerClusterName": _TEXT,
    "brokerName": _TEXT,
}
#: Keys that had one p less up to 4.5.1 (``MessageStoreConfig``).
_MAPED = {f"mappedFileSize{what}": f"mapedFileSize{what}" for what in ("CommitLog", "ConsumeQueue")}


class BrokerConf:
    """broker.conf as one version of the broker sees it: keys that it doesn't know are not there."""

    def __init__(self, entries: Mapping[str, Property], path: Path | None, rules: Dialect) -> None:
        self.entries = entries
        self.path = path
        self.rules = rules

    @property
    def maped(self) -> list[str]:
        """Its keys as releases up to 4.5.1 spell them."""
        return [key for key in _MAPED.values() if key in self.entries]

    @property
    def is_maped(self) -> bool:
        """Whether it is spelled as up to 4.5.1, and not in the new way as well."""
        return bool(self.maped) and not any(key in self.entries for key in _MAPED)

    def spelled(self, key: str) -> str:
        """A key as this release spells it."""
        return _MAPED.get(key, key) if self.rules.maped_settings else key

    def respelled(self, key: str) -> str:
        """A key that this release spells otherwise, as it does."""
        return next((new if key == old else old for new, old in _MAPED.items() if key in (new, old)), key)

    @property
    def passed_over(self) -> list[str]:
        """Those of its keys that this release spells otherwise, and doesn't read."""
        return [key for key in _MAPED if key in self.entries] if self.rules.maped_settings else self.maped

    def knows(self, key: str) -> bool:
        """Whether this release has a key."""
        return SETTINGS[key].is_known(self.rules)

    def entry(self, key: str) -> Property | None:
        """The line of a key; None without one, or where this release doesn't know it."""
        return self.entries.get(self.spelled(key)) if self.knows(key) else None

    def text(self, key: str) -> str | None:
        """A String setter's value; its default without a line."""
        entry = self.entry(key)
        if entry is None:
            default: str | None = SETTINGS[key].default
            return default
        return entry.value.strip(JAVA_WHITE) if self.rules.trims_text_settings else entry.value

    def integer(self, key: str) -> int:
        """An int setter's value (Integer.parseInt): no white space around it."""
        value = self.optional_integer(key)
        return int(SETTINGS[key].default) if value is None else value

    def optional_integer(self, key: str) -> int | None:
        """A whole number; None without a line."""
        entry, setting = self.entry(key), SETTINGS[key]
        if entry is None:
            return None
        expected = f"a whole number from {setting.least} to {setting.most}, nothing around it"
        if INTEGER.fullmatch(entry.value) is None or not -INT_MAX - 1 <= int(entry.value) <= INT_MAX:
            instead = "its default" if setting.default is None else f"its default, {setting.default}"
            raise self.error(
                entry,
                f"{key} isn't a number",
                expected,
                f"The broker passes over such a value without a word and uses {instead}: "
                "write the number that it should use, or remove the line.",
            )
        value = int(entry.value)
        if not setting.least <= value <= setting.most:
            raise self.error(entry, f"{key} is out of range", expected, "No broker can run with it.")
        return value

    def switch(self, key: str) -> bool:
        """A boolean setter's value (Boolean.parseBoolean), but only what is surely meant."""
        entry = self.entry(key)
        if entry is None:
            return bool(SETTINGS[key].default)
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
        """What is wrong with a line."""
        return SettingsError(
            f"line {entry.line}: {problem}",
            path=self.path,
            expected=expected,
            found=f"{entry.key}={entry.value!r}",
            next_step=next_step,
        )


def read(path: Path) -> dict[str, Property]:
    """What stands in a broker.conf."""
    try:
        data = b"" if str(path) == os.devnull else read_file(path)
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        found = error.strerror if isinstance(error, OSError) else str(error)
        step = "Give broker.conf's own path" if isinstance(error, FileNotFoundError) else step_to_read(error)
        raise SettingsError(
            "this broker.conf can't be read", path=path, found=found, next_step=step
        ) from error
    return parse(data, path)


#: RocksDB's own, as a broker's of any release leaves them.
_FILES = "CURRENT, IDENTITY, LOCK, LOG*, MANIFEST-*, OPTIONS-*, *.log and *.sst"


def _loaded_types(conf: BrokerConf) -> list[str]:
    """``combineCQLoadingCQTypes``. Source: ``StoreType.fromString``: names between ``;``, large or small."""
    types = conf.text("combineCQLoadingCQTypes")
    if types is None:
        return ["default", "defaultrocksdb"]
    return [name.strip(JAVA_WHITE).lower() for name in types.split(";")]


def in_rocksdb_alone(conf: BrokerConf) -> bool:
    """Whether queues are in RocksDB and in no files."""
    if (conf.text("storeType") or "").lower() == "defaultrocksdb":
        return True
    return in_rocksdb(conf) and "default" not in _loaded_types(conf)


def in_rocksdb(conf: BrokerConf) -> bool:
    """Whether queues are in RocksDB, too, under ``storeType=default``."""
    return conf.switch("rocksdbCQDoubleWriteEnable") and "defaultrocksdb" in _loaded_types(conf)


def reads_rocksdb_first(conf: BrokerConf) -> bool:
    """Whether of queues in both forms those in RocksDB give offsets, or are read.

    Source: ``CombineConsumeQueueStore`` (5.4.0, 5.5.0).
    """
    types = (conf.text("combineAssignOffsetCQType"), conf.text("combineCQPreferCQType"))
    others = any((one or "default").lower() != "default" for one in types)
    return conf.switch("rocksdbCQDoubleWriteEnable") and (others or "default" not in _loaded_types(conf))


def refuse_unsupported(conf: BrokerConf, *, dledger: bool, rocksdb: bool = False) -> None:
    """Say no to what changes the files and isn't derived, before anything is read.

    ``dledger`` and ``rocksdb`` say what the caller can do with: a log that DLedger writes, queues in RocksDB.
    """
    if conf.switch("enableDLegerCommitLog") and not dledger:
        raise UnsupportedError(
            _where(conf, "enableDLegerCommitLog")
            + "enableDLegerCommitLog asks for a commit log that DLedger writes; this command doesn't read it",
            path=conf.path,
            found="enableDLegerCommitLog=true",
            next_step="rebuild, check and query can do it (docs/formats/dledger.md); what a start would cut "
            "and what is committed is the group's to decide.",
        )
    # In every release: CommitLog.confirmOffset begins at -1, is moved from outside, and bounds what
    # ReputMessageService.doReput and recoverAbnormally dispatch (4.9.7, 5.3.3).
    if conf.switch("duplicationEnable"):
        raise _unsupported(
            conf,
            "duplicationEnable",
            "queues that go no further than the broker's confirmOffset",
            "The log doesn't say where that is. For all that the log holds, confirmed or not, set "
            "duplicationEnable=false in a copy of the file; what a start would do can't be told then either.",
        )
    if in_rocksdb(conf) and conf.switch("rocksdbCQSelectiveDoubleWriteEnable"):
        raise _unsupported(
            conf,
            "rocksdbCQSelectiveDoubleWriteEnable",
            "some topics' queues in RocksDB as well",
            "Which topics these are isn't in the log. Set rocksdbCQDoubleWriteEnable=false in a copy of the "
            "file to get all queues in files.",
        )
    if rocksdb:
        return
    if (conf.text("storeType") or "").lower() == "defaultrocksdb":
        raise _not_known(conf, "storeType", "consume queues in RocksDB")
    if in_rocksdb_alone(conf):
        raise _not_known(
            conf,
            "combineCQLoadingCQTypes",
            "consume queues in RocksDB alone",
        )
    if in_rocksdb(conf) and conf.switch("combineCQUseRocksdbForLmq") and conf.switch("enableMultiDispatch"):
        raise _not_known(
            conf,
            "combineCQUseRocksdbForLmq",
            "light message queues in RocksDB",
        )


def refuse_rocksdb(root: Path, conf: BrokerConf, queues: str | None) -> None:
    """Say no to a store whose queues are in RocksDB, though broker.conf doesn't say so.

    ``queues`` is the directory where it has them; None where it has none in RocksDB.

    Source: ``RocksDBConsumeQueueStore`` (rocketmq-all-5.3.3; in 5.5.0 it asks for this file at both places).
    """
    if queues is None and conf.switch("rocksdbCQDoubleWriteEnable"):
        return  # combineCQLoadingCQTypes has files alone, and a broker doesn't look
    for name in (names.CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB):
        if name == queues:
            continue
        mark = root / name / "CURRENT"
        if _is_file(mark):
            raise UnsupportedError(
                f"this store's consume queues are in RocksDB in {name}/, though broker.conf doesn't say so",
                path=mark.parent,
                expected=(
                    "consume queue files alone, as with storeType=default"
                    if queues is None
                    else f"queues in {queues}/ alone: a broker doesn't start with both"
                ),
                found=_of_rocksdb(mark.parent),
                next_step="If the broker keeps its queues in RocksDB, give its own broker.conf "
                "(storeType=defaultRocksDB, or rocksdbCQDoubleWriteEnable=true where it keeps files, too). "
                f"If it doesn't, an earlier storeType has left this: move {_FILES} of {mark.parent} away",
            )


def _of_rocksdb(directory: Path) -> str:
    """What of RocksDB lies there, in words."""
    try:
        found = [path.name for path in directory.iterdir()]
    except OSError:
        return "CURRENT"
    tables = sum(name.endswith(".sst") for name in found)
    manifest = next((name for name in sorted(found) if name.startswith("MANIFEST-")), "no MANIFEST")
    return f"CURRENT, {manifest} and {tables:,} *.sst"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _not_known(conf: BrokerConf, key: str, what: str) -> UnsupportedError:
    entry = conf.entry(key)
    return UnsupportedError(
        f"{_where(conf, key)}{key} asks for {what}, which this command doesn't know",
        path=conf.path,
        found=None if entry is None else f"{entry.key}={entry.value}",
        next_step="docs/formats/rocksdb.md says which commands do",
    )


def _unsupported(conf: BrokerConf, key: str, what: str, next_step: str) -> UnsupportedError:
    entry = conf.entry(key)
    return UnsupportedError(
        f"{_where(conf, key)}{key} asks for {what}, which reput doesn't build",
        path=conf.path,
        found=None if entry is None else f"{entry.key}={entry.value}",
        next_step=next_step,
    )


def _where(conf: BrokerConf, key: str) -> str:
    entry = conf.entry(key)
    return "" if entry is None else f"line {entry.line}: "
