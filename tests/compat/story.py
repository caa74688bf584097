"""The whole story on this machine: ``python -m tests.compat.story``, or ``make cluster``.

A real name server and broker, a Spark master with two workers, a producer, and a tail by spark-submit that
follows the broker's log; in the end everything the tail wrote is compared with the broker's own files.
docker-compose.yml does the same in containers.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from reput.config.settings import StoreSettings
from reput.errors import ReputError, SparkError
from reput.format import names
from reput.job import status as watch_stop
from reput.log.end import LogEnd
from reput.log.segments import discover
from reput.output.journal import read_state
from reput.replay.state import State
from reput.store.compare import compare
from tests.cluster import Cluster, Job, Submitted
from tests.compat.broker import Broker
from tests.compat.conf import conf_text
from tests.compat.jars import VERSIONS, JarsUnavailableError
from tests.compat.jvm import JavaError
from tests.compat.message import Message

_TAIL = Path(__file__).parents[2] / "jobs" / "tail.py"
#: Files as small as this roll within seconds, so that more than the first one is compared.
CONFIG: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 500 * 20,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 2000,
    # It has a store of its own, of 40 MB, and nothing here is timed.
    "timerWheelEnable": False,
    # A broker that shares two cores with everything else here refuses what has waited for 200 ms.
    "waitTimeMillsInSendQueue": 10_000,
}
TOPICS = {"Orders": 4, "Payments": 2, "Audit": 1}
_TAGS = (None, "created", "paid")
_BURST = 10
_SAY_SECONDS = 2.0
_START_SECONDS = 300.0
_END_SECONDS = 180.0
#: With the first the driver warms up, with the second the executors.
_FIRST_BATCHES = 2
_MOST_DIFFERENCES = 20
_REFUSED = 2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def story(
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=1, help="How long the tail follows the producer.")
    ] = 15.0,
    rate: Annotated[int, typer.Option("--rate", metavar="N", min=1, help="Messages a second.")] = 300,
    rocketmq_version: Annotated[
        str, typer.Option("--rocketmq-version", metavar="V", help=f"One of {', '.join(VERSIONS[1:])}.")
    ] = VERSIONS[-1],
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Workers, a core each.")] = 2,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep store, output and logs in DIR, a new one."),
    ] = None,
) -> None:
    """Let a real broker write, a tail on a Spark cluster follow it, and compare every byte; all on 127.0.0.1.

    RocketMQ's jars come from Maven Central, the first time (about a minute, 90 MB).

    Exit code 0: every byte is the broker's. 1: bytes differ. 2: refused or failed.
    """
    with ExitStack() as stack:
        try:
            if rocketmq_version not in VERSIONS[1:]:
                raise JarsUnavailableError(
                    f"there is no story with RocketMQ {rocketmq_version}; with {' and '.join(VERSIONS[1:])}"
                )
            if keep is None:
                scratch = tempfile.TemporaryDirectory(prefix="reput-cluster-", ignore_cleanup_errors=True)
                work = Path(stack.enter_context(scratch))
            else:
                keep.mkdir(parents=True)
                work = keep.absolute()
            started = time.perf_counter()
            with Cluster(work, workers) as cluster:
                pids = ", ".join(f"{name} {pid}" for name, pid in cluster.pids.items())
                took = time.perf_counter() - started
                say("cluster", f"{cluster.master} is up after {took:.1f} s (pids: {pids})")
                code = run(cluster, work, version=rocketmq_version, seconds=seconds, rate=rate)
            say("stopped", "workers and master")
            if keep is None:
                say("removed", "store and output; --keep DIR keeps them")
        except (ReputError, JarsUnavailableError, JavaError, FileExistsError) as error:
            typer.echo(f"reput: {error}", err=True)
            raise typer.Exit(_REFUSED) from None
        except KeyboardInterrupt:
            typer.echo("reput: interrupted; everything that was started is stopped", err=True)
            raise typer.Exit(128 + signal.SIGINT) from None
    raise typer.Exit(code)


def run(
    cluster: Cluster,
    work: Path,
    *,
    version: str,
    seconds: float,
    rate: int,
    tell: Callable[[str, str], None] | None = None,
) -> int:
    """The story on a cluster that runs; returns 0 if every byte is the broker's, else 1.

    Args:
        work: where the store, the output and the tail's log go.
        version: the RocketMQ release, 5.x.
        seconds: how long the tail follows while the producer sends.
        rate: messages a second.
        tell: is told who does what; prints it by default.

    Raises:
        ReputError: the tail failed, or something didn't happen in time.
        JavaError, JarsUnavailableError: the broker's.
    """
    tell = tell or say
    store, out, conf = work / "store", work / "derived", work / "broker.conf"
    conf.write_text(conf_text({**CONFIG, "storePathRootDir": store}), encoding="utf-8")
    with ExitStack() as stack:
        broker = Broker(version, store, CONFIG)
        with broker:
            tell("broker", f"RocketMQ {version} at 127.0.0.1:{broker.port}, name server {broker.name_server}")
            for topic, queues in TOPICS.items():
                broker.create_topic(topic, queues)
            producer = stack.enter_context(Producer(broker, rate))
            tell("producer", f"{rate} messages a second to {', '.join(TOPICS)}")
            said = stack.enter_context((work / "tail.log").open("w"))
            words = [str(store), "--out", str(out), "--broker-conf", str(conf)]
            job = cluster.begin(_TAIL, [*words, "--rocketmq-version", version], stderr=said.fileno())
            stack.callback(job.stop)
            tell("tail", f"spark-submit jobs/tail.py {store} --out {out} (pid {job.pid})")
            _await(job, lambda: _batches(out) >= _FIRST_BATCHES, "the tail's first batches", _START_SECONDS)
            _watch(job, out, producer, seconds, tell)
            sent = producer.finish()
            tell("producer", f"stopped after {sent:,} messages")
            broker.wait_dispatched()
        tell("broker", "stopped in good order")
        settings = StoreSettings.load(store, conf, version)
        end = LogEnd(settings).find(discover(settings))
        _await(job, lambda: _cursor(out) >= end, f"the tail at the log's end, {end}", _END_SECONDS)
        watch_stop.stop(out)
        ended = job.wait(_END_SECONDS)
    return max(_told(ended, tell), _compared(store, out, tell))


def say(who: str, what: str) -> None:
    """A line for people."""
    typer.echo(f"{who:<10} {what}")


class Producer:
    """A real client that sends in a thread, bursts of one queue after the other."""

    def __init__(self, broker: Broker, rate: int) -> None:
        self._broker = broker
        self._pause = _BURST / rate
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send, name="producer", daemon=True)
        self._failure: Exception | None = None
        self.sent = 0

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(_END_SECONDS)

    def finish(self) -> int:
        """End, and say how many messages the broker has taken.

        Raises:
            JavaError: sending failed.
        """
        self.__exit__()
        if self._failure is not None:
            raise JavaError(f"sending failed after {self.sent} messages: {self._failure}")
        return self.sent

    def _send(self) -> None:
        queues = [(topic, number) for topic, count in TOPICS.items() for number in range(count)]
        try:
            due = time.monotonic()
            while not self._ending.is_set():
                topic, queue_id = queues[self.sent // _BURST % len(queues)]
                numbers = range(self.sent, self.sent + _BURST)
                self._broker.produce_batch([self._message(topic, queue_id, number) for number in numbers])
                self.sent += _BURST
                due += self._pause
                self._ending.wait(max(due - time.monotonic(), 0))
        except Exception as failure:  # noqa: BLE001 - told by finish()
            self._failure = failure

    @staticmethod
    def _message(topic: str, queue_id: int, number: int) -> Message:
        body = b'{"number": %d}' % number
        return Message(topic, queue_id, body, tags=_TAGS[number % len(_TAGS)], keys=f"order-{number // 3}")


def _watch(job: Job, out: Path, producer: Producer, seconds: float, tell: Callable[[str, str], None]) -> None:
    """Say how far the tail is, while it follows."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _SAY_SECONDS))
        state = _state(out)
        if job.has_ended or state is None:
            break
        behind = max(time.time() - state.last_timestamp / 1000, 0)
        tell(
            "tail",
            f"{state.messages:,} of {producer.sent:,} messages, the last one stored {behind:.1f} s ago",
        )
    _lives(job)


