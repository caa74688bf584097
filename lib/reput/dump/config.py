"""What a broker keeps in ``config/`` in RocksDB, entry by entry: topics, groups, offsets, and their versions.

Which form a start takes, and whether a JSON file beside it is stale, says :mod:`reput.config.kept`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.config.kept import parse
from reput.dump.damage import Damage
from reput.errors import StoreError
from reput.format import names, rocksdbconfig
from reput.format.rocksdbconfig import DataVersion, Table
from reput.rocksdb import DEFAULT, Database, is_database, opened

TOPIC, GROUP, OFFSET, PULL_OFFSET, VERSION = "topic", "group", "offset", "pull-offset", "version"
_KINDS = {"topics": TOPIC, "groups": GROUP, "offsets": OFFSET}
_TABLES = {
    Table.TOPICS: TOPIC,
    Table.GROUPS: GROUP,
    Table.OFFSETS: OFFSET,
    Table.PULL_OFFSETS: PULL_OFFSET,
}


@dataclass(frozen=True, slots=True)
class Kept:
    """One entry."""

    kind: str  # what it is of
    path: Path  # the database
    name: str  # the topic or the group; of a version what it is of
    group: str | None = None  # group, queue_id, offset: of offsets, with the topic in ``name``
    queue_id: int | None = None
    offset: int | None = None
    config: object = None  # the JSON object of a topic or a group
    version: DataVersion | None = None  # of a version

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        facts: dict[str, object] = {"type": self.kind, "path": str(self.path)}
        if self.version is not None:
            version = self.version
            return {
                **facts,
                "of": self.name,
                "counter": version.counter,
                "timestamp": version.timestamp,
                "state_version": version.state_version,
            }
        if self.kind in (TOPIC, GROUP):
            return {**facts, self.kind: self.name, "config": self.config}
        place = {"topic": self.name, "group": self.group, "queue_id": self.queue_id}
        return {**facts, **place, "queue_offset": self.offset}


def databases(path: Path) -> list[Path]:
    """The databases of settings at a path: a store, ``config/``, or one of them.

    StoreError where there is none.
    """
    known = [*rocksdbconfig.SEPARATE.values(), rocksdbconfig.SINGLE, rocksdbconfig.V2]
    if is_database(path) and path.name in known:
        return [path]
    config = path / names.CONFIG if (path / names.CONFIG).is_dir() else path
    found = [config / name for name in known if is_database(config / name)]
    if not found:
        raise StoreError(
            "there is no RocksDB of topics, groups and offsets here",
            path=config,
            expected=f"a store, {names.CONFIG}/, or one of {', '.join(known)} in it, with CURRENT",
            found="none of these" if config.exists() else "no such directory",
            next_step="Check the path. Without storeType=defaultRocksDB and configManagerVersion=v2 a broker "
            "keeps them in JSON files there",
        )
    return found


def dump(path: Path) -> Iterator[Kept | Damage]:
    """All entries of a database, the versions first; what no broker writes is damage.

    Its name says of which form it is.
    """
    with opened(path) as db:
        if path.name == rocksdbconfig.V2:
            yield from _v2(db)
            return
        if path.name == rocksdbconfig.SINGLE:
            for kind, family in rocksdbconfig.SINGLE_FAMILIES.items():
                yield from _json(db, kind, family, f"{family}{rocksdbconfig.VERSION_SUFFIX}")
            return
        kind = next(kind for kind, name in rocksdbconfig.SEPARATE.items() if name == path.name)
        yield from _json(db, kind, DEFAULT, rocksdbconfig.VERSION_FAMILY)


def _json(db: Database, kind: str, family: str, versions: str) -> Iterator[Kept | Damage]:
    if versions in db.families:
        data = db.get(versions, rocksdbconfig.VERSION_KEY)
        if data is not None:
            yield from _tried(db, rocksdbconfig.VERSION_KEY, data, lambda: [_version(db, _KINDS[kind], data)])
    if family not in db.families:
        return
    for keys, values in db.blocks(family):
        for key, value in zip(keys, values, strict=True):
            yield from _tried(db, key, value, lambda key=key, value=value: _parsed(db, kind, key, value))  # type: ignore[misc]


def _parsed(db: Database, kind: str, key: bytes, value: bytes) -> list[Kept]:
    name, document = key.decode("utf-8", "replace"), _object(parse(value))
    if kind != "offsets":
        return [Kept(_KINDS[kind], db.path, name, config=document)]
    topic, _, group = name.partition("@")
    queues = _object(document.get("offsetTable") or {})
    return [
        Kept(OFFSET, db.path, topic, group, int(queue), _whole(offset)) for queue, offset in queues.items()
    ]


def _version(db: Database, of: str, data: bytes) -> Kept:
    found = _object(parse(data))
    numbers = (_whole(found.get(name, 0)) for name in ("counter", "timestamp", "stateVersion"))
    return Kept(VERSION, db.path, of, version=DataVersion(*numbers))


def _v2(db: Database) -> Iterator[Kept | Damage]:
    for table, kind in _TABLES.items():
        key = rocksdbconfig.version_key(table)
        data = db.get(DEFAULT, key)
        if data is not None:
            yield from _tried(
                db,
                key,
                data,
                lambda kind=kind, data=data: [  # type: ignore[misc]
                    Kept(VERSION, db.path, kind, version=rocksdbconfig.parse_version(data))
                ],
            )
    for table, kind in _TABLES.items():
        for keys, values in db.blocks(DEFAULT, *rocksdbconfig.table_range(table)):
            for key, value in zip(keys, values, strict=True):
                yield from _tried(
                    db,
                    key,
                    value,
                    lambda kind=kind, key=key, value=value: [_of_v2(db, kind, key, value)],  # type: ignore[misc]
                )


def _of_v2(db: Database, kind: str, key: bytes, value: bytes) -> Kept:
    if kind in (TOPIC, GROUP):
        name = rocksdbconfig.parse_name(key).decode("utf-8", "replace")
        return Kept(kind, db.path, name, config=_object(parse(rocksdbconfig.parse_json(value))))
    of = rocksdbconfig.parse_queue(key)
    topic, group = (text.decode("utf-8", "replace") for text in (of.topic, of.group))
    return Kept(kind, db.path, topic, group, of.queue_id, rocksdbconfig.parse_offset(value))


def _tried(db: Database, key: bytes, value: bytes, read: Callable[[], list[Kept]]) -> Iterator[Kept | Damage]:
    try:
        found = read()
    except (ValueError, RecursionError) as error:
        yield Damage(
            kind="bad-value",
            path=str(db.path),
            offset=0,
            end=0,
            expected="an entry as a broker writes it",
            found=f"{len(value)} bytes under the key {key[:80].hex()}: {error}",
            outcome="a broker passes over it or fails",
        )
        return
    yield from found


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__}, no object")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r}, no whole number")
    return value
