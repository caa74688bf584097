"""Topics, groups and offsets of a broker whose storeType changes: what a start imports, and what it doesn't.

A start that keeps them in RocksDB imports a JSON file whose counter is higher than its database's, from 5.3.2
on; a counter of 0, which a group's offsets have up to some hundred commits, never is. A start that keeps them
in JSON files looks at no database.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reput.config.broker_conf import BrokerConf
from reput.config.fastjson import parse
from reput.config.kept import TABLES, ConfigPlace, Decided, Form, Kind, decide, kept
from reput.config.topics import batch_queue_topics
from reput.errors import SettingsError, UnsupportedError
from reput.format import names, rocksdbconfig
from reput.rocksdb import is_database, opened

_LIGHT_OFFSETS = "lmqConsumerOffset.json"
#: The table of the groups' JSON file that the database has as a column family.
_FORBIDDEN_TABLE = "forbiddenTable"


@dataclass(slots=True)
class ConfigMove:
    """What is to be done in ``config/``.

    Attributes:
        write: new files by name, relative to the store.
        remove: what is moved away: databases that the other form doesn't look at, or would import over.
        said: what happens to each kind, for people.
        batch: topics with batch queues, by what is in force now.
    """

    write: dict[str, bytes] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    batch: frozenset[str] = frozenset()


def config_move(root: Path, now: BrokerConf, then: BrokerConf) -> ConfigMove:
    """What has to change so that a start by ``then`` has what one by ``now`` would have.

    Raises:
        ReputError: it can't be read, or the release can't take it over.
    """
    here, there = decide(root, now), decide(root, then)
    move = ConfigMove()
    place = ConfigPlace(root / names.CONFIG, here.form, here.imports)
    if here.form is not there.form and now.switch("enableLmq", False):
        _refuse_light_offsets(place)
    if here.form is there.form:
        move.said.append(f"topics, groups and offsets stay as they are ({here.form})")
    elif there.form is Form.FILES:
        for kind in Kind:
            _to_file(move, place, kind)
    else:
        for kind in Kind:
            _to_database(move, ConfigPlace(place.directory, there.form, there.imports), kind, there, then)
    if here.form is not there.form:
        for form in (Form.SEPARATE, Form.SINGLE):
            for kind in Kind:
                path = place.database(kind, form)
                name = path.relative_to(root).as_posix()
                if path.is_dir() and name not in move.remove:
                    move.remove.append(name)
    move.batch = frozenset(batch_queue_topics(place))
    return move


def _refuse_light_offsets(place: ConfigPlace) -> None:
    """Refuse to move offsets where enableLmq=true: in files they are in another one."""
    found = None
    for name in (_LIGHT_OFFSETS, place.file(Kind.OFFSETS).name):
        for path in (place.directory / name, place.directory / f"{name}.bak"):
            if path.exists():
                found = found or path
    if place.form is not Form.FILES and found is None:
        stored = kept(place, Kind.OFFSETS)
        found = None if stored is None or not stored.entries else stored.path
    if found is not None:
        raise UnsupportedError(
            "committed offsets of a broker with enableLmq=true can't be moved between files and RocksDB",
            path=found,
            expected="no committed offsets, or settings that stay where they are (configManagerVersion=v2)",
            found=f"enableLmq=true, which keeps them in {_LIGHT_OFFSETS} where they are in files",
            next_step="Leave the queues in the form that they are in",
        )


def _to_file(move: ConfigMove, place: ConfigPlace, kind: Kind) -> None:
    """Write what the database has into the JSON file, as newer than both."""
    found, path = kept(place, kind), place.file(kind)
    if found is None:
        move.said.append(f"{path.name}: stays as it is, for no database has {kind}")
        return
    old = _document(path) or {}
    version = found.version
    counter = max(0 if version is None else version.counter, _counter(old)) + 1
    document: dict[str, Any] = {
        **old,
        "dataVersion": {
            "counter": counter,
            "stateVersion": 0 if version is None else version.state_version,
            "timestamp": 0 if version is None else version.timestamp,
        },
        **({_FORBIDDEN_TABLE: _forbidden(place, found.path)} if kind is Kind.GROUPS else {}),
        TABLES[kind]: dict(found.entries),
    }
    move.write[f"{names.CONFIG}/{path.name}"] = _encoded(document)
    move.said.append(f"{path.name}: written from {found.path.name}, {len(found.entries):,} entries")


def _forbidden(place: ConfigPlace, path: Path) -> dict[str, Any]:
    """What groups may not consume: group to topic to a number."""
    if not is_database(path):
        return dict((_document(place.file(Kind.GROUPS)) or {}).get(_FORBIDDEN_TABLE) or {})
    with opened(path) as database:
        if rocksdbconfig.FORBIDDEN_FAMILY not in database.families:
            return {}
        return {
            key.decode("utf-8", "replace"): parse(value)
            for keys, values in database.blocks(rocksdbconfig.FORBIDDEN_FAMILY)
            for key, value in zip(keys, values, strict=True)
        }


def _to_database(move: ConfigMove, place: ConfigPlace, kind: Kind, there: Decided, conf: BrokerConf) -> None:
    """Leave it to the start to import the JSON file, with a counter that it takes."""
    path = place.file(kind)
    document, source = _document(path), path
    if document is None:
        source = path.with_name(f"{path.name}.bak")
        document = _document(source)
    if document is None:
        move.said.append(f"{path.name}: there is none")
        return
    if kind not in there.imports:
        raise UnsupportedError(
            f"this release takes no {kind} over from a JSON file into its RocksDB",
            path=path,
            expected="5.3.2 or later, which imports it",
            found=conf.rules.name,
            next_step="Move to 5.3.2 or later first, with queues in files",
        )
    if source == path and _counter(document) > 0:
        move.said.append(f"{path.name}: imported by the start")
        return
    version = document.get("dataVersion")
    version = dict(version) if isinstance(version, dict) else {}
    document["dataVersion"] = {
        "stateVersion": 0,
        "timestamp": 0,
        **version,
        "counter": max(_counter(document), 1),
    }
    move.write[f"{names.CONFIG}/{path.name}"] = _encoded(document)
    why = "from its .bak" if source != path else "with counter 1: a start imports none with 0"
    move.said.append(f"{path.name}: written anew, {why}; imported by the start")


def _document(path: Path) -> dict[str, Any] | None:
    """A file's JSON object; None without a file, or an empty one."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SettingsError("this file can't be read", path=path, found=error.strerror) from error
    if not data.strip():
        return None
    try:
        found = parse(data)
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            "this file of settings is broken", path=path, expected="JSON", found=str(error)
        ) from error
    if not isinstance(found, dict):
        raise SettingsError(
            "this file of settings is broken", path=path, expected="an object", found=type(found).__name__
        )
    return found


def _encoded(document: dict[str, Any]) -> bytes:
    """As a file; in ASCII, since half a surrogate pair, which Java takes, has no UTF-8."""
    return json.dumps(document).encode()


def _counter(document: dict[str, Any]) -> int:
    version = document.get("dataVersion")
    counter = version.get("counter", 0) if isinstance(version, dict) else 0
    return counter if isinstance(counter, int) else 0
