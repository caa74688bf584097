"""Nights of a store in an object store: what is as it was by its ETag isn't read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import obstore
import pytest

from reput.format import names
from reput.remote import client
from reput.verify.proofs import CHANGED, REPLACED
from reput.verify.report import Report
from tests.golden.store import GoldenStore, unpack
from tests.remote import gateway as servers
from tests.remote.gateway import Gateway, s3
from tests.remote.nights import Asked, facts, night, watched, with_consumers

pytestmark = [
    pytest.mark.slow,  # the server is built, once per user
    pytest.mark.skipif(servers.why_not() is not None, reason=f"NOT TESTED: {servers.why_not()}"),
]


@pytest.fixture(autouse=True)
def _credentials(credentials: Callable[..., None]) -> None:
    """All tests need them."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return watched(monkeypatch, client._ObjectStore)


def skipped(report: Report) -> int:
    assert report.remembered is not None
    return report.remembered.skipped


def index_read(read: Asked) -> set[str]:
    """The index files of which something was read; evidence of settings is looked for in three of them."""
    return {Path(name).name for name in read.derived(names.INDEX)}


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return with_consumers(unpack("5.3.3-mixed", tmp_path / "store"))


def test_nights(gateway: Gateway, tmp_path: Path, store: GoldenStore, read: Asked) -> None:
    prefix = f"{tmp_path.name}/store"
    url = gateway.upload(store.root, prefix)
    segments = sorted(path.name for path in (store.root / names.COMMIT_LOG).iterdir())
    bucket = s3(gateway)

    first, found, left = night(store, url, None, read)
    assert (found, skipped(first)) == ([], 0)
    assert read.segments == set(segments)
    assert len(read.derived(names.INDEX)) == len(list((store.root / names.INDEX).iterdir()))

    second, found, left = night(store, url, left, read)
    assert (found, skipped(second)) == ([], len(segments) - 1)
    assert read.segments == {segments[-1]}
    assert facts(second) == facts(first)

    # A copy of the same bytes is another object, which is verified again; that it is another one is a note.
    name = f"{prefix}/{names.COMMIT_LOG}/{segments[1]}"
    sound = (store.root / names.COMMIT_LOG / segments[1]).read_bytes()
    data = bytearray(sound)
    data[len(data) // 2] ^= 1
    obstore.put(bucket, name, bytes(data))
    third, found, left = night(store, url, left, read)
    assert found[0] == (CHANGED, f"{url}/{names.COMMIT_LOG}/{segments[1]}")
    assert len(found) > 1
    assert read.segments == {segments[1], segments[-1]}
    fourth, again, left = night(store, url, left, read)
    assert again == found
    assert third.remembered is not None
    assert fourth.remembered is not None
    assert third.remembered.first_seen == fourth.remembered.first_seen

    # What was verified before is there again.
    obstore.put(bucket, name, sound)
    fifth, found, left = night(store, url, left, read)
    assert (found, facts(fifth)) == ([], facts(first))

    # A unit turns.
    queue = min((store.root / names.CONSUME_QUEUE).rglob("0" * 20))
    unit = bytearray(queue.read_bytes())
    unit[7] ^= 1
    path = queue.relative_to(store.root).as_posix()
    obstore.put(bucket, f"{prefix}/{path}", bytes(unit))
    _, found, left = night(store, url, left, read)
    assert found == [("wrong-unit", f"{url}/{path}")]

    # The head expires, which is no finding; all bytes are read where they are asked for.
    obstore.delete(bucket, f"{prefix}/{names.COMMIT_LOG}/{segments[0]}")
    report, found, left = night(store, url, left, read)
    assert CHANGED not in {kind for kind, _ in found}
    assert skipped(report) == len(segments) - 2
    night(store, url, left, read, read_all=True)
    assert read.segments == set(segments[1:])


def test_only_changed_queue_and_index_files_are_fetched(
    gateway: Gateway, tmp_path: Path, store: GoldenStore, read: Asked
) -> None:
    prefix = f"{tmp_path.name}/store"
    last = max((store.root / names.COMMIT_LOG).iterdir())
    moved = last.rename(tmp_path / "last")
    url = gateway.upload(store.root, prefix)
    bucket = s3(gateway)
    _, _, left = night(store, url, None, read)
    whole = read.derived(names.CONSUME_QUEUE)

    # The log grows by a segment, with an index file that was touched, and one of a queue.
    obstore.put(bucket, f"{prefix}/{names.COMMIT_LOG}/{last.name}", moved.read_bytes())
    indexed = sorted((store.root / names.INDEX).iterdir())
    assert len(indexed) > 3
    queue = max((store.root / names.CONSUME_QUEUE).rglob("0" * 20))
    for path in (indexed[-1], queue):
        obstore.put(bucket, f"{prefix}/{path.relative_to(store.root).as_posix()}", path.read_bytes())
    second, found, left = night(store, url, left, read)
    assert found == []
    assert index_read(read) <= {indexed[0].name, indexed[-2].name, indexed[-1].name}
    assert queue.relative_to(store.root).as_posix() in read.derived(names.CONSUME_QUEUE)
    anew, _, _ = night(store, url, left, read, anew=True)
    assert read.derived(names.CONSUME_QUEUE) == whole
    assert facts(second) == facts(anew)

    # Nothing changes: what the last segment's messages have is read, and what shows the settings.
    third, _, left = night(store, url, left, read)
    assert facts(third) == facts(anew)
    assert index_read(read) <= {indexed[0].name, indexed[-2].name, indexed[-1].name}

    # The head expires: units before a queue's first message are looked at where they weren't yet.
    first = min((store.root / names.COMMIT_LOG).iterdir()).name
    obstore.delete(bucket, f"{prefix}/{names.COMMIT_LOG}/{first}")
    for _ in range(2):
        fourth, _, left = night(store, url, left, read)
        anew, _, _ = night(store, url, left, read, anew=True)
        assert facts(fourth) == facts(anew)

    # A file goes while a night reads: the object that was listed is read, or none.
    obstore.put(bucket, f"{prefix}/{path.relative_to(store.root).as_posix()}", bytes(len(path.read_bytes())))
    fifth, _, _ = night(store, url, left, read)
    anew, _, _ = night(store, url, left, read, anew=True)
    assert facts(fifth) == facts(anew)
    assert fifth.findings


def test_a_young_file_without_etag_is_read_again(
    gateway: Gateway, tmp_path: Path, store: GoldenStore, read: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change within the tick of its time; as any file of a server that gives nothing else."""
    monkeypatch.setattr(
        client, "_pin", lambda meta: f"changed at {meta['last_modified']:%Y-%m-%dT%H:%M:%S%z}"
    )
    url = gateway.upload(store.root, f"{tmp_path.name}/store")
    segments = sorted(path.name for path in (store.root / names.COMMIT_LOG).iterdir())
    first, _, left = night(store, url, None, read)
    whole = read.derived(names.CONSUME_QUEUE)
    again, found, left = night(store, url, left, read)
    assert (found, skipped(again), read.segments) == ([], 0, set(segments))
    assert read.derived(names.CONSUME_QUEUE) == whole
    assert facts(again) == facts(first)
    assert [one for one in again.notes if one.kind == REPLACED] == []
    monkeypatch.setattr(client, "_RACY_SECONDS", -3600)  # as when an hour has gone by
    _, _, left = night(store, url, left, read)
    later, found, _ = night(store, url, left, read)
    assert (found, skipped(later), read.segments) == ([], len(segments) - 1, {segments[-1]})
    assert facts(later) == facts(first)


def test_a_copy_of_a_segment_is_a_note(
    gateway: Gateway, tmp_path: Path, store: GoldenStore, read: Asked
) -> None:
    # Bytes that a server stores anew have their ETag from them, unless it was put in parts.
    url = gateway.upload(store.root, f"{tmp_path.name}/store")
    segment = min((store.root / names.COMMIT_LOG).iterdir()).name
    _, _, left = night(store, url, None, read)
    base = int(segment)
    size, pin = left.segments[base].identity or (0, "")
    left.segments[base].identity = (size, 'ETag "put-in-parts-2"')
    report, found, left = night(store, url, left, read)
    assert found == []
    assert segment in read.segments
    (note,) = [one for one in report.notes if one.kind == REPLACED]
    assert f'another object ({pin}, was "put-in-parts-2")' in note.text
    report, found, _ = night(store, url, left, read)
    assert (found, [one for one in report.notes if one.kind == REPLACED]) == ([], [])
