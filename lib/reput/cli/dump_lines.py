"""The lines of ``reput dump``: for people what ``cut`` wants first, then ``name=value``; or JSON."""

from __future__ import annotations

import io
import json
import os
import re
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from reput.cli.output import Output, inline, let_go_of_stdout, told, unwritten
from reput.cli.times import moment
from reput.dump.damage import Damage
from reput.errors import ReputError
from reput.remote import with_urls
from reput.store.listing import nearest_of
from reput.store.reading import unreadable
from reput.words import SCHEMA_VERSION, counted

if TYPE_CHECKING:
    from pathlib import Path

    from reput.derived.index import IndexFile
    from reput.dump.consumequeue import QueueUnit, Run
    from reput.dump.index import Chain, DatabaseHead, Entry, FileHead, KeyEntry
    from reput.dump.places import LogPlace, QueuePlace
    from reput.dump.wanted import Wanted
    from reput.query.message import Message

_PLAIN = re.compile(r"""[^\s"'=\\]+""")


def message_line(message: Message, held: dict[str, object]) -> str:
    """A message; ``held`` is what is said of its body."""
    from reput.dump.wanted import Transaction, transaction_of

    record = message.record
    queue = f"{word(message.topic)}:{record.queue_id}@{record.queue_offset}"
    facts = [f"{record.physical_offset}  {message.size}  {moment(record.store_timestamp)}  {queue} "]
    facts += [f"tags={word(message.tags)}"] if message.tags is not None else []
    if (keys := message.properties.get("KEYS")) is not None:
        facts.append(f"keys={word(keys)}")
    facts += [f"uniqKey={word(message.uniq_key)}"] if message.uniq_key is not None else []
    state = transaction_of(record.sys_flag)
    if state is not Transaction.NONE:
        facts.append(f"transaction={state.value}")
    if state in (Transaction.COMMIT, Transaction.ROLLBACK):
        facts.append(f"preparedTransactionOffset={record.prepared_transaction_offset}")
    facts += [f"reconsumeTimes={record.reconsume_times}"] if record.reconsume_times else []
    if message.batch is not None:
        facts.append(f"batch={message.batch.base_offset}+{message.batch.messages}")
    if message.compression is not None:
        facts.append(f"compressed={message.compression}")
    facts.append(f"bodySize={len(record.body)}")
    inner = held.get("inner_messages")
    if isinstance(inner, list):
        facts += [f"inner={one['queue_offset']}:{_body_text(one)}" for one in inner]
    elif held:
        facts.append(_body_text(held))
    if "body_problem" in held:
        facts.append(f"bodyProblem={word(str(held['body_problem']))}")
    return " ".join(facts)


def _body_text(held: dict[str, object]) -> str:
    if "body" in held:
        return f"body={json.dumps(held['body'], ensure_ascii=False)}"
    return f"bodyBase64={held['body_base64']}"


