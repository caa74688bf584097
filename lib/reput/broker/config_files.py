"""The broker's own files below ``config/``, as far as they decide whether it starts.

Source: ``ConfigManager.load``, ``BrokerController`` (rocketmq-all-4.9.7, 5.3.3): the backup of a file that
can't be read, is missing or empty is tried. When the backup can't be read either, the broker doesn't start; a
missing or empty one is no trouble. Of a RocksDB there is no backup: a broker whose database doesn't open, or
holds what isn't its own, doesn't start.

A start doesn't mind missing files, and begins with nothing. A broker that has taken a message has written its
topics when it made the first one (``TopicConfigManager``); committed offsets and its place in delayed
messages 10 s after its start, whether or not there are any (``BrokerController``, ``ScheduleMessageService``;
a slave has them from its master, ``SlaveSynchronize``); databases when it opened them. It writes groups only
when there are any: that file alone may be missing. No file is ever empty: ``MixAll.string2File`` writes
beside it, and renames.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.config.kept import FILES, ConfigPlace, Form, Kind, kept, parse, step_without
from reput.config.settings import StoreSettings
from reput.errors import Problem, SettingsError
from reput.format import names
from reput.format.rocksdbconfig import SEPARATE, SINGLE, V2
from reput.rocksdb import is_database
from reput.store.reading import DEVICE, FIFO, read_file, unreadable

#: Of settings that a broker must have had.
MISSING_CONFIG = "missing-config"
#: Committed offsets where ``enableLmq`` is set, in place of consumerOffset.json.
_LMQ_OFFSETS = "lmqConsumerOffset.json"
#: What it loads besides, from 4.1 and from 5.0 on; only SQL92, static topics and ordered pops write it.
_FILTERS, _OF_5 = "consumerFilter.json", ("topicQueueMapping.json", "consumerOrderInfo.json")
_MAPPINGS = "topicQueueMappingInfoMap"
#: Of a broken file with nothing in its ``.bak``.
LOST_CONFIG = "lost-config"
_NO_BACKUP = "there is no .bak with anything in it: the broker starts"
_WITHOUT = {
    "topics.json": "without its topics: consumers get nothing of them",
    "consumerOffset.json": "without committed offsets: consumers miss messages, or get them again",
    "subscriptionGroup.json": "without its subscription groups and their settings",
    "delayOffset.json": "without its place in delayed messages: all in their queues are delivered again",
    _FILTERS: "without the conditions of SQL92 consumers, which tell them again",
    "topicQueueMapping.json": "without the mapping of its static topics: offsets there mean other messages",
    "consumerOrderInfo.json": "without what ordered pops have taken: consumers may get it again",
}

_COPY = (
    "Before the broker starts, copy what is missing of config/ from a backup of it or from its slave. Other "
    "brokers of the cluster have the same topics and groups, but not its offsets. If nobody has it, "
)
_SET_OFFSETS = "and set each group's offset by time."
#: Nothing stands in for a database that isn't there, as a file of nothing does.
_GO_ON = "start the broker all the same, let a guard skip its look once, "
_WITHOUT_ALL = (
    "without its settings: groups have no offsets, and begin where consumeFromWhere says; topics are unknown "
    "until they are created again; delayed messages in their queues are all delivered again"
)
#: Of a database that holds all three.
_WITHOUT_ONE = "without its topics, groups and committed offsets"
_NOT_IMPORTED = "which a start doesn't take over: its counter is 0"
#: Written when the first group is.
_MAY_BE_UNWRITTEN = "subscriptionGroup.json"


@dataclass(frozen=True, slots=True)
class Missing:
    """Settings that aren't there."""

    path: Path  # the file, the database, or ``config/`` where nothing is left of them
    found: str  # what is there instead
    without: str  # what a start does then, "without …"
    is_sure: bool = True  # no other form of them is there
    is_empty: bool = False  # a file without a byte is, as no broker writes one
    files: str = ""  # that a file of nothing takes the places of, for people; none of a database


def config_problems(settings: StoreSettings) -> Iterator[Problem]:
    """Files that keep the broker from starting, and those that it reads from their backup."""
    place = settings.config
    in_files = [name for name in FILES if place.form is Form.FILES or place.file_kind(name) is None]
    in_files += [_FILTERS] if settings.dialect.versions != ("4.0.0",) else []
    in_files += _OF_5 if settings.dialect.recovery.switches_queue_types else ()
    for kind in Kind if place.form is not Form.FILES else ():
        try:
            kept(place, kind)
        except SettingsError as error:
            yield Problem(
                kind="broken-config",
                path=error.path or str(place.where(kind)),
                expected=error.expected or "what a broker writes",
                found=error.found or error.problem,
                outcome=f"{error.problem}: the broker doesn't start",
                next_step=error.next_step or "",
                stops=True,
            )
    for name in in_files:
        path = settings.root / names.CONFIG / name
        backup = path.with_name(name + ".bak")
        is_there, broken = _look(path)
        if is_there and broken is None:
            continue
        if broken == FIFO:
            yield _waits(path)
            continue
        spare_is_there, spare_broken = _look(backup)
        if broken is None and spare_broken is None:
            # A broker that is killed while it writes one may leave the .bak alone, but no empty file.
            if not (spare_is_there and path.exists()):
                continue
            broken = "an empty file"
        if spare_broken == FIFO:
            yield _waits(backup)
            continue
        gone = not spare_is_there and spare_broken is None
        yield Problem(
            kind=LOST_CONFIG if gone and name != _FILTERS else "broken-config",
            path=str(backup if broken is None else path),
            expected="a JSON object",
            found=broken or spare_broken or "",
            outcome=f"{_NO_BACKUP} {_WITHOUT[name]}" if gone else _outcome(name, broken, spare_broken),
            next_step=step_without(path),
            stops=spare_broken is not None,
        )


