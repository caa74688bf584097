"""Ways in which queues in RocksDB get lost or wrong; each one's text says what it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reput.format import names
from tests.compat import rocksdb
from tests.compat.jvm import Jvm
from tests.compat.rocksdb import CHECKPOINT, Families, offset_key, unit_key
from tests.compat.served import Places, Queue

LONGEST = "Orders", 0
"""The queue that holes are made in."""


@dataclass
class Copy:
    """A copy of a store, to be damaged.

    Attributes:
        root: its directory.
        config: with which it is started.
        jvm: of its release.
        queues: what its RocksDB held.
        places: what that led to; of a store of files, what these led to.
    """

    root: Path
    config: dict[str, object]
    jvm: Jvm
    queues: Families
    places: dict[Queue, Places]

    @property
    def directory(self) -> Path:
        """The RocksDB's."""
        return self.root / names.CONSUME_QUEUE

    def change(self, family: str, entries: dict[bytes, bytes | None]) -> None:
        """Put entries; None deletes."""
        rocksdb.change(self.jvm, self.directory, family, entries)

    def segments(self) -> list[Path]:
        """The log's, in order."""
        return sorted(path for path in (self.root / names.COMMIT_LOG).iterdir() if path.is_file())


def untouched(copy: Copy) -> None:
    """Nothing is damaged."""


def gone(copy: Copy) -> None:
    """The RocksDB is gone."""
    shutil.rmtree(copy.directory)


def gone_long_log(copy: Copy) -> None:
    """The same, and the log has more segments than `commitLogRecoverMaxNum` (5.4 on, default 10): it is 2."""
    gone(copy)
    copy.config["commitLogRecoverMaxNum"] = 2


def switched_to_files(copy: Copy) -> None:
    """The broker kept its queues in RocksDB, and its storeType is `default` now."""
    del copy.config["storeType"]


def no_max_keys(copy: Copy) -> None:
    """No queue has a max key; the checkpoint is there."""
    keys = [key for key in copy.queues["offset"] if b"\x01max\x01" in key and key != CHECKPOINT]
    copy.change("offset", dict.fromkeys(keys))


def no_checkpoint(copy: Copy) -> None:
    """The checkpoint key is missing."""
    copy.change("offset", {CHECKPOINT: None})


def empty_offsets(copy: Copy) -> None:
    """All units are there, and no max, min and checkpoint key."""
    copy.change("offset", dict.fromkeys(copy.queues["offset"]))


