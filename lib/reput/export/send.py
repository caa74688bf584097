"""Sends messages again, at least once each, and keeps how far it is."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType

from reput.dump.damage import Damage
from reput.errors import Finding, OutputError, Result, SettingsError, StoreInUseError
from reput.export.client import Client, access_keys, client_jars
from reput.export.outgoing import (
    LinesSource,
    NotSentError,
    Outgoing,
    Source,
    StoreSource,
    check_resumed,
    outgoing,
)
from reput.export.records import Apart, Counted, LeftOut
from reput.newer_python import Self
from reput.remote.client import check_here
from reput.store import files
from reput.store.outside import check_outside

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
    done: bool = False  # all were


class Position:
    """The file; a context manager, which makes it when something is written.

    ``run`` says what is sent, and where to: it has to be the same when a run goes on.
    """

    def __init__(self, path: Path, run: Mapping[str, object]) -> None:
        self.path = path
        self.reached = Reached()
        self._run = dict(run)
        self._fd = -1
        self._end = 0

    def __enter__(self) -> Self:
        with files.reporting("the position can't be kept", self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with files.reporting("the position can't be kept", self.path):
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise StoreInUseError(
                        "another run sends these messages now",
                        path=self.path,
                        next_step="Wait for its end, or name another file with --position",
                    ) from None
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
            if not self._end and os.fstat(self._fd).st_size == 0:
                self.path.unlink(missing_ok=True)  # nothing was sent
            os.close(self._fd)
            self._fd = -1


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
    unsure: int = 0  # messages that are stored, and weren't said to be on disk, or on a slave
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
            "seconds": round(self.seconds, 3),
        }

    @property
    def exit_code(self) -> int:
        """0 when all was sent, and is safe."""
        return int(bool(self.left_out or self.left_out_before or self.unsure or self.findings))


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
                position.reach(window.reached)
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
