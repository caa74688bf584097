"""``reput query``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reput.cli.arguments import (
    LOOK,
    TAGS,
    Broker,
    InTime,
    OnStore,
    Shown,
    command,
    flag,
    option,
    queues,
    times_of,
    topics,
)
from reput.cli.output import Output, inline, settings_told
from reput.cli.times import held_times, moment, time_of
from reput.config.settings import StoreSettings
from reput.config.stand_in import here
from reput.errors import Result, SettingsError, StoreError
from reput.format.names import parse_queue_with_id
from reput.store import files
from reput.store.listing import nearest_queue
from reput.store.places import write_alone
from reput.words import counted

if TYPE_CHECKING:
    from reput.query.ask import Answer
    from reput.query.store import QueryStore

_EXAMPLES = """Examples:
  One message, by its place in its queue, or by the id that the producer was given:
    reput query /data/store --queue orders:3 --at 1000 --broker-conf broker.conf
    reput query /data/store --id 7F00000100002A9F0000000000000000 --bodies --broker-conf broker.conf
  Its body to a file:
    reput query /data/store --queue orders:3 --at 1 --body-to body.bin --broker-conf broker.conf
  Ten messages with one of two tags, from an offset on:
    reput query /data/store --queue orders:3 --at 1000 --limit 10 --tags 'paid || refunded'
  By key, in an hour:
    reput query /data/store --topic orders --key 4711 --since 2026-11-21T10:00 --until 2026-11-21T11:00
  The queue offset of a time:
    reput query /data/store --queue orders:3 --time 2026-11-21T10:00 --boundary upper
