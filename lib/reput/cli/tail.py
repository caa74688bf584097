"""``reput tail``: follow a live commit log, say how that stands, and stop it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from reput.cli.arguments import FOLLOW, AsJson, Derives, InZone, OnSpark, argument, command, option, size
from reput.cli.jvm import prepare_spark, start_spark
from reput.cli.output import Output, TailDisplay, age, noted, summary_lines, told, warn_of_unknown
from reput.cli.times import moment
from reput.errors import SettingsError
from reput.job.status import DIED, Status, Stopped, has_begun, look, stop
from reput.spark.java import is_submitted
from reput.store.system import human
from reput.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.output.writer import BatchWriter

EXAMPLES = """Examples:
  Beside a running broker:
    reput tail /data/store --out /data/derived --broker-conf broker.conf
  From a disk that the broker needs more, with metrics for Prometheus:
    reput tail /data/store --out /data/derived --max-rate 50m --metrics-port 9404
  How it stands; also while it runs, and after it died:
    reput tail --status /data/derived
  End it with a clean state; wait a minute at most for the batch under way:
    reput tail --stop /data/derived --timeout 60
"""


@dataclass(kw_only=True)
class _Words(Derives, OnSpark, InZone, AsJson):
    store: Path | None = argument("STORE", "The store to follow: the directory that holds commitlog/.", None)
    out: Path | None = option("--out -o DIR", "Write to DIR, laid out like a store.")
    status: Path | None = option("--status DIR", "Show the state of the output DIR.")
    stop: Path | None = option("--stop DIR", "Stop the tail that writes to DIR, and wait.")
    timeout: float | None = option("--timeout S", "With --stop: seconds to wait (default: 90).", min=0.0)
    rate: str | None = option("--max-rate SIZE", "Maximum log bytes read per second, e.g. 50m.")
    metrics_port: int | None = option(
        "--metrics-port PORT", "Serve Prometheus metrics here; 0: any port.", min=0, max=65_535
    )
    metrics_address: str = option("--metrics-address HOST", "The address to listen on.", "127.0.0.1")

    @property
    def max_rate(self) -> int | None:
        """Bytes; raises SettingsError where it can't be understood."""
        return None if self.rate is None else size("--max-rate", self.rate)


@command("tail", EXAMPLES, FOLLOW)
def tail_command(given: _Words) -> None:
    """Follow a live commit log, and keep consume queues, index files, checkpoint and ledger up to date.

    Runs until `reput tail --stop DIR`, SIGTERM or Ctrl-C; each lets the current batch finish. To resume, run
    the same command again. The commit log is only read.

    Exit code 0: ended cleanly. 1: ended cleanly, with findings. 2: refused or failed. Of --status 0: sound.
    1: findings, or the last run died. 2: can't be told. Of --stop 0: all is committed. 1: it was cut off.
    2: it has not stopped in time.
    """
    with Output(given.as_json) as output:
        _refuse_unclear(given)
    # What stands in the environment is of the store that is followed: the output knows its own.
    conf = given.broker_conf if given.conf_by_hand else None
    if given.status is not None:
        show_status(given.status, conf, as_json=given.as_json)
    if given.stop is not None:
        show_stop(given.stop, 90.0 if given.timeout is None else given.timeout, conf, as_json=given.as_json)
    from reput.job.options import TailOptions
    from reput.job.tail import tail

    with output:
        if given.store is None or given.out is None:
            raise SettingsError(
                "what to follow, and where to, is not clear",
                expected="STORE and --out DIR; or --status DIR, or --stop DIR",
                found="neither" if given.store is None and given.out is None else "one of them alone",
            )
        options = given.to(TailOptions)
        prepare_spark()
        warn_of_unknown(given.store, given.queue)
        stopping = threading.Event()
        display = TailDisplay()

        def begin() -> SparkSession:
            noted("starting Spark")
            spark = start_spark("reput tail", given.master)
            _stop_on_signals(stopping)
            return spark

        def on_wait(directory: Path) -> None:
            if not is_submitted():
                _stop_on_signals(stopping)
            told(f"no segment in {directory} yet: waiting for the broker's first one")

        def batch_done(writer: BatchWriter) -> None:
            state = writer.state
            display.update(
                writer.progress.bytes_done, writer.progress.messages, state.cursor, state.last_timestamp
            )

        summary = tail(options, begin, stopping, batch_done, told, on_wait)
    output.show(summary, summary_lines(summary))


#: Of the command's parameters, those that fit --status and --stop.
_FITS = {"status": {"status", "broker_conf", "tz", "as_json"}}
_FITS["stop"] = {*_FITS["status"], "stop", "timeout"} - {"status"}


def _refuse_unclear(words: _Words) -> None:
    """Refuse what doesn't go with --status or --stop."""
    given = {key: words.named(key) for key, source in words.sources.items() if source == "COMMANDLINE"}
    for way, fits in _FITS.items():
        if way in given and (unfit := [name for key, name in given.items() if key not in fits]):
            raise SettingsError(
                f"--{way} follows nothing", expected=f"--{way} DIR without {', '.join(unfit)}", found="both"
            )
    if "timeout" in given and "stop" not in given:
        raise SettingsError("--timeout is about --stop", expected="--stop DIR with it", found="none")


