"""The golden stores: what the real store once wrote, packed; tests/golden/README.md says how.

A fixture is a directory ``VERSION-WORKLOAD`` with ``store.tar.xz`` and ``manifest.json``. One that is missing
or differs from its manifest is a failure, never a reason to skip: nothing here can be made again.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compat.conf import conf_text
from tests.compat.rocksdb import Families, parse
from tests.compat.rocksdb_workloads import VARIANTS
from tests.compat.workloads import WORKLOADS

DIRECTORY = Path(__file__).parent
ARCHIVE = "store.tar.xz"
DUMP = "rocksdb.xz"
MANIFEST = "manifest.json"

NAMES = tuple(f"{version}-{name}" for version, makers in WORKLOADS.items() for name in makers)
"""Every fixture there has to be that the store wrote by itself."""

ROCKSDB = tuple(f"{version}-rocksdb-{name}" for version, names in VARIANTS.items() for name in names)
"""Those with queues, and the last one with an index, in RocksDB; each has a dump of all keys and values."""

SETTINGS = (
    "5.3.3-rocksdb-settings-v1",
    "5.3.3-rocksdb-settings-v2",
    "5.5.0-rocksdb-settings-v1",
    "5.5.0-rocksdb-settings-single",
    "5.5.0-rocksdb-settings-v2",
)
"""Those of whole brokers with topics, groups and offsets in RocksDB (``tests/compat/write_settings.py``)."""

FILTERED = ("4.9.7-filter-bit-maps", "5.5.0-filter-bit-maps")
"""Those that a whole broker wrote, with consumers that filter (``tests/compat/write_filtered.py``)."""


class GoldenError(AssertionError):
    """A fixture is missing or isn't what its manifest says."""


@dataclass(frozen=True, slots=True)
class GoldenStore:
    """An unpacked fixture.

    Attributes:
        name: ``VERSION-WORKLOAD``.
        root: the store's directory.
        manifest: what was read from manifest.json; tests/golden/README.md lists its fields.
    """

    name: str
    root: Path
    manifest: dict[str, Any]

    @property
    def version(self) -> str:
        """The RocketMQ release that wrote it."""
        return str(self.manifest["rocketmq"])

    @property
    def config(self) -> dict[str, object]:
        """The MessageStoreConfig properties it was written with."""
        return dict(self.manifest["config"])

    @property
    def crashed(self) -> bool:
        """Whether the store was killed."""
        return bool(self.manifest["crashed"])

    def dump(self) -> dict[str, Families]:
        """Keys and values by RocksDB and column family, as the release's own library read them."""
        return read_dump(self.name)

    def write_broker_conf(self, path: Path | None = None) -> Path:
        """A broker.conf with the store's settings and its present place, by default ``root/broker.conf``."""
        path = path or self.root / "broker.conf"
        settings = {
            "storePathRootDir": self.root,
            "storePathCommitLog": self.root / "commitlog",
            **self.config,
            **self.manifest.get("broker", {}),
        }
        path.write_text(conf_text(settings), encoding="utf-8")
        return path

    def write_topics_json(self) -> Path:
        """``config/topics.json`` as a broker keeps it, from 5.0 on with attributes of the topics."""
        path = self.root / "config" / "topics.json"
        path.parent.mkdir(exist_ok=True)
        is_4 = self.version.startswith("4.")
        table = {
            topic: {"topicName": topic, **({} if is_4 else {"attributes": attributes})}
            for topic, attributes in self.manifest["topics"].items()
        }
        path.write_text(json.dumps({"topicConfigTable": table}), encoding="utf-8")
        return path


def unpack(name: str, target: Path) -> GoldenStore:
    """Unpack a fixture, times of modification included, and check every file against its SHA-256.

    Args:
        name: one of :data:`NAMES`, :data:`FILTERED`, :data:`ROCKSDB` or :data:`SETTINGS`.
        target: where the store's directory shall be; made when missing.

    Raises:
        GoldenError: the fixture is missing or damaged.
    """
    source = DIRECTORY / name
    try:
        manifest = json.loads((source / MANIFEST).read_text(encoding="utf-8"))
        target.mkdir(parents=True, exist_ok=True)
        with tarfile.open(source / ARCHIVE, "r:xz") as archive:
            archive.extractall(target, filter="data")
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, ValueError) as error:
        raise GoldenError(f"golden store {name} can't be read: {error}") from error
    found = {path.relative_to(target).as_posix(): path for path in target.rglob("*") if path.is_file()}
    if found.keys() != manifest["files"].keys():
        differing = sorted(found.keys() ^ manifest["files"].keys())
        raise GoldenError(f"golden store {name}: manifest and archive differ in {', '.join(differing)}")
    for file, facts in manifest["files"].items():
        if sha256(found[file]) != facts["sha256"]:
            raise GoldenError(f"golden store {name}: {file} isn't what was written")
    return GoldenStore(name, target, manifest)


def read_dump(name: str) -> dict[str, Families]:
    """What the RocksDBs of a fixture hold, by directory and column family.

    Raises:
        GoldenError: the dump is missing or damaged.
    """
    try:
        with lzma.open(DIRECTORY / name / DUMP, "rt", encoding="utf-8") as text:
            return parse(text.read())
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise GoldenError(f"the dump of golden store {name} can't be read: {error}") from error


def write_dump(name: str, text: str) -> None:
    """Keep a dump beside a fixture, compressed."""
    (DIRECTORY / name).mkdir(exist_ok=True)
    with lzma.open(DIRECTORY / name / DUMP, "wb", preset=9 | lzma.PRESET_EXTREME) as packed:
        packed.write(text.encode())


def describe(root: Path) -> dict[str, dict[str, object]]:
    """Size in bytes and SHA-256 of each file below root, as a manifest has them."""
    return {
        path.relative_to(root).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def pack(root: Path, archive: Path) -> None:
    """Pack a directory, the same bytes for the same files.

    Args:
        root: the directory whose content is packed.
        archive: the file to write, a compressed tar.
    """
    with (
        lzma.open(archive, "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(root.rglob("*")):
            member = tar.gettarinfo(path, path.relative_to(root).as_posix())
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if path.is_dir():
                tar.addfile(member)
                continue
            # Times matter: 4.9 looks a message up by the time its queue file was last written.
            member.mtime = path.stat().st_mtime_ns / 1e9
            with path.open("rb") as data:
                tar.addfile(member, data)


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
