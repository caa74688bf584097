"""Queues in log order, consumequeue_ext and batch queues: equal to what the real store has just written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.format import names
from reput.replay.runner import InlineRunner
from reput.replay.target import Selection
from reput.store.compare import compare
from reput.verify.plan import VerifyOptions, prepare
from reput.verify.run import check
from tests.compat.conf import conf_text
from tests.compat.workloads import Workload, workload
from tests.compat.write import write
from tests.levels import tried
from tests.local import Store, rebuild_locally

pytestmark = pytest.mark.compat

SEED = 20261122
#: Of a topic that was deleted and created anew with fewer queues the log says nothing.
DELETED = (f"{names.CONSUME_QUEUE}/Again/2/", f"{names.CONSUME_QUEUE_EXT}/Again/2/")


def rebuilt_to_the_byte(chosen: Workload, tmp_path: Path, **how: object) -> Path:
    """The real store's directory, whose queues are all equal to what reput makes of its log."""
    root = tmp_path / "store"
    write(chosen, root)
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(chosen.config), encoding="utf-8")
    settings = StoreSettings.load(root, conf, chosen.version)
    out = tmp_path / "out"
    state = rebuild_locally(Store(root, settings), out, part_bytes=20_000, ends=[100_001, 250_000], **how)  # type: ignore[arg-type]
    found = compare(root, out)
    assert [line for line in found.differences if not line.startswith(DELETED)] == []
    assert [line for line in found.empty_directories if not line.startswith(DELETED)] == []
    # The second one: where a batch ends with the first message of a queue created anew.
    assert {finding.kind for finding in state.findings} <= {"queue-restarted", "queue-offset-jump"}
    return root


@pytest.mark.parametrize(
    ("name", "version"),
    tried(
        ("mixed", "5.5.0"),
        more=[("mixed", "4.9.7"), ("mixed", "5.3.3"), ("recreated-topic", "5.3.3"), ("lost-head", "4.9.7")],
    ),
)
def test_consumequeue_ext_is_rebuilt_to_the_byte(name: str, version: str, tmp_path: Path) -> None:
    chosen = workload(name, version, SEED)
    # 24 units to a file, and a rest.
    ext = {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 500}
    root = rebuilt_to_the_byte(replace(chosen, config={**chosen.config, **ext}), tmp_path)
    assert len(list((root / names.CONSUME_QUEUE_EXT).glob("*/*/*"))) > 10


@pytest.mark.parametrize("version", tried("5.5.0", more=["5.3.3"]))
def test_batch_queues_are_rebuilt_to_the_byte(version: str, tmp_path: Path) -> None:
    chosen = workload("batch-queue", version, SEED)
    selection = Selection(batch=frozenset(chosen.topics))
    root = rebuilt_to_the_byte(chosen, tmp_path, selection=selection)
    assert len(list((root / names.BATCH_CONSUME_QUEUE).glob("*/*/*"))) > 4


def test_batch_queues_of_a_topic_that_was_created_again_are_sound(tmp_path: Path) -> None:
    chosen = workload("recreated-topic", "5.3.3", SEED)
    attributes = {"queue.type": "BatchCQ"}
    # 100 units to a file.
    config = {**chosen.config, "mapperFileSizeBatchConsumeQueue": 4600}
    chosen = replace(chosen, config=config, topics={"Again": attributes})
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    write(chosen, root)
    conf.write_text(conf_text(chosen.config), encoding="utf-8")
    asked = VerifyOptions(root, broker_conf=conf, rocketmq_version="5.3.3", part_bytes=20_000)
    found = check(prepare(asked), InlineRunner())
    assert found.findings == []
    assert {note.queue_id: (note.kind, note.count) for note in found.notes if note.topic == "Again"} == {
        0: ("queue-restarted", 97),
        1: ("queue-restarted", 67),
        2: ("deleted-queue", 66),
    }
