"""Files that weren't copied: what stands for them says the same as a copy, and what was listed is pinned."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.config import evidence, stand_in
from reput.config.stand_in import opened, with_queues
from reput.derived.index import read_header
from reput.errors import RemoteStoreError
from reput.format import indexfile, names
from reput.format.indexfile import IndexHeader
from reput.remote import store as remote_store
from reput.remote.client import RemoteFile
from reput.remote.store import BLOCK, KnownFile

SLOTS, ENTRIES, COUNT = 100_000, 40_000, 9
INDEX = f"{names.INDEX}/20261124191305000"
QUEUE = f"{names.CONSUME_QUEUE}/T/0"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store elsewhere, which is a directory, with an index file that isn't full and a queue."""
    root = tmp_path / "elsewhere"
    for name in (f"{names.COMMIT_LOG}/{names.offset_name(0)}", f"{QUEUE}/{names.offset_name(0)}"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(bytes(100))
    (root / names.INDEX).mkdir()
    with (root / INDEX).open("wb") as file:
        file.truncate(indexfile.file_length(SLOTS, ENTRIES))
        file.write(IndexHeader(1000, 2000, 7, 900, COUNT - 1, COUNT).encode())
        for ordinal in range(1, COUNT):
            file.seek(indexfile.HEADER_LENGTH + 4 * ordinal)
            file.write(struct.pack(">i", ordinal))
            file.seek(indexfile.file_length(SLOTS, ordinal))
            file.write(struct.pack(">iqii", ordinal, 7 if ordinal == 1 else 844 + 7 * ordinal, 0, 0))
    monkeypatch.setattr(stand_in, "url_of", str)
    monkeypatch.setattr(remote_store, "_clients", {})
    monkeypatch.setattr(remote_store, "_known", {})
    yield f"file://{root}"
    for known in remote_store._known.values():
        shutil.rmtree(known.root.parent, ignore_errors=True)


def listed(url: str) -> dict[str, RemoteFile]:
    return {file.name: file for file in remote_store.client_of(url).list()}


def test_a_placeholder_tells_the_same_as_a_copy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "RANGE", BLOCK)  # holes of a copy
    monkeypatch.setattr(evidence, "_CHUNK", BLOCK)
    monkeypatch.setattr(evidence, "_MOST_READ", 4 * BLOCK)  # the entries come later in the file than that
    file = listed(url)[INDEX]
    found = []
    for known in ({}, {INDEX: KnownFile(file.size, file.pin, file.size)}):
        root = opened(url, derived=True, known=known).root
        blocks = (root / INDEX).stat().st_blocks
        assert (blocks == 0) is bool(known)
        header = read_header(root / INDEX)
        assert (header.index_count, header.end_physical_offset) == (COUNT, 900)
        found.append(evidence._size_of(root / INDEX, has_successor=False))
    assert found[0] == found[1] == (indexfile.file_length(SLOTS, ENTRIES), (SLOTS, ENTRIES))


def test_queues_are_those_that_were_listed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(url, derived=False)
    path = Path(url.removeprefix("file://")) / QUEUE / names.offset_name(0)
    (path.with_name(names.offset_name(100))).write_bytes(bytes(100))  # has come since
    directory = with_queues(store, [QUEUE])
    assert [one.name for one in (directory / QUEUE).iterdir()] == [path.name]
    monkeypatch.setattr(stand_in, "_copy", lambda _url, wanted: [*map(pytest.fail, map(str, wanted))])
    assert with_queues(store, [QUEUE]) == directory, "nothing is copied again"


def test_a_queue_that_has_changed_since_is_refused(url: str) -> None:
    store = opened(url, derived=False)
    path = Path(url.removeprefix("file://")) / QUEUE / names.offset_name(0)
    path.write_bytes(bytes(120))
    with pytest.raises(RemoteStoreError, match="it has changed since the run was planned"):
        with_queues(store, [QUEUE])
