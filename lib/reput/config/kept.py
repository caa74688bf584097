"""Topics, groups and committed offsets as a broker keeps them: in which form, and what it says.

* *Files*: ``topics.json`` and the others.
* *Separate*: a database each, where ``storeType=defaultRocksDB``; from 5.1.4 on. From 5.3.2 on a start
  imports a JSON file with a higher counter, in 5.3.1 where ``transfer…JsonToRocksdb`` says so.
* *Single*: one database, where ``useSingleRocksDBForAllConfigs`` asks for it, too; from 5.4 on. A start
  imports a JSON file with a higher counter, and then a separate database with a higher one.
* *V2*: where ``configManagerVersion=v2``, whatever storeType says; from 5.3.2 on. It imports nothing.

What was imported is left lying, and is older than the database from then on. Of topics and groups, what is
imported is put over what is there; of offsets, a JSON file takes the place of all.

Source: ``BrokerController``, ``RocksDBTopicConfigManager``, ``RocksDBSubscriptionGroupManager``,
``RocksDBConsumerOffsetManager``, ``TopicConfigManagerV2`` (rocketmq-all-5.1.4, 5.2.0, 5.3.0 to 5.3.3; 5.5.0
by its bytecode).
"""

from __future__ import annotations

import errno
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from reput.config.broker_conf import BrokerConf
from reput.errors import ReputError, SettingsError, StoreError, UnsupportedError
from reput.format import names, rocksdbconfig
from reput.format.rocksdbconfig import DataVersion, Table
from reput.newer_python import StrEnum
from reput.rocksdb import DEFAULT, Database, is_database, opened, stamp
from reput.store.listing import names_seen, nearest_queue, topics_seen
from reput.store.lock import is_broker_running
from reput.store.reading import read_file, step_to_read

_Said = TypeVar("_Said")
_Stamp = tuple[tuple[int, int, int] | None, ...]

_TRIES = 10
_WRITING_SECONDS = 0.02


class Rereading(Generic[_Said]):
    """Reads a file again when it has changed, or the ``.bak`` beside it has that stands in for it."""

    def __init__(self, path: Path, read: Callable[[], _Said]) -> None:
        self._paths = (path, path.with_name(path.name + ".bak"))
        self._read = read
        self._stamps: _Stamp | None = None
        self._said: _Said

    def now(self) -> _Said:
        """What is said now."""
        for tries_left in reversed(range(_TRIES)):
            stamps = self._look()
            if stamps == self._stamps:
                break
            try:
                said = self._read()
            except SettingsError:
                # A broker writes it in place, and the copy beside it just before: both may be half there.
                if not tries_left:
                    raise
                time.sleep(_WRITING_SECONDS)
                continue
            self._said = said
            if stamps == self._look():
                self._stamps = stamps
                break
        return self._said

    def _look(self) -> _Stamp:
        return tuple(map(stamp_of, self._paths))


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """By what a changed file is told; None while there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


# fastjson writes whole numbers as keys of a map without quotes (``{0:5,1:7}``), takes control characters
# inside strings, and Java puts U+FFFD in the place of what isn't UTF-8 (``ConfigManager``,
# ``MixAll.file2String``; rocketmq-all-4.9.7, 5.3.3, and 5.5.0, which has fastjson2, by running it).

T = TypeVar("T")

# A string is passed over as a whole: what looks like a key in it is none.
_STRING_OR_KEY = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|([{,]\s*)(-?\d+)(?=\s*:)', re.ASCII | re.DOTALL)


def parse(data: bytes) -> object:
    """The document in a file; ValueError, or RecursionError where it is too deep, if it is none."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return json.loads(_STRING_OR_KEY.sub(_quoted, text), strict=False)


def _quoted(found: re.Match[str]) -> str:
    return found[0] if found[2] is None else f'{found[1]}"{found[2]}"'


