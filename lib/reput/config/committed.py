"""What consumer groups have committed, as a broker keeps it below ``config/``.

``consumerOffset.json`` holds ``{"offsetTable": {"TOPIC@GROUP": {QUEUEID: OFFSET, …}, …}}``; 5.5 adds
``pullOffsetTable`` of the same form (what was pulled, and not committed yet), which it doesn't read again.
Offsets that an administrator sets (``resetOffsetTable``, from 5.0 on) are only in memory, but also go into
``offsetTable`` at once. With ``enableLmq`` the file is ``lmqConsumerOffset.json``, which also has
``lmqOffsetTable``: ``{"TOPIC@GROUP": OFFSET}`` for groups with names that begin with ``%LMQ%``; their queue
id is 0.

Source: ``ConsumerOffsetManager``, ``LmqConsumerOffsetManager``, ``ConfigManager.load``,
``BrokerController``, ``BroadcastOffsetManager`` (rocketmq-all-4.9.7, 5.3.3); 5.5.0 by its bytecode and by
running it. Offsets in RocksDB: :mod:`reput.config.kept`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reput.config.kept import ConfigPlace, Form, Kind, kept, of_either, parse
from reput.config.settings import StoreSettings
from reput.errors import SettingsError, StoreError
from reput.format import commitlog, names

LMQ_PREFIX = commitlog.LMQ_PREFIX.decode()
FILE, LMQ_FILE = "consumerOffset.json", "lmqConsumerOffset.json"
_SEPARATOR = "@"
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_INT_MAX, _LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Committed:
    """What a group has committed for a queue."""

    topic: str  # topic, group, queue_id: the group and the queue
    group: str
    queue_id: int
    offset: int  # queue offset of the next message that it wants; a negative one counts as none
    #: queue offset after what it has pulled, if the broker writes that down (5.5); else None
    pulled: int | None = None


@dataclass(frozen=True, slots=True)
class Offsets:
    """What was read."""

    path: Path  # the file, or the database
    committed: tuple[Committed, ...]  # its entries, in its order
    #: by group the topics for which it has an entry, with offsets or without
    topics: Mapping[str, tuple[str, ...]]


def committed_offsets(settings: StoreSettings, file: Path | None = None) -> Offsets:
    """Read the committed offsets of a store, or those in ``file``.

    A file that is missing, empty or broken is read from the ``.bak`` beside it, as a broker does. StoreError
    where there is neither, SettingsError where one is broken.
    """
    config = settings.root / names.CONFIG
    if file is None and settings.config_form is not Form.FILES:
        return _in_rocksdb(settings.config)
    path = config / (LMQ_FILE if settings.enable_lmq else FILE) if file is None else file
    found = of_either(path, "committed offsets", _offsets, (FileNotFoundError, NotADirectoryError))
    if found is not None:
        return found
    other = config / (FILE if settings.enable_lmq else LMQ_FILE)
    there = file is None and other.exists()
    switch = "enableLmq=false" if settings.enable_lmq else "enableLmq=true"
    raise StoreError(
        "there are no committed offsets here",
        path=path,
        expected="the file that a broker keeps them in, or its .bak",
        found=f"{other.name} alone" if there else "no file, or an empty one",
        next_step=f"Give reput the broker's own broker.conf: the file that is there goes with {switch}."
        if there
        else "Copy config/ together with the rest of the store, or name the file with --offsets.",
    )


def group_of(key: str) -> tuple[str, str] | None:
    """(topic, group) of a key ``TOPIC@GROUP``; None when it has no ``@`` in between.

    A topic has no ``@``, but a group may: 5.x commits for consumers that get every message
    (``BroadcastOffsetManager``) as ``GROUP@broadcast``. Names of light queues may have it as well; what
    follows ``@%LMQ%`` is then the group.
    """
    at = key.find(_SEPARATOR + LMQ_PREFIX) if key.startswith(LMQ_PREFIX) else -1
    at = key.find(_SEPARATOR) if at < 0 else at
    return (key[:at], key[at + 1 :]) if 0 < at < len(key) - 1 else None


def _in_rocksdb(place: ConfigPlace) -> Offsets:
    found = kept(place, Kind.OFFSETS)
    if found is None:
        there = "none"
        if place.file(Kind.OFFSETS).is_file():
            there = f"{place.file(Kind.OFFSETS).name} alone, which a start doesn't take over: " + (
                "its counter is 0, as until a broker's 500th commit"
                if Kind.OFFSETS in place.imports
                else "this broker never imports it"
            )
        raise StoreError(
            "there are no committed offsets here",
            path=place.database(Kind.OFFSETS),
            expected="the RocksDB that a broker keeps them in",
            found=there,
            next_step="Copy config/ together with the rest of the store, or name a file with --offsets.",
        )
    return _entries({"offsetTable": found.entries, "pullOffsetTable": found.pulled}, found.path)


def _offsets(data: bytes, path: Path) -> Offsets:
    try:
        document = parse(data)
    except (ValueError, RecursionError) as error:
        raise _broken(path, "JSON", str(error)) from error
    return _entries({} if document is None else _object(document, path, "the document"), path)


def _entries(tables: Mapping[str, object], path: Path) -> Offsets:
    pulled = {
        (key, queue_id): offset
        for key, queues in _table(tables, "pullOffsetTable", path).items()
        for queue_id, offset in _queues(key, queues, path)
    }
    committed: list[Committed] = []
    topics: dict[str, dict[str, None]] = {}
    for key, queues in _table(tables, "offsetTable", path).items():
        if (names_of := group_of(key)) is None:
            continue  # a broker never uses it
        topic, group = names_of
        topics.setdefault(group, {})[topic] = None
        committed += [
            Committed(topic, group, queue_id, offset, pulled.get((key, queue_id)))
            for queue_id, offset in _queues(key, queues, path)
        ]
    for key, value in _table(tables, "lmqOffsetTable", path).items():
        if (names_of := group_of(key)) is not None:
            topic, group = names_of
            topics.setdefault(group, {})[topic] = None
            committed.append(Committed(topic, group, 0, _number(value, _LONG_MAX, key, path)))
    return Offsets(path, tuple(committed), {group: tuple(found) for group, found in topics.items()})


def _table(tables: Mapping[str, object], name: str, path: Path) -> Mapping[str, object]:
    return _object(tables.get(name, {}), path, name)


def _object(value: object, path: Path, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _broken(path, f"{what} to be an object", type(value).__name__)
    return value


def _queues(key: str, queues: object, path: Path) -> Iterator[tuple[int, int]]:
    for queue_id, offset in _object(queues, path, f"what {key} committed").items():
        yield _number(queue_id, _INT_MAX, key, path), _number(offset, _LONG_MAX, key, path)


def _number(value: object, most: int, key: str, path: Path) -> int:
    """A whole number, which fastjson takes from a string, too."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -most - 1 <= value <= most:
        raise _broken(path, f"whole numbers for {key}", repr(value)[:40])
    return value


def _broken(path: Path, expected: str, found: str) -> SettingsError:
    return SettingsError(
        "this file of committed offsets is broken",
        path=path,
        expected=expected,
        found=found,
        next_step="Bring it back from a copy, or name another file with --offsets.",
    )
