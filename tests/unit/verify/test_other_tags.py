"""Indexes that hold tags in part: an upgrade to 5.4, or a return from there, and no damage."""

from __future__ import annotations

import struct
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.build.index import KeyRows
from reput.format import names
from reput.format.commitlog import Record
from reput.format.indexfile import PHYSICAL_OFFSET, IndexHeader, file_length
from reput.replay.runner import InlineRunner
from reput.verify.index import Entries, TagsOtherwise
from reput.verify.index_file import IndexInfo
from reput.verify.plan import VerifyOptions, prepare
from reput.verify.report import Report
from reput.verify.run import check
from tests.local import rebuild_locally, write_store
from tests.stores import LogWriter

_LENGTH = 100
_KEY, _TAG = 1, 2


def _keys(tags: list[bool], *, plain: bool = True) -> KeyRows:
    position = np.arange(len(tags), dtype=np.int64) * _LENGTH
    hashes = [[_KEY] * plain + [_TAG] * one for one in tags]
    keys = np.array([len(one) for one in hashes], np.int32)
    return KeyRows(position, position, keys, np.array([one for each in hashes for one in each], np.int32))


def _entries(keys: KeyRows) -> Entries:
    position = np.repeat(keys.position, keys.keys)
    place = np.arange(1, len(position) + 1, dtype=np.int64)
    return Entries(place, keys.key_hash.astype(np.int64), position, position * 0)


def _found(
    entries: Entries, messages: int, *, own_has_tags: bool, plain: bool = True
) -> tuple[TagsOtherwise, KeyRows] | None:
    info = IndexInfo("index", 7, 1_000, file_length(7, 1_000), 0, IndexHeader(index_count=500), -1, -1)
    own, other = ([_keys([tags] * messages, plain=plain)] for tags in (own_has_tags, not own_has_tags))
    return TagsOtherwise.of(own, other, entries, [info])


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=5), st.booleans())
def test_only_runs_may_be_another_releases(wanted: list[tuple[bool, int]], own_has_tags: bool) -> None:
    there = [tags for tags, count in wanted for _ in range(count)]
    found = _found(_entries(_keys(there)), len(there), own_has_tags=own_has_tags)
    runs = [(tags, len(list(run))) for tags, run in groupby(there)]
    inner = runs[1:-1]
    others = [run for run in runs if run[0] != own_has_tags]
    if not others or min(count for _, count in [*others, *inner]) < 8:
        assert found is None
        return
    assert found is not None
    tags, keys = found
    assert tags.count == sum(count for _, count in others)
    assert tags.end == max(n for n, one in enumerate(there) if one != own_has_tags) * _LENGTH + 1
    expected = _entries(_keys(there))
    assert (keys.position == expected.position).all()
    assert (keys.key_hash == expected.hash).all()


def test_entries_of_tags_leave_no_places() -> None:
    entries = _entries(_keys([False] * 20))
    assert _found(entries, 20, own_has_tags=True) is not None
    apart = entries._replace(place=entries.place + (entries.place > 10))
    assert _found(apart, 20, own_has_tags=True) is None
    assert _found(apart, 20, own_has_tags=False) is None, "as this release has them"


def test_messages_without_other_keys_prove_nothing() -> None:
    """A file that was lost leaves the others side by side."""
    entries = _entries(_keys([True] * 10 + [False] * 20, plain=False))
    assert _found(entries, 30, own_has_tags=True, plain=False) is None


# --- a store that went from release to release ------------------------------------------------------------


def _store(root: Path, tags: list[bool]) -> Path:
    """A store whose messages all have tags, and an index with those of some alone."""
    log = LogWriter(root, 20_000)
    for number, one in enumerate(tags):
        properties = b"UNIQ_KEY\x01%06d\x02%b\x01t\x02" % (number, b"TAGS" if one else b"TAGZ")
        log.append(Record(b"T", b"x" * 50, properties, queue_offset=number, store_timestamp=1_000 + number))
    (root.parent / "broker.conf").write_text(
        "mappedFileSizeCommitLog=20000\nmappedFileSizeConsumeQueue=100000\nmaxHashSlotNum=7\nmaxIndexNum=200\n"
    )
    sizes = {"max_hash_slot_num": 7, "max_index_num": 200, "consume_queue_file_size": 100_000}
    rebuild_locally(write_store(root, [], version="5.5.0", segment_size=20_000, **sizes), root)
    for path in (root / names.COMMIT_LOG).iterdir():
        path.write_bytes(path.read_bytes().replace(b"TAGZ", b"TAGS"))
    return root


def _report(root: Path, version: str) -> tuple[Report, list[str]]:
    options = VerifyOptions(root, broker_conf=root.parent / "broker.conf", rocketmq_version=version)
    report = check(prepare(options), InlineRunner())
    return report, [one.kind for one in report.findings if one.area == "index"]


@pytest.mark.parametrize(
    ("version", "kind", "count"), [("5.5.0", "tags-not-indexed", 150), ("4.9.7", "tags-indexed", 350)]
)
def test_there_and_back_and_there_again(version: str, kind: str, count: int, tmp_path: Path) -> None:
    root = _store(tmp_path / "store", [True] * 200 + [False] * 150 + [True] * 150)
    report, found = _report(root, version)
    assert found == []
    assert [(one.kind, one.count) for one in report.notes if one.kind == kind] == [(kind, count)]
    # Damage beside it is told, and nothing else.
    path = max((root / names.INDEX).iterdir())
    with path.open("r+b") as file:
        file.seek(file_length(7, 11))
        file.write(struct.pack(">i", 5))
    report, found = _report(root, version)
    assert {"missing-entry", "dangling-entry"} <= set(found)
    assert [one.kind for one in report.notes if one.kind == kind] == [kind]
    assert [one.count for one in report.findings if one.kind == "missing-entry"] == [1]


def test_an_index_that_begins_late_may_be_another_releases(tmp_path: Path) -> None:
    root = _store(tmp_path / "store", [True] * 500)
    for path in sorted((root / names.INDEX).iterdir())[:2]:
        path.unlink()
    report, found = _report(root, "4.9.7")
    assert found == ["missing-entry"]
    assert [one.cause for one in report.findings if one.kind == "missing-entry"] == ["index-begins-late"]
    assert [one.kind for one in report.notes if one.kind == "tags-indexed"] == ["tags-indexed"]


def test_entries_that_lead_before_the_log_are_no_tags_of_another_release(tmp_path: Path) -> None:
    root = _store(tmp_path / "store", [True] * 500)
    min((root / names.COMMIT_LOG).iterdir()).unlink()
    assert _report(root, "5.5.0")[1] == []
    for path in sorted((root / names.INDEX).iterdir())[2:4]:
        with path.open("r+b") as file:
            for ordinal in range(40, 80, 2):
                file.seek(file_length(7, ordinal) + PHYSICAL_OFFSET)
                file.write(bytes(8))
    assert "missing-entry" in _report(root, "5.5.0")[1]
