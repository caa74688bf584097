"""A real broker with its name server, on the loopback, and a real client for it."""

from __future__ import annotations

import random
import shutil
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from reput.newer_python import Self
from tests.compat.compiled import instance
from tests.compat.conf import conf_text
from tests.compat.jvm import JavaError, Jvm, be_patient
from tests.compat.message import Message

CLUSTER = "DefaultCluster"
BROKER_NAME = "broker-a"

_LOOPBACK = Path(__file__).with_name("Loopback.java")
_REPLICATION = Path(__file__).with_name("LoopbackReplication.java")
_COLLECTOR = Path(__file__).with_name("Collector.java")
_READY_TIMEOUT = 120.0
_SEND_TIMEOUT = 60_000  # ms
_PULL_BATCH = 32
#: Else a broker that shares two cores with other tests refuses what has waited for 200 ms, and everything
#: when its log was locked for a second.
_PATIENT = {
    "waitTimeMillsInSendQueue": _SEND_TIMEOUT,
    "waitTimeMillsInPullQueue": _SEND_TIMEOUT,
    "waitTimeMillsInTransactionQueue": _SEND_TIMEOUT,
    "osPageCacheBusyTimeOutMills": _SEND_TIMEOUT,
}
_LARGEST = (1 << 63) - 1


class Sent(NamedTuple):
    """Where the broker put a message that the client sent.

    Attributes:
        queue_id: its queue.
        queue_offset: its ordinal there.
        unique_key: what the client set as UNIQ_KEY.
    """

    queue_id: int
    queue_offset: int
    unique_key: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message that the client got from the broker.

    Attributes:
        topic, queue_id, queue_offset: its place in a queue.
        physical_offset: its place in the commit log.
        body: as sent.
        tags, keys: properties TAGS and KEYS, None when absent.
        unique_key: property UNIQ_KEY.
        store_timestamp: ms.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    tags: str | None
    keys: str | None
    unique_key: str | None
    store_timestamp: int


class Listener:
    """A push consumer, and what it was given; made by :meth:`Broker.listen`, stopped with the broker."""

    def __init__(self, consumer: Any, collector: Any) -> None:
        self._consumer = consumer
        self._collector = collector

    def wait(self, count: int, timeout: float = _READY_TIMEOUT) -> None:
        """Wait until it was given this many messages, or for this many seconds."""
        deadline = time.monotonic() + timeout
        while int(self._collector.count()) < count and time.monotonic() < deadline:
            time.sleep(0.05)

    def received(self) -> list[Received]:
        """All messages that it was given so far, in the order of their arrival."""
        return [_received(message) for message in self._collector.messages()]

    def shutdown(self) -> None:
        """Stop it."""
        self._consumer.shutdown()


