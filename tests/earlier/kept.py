"""What earlier versions of reput wrote, packed; tests/earlier/README.md says how it was made."""

from __future__ import annotations

import fcntl
import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reput.format import names
from tests.golden.store import GoldenStore
from tests.live import Live, live_store

DIRECTORY = Path(__file__).parent
ARCHIVE = "kept.tar.xz"
MANIFEST = "manifest.json"

NAMES = ("0.1.0-c76a0a3", "1.0.0-96485eb")
"""Every one there has to be."""

PLACE = Path("/tmp/reput-earlier")
"""Where each was made, and has to be unpacked: a history knows stores by their paths."""

#: Of the store that was rebuilt in place, left out of the archive: it is that of the golden store.
STORE = "store"
#: A unit's byte, and the bit in it that was turned.
HARMED_BYTE, HARMED_BIT = 7, 1


@dataclass(frozen=True, slots=True)
class Earlier:
    """What one version wrote, unpacked at its place.

    Attributes:
        live: the store whose log the version knew up to ``known``; in ``place/live``.
        known: physical offset of the first record that it didn't know.
        store: a store with that log, rebuilt in place, and then harmed in one unit.
        facts: the manifest.
    """

    place: Path
    live: Live
    known: int
    store: Path
    facts: dict[str, Any]

    @property
    def golden(self) -> GoldenStore:
        """The store as the broker left it in the end."""
        return self.live.whole

    @property
    def conf(self) -> list[str]:
        """What commands about both stores are told."""
        return [
            "--broker-conf",
            str(self.place / "broker.conf"),
            "--rocketmq-version",
            self.golden.version,
        ]


@contextmanager
def unpacked(name: str) -> Iterator[Earlier]:
    """Unpack one of :data:`NAMES` at its place, which is this process's alone for as long."""
    facts = json.loads((DIRECTORY / name / MANIFEST).read_text(encoding="utf-8"))
    with alone():
        live = begin(facts["golden"])
        with tarfile.open(DIRECTORY / name / ARCHIVE, "r:xz") as archive:
            archive.extractall(PLACE, filter="data")
        live.grow(facts["known"])
        store = PLACE / STORE
        shutil.copytree(live.root / names.COMMIT_LOG, store / names.COMMIT_LOG)
        yield Earlier(PLACE, live, facts["known"], store, facts)


@contextmanager
def alone() -> Iterator[None]:
    """Have :data:`PLACE` empty, and alone; it is removed in the end."""
    with PLACE.with_name(f"{PLACE.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(PLACE)


def begin(golden: str) -> Live:
    """The golden store in ``PLACE/golden``, and its log to come in ``PLACE/live``."""
    found = live_store(golden, PLACE / "golden")
    shutil.move(PLACE / "golden" / "broker.conf", PLACE / "broker.conf")
    return Live(found.whole, PLACE / "live")


def harm(store: Path) -> Path:
    """Turn a bit of a queue's first unit; returns the file."""
    path = min((store / names.CONSUME_QUEUE).rglob("0" * 20))
    data = bytearray(path.read_bytes())
    data[HARMED_BYTE] ^= HARMED_BIT
    path.write_bytes(data)
    return path
