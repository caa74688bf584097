"""``reput dump``: what is in the files, a line a record."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli.arguments import BrokerConf, WrittenBy, time_of
from reput.cli.dump_text import damage_line, index_line, message_line, place_line, queue_line, word
from reput.cli.outcome import reported
from reput.cli.output import TextOutput, inline, moment, told
from reput.dump import checkpoint as checkpoint_fields
from reput.dump import places
from reput.dump.damage import Damage
from reput.errors import ReputError, SettingsError
from reput.settings import StoreSettings

if TYPE_CHECKING:
    from reput.dump.commitlog import Event as LogEvent
    from reput.dump.places import LogPlace
    from reput.dump.statistics import TopicSums
    from reput.dump.wanted import Wanted

dump_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Show what is in a store's files, record by record: commit log, consume queues, index, checkpoint. "
    "Nothing is changed, and a broker may run.",
)

_COMMITLOG_EXAMPLES = """**Examples**

What a topic got between two times:

    reput dump commitlog /data/store --topic orders --since 2026-11-21T10:00 --until 2026-11-21T10:05

The messages of a queue from queueOffset 1000 on, with their bodies:

    reput dump commitlog /data/store --queue orders:3 --queue-start 1000 --limit 20 --body

One segment that was copied here, whatever it is called; is it sound?

    reput dump commitlog ./00000000001073741824 --quiet

Bytes by topic, and what comes from now on, for a program:

    reput dump commitlog /data/store --stats

    reput dump commitlog /data/store --follow --start end --json | jq .topic
"""
_CONSUMEQUEUE_EXAMPLES = """**Examples**

A queue, from a queueOffset on:

    reput dump consumequeue /data/store --queue orders:3 --start 1000 --limit 10

When delayed messages are due:

    reput dump consumequeue /data/store/consumequeue/SCHEDULE_TOPIC_XXXX
"""
_INDEX_EXAMPLES = """**Examples**

The header of each file, and how full it is:

    reput dump index /data/store --headers --broker-conf broker.conf

Where a key leads, entry by entry:

    reput dump index /data/store --key 'orders#4711' --broker-conf broker.conf
"""
_CHECKPOINT_EXAMPLES = """**Examples**

    reput dump checkpoint /data/store
