"""Which topics the broker knows: ``config/topics.json``.

The file holds ``{"dataVersion": {…}, "topicConfigTable": {TOPIC: {…}, …}}``, written by fastjson
(``TopicConfigManager.encode``); real ones of 4.9.7, 5.3.3 and 5.5.0 are plain JSON with quoted keys. From 5.0
on a topic has an ``attributes`` map; its keys carry no sign (``+queue.type`` is how an administrator asks for
``queue.type``, ``AttributeUtil.alterCurrentAttributes``).

Where the broker keeps them in RocksDB (:mod:`reput.config.kept`), each topic has the same JSON object there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from reput.config.kept import ConfigPlace, Form, Kept, Kind, Rereading, kept, of_either
from reput.errors import SettingsError
from reput.format import names
from reput.rocksdb import is_database
from reput.store.listing import names_seen, nearest_queue, topics_seen


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
_BATCH = "BatchCQ"


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
    found = set()
    for topic, config in (_table(topics) or {}).items():
        attributes = config.get("attributes")
        if isinstance(attributes, dict) and attributes.get(_QUEUE_TYPE) == _BATCH:
            found.add(topic)
    return found


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
        return None if found is None else _checked(found)
    return of_either(_file(topics), "topics", _parse)


def _parse(data: bytes, path: Path) -> Mapping[str, Mapping[str, object]]:
    try:
        # fastjson takes control characters inside strings, and Java replaces what isn't UTF-8.
        document = json.loads(data.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError) as error:
        raise _broken(path, "JSON", str(error)) from error
    if not isinstance(document, dict):
        raise _broken(path, "an object", type(document).__name__)
    table = document.get("topicConfigTable", {})
    if not isinstance(table, dict):
        raise _broken(path, "topicConfigTable to be an object", json.dumps(table)[:40])
    return _objects(table, path)


def _checked(found: Kept) -> Mapping[str, Mapping[str, object]]:
    return _objects(found.entries, found.path)


def _objects(table: Mapping[str, object], path: Path) -> Mapping[str, Mapping[str, object]]:
    found: dict[str, Mapping[str, object]] = {}
    for topic, config in table.items():
        if not isinstance(config, dict):
            raise _broken(path, f"the settings of topic {topic} to be an object", json.dumps(config)[:40])
        found[topic] = config
    return found


def _file(topics: Path | ConfigPlace) -> Path:
    return topics if isinstance(topics, Path) else topics.file(Kind.TOPICS)


def _broken(path: Path, expected: str, found: str) -> SettingsError:
    return SettingsError(
        "this file of topics is broken",
        path=path,
        expected=expected,
        found=found,
        next_step="Repair it, or move it and its .bak away to go on without them.",
    )
