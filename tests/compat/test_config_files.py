"""What a broker makes of its files below config/ that are torn, empty or gone, against what reput says."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from reput.broker.config_files import FILES, config_problems
from reput.config.settings import StoreSettings
from reput.format import names
from tests.compat.java_store import JavaStore
from tests.compat.jvm import Jvm
from tests.levels import tried

pytestmark = pytest.mark.compat

_WHOLE = {
    "topics.json": b'{"dataVersion":{"counter":1},"topicConfigTable":{"T":{"topicName":"T","perm":6}}}',
    "consumerOffset.json": b'{"offsetTable":{"T@group":{0:7,1:9}}}',
    "subscriptionGroup.json": b'{"subscriptionGroupTable":{"group":{"groupName":"group"}}}',
    "delayOffset.json": b'{"offsetTable":{}}',
    "consumerFilter.json": b'{"filterDataByTopic":{"T":{"topic":"T","groupFilterData":{}}}}',
    "topicQueueMapping.json": b'{"dataVersion":{"counter":1},"topicQueueMappingInfoMap":{}}',
    "consumerOrderInfo.json": b'{"table":{"T@group":{0:{"popTime":7}}}}',
}


def damaged(whole: bytes) -> Iterator[tuple[str, bytes | str | None]]:
    """Ways in which a file can be: its bytes, None when it isn't there, or where a link leads."""
    yield "gone", None
    yield "empty", b""
    yield "of nothing", b"{}"
    yield "whole", whole
    yield "zeros", bytes(len(whole))
    yield "half", whole[: len(whole) // 2]
    yield "without its end", whole[:-1]
    yield "its end zeros", whole[:-9] + bytes(9)
    yield "a directory", "/dev"
    yield "a device", "/dev/null"
    yield "a link to nothing", "nowhere"


@pytest.mark.parametrize("version", tried("4.9.7", "5.5.0", more=["5.3.3"]))
def test_whether_a_broker_starts_with_its_config_files(version: str, tmp_path: Path) -> None:
    wrong, stopped = [], 0
    settings = StoreSettings.load(tmp_path, None, version)
    config = tmp_path / names.CONFIG
    with Jvm(version) as jvm:
        loaders = _loaders(jvm, tmp_path)
        for name in loaders:
            ways = list(damaged(_WHOLE[name]))
            for (how, data), (backup, kept) in product(ways, ways):
                shutil.rmtree(config, ignore_errors=True)
                config.mkdir()
                for path, content in ((config / name, data), (config / f"{name}.bak", kept)):
                    if isinstance(content, str):
                        path.symlink_to(content)
                    elif content is not None:
                        path.write_bytes(content)
                said = not any(problem.stops for problem in config_problems(settings))
                starts = bool(loaders[name]())
                stopped += not starts
                if starts != said:
                    wrong.append(f"{name} {how}, its .bak {backup}: starts {starts}, reput says {said}")
    assert not wrong, "\n".join(wrong)
    assert stopped >= len(loaders) >= len(FILES)


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7", "5.3.3"]))
def test_a_broker_waits_for_a_fifo(version: str, tmp_path: Path) -> None:
    settings = StoreSettings.load(tmp_path, None, version)
    config = tmp_path / names.CONFIG
    config.mkdir()
    with Jvm(version) as jvm:
        loaders = _loaders(jvm, tmp_path)
        for name in loaders:
            path = config / name
            path.with_name(f"{name}.bak").write_bytes(_WHOLE[name])
            os.mkfifo(path)
            problem = next(one for one in config_problems(settings) if one.path == str(path))
            assert (problem.found, problem.stops) == ("a FIFO", True)
            loading = threading.Thread(target=loaders[name], daemon=True)
            loading.start()
            loading.join(1.0)
            assert loading.is_alive(), f"{name}: the broker doesn't wait"
            os.close(os.open(path, os.O_WRONLY))  # now it goes on
            loading.join()
            path.unlink(missing_ok=True)


def _loaders(jvm: Jvm, root: Path) -> dict[str, Callable[[], bool]]:
    """How a broker loads each file; it isn't started."""
    rocketmq = jvm.java.org.apache.rocketmq
    store = rocketmq.store.config.MessageStoreConfig()
    store.setStorePathRootDir(str(root))
    broker = rocketmq.common.BrokerConfig()
    broker.setBrokerIP1("127.0.0.1")
    broker.setBrokerIP2("127.0.0.1")
    remoting = rocketmq.remoting.netty
    controller = rocketmq.broker.BrokerController(
        broker, remoting.NettyServerConfig(), remoting.NettyClientConfig(), store
    )
    inner = JavaStore(jvm.version, root, jvm=jvm).store
    if jvm.version.startswith("4."):
        delays = rocketmq.store.schedule.ScheduleMessageService(inner)
    else:
        controller.setMessageStore(inner)
        delays = rocketmq.broker.schedule.ScheduleMessageService(controller)
    of_5 = (
        {}
        if jvm.version.startswith("4.")
        else {
            "topicQueueMapping.json": controller.getTopicQueueMappingManager().load,
            "consumerOrderInfo.json": controller.getConsumerOrderInfoManager().load,
        }
    )
    return {
        **of_5,
        "consumerFilter.json": controller.getConsumerFilterManager().load,
        "topics.json": controller.getTopicConfigManager().load,
        "consumerOffset.json": controller.getConsumerOffsetManager().load,
        "subscriptionGroup.json": controller.getSubscriptionGroupManager().load,
        "delayOffset.json": delays.load,
    }