def of_either(
    path: Path,
    what: str,
    take: Callable[[bytes, Path], T],
    absent: tuple[type[OSError], ...] = (FileNotFoundError,),
) -> T | None:
    """What a file says, or the ``.bak`` beside it (``ConfigManager.load``); None when neither holds a byte.

    Raises SettingsError where neither can be read, or ``take`` refuses, and at least one is there; by the
    errors ``absent`` there is no file. ``what`` is in it, for people.
    """
    broken: SettingsError | None = None
    for one in (path, path.with_name(path.name + ".bak")):
        try:
            data = read_file(one)
            if data:
                return take(data, one)
        except absent:
            continue
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                continue  # File.exists() says no
            found = SettingsError(
                f"this file of {what} can't be read",
                path=one,
                found=error.strerror,
                next_step=step_to_read(error),
            )
            broken = broken or found
        except SettingsError as error:
            broken = broken or error
    if broken is not None:
        raise broken
    return None


_T = TypeVar("_T")

_NONE = DataVersion(0)
_NEXT_STEP = "Bring the whole directory back from a copy, or move it away to go on without it."
#: What a broker loads before or after its store, the same in 4.9.7 and 5.3.3, and has written once it runs.
FILES = ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json")


def step_without(path: Path) -> str:
    """What to do about a broken file of settings. A broker takes ``{}`` for one with nothing in it."""
    name = path.name.removesuffix(".bak")
    without = f"move it and its .bak away, and write {{}} into {name}"
    step = "Bring the file back from a copy"
    if name in (_FILES[Kind.TOPICS], _FILES[Kind.GROUPS]):
        return f"{step}, or from another broker of the cluster; without either, {without}."
    if name in FILES:
        return f"{step}; without one, {without}."
    return f"{step}, or move it and its .bak away to go on without them."


class Kind(StrEnum):
    """What is kept."""

    TOPICS = "topics"
    GROUPS = "groups"
    OFFSETS = "offsets"


class Form(StrEnum):
    """How; the module's table says when."""

    FILES = "files"
    SEPARATE = "separate"
    SINGLE = "single"
    V2 = "v2"


