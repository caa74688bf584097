"""Topics, groups and offsets of a broker whose storeType changes: what a start imports, and what it doesn't.

A start that keeps them in RocksDB imports a JSON file whose counter is higher than its database's, from 5.3.2
on; a counter of 0, which a group's offsets have up to some hundred commits, never is. A start that keeps them
in JSON files looks at no database.

With ``enableLmq``, JSON files have the offsets in ``lmqConsumerOffset.json``, where a light group has one for
each topic, in a table of its own. A start with RocksDB never looks there, and has light groups' offsets among
the others, as those of queue 0. (Up to 5.3.1 it keeps them nowhere: ``RocksDBLmqConsumerOffsetManager``.)

Source: ``BrokerController``, ``LmqConsumerOffsetManager``, ``RocksDBConsumerOffsetManager``
(rocketmq-all-5.3.1, 5.3.3; 5.5.0 by its bytecode).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reput.config.broker_conf import BrokerConf
from reput.config.committed import LMQ_FILE, LMQ_PREFIX, group_of
from reput.config.kept import (
    TABLES,
    ConfigPlace,
    Form,
    Kind,
    batch_queue_topics,
    decide,
    document_of,
    kept,
    parse,
)
from reput.errors import SettingsError, UnsupportedError
from reput.format import names, rocksdbconfig
from reput.rocksdb import is_database, opened

_LIGHT_TABLE = "lmqOffsetTable"
_NAMED = 20  # of offsets, in a line for people
#: The table of the groups' JSON file that the database has as a column family.
_FORBIDDEN_TABLE = "forbiddenTable"


@dataclass(slots=True)
class ConfigMove:
    """What is to be done in ``config/``."""

    write: dict[str, bytes] = field(default_factory=dict)  # new files by name, relative to the store
    #: what is moved away: databases that the other form doesn't look at, or would import over
    remove: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # what happens to each kind, for people
    batch: frozenset[str] = frozenset()  # topics with batch queues, by what is in force now


def config_move(root: Path, now: BrokerConf, then: BrokerConf) -> ConfigMove:
    """What has to change so that a start by ``then`` has what one by ``now`` would have."""
    here, there = decide(root, now).place, decide(root, then).place
    move = ConfigMove()
    light = now.switch("enableLmq")
    if here.form is there.form:
        move.said.append(f"topics, groups and offsets stay as they are ({here.form})")
    elif there.form is Form.FILES:
        for kind in Kind:
            _to_file(move, here, kind, light=light)
    else:
        for kind in Kind:
            _to_database(move, there, kind, then, light=light)
    if here.form is not there.form:
        for form in (Form.SEPARATE, Form.SINGLE):
            for kind in Kind:
                path = here.database(kind, form)
                name = path.relative_to(root).as_posix()
                if path.is_dir() and name not in move.remove:
                    move.remove.append(name)
    move.batch = frozenset(batch_queue_topics(here))
    return move


def _to_file(move: ConfigMove, place: ConfigPlace, kind: Kind, *, light: bool) -> None:
    """Write what the database has into the JSON file, as newer than both."""
    found, path = kept(place, kind), _file(place, kind, light=light)
    if found is None:
        move.said.append(f"{path.name}: stays as it is, for no database has {kind}")
        return
    old = document_of(path) or {}
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
        **(
            _apart(found.entries, move)
            if kind is Kind.OFFSETS and light
            else {TABLES[kind]: dict(found.entries)}
        ),
    }
    move.write[f"{names.CONFIG}/{path.name}"] = _encoded(document)
    move.said.append(f"{path.name}: written from {found.path.name}, {len(found.entries):,} entries")


def _forbidden(place: ConfigPlace, path: Path) -> dict[str, Any]:
    """What groups may not consume: group to topic to a number."""
    if not is_database(path):
        return dict((document_of(place.file(Kind.GROUPS)) or {}).get(_FORBIDDEN_TABLE) or {})
    with opened(path) as database:
        if rocksdbconfig.FORBIDDEN_FAMILY not in database.families:
            return {}
        return {
            key.decode("utf-8", "replace"): parse(value)
            for keys, values in database.blocks(rocksdbconfig.FORBIDDEN_FAMILY)
            for key, value in zip(keys, values, strict=True)
        }


def _to_database(move: ConfigMove, place: ConfigPlace, kind: Kind, conf: BrokerConf, *, light: bool) -> None:
    """Leave it to the start to import the JSON file, with a counter that it takes."""
    path, target = _file(place, kind, light=light), place.file(kind)
    document, source = document_of(path), path
    if document is None:
        source = path.with_name(f"{path.name}.bak")
        document = document_of(source)
    if document is None:
        move.said.append(f"{path.name}: there is none")
        if path != target and target.exists():
            move.remove.append(f"{names.CONFIG}/{target.name}")
            move.said.append(f"{target.name}: moved away; with enableLmq=true none of it is in force")
        return
    if kind not in place.imports:
        raise UnsupportedError(
            f"this release takes no {kind} over from a JSON file into its RocksDB",
            path=path,
            expected="5.3.2 or later, which imports it",
            found=conf.rules.name,
            next_step="Move to 5.3.2 or later first, with queues in files",
        )
    if path != target:
        _join(document, path, conf, move)
    elif source == path and _counter(document) > 0:
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
    move.write[f"{names.CONFIG}/{target.name}"] = _encoded(document)
    why = "with counter 1: a start imports none with 0"
    if source != target:
        why = f"from {source.name}" if path != target else "from its .bak"
    move.said.append(f"{target.name}: written anew, {why}; imported by the start")


def _file(place: ConfigPlace, kind: Kind, *, light: bool) -> Path:
    """The JSON file that a broker with files reads."""
    return place.directory / LMQ_FILE if light and kind is Kind.OFFSETS else place.file(kind)


def _is_light(key: str) -> bool:
    """Whether ``TOPIC@GROUP`` is of a light group."""
    of = group_of(key)
    return of is not None and of[1].startswith(LMQ_PREFIX)


def _apart(entries: Mapping[str, object], move: ConfigMove) -> dict[str, Any]:
    """Offsets of a database as the tables of the file for light groups."""
    others: dict[str, object] = {}
    light: dict[str, object] = {}
    elsewhere = []
    for key, queues in entries.items():
        if not _is_light(key) or not isinstance(queues, dict):
            others[key] = queues
            continue
        if "0" in queues:
            light[key] = queues["0"]
        elsewhere += [f"{key}:{queue_id}" for queue_id in queues if queue_id != "0"]
    if elsewhere:
        move.said.append(
            f"{LMQ_FILE}: has one offset of a light group for each topic, that of queue 0; left out: "
            f"{', '.join(sorted(elsewhere)[:_NAMED])}{', …' if len(elsewhere) > _NAMED else ''}"
        )
    return {TABLES[Kind.OFFSETS]: others, _LIGHT_TABLE: light}


def _join(document: dict[str, Any], path: Path, conf: BrokerConf, move: ConfigMove) -> None:
    """Put light groups' offsets of their file among the others, as RocksDB has them."""
    light, others = (document.pop(name, None) or {} for name in (_LIGHT_TABLE, TABLES[Kind.OFFSETS]))
    for table in (light, others):
        if not isinstance(table, dict):
            raise SettingsError(
                "this file of committed offsets is broken",
                path=path,
                expected="tables that are objects",
                found=type(table).__name__,
            )
    if foreign := sorted(key for key in light if not _is_light(key)):
        move.said.append(
            f"{path.name}: passed over in {_LIGHT_TABLE}, where a broker looks for light groups alone: "
            f"{', '.join(foreign[:_NAMED])}{', …' if len(foreign) > _NAMED else ''}"
        )
    light = {key: offset for key, offset in light.items() if _is_light(key)}
    if broken := next((key for key, offset in light.items() if type(offset) is not int), None):
        raise SettingsError(
            "this file of committed offsets is broken",
            path=path,
            expected=f"a number for {broken} in {_LIGHT_TABLE}",
            found=repr(light[broken]),
        )
    if light and not conf.rules.rocksdb_lmq:
        raise UnsupportedError(
            "this release keeps offsets of light groups nowhere once its settings are in RocksDB",
            path=path,
            expected="5.3.2 or later",
            found=f"{conf.rules.name}, and {len(light):,} such offsets",
            next_step="Move to 5.3.2 or later first, with queues in files",
        )
    # A light group's key among the others is a leftover, which a broker never looks at.
    joined = {key: queues for key, queues in others.items() if not _is_light(key)}
    document[TABLES[Kind.OFFSETS]] = joined | {key: {"0": offset} for key, offset in light.items()}
    if wide := sorted(key for key in light if not key.startswith(LMQ_PREFIX)):
        move.said.append(
            f"{path.name}: one offset for all queues of a topic that isn't light is queue 0's alone in "
            f"RocksDB: {', '.join(wide[:_NAMED])}{', …' if len(wide) > _NAMED else ''}"
        )


def _encoded(document: dict[str, Any]) -> bytes:
    """The file's bytes; in ASCII, since half a surrogate pair, which Java takes, has no UTF-8."""
    return json.dumps(document).encode()


def _counter(document: dict[str, Any]) -> int:
    version = document.get("dataVersion")
    counter = version.get("counter", 0) if isinstance(version, dict) else 0
    return counter if isinstance(counter, int) else 0
