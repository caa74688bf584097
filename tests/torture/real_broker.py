"""The broker's side, whole: name server, broker and clients, under load while its log is tailed.

What a store alone doesn't write is in this log: delayed messages that the broker delivers, prepared messages
with its own notes of their ends, messages that consumers failed on, the timer wheel's and those of popping.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from reput.newer_python import Self
from tests.compat.broker import Broker
from tests.compat.compiled import instance
from tests.compat.jvm import JavaError
from tests.torture.generator import SIZES

_SOURCE = Path(__file__).with_name("ClientLoad.java")
_TOPICS = ("Orders", "Lieferungen-2024", "Transfers", "Delayed", "Timed", "Parent", "Returns")
#: Of prepared messages that no producer has ended, the broker asks within seconds.
_CONFIG = {**SIZES, "transactionTimeOut": 2000, "transactionCheckInterval": 2000}


class BrokerUnderLoad:
    """A broker with producers and consumers; does for a torture what a ``Generator`` does.

    Args:
        version: the RocketMQ release.
        root: the store's directory.
        rate: messages a second in the mean, as producers send them.
        seed: of the messages.
    """

    def __init__(self, version: str, root: Path, *, rate: float, seed: int) -> None:
        self._is_5 = not version.startswith("4.")
        self._load = {"rate": float(rate), "seed": seed, "timers": self._is_5, "pop": self._is_5}
        self._broker = Broker(version, root, _CONFIG)
        self._loading = False

    def __enter__(self) -> Self:
        self._broker.__enter__()
        try:
            for topic in _TOPICS:
                self._broker.create_topic(topic)
            if self._is_5:
                self._let_pop("Returns", "poppers")
            self._clients = instance(self._broker.clients, _SOURCE)
            self._clients.apply({"nameServer": self._broker.name_server, **self._load})
            self._loading = True
        except BaseException as error:
            self._broker.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loading and error is None:
            try:
                self.finish()
            except BaseException as failure:
                self._broker.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._broker.__exit__(kind, error, trace)

    def end(self) -> int:
        """The physical offset of the log's end."""
        return int(self._broker.store.getMaxPhyOffset())

    def finish(self) -> int:
        """End the clients and wait until the broker has derived everything; returns how many were sent.

        The broker itself may write on, until it is stopped.

        Raises:
            JavaError: sending has failed, or the broker doesn't come to an end.
        """
        self._loading = False
        answer = self._clients.apply({"stop": True})
        if "error" in answer:
            raise JavaError(str(answer["error"]))
        self._broker.wait_dispatched()
        return int(answer["messages"])

    def _let_pop(self, topic: str, group: str) -> None:
        """Let a consumer group pop its messages of a topic, as an administrator does (5.x)."""
        java = self._broker.java.org.apache.rocketmq
        body = java.remoting.protocol.body.SetMessageRequestModeRequestBody()
        body.setTopic(topic)
        body.setConsumerGroup(group)
        body.setMode(java.common.message.MessageRequestMode.POP)
        body.setPopShareQueueNum(0)
        modes: Any = self._broker.controller.getQueryAssignmentProcessor().getMessageRequestModeManager()
        modes.setMessageRequestMode(topic, group, body)
