"""The real ``DefaultMessageStore`` of a RocketMQ release: what it writes is right by definition.

With ``storeType=defaultRocksDB`` it is a ``RocksDBMessageStore``, as a broker chooses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from reput.config.dialect import dialect
from reput.newer_python import Self
from tests.compat.compiled import instance
from tests.compat.jvm import SHORT_LIVED, JavaError, Jvm, be_patient, private
from tests.compat.message import Host, Message, encode_batch

_DISPATCH_TIMEOUT = 120.0
_LOOPBACK = Path(__file__).with_name("Loopback.java")
_ROCKSDB = "RocksDBConsumeQueueStore"
#: Settings that are null until they are set: MixAll.object2Properties leaves them out.
_WITHOUT_DEFAULT = frozenset(
    {"storePathCommitLog", "storePathDLedgerCommitLog", "dLegerGroup", "dLegerPeers", "dLegerSelfId"}
)


def spelled(config: Mapping[str, object], version: str) -> dict[str, object]:
    """Keys as this release spells them: two have one p less up to 4.5.1."""
    if not dialect(version).maped_settings:
        return dict(config)
    old = {f"mappedFileSize{what}": f"mapedFileSize{what}" for what in ("CommitLog", "ConsumeQueue")}
    return {old.get(key, key): value for key, value in config.items()}


class Put(NamedTuple):
    """Where the store put a message; for a batch, its first message.

    Attributes:
        queue_offset: the message's ordinal in its queue; 0 for prepared and rollback messages.
        physical_offset: its place in the commit log.
    """

    queue_offset: int
    physical_offset: int


class JavaStore:
    """A store in a JVM of its own; a context manager.

    Leaving the context ends the JVM. A store that still runs then is shut down properly, unless an error
    is on its way.

    Args:
        version: the RocketMQ release.
        root: ``storePathRootDir``; made when missing.
        config: properties of ``MessageStoreConfig`` by their Java names, as broker.conf has them.
        broker: properties of ``BrokerConfig``, likewise.
        topics: attributes by topic, such as ``{"queue.type": "BatchCQ"}`` (5.x).
        deliver_delayed: let the schedule service of 4.9 deliver delayed messages when they are due. Off by
            default: its deliveries depend on the clock, and what a workload writes should not. (In 5.x that
            service is the broker's, not the store's.)
        jvm_options: more options for the JVM.
        heap: the JVM's ``-Xmx``.
        jvm: a JVM of this release to use in place of one of its own; it is left running.
    """

    def __init__(
        self,
        version: str,
        root: Path,
        config: Mapping[str, object] | None = None,
        *,
        broker: Mapping[str, object] | None = None,
        topics: Mapping[str, Mapping[str, str]] | None = None,
        deliver_delayed: bool = False,
        jvm_options: Sequence[str] = SHORT_LIVED,
        heap: str = "512m",
        jvm: Jvm | None = None,
    ) -> None:
        self.version = version
        self.root = Path(root)
        self._config = dict(config or {})
        self._deliver_delayed = deliver_delayed
        self._running = False
        self._waiting: list[Any] | None = None
        self._load_seconds: float | None = None
        self._hosts: dict[Host, Any] = {}
        self.root.mkdir(parents=True, exist_ok=True)
        self._owns_jvm = jvm is None
        self.jvm = jvm or Jvm(version, options=jvm_options, heap=heap)
        try:
            self._store = self._create(broker or {}, topics or {})
            be_patient(self.jvm)
        except BaseException:
            self._close_jvm()
            raise

    @property
    def store(self) -> Any:
        """The Java object, for whatever this class has no method for."""
        return self._store

    def load(self) -> bool:
        """Read what is there, and recover: ``DefaultMessageStore.load``. False when the store refuses."""
        start = time.monotonic()
        loaded = bool(self._store.load())
        self._load_seconds = time.monotonic() - start
        return loaded

    def load_seconds(self) -> float:
        """How long :meth:`load` took.

        Raises:
            JavaError: it was not called.
        """
        if self._load_seconds is None:
            raise JavaError("the store was not loaded")
        return self._load_seconds

    def start(self) -> None:
        """Start all services: ``DefaultMessageStore.start``."""
        uses_dledger = bool(self._config.get("enableDLegerCommitLog"))
        if uses_dledger:
            # It would listen on every network interface.
            service = private(self._store.getCommitLog().getdLedgerServer(), "dLedgerRpcService")
            instance(self.jvm, _LOOPBACK).apply({"server": private(service, "remotingServer")})
        self._store.start()
        self._running = True
        # The replication service listens on every network interface; a single store needs it for nothing.
        replication = self._store.getHaService()
        if replication is not None:  # DLedger replicates by itself
            replication.shutdown()
        if uses_dledger:
            self._wait_leader()
        if self._release < (4, 5) and not self._deliver_delayed:
            self._store.getScheduleMessageService().shutdown()
        elif self._is_4() and not self._deliver_delayed:
            slave = self.jvm.java.org.apache.rocketmq.store.config.BrokerRole.SLAVE
            self._store.handleScheduleMessageService(slave)

    def put(self, message: Message) -> Put:
        """Append one message: ``putMessage``.

        Raises:
            JavaError: the store refused it.
        """
        inner = self._message_class()
        self._fill(inner, message)
        inner.setBody(message.body)
        encoded = message.encoded_properties(final_separator=self._final_separator())
        inner.setPropertiesString(encoded)
        self._set_properties(inner, encoded)
        return self._appended(self._store.putMessage(inner), message)

    def put_batch(self, messages: Sequence[Message]) -> Put:
        """Append messages of one queue in one go: ``putMessages``.

        Topic, queue, hosts, times and flags are the first message's, as for a client's batch.

        Raises:
            JavaError: the store refused it.
            ValueError: the messages are for several queues, or there are none.
        """
        if len({(message.topic, message.queue_id) for message in messages}) != 1:
            raise ValueError("a batch holds messages of one queue")
        batch = self._batch_class()
        self._fill(batch, messages[0])
        batch.setBody(encode_batch(messages, final_separator=self._final_separator()))
        self._set_properties(batch, "")
        return self._appended(self._store.putMessages(batch), messages[0])

    def log_end(self) -> int:
        """The physical offset behind all that was put; a DLedger's ``getMaxPhyOffset`` comes later."""
        if not self._config.get("enableDLegerCommitLog"):
            return int(self._store.getMaxPhyOffset())
        ledger = self._store.getCommitLog().getdLedgerServer().getdLedgerStore()
        return int(ledger.getDataFileList().getMaxWrotePosition())

    def wait_dispatched(self, timeout: float = _DISPATCH_TIMEOUT) -> None:
        """Wait until consume queues and index hold all that is in the log.

        Raises:
            JavaError: they don't within this many seconds.
        """
        deadline = time.monotonic() + timeout
        # What DLedger hasn't committed yet isn't behind.
        self._wait_committed(deadline)
        while (behind := self._store.dispatchBehindBytes()) > 0 or self._rocksdb_waits():
            if time.monotonic() > deadline:
                raise JavaError(f"{behind} bytes were not dispatched in {timeout} s; {self.jvm.log_tail()}")
            time.sleep(0.005)

    def _wait_committed(self, deadline: float) -> None:
        while int(self._store.getMaxPhyOffset()) < (end := self.log_end()):
            if time.monotonic() > deadline:
                raise JavaError(f"not all was committed up to {end}; {self.jvm.log_tail()}")
            time.sleep(0.005)

    def _rocksdb_waits(self) -> bool:
        """Whether messages that are dispatched still wait to be put into a RocksDB."""
        if self._waiting is None:
            self._waiting = []
            for queues in self.rocksdb_queues():
                service = private(queues, "groupCommitService")
                self._waiting += [private(service, "buffer"), private(service, "requests")]
            if self._config.get("indexRocksDBEnable"):
                index = self._store.getIndexRocksDBStore()
                self._waiting.append(private(index, "originIndexMsgQueue"))
        return any(int(queue.size()) for queue in self._waiting)

    def rocksdb_queues(self) -> list[Any]:
        """The ``RocksDBConsumeQueueStore`` of a store that has one."""
        if self._uses_rocksdb():
            found = private(self._store, "consumeQueueStore")
            inner = "rocksDBConsumeQueueStore"
            return [found if str(found.getClass().getSimpleName()) == _ROCKSDB else private(found, inner)]
        if not self._config.get("rocksdbCQDoubleWriteEnable"):
            return []
        if self._enables_double_write():
            return [private(self._store.getRocksDBMessageStore(), "consumeQueueStore")]
        found = private(private(self._store, "consumeQueueStore"), "rocksDBConsumeQueueStore")
        return [] if found is None else [found]

    def _uses_rocksdb(self) -> bool:
        return str(self._config.get("storeType", "")).lower() == "defaultrocksdb"

    def _enables_double_write(self) -> bool:
        """Up to 5.3.3, a broker asks a store of files for it; later ones find it in their settings."""
        return bool(self._config.get("rocksdbCQDoubleWriteEnable")) and self.version == "5.3.3"

    def _wait_leader(self, timeout: float = _DISPATCH_TIMEOUT) -> None:
        """Wait until a DLedger store may be written to: its group has elected it."""
        member = self._store.getCommitLog().getdLedgerServer().getMemberState()
        deadline = time.monotonic() + timeout
        while not member.isLeader():
            if time.monotonic() > deadline:
                raise JavaError(f"no leader was elected in {timeout} s; {self.jvm.log_tail()}")
            time.sleep(0.02)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic's queues as a broker does; its messages stay in the log.

        Raises:
            ValueError: no queue of this topic.
        """
        topics = self._java.java.util.HashSet(self._store.getConsumeQueueTable().keySet())
        if topic not in topics:
            raise ValueError(f"the store has no topic {topic}")
        if self._is_4():
            topics.remove(topic)
            self._store.cleanUnusedTopic(topics)
        else:
            topics.clear()
            topics.add(topic)
            self._store.deleteTopics(topics)

    def shutdown(self) -> None:
        """Stop cleanly: flush, checkpoint, remove ``abort``. Takes the store one to four seconds.

        Raises:
            JavaError: the store kept ``abort`` because something was left undone.
        """
        self._running = False
        self._store.shutdown()
        if (self.root / "abort").exists():
            raise JavaError(f"the store kept its abort file; {self.jvm.log_tail()}")

    def kill(self) -> None:
        """Crash: SIGKILL. What was written to mapped files stays in them, as after a broker's crash."""
        self._running = False
        self.jvm.kill()

    def effective_config(self) -> dict[str, str]:
        """All properties of ``MessageStoreConfig`` as the store sees them."""
        return self._properties(self._store.getMessageStoreConfig())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.jvm.describe(error)
        try:
            if self._running:
                if error is None:
                    self.shutdown()
                else:
                    # The error on its way matters more than a second one from a store in trouble.
                    with suppress(Exception):
                        self._store.shutdown()
        finally:
            self._close_jvm()

    def _close_jvm(self) -> None:
        if self._owns_jvm:
            self.jvm.close()

    @property
    def _java(self) -> Any:
        return self.jvm.java

    @property
    def _release(self) -> tuple[int, ...]:
        return tuple(map(int, self.version.split(".")))

    def _is_4(self) -> bool:
        return self.version.startswith("4.")

    def _final_separator(self) -> bool:
        return not self._is_4()

    def _create(self, broker: Mapping[str, object], topics: Mapping[str, Mapping[str, str]]) -> Any:
        rocketmq = self._java.org.apache.rocketmq
        # Kept, because each step of a package's name is a round trip.
        messages = rocketmq.store if self._is_4() else rocketmq.common.message
        self._message_class = messages.MessageExtBrokerInner
        self._batch_class = rocketmq.common.message.MessageExtBatch
        self._accessor = rocketmq.common.message.MessageAccessor
        self._decoder = rocketmq.common.message.MessageDecoder
        config = rocketmq.store.config.MessageStoreConfig()
        paths = {"storePathRootDir": str(self.root), "storePathCommitLog": str(self.root / "commitlog")}
        self._apply(config, {**paths, "haListenPort": 0, **self._config})
        broker_config = rocketmq.common.BrokerConfig()
        # Nobody waits for messages here, and there is no listener to tell.
        self._apply(broker_config, {"longPollingEnable": False, **broker})
        detailed = () if self._release < (4, 9, 3) else (True,)
        stats = rocketmq.store.stats.BrokerStatsManager("reput", *detailed)
        if self._is_4():
            return rocketmq.store.DefaultMessageStore(config, stats, None, broker_config)
        table = self._java.java.util.concurrent.ConcurrentHashMap()
        for topic, attributes in topics.items():
            topic_config = rocketmq.common.TopicConfig(topic)
            topic_config.setAttributes(dict(attributes))
            table.put(topic, topic_config)
        if self._uses_rocksdb():
            return rocketmq.store.RocksDBMessageStore(config, stats, None, broker_config, table)
        if self._release < (5, 1, 1):
            return rocketmq.store.DefaultMessageStore(config, stats, None, broker_config)
        store = rocketmq.store.DefaultMessageStore(config, stats, None, broker_config, table)
        if self._enables_double_write():
            store.enableRocksdbCQWrite()
        return store

    def _apply(self, target: Any, settings: Mapping[str, object]) -> None:
        known = self._properties(target)
        settings = spelled(settings, self.version)
        properties = self._java.java.util.Properties()
        for name, value in settings.items():
            if name not in known and name not in _WITHOUT_DEFAULT:
                raise ValueError(f"RocketMQ {self.version} has no setting {name}")
            properties.setProperty(name, str(value).lower() if isinstance(value, bool) else str(value))
        # The way broker.conf takes.
        self._java.org.apache.rocketmq.common.MixAll.properties2Object(properties, target)

    def _properties(self, target: Any) -> dict[str, str]:
        properties = self._java.org.apache.rocketmq.common.MixAll.object2Properties(target)
        return {str(name): str(properties.getProperty(name)) for name in properties.stringPropertyNames()}

    def _fill(self, inner: Any, message: Message) -> None:
        # Setters at their defaults are left out: each is a round trip.
        inner.setTopic(message.topic)
        inner.setBornHost(self._host(message.born_host))
        inner.setStoreHost(self._host(message.store_host))
        inner.setBornTimestamp(message.born_timestamp)
        for setter, value in (
            (inner.setQueueId, message.queue_id),
            (inner.setFlag, message.flag),
            (inner.setSysFlag, message.sys_flag),
            (inner.setReconsumeTimes, message.reconsume_times),
            (inner.setPreparedTransactionOffset, message.prepared_transaction_offset),
        ):
            if value:
                setter(value)

    def _set_properties(self, inner: Any, encoded: str) -> None:
        self._accessor.setProperties(inner, self._decoder.string2messageProperties(encoded))

    def _host(self, host: Host) -> Any:
        if host not in self._hosts:
            self._hosts[host] = self._java.java.net.InetSocketAddress(host.ip, host.port)
        return self._hosts[host]

    def _appended(self, result: Any, message: Message) -> Put:
        appended = result.getAppendMessageResult()
        if not result.isOk() or appended is None:
            raise JavaError(
                f"{message.topic}:{message.queue_id}: the store answered {result.getPutMessageStatus()}; "
                f"{self.jvm.log_tail()}"
            )
        return Put(int(appended.getLogicsOffset()), int(appended.getWroteOffset()))
