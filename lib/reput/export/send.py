"""Sends messages again by the Java client, at least once each, and keeps how far it is."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from reput.caches import temporary
from reput.dump.damage import Damage
from reput.errors import BrokerError, Finding, OutputError, Result, SettingsError, StoreInUseError
from reput.export.outgoing import (
    LinesSource,
    NotSentError,
    Outgoing,
    Source,
    StoreSource,
    can_be_sent_to,
    check_resumed,
    encoded,
    outgoing,
)
from reput.export.records import Apart, Counted, LeftOut
from reput.newer_python import Self
from reput.remote.client import check_here
from reput.spark.jars import fetched, java_command, pyspark_jar
from reput.store import files
from reput.store.places import check_outside
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
            raise SettingsError(
                "the client's directory can't be read",
                path=directory,
                found=error.strerror,
                next_step="Name a directory with RocketMQ's jars with --client, such as a broker's lib/",
            ) from error
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
    "The same command goes on from there. If the broker never takes it, being too large say, leave it out: "
    "of a file remove its line, which has this offset_msg_id; export a store without it"
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
        self._held = ExitStack()
        self._home = self._held.enter_context(temporary("reput-client-"))
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
        self._held.close()


# A line is appended, and flushed, whenever a broker has acknowledged all that went before. Half a last line
# is what a kill left, and doesn't count. The first line says what is sent and where to: another run has
# another position. The file is locked while a run uses it.


@dataclass(frozen=True, slots=True)
class Reached:
    """What is acknowledged."""

    next: int = 0  # where the next message begins: byte of a file, or physical offset of a store's log
    last: int = -1  # where the last one that was dealt with begins; -1 without one
    fingerprint: str = ""  # SHA-256 of that one's bytes
    sent: int = 0  # messages that were sent so far
    left_out: int = 0  # messages that were left out so far
    unsure: int = 0  # messages that are stored, and weren't said to be on disk, or on a slave
    done: bool = False  # all were
    damage: int = 0  # damaged places of the log that were met so far


class Position:
    """The file; a context manager, which makes it when something is written.

    ``run`` says what is sent, and where to: it has to be the same when a run goes on.
    """

    def __init__(self, path: Path, run: Mapping[str, object]) -> None:
        self.path = path
        self.reached = Reached()
        self._run = dict(run)
        self._fd = -1
        self._is_locked = False  # the file at the path, and not one that was removed
        self._end = 0

    def __enter__(self) -> Self:
        try:
            with files.reporting("the position can't be kept", self.path):
                while not self._is_locked:  # a run that sent nothing removes its file
                    self._close()
                    self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    try:
                        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        raise StoreInUseError(
                            "another run sends these messages now",
                            path=self.path,
                            next_step="Wait for its end, or name another file with --position",
                        ) from None
                    with suppress(FileNotFoundError):
                        self._is_locked = os.path.samestat(os.fstat(self._fd), self.path.stat())
                with os.fdopen(os.dup(self._fd), "rb") as file:
                    data = file.read()
            self._take(data)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def reach(self, reached: Reached) -> None:
        """Keep how far the messages are sent; returns when it is on the disk."""
        lines = [] if self._end else [self._run]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in (*lines, asdict(reached)))
        files.pwrite_all(self._fd, data, self._end)
        files.fsync_file(self._fd)
        if not self._end:
            files.fsync_dir(self.path.absolute().parent)
        self._end += len(data)
        self.reached = reached

    def _take(self, data: bytes) -> None:
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            if not b'{"reput": "resend'.startswith(data[:16]):
                raise self._foreign("something else")
            return
        try:
            first, *more = (json.loads(line) for line in whole.splitlines())
            reached = Reached(**more[-1]) if more else Reached()
            if any(
                type(getattr(reached, name)) is not type(value) for name, value in asdict(Reached()).items()
            ):
                raise ValueError
            if not -1 <= reached.last <= reached.next:
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise self._foreign("something else") from None
        if not isinstance(first, dict):
            raise self._foreign("something else")
        different = [
            f"{name} {value!r}, and there {first.get(name)!r}"
            for name, value in self._run.items()
            if first.get(name) != value
        ]
        if different:
            raise OutputError(
                "this position is of another run",
                path=self.path,
                expected="the same messages, sent to the same place by the same options",
                found="; ".join(different),
                next_step="Name another file with --position; then all messages are sent",
            )
        self.reached = reached
        self._end = len(whole)
        with files.reporting("the position can't be kept", self.path):
            os.ftruncate(self._fd, self._end)

    def _foreign(self, found: str) -> OutputError:
        return OutputError(
            "this file holds no position",
            path=self.path,
            expected="one that reput resend wrote",
            found=found,
            next_step="Name another file with --position",
        )

    def _close(self) -> None:
        if self._fd >= 0:
            if self._is_locked and not self._end and os.fstat(self._fd).st_size == 0:
                self.path.unlink(missing_ok=True)  # nothing was sent
            os.close(self._fd)
            self._fd, self._is_locked = -1, False


#: Messages that are sent before the position is kept again, and so are sent twice at most after a kill.
MOST_REPEATED = 256
_WINDOW_BYTES = 16 << 20
#: Queues that are sent to at the same time.
_SENDERS = 8
_ADDRESS = re.compile(r"[^\s:;]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class ResendOptions:
    """What is asked for."""

    source: Path  # a file of lines, or a store
    #: HOST:PORT, several with semicolons between them; not needed for a dry run
    name_server: str | None = None
    to_topic: str | None = None  # the topic to send to, in place of each message's own
    rate: float | None = None  # messages a second at most
    included: frozenset[Apart] = frozenset()  # what is sent although it is left out otherwise
    position: Path | None = None  # where to keep how far it is; None for a file beside the source
    client: Path | None = None  # a directory of jars; None to fetch those of ``version``
    keys: Path | None = None  # a file of access keys
    dry_run: bool = False  # only say what would be sent
    #: broker_conf, version: of a store, see :meth:`StoreSettings.load`; the broker's release
    broker_conf: Path | None = None
    version: str | None = None


@dataclass(slots=True)
class Resent(Result):
    """What came of it; ``to_dict`` is what ``--json`` prints."""

    options: ResendOptions  # what was asked for
    position: Path  # the file
    sent: int = 0  # messages of this run
    sent_before: int = 0  # sent_before, left_out_before: messages of earlier runs
    left_out_before: int = 0
    findings_before: int = 0  # damaged places that they met
    unsure: int = 0  # the same as :attr:`Reached.unsure`, in this run and in earlier ones
    topics: dict[str, int] = field(default_factory=dict)  # messages of this run by topic
    left_out: list[LeftOut] = field(default_factory=list)  # what wasn't sent
    findings: list[Damage] = field(default_factory=list)  # damage in the store's log
    seconds: float = 0.0  # how long it took

    hidden = ("options", "sent")

    def more(self) -> dict[str, object]:
        """What isn't a field by this name."""
        return {
            "source": self.options.source,
            "name_server": self.options.name_server,
            "to_topic": self.options.to_topic,
            "dry_run": self.options.dry_run,
            "messages": self.sent,
            "most_repeated": MOST_REPEATED,
            "findings": [Finding.to_dict(one) for one in self.findings],
        }

    @property
    def exit_code(self) -> int:
        """0 when all was sent, and is safe."""
        before = self.left_out_before or self.findings_before
        return int(bool(self.left_out or before or self.unsure or self.findings))