_FILES = {
    Kind.TOPICS: "topics.json",
    Kind.GROUPS: "subscriptionGroup.json",
    Kind.OFFSETS: "consumerOffset.json",
}
#: The table of each file.
TABLES = {
    Kind.TOPICS: "topicConfigTable",
    Kind.GROUPS: "subscriptionGroupTable",
    Kind.OFFSETS: "offsetTable",
}
_V2 = {Kind.TOPICS: Table.TOPICS, Kind.GROUPS: Table.GROUPS, Kind.OFFSETS: Table.OFFSETS}
#: 5.3.1 MessageStoreConfig; gone in 5.3.2, which always imports.
_SWITCHES = {
    Kind.TOPICS: "transferMetadataJsonToRocksdb",
    Kind.GROUPS: "transferMetadataJsonToRocksdb",
    Kind.OFFSETS: "transferOffsetJsonToRocksdb",
}


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """A store's ``config/``, and the form that is in force there."""

    directory: Path  # ``config/``
    form: Form = Form.FILES  # which
    imports: frozenset[Kind] = frozenset()  # the kinds of which a JSON file with a higher counter is imported

    def file(self, kind: Kind) -> Path:
        """The JSON file of a kind; it may be missing."""
        return self.directory / _FILES[kind]

    def file_kind(self, name: str) -> Kind | None:
        """What a JSON file's name stands for; None for those that are kept in no other form."""
        return next((kind for kind, file in _FILES.items() if file == name), None)

    def database(self, kind: Kind, form: Form | None = None) -> Path:
        """The database of a kind; it may be missing. Of files, the separate one that may have been left."""
        match form or self.form:
            case Form.V2:
                return self.directory / rocksdbconfig.V2
            case Form.SINGLE:
                return self.directory / rocksdbconfig.SINGLE
            case _:
                return self.directory / rocksdbconfig.SEPARATE[kind]

    def where(self, kind: Kind) -> Path:
        """What is read of a kind before anything else."""
        return self.file(kind) if self.form is Form.FILES else self.database(kind)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a broker would start with."""

    #: the topics and groups with their JSON objects by name; offsets as ``{queueId: offset}`` by
    #: ``TOPIC@GROUP``
    entries: Mapping[str, object]
    path: Path  # the database, or the file that was taken instead
    version: DataVersion | None  # how new they are; None where the database has none (before 5.3.1)
    said: tuple[str, ...] = ()  # what else lies there, and which was taken, with both counters; one a line
    #: offsets that were pulled, as ``entries``; v2 alone keeps them
    pulled: Mapping[str, object] = field(default_factory=dict)


def kept(place: ConfigPlace, kind: Kind) -> Kept | None:
    """What RocksDB has of a kind, and a JSON file that a start would import; None where neither is there."""
    stamps = tuple(stamp(place.database(kind, form)) for form in (place.form, Form.SEPARATE))
    return _kept(place, kind, (*stamps, stamp_of(place.file(kind))))


@lru_cache(maxsize=8)
def _kept(place: ConfigPlace, kind: Kind, _stamps: object) -> Kept | None:
    found = _stored(place, kind, place.form)
    if place.form is Form.V2:
        return found
    if kind in place.imports or found is not None:
        found = _with_file(place, kind, found)
    if place.form is Form.SINGLE:
        found = _with_separate(place, kind, found)
    return found


def _stored(place: ConfigPlace, kind: Kind, form: Form) -> Kept | None:
    """What a database has; None without one."""
    path = place.database(kind, form)
    if not is_database(path):
        return None
    try:
        with opened(path) as db:
            if form is Form.V2:
                return _read_v2(db, kind)
            if form is Form.SEPARATE:
                return _read_json(db, kind, DEFAULT, rocksdbconfig.VERSION_FAMILY)
            family = rocksdbconfig.SINGLE_FAMILIES[kind]
            return _read_json(db, kind, family, f"{family}{rocksdbconfig.VERSION_SUFFIX}")
    except StoreError as error:  # torn
        raise SettingsError(
            error.problem,
            path=error.path,
            offset=error.offset,
            expected=error.expected,
            found=error.found,
            next_step=_NEXT_STEP,
        ) from error


def _read_json(db: Database, kind: Kind, family: str, versions: str) -> Kept:
    version: DataVersion | None = None
    if versions in db.families:
        data = db.get(versions, rocksdbconfig.VERSION_KEY)
        version = _NONE if not data else _version(_parsed(data, db.path, rocksdbconfig.VERSION_KEY), db.path)
    entries: dict[str, object] = {}
    if family in db.families:
        for keys, values in db.blocks(family):
            for key, value in zip(keys, values, strict=True):
                found = _parsed(value, db.path, key)
                if kind is Kind.OFFSETS:
                    found = _object(found, db.path, key).get("offsetTable") or {}
                entries[key.decode("utf-8", "replace")] = found
    return Kept(entries, db.path, version)


def _read_v2(db: Database, kind: Kind) -> Kept:
    table = _V2[kind]
    data = db.get(DEFAULT, rocksdbconfig.version_key(table))
    version = _NONE if data is None else _told(rocksdbconfig.parse_version, data, db.path, b"data_version")
    if kind is Kind.OFFSETS:
        pulled = _queues(db, Table.PULL_OFFSETS)
        return Kept(_queues(db, table), db.path, version, pulled=pulled)
    entries: dict[str, object] = {}
    for keys, values in db.blocks(DEFAULT, *rocksdbconfig.table_range(table)):
        for key, value in zip(keys, values, strict=True):
            name = _told(rocksdbconfig.parse_name, key, db.path, key)
            text = _told(rocksdbconfig.parse_json, value, db.path, key)
            entries[name.decode("utf-8", "replace")] = _parsed(text, db.path, key)
    return Kept(entries, db.path, version)


def _queues(db: Database, table: Table) -> dict[str, object]:
    found: dict[str, dict[str, int]] = {}
    for keys, values in db.blocks(DEFAULT, *rocksdbconfig.table_range(table)):
        for key, value in zip(keys, values, strict=True):
            of = _told(rocksdbconfig.parse_queue, key, db.path, key)
            name = f"{of.topic.decode('utf-8', 'replace')}@{of.group.decode('utf-8', 'replace')}"
            offset = _told(rocksdbconfig.parse_offset, value, db.path, key)
            found.setdefault(name, {})[str(of.queue_id)] = offset
    return dict(found)


def document_of(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file of ``config/``; None without a file, or an empty one.

    Raises SettingsError where it can't be read, or holds something else.
    """
    try:
        data = read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SettingsError(
            "this file can't be read", path=path, found=error.strerror, next_step=step_to_read(error)
        ) from error
    return dict(_object(_parsed(data, path, None), path, None)) if data.strip() else None


