"""What has to be given before anything is mended: nothing is done until it is."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from reput.diagnosis.check import GIVE_RELEASE, check
from reput.diagnosis.findings import GIVE_DELAY_LEVELS
from reput.format import names
from reput.format.commitlog import SCHEDULE_TOPIC
from reput.job.options import RebuildOptions
from reput.mending import mend
from reput.verify.plan import VerifyOptions
from tests.compat.conf import conf_text
from tests.golden.store import GoldenStore, unpack
from tests.rebuilds import tree


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return unpack("4.9.7-mixed", tmp_path / "store")


def _asked(root: Path, *given: object) -> list[str]:
    """What check and mend ask for, the same; nothing is changed meanwhile."""
    before = tree(root)
    asked = check(VerifyOptions(root, None, *given)).next_steps
    mended = mend(RebuildOptions(root, None, *given), apply=True)
    assert not mended.applied
    assert [str(step) for step in mended.steps] == asked
    assert all(step.by_hand for step in mended.steps)
    assert tree(root) == before
    return asked


@pytest.mark.parametrize("lost", [(names.INDEX,), (names.INDEX, names.CONSUME_QUEUE)])
def test_the_release_where_index_and_start_depend_on_it(store: GoldenStore, lost: tuple[str, ...]) -> None:
    for name in lost:
        shutil.rmtree(store.root / name)
    conf = store.root.parent / "broker.conf"
    conf.write_text(conf_text(store.config), encoding="utf-8")
    assert _asked(store.root, conf) == [GIVE_RELEASE]
    assert mend(RebuildOptions(store.root, None, conf, "4.9.7"), apply=True).exit_code == 0
    assert check(VerifyOptions(store.root, None, conf, "4.9.7")).left == []


def test_the_release_where_something_lies_among_the_segments(store: GoldenStore) -> None:
    """Releases up to 4.4 start with it."""
    shutil.rmtree(store.root / names.INDEX)
    (store.root / names.COMMIT_LOG / "notes.txt").write_text("hello")
    checked = check(VerifyOptions(store.root))
    assert checked.verdict.exit_code == 5
    assert _asked(store.root) == [GIVE_RELEASE]
    assert check(VerifyOptions(store.root, None, None, "4.9.7")).verdict.exit_code == 4


def test_broker_conf_where_delayed_messages_are_due_at_other_times(store: GoldenStore) -> None:
    queue = next((store.root / names.CONSUME_QUEUE / SCHEDULE_TOPIC.decode()).iterdir())
    path = min(queue.iterdir())
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 12, struct.unpack_from(">q", data, 12)[0] + 7000)
    path.write_bytes(data)
    assert _asked(store.root) == [GIVE_DELAY_LEVELS]
    conf = store.root.parent / "broker.conf"
    conf.write_text(conf_text(store.config), encoding="utf-8")
    assert mend(RebuildOptions(store.root, None, conf), apply=True).exit_code == 0


def test_what_type_batch_queues_are_of_where_topics_json_has_lost_it(tmp_path: Path) -> None:
    store = unpack("5.3.3-batch-queue", tmp_path / "store")
    given = store.write_broker_conf(tmp_path / "broker.conf"), store.version
    found = {
        path.name: {"attributes": {"queue.type": "BatchCQ"} if kind == names.BATCH_CONSUME_QUEUE else {}}
        for kind in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)
        for path in (store.root / kind).iterdir()
    }
    topics = store.root / names.CONFIG / "topics.json"
    topics.parent.mkdir(exist_ok=True)
    topics.write_text(json.dumps({"topicConfigTable": found}), encoding="utf-8")
    assert check(VerifyOptions(store.root, None, *given)).exit_code == 0
    topics.write_text(json.dumps({"topicConfigTable": {name: {} for name in found}}), encoding="utf-8")
    (asked,) = _asked(store.root, *given)
    assert "Set queue.type of the topic to what its files are" in asked
    topics.write_text("{}", encoding="utf-8")  # as a step says where nobody has it
    (asked,) = _asked(store.root, *given)
    entry = asked.partition(" are, ")[2].partition(" in topicConfigTable")[0]
    topics.write_text(f'{{"topicConfigTable":{{{entry}}}}}', encoding="utf-8")
    assert check(VerifyOptions(store.root, None, *given)).exit_code == 0
