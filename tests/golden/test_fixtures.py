"""The fixtures themselves: complete, undamaged, and refused when they are not."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from reput import demo
from reput.store.compare import compare
from tests.golden import store
from tests.golden.store import (
    ARCHIVE,
    DUMP,
    FILTERED,
    MANIFEST,
    NAMES,
    ROCKSDB,
    SETTINGS,
    GoldenError,
    describe,
    pack,
    read_dump,
    unpack,
)


@pytest.mark.parametrize("name", [*NAMES, *FILTERED, *ROCKSDB, *SETTINGS])
def test_each_fixture_is_what_its_manifest_says(name: str, tmp_path: Path) -> None:
    golden = unpack(name, tmp_path)
    assert name.startswith(f"{golden.version}-")
    assert (golden.root / "abort").exists() == golden.crashed
    size = int(str(golden.config["mappedFileSizeCommitLog"]))
    directory = "dledger-n0/data" if "enableDLegerCommitLog" in golden.config else "commitlog"
    segments = sorted((golden.root / directory).iterdir())
    assert int(segments[0].name) == golden.manifest["log"]["start"]
    assert all(segment.stat().st_size == size for segment in segments)
    ends = [int(segment.name) + size for segment in segments]
    assert golden.manifest["log"]["end"] <= ends[-1]
    # Only a crashed store keeps the segment that was allocated ahead.
    assert (golden.manifest["log"]["end"] <= ends[-1] - size) == golden.crashed


def test_no_fixture_is_left_over() -> None:
    assert {path.name for path in store.DIRECTORY.iterdir() if (path / MANIFEST).exists()} == {
        *NAMES,
        *FILTERED,
        *ROCKSDB,
        *SETTINGS,
    }


@pytest.mark.parametrize("name", ROCKSDB)
def test_a_dump_has_what_its_store_counts(name: str, tmp_path: Path) -> None:
    golden = unpack(name, tmp_path)
    separate = golden.config.get("useSeparateStorePathForRocksdbCQ")
    found = golden.dump()
    queues = found.pop("consumequeue_rocksdb" if separate else "consumequeue")
    assert set(found) == ({"rocksdbstore"} if golden.version == "5.5.0" else set())
    indexed = sum(len(entries) for families in found.values() for entries in families.values())
    assert bool(indexed) == bool(golden.config.get("indexRocksDBEnable"))
    last: dict[bytes, tuple[int, int]] = {}
    for key, value in queues["default"].items():
        # len 01 topic 01 queueId 01 queueOffset; phyOffset size tagsCode storeTimestamp
        topic_length, place = int.from_bytes(key[:4]), int.from_bytes(key[-8:])
        assert (len(key), len(value)) == (19 + topic_length, 28)
        queue = key[: 6 + topic_length] + b"max\x01" + key[-13:-9]
        last[queue] = max(last.get(queue, (-1, -1)), (place, int.from_bytes(value[:8])))
    offsets = queues["offset"]
    checkpoint = offsets.pop(b"\0\0\0\x10\x01CHECKPOINT_TOPIC\x01max\x01\0\0\0\0")
    log = golden.manifest["log"]
    assert log["start"] < int.from_bytes(checkpoint) <= log["end"]
    ends = {key: value for key, value in offsets.items() if key[6 + int.from_bytes(key[:4]) :][:3] == b"max"}
    assert ends == {queue: place.to_bytes(8) + offset.to_bytes(8) for queue, (offset, place) in last.items()}


@pytest.fixture
def fixtures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One fixture in a directory of its own, to be damaged."""
    directory = tmp_path / "golden"
    shutil.copytree(store.DIRECTORY / "4.9.7-no-keys", directory / "4.9.7-no-keys")
    monkeypatch.setattr(store, "DIRECTORY", directory)
    return directory / "4.9.7-no-keys"


def test_a_missing_fixture_fails(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match=r"5\.5\.0-mixed can't be read"):
        unpack("5.5.0-mixed", tmp_path / "store")
    (fixtures / ARCHIVE).unlink()
    with pytest.raises(GoldenError, match=r"4\.9\.7-no-keys can't be read"):
        unpack("4.9.7-no-keys", tmp_path / "store")


def test_a_cut_archive_fails(fixtures: Path, tmp_path: Path) -> None:
    archive = fixtures / ARCHIVE
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(GoldenError, match="can't be read"):
        unpack("4.9.7-no-keys", tmp_path / "store")


def test_a_missing_or_cut_dump_fails(fixtures: Path) -> None:
    name = "5.3.3-rocksdb-tiny"
    with pytest.raises(GoldenError, match=f"the dump of golden store {name} can't be read"):
        read_dump(name)
    shutil.copytree(Path(__file__).parent / name, fixtures.parent / name)
    assert read_dump(name)["consumequeue"]["default"]
    packed = fixtures.parent / name / DUMP
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(GoldenError, match=f"the dump of golden store {name} can't be read"):
        read_dump(name)


def test_a_changed_file_fails(fixtures: Path, tmp_path: Path) -> None:
    manifest = json.loads((fixtures / MANIFEST).read_text(encoding="utf-8"))
    manifest["files"]["checkpoint"]["sha256"] = "0" * 64
    (fixtures / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(GoldenError, match="checkpoint isn't what was written"):
        unpack("4.9.7-no-keys", tmp_path / "store")


def test_a_file_that_the_manifest_lacks_fails(fixtures: Path, tmp_path: Path) -> None:
    manifest = json.loads((fixtures / MANIFEST).read_text(encoding="utf-8"))
    del manifest["files"]["checkpoint"]
    (fixtures / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(GoldenError, match="manifest and archive differ in checkpoint"):
        unpack("4.9.7-no-keys", tmp_path / "store")


def test_packing_keeps_bytes_and_times_and_is_repeatable(tmp_path: Path) -> None:
    golden = unpack("4.9.7-lmq", tmp_path / "store")
    packed, again = tmp_path / "one.tar.xz", tmp_path / "two.tar.xz"
    pack(golden.root, packed)
    pack(golden.root, again)
    assert packed.read_bytes() == again.read_bytes()
    copy = tmp_path / "copy"
    with tarfile.open(packed) as archive:
        archive.extractall(copy, filter="data")
    assert describe(copy) == describe(golden.root) == golden.manifest["files"]
    found = compare(golden.root, copy)
    assert (found.differences, found.checkpoint) == ((), ())
    for path in golden.root.rglob("*"):
        assert abs(path.stat().st_mtime - (copy / path.relative_to(golden.root)).stat().st_mtime) < 1e-3


def test_settings_and_topics_of_a_store_can_be_written_out(tmp_path: Path) -> None:
    golden = unpack("5.5.0-batch-queue", tmp_path / "store")
    lines = golden.write_broker_conf().read_text(encoding="utf-8").splitlines()
    assert f"storePathRootDir={golden.root}" in lines
    assert "maxIndexNum=400" in lines
    topics = json.loads(golden.write_topics_json().read_text(encoding="utf-8"))
    assert topics["topicConfigTable"]["Batches"]["attributes"] == {"queue.type": "BatchCQ"}


def test_the_demonstration_store_is_what_its_manifest_says(tmp_path: Path) -> None:
    demo.unpack(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text(encoding="utf-8"))
    files = describe(tmp_path)
    del files[MANIFEST]
    assert files == manifest["files"]
