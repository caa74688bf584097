"""Segments that a copy has made older than their messages, for which a broker deletes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reput.diagnosis.check import Diagnosis, check
from reput.diagnosis.verdict import Area, Effect, Remedy
from reput.format import names
from reput.verify.plan import VerifyOptions
from tests.golden.store import GoldenStore, unpack

#: So many that 1970 is out of it, and the messages of the store are not.
HOURS = 400_000


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return unpack("5.3.3-restart", tmp_path / "store")


def checked(store: GoldenStore, hours: int = HOURS) -> Diagnosis:
    store.manifest["config"]["fileReservedTime"] = hours
    conf = store.write_broker_conf(store.root.parent / "broker.conf")
    return check(VerifyOptions(store.root, None, conf, store.version), quick=True)


def test_segments_that_are_older_than_their_messages(store: GoldenStore) -> None:
    segments = sorted((store.root / names.COMMIT_LOG).iterdir())
    assert checked(store).exit_code == 0
    for path in segments:
        os.utime(path, (0, 0))
    found = checked(store)
    (one,) = found.left
    assert (one.kind, one.area, one.effect, one.remedy) == (
        "old-times",
        Area.LOG,
        Effect.LOSES,
        Remedy.BY_HAND,
    )
    assert one.path == str(segments[0])
    assert f"so of {len(segments) - 1} segments" in one.said, "the last one is never deleted"
    assert found.next_steps[0] == f"Before the broker starts, `touch` each segment from {segments[0]} on."
    assert checked(store, 1_000_000).exit_code == 0, "none is old enough"
    assert checked(store, 1).exit_code == 0, "all are due by their messages, too"
    segments[0].touch()
    assert checked(store).exit_code == 0, "a broker goes no further than the first one that is young"


def test_it_keeps_nothing_else_from_being_mended(store: GoldenStore) -> None:
    for path in (store.root / names.COMMIT_LOG).iterdir():
        os.utime(path, (0, 0))
    (store.root / names.CHECKPOINT).unlink()
    for path in (store.root / names.CONSUME_QUEUE).rglob("0" * 20):
        path.write_bytes(b"x")
    assert checked(store).mendable