def _with_file(place: ConfigPlace, kind: Kind, found: Kept | None) -> Kept | None:
    """What a start makes of a JSON file; it looks for the counter in the file itself, never in its .bak."""
    path = place.file(kind)
    document = document_of(path)
    if document is None:
        return found
    version = _version(document.get("dataVersion") or {}, path)
    if kind not in place.imports:
        return found and _saying(found, f"{_name(path)} is stale: this release never reads it")
    entries = _object(document.get(TABLES[kind]) or {}, path, None)
    return _newer(found, Kept(entries, path, version), over=kind is not Kind.OFFSETS)


def _with_separate(place: ConfigPlace, kind: Kind, found: Kept | None) -> Kept | None:
    """What a start of the single form makes of a separate database."""
    other = _stored(place, kind, Form.SEPARATE)
    return found if other is None else _newer(found, other, over=True)


def _newer(found: Kept | None, other: Kept, *, over: bool) -> Kept | None:
    """What a start makes of something else that lies there: the higher counter wins.

    ``other`` may be imported ``over`` the rest; else it takes the place of all.
    """
    here = None if found is None else found.version
    newer = (other.version or _NONE).counter > (here or _NONE).counter
    if found is None:
        return other if newer else None
    counters = f"counter {_counter(other.version)}, and {_name(found.path)} has {_counter(here)}"
    if not newer:
        return _saying(found, f"{_name(other.path)} is stale: {counters}")
    entries = {**found.entries, **other.entries} if over else other.entries
    said = f"{_name(other.path)} is taken, as a start imports it: {counters}"
    return Kept(entries, other.path, other.version, (*found.said, said))


def _saying(found: Kept, line: str) -> Kept:
    return Kept(found.entries, found.path, found.version, (*found.said, line), found.pulled)


@dataclass(frozen=True, slots=True)
class Decided:
    """Which form is in force."""

    place: ConfigPlace
    said: tuple[str, ...] = ()  # why, where it isn't files alone; one a line


def decide(root: Path, conf: BrokerConf) -> Decided:
    """Which form a start with this broker.conf reads; without one, the newest of those that are there.

    It never raises for what lies in the store: who reads it will.
    """
    config = root / names.CONFIG
    there = [form for form in (Form.V2, Form.SINGLE, Form.SEPARATE) if _is_there(config, form)]
    given = conf.path is not None
    form, why = _by_settings(conf) if given else (_newest(config, there), "the newest of what is there")
    imports = _imports(conf) if form in (Form.SEPARATE, Form.SINGLE) else frozenset()
    place = ConfigPlace(config, form, imports)
    if form is Form.FILES and not there:
        return Decided(place)
    said = [f"topics, groups and offsets: {form} in config/, {why}"]
    if form is Form.FILES:
        said[0] = f"topics, groups and offsets: the JSON files in config/, {why}"
    elif form not in there:
        said.append(f"{_name(place.database(Kind.TOPICS))} isn't there")
    for kind in Kind:
        said += _said(place, kind)
    said += _others(config, form, there, given=given)
    if form is not Form.FILES and is_broker_running(root):
        said.append("a broker has them open: what it hasn't flushed yet is missing")
    return Decided(place, tuple(dict.fromkeys(said)))


def _by_settings(conf: BrokerConf) -> tuple[Form, str]:
    if conf.text("configManagerVersion") == "v2":
        return Form.V2, "configManagerVersion=v2"
    # 5.1.4 knows storeType for these alone, and 5.1.3 not at all.
    entry = conf.entries.get("storeType") if conf.rules.settings_in_rocksdb else None
    if entry is None or entry.value.strip().lower() != "defaultrocksdb":
        return Form.FILES, "as storeType says"
    if conf.switch("useSingleRocksDBForAllConfigs"):
        return Form.SINGLE, "storeType=defaultRocksDB and useSingleRocksDBForAllConfigs=true"
    return Form.SEPARATE, "storeType=defaultRocksDB"