def checkpoint_low(copy: Copy) -> None:
    """The checkpoint names the middle of the log."""
    copy.change("offset", {CHECKPOINT: (_checkpoint(copy) // 2).to_bytes(8)})


def checkpoint_low_units_gone(copy: Copy) -> None:
    """The checkpoint names the middle of the log, and units and max keys are as they were then."""
    middle = sorted(offset for places in copy.places.values() for offset in places.values())
    there = middle[len(middle) // 2]
    later = [
        unit_key(*queue, place)
        for queue, places in copy.places.items()
        for place, offset in places.items()
        if offset >= there
    ]
    copy.change("default", dict.fromkeys(later))
    ends: dict[bytes, bytes | None] = {CHECKPOINT: there.to_bytes(8)}
    for queue, places in copy.places.items():
        last = max((place for place, offset in places.items() if offset < there), default=None)
        key = offset_key(*queue, "max")
        ends[key] = None if last is None else places[last].to_bytes(8) + last.to_bytes(8)
    copy.change("offset", ends)


def checkpoint_high(copy: Copy) -> None:
    """The checkpoint lies 1 MiB beyond the log's end."""
    copy.change("offset", {CHECKPOINT: (_checkpoint(copy) + (1 << 20)).to_bytes(8)})


def checkpoint_at_end_half_gone(copy: Copy) -> None:
    """Every other unit is gone; the checkpoint names the log's end."""
    copy.change("default", dict.fromkeys(sorted(copy.queues["default"])[1::2]))


def max_low(copy: Copy) -> None:
    """A queue's max key names a message in its middle."""
    places = copy.places[LONGEST]
    middle = max(places) // 2
    copy.change("offset", {offset_key(*LONGEST, "max"): places[middle].to_bytes(8) + middle.to_bytes(8)})


def max_high(copy: Copy) -> None:
    """A queue's max key names a place 50 behind its last message."""
    places = copy.places[LONGEST]
    last = max(places)
    copy.change("offset", {offset_key(*LONGEST, "max"): places[last].to_bytes(8) + (last + 50).to_bytes(8)})


def min_high(copy: Copy) -> None:
    """A queue's min key names a message in its middle; none of it has expired."""
    places = copy.places[LONGEST]
    middle = max(places) // 2
    copy.change("offset", {offset_key(*LONGEST, "min"): places[middle].to_bytes(8) + middle.to_bytes(8)})


def hole(copy: Copy) -> None:
    """A queue lacks 40 units in its middle and has no min key."""
    copy.change("default", dict.fromkeys(_middle(copy)))
    copy.change("offset", {offset_key(*LONGEST, "min"): None})


def hole_with_min(copy: Copy) -> None:
    """A queue lacks 40 units in its middle and has a min key."""
    copy.change("default", dict.fromkeys(_middle(copy)))
    first = copy.places[LONGEST][0]
    copy.change("offset", {offset_key(*LONGEST, "min"): first.to_bytes(8) + (0).to_bytes(8)})


def hole_filled(copy: Copy) -> None:
    """The same, and the unit behind the hole stands in each of its places, as for lost messages.

    Only the comparison with the log tells that they aren't lost: 40 wrong-unit.
    """
    keys = _middle(copy)
    following = unit_key(*LONGEST, int.from_bytes(keys[-1][-8:]) + 1)
    copy.change("default", dict.fromkeys(keys, copy.queues["default"][following]))


def units_to_nowhere(copy: Copy) -> None:
    """40 units of a queue lead beyond the log's end."""
    entries: dict[bytes, bytes | None] = {}
    for key in _middle(copy):
        unit = copy.queues["default"][key]
        entries[key] = (int.from_bytes(unit[:8]) + (1 << 30)).to_bytes(8) + unit[8:]
    copy.change("default", entries)


def torn_log(copy: Copy) -> None:
    """The log's last three messages are zeros: RocksDB is ahead of it."""
    offsets = sorted({offset for places in copy.places.values() for offset in places.values()})
    for segment in copy.segments():
        base, size = int(segment.name), segment.stat().st_size
        at = max(offsets[-3] - base, 0)
        if at < size:
            with segment.open("r+b") as file:
                file.seek(at)
                file.write(bytes(size - at))


def lost_head(copy: Copy) -> None:
    """The log's first two segments have expired; RocksDB still has their units."""
    for segment in copy.segments()[:2]:
        segment.unlink()


def no_manifest(copy: Copy) -> None:
    """CURRENT names a MANIFEST that is missing."""
    for path in copy.directory.glob("MANIFEST-*"):
        path.unlink()


def no_current(copy: Copy) -> None:
    """CURRENT is missing."""
    (copy.directory / "CURRENT").unlink()


def no_table(copy: Copy) -> None:
    """An SST file is missing."""
    _largest(copy).unlink()


def short_table(copy: Copy) -> None:
    """An SST file has lost its second half."""
    table = _largest(copy)
    table.write_bytes(table.read_bytes()[: table.stat().st_size // 2])


def foreign_family(copy: Copy) -> None:
    """RocksDB has a column family `foreign`, too."""
    rocksdb.add_family(copy.jvm, copy.directory, "foreign")


def separate_path(copy: Copy) -> None:
    """`useSeparateStorePathForRocksdbCQ` (5.5) is set, and RocksDB lies in `consumequeue`."""
    copy.config["useSeparateStorePathForRocksdbCQ"] = True


def wrong_block(copy: Copy) -> None:
    """100 bytes in the middle of an SST file's first block are zeros."""
    table = _largest(copy)
    with table.open("r+b") as file:
        file.seek(1000)
        file.write(bytes(100))


DAMAGES: tuple[Callable[[Copy], None], ...] = (
    untouched,
    gone,
    gone_long_log,
    switched_to_files,
    no_max_keys,
    no_checkpoint,
    empty_offsets,
    checkpoint_low,
    checkpoint_low_units_gone,
    checkpoint_high,
    checkpoint_at_end_half_gone,
    max_low,
    max_high,
    min_high,
    hole,
    hole_with_min,
    hole_filled,
    units_to_nowhere,
    torn_log,
    lost_head,
    no_manifest,
    no_current,
    no_table,
    short_table,
    wrong_block,
    foreign_family,
    separate_path,
)


def switched_to_rocksdb(copy: Copy) -> None:
    """The broker kept its queues in files, and its storeType is `defaultRocksDB` now."""


def _checkpoint(copy: Copy) -> int:
    return int.from_bytes(copy.queues["offset"][CHECKPOINT])


def _middle(copy: Copy) -> list[bytes]:
    first = max(copy.places[LONGEST]) // 2
    return [unit_key(*LONGEST, place) for place in range(first, first + 40)]


def _largest(copy: Copy) -> Path:
    return max(copy.directory.glob("*.sst"), key=lambda path: path.stat().st_size)
