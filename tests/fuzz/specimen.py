"""The store that is changed, and everything about it that is known beforehand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.format import names
from reput.format.checkpoint import LENGTH
from reput.format.indexfile import ENTRY_LENGTH, HEADER_LENGTH, SLOT_LENGTH
from tests import slow_rebuild
from tests.fuzz.changes import Change, bits, cuts
from tests.golden.store import GoldenStore, unpack

VERSIONS = ("4.9.7", "5.3.3", "5.5.0")
#: Stores with units in log order. They are larger, so that of each part a share is changed.
ORDERED = ("5.3.3-queue-ext", "5.3.3-batch-queue")
#: Messages whose bodies hold records and closing records.
HOSTILE = "5.5.0-hostile"
STORES = (*VERSIONS, *ORDERED, HOSTILE)
_SHARE = 1500
_WHOLE_OF = frozenset(f"{version}-tiny" for version in VERSIONS)
STORE, CONF = "store", "broker.conf"

LOG, QUEUE, INDEX, CHECKPOINT, CONFIG = "log", "queue", "index", "checkpoint", "config"
PARTS = (LOG, QUEUE, INDEX, CHECKPOINT, CONFIG)
#: Of a store with units in log order; QUEUE is of those that lead to records in consumequeue_ext.
EXT, BATCH = "ext", "batch"
ORDERED_PARTS = (QUEUE, EXT, BATCH)
#: What can be asked of a change by itself.
QUERIES, REPAIRS, DUMPS = "queries", "repairs", "dumps"
STEPS = (QUERIES, REPAIRS, DUMPS)

# As the real brokers write them, but short.
_DELAY_OFFSETS = '{"offsetTable":{1:1,3:0}}'
_CONFIG = {
    "delayOffset.json": _DELAY_OFFSETS,
    "consumerOffset.json": '{"offsetTable":{"One@group":{0:2}}}',
    "subscriptionGroup.json": '{"dataVersion":{"counter":1},"subscriptionGroupTable":{}}',
}
_TOPICS: dict[str, dict[str, str]] = {"One": {}, "Two": {}, "Half": {}, "Late": {}, "SCHEDULE_TOPIC_XXXX": {}}
_CHECKPOINT_USED = 48
#: A unit of a batch queue, the longest of all.
_BEHIND = 46


@dataclass(frozen=True, slots=True)
class Specimen:
    """A small store that a real RocketMQ wrote, with its configuration.

    Attributes:
        place: holds ``store/`` and ``broker.conf``.
        golden: the fixture.
        settings: as loaded from them.
        files: the bytes of every file that is changed, by its path relative to ``place``.
    """

    place: Path
    golden: GoldenStore
    settings: StoreSettings
    files: dict[str, bytes]

    @classmethod
    def make(cls, store: str, place: Path) -> Specimen:
        """Unpack it, one of STORES, at ``place``."""
        golden = unpack(f"{store}-tiny" if store in VERSIONS else store, place / STORE)
        golden.write_broker_conf(place / CONF)
        topics = golden.manifest["topics"]
        if store not in VERSIONS:
            topics.update({path.name: {} for path in (golden.root / names.CONSUME_QUEUE).iterdir()})
        else:
            topics.update(_TOPICS)
        golden.write_topics_json()
        for name, text in _CONFIG.items():
            (golden.root / names.CONFIG / name).write_text(text, encoding="utf-8")
        settings = StoreSettings.load(golden.root, place / CONF, golden.version)
        found = sorted(path for path in place.rglob("*") if path.is_file())
        files = {path.relative_to(place).as_posix(): path.read_bytes() for path in found}
        return cls(place, golden, settings, files)

    @property
    def version(self) -> str:
        """The release that wrote it."""
        return self.golden.version

    @property
    def is_ordered(self) -> bool:
        """Whether it is one of ORDERED."""
        return self.golden.name in ORDERED

    @property
    def parts(self) -> tuple[str, ...]:
        """What of it is changed."""
        if self.golden.name == HOSTILE:
            return (LOG,)
        return ORDERED_PARTS if self.is_ordered else PARTS

    def of(self, directory: str) -> list[str]:
        """The files below a directory of the store, in order."""
        whole = f"{STORE}/{directory}"
        return [file for file in self.files if file == whole or file.startswith(f"{whole}/")]

    def segments(self) -> list[tuple[int, bytes]]:
        """(physical offset, bytes) of each segment as it is now."""
        paths = [self.place / file for file in self.of(names.COMMIT_LOG)]
        return [(int(path.name), path.read_bytes()) for path in paths]

    def slow_settings(self) -> slow_rebuild.Settings:
        """What the slow rebuild is told."""
        own = self.settings
        return slow_rebuild.Settings(
            version=self.version,
            queue_file_size=own.consume_queue_file_size,
            slots=own.max_hash_slot_num,
            entries=own.max_index_num,
            multi_dispatch=own.enable_multi_dispatch,
            lmq=own.enable_lmq,
        )

    def changes(self, part: str) -> Iterator[Change]:
        """Every change of a part of the store."""
        return _CHANGES[part](self)

    def chosen(self, part: str, limit: int | None, seed: int) -> list[Change]:
        """Every change of a part, or ``limit`` of them."""
        every = list(self.changes(part))
        if limit is None and self.golden.name not in _WHOLE_OF:
            limit = _SHARE
        if limit is None or limit >= len(every):
            return every
        return sorted(random.Random(f"{seed} {part}").sample(every, limit))


def _whole(specimen: Specimen, directory: str) -> Iterator[Change]:
    for file in specimen.of(directory):
        length = len(specimen.files[file])
        yield from chain(cuts(file, length), bits(file, range(length)))


def _used(specimen: Specimen, directory: str) -> Iterator[Change]:
    """Each bit up to a little behind the last byte that isn't zero, and as many lengths."""
    for file in specimen.of(directory):
        data = specimen.files[file]
        used = min(len(data.rstrip(b"\0")) + _BEHIND, len(data))
        yield from chain(cuts(file, used), bits(file, range(used)))