def word(text: str) -> str:
    """A text as one word: in quotes where it has a space, or looks as if it had some."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def place_line(event: Any) -> str:
    """A BLANK, or the unwritten end."""
    from reput.dump.commitlog import Blank

    if isinstance(event, Blank):
        return f"{event.offset}  {event.size}  BLANK, which closes the segment"
    return f"{event.offset}  {event.end - event.offset}  unwritten"


def damage_line(damage: Damage) -> str:
    """What is damaged."""
    where = f"{damage.offset} to {damage.end}" if damage.end > damage.offset else f"{damage.offset}"
    text = f"DAMAGE {damage.kind} at {where} of {damage.path}"
    if damage.topic is not None:
        text += f", queue {word(damage.topic)}:{damage.queue_id}"
    if damage.queue_offset is not None:
        text += f", queueOffset {damage.queue_offset} to {damage.queue_end}"
    return f"{text}: {damage.said}"


def _queue_name(place: QueuePlace) -> str:
    return "" if place.topic is None else f"{word(place.topic)}:{place.queue_id}"


def queue_line(event: QueueUnit | Run) -> str:
    """What a queue holds."""
    from reput.dump.consumequeue import Run

    if isinstance(event, Run):
        return f"{_queue_name(event.place)}@{event.start} to {event.end}  {event.kind}"
    return _unit_line(event)


def _unit_line(unit: QueueUnit) -> str:
    facts = [f"{_queue_name(unit.place)}@{unit.queue_offset}  {unit.position}  {unit.size} "]
    facts.append(f"tagsCode={unit.tags_code}")
    if unit.batch is not None:
        timestamp, messages, compacted = unit.batch
        facts.append(f"messages={messages} storeTimestamp={moment(timestamp)}")
        facts += [f"compactedOffset={compacted}"] if compacted != -1 else []
    facts += [f"storeTimestamp={moment(unit.stored)}"] if unit.stored is not None else []
    if unit.is_address and unit.ext is None:
        facts.append("ext=absent")
    if unit.ext is not None:
        ext = unit.ext
        facts.append(f"ext.tagsCode={ext.tags_code} ext.storeTimestamp={moment(ext.store_timestamp)}")
        facts += [f"ext.bitMap={ext.bit_map.hex()}"] if ext.bit_map else []
    facts += [f"deliver={moment(unit.delivery)}"] if unit.delivery is not None else []
    facts += ["(repeats the next unit)"] if unit.repeats else []
    return " ".join(facts)


def index_line(event: FileHead | Chain | Entry | DatabaseHead | KeyEntry) -> str:
    """What an index holds."""
    from reput.dump.index import Chain, DatabaseHead, FileHead, KeyEntry

    if isinstance(event, DatabaseHead):
        last = "none" if event.last_store_timestamp is None else moment(event.last_store_timestamp)
        return f"{event.path}  lastOffsetPy={event.last_offset_py} lastStoreTimeStamp={last}"
    if isinstance(event, KeyEntry):
        key = "" if event.key is None else f" key={word(event.key)}"
        of = f"{event.kind}  topic={word(event.topic)}{key} uniqKey={word(event.uniq_key)}"
        return f"{event.physical_offset}  {moment(event.store_timestamp)}  {of} hour={moment(event.hour)}"
    if isinstance(event, FileHead):
        header = event.header
        return (
            f"{event.place.path}  begin={moment(header.begin_timestamp)}@{header.begin_physical_offset} "
            f"end={moment(header.end_timestamp)}@{header.end_physical_offset} "
            f"hashSlotCount={header.slot_count} slotsUsed={event.slots_used}/{event.place.slots} "
            f"indexCount={header.index_count}/{event.place.entries}"
        )
    if isinstance(event, Chain):
        hashed = f"keyHash={event.key_hash} indexOrdinal={event.index_ordinal}"
        return f"slot {event.slot} of {word(event.key)}  {hashed}"
    other = "  (another key)" if event.matches is False else ""
    return (
        f"{event.ordinal}  {event.physical_offset}  {moment(event.timestamp)}  keyHash={event.key_hash} "
        f"slot={event.slot} prevIndex={event.prev_index}{other}"
    )


_EMPTY, _PAST_END, _BEFORE_START, _NO_MATCH = "empty", "past-end", "before-start", "no-match"


@dataclass(frozen=True, slots=True)
class Nothing:
    """Why there is nothing."""

    text: str  # in words, one line
    facts: dict[str, object]  # JSON-ready: ``of``, ``why``, and where it begins and ends

    @property
    def is_outside(self) -> bool:
        """Whether the range lies beside all that there is, so that it can't be said to be sound."""
        return self.facts["why"] != _NO_MATCH


def in_log(place: LogPlace, wanted: Wanted, start: int, end: int | None) -> Nothing:
    """Of the records that begin in [start, end) and are wanted there is none."""
    from reput.dump.commitlog import of_log

    what = "log" if place.can_grow else "segment"
    found = of_log(place)
    ends = {"min_physical_offset": found.start, "max_physical_offset": found.end}
    if found.start == found.end:
        return Nothing(
            f"the {what}, which begins at {found.start}, has no record", _facts(what, _EMPTY, ends)
        )
    times = {"first_store_timestamp": found.first, "last_store_timestamp": found.last}
    meant = nearest_of(place.settings.root, wanted.named)
    why, text = _NO_MATCH, (
        f"no message fits: the {what} goes from {found.start} to {found.end}, "
        f"stored from {moment(found.first)} to {moment(found.last)}"
        f"{'' if meant is None else f'; did you mean {word(meant)}?'}"
    )  # fmt: skip
    if start >= found.end:
        why, text = _PAST_END, f"nothing begins at {start} or later: the {what} ends at {found.end}"
    elif end is not None and end <= found.start:
        why, text = _BEFORE_START, f"nothing begins before {end}: the {what} begins at {found.start}"
    elif wanted.since is not None and wanted.since > found.last:
        asked, there = moment(wanted.since), moment(found.last)
        why, text = (
            _PAST_END,
            f"nothing was stored at {asked} or later: the {what}'s last message is of {there}",
        )
    elif wanted.until is not None and wanted.until <= found.first:
        asked, there = moment(wanted.until), moment(found.first)
        why, text = (
            _BEFORE_START,
            f"nothing was stored before {asked}: the {what}'s first message is of {there}",
        )
    return Nothing(text, _facts(what, why, {**ends, **times}))


