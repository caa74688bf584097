"""What shells are offered for values: releases; of the store on the command line topics, queues and groups.

A completion answers from names alone (directories, and the one file of offsets), and never fails: where there
is no store yet, or it can't be read, nothing is offered.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import typer

from reput.config.dialect import DIALECTS
from reput.config.settings import StoreSettings
from reput.errors import ReputError
from reput.format import names
from reput.rocksdb import is_database
from reput.store.listing import names_seen, topics_seen


def releases(incomplete: str) -> list[str]:
    """Lines of releases (5.3), the newest first, or the releases of one that is typed already."""
    known = [version for row in reversed(DIALECTS) for version in reversed(row.versions)]
    lines = list(dict.fromkeys(version.rpartition(".")[0] for version in known))
    return [version for version in (*lines, *known) if version.startswith(incomplete)]


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics that have queues in the store, or are in its RocksDB."""
    found: set[str] = set()
    for kind in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE):
        found.update(topics_seen(_store(ctx) / kind))
    if any(is_database(_store(ctx) / name) for name in (names.CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB)):
        with suppress(ReputError):
            found |= {topic for topic, _ in _in_rocksdb(ctx)}
    return sorted(topic for topic in found if topic.startswith(incomplete))


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics, and TOPIC:ID where only one is left, or one is typed with its colon."""
    topic, colon, number = incomplete.rpartition(":")
    if colon:
        return [queue for queue in _queues_of(ctx, topic) if queue.startswith(f"{topic}:{number}")]
    found = topics(ctx, incomplete)
    return _queues_of(ctx, found[0]) if len(found) == 1 else found


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Consumer groups that have committed offsets."""
    from reput.lag.committed import committed_offsets

    with suppress(ReputError):
        settings = _settings(ctx)
        return sorted(group for group in committed_offsets(settings).topics if group.startswith(incomplete))
    return []


def findings(incomplete: str) -> list[str]:
    """Kinds of findings whose messages can be saved."""
    from reput.replay.stranded import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _queues_of(ctx: typer.Context, topic: str) -> list[str]:
    if names.topic_problem(topic.encode("utf-8", "surrogatepass")) is not None:
        return []
    found: set[int] = set()
    for kind in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE):
        found |= {
            int(name)
            for name in names_seen(_store(ctx) / kind / topic)
            if name.isascii() and name.isdecimal()
        }
    if not found:
        with suppress(ReputError):
            found = {number for one, number in _in_rocksdb(ctx) if one == topic and number >= 0}
    return [f"{topic}:{number}" for number in sorted(found)]


def _in_rocksdb(ctx: typer.Context) -> list[tuple[str, int]]:
    """Topic and queueId of the queues in RocksDB."""
    from reput.query.rocksdb import RocksQueues, queues_of

    settings = _settings(ctx)
    path = queues_of(settings)
    return [] if path is None or not is_database(path) else list(RocksQueues(settings, path).ends())


def _settings(ctx: typer.Context) -> StoreSettings:
    conf = ctx.params.get("broker_conf")
    own = conf if isinstance(conf, Path) else None
    return StoreSettings.load(_store(ctx), own, None, dledger=True, rocksdb=True)


def _store(ctx: typer.Context) -> Path:
    stores = ctx.params.get("stores")
    store = Path(stores[0]) if stores else ctx.params.get("store")
    if not isinstance(store, Path):
        # An option that still lacks its value ends the parsing: what isn't an option is left over.
        store = Path(ctx.args[0] if ctx.args else os.devnull)
    return store.expanduser()
