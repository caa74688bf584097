"""Which releases can have written a store: from what only some of them write.

Each mark names the class that proves it (read at the tags; 5.4.0 and 5.5.0 in the bytecode of the released
jars), and was looked for in the stores that 4.9.7, 5.3.3 and 5.5.0 wrote (``tests/golden``). Topics count for
nothing: a producer may name one as it likes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import TypeVar

from reput.config.dialect import DIALECTS, Dialect
from reput.config.evidence import IndexEvidence, LogRecords
from reput.config.kept import parse
from reput.format import names
from reput.format.checkpoint import FIELDS, LENGTH, StoreCheckpoint
from reput.store.reading import reading

_T = TypeVar("_T")

_MOST_JSON = 32 << 20
_FIVE = "5.0"

#: What lies in the store itself, and the first dialect that writes it.
_DIRECTORIES = (
    ("timerwheel", _FIVE),  # 5.0.0 TimerMessageStore
    ("timerlog", _FIVE),
    (names.BATCH_CONSUME_QUEUE, _FIVE),  # 5.0.0 StorePathConfigHelper.getStorePathBatchConsumeQueue
    ("compaction", "5.1.0"),  # 5.1.0 CompactionStore
    ("rocksdbstore", "5.4"),  # 5.4.0 MessageRocksDBStorage
    ("consumequeue_rocksdb", "5.5"),  # 5.5.0 RocksDBConsumeQueueStore
)
#: What a broker keeps below config/ (``BrokerPathConfigHelper`` at the tags).
_CONFIG_FILES = (
    ("topicQueueMapping.json", _FIVE),
    ("consumerOrderInfo.json", _FIVE),
    ("messageRequestMode.json", _FIVE),
    ("timercheck", _FIVE),
    ("timermetrics", _FIVE),
    ("transactionMetrics", "5.2"),
    ("topics/CURRENT", "5.1"),  # 5.1.4 RocksDBTopicConfigManager
    ("metadata/CURRENT", "5.4"),  # 5.4.0 RocksDBTopicConfigManager
    ("rdb/CURRENT", "5.3"),  # 5.3.2 ConfigStorage
)
#: Fields of the checkpoint behind the first three longs (``StoreCheckpoint.flush``).
_FIELDS = (
    (3, "masterFlushedOffset", _FIVE),
    (4, "confirmPhyOffset", "5.1.1"),
    (5, "logicsPhysicalOffset", "5.5"),
)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that only some releases write."""

    first: int  # first, last: the first and the last dialect that writes it, by place in :data:`DIALECTS`
    last: int
    why: str  # what was found
    of_index: bool = False  # it is the index that says so

    @property
    def range(self) -> str:
        """These releases in words."""
        return _range(self.first, self.last)