"""


@dataclass(kw_only=True)
class _Words(OnStore, InTime, Broker, Shown):
    offset: int | None = option("--offset N", "The message at this physical offset.")
    queue: str | None = option(
        "--queue TOPIC:ID", "A queue; alone: its min and max offset.", autocompletion=queues
    )
    at: int | None = option("--at N", "The message at this queue offset.")
    tags: str | None = option(*TAGS)
    time: str | None = option("--time TIME", "The queue offset of this time, in --queue or all of --topic.")
    boundary: Literal["lower", "upper"] | None = option(
        "--boundary",
        "lower (default): the first of that time or later; upper: the last until then. From 5.1.1 on.",
    )
    id: str | None = option("--id MSGID", "The message of this id; with --topic also a client's id.")
    key: str | None = option("--key KEY", "Messages of --topic with this key.")
    topic: str | None = option("--topic T", "For --key, --id and --time.", autocompletion=topics)
    limit: int | None = option(
        "--limit -n N", "With --at: up to N messages; with --key: entries (default: 64, a broker's maximum).",
        min=1,
    )  # fmt: skip
    index_type: str | None = option("--index-type T", "For --key: T for the index of tags, from 5.4 on.")
    bodies: bool = flag("--bodies", "Also print bodies.")
    body_to: Path | None = option("--body-to FILE", "Write the message's body, uncompressed, to this file.")
    record_to: Path | None = option("--record-to FILE", "Write the message's record to this new file.")


@command("query", _EXAMPLES, LOOK)
def query_command(given: _Words) -> None:
    """Find messages by offset, queue, id, key or time, in a store at rest or one with a running broker.

    Answers are those of a broker of that release, but only for messages that are intact and in their place.
    Nothing is changed. --since and --until go with --key.

    Exit code 0: found. 1: not found, or --bodies was given and a body is damaged. 2: refused or failed.
    """
    from reput.derived.index import MOST_OFFSETS
    from reput.query import Boundary, QueryStore, ask

    offset, queue, at, when, bound = given.offset, given.queue, given.at, given.time, given.boundary
    message_id, key, topic = given.id, given.key, given.topic
    with Output(given.as_json, interrupted="nothing was changed") as output:
        store = here(given.store, derived=True)
        others = (offset, message_id, key, queue)
        of_topic = topic if when is not None and all(one is None for one in others) else None
        if of_topic is None:
            _one_of(offset=offset, id=message_id, key=key, queue=queue)
        _only_with("--queue", queue, at=at, tags=given.tags)
        _only_with("--queue or --topic", queue or of_topic, time=when, boundary=bound)
        _only_with("--key", key, index_type=given.index_type, since=given.since, until=given.until)
        _only_with("--at" if when is None else "--at instead of --time", at, tags=given.tags)
        _only_with("--key or --at", at if key is None else key, limit=given.limit)
        _only_with("--time", when, boundary=bound)
        _only_with("--key, --id or --time", key or message_id or of_topic, topic=topic)
        if key is not None and topic is None:
            raise _unclear("--key alone", "--topic beside it: keys are indexed by topic")
        if at is not None and when is not None:
            raise _unclear("--at and --time", "one of them")
        if given.bodies and queue is not None and at is None and when is None:
            raise _unclear("--bodies without them", "--at or --time beside --queue: else no message is shown")
        place = None if queue is None else parse_queue_with_id(queue)
        moment_asked = time_of("--time", when)
        since, until = times_of(given.since, given.until)
        last = None if until is None else until - 1  # a broker takes both as included
        settings = given.settings(store)
        asked = QueryStore(settings)
        boundary = None if bound is None else Boundary(bound)
        if offset is not None:
            answer = ask.by_offset(asked, offset)
        elif message_id is not None:
            answer = ask.by_id(asked, message_id, topic)
        elif key is not None and topic is not None:
            most = MOST_OFFSETS if given.limit is None else given.limit
            answer = ask.by_key(asked, topic, key, since, last, most, index_type=given.index_type)
        elif of_topic is not None and moment_asked is not None:
            answer = ask.by_time_in_all(asked, of_topic, moment_asked, boundary)
        elif place is not None:
            if at is not None:
                answer = ask.by_queue(asked, *place, at, given.limit, given.tags)
            elif moment_asked is not None:
                answer = ask.by_time(asked, *place, moment_asked, boundary)
            else:
                answer = ask.queue_range(asked, *place)
        _save(asked, answer, given.body_to, given.record_to)
        shown = shown_of(answer, settings, bodies=given.bodies)
        if not answer.found and (since is not None or last is not None):
            shown = replace(shown, log_times=asked.log.times)
        if not answer.found and (named := place or ((topic, None) if topic is not None else None)):
            shown = replace(shown, meant=nearest_queue(settings.root, *named))
    if not given.as_json:
        settings_told(settings.basis)
    output.show(shown, shown.lines())


def _save(store: QueryStore, answer: Answer, body: Path | None, record: Path | None) -> None:
    """Write the one message that was found to files."""
    if (body is None and record is None) or not answer.found:
        return
    if body is not None and record is not None and os.path.realpath(body) == os.path.realpath(record):
        raise SettingsError("--body-to and --record-to name one file", expected="two", found=str(body))
    if len(answer.messages) != 1:
        raise SettingsError(
            "one message goes into a file",
            expected="a question with one message as its answer, e.g. --offset or --queue with --at",
            found=f"{len(answer.messages)} messages",
        )
    (shown,) = answer.messages
    if body is not None and not shown.message.body_is_sound:
        raise StoreError(
            "the body doesn't have its CRC",
            offset=shown.message.record.physical_offset,
            next_step="--record-to writes the record as it is",
        )
    wanted = [] if record is None else [(files.new_file(record, store.root), store.log.record(shown.message))]
    wanted += [] if body is None else [(files.new_file(body, store.root), shown.message.body())]
    for file, data in wanted:
        write_alone(file, data)


@dataclass(frozen=True, slots=True)
class Display(Result):
    """An answer, and how it is shown."""

    answer: Answer  # the answer
    settings: StoreSettings  # those that it was asked with
    bodies: tuple[dict[str, object], ...]  # of each message what is said of its body, by JSON names
    meant: str | None = None  # the queue or topic that may have been meant, where there is none of that name
    #: storeTimestamp of the log's first and last message, ms, where nothing was found in the time that
    #: was asked for; else None
    log_times: tuple[int, int] | None = None

    hidden = ("answer", "bodies", "meant", "log_times")

    @property
    def exit_code(self) -> int:
        """That of the answer; 1, too, when a body that was asked for isn't what the producer gave."""
        damaged = (
            body and (_PROBLEM in body or not shown.message.body_is_sound)
            for shown, body in zip(self.answer.messages, self.bodies, strict=True)
        )
        return 1 if any(damaged) else self.answer.exit_code

    def more(self) -> dict[str, object]:
        """The answer, by JSON names."""
        answer, times = self.answer, self.log_times or (None, None)
        return {
            "found": answer.found,
            "why": answer.why,
            "did_you_mean": self.meant,
            "log_first_store_timestamp": times[0],
            "log_last_store_timestamp": times[1],
            **answer.facts,
            "messages": [
                {
                    **shown.message.to_dict(),
                    "body_is_sound": shown.message.body_is_sound,
                    "verdict": shown.verdict,
                    **body,
                }
                for shown, body in zip(answer.messages, self.bodies, strict=True)
            ],
        }

    def lines(self) -> Iterator[str]:
        """For people. No text of the store can begin a line."""
        from reput.query import ask

        answer, facts = self.answer, self.answer.facts
        bodies = iter(self.bodies)
        for queue_id, one in answer.by_queue.items():
            yield f"Queue {queue_id}"
            its = tuple(next(bodies) for _ in one.messages)
            yield from replace(self, answer=one, bodies=its, meant=None, log_times=None).lines()
        if answer.by_queue:
            return
        if not answer.found:
            hint = "" if self.log_times is None else f"; {held_times(self.log_times)}"
            hint += "" if self.meant is None else f"; did you mean {self.meant}?"
            yield inline(f"Not found: {answer.why}{hint}")
        elif "queue_offset" in facts:
            yield f"queueOffset {facts['queue_offset']}"
        elif "status" not in facts and "max_offset" in facts:
            yield f"minOffset {facts['min_offset']}, maxOffset {facts['max_offset']}"
        for shown, body in zip(answer.messages, self.bodies, strict=True):
            yield f"Stored {moment(shown.message.record.store_timestamp)}"
            yield from (_line(what, inline(text)) for what, text in ask.lines(shown))
            yield from _body_lines(body)
        for name, what in (("collisions", "with other keys"), ("tag_collisions", "with other tags")):
            if isinstance(number := facts.get(name), int) and number:
                yield f"{counted(number, 'hash collision')} {what}"
        if gone := facts.get("gone"):
            yield f"No message begins any more at {', '.join(map(str, _list(gone)))}, which the index names"
        if unreadable := facts.get("unreadable"):
            yield f"No whole message is where the queue points at {', '.join(map(str, _list(unreadable)))}"