def _imports(conf: BrokerConf) -> frozenset[Kind]:
    if conf.rules.imports_json_settings:
        return frozenset(Kind)
    return frozenset(kind for kind in Kind if conf.switch(_SWITCHES[kind]))


def _newest(config: Path, there: list[Form]) -> Form:
    """The form that was changed last; a database comes before a file of the same age."""
    if not there:
        return Form.FILES
    times = {form: _changed(config, form) for form in there}
    files = max((_file_changed(config / name) for name in _FILES.values()), default=0)
    newest = max(there, key=lambda form: times[form])
    return Form.FILES if files > times[newest] else newest


def _others(config: Path, form: Form, there: list[Form], *, given: bool) -> Iterator[str]:
    """What speaks against the form that broker.conf asks for: another one that was changed later."""
    if not given:
        return
    files = max(_file_changed(config / name) for name in _FILES.values())
    used = files if form is Form.FILES else _changed(config, form)
    for other in there:
        if other is form or (changed := _changed(config, other)) <= used:
            continue
        path = ConfigPlace(config, other).database(Kind.TOPICS)
        yield f"BUT {_name(path)} was changed later: at {changed} ms, and what is read at {used} ms"


def _said(place: ConfigPlace, kind: Kind) -> tuple[str, ...]:
    try:
        found = None if place.form is Form.FILES else kept(place, kind)
    except ReputError as error:
        return (f"not looked at: {error}",) if isinstance(error, UnsupportedError) else ()
    return () if found is None else found.said


def _is_there(config: Path, form: Form) -> bool:
    return any(is_database(ConfigPlace(config, form).database(kind)) for kind in Kind)