@dataclass(frozen=True, slots=True)
class Release:
    """What a store shows of the release that wrote it."""

    marks: tuple[Mark, ...] = ()  # all that was found
    lacks_five: bool = False  # there is none of what every start of 5.x leaves, though a broker has run on it

    @property
    def first(self) -> int:
        """The oldest dialect that can have written all of it, by place in :data:`DIALECTS`."""
        return max((mark.first for mark in self.marks), default=0)

    @property
    def last(self) -> int:
        """The newest that can."""
        return min((mark.last for mark in self.marks), default=len(DIALECTS) - 1)

    @property
    def is_mixed(self) -> bool:
        """Whether no release can have written all of it: several have."""
        return self.first > self.last

    def allows(self, rules: Dialect) -> bool:
        """Whether nothing in the store speaks against these rules; of a mixed store, whether a mark fits."""
        place = DIALECTS.index(rules)
        if self.is_mixed:
            return any(mark.first <= place <= mark.last for mark in self.marks)
        return self.first <= place <= self.last

    @property
    def assumed(self) -> Dialect:
        """The rules to go by where no release is given: the newest that all marks allow.

        Of a mixed store the index decides, for that is where releases write different bytes; without one the
        newest mark.
        """
        of_index = [mark for mark in self.marks if mark.of_index]
        if self.is_mixed and of_index:
            return DIALECTS[min(mark.last for mark in of_index)]
        if self.is_mixed:
            return DIALECTS[self.first]
        if self.lacks_five and self.first < _place(_FIVE):
            return DIALECTS[min(self.last, _place(_FIVE) - 1)]
        return DIALECTS[self.last]

    @property
    def range(self) -> str:
        """The releases in words: ``5.4 or later``, ``4.9``, ``5.1.0 to 5.3``."""
        if self.is_mixed:
            return "several releases"
        return _range(self.first, self.last)

    @property
    def told(self) -> str:
        """What is assumed and why, in words."""
        rules = self.assumed
        if rules is DIALECTS[self.last] and self.marks:
            several = self.first < self.last and self.range != rules.name
            return f"{self}, {rules.name} assumed" if several else str(self)
        shown = f" ({self})" if self.marks else ""
        if self.lacks_five and self.first < _place(_FIVE):
            why = "for there is no abort.bak, which a start of 5.x leaves"
            return f"release not shown{shown}: {rules.name}, {why}"
        return f"release not shown: {rules.name}, the newest"

    def __str__(self) -> str:
        """``5.4 or later: the index has tags``."""
        if not self.marks:
            return "nothing in the store shows its release"
        if self.is_mixed:
            return "several releases wrote here: " + "; ".join(
                f"{mark.range}, for {mark.why}" for mark in self._deciding()
            )
        return f"{self.range}: {' and '.join(mark.why for mark in self._deciding())}"

    def _deciding(self) -> list[Mark]:
        """The marks that set the bounds: the first for each."""
        found = [next((mark for mark in self.marks if mark.first == self.first), None)]
        found += [next((mark for mark in self.marks if mark.last == self.last), None)]
        last = len(DIALECTS) - 1
        kept = [mark for mark in found if mark is not None and (mark.first > 0 or mark.last < last)]
        if len(kept) > 1 and not self.is_mixed:
            # A bound that bounds nothing isn't named.
            kept = [
                mark
                for mark in kept
                if (mark.first == self.first and self.first > 0)
                or (mark.last == self.last and self.last < last)
            ]
        return list(dict.fromkeys(kept))


def release(
    root: Path, index: IndexEvidence, log: LogRecords, *, is_maped: bool = False
) -> tuple[Release, list[str]]:
    """What a store shows, and what couldn't be read; never raises.

    ``is_maped``: broker.conf has the old spelling of a key, which counts where nothing newer is shown.
    """
    unread: list[str] = []
    marks = [*_of_index(index), *_of_checkpoint(root, log, unread), *_of_config(root, unread)]
    for name, first in _DIRECTORIES:
        if (found := _stat(root / name, unread)) is not None and S_ISDIR(found.st_mode):
            marks.append(_since(first, f"{name}/ is there"))
    abort = _stat(root / names.ABORT, unread)
    backup = _stat(root / f"{names.ABORT}.bak", unread)
    if backup is not None:
        # 5.0.0 DefaultMessageStore.createTempFile: MixAll.string2File keeps the empty file that it replaces.
        marks.append(_since(_FIVE, "abort.bak is there"))
    elif abort is not None and abort.st_size:
        marks.append(_since(_FIVE, "abort holds a process id"))
    if is_maped and all(mark.first <= _place("4.5.0") for mark in marks):
        marks.append(Mark(0, _place("4.5.0"), "broker.conf has a key mapedFileSize…"))
    has_run = _stat(root / names.CHECKPOINT, unread) is not None
    return Release(tuple(marks), lacks_five=has_run and backup is None and not unread), unread


def _of_index(index: IndexEvidence) -> list[Mark]:
    tags, marks = index.newest, []
    if index.counts_keys is not None:
        name, counts_keys = index.counts_keys
        what = f"hashSlotCount of index/{name} counts {'keys' if counts_keys else 'slots'}"
        marks.append(Mark(0, _place("4.7.0"), what, of_index=True) if counts_keys else _since("4.8", what))
    if tags is None:
        return marks
    if tags.v6_hosts:
        marks.append(_since("4.7.0", f"index/{tags.file} leads to hosts of 16 bytes"))
    if tags.long_topics:
        marks.append(_since("5.1.0", f"index/{tags.file} leads to records of version 2"))
    if not tags.has_tags:
        return [*marks, Mark(0, _place("5.4") - 1, "the index has no tags", of_index=True)]
    older = "" if index.oldest is None else ", though its older files have none"
    return [*marks, Mark(_place("5.4"), len(DIALECTS) - 1, f"the index has tags{older}", of_index=True)]