def _checkpoint(specimen: Specimen) -> Iterator[Change]:
    """Each bit of the longs, and one in each byte behind them."""
    (file,) = specimen.of(names.CHECKPOINT)
    yield from cuts(file, LENGTH)
    yield from bits(file, range(_CHECKPOINT_USED))
    yield from (Change(file, "bit", place * 8 + place % 8) for place in range(_CHECKPOINT_USED, LENGTH))


def _config(specimen: Specimen) -> Iterator[Change]:
    for file in (CONF, *specimen.of(names.CONFIG)):
        length = len(specimen.files[file])
        yield from chain(cuts(file, length), bits(file, range(length)))


_CHANGES: dict[str, Callable[[Specimen], Iterator[Change]]] = {
    LOG: lambda specimen: _whole(specimen, names.COMMIT_LOG),
    QUEUE: lambda specimen: (_used if specimen.is_ordered else _whole)(specimen, names.CONSUME_QUEUE),
    EXT: lambda specimen: _used(specimen, names.CONSUME_QUEUE_EXT),
    BATCH: lambda specimen: _used(specimen, names.BATCH_CONSUME_QUEUE),
    INDEX: lambda specimen: _whole(specimen, names.INDEX),
    CHECKPOINT: _checkpoint,
    CONFIG: _config,
}


def index_place(settings: StoreSettings, byte: int) -> tuple[str, int, int]:
    """What a byte of an index file belongs to: ("header" | "slot" | "entry", number, byte in it)."""
    if byte < HEADER_LENGTH:
        return "header", 0, byte
    byte -= HEADER_LENGTH
    if byte < settings.max_hash_slot_num * SLOT_LENGTH:
        return "slot", byte // SLOT_LENGTH, byte % SLOT_LENGTH
    byte -= settings.max_hash_slot_num * SLOT_LENGTH
    return "entry", byte // ENTRY_LENGTH, byte % ENTRY_LENGTH