def shown_of(answer: Answer, settings: StoreSettings, *, bodies: bool) -> Display:
    """An answer as it is to be shown, its messages with their bodies or without."""
    return Display(
        answer, settings, tuple(one.message.body_to_dict() if bodies else {} for one in answer.messages)
    )


_PROBLEM = "body_problem"
_INNER = "inner_messages"
_LABELS = {"body": "", "body_base64": "base64", _PROBLEM: "but"}
_COLUMN = 13


def _line(what: str, text: str) -> str:
    return f"  {what:<{_COLUMN - 3}} {text}"


def _indented(text: str) -> str:
    """A text of several lines, each in its column."""
    return text.replace("\u2028", "\n").replace("\u2029", "\n").replace("\n", "\n" + " " * _COLUMN)


def _body_lines(body: dict[str, object]) -> Iterator[str]:
    """A body, or all messages in it, each with its own."""
    for what, text in body.items():
        if what != _INNER:
            yield _line(_LABELS[what], _indented(str(text)))
            continue
        for one in text if isinstance(text, list) else ():
            facts = [f"queueOffset {one['queue_offset']}"]
            facts += [f"tags {one['tags']}"] if one["tags"] is not None else []
            facts += [f"keys {' '.join(one['keys'])}"] if one["keys"] else []
            yield _line("holds", inline(", ".join([*facts, counted(one["body_size"], "byte")])))
            yield from _body_lines({name: one[name] for name in _LABELS if name in one})


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _one_of(**options: object) -> None:
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if len(given) != 1:
        raise SettingsError(
            "what to look for is not clear",
            expected="one of " + ", ".join(f"--{name}" for name in options) + ", or --time with --topic",
            found=" and ".join(given) or "none",
        )


def _only_with(option: str, value: object, **others: object) -> None:
    if value is None:
        given = [f"--{name.replace('_', '-')}" for name, other in others.items() if other is not None]
        if given:
            raise _unclear(" and ".join(given), f"{option} beside {'them' if len(given) > 1 else 'it'}")


def _unclear(option: str, expected: str) -> SettingsError:
    return SettingsError("what to look for is not clear", expected=expected, found=option)