def _of_checkpoint(root: Path, log: LogRecords, unread: list[str]) -> list[Mark]:
    path = root / names.CHECKPOINT
    data = _bytes(path, LENGTH + 1, unread)
    if data is None or len(data) != LENGTH:
        return []
    fields = astuple(StoreCheckpoint.decode(data))
    if any(data[8 * FIELDS :]) or min(fields[:3]) < 0:
        return []  # no release leaves that: nothing in it is to be believed
    marks = []
    for place, name, first in _FIELDS:
        offset = fields[place]
        # logicsPhysicalOffset is where a message begins; a bit that has turned leads anywhere.
        leads = log.at(offset) is not None if name == "logicsPhysicalOffset" else offset <= log.end
        if offset > 0 and (leads or not log.begins <= offset):
            marks.append(_since(first, f"the checkpoint has a {name}"))
    return marks


def _of_config(root: Path, unread: list[str]) -> list[Mark]:
    directory = root / names.CONFIG
    marks = [
        _since(first, f"config/{name} is there")
        for name, first in _CONFIG_FILES
        if _stat(directory / name, unread) is not None
    ]
    delays = _object(directory / "delayOffset.json", unread)
    if delays is not None and isinstance(delays.get("offsetTable"), dict):
        # 5.0.0 DelayOffsetSerializeWrapper has a dataVersion, 4.9.8 hasn't; fastjson writes both fields.
        marks.append(_five_or_four("dataVersion" in delays, "config/delayOffset.json has", "a dataVersion"))
    table = (_object(directory / "topics.json", unread) or {}).get("topicConfigTable")
    if isinstance(table, dict) and table and all(isinstance(topic, dict) for topic in table.values()):
        # 5.0.0 TopicConfig.getAttributes, 4.9.8 has none; written for every topic, empty or not.
        has = any("attributes" in topic for topic in table.values())
        marks.append(_five_or_four(has, "topics in config/topics.json have", "attributes"))
    return marks


def _five_or_four(is_five: bool, what: str, thing: str) -> Mark:
    if is_five:
        return _since(_FIVE, f"{what} {thing}")
    return Mark(0, _place(_FIVE) - 1, f"{what} no {thing.removeprefix('a ')}")


def _since(name: str, why: str) -> Mark:
    return Mark(_place(name), len(DIALECTS) - 1, why)


def _place(name: str) -> int:
    return next(place for place, row in enumerate(DIALECTS) if row.name == name)


def _range(first: int, last: int) -> str:
    begin, end = _named(first, 0), _named(last, -1)
    if last == len(DIALECTS) - 1:
        return f"{begin} or later" if first else "any release"
    line = begin.split(".")[:2]
    if first == 0 and line == end.split(".")[:2]:
        return ".".join(line)
    if first == 0:
        return f"{end} or before"
    return end if begin == end else f"{begin} to {end}"


def _named(place: int, of_row: int) -> str:
    """A row by its first release or its last, where its name is that of another one."""
    row = DIALECTS[place]
    release = row.versions[of_row]
    return row.name if release.startswith(row.name) else release


def _stat(path: Path, unread: list[str]) -> os.stat_result | None:
    return _looked(path, path.stat, unread)


def _bytes(path: Path, most: int, unread: list[str]) -> bytes | None:
    """Up to so many bytes of a file; None if missing, or none that can be read."""

    def read() -> bytes:
        with reading(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most)

    return _looked(path, read, unread)


def _looked(path: Path, look: Callable[[], _T], unread: list[str]) -> _T | None:
    """What a look at a path gives; None if missing, or if that can't be told."""
    try:
        return look()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        unread.append(f"{path.name} can't be read: {getattr(error, 'strerror', None) or error}")
        return None


def _object(path: Path, unread: list[str]) -> dict[str, object] | None:
    data = _bytes(path, _MOST_JSON + 1, unread)
    if not data:
        return None
    if len(data) > _MOST_JSON:
        unread.append(f"config/{path.name} is too large to be looked at")
        return None
    try:
        found = parse(data)
    except (ValueError, RecursionError):
        unread.append(f"config/{path.name} is no JSON")
        return None
    return found if isinstance(found, dict) else None
