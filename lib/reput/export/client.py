"""RocketMQ's own Java client in a JVM of its own, driven over py4j on the loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from reput.errors import BrokerError, SettingsError
from reput.export.outgoing import Outgoing, encoded
from reput.newer_python import Self
from reput.spark.jars import fetched, java_command, pyspark_jar
from reput.store.reading import unreadable

_LOCK = Path(__file__).with_name("client_jars.json")


def known() -> dict[str, dict[str, str]]:
    """By release, the SHA-256 of each jar, by ``group:artifact:version``."""
    found: dict[str, dict[str, str]] = json.loads(_LOCK.read_text(encoding="utf-8"))
    return found


def client_jars(directory: Path | None, release: str | None) -> list[Path]:
    """The jars for a class path: of a directory, or fetched for a broker's release.

    The directory is such as a broker's ``lib/``.
    """
    if directory is not None:
        try:
            found = sorted(path for path in directory.iterdir() if path.suffix == ".jar")
        except OSError as error:
            raise unreadable("the client's directory", directory, error) from error
        if not any(path.name.startswith("rocketmq-client-") for path in found):
            raise SettingsError(
                "--client has no RocketMQ client",
                expected=f"a directory with rocketmq-client-….jar, such as a broker's lib/: {directory}",
                found="no such jar",
            )
        return found
    releases = known()
    if release not in releases:
        raise SettingsError(
            "it isn't known which client to send with",
            expected=f"--client DIR, such as the broker's lib/, or --rocketmq-version {', '.join(releases)}",
            found="neither" if release is None else f"--rocketmq-version {release}",
            next_step="A client of another 4.9 or 5.x release works with the broker, too.",
        )
    return fetched(
        f"client/{release}",
        f"the client of RocketMQ {release}",
        releases[release],
        "Give --client DIR with the broker's lib/ instead",
    )


ACCESS_VARIABLE, SECRET_VARIABLE = "ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY"
_LINE = re.compile(r"\s*[\"']?(accessKey|secretKey)[\"']?\s*[:=]\s*[\"']?(.*?)[\"']?\s*")
_MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """What a broker with access control asks for. The secret isn't shown."""

    access: str
    secret: str = field(repr=False)

    def hide(self, text: str) -> str:
        """A text without either of them."""
        for word in (self.secret, self.access):
            text = text.replace(word, "***")
        return text


def access_keys(file: Path | None) -> AccessKeys | None:
    """The keys in a file, else those of the environment; None without any. One without the other is refused.

    The file has ``accessKey: …`` and ``secretKey: …`` in lines of their own, as RocketMQ's conf/tools.yml, or
    with ``=``.
    """
    if file is None:
        where = f"{ACCESS_VARIABLE} and {SECRET_VARIABLE}"
        found = {"accessKey": os.environ.get(ACCESS_VARIABLE), "secretKey": os.environ.get(SECRET_VARIABLE)}
        if not any(found.values()):
            return None
    else:
        where = str(file)
        try:
            with file.open("rb") as opened:
                text = opened.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise unreadable("the file of access keys", file, error) from error
        found = {}
        for line in text.splitlines():
            if one := _LINE.fullmatch(line):
                found[one[1]] = one[2]
    access, secret = found.get("accessKey"), found.get("secretKey")
    if not access or not secret:
        missing = [name for name in ("accessKey", "secretKey") if not found.get(name)]
        raise SettingsError(
            "the access keys aren't whole",
            expected=f"accessKey and secretKey in {where}",
            found=f"no {' and no '.join(missing)}",
        )
    return AccessKeys(access, secret)


_SEND_MS = 15_000
#: What a broker or the network refused is tried again after so many seconds.
_PAUSES = (1.0, 2.0, 4.0, 8.0)
#: ResponseCode: MESSAGE_ILLEGAL, NO_PERMISSION, TOPIC_NOT_EXIST; and what access control says in 4.9. Another
#: try gets the same answer.
_FINAL = ("CODE: 13 ", "CODE: 16 ", "CODE: 17 ", "AclException")
_IF_ILLEGAL = (
    "The same command goes on from there. If the broker never takes it, being too large say, remove its "
    "line, which has this offset_msg_id"
)
_GROUP = "reput-resend"
_STORED = "SEND_OK"
#: As SendResult shows itself: a round trip less than to ask for it.
_STATUS = re.compile(r"sendStatus=([A-Z_]+)")
_MOST_BODY = 1 << 30


