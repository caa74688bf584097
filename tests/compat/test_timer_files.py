"""A timer wheel, or its log, of another length: whether a whole broker starts, against what reput says."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.recovery.plan import plan
from tests.compat.broker import Broker
from tests.compat.conf import conf_text
from tests.compat.jvm import JavaError
from tests.golden.store import unpack
from tests.levels import tried

pytestmark = pytest.mark.compat


@pytest.mark.parametrize("switch", [True, False])
@pytest.mark.parametrize("file", ["timerwheel", "timerlog/00000000000000000000"])
@pytest.mark.parametrize("version", tried("5.5.0", more=["5.3.3"]))
def test_a_torn_timer_file_stops_a_broker(version: str, file: str, switch: bool, tmp_path: Path) -> None:
    assert_stops(version, file, {"timerWheelEnable": switch}, tmp_path, stops=switch)


@pytest.mark.parametrize("switch", [True, False])
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
