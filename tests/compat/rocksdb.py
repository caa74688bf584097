"""The real store's RocksDBs: which a release keeps, and their keys and values, by its own library."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    """All entries of all RocksDBs of a stopped store, by directory; no file there is changed."""
    found: dict[str, Families] = {}
    for directory in databases(root):
        found |= _dump(jvm, root / directory, directory, "")
    return found


def entries(jvm: Jvm, directory: Path, family: str) -> dict[bytes, bytes]:
    """All entries of one column family of a closed RocksDB; no file there is changed."""
    return _dump(jvm, directory, "db", family)["db"][family]


def digest(jvm: Jvm, directory: Path, family: str) -> tuple[int, str]:
    """How many entries a column family of a closed RocksDB has, and a SHA-256 of them; for millions."""
    with _copy(directory) as copy:
        count, found = str(_keys(jvm).digest(str(copy), family)).split(" ")
    return int(count), found


def _dump(jvm: Jvm, directory: Path, name: str, family: str) -> dict[str, Families]:
    with _copy(directory) as copy:
        target = copy.parent / "text"
        _keys(jvm).dump(str(copy), name, family, str(target))
        return parse(target.read_text(encoding="utf-8"))


@contextmanager
def _copy(directory: Path) -> Iterator[Path]:
    """RocksDB writes a log even beside what it only reads: a copy, with links to what never changes."""
    with tempfile.TemporaryDirectory(prefix=".keys-", dir=directory.parent) as scratch:
        copy = Path(scratch) / "db"
        copy.mkdir()
        for path in directory.iterdir():
            if path.suffix == ".sst":
                os.link(path, copy / path.name)
            elif path.is_file():
                shutil.copyfile(path, copy / path.name)
        yield copy


def change(jvm: Jvm, directory: Path, family: str, entries: Mapping[bytes, bytes | None]) -> None:
    """Put entries into a column family of a closed RocksDB; None deletes a key."""
    lines = [family]
    lines += [f"{key.hex()} {'-' if value is None else value.hex()}" for key, value in entries.items()]
    with tempfile.TemporaryDirectory(prefix="keys-") as scratch:
        source = Path(scratch) / "entries"
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        _keys(jvm).change(str(directory), str(source))


def add_family(jvm: Jvm, directory: Path, name: str) -> None:
    """Make a column family in a closed RocksDB."""
    _keys(jvm).addFamily(str(directory), name)


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