@dataclass(slots=True)
class _Window:
    """Messages between two notes of the position."""

    reached: Reached  # where the source is after it
    messages: list[Outgoing] = field(default_factory=list)  # what is sent


def resend(options: ResendOptions, show: Callable[[int], None] = lambda _: None) -> Resent:
    """Send what is left to send. The source is only read.

    What a broker has taken is in the position, also after an error. ``show`` gets how many messages were
    sent.
    """
    check_here(options.source)
    _check(options)
    is_store = options.source.is_dir()
    source: Source = (
        StoreSource(options.source, options.broker_conf, options.version)
        if is_store
        else LinesSource(options.source)
    )
    path = _position_of(options, is_store=is_store)
    begun = time.monotonic()
    result = Resent(options, path)
    left_out = Counted()
    with ExitStack() as opened:
        position = None
        if not options.dry_run or path.exists():
            position = opened.enter_context(Position(path, _run_of(options)))
        reached = Reached() if position is None else position.reached
        result.sent_before, result.left_out_before = reached.sent, reached.left_out
        result.unsure, result.findings_before = reached.unsure, reached.damage
        if reached.last >= 0:
            check_resumed(options.source, source, reached.last, reached.fingerprint)
        client: Client | None = None
        pace = _Pace(options.rate)
        for window in _windows(source, reached, options, left_out):
            if not options.dry_run and position is not None and options.name_server is not None:
                if client is None and window.messages:
                    jars, keys = client_jars(options.client, options.version), access_keys(options.keys)
                    client = opened.enter_context(Client(jars, options.name_server, keys))
                if client is not None:
                    pace.wait(len(window.messages))
                    result.unsure += _send(client, window.messages)
                position.reach(replace(window.reached, unsure=result.unsure))
            for one in window.messages:
                result.topics[one.topic] = result.topics.get(one.topic, 0) + 1
            result.sent += len(window.messages)
            show(result.sent)
    result.left_out, result.findings = left_out.all(), source.damage
    result.seconds = time.monotonic() - begun
    return result


