"""A timer wheel, or its log, of another length or gone: what a whole broker does, against what reput says."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.recovery.plan import plan
from tests.compat.broker import Broker
from tests.compat.conf import conf_text
from tests.compat.jvm import JavaError
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.golden.store import unpack
from tests.levels import tried

pytestmark = pytest.mark.compat


@pytest.mark.parametrize("switch", [True, False])
@pytest.mark.parametrize("file", tried("timerwheel", more=["timerlog/00000000000000000000"]))
@pytest.mark.parametrize("version", tried("5.5.0", more=["5.3.3"]))
def test_a_torn_timer_file_stops_a_broker(version: str, file: str, switch: bool, tmp_path: Path) -> None:
    assert_stops(version, file, {"timerWheelEnable": switch}, tmp_path, stops=switch)


@pytest.mark.parametrize("switch", tried(True, more=[False]))
@pytest.mark.parametrize("file", ["timerwheel", "timerwheel.12"])
def test_a_torn_snapshot_of_the_wheel_stops_a_broker(file: str, switch: bool, tmp_path: Path) -> None:
    """With them the newest is read, and what has the wheel's own name isn't."""
    stops = (file == "timerwheel.12") is switch
    assert_stops("5.5.0", file, {"timerWheelSnapshotFlush": switch}, tmp_path, stops=stops)


def assert_stops(version: str, file: str, changes: dict[str, bool], tmp_path: Path, *, stops: bool) -> None:
    golden = unpack(f"{version}-tiny", tmp_path / "store")
    (golden.root / file).parent.mkdir(exist_ok=True)
    if "timerWheelSnapshotFlush" in changes:
        for name in ("timerwheel", "timerwheel.9", "timerwheel.12"):
            (golden.root / name).write_bytes(bytes(2 * 7 * 86_400 * 32))
    (golden.root / file).write_bytes(bytes(5000))
    config = {**golden.config, **changes}
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(config))
    found = plan(take(StoreSettings.load(golden.root, conf, version))).prediction
    assert [one.path for one in found.problems] == ([str(golden.root / file)] if stops else [])
    broker = Broker(version, golden.root, config)
    try:
        with broker:
            started = True
            broker.stop_clients()
            broker.kill()
    except (JavaError, Py4JError):  # the JVM has ended itself
        started = False
    assert started is found.starts is not stops


TIMED = {**SMALL_FILES, "timerWheelEnable": True, "mappedFileSizeTimerLog": 1 << 20}


@pytest.mark.proof
@pytest.mark.parametrize("version", ["5.5.0", "5.3.3"])
def test_what_a_start_makes_of_timed_messages_without_their_files(version: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Broker(version, root, TIMED) as broker:
        broker.create_topic("T", 1)
        broker.produce([Message("T", body=b"at once")])  # a client that takes its time would be late
        soon = int(time.time() * 1000) + 10_000
        times = [soon] * 2 + [due := soon + 90_000] * 3
        broker.produce(Message("T", body=b"timed", properties={"TIMER_DELIVER_MS": str(at)}) for at in times)
        broker.wait_dispatched()
        assert broker.store.getMaxOffsetInQueue("rmq_sys_wheel_timer", 0) == len(times)
        assert delivered(broker, soon) == 1 + 2
        assert time.time() * 1000 < due - 20_000
    for gone, lost, delivers in (
        ([], False, 3 + 3),
        (["timerwheel"], False, 3 + 3),  # made anew from its log
        (["timerlog"], True, 3),
        (["timerwheel", "timerlog"], True, 3),
        (["timerwheel", "timerlog", "config/timercheck"], False, 3 + 5),  # what check says to do
    ):
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        for name in gone:
            shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
        conf = tmp_path / "broker.conf"
        conf.write_text(conf_text(TIMED))
        found = take(StoreSettings.load(copy, conf, version)).problems
        assert [one.kind for one in found] == ["missing-config"] * lost, gone
        with Broker(version, copy, TIMED) as broker:
            assert delivered(broker, due) == delivers, gone
        shutil.rmtree(copy)


def delivered(broker: Broker, due: int) -> int:
    """Messages in T:0 once the wheel has turned past ``due``, ms, and none has come for a while."""
    timers, deadline = broker.controller.getTimerMessageStore(), time.monotonic() + 180
    while timers.getCommitReadTimeMs() <= due + 2000 or timers.getEnqueueBehindMessages() > 0:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    before, count = -1, 0
    while count != before:
        time.sleep(10)
        before, count = count, int(broker.store.getMaxOffsetInQueue("T", 0))
    return count
