"""Settings that decide where a start's walk begins and the log is cut, as real starts take them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.errors import UnsupportedError
from reput.format import commitlog, names
from reput.format.rocksdbqueue import CHECKPOINT_KEY, checkpoint_value
from reput.recovery.plan import Plan, plan
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.jvm import Jvm
from tests.golden.store import GoldenStore, unpack
from tests.levels import tried
from tests.rebuilds import overwrite, record_starts
from tests.rocksdbs import writing

pytestmark = pytest.mark.compat

SIZE = 65536


def bad_body(segment: int, number: int = 3) -> Callable[[GoldenStore], None]:
    """A wrong byte in a body of a segment."""

    def damage(golden: GoldenStore) -> None:
        base = segment * SIZE
        data = (golden.root / names.COMMIT_LOG / names.offset_name(base)).read_bytes()
        starts = [one - base for one in record_starts(golden.root, base)]
        at = next(one for one in starts[number:] if commitlog.decode(data, one).body)
        body = at + data[at:].index(commitlog.decode(data, at).body)
        overwrite(golden.root, SIZE, base + body, bytes([data[body] ^ 1]))

    return damage


def queues_end(place: int) -> Callable[[GoldenStore], None]:
    """The checkpoint key of queues in RocksDB."""

    def damage(golden: GoldenStore) -> None:
        with writing(golden.root / names.CONSUME_QUEUE, "offset") as db:
            family = db.get_column_family("offset")
            family[CHECKPOINT_KEY] = checkpoint_value(place)
            family.flush()
            family.close()

    return damage


def in_checkpoint(at: int, value: int) -> Callable[[GoldenStore], None]:
    """A long of the file checkpoint."""

    def damage(golden: GoldenStore) -> None:
        path = golden.root / names.CHECKPOINT
        data = bytearray(path.read_bytes())
        struct.pack_into(">q", data, at, value)
        path.write_bytes(bytes(data))

    return damage


def crashed(golden: GoldenStore) -> None:
    (golden.root / names.ABORT).touch()


def negative_closing_record(golden: GoldenStore) -> None:
    base = 6 * SIZE
    data = (golden.root / names.COMMIT_LOG / names.offset_name(base)).read_bytes()
    magic = data.rindex(commitlog.MAGIC_BLANK.to_bytes(4, "big"))
    overwrite(golden.root, SIZE, base + magic - 4, b"\x80")


def stored_place_0(golden: GoldenStore) -> None:
    at = record_starts(golden.root, 7 * SIZE)[5]
    overwrite(golden.root, SIZE, at + commitlog.PHYSICAL_OFFSET, bytes(8))


@dataclass(frozen=True)
class Case:
    """A damaged golden store, and the settings that it is started with."""

    golden: str
    damages: tuple[Callable[[GoldenStore], None], ...]
    config: dict[str, object] = field(default_factory=dict)
    release: str = "5.5.0"


INDEX_OFF: dict[str, object] = {"messageIndexEnable": False, "indexRocksDBEnable": True}
INDEX_SAFE: dict[str, object] = {"indexFileWriteEnable": False, "messageIndexSafe": True}
DOUBLE, MIXED, ROCKSDB = "5.5.0-rocksdb-double-write", "5.5.0-mixed", "5.3.3-rocksdb-mixed"
CHECK_OFFSETS: dict[str, object] = {"checkCommitLogOffsetOnRecover": True}
CASES = {
    "an index in RocksDB that is never written": Case(MIXED, (bad_body(2),), INDEX_OFF),
    "index files that aren't written": Case(MIXED, (in_checkpoint(16, 0), bad_body(2)), INDEX_SAFE),
    "of both, RocksDB behind": Case(DOUBLE, (queues_end(5 * SIZE), bad_body(6))),
    "far behind": Case(DOUBLE, (queues_end(SIZE), bad_body(6), bad_body(3))),
    "behind after a crash": Case(
        DOUBLE, (queues_end(5 * SIZE + 100), in_checkpoint(40, 7 * SIZE + 100), bad_body(6), crashed)
    ),
    "never begun": Case(DOUBLE, (queues_end(0), bad_body(6))),
    "never begun, 5.4": Case(DOUBLE, (queues_end(0), bad_body(6)), release="5.4.0"),
    "a closing record of a negative size": Case(MIXED, (negative_closing_record, crashed), release="5.5.1"),
    "a stored place outside, after a stop": Case(MIXED, (stored_place_0,), CHECK_OFFSETS),
    "a stored place outside, after a crash": Case(MIXED, (stored_place_0, crashed), CHECK_OFFSETS),
    "a wrong first record, RocksDB": Case(ROCKSDB, (bad_body(5), bad_body(6, 0), crashed), release="5.3.3"),
}


def foretold(golden: GoldenStore, case: Case) -> Plan:
    conf = golden.root.parent / "broker.conf"
    conf.write_text(conf_text({**golden.config, **case.config}))
    return plan(take(StoreSettings.load(golden.root, conf, case.release, rocksdb=True, elsewhere=True)))


@pytest.mark.parametrize("name", tried(*[*CASES][::3], more=[one for at, one in enumerate(CASES) if at % 3]))
def test_the_log_ends_where_a_real_start_ends_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    golden = unpack(case.golden, tmp_path / "store")
    for damage in case.damages:
        damage(golden)
    found = foretold(golden, case).prediction
    with Jvm(case.release, heap="512m") as jvm:
        store = JavaStore(case.release, golden.root, {**golden.config, **case.config}, jvm=jvm)
        assert store.load() == found.starts
        assert int(store.store.getMaxPhyOffset()) == found.log_end
    left = sorted(int(path.name) for path in (golden.root / names.COMMIT_LOG).iterdir())
    assert left == [one.base for one in found.segments]


@pytest.mark.parametrize(
    "config",
    [
        {"combineAssignOffsetCQType": "defaultRocksDB"},
        {"combineCQPreferCQType": "defaultRocksDB"},
        {"combineCQLoadingCQTypes": "defaultRocksDB"},
        {"enableAcceleratedRecovery": True},
        {"transRocksDBEnable": True},
    ],
)
def test_what_isnt_known_isnt_foretold(config: dict[str, object], tmp_path: Path) -> None:
    golden = unpack(DOUBLE, tmp_path / "store")
    with pytest.raises(UnsupportedError):
        foretold(golden, Case(DOUBLE, (), config, "5.4.0"))
