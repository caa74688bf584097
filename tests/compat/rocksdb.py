"""The real store's RocksDBs: which a release keeps, and their keys and values, by its own library."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.compat.compiled import instance
from tests.compat.jvm import Jvm

_KEYS = Path(__file__).with_name("Keys.java")
_CURRENT = "CURRENT"

#: Entries of a RocksDB by column family; keys and values as it has them.
Families = dict[str, dict[bytes, bytes]]


#: In column family ``offset``: the end of the last dispatched record.
CHECKPOINT = b"\0\0\0\x10\x01CHECKPOINT_TOPIC\x01max\x01\0\0\0\0"


def unit_key(topic: str, queue_id: int, place: int) -> bytes:
    """The key of a unit in column family ``default``."""
    name = topic.encode()
    return b"%s\x01%s\x01%s\x01%s" % (len(name).to_bytes(4), name, queue_id.to_bytes(4), place.to_bytes(8))


def offset_key(topic: str, queue_id: int, kind: str) -> bytes:
    """The key of a queue's ``max`` or ``min`` in column family ``offset``."""
    name = topic.encode()
    return b"%s\x01%s\x01%s\x01%s" % (len(name).to_bytes(4), name, kind.encode(), queue_id.to_bytes(4))


def databases(root: Path) -> list[str]:
    """Directories below a store's that hold a RocksDB, relative to it, sorted."""
    return sorted(path.parent.relative_to(root).as_posix() for path in root.rglob(_CURRENT))


def dump(jvm: Jvm, root: Path) -> dict[str, Families]:
    """All entries of all RocksDBs of a stopped store, by directory; nothing is written there."""
    found: dict[str, Families] = {}
    for directory in databases(root):
        with tempfile.TemporaryDirectory(prefix="keys-") as scratch:
            # RocksDB writes a log even beside what it only reads.
            copy, target = Path(scratch) / "db", Path(scratch) / "text"
            copy.mkdir()
            for path in (root / directory).iterdir():
                if path.is_file():
                    shutil.copyfile(path, copy / path.name)
            _keys(jvm).dump(str(copy), directory, str(target))
            found |= parse(target.read_text(encoding="utf-8"))
    return found


def change(jvm: Jvm, directory: Path, family: str, entries: Mapping[bytes, bytes | None]) -> None:
    """Put entries into a column family of a closed RocksDB; None deletes a key."""
    lines = [family]
    lines += [f"{key.hex()} {'-' if value is None else value.hex()}" for key, value in entries.items()]
    with tempfile.TemporaryDirectory(prefix="keys-") as scratch:
        source = Path(scratch) / "entries"
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        _keys(jvm).change(str(directory), str(source))


def text(dumps: Mapping[str, Families]) -> str:
    """A line ``[directory family]`` for each column family, then ``key value`` in hexadecimal, sorted."""
    lines = []
    for directory, families in sorted(dumps.items()):
        for family, entries in families.items():
            lines.append(f"[{directory} {family}]")
            lines += [f"{key.hex()} {value.hex()}" for key, value in sorted(entries.items())]
    return "".join(f"{line}\n" for line in lines)


def parse(lines: str) -> dict[str, Families]:
    """The reverse of :func:`text`."""
    found: dict[str, Families] = {}
    entries: dict[bytes, bytes] = {}
    for line in lines.splitlines():
        if line.startswith("["):
            directory, family = line[1:-1].split(" ")
            entries = found.setdefault(directory, {}).setdefault(family, {})
        else:
            key, value = line.split(" ")
            entries[bytes.fromhex(key)] = bytes.fromhex(value)
    return found


def _keys(jvm: Jvm) -> Any:
    if _KEYS not in jvm.kept:
        jvm.kept[_KEYS] = instance(jvm, _KEYS)
    return jvm.kept[_KEYS]
