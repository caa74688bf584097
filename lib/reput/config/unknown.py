"""Chosen queues of which neither a directory nor ``config/topics.json`` knows: most likely misspelt."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from reput.config.kept import ConfigPlace, Form, Kind
from reput.config.topics import TopicConfig, topic_configs
from reput.errors import SettingsError
from reput.format import names
from reput.rocksdb import is_database
from reput.store.listing import names_seen, topics_seen
from reput.store.nearest import nearest_queue


def unknown_queues(
    root: Path, chosen: Iterable[tuple[str, int | None]], config: ConfigPlace | None = None
) -> dict[str, str | None]:
    """Those of the chosen queues that a store isn't seen to have, each with the nearest one that it has.

    Only the log tells whether there is one: its directory and its topic's entry may be lost. Of a store that
    shows no topic at all, nothing is said.

    Args:
        root: the store.
        chosen: topics and queue ids; None for all queues of a topic.
        config: where topics are kept; None for JSON files, or else nothing is said.
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