class Client:
    """A producer; a context manager that starts the JVM, and ends it.

    ``name_server`` is HOST:PORT, several with semicolons between them. Raises BrokerError where no JVM starts
    with these jars, or the client doesn't start.
    """

    def __init__(self, jars: Sequence[Path], name_server: str, keys: AccessKeys | None = None) -> None:
        self._jars = jars
        self._name_server = name_server
        self._keys = keys
        self._queues: dict[str, list[Any]] = {}
        self._producer: Any = None
        self._process: Any = None
        self._gateway: Any = None

    def __enter__(self) -> Self:
        self._home = Path(tempfile.mkdtemp(prefix="reput-client-"))
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._producer is not None and kind is None:
            with suppress(Exception):
                self._producer.shutdown()
        self._end()

    def queue_of(self, topic: str, queue_id: int) -> tuple[str, int]:
        """Which of the topic's queues takes the messages of a queue: the broker's name, and the queueId.

        A topic with as many queues as before, on one broker, keeps the queueIds. The messages of one queue
        stay in one.
        """
        queue = self._java_queue(topic, queue_id)
        return str(queue.getBrokerName()), int(queue.getQueueId())

    def send(self, messages: Sequence[Outgoing]) -> int:
        """Send messages of one topic and queue one after the other, each when the one before is acknowledged.

        Not as a batch: a broker of 5.3 gives all messages of one the UNIQ_KEY of the batch. Threads may send
        to several queues at once.

        Returns how many of them aren't as safe as the broker was told to make them: they are stored, and not
        yet on disk, or on a slave. BrokerError: one wasn't stored, as far as is known; the answer to a try
        may have been lost.
        """
        topic = messages[0].topic
        queue = self._java_queue(topic, messages[0].queue_id)
        made = self._called(
            "the client doesn't take these messages",
            lambda: list(self._decoder.decodeMessages(self._wrap(encoded(messages)))),
        )
        unsure = 0
        for message, one in zip(made, messages, strict=True):
            message.setTopic(topic)
            unsure += self._sent(f"message {one.origin} of {topic} wasn't sent", message, queue) != _STORED
        return unsure

    def _sent(self, problem: str, message: Any, queue: Any) -> str:
        """The status that a broker answered with."""

        def once() -> str:
            found = _STATUS.search(str(self._producer.send(message, queue, _SEND_MS)))
            return found[1] if found else ""

        for pause in _PAUSES:
            try:
                return str(self._called(problem, once, _IF_ILLEGAL))
            except BrokerError as error:
                if self._process.poll() is not None or any(code in (error.found or "") for code in _FINAL):
                    raise
                time.sleep(pause)
        return str(self._called(problem, once, _IF_ILLEGAL))

    def _java_queue(self, topic: str, queue_id: int) -> Any:
        if topic not in self._queues:
            found = self._called(
                f"no broker takes messages of topic {topic}",
                lambda: list(self._producer.fetchPublishMessageQueues(topic)),
                "See that the name server answers there and a broker has the topic, with mqadmin topicRoute",
            )
            self._queues[topic] = sorted(found, key=lambda one: (str(one.getBrokerName()), one.getQueueId()))
        queues = self._queues[topic]
        return queues[queue_id % len(queues)]

    def _start(self) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        with (self._home / "stderr").open("wb") as errors:
            try:
                port, token, self._process = launch_gateway(
                    java_path=java_command(),
                    jarpath=str(pyspark_jar("py4j-")),
                    classpath=os.pathsep.join(map(str, self._jars)),
                    javaopts=self._options(),
                    die_on_exit=True,
                    enable_auth=True,
                    create_new_process_group=True,  # an interrupt is for this process, which then ends it
                    redirect_stderr=errors,
                    return_proc=True,
                )
            except ValueError as error:  # instead of its port, the JVM printed nothing or a complaint
                raise self._failed("Java doesn't start", self._stderr()) from error
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(
                address="127.0.0.1", port=port, auth_token=token, auto_convert=True
            )
        )
        self._called("the client doesn't start", self._start_producer)

    def _start_producer(self) -> None:
        jvm = self._gateway.jvm
        rocketmq = jvm.org.apache.rocketmq
        self._decoder = rocketmq.common.message.MessageDecoder
        self._wrap = jvm.java.nio.ByteBuffer.wrap
        producer = rocketmq.client.producer.DefaultMQProducer
        if self._keys is None:
            self._producer = producer(_GROUP)
        else:
            acl = rocketmq.acl.common
            hook = acl.AclClientRPCHook(acl.SessionCredentials(self._keys.access, self._keys.secret))
            self._producer = producer(_GROUP, hook)
        self._producer.setNamesrvAddr(self._name_server)
        self._producer.setInstanceName(f"reput-{os.getpid()}")
        self._producer.setSendMsgTimeout(_SEND_MS)
        self._producer.setMaxMessageSize(_MOST_BODY)  # the broker's own limit counts
        self._producer.start()

    def _options(self) -> list[str]:
        return [
            *(
                "-Xmx512m",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-XX:-UsePerfData",
                "-Dfile.encoding=UTF-8",
            ),
            # What the client logs, and its temporary files, go where they are removed with it.
            *(f"-Duser.home={self._home}", f"-Djava.io.tmpdir={self._home}"),
            *(f"-Drocketmq.client.logRoot={self._home}", "-Drocketmq.client.logLevel=ERROR"),
        ]

    def _called(self, problem: str, call: Any, next_step: str | None = None) -> Any:
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            return call()
        except Py4JJavaError as error:
            raise self._failed(problem, str(error.java_exception.toString()), next_step) from None
        except (Py4JError, OSError, TypeError) as error:  # a class that isn't there is called as a package
            raise self._failed(problem, str(error) or self._stderr()) from None

    def _failed(self, problem: str, found: str, next_step: str | None = None) -> BrokerError:
        first = " ".join(found.split())
        if self._keys is not None:
            first = self._keys.hide(first)
        return BrokerError(
            problem,
            path=self._name_server,
            expected="an answer from the broker",
            found=first,
            next_step=next_step,
        )

    def _stderr(self) -> str:
        with suppress(OSError):
            return (self._home / "stderr").read_text(encoding="utf-8", errors="replace")[:400]
        return ""

    def _end(self) -> None:
        if self._gateway is not None:
            with suppress(Exception):
                self._gateway.close(keep_callback_server=False, close_callback_server_connections=True)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin,):
                with suppress(OSError):
                    stream.close()
        shutil.rmtree(self._home, ignore_errors=True)