def _check(options: ResendOptions) -> None:
    if options.name_server is None:
        if not options.dry_run:
            raise SettingsError(
                "where to send to is not clear", expected="--name-server HOST:PORT", found="none"
            )
    elif not all(_ADDRESS.fullmatch(one) for one in options.name_server.split(";")):
        raise SettingsError(
            "--name-server can't be understood",
            expected="HOST:PORT, several with ; between them",
            found=options.name_server,
        )
    if options.to_topic is not None and not can_be_sent_to(options.to_topic):
        raise SettingsError(
            "--to-topic is no topic that clients can send to",
            expected="1 to 127 of a-z, A-Z, 0-9, %, |, _ and -, and none of RocketMQ's own",
            found=options.to_topic,
        )


def _run_of(options: ResendOptions) -> dict[str, object]:
    """What has to be the same when a run goes on."""
    named = {} if options.name_server is None else {"name_server": options.name_server}
    return {
        "reput": "resend 1",
        "source": str(options.source.absolute()),
        **named,
        "to_topic": options.to_topic,
        "included": sorted(one.value for one in options.included),
    }


def _position_of(options: ResendOptions, *, is_store: bool) -> Path:
    path = options.position
    if path is None:
        source = options.source.absolute()
        path = source.with_name(f"{source.name}.position")
    if is_store:
        check_outside("a position", path, [options.source], "Name another file with --position.")
    return path


def _windows(
    source: Source, reached: Reached, options: ResendOptions, left_out: Counted
) -> Iterator[_Window]:
    """What is left, in pieces of at most :data:`MOST_REPEATED` messages, or one batch's."""
    most = MOST_REPEATED if options.rate is None else max(min(MOST_REPEATED, int(options.rate)), 1)
    window, size, seen = _Window(reached), 0, False
    for item in source.items(reached.next):
        messages: list[Outgoing] = []
        try:
            messages = outgoing(
                item.message, item.due, int(time.time() * 1000),
                to_topic=options.to_topic, included=options.included,
            )  # fmt: skip
        except NotSentError as why:
            left_out.add(why.kind, item.message, why.reason, why.option)
        more = sum(one.size for one in messages)
        if window.messages and (len(window.messages) + len(messages) > most or size + more > _WINDOW_BYTES):
            yield window
            window, size = _Window(window.reached), 0
        seen = True
        size += more
        window.messages += messages
        window.reached = Reached(
            item.next,
            item.start,
            item.fingerprint,
            window.reached.sent + len(messages),
            window.reached.left_out + (not messages),
            damage=reached.damage + len(source.damage),
        )
    if seen:
        window.reached = replace(window.reached, done=True)
        yield window


def _send(client: Client, messages: list[Outgoing]) -> int:
    """Send a window's messages, those of a queue in their order; how many aren't surely safe."""
    queues: dict[tuple[str, str, int], list[Outgoing]] = {}
    for one in messages:
        queues.setdefault((one.topic, *client.queue_of(one.topic, one.queue_id)), []).append(one)
    with ThreadPoolExecutor(_SENDERS) as senders:
        return sum(senders.map(client.send, queues.values()))


class _Pace:
    """Keeps messages a second below a rate."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due = time.monotonic()

    def wait(self, messages: int) -> None:
        """Wait until so many more may be sent."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._due > now:
            time.sleep(self._due - now)
        self._due = max(self._due, now) + messages / self._rate