def _state(out: Path) -> State | None:
    """What the tail has committed; None before its first batch."""
    with suppress(ReputError, OSError):
        state = read_state(out / names.REPUT / names.JOURNAL)[1]
        return state if state.messages else None
    return None


def _cursor(out: Path) -> int:
    state = _state(out)
    return -1 if state is None else state.cursor


def _batches(out: Path) -> int:
    state = _state(out)
    return 0 if state is None else state.batches


def _await(job: Job, holds: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        _lives(job)
        if time.monotonic() > deadline:
            raise SparkError(f"not there after {seconds:.0f} s: {what}")
        time.sleep(0.05)


def _lives(job: Job) -> None:
    if job.has_ended:
        ended = job.wait()
        raise SparkError(f"the tail ended by itself with exit code {ended.exit_code}", found=ended.stdout)


def _told(ended: Submitted, tell: Callable[[str, str], None]) -> int:
    tasks = sum(ended.tasks.values())
    done = f"{tasks} tasks on {len(ended.tasks)} executors" if tasks else "small batches, done by the driver"
    tell("tail", f"ended with exit code {ended.exit_code}: {done}")
    for line in ended.stdout.splitlines():
        tell("", line)
    return ended.exit_code


def _compared(store: Path, out: Path, tell: Callable[[str, str], None]) -> int:
    found = compare(store, out)
    for kind, files, size in (
        ("queue", found.queue_files, found.queue_bytes),
        ("index", found.index_files, found.index_bytes),
    ):
        tell("check", f"{files:,} {kind} files with {size:,} bytes are equal to the broker's own")
    tell("check", f"{found.differing_bytes:,} bytes differ")
    for difference in found.differences[:_MOST_DIFFERENCES]:
        tell("", difference)
    return 1 if found.differences or not found.queue_files else 0


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _end)
    app()
