"""A topic's messages by proven queues: the same as by walking the log, from less of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from reput.errors import SettingsError
from reput.format import names
from reput.replay.runner import InlineRunner
from reput.source import CommitLogDataSource, filters
from reput.source.ranges import ReadStatistics, total
from reput.verify import proofs
from reput.verify.plan import prepare
from reput.verify.proofs import Remembering
from reput.verify.run import check
from tests.golden.store import NAMES, GoldenStore
from tests.unit.verify.test_verify import open_golden, options, queue_file

STORE = "5.3.3-mixed"
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _nothing_is_racy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a test were written just now."""
    monkeypatch.setattr(proofs, "RACY_NS", -(10**18))


def proven(store: GoldenStore) -> Path:
    """What `check --proofs` leaves."""
    remembering = Remembering(None)
    check(prepare(options(store, batch_bytes=1)), InlineRunner(), proven=remembering)
    path = store.root.with_name("proofs")
    path.write_bytes(remembering.after.encode())
    return path


def read(store: GoldenStore, *conditions: tuple[object, ...], **more: object) -> tuple[Rows, ReadStatistics]:
    """The messages in log order, and what was read of files."""
    report = store.root.with_name("report")
    shutil.rmtree(report, ignore_errors=True)
    texts = {
        "path": store.root,
        "where": filters.text_of(conditions),
        "brokerConf": options(store).broker_conf,
        "rocketmqVersion": store.version,
        "readReport": report,
        "partBytes": 100_000,
        **more,
    }
    source = CommitLogDataSource(CaseInsensitiveDict({name: str(text) for name, text in texts.items()}))
    reader = source.reader(source.schema())
    rows = [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]
    return rows, total(report)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_messages_of_each_topic(name: str, tmp_path: Path) -> None:
    store = open_golden(name, tmp_path)
    path = proven(store)
    every, _ = read(store)
    for topic in sorted({row["topic"] for row in every}):
        of_topic = [row for row in every if row["topic"] == topic]
        assert read(store, ("topic", "=", topic), proofs=path)[0] == of_topic
        later = [row for row in of_topic if row["queueId"] < 2 and row["queueOffset"] > 3]
        asked = ("topic", "=", topic), ("queueId", "<", 2), ("queueOffset", ">", 3)
        assert read(store, *asked, proofs=path)[0] == later
    assert read(store, ("topic", "=", "no such topic"), proofs=path)[0] == []


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return open_golden(STORE, tmp_path)


def test_what_is_proven_is_read_by_its_units(store: GoldenStore) -> None:
    rows, _ = read(store)
    rare = min((row["topic"] for row in rows), key=[row["topic"] for row in rows].count)
    path = proven(store)
    _, walked = read(store, ("topic", "=", rare))
    found, reads = read(store, ("topic", "=", rare), proofs=path)
    assert found == [row for row in rows if row["topic"] == rare]
    # The last segment, and those with messages that no queue has, such as prepared ones, are walked.
    assert reads.tasks <= walked.tasks / 2
    assert reads.read < walked.read / 2


def test_of_named_queues_their_units_alone(store: GoldenStore) -> None:
    path = proven(store)
    asked = {"startQueueOffsets": '{"Orders": {"0": 5}}', "endQueueOffsets": '{"Orders": {"0": 9}}'}
    walked, _ = read(store, **asked)
    assert [row["queueOffset"] for row in walked] == [5, 6, 7, 8]
    assert read(store, proofs=path, **asked)[0] == walked


def test_other_units_than_were_proven_are_not_gone_by(store: GoldenStore) -> None:
    path = proven(store)
    walked, _ = read(store, ("topic", "=", "Orders"))
    queue = queue_file(store, "Orders", 0)
    with queue.open("r+b") as file:
        file.seek(47)
        file.write(b"\7")
    assert read(store, ("topic", "=", "Orders"), proofs=path)[0] == walked
    queue.unlink()
    assert read(store, ("topic", "=", "Orders"), proofs=path)[0] == walked


def test_a_segment_that_was_touched_is_walked(store: GoldenStore) -> None:
    path = proven(store)
    for segment in (store.root / names.COMMIT_LOG).iterdir():
        os.utime(segment)
    walked = read(store, ("topic", "=", "Orders"))
    assert read(store, ("topic", "=", "Orders"), proofs=path) == walked


def test_proofs_of_another_store_are_refused(store: GoldenStore, tmp_path: Path) -> None:
    path = proven(store)
    store.root.rename(tmp_path / "moved")
    moved = GoldenStore(store.name, tmp_path / "moved", store.manifest)
    with pytest.raises(SettingsError, match=r"the proofs are another store's; expected .*moved, found"):
        read(moved, ("topic", "=", "Orders"), proofs=path)
    with pytest.raises(SettingsError, match=r"there are no proofs; expected"):
        read(moved, ("topic", "=", "Orders"), proofs=tmp_path / "none")
    with pytest.raises(SettingsError, match="what was proven before can't be read"):
        read(moved, ("topic", "=", "Orders"), proofs=__file__)