def in_queues(queues: list[QueuePlace], start: int, end: int | None) -> Nothing:
    """Of the units of [start, end) there is none in any of these queues, of which there is one at least."""
    from reput.dump.consumequeue import extent

    found = [one for one in map(extent, queues) if one is not None]
    several = len(queues) > 1
    names: dict[str, object] = {"queues": len(queues)}
    what, name = "queues", f"of {counted(len(queues), 'queue')}"
    if not several:
        (place,) = queues
        names = {"topic": place.topic, "queue_id": place.queue_id}
        what, name = "queue", "the queue" if place.topic is None else f"{word(place.topic)}:{place.queue_id}"
    if not found:
        text = f"none {name} has a unit" if several else f"{name} has no unit"
        return Nothing(text, _facts(what, _EMPTY, names))
    first, last = min(one[0] for one in found), max(one[1] for one in found)
    if start >= last:
        why, ends = _PAST_END, f"the longest ends at {last}" if several else f"{name} ends at {last}"
        asked = f"at queueOffset {start} or later"
    elif end is not None and end <= first:
        why, ends = _BEFORE_START, f"the first begins at {first}" if several else f"{name} begins at {first}"
        asked = f"before queueOffset {end}"
    else:
        why, ends = _NO_MATCH, f"{'they go' if several else f'{name} goes'} from {first} to {last}"
        asked = f"from queueOffset {start} on" if end is None else f"from queueOffset {start} to {end}"
    text = f"no unit {asked}{f' {name}' if several else ''}: {ends}"
    return Nothing(text, _facts(what, why, {**names, "min_offset": first, "max_offset": last}))


def in_index(files: list[IndexFile], database: Path | None, since: int | None, until: int | None) -> Nothing:
    """Of the entries of [since, until) there is none."""
    from reput.dump.index import extent_of_keys, of_index

    found = [of_index(files), None if database is None else extent_of_keys(database)]
    spans = [one for one in found if one is not None]
    if not spans:
        return Nothing("the index has no entry", _facts("index", _EMPTY, {}))
    first, last = min(one[0] for one in spans), max(one[1] for one in spans)
    ends = {"begin_timestamp": first, "end_timestamp": last}
    if since is not None and since > last:
        text = f"no entry is of {moment(since)} or later: the index ends at {moment(last)}"
        return Nothing(text, _facts("index", _PAST_END, ends))
    if until is not None and until <= first:
        text = f"no entry is from before {moment(until)}: the index begins at {moment(first)}"
        return Nothing(text, _facts("index", _BEFORE_START, ends))
    text = f"no entry fits: the index goes from {moment(first)} to {moment(last)}"
    return Nothing(text, _facts("index", _NO_MATCH, ends))


def _facts(of: str, why: str, more: Mapping[str, object]) -> dict[str, object]:
    return {"of": of, "why": why, **more}


class Lines:
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
        if self.as_json:
            self.record(event.to_dict())
        else:
            self.put(text(event), red=isinstance(event, Damage))

    def record(self, facts: Mapping[str, object]) -> None:
        """A line of JSON."""
        self.put(json.dumps({"schema_version": SCHEMA_VERSION, **facts}))

    def put(self, line: str, *, red: bool = False) -> None:
        """A line; no text of a store can end it or steer a terminal."""
        line = inline(line)
        self._waiting.append(f"\x1b[31m{line}\x1b[0m" if red and self._colours else line)
        if len(self._waiting) >= self._MANY:
            self.flush()

    def flush(self) -> None:
        """Let everything be seen.

        Raises:
            BrokenPipeError: nobody reads any more.
            SystemExit: the lines can't be written, to a full disk for instance; 2.
        """
        waiting, self._waiting = self._waiting, []
        try:
            if waiting:
                sys.stdout.write(with_urls("\n".join(waiting)) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            unwritten(error)

    def wait(self) -> None:
        """Let everything be seen before more is waited for.

        Raises:
            BrokenPipeError: nobody reads any more, which is told without a line to be written.
            SystemExit: as :meth:`flush`.
        """
        self.flush()
        try:
            descriptor = sys.stdout.fileno()
        except (OSError, ValueError):
            return  # it is no file
        end = select.poll()
        end.register(descriptor, 0)
        if any(what & select.POLLERR for _, what in end.poll(0)):
            raise BrokenPipeError

    def nothing(self, nothing: Nothing, *, quiet: bool) -> None:
        """Why nothing is shown: to stderr, with ``--json`` as a line as well.

        ``quiet``: only where a range lies beside all that there is, so that it can't be said to be sound.
        """
        if quiet and not nothing.is_outside:
            return
        if self.as_json:
            self.record({"type": "nothing", **nothing.facts, "message": nothing.text})
        self.flush()
        told(nothing.text)

    def error(self, error: ReputError) -> None:
        """Why the command was refused or failed: to stderr, with ``--json`` as a line as well."""
        with suppress(OSError):
            if self.as_json:
                self.record({"type": "error", **error.document()})
            self.flush()
        told(error)


@contextmanager
def dumping(as_json: bool) -> Iterator[Lines]:
    """Run a command; ends it with its exit code. Who closes the pipe has seen enough, and that is no error.

    Raises:
        typer.Exit: always.
    """
    lines = Lines(as_json=as_json)
    with Output(as_json, interrupted="nothing was changed", failed=lines.error):
        try:
            yield lines
            lines.flush()
        except BrokenPipeError:
            let_go_of_stdout()
        except OSError as error:  # in looking what is there; who reads a file says more
            if error.filename is None:
                raise
            raise unreadable("this", error.filename, error) from error
    raise typer.Exit(1 if lines.damaged else 0)