def _stop_on_signals(stopping: threading.Event) -> None:
    def stop(number: int, _frame: FrameType | None) -> None:
        told(f"{signal.Signals(number).name}: ending after the batch under way")
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


_LAST_FINDINGS = 5


def show_status(directory: Path, broker_conf: Path | None, *, as_json: bool) -> NoReturn:
    """Say how an output stands, and end."""
    with Output(as_json, interrupted="interrupted", command="tail --status") as output:
        status = look(directory, broker_conf)
    output.show(status, _lines(status))


def show_stop(directory: Path, timeout: float, broker_conf: Path | None, *, as_json: bool) -> NoReturn:
    """Stop the tail that writes to an output, say what came of it, and end."""
    interrupted = "interrupted; the tail ends all the same when its batch is done"
    with Output(as_json, interrupted=interrupted, command="tail --stop") as output:
        stopped = stop(directory, timeout)
        if has_begun(stopped.output):
            stopped = replace(stopped, status=look(directory, broker_conf))
    output.show(stopped, _stopped_lines(stopped))


def _stopped_lines(stopped: Stopped) -> Iterator[str]:
    if stopped.status is None:
        yield f"{_verdict(stopped)}: the log has no segment yet"
        return
    yield _verdict(stopped)
    yield from _place(stopped.status)
    yield from _lag(stopped.status)


def _verdict(stopped: Stopped) -> str:
    if stopped.holder is None:
        how = "Nobody writes to"
    else:
        how = f"Stopped {stopped.holder.what} within {stopped.waited_seconds:.1f} s:"
    if not stopped.clean:
        left = "the last run broke off, the next one rolls back what it hadn't committed"
        return f"{how} {stopped.output}; {left}"
    return f"{how} {stopped.output}" + ("" if stopped.holder is None else " is a committed state")


def _lines(status: Status) -> Iterator[str]:
    yield _headline(status)
    dialect = f" as RocketMQ {status.rocketmq_version} writes it" if status.rocketmq_version else ""
    yield f"  store      {status.opening.store}{dialect}"
    yield from _place(status)
    yield from _lag(status)
    done = status.committed
    batches = counted(done.batches, "batch", "batches")
    last = f", the last one committed at {moment(status.last_commit_ms)}" if done.batches else ""
    yield f"  done       {counted(done.messages, 'message')}, {human(done.bytes)} in {batches}{last}"
    yield f"  queues     {counted(len(done.queues), 'queue')} with {counted(done.units, 'unit')}"
    index = f"{counted(len(done.index), 'file')} with {counted(done.index_entries, 'key')}"
    yield f"  index      {index if done.index else 'none'}"
    if status.ledger_batches is None:
        yield f"  ledger     can't be read: {status.ledger_problem}"
    else:
        yield f"  ledger     {status.ledger_batches:,} of {batches}"
    yield from _table(status)
    parts = ", ".join(f"{name} {human(size)}" for name, size in status.disk_bytes.items())
    yield f"  disk       {human(sum(status.disk_bytes.values()))}: {parts}"
    if status.running is not None and status.running.metrics is not None:
        yield f"  metrics    {status.running.metrics}"
    yield from _findings(status)


def _headline(status: Status) -> str:
    if status.holder is not None:
        since = "" if status.running is None else f" since {moment(status.running.started_ms)}"
        return f"{status.output} is being written by {status.holder.what}{since}"
    if status.state == DIED:
        return (
            f"{status.output}: nobody writes, and the last run died; "
            "the next start rolls back what it hadn't committed"
        )
    return f"{status.output}: nobody writes, all is committed"


def _place(status: Status) -> Iterator[str]:
    last = status.committed.last_timestamp
    stored = f", its last message stored at {moment(last)}" if last else ""
    yield f"  offset     {status.committed.cursor}{stored}"


def _lag(status: Status) -> Iterator[str]:
    lag = status.lag
    if status.log_problem is not None:
        yield f"  lag        {'unknown: ' if lag is None else ''}{status.log_problem}"
    elif lag is not None and lag.bytes:
        yield (
            f"  lag        {human(lag.bytes)} up to {lag.end}; "
            f"the oldest message has been waiting for {age(lag.ms)}"
        )
    else:
        yield "  lag        none: every whole message of the log is committed"


def _table(status: Status) -> Iterator[str]:
    found = status.catalog
    if found is None:
        return
    if found.problem is not None:
        at = f"can't be read: {found.problem}"
    elif found.lag_bytes:
        at = f"{human(found.lag_bytes)} behind the offset"
    else:
        at = "not behind"
    brought = (
        "not yet brought up to date by this tail"
        if found.last_success_ms is None
        else f"last brought up to date at {moment(found.last_success_ms)}"
    )
    yield f"  catalog    {found.table}: {at}; {brought}"
    if found.failures:
        failures = counted(found.failures, "failure")
        yield f"    {failures} since the tail began, the last one: {found.last_failure}"


def _findings(status: Status) -> Iterator[str]:
    found = status.committed.findings
    if not found:
        yield "  findings   none"
        return
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in status.finding_counts.items())
    yield f"  findings   {kinds}"
    last = found[-_LAST_FINDINGS:]
    if len(last) < len(found):
        yield f"    the last {len(last)}; --json prints all:"
    for finding in last:
        yield f"    {finding}"
