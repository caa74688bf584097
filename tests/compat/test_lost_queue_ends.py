"""A queue whose last messages were lost goes on in a mended store where it was, as the real store has it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from reput.diagnosis.check import check
from reput.diagnosis.verdict import Effect
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

CONFIG = SMALL_FILES
#: How many messages each queue gets, and how many are left: the last two of the second one are in two files.
LENGTHS = {0: 20, 1: 51, 2: 50, 3: 60, 4: 3}
LEFT = {0: 18, 1: 49, 2: 48, 3: 0, 4: 0}
LOST = sum(LENGTHS.values()) - sum(LEFT.values())


def units(root: Path, queue: int) -> list[tuple[int, int, int]]:
    directory = names.queue_directory(root, "Retried", queue)
    found = np.frombuffer(b"".join(path.read_bytes() for path in sorted(directory.iterdir())), UNIT_DTYPE)
    return [tuple(one) for one in found[found["size"] > 0].tolist()]


def ends(store: JavaStore) -> dict[int, int]:
    return {queue: int(store.store.getMaxOffsetInQueue("Retried", queue)) for queue in LENGTHS}


def consumed(store: JavaStore, queue: int) -> list[str]:
    """The bodies of what a consumer that begins at 0 gets."""
    bodies, at = [], 0
    while at < int(store.store.getMaxOffsetInQueue("Retried", queue)):
        found = store.store.getMessage("group", "Retried", queue, at, 32, None)
        for buffer in found.getMessageBufferList():
            data = bytes(store.jvm.java.java.nio.ByteBuffer.allocate(buffer.remaining()).put(buffer).array())
            bodies.append(commitlog.decode(data, 0).body.decode())
        assert int(found.getNextBeginOffset()) > at
        at = int(found.getNextBeginOffset())
    return bodies


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7", "5.3.3"]))
@pytest.mark.parametrize("behind", tried(80, more=[400]))
def test_a_queue_that_lost_its_last_messages_goes_on(version: str, behind: int, tmp_path: Path) -> None:
    """With few messages ``behind`` them, a start walks over what stands in for those that are lost."""
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    with JavaStore(version, root, CONFIG) as store:
        assert store.load()
        store.start()
        for queue, length in LENGTHS.items():
            for n in range(length):
                store.put(Message("Retried", queue, f"{n}".encode(), keys=f"k{n}"))
        for _ in range(behind):
            store.put(Message("Orders", 0, bytes(1000)))
        store.wait_dispatched()
        store.shutdown()
    (root / names.CONFIG).mkdir(exist_ok=True)
    table = {"topicConfigTable": {topic: {} for topic in ("Retried", "Orders")}}
    (root / names.CONFIG / "topics.json").write_text(json.dumps(table), encoding="utf-8")
    for queue in LENGTHS:
        for position, _, _ in units(root, queue)[LEFT[queue] :]:
            damage.write(root / names.COMMIT_LOG / names.offset_name(0), position + commitlog.MAGIC, b"oops")
    options = RebuildOptions(root, broker_conf=conf, rocketmq_version=version)

    mended = mend(options, apply=True)
    assert (mended.exit_code, mended.lost) == (0, LOST)

    def found() -> tuple[int, list[object]]:
        looked = check(VerifyOptions(root, None, conf, version))
        return looked.exit_code, [one for one in looked.findings if one.effect is not Effect.HARMLESS]

    assert found() == (0, [])
    with JavaStore(version, root, CONFIG) as store:
        assert store.load()
        store.start()
        assert ends(store) == LENGTHS, "as the groups have committed them"
        for queue in LENGTHS:
            for n in range(3):
                store.put(Message("Retried", queue, f"new {n}".encode()))
        store.wait_dispatched()
        assert ends(store) == {queue: length + 3 for queue, length in LENGTHS.items()}
        got = {queue: consumed(store, queue) for queue in LENGTHS}
        store.shutdown()
    for queue, left in LEFT.items():
        assert got[queue][-3:] == ["new 0", "new 1", "new 2"]
        assert set(got[queue][:-3]) == {str(n) for n in range(left)}
    assert found() == (0, []), "the places are a hole now, filled with the unit before it"
    assert mend(options).steps == []
    rebuild(options, None)
    assert found() == (0, []), "and with the next one"