"""

PathArgument = Annotated[
    Path, typer.Argument(metavar="PATH", help="A store, a directory in it, or one file, here or elsewhere.")
]
AsLines = Annotated[bool, typer.Option("--json", help="Print JSON lines: one object a record.")]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Stop after so many records.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but damage.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only what was stored at this time or later.")
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only what was stored at this time or earlier.")
]


@dump_app.command("commitlog", epilog=_COMMITLOG_EXAMPLES)
def commitlog_command(
    path: PathArgument,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            "-s",
            metavar="N",
            help="Begin at this physical offset; with --follow also `end`: at what comes from now on.",
        ),
    ] = None,
    end: Annotated[
        int | None,
        typer.Option(
            "--end", "-e", metavar="N", min=0, help="Only records that begin before this physical offset."
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="T", help="Only this topic; several times, or with --queue: any of."),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", metavar="TOPIC:ID", help="Only this queue; several times, or with --topic: any of."
        ),
    ] = None,
    queue_start: Annotated[
        int | None,
        typer.Option("--queue-start", metavar="N", help="With --queue: only from this queueOffset on."),
    ] = None,
    queue_end: Annotated[
        int | None,
        typer.Option("--queue-end", metavar="N", help="With --queue: only before this queueOffset."),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Only with this tag.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only with this key, or this UNIQ_KEY.")
    ] = None,
    uniq_key: Annotated[
        str | None, typer.Option("--uniq-key", metavar="ID", help="Only with this UNIQ_KEY.")
    ] = None,
    transaction: Annotated[
        str | None,
        typer.Option(
            "--transaction", metavar="STATE", help="Only prepared, commit, rollback or none of these."
        ),
    ] = None,
    limit: Limit = None,
    body: Annotated[
        bool, typer.Option("--body", help="Print bodies, uncompressed: as text, or in hexadecimal.")
    ] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show BLANKs, and the unwritten end, too.")] = False,
    stats: Annotated[
        bool, typer.Option("--stats", "-z", help="Print sums by topic instead of records.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what a running broker writes, until Ctrl-C.")
    ] = False,
    quiet: Quiet = False,
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    as_json: AsLines = False,
) -> None:
    """Show the messages of the commit log, in log order, and what is damaged between them.

    Ranges are half open. TIME is ms since 1970 in 13 digits, or ISO 8601, UTC unless it says otherwise. All
    conditions must hold. Damage in the range is always shown, whatever is asked for.

    Exit code 0: sound. 1: something in the range is damaged. 2: refused or failed.
    """
    with _dumping(as_json) as lines:
        first = _start(start, follow=follow)
        wanted = _wanted(
            topics=topic, queues=queue, queue_start=queue_start, queue_end=queue_end, tag=tag, key=key,
            uniq_key=uniq_key, transaction=transaction, since=since, until=until,
        )  # fmt: skip
        _in_order("--start", first, "--end", end)
        if stats and (body or show_all):
            raise _unclear("--stats with --body or --all", "--stats alone: no record is shown")
        if quiet and (body or show_all or stats):
            raise _unclear("--quiet with --body, --all or --stats", "--quiet alone: no record is shown")
        place = places.log_place(path, broker_conf, rocketmq_version, may_be_empty=follow)
        if follow and not place.can_grow:
            raise _unclear("--follow with one file", "--follow with a store or a directory of segments")
        events = _log_events(place, wanted, first, end, follow=follow)
        _show_log(
            lines, events, limit=limit, body=body, show_all=show_all, stats=stats, quiet=quiet, follow=follow
        )


@dump_app.command("consumequeue", epilog=_CONSUMEQUEUE_EXAMPLES)
def consumequeue_command(
    path: PathArgument,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", metavar="TOPIC[:ID]", help="Only this topic or queue; several times: any of."
        ),
    ] = None,
    start: Annotated[
        int, typer.Option("--start", "-s", metavar="N", min=0, help="Begin at this queueOffset.")
    ] = 0,
    end: Annotated[
        int | None, typer.Option("--end", "-e", metavar="N", min=0, help="Stop before this queueOffset.")
    ] = None,
    limit: Limit = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show the unwritten end of each queue, too.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsLines = False,
) -> None:
    """Show the units of consume queues and batch queues: where each leads, and its tagsCode.

    With files of `consumequeue_ext` beside them, what a tagsCode leads to there is shown with its unit.
    Places before a queue's first message are named `pre-blank`; zeros before other units, and units that no
    broker takes, are damage.

    Exit code 0: sound. 1: something in the range is damaged. 2: refused or failed.
    """
    with _dumping(as_json) as lines:
        _in_order("--start", start, "--end", end)
        from reput.dump.consumequeue import QueueUnit, Run, dump

        chosen = [_queue(text) for text in queue or ()]
        most = _Countdown(limit)
        matched = False
        for place in places.queue_places(path):
            if chosen and not any(
                topic == place.topic and number in (None, place.queue_id) for topic, number in chosen
            ):
                continue
            matched = True
            for event in dump(place, start, 1 << 62 if end is None else end):
                hidden = isinstance(event, Run) and event.kind == "unwritten" and not show_all
                if isinstance(event, Damage) or not (quiet or hidden):
                    lines.show(event, queue_line)
                if isinstance(event, QueueUnit) and most.is_reached():
                    return
        if not matched:
            raise SettingsError(
                "there is no such queue here",
                path=path,
                expected="files of " + ", ".join(queue or ()),
                found="none",
                next_step="`reput dump commitlog --queue` finds messages that no queue leads to",
            )


@dump_app.command("index", epilog=_INDEX_EXAMPLES)
def index_command(
    path: PathArgument,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="TOPIC#KEY", help="Walk the chain of this key only, the newest entry first."
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Show headers only, and how full files are.")
    ] = False,
    limit: Limit = None,
    quiet: Quiet = False,
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    as_json: AsLines = False,
) -> None:
    """Show index files: the header, how many slots are used, and each entry.

    Entries know the hash of a key, not the key, and whole seconds: an entry's message may be up to 999 ms
    later than the entry says. The sizes of a file come from broker.conf.

    Exit code 0: sound. 1: something is damaged. 2: refused or failed.
    """
    with _dumping(as_json) as lines:
        if headers and key is not None:
            raise _unclear("--headers and --key", "one of them")
        if key is not None and "#" not in key:
            raise SettingsError(
                "a key can't be understood", expected="TOPIC#KEY, e.g. orders#4711", found=key
            )
        begin, stop = _times(since, until)
        from reput.dump import index

        root = places.absolute(path)
        settings = StoreSettings.load(
            root if root.is_dir() else root.parent, broker_conf, rocketmq_version, dledger=True
        )
        most = _Countdown(limit)
        for place in index.places(places.index_files(path), settings):
            events = index.dump(place, begin, stop) if key is None else index.walk(place, key, begin, stop)
            for event in events:
                if isinstance(event, index.Entry) and headers:
                    break
                if isinstance(event, Damage) or not quiet:
                    lines.show(event, index_line)
                if isinstance(event, index.Entry) and most.is_reached():
                    return


@dump_app.command("checkpoint", epilog=_CHECKPOINT_EXAMPLES)
def checkpoint_command(path: PathArgument, as_json: AsLines = False) -> None:
    """Show the fields of a store checkpoint: three times, in ms and UTC, and three physical offsets.

    Exit code 0: read. 2: refused or failed.
    """
    with _dumping(as_json) as lines:
        file = places.checkpoint_file(path)
        fields = checkpoint_fields.read(file)
        utc = {name: moment(fields[name]) for name in checkpoint_fields.NAMES[: checkpoint_fields.TIMES]}
        if as_json:
            times = {f"{name}Utc": text for name, text in utc.items()}
            lines.put(json.dumps({"type": "checkpoint", "path": str(file), **fields, **times}))
            return
        for name, value in fields.items():
            lines.put(f"{name:<21} {value:>19}  {utc[name]}" if name in utc else f"{name:<21} {value:>19}")


class _Lines:
    """Lines on stdout, many at a time; whether any of them says damage."""

    _MANY = 512

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.damaged = False
        self._waiting: list[str] = []
        self._colours = not as_json and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._colours = self._colours and os.environ.get("TERM") != "dumb"
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")

    def show(self, event: Any, text: Callable[[Any], str]) -> None:
        """A line for something that has a ``to_dict``; ``text`` makes one for people."""
        if isinstance(event, Damage):
            self.damaged = True
            text = damage_line
        self.put(json.dumps(event.to_dict()) if self.as_json else text(event), red=isinstance(event, Damage))

    def put(self, line: str, *, red: bool = False) -> None:
        """A line; no text of a store can end it or steer a terminal."""
        line = inline(line)
        self._waiting.append(f"\x1b[31m{line}\x1b[0m" if red and self._colours else line)
        if len(self._waiting) >= self._MANY:
            self.flush()

    def flush(self) -> None:
        """Let everything be seen."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            sys.stdout.write("\n".join(waiting) + "\n")
        sys.stdout.flush()

    def error(self, error: ReputError) -> None:
        """Why the command was refused or failed: to stderr, with ``--json`` as a line as well."""
        with suppress(OSError):
            if self.as_json:
                facts = {"type": "error", "exit_code": 2, "error": error.problem, "message": str(error)}
                self.put(json.dumps({**facts, **error.facts()}))
            self.flush()
        told(error)


