"""``reput tail --status`` and ``--stop``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from reput.cli.output import Output
from reput.cli.times import moment
from reput.store.space import human
from reput.watch.status import DIED, Status, Stopped, has_begun, look, stop
from reput.words import counted

_BROKE_OFF = 1
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
        status = look(directory, broker_conf) if has_begun(stopped.root) else None
    code = _BROKE_OFF if stopped.holder is not None and not stopped.clean else 0
    facts = {
        "stopped": stopped.holder is not None,
        "stopped_holder": None if stopped.holder is None else stopped.holder.what,
        "waited_seconds": round(stopped.seconds, 3),
        "clean": stopped.clean,
    }
    if status is None:
        output.end(
            code,
            {**facts, "output": str(stopped.root)},
            [f"{_verdict(stopped)}: the log has no segment yet"],
        )
    output.end(code, {**facts, **status.to_dict()}, [_verdict(stopped), *_place(status), *_lag(status)])


def _verdict(stopped: Stopped) -> str:
    if stopped.holder is None:
        how = "Nobody writes to"
    else:
        how = f"Stopped {stopped.holder.what} within {stopped.seconds:.1f} s:"
    if not stopped.clean:
        return (
            f"{how} {stopped.root}; the last run broke off, the next one rolls back what it hadn't committed"
        )
    return f"{how} {stopped.root}" + ("" if stopped.holder is None else " is a committed state")


def _lines(status: Status) -> Iterator[str]:
    yield _headline(status)
    dialect = f" as RocketMQ {status.rocketmq_version} writes it" if status.rocketmq_version else ""
    yield f"  store      {status.opening.store}{dialect}"
    yield from _place(status)
    yield from _lag(status)
    done = status.committed
    batches = counted(done.batches, "batch", "batches")
    last = f", the last one committed at {moment(status.committed_ms)}" if done.batches else ""
    yield f"  done       {counted(done.messages, 'message')}, {human(done.bytes)} in {batches}{last}"
    yield f"  queues     {counted(len(done.queues), 'queue')} with {counted(done.units, 'unit')}"
    index = f"{counted(len(done.index), 'file')} with {counted(done.index_entries, 'key')}"
    yield f"  index      {index if done.index else 'none'}"
    if status.ledger_batches is None:
        yield f"  ledger     can't be read: {status.ledger_problem}"
    else:
        yield f"  ledger     {status.ledger_batches:,} of {batches}"
    yield from _table(status)
    parts = ", ".join(f"{name} {human(size)}" for name, size in status.disk.items())
    yield f"  disk       {human(sum(status.disk.values()))}: {parts}"
    if status.running is not None and status.running.metrics is not None:
        yield f"  metrics    {status.running.metrics}"
    yield from _findings(status)


def _headline(status: Status) -> str:
    if status.holder is not None:
        since = "" if status.running is None else f" since {moment(status.running.started_ms)}"
        return f"{status.root} is being written by {status.holder.what}{since}"
    if status.state == DIED:
        return (
            f"{status.root}: nobody writes, and the last run died; "
            "the next start rolls back what it hadn't committed"
        )
    return f"{status.root}: nobody writes, all is committed"


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
            f"the oldest message has been waiting for {_duration(lag.ms)}"
        )
    else:
        yield "  lag        none: every whole message of the log is committed"


def _table(status: Status) -> Iterator[str]:
    found = status.catalog
    if found is None:
        return
    note = found.note
    if found.problem is not None:
        at = f"can't be read: {found.problem}"
    elif found.lag_bytes:
        at = f"{human(found.lag_bytes)} behind the offset"
    else:
        at = "not behind"
    brought = (
        "not yet brought up to date by this tail"
        if note.last_success_ms is None
        else f"last brought up to date at {moment(note.last_success_ms)}"
    )
    yield f"  catalog    {note.table}: {at}; {brought}"
    if note.failures:
        failures = counted(note.failures, "failure")
        yield f"    {failures} since the tail began, the last one: {note.last_failure}"


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


def _duration(ms: int) -> str:
    if ms < 1000:
        return f"{ms} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    minutes = ms // 60_000
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60} min"
