"""``reput query``."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from reput.cli import app as commands
from reput.cli.arguments import AsJson, BrokerConf, Store, WrittenBy
from reput.cli.outcome import reported
from reput.cli.output import JsonOutput, Output, TextOutput, counted, moment, printed
from reput.errors import SettingsError
from reput.query import Boundary, QueryStore, ask
from reput.query.ask import Answer, Shown
from reput.query.keys import MOST_OFFSETS
from reput.settings import StoreSettings

_EXAMPLES = """**Examples**

One message, by its place in the log, in its queue, or by the id that the producer was given:

    reput query /data/store --offset 1073741824 --broker-conf broker.conf

    reput query /data/store --queue orders:3 --at 1000 --broker-conf broker.conf

    reput query /data/store --id 7F00000100002A9F0000000000000000 --body --broker-conf broker.conf

Ten messages with one of two tags, from an offset on:

    reput query /data/store --queue orders:3 --at 1000 --count 10 --tags 'paid || refunded'

By key, in an hour:

    reput query /data/store --topic orders --key 4711 --from 2026-11-21T10:00 --to 2026-11-21T11:00

The queue offset of a time:

    reput query /data/store --queue orders:3 --time 2026-11-21T10:00 --boundary upper
"""


@commands.app.command("query", epilog=_EXAMPLES)
def query_command(
    store: Store,
    offset: Annotated[
        int | None, typer.Option("--offset", metavar="N", help="The message at this physical offset.")
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="TOPIC:ID", help="A queue; alone: its min and max offset."),
    ] = None,
    at: Annotated[
        int | None, typer.Option("--at", metavar="N", help="The message at this queue offset.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", metavar="N", min=1, help="So many messages from there on, as a consumer gets them."
        ),
    ] = None,
    tags: Annotated[
        str | None,
        typer.Option("--tags", metavar="EXPR", help="Only with one of these tags: 'A || B', or '*' for all."),
    ] = None,
    when: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="The queue offset of this time.")
    ] = None,
    boundary: Annotated[
        Boundary | None,
        typer.Option(
            "--boundary",
            help="lower: the first message of that time or later (default); upper: the last of that time or "
            "earlier. From 5.1.1 on.",
        ),
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="MSGID", help="The message of this id; with --topic also a client's id."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Messages of --topic with this key.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="T", help="For --key and --id.")] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="For --key: stored at this time or later.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="For --key: stored at this time or earlier.")
    ] = None,
    most: Annotated[
        int,
        typer.Option(
            "--max", metavar="N", min=1, help="For --key: so many answers of the index, the newest."
        ),
    ] = MOST_OFFSETS,
    index_type: Annotated[
        str | None,
        typer.Option("--index-type", metavar="T", help="For --key: T for the index of tags, from 5.4 on."),
    ] = None,
    body: Annotated[bool, typer.Option("--body", help="Print bodies, too.")] = False,
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    as_json: AsJson = False,
) -> None:
    """Look for messages in a store at rest or beside its broker: by offset, by queue, by id, by key, by time.

    Answers are those of the broker of that release, but only of messages that are whole and where they say.
    Nothing is changed. TIME is ms since 1970 or ISO 8601, UTC unless it says otherwise.

    Exit code 0: found. 1: not found. 2: refused or failed.
    """
    output: Output = JsonOutput() if as_json else TextOutput()
    with reported(output, interrupted="nothing was changed"):
        _one_of(offset=offset, id=message_id, key=key, queue=queue)
        _only_with(queue, "--queue", at=at, count=count, tags=tags, time=when, boundary=boundary)
        _only_with(key, "--key", to=end, index_type=index_type, **{"from": begin})
        if topic is not None and key is None and message_id is None:
            raise _unclear("--topic", "--key or --id beside it")
        settings = StoreSettings.load(store, broker_conf, rocketmq_version)
        place = None if queue is None else _queue(queue)
        asked = QueryStore(settings)
        if offset is not None:
            answer = ask.by_offset(asked, offset)
        elif message_id is not None:
            answer = ask.by_id(asked, message_id, topic)
        elif key is not None:
            if topic is None:
                raise _unclear("--key", "--topic beside it: keys are indexed by topic")
            answer = ask.by_key(
                asked, topic, key, _time("--from", begin), _time("--to", end), most, index_type=index_type
            )
        elif place is not None:
            answer = _of_queue(asked, place, at, count, tags, _time("--time", when), boundary)
        bodies = [_body(shown) if body else {} for shown in answer.messages]
    if as_json:
        found = [
            {**shown.message.to_dict(), "verdict": shown.verdict, **more}
            for shown, more in zip(answer.messages, bodies, strict=True)
        ]
        head = {"exit_code": answer.exit_code, "store": str(settings.root)}
        version = {"rocketmq_version": settings.dialect.name, "found": answer.found, "why": answer.why}
        printed(json.dumps({**head, **version, **answer.facts, "messages": found}, indent=2))
    else:
        printed(*_lines(answer, bodies))
    raise typer.Exit(answer.exit_code)


def _of_queue(
    store: QueryStore,
    place: tuple[str, int],
    at: int | None,
    count: int | None,
    tags: str | None,
    when: int | None,
    boundary: Boundary | None,
) -> Answer:
    if at is not None and when is not None:
        raise _unclear("--at and --time", "one of them")
    if at is None and (count is not None or tags is not None):
        raise _unclear("--count and --tags", "--at beside them")
    if when is None and boundary is not None:
        raise _unclear("--boundary", "--time beside it")
    if at is not None:
        return ask.by_queue(store, *place, at, count, tags)
    if when is not None:
        return ask.by_time(store, *place, when, boundary)
    return ask.queue_range(store, *place)


def _lines(answer: Answer, bodies: list[dict[str, object]]) -> Iterator[str]:
    facts = answer.facts
    if not answer.found:
        yield f"Not found: {answer.why}"
    elif "queueOffset" in facts:
        yield f"queueOffset {facts['queueOffset']}"
    elif "status" not in facts and "maxOffset" in facts:
        yield f"minOffset {facts['minOffset']}, maxOffset {facts['maxOffset']}"
    for shown, body in zip(answer.messages, bodies, strict=True):
        record = shown.message.record
        yield f"Stored {moment(record.store_timestamp)}"
        yield from (f"  {what:<10} {text}" for what, text in ask.lines(shown))
        yield from (f"  {what:<10} {text}" for what, text in body.items())
    for name, what in (("collisions", "with other keys"), ("tagCollisions", "with other tags")):
        if isinstance(number := facts.get(name), int) and number:
            yield f"{counted(number, 'hash collision')} {what}"
    if gone := facts.get("gone"):
        yield f"No message begins any more at {', '.join(map(str, _list(gone)))}, which the index names"
    if unreadable := facts.get("unreadable"):
        yield f"No whole message is where the queue points at {', '.join(map(str, _list(unreadable)))}"


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _body(shown: Shown) -> dict[str, object]:
    data = shown.message.body()
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"bodyBase64": base64.b64encode(data).decode()}


def _queue(text: str) -> tuple[str, int]:
    topic, _, number = text.rpartition(":")
    if not topic or not (number.isascii() and number.isdecimal()) or len(number) > 10:
        raise SettingsError("a queue can't be understood", expected="TOPIC:ID, e.g. orders:3", found=text)
    return topic, int(number)


def _time(option: str, text: str | None) -> int | None:
    """Ms of a time."""
    if text is None:
        return None
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) < 20:
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{option} can't be understood",
            expected="ms since 1970, or ISO 8601 such as 2026-11-21T10:00:00.123Z",
            found=text,
        ) from None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def _one_of(**options: object) -> None:
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if len(given) != 1:
        raise SettingsError(
            "what to look for is not clear",
            expected="one of " + ", ".join(f"--{name}" for name in options),
            found=" and ".join(given) or "none",
        )


def _only_with(value: object, option: str, **others: object) -> None:
    for name, other in others.items():
        if other is not None and value is None:
            raise _unclear(f"--{name.replace('_', '-')}", f"{option} beside it")


def _unclear(option: str, expected: str) -> SettingsError:
    return SettingsError("what to look for is not clear", expected=expected, found=option)
