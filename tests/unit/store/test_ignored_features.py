"""What a store has beside its log is left alone, and named."""

from __future__ import annotations

from pathlib import Path

from reput.replay.runner import InlineRunner
from reput.store.listing import ignored_features
from reput.verify.plan import VerifyOptions, prepare
from reput.verify.run import check
from tests.golden.store import unpack
from tests.stores import add_left_alone, tree_of


def test_only_what_holds_something_is_named(tmp_path: Path) -> None:
    assert ignored_features(tmp_path) == []
    # What a 5.5 store makes without being asked.
    (tmp_path / "compaction" / "compactionLog").mkdir(parents=True)
    (tmp_path / "compaction" / "position-checkpoint").write_text("{}")
    (tmp_path / "timerlog").mkdir()
    assert ignored_features(tmp_path) == []
    (tmp_path / "timerwheel").write_bytes(b"")
    assert ignored_features(tmp_path) == ["timerwheel"]
    assert ignored_features(tmp_path / "timerwheel") == []
    assert ignored_features(tmp_path / "nowhere") == []


def test_verify_says_that_it_did_not_look(tmp_path: Path) -> None:
    store = unpack("5.5.0-tiny", tmp_path / "store")
    beside = add_left_alone(store.root)
    before = tree_of(store.root)
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    options = VerifyOptions(store=store.root, broker_conf=conf, rocketmq_version=store.version)
    report = check(prepare(options), InlineRunner())
    (note,) = [note for note in report.not_checked if note.kind == "not-in-log"]
    assert note.text.startswith(", ".join(beside))
    assert tree_of(store.root) == before
