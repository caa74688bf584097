"""Databases as RocketMQ leaves them, written by rocksdict for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rocksdict import BlockBasedOptions, Options, Rdict

from reput.format import rocksdbconfig
from reput.format.rocksdbconfig import DataVersion, QueueOf, Table
from tests import encoders

Entries = Mapping[bytes, bytes]


def options() -> Options:
    """RocketMQ's, as far as the files show them."""
    blocks = BlockBasedOptions()
    blocks.set_format_version(5)
    found = Options(raw_mode=True)
    found.create_if_missing(True)
    found.create_missing_column_families(True)
    found.set_block_based_table_factory(blocks)
    return found


@contextmanager
def writing(path: Path, *families: str) -> Iterator[Rdict]:
    """A database that is open to be written, as by a broker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    db = Rdict(str(path), options(), {name: options() for name in families})
    try:
        yield db
    finally:
        db.close()
        # rocksdict's own: a broker leaves none.
        (path / "rocksdict-config.json").unlink(missing_ok=True)


def write(path: Path, families: Mapping[str, Entries], *, flush: bool = True) -> Path:
    """Write a database whole; without ``flush`` the entries are in the write-ahead log alone."""
    with writing(path, *(name for name in families if name != "default")) as db:
        for name, entries in families.items():
            family = db if name == "default" else db.get_column_family(name)
            for key, value in entries.items():
                family[key] = value
            if flush:
                family.flush()
            if family is not db:
                family.close()
    return path


def version(counter: int, timestamp: int = 1_795_000_000_000) -> dict[str, int]:
    """A DataVersion as JSON."""
    return {"counter": counter, "stateVersion": 0, "timestamp": timestamp}


def settings(
    root: Path,
    form: str,
    *,
    topics: Mapping[str, object] | None = None,
    groups: Mapping[str, object] | None = None,
    offsets: Mapping[str, Mapping[int, int]] | None = None,
    counter: int | None = 5,
    timestamp: int = 1_795_000_000_000,
) -> Path:
    """Topics, groups and offsets in RocksDB below a store's ``config/``; returns that directory.

    Args:
        form: ``separate``, ``single`` or ``v2``.
        counter: None for the databases of 5.1.4 to 5.3.0, which have no version.
    """
    config = root / "config"
    tables: dict[str, Mapping[str, object]] = {"topics": topics or {}, "groups": groups or {}}
    values = {kind: {name: _json(one) for name, one in table.items()} for kind, table in tables.items()}
    values["offsets"] = {key: _json({"offsetTable": queues}) for key, queues in (offsets or {}).items()}
    stamp = _json(version(counter or 0, timestamp))
    if form == "separate":
        for kind, name in rocksdbconfig.SEPARATE.items():
            families: dict[str, Entries] = {"default": _bytes(values[kind])}
            if counter is not None:
                families |= {"kvDataVersion": {b"kvDataVersionKey": stamp}, "forbidden": {}}
            write(config / name, families, flush=False)
    elif form == "single":
        families = {"default": {}, "forbidden": {}}
        for kind, name in rocksdbconfig.SINGLE_FAMILIES.items():
            families |= {name: _bytes(values[kind]), f"{name}Version": {b"kvDataVersionKey": stamp}}
        write(config / rocksdbconfig.SINGLE, families, flush=False)
    else:
        found: dict[bytes, bytes] = {}
        for table in Table:
            found[rocksdbconfig.version_key(table)] = encoders.encode_version(
                DataVersion(counter or 0, timestamp)
            )
        for kind, table in (("topics", Table.TOPICS), ("groups", Table.GROUPS)):
            for name, one in values[kind].items():
                found[encoders.encode_name(table, name.encode())] = encoders.encode_json(one)
        for key, queues in (offsets or {}).items():
            topic, _, group = key.partition("@")
            for queue, offset in queues.items():
                of = QueueOf(group.encode(), topic.encode(), queue)
                found[encoders.encode_queue(Table.OFFSETS, of)] = encoders.encode_offset(offset)
        write(config / rocksdbconfig.V2, {"default": found}, flush=False)
    return config


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _bytes(table: Mapping[str, bytes]) -> Entries:
    return {name.encode(): value for name, value in table.items()}
