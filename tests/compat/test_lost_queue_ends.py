"""A queue whose last messages were lost goes on in a mended store where it was, as the real store has it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from reput.diagnosis.check import check
from reput.format import commitlog, names
from reput.format.dtypes import UNIT_DTYPE
from reput.job.options import RebuildOptions
from reput.job.rebuilding import rebuild
from reput.mending import mend
from reput.verify.plan import VerifyOptions
from tests.compat import damage
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried

pytestmark = pytest.mark.compat

CONFIG = {**SMALL_FILES, "timerWheelEnable": False}
#: How many messages each queue gets: the last two of the second one are in two files, of the third in one.
LENGTHS = {0: 20, 1: 51, 2: 50}


def units(root: Path, queue: int) -> list[tuple[int, int, int]]:
    directory = names.queue_directory(root, "Retried", queue)
    found = np.frombuffer(b"".join(path.read_bytes() for path in sorted(directory.iterdir())), UNIT_DTYPE)
    return [tuple(one) for one in found[found["size"] > 0].tolist()]


def ends(store: JavaStore) -> dict[int, int]:
    return {queue: int(store.store.getMaxOffsetInQueue("Retried", queue)) for queue in LENGTHS}


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7", "5.3.3"]))
def test_a_queue_that_lost_its_last_messages_goes_on(version: str, tmp_path: Path) -> None:
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    with JavaStore(version, root, CONFIG) as store:
        assert store.load()
        store.start()
        for queue, length in LENGTHS.items():
            for n in range(length):
                store.put(Message("Retried", queue, f"{n}".encode(), keys=f"k{n}"))
        for _ in range(400):
            store.put(Message("Orders", 0, bytes(1000)))
        store.wait_dispatched()
        store.shutdown()
    (root / names.CONFIG).mkdir(exist_ok=True)
    table = {"topicConfigTable": {topic: {} for topic in ("Retried", "Orders")}}
    (root / names.CONFIG / "topics.json").write_text(json.dumps(table), encoding="utf-8")
    for queue in LENGTHS:
        for position, _, _ in units(root, queue)[-2:]:
            damage.write(next((root / names.COMMIT_LOG).glob("*00")), position + commitlog.MAGIC, b"oops")
    options = RebuildOptions(root, broker_conf=conf, rocketmq_version=version)

    mended = mend(options, apply=True)
    assert (mended.exit_code, mended.lost) == (0, 2 * len(LENGTHS))

    def found() -> tuple[int, list[object], int]:
        looked = check(VerifyOptions(root, None, conf, version))
        return looked.exit_code, [one for one in looked.findings if one.messages], looked.filled

    assert found() == (0, [], 2 * len(LENGTHS))
    with JavaStore(version, root, CONFIG) as store:
        assert store.load()
        store.start()
        assert ends(store) == LENGTHS, "as the groups have committed them"
        for queue in LENGTHS:
            for n in range(3):
                store.put(Message("Retried", queue, f"new {n}".encode()))
        store.wait_dispatched()
        assert ends(store) == {queue: length + 3 for queue, length in LENGTHS.items()}
        store.shutdown()
    for queue, length in LENGTHS.items():
        there = units(root, queue)
        assert len(there) == length + 3
        assert there[length - 2] == there[length - 1] == there[length - 3]
    assert found() == (0, [], 2 * len(LENGTHS)), "the places are a hole now, filled with the unit before it"
    assert mend(options).steps == []
    rebuild(options, None)
    assert found() == (0, [], 2 * len(LENGTHS)), "and with the next one"
