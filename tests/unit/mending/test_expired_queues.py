"""Queues whose messages have all expired: their files alone tell where they end, and are kept or missed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reput.diagnosis.check import check
from reput.diagnosis.verdict import Effect
from reput.format import names
from reput.format.consumequeue import unit
from reput.format.rocksdbqueue import offset_key, offset_value
from reput.job.options import RebuildOptions
from reput.job.rebuilding import rebuild
from reput.mending import mend
from reput.verify.plan import VerifyOptions
from tests.golden.store import GoldenStore, unpack
from tests.unit.job.test_databases import put

KIND = "expired-queues"


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return unpack("5.3.3-lost-head", tmp_path / "store")


def options(store: GoldenStore, **changes: object) -> RebuildOptions:
    conf = store.write_broker_conf(store.root.parent / "broker.conf")
    given = {"broker_conf": conf, "rocketmq_version": store.version} | changes
    return RebuildOptions(store.root, **given)  # type: ignore[arg-type]


def checked(store: GoldenStore, *queues: str) -> list[tuple[str, Effect]]:
    given = options(store)
    wanted = VerifyOptions(store.root, None, given.broker_conf, given.rocketmq_version, queues=queues)
    found = check(wanted)
    return [(one.kind, one.effect) for one in found.left]


def expired(store: GoldenStore, behind: bytes = b"", short: int = 0) -> Path:
    """The last file of a queue: seven units at the places from 100 on, and what lies behind."""
    start, path = store.manifest["log"]["start"], names.queue_file(store.root, "Expired", 3, 2000)
    units = b"".join(unit(at, 100, 7) for at in range(start - 700, start, 100))
    path.parent.mkdir(parents=True)
    path.write_bytes((units + behind).ljust(1000 - short, b"\0"))
    return path


def test_one_with_a_gap_ends_there_as_for_a_start(store: GoldenStore) -> None:
    path = expired(store, bytes(20) + unit(5, 100, 7))
    assert checked(store) == [("missing-unit", Effect.LACKS)]
    mended = mend(options(store), apply=True)
    assert mended.exit_code == 0
    assert mended.rebuilt is not None
    assert mended.rebuilt.carried_queues == ["Expired:3"]
    assert path.read_bytes()[140:] == bytes(860)
    assert checked(store) == []


def test_one_that_cant_be_kept_is_told_of(store: GoldenStore) -> None:
    """Its length keeps the broker from starting, and is no multiple of a unit's."""
    path = expired(store, short=30)
    mended = mend(options(store), apply=True)
    assert not path.exists()
    assert [(one.kind, one.effect) for one in mended.now.left] == [(KIND, Effect.GONE)]
    assert mended.exit_code == 1
    assert "Expired:3" in mended.now.left[0].said


def test_one_of_which_offsets_alone_are_left(store: GoldenStore) -> None:
    config = store.root / names.CONFIG
    config.mkdir()
    offsets = {"Expired@group": {"3": 107}, "Deleted@group": {"0": 5}, "Orders@group": {"0": 1, "1": 0}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": {"Expired": {}, "Orders": {}}}))
    path = config / "consumerOffset.json"
    path.write_text(json.dumps({"offsetTable": offsets}))
    assert (KIND, Effect.GONE) in checked(store)
    assert KIND not in dict(checked(store, "Payments")), "what others hold wasn't looked at"
    shutil.rmtree(store.root / names.CONSUME_QUEUE)
    mended = mend(options(store), apply=True)
    (told,) = [one for one in mended.now.left if one.kind == KIND]
    assert (told.path, told.count) == (str(path), 1)
    assert "the end of Expired:3, since group has committed 107 there" in told.said
    offsets["Expired@group"]["3"] = 0
    path.write_text(json.dumps({"offsetTable": offsets}))
    assert KIND not in dict(checked(store))


@pytest.mark.parametrize("name", ["5.3.3-lost-head", "5.3.3-rocksdb-lost-head"])
def test_an_output_beside_the_store_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "store")
    if "rocksdb" in name:
        value = offset_value(store.manifest["log"]["start"] - 100, 106)
        put(store.root / names.CONSUME_QUEUE, "offset", offset_key(b"Expired", 3, b"max"), value)
    else:
        expired(store)
    summary = rebuild(options(store, out=tmp_path / "out"), None)
    assert {queue: reason.split(",")[0] for queue, reason in summary.vanished_queues.items()} == {
        "Expired:3": "its last file stays in the store alone"
    }
    assert (summary.exit_code, summary.findings) == (0, [])


def test_what_is_odd_about_it_spoils_no_output_beside_the_store(store: GoldenStore, tmp_path: Path) -> None:
    path = expired(store)
    path.with_name(names.offset_name(3000)).symlink_to("/nowhere")
    behind = names.queue_file(store.root, "New", 0, 0)  # a topic of messages that the output hasn't got yet
    behind.parent.mkdir(parents=True)
    behind.write_bytes(unit(10**9, 100, 7).ljust(1000, b"\0"))
    assert rebuild(options(store, out=tmp_path / "out"), None).exit_code == 0
    path.with_name(names.offset_name(3000)).unlink()
    summary = rebuild(options(store, out=tmp_path / "next"), None)
    assert list(summary.vanished_queues) == ["Expired:3"]