def _waits(path: Path) -> Problem:
    """``FileInputStream`` opens it, and waits for somebody who writes."""
    return Problem(
        kind="broken-config",
        path=str(path),
        expected="a JSON object",
        found=FIFO,
        outcome="the broker waits for ever for what comes out of it, and doesn't finish its start",
        next_step="Move it elsewhere, and bring the file back from a copy.",
        stops=True,
    )


def missing_config(settings: StoreSettings) -> list[Missing]:
    """What isn't there of what each broker has written that has taken a message; right for a new one."""
    directory, place = settings.root / names.CONFIG, settings.config
    gone: list[Missing] = []
    left = others = any(is_database(directory / name) for name in _other_databases(place))
    for name in FILES:
        kind = None if place.form is Form.FILES else place.file_kind(name)
        path = directory / name if kind is None else place.database(kind)
        spare = path.with_name(name + ".bak")
        shared = kind is not None and place.form is not Form.SEPARATE
        without = _WITHOUT_ONE if shared else _WITHOUT[name]
        written = any(map(_is_written, (directory / name, spare))) or _is_lmq(directory, name)
        if (written and kind is None) or (kind is not None and is_database(path)):
            left = True
        elif written:
            left = True
            if kind not in place.imports:
                gone.append(
                    Missing(path, "JSON files alone, which a start doesn't read", without, is_sure=not others)
                )
            elif not _is_imported(place, kind):
                found = f"{name} alone, {_NOT_IMPORTED}"
                gone.append(Missing(place.file(kind), found, _WITHOUT[name], is_sure=not others))
        elif kind is None and (path.exists() or spare.exists()):
            gone.append(
                Missing(path, "an empty file", without, is_sure=not others, is_empty=True, files=name)
            )
        elif kind is not None or name != _MAY_BE_UNWRITTEN:
            files = name if kind is None else ""
            gone.append(Missing(path, "nothing", without, is_sure=not others, files=files))
    if left:
        return list({one.path: one for one in gone}.values())
    all_files = ", ".join(FILES) if place.form is Form.FILES else ""
    is_empty = any(one.is_empty for one in gone)
    found = "empty files alone" if is_empty else "none" if directory.is_dir() else "no such directory"
    return [Missing(directory, found, _WITHOUT_ALL, is_empty=is_empty, files=all_files)]


def _is_imported(place: ConfigPlace, kind: Kind) -> bool:
    """Whether a start takes over what the JSON file says, in place of a database that isn't there."""
    try:
        return kept(place, kind) is not None
    except SettingsError:
        return True  # as is said of the file


def missing_config_problem(missing: Missing) -> Problem:
    """Settings that were there once, in a store of a broker that has taken messages."""
    go_on = f"write {{}} into {missing.files}; start the broker, " if missing.files else _GO_ON
    return Problem(
        kind=MISSING_CONFIG,
        path=str(missing.path),
        expected="settings, for a broker has taken the log's messages",
        found=missing.found,
        outcome=f"the broker starts {missing.without}",
        next_step=_COPY + go_on + _SET_OFFSETS,
    )


def _other_databases(place: ConfigPlace) -> set[str]:
    """Databases of settings in forms that aren't in force."""
    used = set() if place.form is Form.FILES else {place.database(kind).name for kind in Kind}
    return {*SEPARATE.values(), SINGLE, V2} - used


def _is_lmq(directory: Path, name: str) -> bool:
    """Whether committed offsets are where ``enableLmq`` has them."""
    files = (directory / f"{_LMQ_OFFSETS}{end}" for end in ("", ".bak"))
    return name == "consumerOffset.json" and any(map(_is_written, files))


def _is_written(path: Path) -> bool:
    is_there, broken = _look(path)
    return is_there or broken is not None


def _outcome(name: str, broken: str | None, spare_broken: str | None) -> str:
    if spare_broken is None:
        return "the broker takes its .bak, which may be older"
    if broken is None:
        return f"there is nothing in {name}, and the broker doesn't start"
    return "its .bak can't be read either, and the broker doesn't start"


def _look(path: Path) -> tuple[bool, str | None]:
    """Whether a file holds anything, and why it can't be read."""
    try:
        data = read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return False, None  # File.exists() says no
    except OSError as error:
        if error.errno == errno.ELOOP or error.strerror == DEVICE:
            return False, None  # the same, or File.length() is 0
        if isinstance(error, PermissionError):  # the broker's user may read it: nothing is known of it
            raise unreadable("this file of config/", path, error) from error
        return True, error.strerror
    if not data:
        return False, None
    try:
        found = parse(data)
    except (ValueError, RecursionError) as error:
        return True, str(error)
    if not isinstance(found, dict):
        return True, type(found).__name__
    # TopicQueueMappingManager.decode (rocketmq-all-5.3.3) takes it as it comes; other tables are never null.
    needs = _MAPPINGS if path.name.startswith(_OF_5[0]) else None
    return True, None if needs is None or isinstance(found.get(needs), dict) else f"no {needs}"