class _Refusal(TextOutput):
    def __init__(self, lines: _Lines) -> None:
        self._lines = lines

    def error(self, error: ReputError) -> None:
        self._lines.error(error)


@contextmanager
def _dumping(as_json: bool) -> Iterator[_Lines]:
    """Run a command; ends it with its exit code. Who closes the pipe has seen enough, and that is no error.

    Raises:
        typer.Exit: always.
    """
    lines = _Lines(as_json=as_json)
    with reported(_Refusal(lines), interrupted="nothing was changed"):
        try:
            yield lines
            lines.flush()
        except BrokenPipeError:
            _let_go_of_stdout()
    raise typer.Exit(1 if lines.damaged else 0)


def _let_go_of_stdout() -> None:
    """What waits in buffers must not be written when Python ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _Countdown:
    def __init__(self, limit: int | None) -> None:
        self._left = limit

    def is_reached(self) -> bool:
        """One more was shown: whether that is enough."""
        if self._left is None:
            return False
        self._left -= 1
        return self._left == 0


def _log_events(
    place: LogPlace, wanted: Wanted, start: int | None, end: int | None, *, follow: bool
) -> Iterator[LogEvent | None]:
    from reput.dump.commitlog import MOST_OFFSET, Reader

    last = MOST_OFFSET if end is None else end
    entries = place.log.entries
    if follow:
        from reput.dump.following import follow as following

        yield from following(place.settings, wanted, start, last, entries=entries)
        return
    reader = Reader(place.settings, entries=entries, wanted=wanted, start=start or 0, end=last)
    yield from reader.log(place.log, followed=place.followed)


def _show_log(
    lines: _Lines,
    events: Iterator[LogEvent | None],
    *,
    limit: int | None,
    body: bool,
    show_all: bool,
    stats: bool,
    quiet: bool,
    follow: bool,
) -> None:
    from reput.dump import rows
    from reput.dump.commitlog import Block
    from reput.dump.statistics import Statistics

    sums = Statistics()
    left = limit
    try:
        for event in events:
            if event is None:
                lines.flush()
            elif isinstance(event, Damage):
                lines.show(event, damage_line)
                lines.flush()
            elif not isinstance(event, Block):
                if show_all:
                    lines.show(event, place_line)
            else:
                block = event if left is None else event.first(left)
                left = None if left is None else left - len(block.rows)
                if stats:
                    sums.add(block)
                elif not quiet:
                    for message in block.messages():
                        held = rows.body(message) if body else {}
                        if lines.as_json:
                            lines.put(json.dumps({**rows.row(message), **held}))
                        else:
                            lines.put(message_line(message, held))
                    lines.flush()
                if left == 0:
                    break
    except KeyboardInterrupt:
        if not follow:
            raise
    if stats:
        _show_sums(lines, sums.topics(), sums.total())


def _show_sums(lines: _Lines, topics: list[TopicSums], total: TopicSums | None) -> None:
    if total is None:
        if not lines.as_json:
            lines.put("no message")
        return
    if lines.as_json:
        for one in (*topics, total):
            lines.put(json.dumps(one.to_dict()))
        return
    lines.put(
        f"{'messages':>12} {'bytes':>16} {'share':>6} {'min':>8} {'mean':>10} {'max':>8}  "
        f"{'first stored':<24} {'last stored':<24} topic"
    )
    for one in (*topics, total):
        name = "all topics" if one.topic is None else word(one.topic)
        lines.put(
            f"{one.messages:>12,} {one.bytes:>16,} {one.bytes / total.bytes:>6.1%} {one.least:>8,} "
            f"{one.mean:>10,.1f} {one.most:>8,}  {moment(one.first):<24} {moment(one.last):<24} {name}"
        )


def _wanted(
    *,
    topics: list[str] | None,
    queues: list[str] | None,
    queue_start: int | None,
    queue_end: int | None,
    tag: str | None,
    key: str | None,
    uniq_key: str | None,
    transaction: str | None,
    since: str | None,
    until: str | None,
) -> Wanted:
    from reput.dump.wanted import Transaction, Wanted

    chosen = tuple(_queue(text) for text in queues or ())
    if (queue_start is not None or queue_end is not None) and (len(chosen) != 1 or chosen[0][1] is None):
        raise _unclear("--queue-start or --queue-end without it", "one --queue TOPIC:ID beside them")
    _in_order("--queue-start", queue_start, "--queue-end", queue_end)
    for option, text in (("--tag", tag), ("--key", key), ("--uniq-key", uniq_key)):
        if text == "":
            raise SettingsError(
                f"{option} is empty: an empty text finds nothing", expected="a text", found="nothing"
            )
    states = [state.value for state in Transaction]
    if transaction is not None and transaction not in states:
        raise SettingsError(
            "--transaction can't be understood", expected=f"one of {', '.join(states)}", found=transaction
        )
    begin, stop = _times(since, until)
    return Wanted(
        topics=tuple(topics or ()),
        queues=chosen,
        queue_start=queue_start,
        queue_end=queue_end,
        tag=tag,
        key=key,
        uniq_key=uniq_key,
        transaction=None if transaction is None else Transaction(transaction),
        since=begin,
        until=stop,
    )


def _queue(text: str) -> tuple[str, int | None]:
    topic, colon, number = text.rpartition(":")
    if not colon:
        return text, None
    if not topic or not (number.isascii() and number.isdecimal()) or len(number) > 10:
        raise SettingsError(
            "a queue can't be understood", expected="TOPIC or TOPIC:ID, e.g. orders:3", found=text
        )
    return topic, int(number)


def _times(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    begin, stop = time_of("--since", since), time_of("--until", until)
    if begin is not None and stop is not None and begin > stop:
        raise _unclear(
            f"--since {since}, which is later than --until {until}", "--since at --until or earlier"
        )
    return begin, stop


def _start(text: str | None, *, follow: bool) -> int | None:
    """The physical offset; None for the log's present end when it is followed, else 0."""
    if text is None:
        return 0
    if text == "end" and follow:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 19:
        return int(text)
    raise SettingsError(
        "--start can't be understood",
        expected="a physical offset" + (", or end" if follow else "; `end` only with --follow"),
        found=text,
    )


def _in_order(one: str, first: int | None, other: str, last: int | None) -> None:
    if first is not None and last is not None and first > last:
        raise _unclear(f"{one} {first} behind {other} {last}", f"{one} at {other} or before")


def _unclear(found: str, expected: str) -> SettingsError:
    return SettingsError("what to show is not clear", expected=expected, found=found)
