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
from tests.golden.store import ARCHIVE, FILTERED, MANIFEST, NAMES, GoldenError, describe, pack, unpack


@pytest.mark.parametrize("name", [*NAMES, *FILTERED])
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
    }


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