class Broker:
    """Name server, broker and client, each started when the context is entered; a context manager.

    Two JVMs: one holds the broker, and can be killed by itself; name server and client share the other.

    All listen on the loopback only; a 4.9 broker can't be told so, and is made to (``Loopback.java``).

    Args:
        version: the RocketMQ release.
        root: the broker's ``storePathRootDir``: a new directory, or a store that is there.
        config: more properties for broker.conf.
        name: the broker's name.
        beside: a broker that runs; this one joins its cluster, with its name server and its clients' JVM.
        slave_of: a master that runs ``beside`` this one, and keeps ``replicates``; its name is this one's.
        replicates: slaves may copy its log (5.x).
    """

    def __init__(
        self,
        version: str,
        root: Path,
        config: Mapping[str, object] | None = None,
        *,
        name: str = BROKER_NAME,
        beside: Broker | None = None,
        slave_of: Broker | None = None,
        replicates: bool = False,
    ) -> None:
        self.version = version
        self.name: str = name if slave_of is None else slave_of.name
        self._beside = slave_of or beside
        self._slave_of = slave_of
        self._replicates = replicates or slave_of is not None
        self.root = Path(root).absolute()
        self.root.mkdir(parents=True, exist_ok=True)
        self._config = dict(config or {})
        self._can_bind = not version.startswith("4.")
        self._stack = ExitStack()
        self._producer: Any = None
        self._transactions: Any = None
        self._puller: Any = None
        self._collector: Any = None
        self._listeners: list[Listener] = []
        self._controller: Any = None
        self._name_server_controller: Any = None

    def __enter__(self) -> Self:
        try:
            name_server_port, self.port = free_ports(self._stack)
            if self._beside is None:
                self._clients = self._stack.enter_context(self._jvm())
            else:
                self._clients = self._beside.clients
            # Kept, because each step of a package's name is a round trip.
            self._message_class = self._clients.java.org.apache.rocketmq.common.message.Message
            self._accessor = self._clients.java.org.apache.rocketmq.common.message.MessageAccessor
            if self._beside is None:
                self._start_name_server(name_server_port)
            else:
                self._name_server = self._beside.name_server
                self._name_server_controller = self._beside._name_server_controller
            self._broker = self._stack.enter_context(self._jvm(heap="1g"))
            self._start_broker()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for jvm in (self._clients, self._broker):
            jvm.describe(error)
        try:
            if error is None:
                self.stop()
        finally:
            self._stack.close()

    @property
    def controller(self) -> Any:
        """The ``BrokerController``."""
        return self._controller

    @property
    def java(self) -> Any:
        """The root of all Java packages in the broker's JVM."""
        return self._broker.java

    @property
    def clients(self) -> Jvm:
        """The JVM for clients."""
        return self._clients

    @property
    def name_server(self) -> str:
        """The name server's address and port."""
        return self._name_server

    @property
    def store(self) -> Any:
        """The broker's message store, a Java object."""
        return self._controller.getMessageStore()

    def create_topic(self, topic: str, queues: int = 4, attributes: Mapping[str, str] | None = None) -> None:
        """Create a topic with so many queues, and attributes (5.x) such as ``{"queue.type": "BatchCQ"}``."""
        config = self._broker.java.org.apache.rocketmq.common.TopicConfig(topic, queues, queues, 6)
        if attributes:
            # As mqadmin takes them: a plus adds one.
            config.setAttributes({f"+{name}": value for name, value in attributes.items()})
        self._controller.getTopicConfigManager().updateTopicConfig(config)
        self._controller.registerBrokerAll(True, False, True)
        self._wait_for_route(topic)

    def produce(self, messages: Iterable[Message]) -> list[Sent]:
        """Send messages, each to its queue, one after the other.

        Of a message go topic, queue, body, tags, keys, unique key, flag, delay level and properties; client
        and broker add the rest. The topic must have the queue.

        Raises:
            JavaError: the broker did not store one.
        """
        producer = self._producer_of("DefaultMQProducer")
        queues: dict[tuple[str, int], Any] = {}
        queue_class = self._clients.java.org.apache.rocketmq.common.message.MessageQueue
        sent: list[Sent] = []
        for message in messages:
            key = message.topic, message.queue_id
            if key not in queues:
                queues[key] = queue_class(message.topic, self.name, message.queue_id)
            sent.append(self._sent(producer.send(self._java_message(message), queues[key])))
        return sent

    def produce_batch(self, messages: Sequence[Message]) -> Sent:
        """Send messages of one queue as a batch; returns the place of the first.

        Raises:
            JavaError: the broker did not store them.
        """
        java = self._clients.java
        queue = java.org.apache.rocketmq.common.message.MessageQueue(
            messages[0].topic, self.name, messages[0].queue_id
        )
        batch = java.java.util.ArrayList()
        for message in messages:
            batch.add(self._java_message(message))
        return self._sent(self._producer_of("DefaultMQProducer").send(batch, queue))

    def produce_in_transaction(self, message: Message, *, commit: bool) -> None:
        """Send a prepared message, then commit it or roll it back. The client chooses the queue.

        Raises:
            JavaError: the broker did not store it.
        """
        if self._transactions is None:
            self._transactions = _Transactions(self._clients, self._name_server)
        self._transactions.send(self._java_message(message), commit=commit)

    def consume_all(self, topic: str, tags: str = "*") -> list[Received]:
        """All messages of a topic from its first offsets on, queue by queue, as a consumer gets them."""
        puller = self._pull_consumer()
        self._wait_for_route(topic)
        received: list[Received] = []
        queues = puller.fetchSubscribeMessageQueues(topic)
        for queue in sorted(queues, key=lambda queue: int(queue.getQueueId())):
            offset, end = int(puller.minOffset(queue)), int(puller.maxOffset(queue))
            while offset < end:
                result = puller.pull(queue, tags, offset, _PULL_BATCH)
                if str(result.getPullStatus()) == "FOUND":
                    received += map(_received, result.getMsgFoundList())
                following = int(result.getNextBeginOffset())
                if following <= offset:
                    raise JavaError(f"{topic}:{queue.getQueueId()}: no way past offset {offset} of {end}")
                offset = following
        return received

    def pull(
        self, topic: str, queue_id: int, offset: int, most: int = _PULL_BATCH
    ) -> tuple[list[Received], int]:
        """What a client gets from one place of a queue on, and where it is told to go on."""
        puller = self._pull_consumer()
        queue = self._clients.java.org.apache.rocketmq.common.message.MessageQueue(topic, self.name, queue_id)
        result = puller.pull(queue, "*", offset, most)
        found = result.getMsgFoundList() if str(result.getPullStatus()) == "FOUND" else []
        return [_received(message) for message in found], int(result.getNextBeginOffset())

    def poll_all(self, least: Mapping[str, int], quiet: float = 3.0) -> dict[str, list[Received]]:
        """What new consumer groups, one for each topic, get from the first offset until nothing more comes.

        Args:
            least: by topic, how many messages are waited for, at most two minutes for the next one.
            quiet: how long nothing has to come of any topic after these, s.
        """
        received: dict[str, list[Received]] = {topic: [] for topic in least}
        with ExitStack() as stack:
            consumers = {topic: self._polling(topic, stack) for topic in least}
            deadline = time.monotonic() + _READY_TIMEOUT
            while time.monotonic() < deadline:
                for topic, consumer in consumers.items():
                    found = consumer.poll(50)
                    if len(found):
                        received[topic] += map(_received, found)
                        is_all = all(len(received[one]) >= count for one, count in least.items())
                        deadline = time.monotonic() + (quiet if is_all else _READY_TIMEOUT)
        return received

    def _polling(self, topic: str, stack: ExitStack) -> Any:
        consumer = self._clients.java.org.apache.rocketmq.client.consumer.DefaultLitePullConsumer(
            f"reput-poll-{topic}"
        )
        consumer.setNamesrvAddr(self._name_server)
        consumer.setInstanceName(f"poll-{topic}")
        first = self._clients.java.org.apache.rocketmq.common.consumer.ConsumeFromWhere
        consumer.setConsumeFromWhere(first.CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe(topic, "*")
        consumer.start()
        stack.callback(consumer.shutdown)
        return consumer

    def listen(
        self,
        group: str,
        topic: str,
        *,
        tags: str = "*",
        sql: str | None = None,
        refused: str | None = None,
        most_tries: int | None = None,
    ) -> Listener:
        """A running push consumer that takes a topic from its first offsets on, by tags or by an expression.

        Such a one is filtered by the expression that the broker holds of its group, bit maps included; one
        that pulls by itself brings its expression with it, and the broker then looks into no bit map.

        Args:
            refused: it fails on messages whose body has this text.
            most_tries: after so many tries again, a message becomes a dead letter; None for the client's 16.
        """
        java = self._clients.java
        client = java.org.apache.rocketmq.client.consumer
        if self._collector is None:
            self._collector = instance(self._clients, _COLLECTOR)
        collector = self._collector.another() if refused is None else self._collector.refusing(refused)
        consumer = client.DefaultMQPushConsumer(group)
        consumer.setNamesrvAddr(self._name_server)
        consumer.setInstanceName("listeners")
        first = java.org.apache.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        consumer.setConsumeFromWhere(first)
        consumer.subscribe(topic, tags if sql is None else client.MessageSelector.bySql(sql))
        if most_tries is not None:
            consumer.setMaxReconsumeTimes(most_tries)
        consumer.registerMessageListener(collector)
        consumer.start()
        listener = Listener(consumer, collector)
        self._listeners.append(listener)
        return listener

    def query_by_key(self, topic: str, key: str, maximum: int = 64) -> list[Received]:
        """Messages that the index holds under this key, as ``mqadmin queryMsgByKey`` finds them."""
        from py4j.protocol import Py4JJavaError

        puller = self._pull_consumer()
        self._wait_for_route(topic)
        try:
            found = puller.queryMessage(topic, key, maximum, 0, _LARGEST)
        except Py4JJavaError as error:
            # The client's way to say that there is none (ResponseCode.QUERY_NOT_FOUND, or an empty answer).
            if "no message" in str(error) or "CODE: 22" in str(error):
                return []
            raise
        return [_received(message) for message in found.getMessageList()]

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Keep a consumer group's place in a queue, as when a consumer reports it."""
        manager = self._controller.getConsumerOffsetManager()
        manager.commitOffset("127.0.0.1", group, topic, queue_id, offset)

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """The offset that the broker keeps of a consumer group; -1 without one."""
        return int(self._controller.getConsumerOffsetManager().queryOffset(group, topic, queue_id))

    def wait_dispatched(self, timeout: float = _READY_TIMEOUT) -> None:
        """Wait until consume queues and index hold all that is in the log.

        Raises:
            JavaError: they don't within this many seconds.
        """
        deadline = time.monotonic() + timeout
        while self.store.dispatchBehindBytes() > 0:
            if time.monotonic() > deadline:
                raise JavaError(
                    f"the broker did not dispatch everything in {timeout} s; {self._broker.log_tail()}"
                )
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop clients and broker cleanly; the broker takes five to fifteen seconds.

        Raises:
            JavaError: the broker kept its abort file: something was left undone.
        """
        self.stop_clients()
        if self._controller is not None:
            controller, self._controller = self._controller, None
            controller.shutdown()
            if (self.root / "abort").exists():
                raise JavaError(f"the broker kept its abort file; {self._broker.log_tail()}")

    def kill(self) -> None:
        """Crash the broker: SIGKILL. Name server and client go on."""
        self._controller = None
        self._broker.kill()

    def copy_as_killed(self, target: Path) -> None:
        """Copy the store as a kill at this moment leaves it; the broker goes on."""
        process = self._broker.process
        process.send_signal(signal.SIGSTOP)
        try:
            shutil.copytree(self.root, target)
        finally:
            process.send_signal(signal.SIGCONT)

    def _jvm(self, heap: str = "512m") -> Jvm:
        jvm = Jvm(self.version, heap=heap)
        conf = jvm.home / "conf"
        conf.mkdir()
        # 4.9 insists on finding its log settings here.
        for name in ("logback_broker.xml", "logback_namesrv.xml"):
            (conf / name).write_bytes((jvm.home / "logback.configurationFile.xml").read_bytes())
        properties = jvm.java.java.lang.System
        properties.setProperty("rocketmq.home.dir", str(jvm.home))
        # A consumer that misses its first share of the queues would ask again after twenty seconds. Read when
        # the first client starts, whichever that is.
        properties.setProperty("rocketmq.client.rebalance.waitInterval", "1000")
        return jvm

    def _start_name_server(self, port: int) -> None:
        self._name_server = f"127.0.0.1:{port}"
        arguments = self._arguments(
            self._clients, "namesrv.conf", {"listenPort": port, "bindAddress": "127.0.0.1"}
        )
        startup = self._clients.java.org.apache.rocketmq.namesrv.NamesrvStartup
        if self._can_bind:
            self._name_server_controller = startup.main0(arguments)
        else:  # the same steps, with one between
            self._name_server_controller = startup.createNamesrvController(arguments)
            self._name_server_controller.initialize()
            _bind_to_loopback(self._clients, self._name_server_controller, "remotingServer")
            self._name_server_controller.start()
        if self._name_server_controller is None:
            raise JavaError(f"the name server did not start; {self._clients.log_tail()}")

    def _start_broker(self) -> None:
        settings = {
            "brokerClusterName": CLUSTER,
            "brokerName": self.name,
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": self._name_server,
            "listenPort": self.port,
            "bindAddress": "127.0.0.1",
            "storePathRootDir": self.root,
            "storePathCommitLog": self.root / "commitlog",
            "diskMaxUsedSpaceRatio": 95,
            **_PATIENT,
            **self._config,
        }
        if self._slave_of is not None:
            # Where its master is, the name server tells it.
            settings |= {"brokerId": 1, "brokerRole": "SLAVE"}
        arguments = self._arguments(self._broker, "broker.conf", settings)
        startup = self._broker.java.org.apache.rocketmq.broker.BrokerStartup
        self._controller = startup.createBrokerController(arguments)
        be_patient(self._broker)
        if not self._can_bind:
            _bind_to_loopback(self._broker, self._controller, "remotingServer", "fastRemotingServer")
        if self._replicates:
            instance(self._broker, _REPLICATION).apply({"store": self.store})
        started = startup.start(self._controller)
        if started is None:
            raise JavaError(f"the broker did not start; {self._broker.log_tail()}")
        if not self._replicates:
            # Replication takes all network interfaces, and a single broker has no use for it.
            self.store.getHaService().shutdown()
        if self._slave_of is None:
            self._wait_for_route("TBW102", register=True)

    def _arguments(self, jvm: Jvm, name: str, settings: Mapping[str, object]) -> Any:
        path = jvm.home / name
        path.write_text(conf_text(settings), encoding="utf-8")
        arguments = jvm.gateway.new_array(jvm.java.java.lang.String, 2)
        arguments[0], arguments[1] = "-c", str(path)
        return arguments

    def _producer_of(self, kind: str) -> Any:
        if self._producer is None:
            java = self._clients.java
            producer = getattr(java.org.apache.rocketmq.client.producer, kind)("reput-producer")
            producer.setNamesrvAddr(self._name_server)
            producer.setInstanceName(f"producer-{self.name}")
            producer.setSendMsgTimeout(_SEND_TIMEOUT)
            producer.start()
            self._producer = producer
        return self._producer

    def _pull_consumer(self) -> Any:
        if self._puller is None:
            consumer = self._clients.java.org.apache.rocketmq.client.consumer.DefaultMQPullConsumer(
                "reput-consumer"
            )
            consumer.setNamesrvAddr(self._name_server)
            consumer.setInstanceName("consumer")
            consumer.start()
            self._puller = consumer
        return self._puller

    def _wait_for_route(self, topic: str, *, register: bool = False) -> None:
        """Wait until the name server knows that the broker has this topic.

        Args:
            register: have the broker tell the name server. As it starts, a 5.x broker may not have found the
                name server yet, and tries again only ten seconds later.
        """
        deadline = time.monotonic() + _READY_TIMEOUT
        routes = self._name_server_controller.getRouteInfoManager()
        while not self._has_route(routes.pickupTopicRouteData(topic)):
            if time.monotonic() > deadline:
                raise JavaError(f"no broker has topic {topic}; {self._broker.log_tail()}")
            time.sleep(0.05)
            if register:
                self._controller.registerBrokerAll(True, False, True)

    def _has_route(self, route: Any) -> bool:
        queues = () if route is None else route.getQueueDatas()
        return any(str(queue.getBrokerName()) == self.name for queue in queues)

    def _java_message(self, message: Message) -> Any:
        java_message = self._clients.java.org.apache.rocketmq.common.message.Message(
            message.topic, message.body
        )
        if message.tags is not None:
            java_message.setTags(message.tags)
        if message.keys is not None:
            java_message.setKeys(message.keys)
        if message.uniq_key is not None:
            self._accessor.putProperty(java_message, "UNIQ_KEY", message.uniq_key)
        if message.flag:
            java_message.setFlag(message.flag)
        if message.delay_level is not None:
            java_message.setDelayTimeLevel(message.delay_level)
        for name, value in message.properties.items():
            self._accessor.putProperty(java_message, name, value)
        return java_message

    def _sent(self, result: Any) -> Sent:
        if str(result.getSendStatus()) != "SEND_OK":
            raise JavaError(f"the broker answered {result.getSendStatus()}")
        queue_id = int(result.getMessageQueue().getQueueId())
        return Sent(queue_id, int(result.getQueueOffset()), str(result.getMsgId()))

    def stop_clients(self) -> None:
        """Stop producers and consumers; the broker goes on."""
        for client in (*self._listeners, self._producer, self._transactions, self._puller):
            if client is not None:
                client.shutdown()
        self._listeners = []
        self._producer = self._transactions = self._puller = None


class _Transactions:
    """A transactional producer: Java calls back into this process for each message's fate."""

    def __init__(self, jvm: Jvm, name_server: str) -> None:
        from py4j.java_gateway import CallbackServerParameters

        gateway = jvm.gateway
        gateway.start_callback_server(
            CallbackServerParameters(address="127.0.0.1", port=0, daemonize=True, daemonize_connections=True)
        )
        server = gateway.java_gateway_server
        port = gateway.get_callback_server().get_listening_port()
        server.resetCallbackClient(server.getCallbackClient().getAddress(), port)
        states = jvm.java.org.apache.rocketmq.client.producer.LocalTransactionState
        self._gateway = gateway
        self._listener = _Listener(states.COMMIT_MESSAGE, states.ROLLBACK_MESSAGE)
        self._producer = jvm.java.org.apache.rocketmq.client.producer.TransactionMQProducer(
            "reput-transactions"
        )
        self._producer.setNamesrvAddr(name_server)
        self._producer.setInstanceName("transactions")
        self._producer.setSendMsgTimeout(_SEND_TIMEOUT)
        self._producer.setTransactionListener(self._listener)
        self._producer.start()

    def send(self, message: Any, *, commit: bool) -> None:
        self._listener.commit = commit
        result = self._producer.sendMessageInTransaction(message, None)
        if str(result.getSendStatus()) != "SEND_OK":
            raise JavaError(f"the broker answered {result.getSendStatus()}")

    def shutdown(self) -> None:
        with suppress(Exception):  # the producer's last calls may come back after the server has gone
            self._producer.shutdown()
        self._gateway.shutdown_callback_server()


class _Listener:
    """``TransactionListener``; the names are Java's."""

    def __init__(self, commit: Any, rollback: Any) -> None:
        self._states = {True: commit, False: rollback}
        self.commit = True

    def executeLocalTransaction(self, message: Any, argument: Any) -> Any:  # noqa: N802
        return self._states[self.commit]

    def checkLocalTransaction(self, message: Any) -> Any:  # noqa: N802
        return self._states[self.commit]

    class Java:
        implements = ["org.apache.rocketmq.client.producer.TransactionListener"]  # noqa: RUF012


def _received(message: Any) -> Received:
    properties = message.getProperties()
    return Received(
        topic=str(message.getTopic()),
        queue_id=int(message.getQueueId()),
        queue_offset=int(message.getQueueOffset()),
        physical_offset=int(message.getCommitLogOffset()),
        body=bytes(message.getBody() or b""),
        tags=properties.get("TAGS"),
        keys=properties.get("KEYS"),
        unique_key=properties.get("UNIQ_KEY"),
        store_timestamp=int(message.getStoreTimestamp()),
    )


def _bind_to_loopback(jvm: Jvm, controller: Any, *fields: str) -> None:
    """Let the servers in these fields of a controller listen on the loopback only, once they start."""
    loopback = instance(jvm, _LOOPBACK)
    for name in fields:
        field = controller.getClass().getDeclaredField(name)
        field.setAccessible(True)
        loopback.apply({"server": field.get(controller)})


def free_ports(stack: ExitStack) -> tuple[int, int]:
    """A port for the name server, and one for the broker: it also takes the ones 2 below and 1 above.

    Seconds pass until they are taken, and other tests run meanwhile. So they are none that the system gives
    to whoever asks for any port; and as long as the stack lasts, UDP ports of the same numbers keep other
    tests from them.
    """
    first, last = _ports_given_by_the_system()
    usable = [*range(10_000, first - 3), *range(last + 4, 65_000)] or [*range(10_000, 65_000)]
    while True:
        port = random.choice(usable)
        with ExitStack() as ours:
            try:
                for number in range(port - 2, port + 3):
                    ours.enter_context(_bound(number, socket.SOCK_DGRAM))
                    _bound(number, socket.SOCK_STREAM).close()
            except OSError:
                continue
            stack.enter_context(ours.pop_all())
            return port + 2, port


def _ports_given_by_the_system() -> tuple[int, int]:
    """The first and the last of the ports from which the system takes one when none is named."""
    with suppress(OSError):
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(first), int(last)
    return 32_768, 65_535


def _bound(port: int, kind: socket.SocketKind) -> socket.socket:
    listener = socket.socket(type=kind)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise
    return listener
