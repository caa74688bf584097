"""What every command that reads RocksDB says of one that is torn, foreign, open, or can't be read at all.

One clear error on one line, exit code 2, and nothing changed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reput.derived import rocksdb as dumped_queues
from reput.format import names, rocksdbqueue
from reput.rocksdb import CURRENT
from reput.rocksdb.reader import PACKAGE
from tests import rocksdbs
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, broker_conf, golden, tree
from tests.unit.rocksdb.test_opened import _other_order

QUEUES, INDEX, TOPICS = names.CONSUME_QUEUE, names.ROCKSDB_STORE, "config/topics"
OFFSETS = "config/consumerOffsets"

#: Words of a command, and the databases that it reads.
READS = {
    "stats --topics STORE CONF": (QUEUES, TOPICS),
    "query STORE CONF --queue Orders:0 --at 0": (QUEUES,),
    "query STORE CONF --topic Orders --key order": (INDEX,),
    "lag STORE CONF": (QUEUES, OFFSETS),
    "dump digest STORE CONF -o NEW": (QUEUES,),
    "export STORE CONF --finding missing-unit -o NEW": (QUEUES,),
    "dump consumequeue STORE": (QUEUES,),
    "dump index STORE/rocksdbstore": (INDEX,),
    "dump config STORE": (TOPICS, OFFSETS),
}
PAIRS = [(words, database) for words, databases in READS.items() for database in databases]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    store = golden("5.5.0-rocksdb-index", tmp_path_factory.mktemp("sound"))
    topics = {"Orders": {"topicName": "Orders", "perm": 6}}
    rocksdbs.settings(store.root, "separate", topics=topics, offsets={"Orders@g": {0: 3}})
    return store


@pytest.fixture
def store(sound: GoldenStore, tmp_path: Path) -> Iterator[GoldenStore]:
    shutil.copytree(sound.root, tmp_path / "store")
    conf = (broker_conf(sound).read_text()).replace(str(sound.root), str(tmp_path / "store"))
    (tmp_path / "broker.conf").write_text(conf)
    yield GoldenStore(sound.name, tmp_path / "store", sound.manifest)
    dumped_queues._kept.cache_clear()


def filled(words: str, store: GoldenStore, new: Path) -> list[str]:
    conf = f"--broker-conf {broker_conf(store)} --rocketmq-version {store.version}"
    return words.replace("STORE", str(store.root)).replace("CONF", conf).replace("NEW", str(new)).split()


def _no_manifest(database: Path) -> None:
    (database / CURRENT).write_text("MANIFEST-999999\n")


def _no_words(database: Path) -> None:
    (database / CURRENT).write_text("nonsense")


def _cut(database: Path) -> None:
    for path in database.glob("*.sst"):
        os.truncate(path, path.stat().st_size // 2)


def _cut_manifest(database: Path) -> None:
    (path,) = database.glob("MANIFEST-*")
    os.truncate(path, path.stat().st_size - 3)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "no-manifest": _no_manifest,
    "no-words": _no_words,
    "cut": _cut,
    "cut-manifest": _cut_manifest,
    "other-order": _other_order,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(("words", "database"), PAIRS, ids=[f"{a.split(' STORE')[0]}-{b}" for a, b in PAIRS])
def test_a_torn_one(
    reput: Command, store: GoldenStore, tmp_path: Path, words: str, database: str, damage: str
) -> None:
    DAMAGE[damage](store.root / database)
    refused(reput, store, tmp_path, words, str(store.root / database))


@pytest.mark.parametrize(("words", "database"), [pair for pair in PAIRS if pair[1] in (QUEUES, INDEX)])
def test_a_foreign_column_family(
    reput: Command, store: GoldenStore, tmp_path: Path, words: str, database: str
) -> None:
    families = ("offset", "foreign") if database == QUEUES else ("timer", "trans", "foreign")
    with rocksdbs.writing(store.root / database, *families):
        pass
    line = refused(reput, store, tmp_path, words, str(store.root / database))
    assert "a foreign column family" in line


@pytest.mark.parametrize("words", [words for words, databases in READS.items() if QUEUES in databases])
def test_both_places_of_queues(reput: Command, store: GoldenStore, tmp_path: Path, words: str) -> None:
    if words.startswith("dump consumequeue"):
        return  # it shows what is there, of both
    shutil.copytree(store.root / QUEUES, store.root / names.CONSUME_QUEUE_ROCKSDB)
    line = refused(reput, store, tmp_path, words, str(store.root / names.CONSUME_QUEUE_ROCKSDB))
    assert "a broker doesn't start with both" in line


@pytest.mark.parametrize("words", READS)
def test_without_what_reads_it(
    reput: Command, store: GoldenStore, tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    line = refused(reput, store, tmp_path, words, "")
    assert "this needs RocksDB, and reput was installed without it" in line
    assert "pip install '.[rocksdb]'" in line


@pytest.mark.parametrize("words", READS)
def test_one_that_is_open(reput: Command, store: GoldenStore, tmp_path: Path, words: str) -> None:
    """As by a living broker: what it has flushed is read, and it goes on writing."""
    with rocksdbs.writing(store.root / QUEUES, "offset") as db:
        before = tree(store.root)
        said = reput("-q", *filled(words, store, tmp_path / "new"))
        assert said.code == 0, said.stderr
        assert tree(store.root) == before
        db[rocksdbqueue.unit_key(b"Orders", 0, 5_000)] = bytes(rocksdbqueue.UNIT_LENGTH)


def test_a_report_says_what_it_could_not_read(reput: Command, store: GoldenStore, tmp_path: Path) -> None:
    _no_manifest(store.root / QUEUES)
    said = reput("-q", *filled("report STORE CONF -o NEW", store, tmp_path / "new"))
    assert said.code == 4
    assert "it will not start" in said.stdout
    assert (tmp_path / "new").exists()


def refused(reput: Command, store: GoldenStore, tmp_path: Path, words: str, where: str) -> str:
    """Run a command that has to be refused; what it said, in one line that names the place."""
    before = tree(store.root)
    said = reput("-q", *filled(words, store, tmp_path / "new"))
    assert (said.code, "Traceback" in said.stderr) == (2, False), said
    (line,) = [one for one in said.stderr.splitlines() if not one.startswith("reput: settings: ")]
    assert where in line
    assert tree(store.root) == before
    assert not (tmp_path / "new").exists()
    return line