def _changed(config: Path, form: Form) -> int:
    """When a form was changed last, ms since 1970; by its versions, else by its files' times."""
    place, times = ConfigPlace(config, form), [0]
    for kind in Kind:
        path = place.database(kind)
        try:
            found = _stored(place, kind, form)
            version = None if found is None else found.version
        except ReputError:
            version = None
        if version is not None and version.timestamp > 0:
            times.append(version.timestamp)
        elif is_database(path):
            times.append(max((file[3] // 1_000_000 for file in stamp(path)), default=0))  # type: ignore[index]
    return max(times)


def _file_changed(path: Path) -> int:
    """When a JSON file was changed last; by its version, else by its time."""
    try:
        document = document_of(path)
        version = None if document is None else _version(document.get("dataVersion") or {}, path)
        return 0 if version is None else version.timestamp or path.stat().st_mtime_ns // 1_000_000
    except (OSError, SettingsError):
        return 0


def _told(read: Callable[[bytes], _T], data: bytes, path: Path, key: bytes) -> _T:
    try:
        return read(data)
    except ValueError as error:
        raise _broken(path, key, "an entry as a broker writes it", str(error)) from error


def _parsed(data: bytes, path: Path, key: bytes | None) -> object:
    try:
        return parse(data)
    except (ValueError, RecursionError) as error:
        raise _broken(path, key, "JSON", str(error)) from error


def _object(value: object, path: Path, key: bytes | None) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _broken(path, key, "an object", type(value).__name__)
    return value


def _version(value: object, path: Path) -> DataVersion:
    found = _object(value, path, rocksdbconfig.VERSION_KEY)
    numbers = [found.get(name, 0) for name in ("counter", "timestamp", "stateVersion")]
    whole = [number for number in numbers if isinstance(number, int) and not isinstance(number, bool)]
    if len(whole) != len(numbers):
        raise _broken(path, rocksdbconfig.VERSION_KEY, "whole numbers for a version", repr(numbers)[:80])
    return DataVersion(*whole)


def _broken(path: Path, key: bytes | None, expected: str, found: str) -> SettingsError:
    if key is None:
        return SettingsError(
            "this file of settings is broken",
            path=path,
            expected=expected,
            found=found,
            next_step=step_without(path),
        )
    shown = key[:80].decode("utf-8", "replace") if key.isascii() else key[:80].hex(" ")
    return SettingsError(
        f"an entry of this RocksDB of settings is broken, {shown!r}",
        path=path,
        expected=expected,
        found=found,
        next_step=_NEXT_STEP,
    )


def _counter(version: DataVersion | None) -> str:
    return "none" if version is None else str(version.counter)


def _name(path: Path) -> str:
    return f"{names.CONFIG}/{path.name}"


# Topics: ``topics.json`` holds ``{"dataVersion": {…}, "topicConfigTable": {TOPIC: {…}, …}}``, written by
# fastjson (``TopicConfigManager.encode``); real ones of 4.9.7, 5.3.3 and 5.5.0 are plain JSON with quoted
# keys. From 5.0 on a topic has an ``attributes`` map; its keys carry no sign (``+queue.type`` is how an
# administrator asks for ``queue.type``, ``AttributeUtil.alterCurrentAttributes``). In RocksDB each topic has
# the same object.


def unknown_queues(
    root: Path, chosen: Iterable[tuple[str, int | None]], config: ConfigPlace | None = None
) -> dict[str, str | None]:
    """Those of the chosen queues that a store isn't seen to have, each with the nearest one that it has.

    Only the log tells whether there is one: its directory and its topic's entry may be lost. Of a store that
    shows no topic at all, nothing is said. A queue id of None stands for all queues of a topic; ``config``
    None for JSON files, or else nothing is said.
    """
    if config is None and _in_rocksdb(root):
        return {}
    configs: dict[str, TopicConfig] = {}
    with suppress(SettingsError):
        configs = topic_configs(config or ConfigPlace(root / names.CONFIG)) or {}
    places = [root / kind for kind in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)]
    there = {name for place in places for name in topics_seen(place)}
    if not there and not configs:
        return {}
    found = {}
    for topic, queue_id in sorted(chosen, key=str):
        known = topic in there or topic in configs
        if known and queue_id is not None and topic in configs:
            entry = configs[topic]
            most = max(entry.read_queues or 0, entry.write_queues or 0)
            known = queue_id < most or any(str(queue_id) in names_seen(place / topic) for place in places)
        if not known:
            named = topic if queue_id is None else f"{topic}:{queue_id}"
            found[named] = nearest_queue(root, topic, queue_id, [(name, None) for name in configs])
    return found


def _in_rocksdb(root: Path) -> bool:
    """Whether topics may be kept in RocksDB, of which settings decide."""
    config = ConfigPlace(root / names.CONFIG)
    return any(is_database(config.database(Kind.TOPICS, form)) for form in Form)


#: ``TopicAttributes.QUEUE_TYPE_ATTRIBUTE`` and the ``CQType`` whose queues are not consume queue files.
_QUEUE_TYPE = "queue.type"
PLAIN_TYPE, BATCH_TYPE = "SimpleCQ", "BatchCQ"


class TopicConfig(NamedTuple):
    """A topic's entry (``TopicConfig``): queues to read and to write, and what may be done (6: both)."""

    read_queues: int | None
    write_queues: int | None
    perm: int | None


def topic_configs(topics: Path | ConfigPlace) -> dict[str, TopicConfig] | None:
    """What the broker knows of each topic; None when there is no file to tell."""
    table = _table(topics)
    if table is None:
        return None

    def number(value: object) -> int | None:
        return value if isinstance(value, int) else None

    names = ("readQueueNums", "writeQueueNums", "perm")
    return {
        topic: TopicConfig(*(number(config.get(name)) for name in names)) for topic, config in table.items()
    }


def known_topics(topics: Path | ConfigPlace) -> set[str] | None:
    """Names of all topics of the broker; None when there is no file to tell.

    When ``config/topics.json`` is missing, empty or broken, the ``.bak`` beside it is read instead, as
    ``ConfigManager.load`` does. Raises SettingsError where neither can be read and one is there.
    """
    table = _table(topics)
    return None if table is None else set(table)


def batch_queue_topics(topics: Path | ConfigPlace) -> set[str]:
    """Names of the topics with batch consume queues (``QueueTypeUtils.isBatchCq``); empty without a file."""
    return {topic for topic, form in queue_types(topics).items() if form == BATCH_TYPE}


def queue_types(topics: Path | ConfigPlace) -> dict[str, object]:
    """``queue.type`` of the topics that have it (``QueueTypeUtils.getCQType``); empty without a file."""
    attributes = {topic: config.get("attributes") for topic, config in (_table(topics) or {}).items()}
    return {
        topic: found[_QUEUE_TYPE]
        for topic, found in attributes.items()
        if isinstance(found, dict) and _QUEUE_TYPE in found
    }


def write_queues(topics: Path | ConfigPlace) -> dict[str, int]:
    """How many queues of each topic producers may write to; empty without a file."""
    found = {topic: config.get("writeQueueNums") for topic, config in (_table(topics) or {}).items()}
    return {topic: number for topic, number in found.items() if isinstance(number, int)}


class TopicsNow:
    """What ``config/topics.json`` says at the moment: read again when the file has changed.

    A broker writes it before anybody can send to a new topic, so who looks after having found a message of a
    topic finds the topic, too. It is small enough to be pickled with a task.
    """

    def __init__(self, topics: Path | ConfigPlace) -> None:
        self._place = topics
        self._file = Rereading(_file(topics), self._read)

    def __reduce__(self) -> tuple[type[TopicsNow], tuple[Path | ConfigPlace]]:
        return TopicsNow, (self._place,)

    @property
    def known(self) -> frozenset[str] | None:
        """Names of all topics now; None when there is no file to tell."""
        return self._now()[0]

    @property
    def batch(self) -> frozenset[str]:
        """Names of the topics with batch consume queues now."""
        return self._now()[1]

    def _now(self) -> tuple[frozenset[str] | None, frozenset[str]]:
        # A database is read again by itself when it has changed.
        in_files = isinstance(self._place, Path) or self._place.form is Form.FILES
        return self._file.now() if in_files else self._read()

    def _read(self) -> tuple[frozenset[str] | None, frozenset[str]]:
        known, batch = known_topics(self._place), batch_queue_topics(self._place)
        return None if known is None else frozenset(known), frozenset(batch)


def _table(topics: Path | ConfigPlace) -> Mapping[str, Mapping[str, object]] | None:
    """The topicConfigTable of RocksDB, or of the file or its backup; None when nothing holds a byte."""
    if isinstance(topics, ConfigPlace) and topics.form is not Form.FILES:
        found = kept(topics, Kind.TOPICS)
        return None if found is None else _objects(found.entries, found.path)
    return of_either(_file(topics), "topics", _parse)


def _parse(data: bytes, path: Path) -> Mapping[str, Mapping[str, object]]:
    try:
        document = parse(data)
    except (ValueError, RecursionError) as error:
        raise _broken_topics(path, "JSON", str(error)) from error
    if not isinstance(document, dict):
        raise _broken_topics(path, "an object", type(document).__name__)
    table = document.get("topicConfigTable", {})
    if not isinstance(table, dict):
        raise _broken_topics(path, "topicConfigTable to be an object", json.dumps(table)[:40])
    return _objects(table, path)


def _objects(table: Mapping[str, object], path: Path) -> Mapping[str, Mapping[str, object]]:
    found: dict[str, Mapping[str, object]] = {}
    for topic, config in table.items():
        if not isinstance(config, dict):
            raise _broken_topics(
                path, f"the settings of topic {topic} to be an object", json.dumps(config)[:40]
            )
        found[topic] = config
    return found


def _file(topics: Path | ConfigPlace) -> Path:
    return topics if isinstance(topics, Path) else topics.file(Kind.TOPICS)


def _broken_topics(path: Path, expected: str, found: str) -> SettingsError:
    return SettingsError(
        "this file of topics is broken",
        path=path,
        expected=expected,
        found=found,
        next_step=step_without(path),
    )
