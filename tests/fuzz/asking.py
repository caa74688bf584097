"""Every kind of question to a changed store: an answer that holds, or an error of reput's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from reput.cli.query import shown_of
from reput.config.settings import StoreSettings
from reput.errors import ReputError
from reput.format import names
from reput.format.commitlog import LMQ_PREFIX
from reput.query import Boundary, QueryStore, ask
from reput.query.ask import Answer
from reput.query.message import Message

OFFSET, ID, KEY, PLACE, TIME = "offset", "id", "key", "queue", "time"
_MANY = 100
#: Messages that are asked for by themselves.
_MOST = 40


class WrongAnswerError(AssertionError):
    """An answer that must not be."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        kind: OFFSET, ID, KEY, PLACE or TIME.
        name: the question in words.
        ask: asks it.
        fits: whether a message may be an answer that nothing is said against.
    """

    kind: str
    name: str
    ask: Callable[[QueryStore], Answer]
    fits: Callable[[Message], bool]


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a question.

    Attributes:
        kind: the question's.
        how: "found", "not found", or the error's name.
        document: all that ``--bodies --json`` says but for the store's own path; the error's name.
    """

    kind: str
    how: str
    document: str


def questions(settings: StoreSettings) -> list[Question]:
    """What there is to be asked of an undamaged store, and a little that isn't there."""
    store = QueryStore(settings)
    found = list(_messages(store))
    # Of a larger store a share, the first and the last among it.
    found = [*found[:: max(len(found) // _MOST, 1)], found[-1]]
    ends = [found[-1].record.physical_offset + found[-1].size]
    return [
        *(_by_offset(at) for at in (*(one.record.physical_offset for one in found), 1, -1, *ends, 1 << 62)),
        *_by_id(found),
        *_by_key(found, settings),
        *_of_queues(found, settings),
    ]


def asked(settings: StoreSettings, every: list[Question]) -> dict[str, Said]:
    """Ask, and show every answer both ways.

    Returns:
        What was said, by the question's name.

    Raises:
        WrongAnswerError: an answer that must not be.
    """
    try:
        store = QueryStore(settings)
    except ReputError as error:
        return {one.name: _refused(one, error) for one in every}
    return {one.name: _said(store, settings, one) for one in every}


def counted(said: dict[str, Said]) -> Counter[str]:
    """How often each came."""
    return Counter(f"query by {one.kind}: {one.how}" for one in said.values())


def _said(store: QueryStore, settings: StoreSettings, one: Question) -> Said:
    try:
        answer = one.ask(store)
    except ReputError as error:
        return _refused(one, error)
    shown = shown_of(answer, settings, bodies=True)
    document = {"exit_code": shown.exit_code, **shown.to_dict()}
    begun = sum(line.startswith("Stored ") for line in "\n".join(shown.lines()).split("\n"))
    if begun != len(answer.messages):
        raise WrongAnswerError(f"{one.name}: {begun} messages in text, {len(answer.messages)} in the answer")
    if answer.found is bool(answer.why):
        raise WrongAnswerError(f"{one.name}: found is {answer.found}, and why is {answer.why}")
    sound = [each.message for each in answer.messages if each.verdict == "MATCH"]
    if answer.found and one.kind in (OFFSET, ID, KEY, TIME) and not answer.messages:
        raise WrongAnswerError(f"{one.name}: found, and no message is shown")
    for message in sound:
        if not one.fits(message):
            raise WrongAnswerError(f"{one.name}: {message.to_dict()} is no answer")
    del document["store"]
    return Said(one.kind, "found" if answer.found else "not found", json.dumps(document))


def _refused(one: Question, error: ReputError) -> Said:
    if not str(error):
        raise WrongAnswerError(f"{one.name}: an error without words")
    return Said(one.kind, type(error).__name__, type(error).__name__)


def _messages(store: QueryStore) -> Iterator[Message]:
    message = store.log.after(-1)
    while message is not None:
        yield message
        message = store.log.after(message.record.physical_offset)


def _by_offset(at: int) -> Question:
    return Question(
        OFFSET,
        f"--offset {at}",
        lambda store: ask.by_offset(store, at),
        lambda message: message.record.physical_offset == at,
    )


def _by_id(found: list[Message]) -> Iterator[Question]:
    for one in (found[0], found[-1]):
        own, at = one.offset_msg_id, one.record.physical_offset
        yield Question(
            ID,
            f"--id {own}",
            lambda store, own=own: ask.by_id(store, own, None),  # type: ignore[misc]
            lambda message, at=at: message.record.physical_offset == at,  # type: ignore[misc]
        )
    keyed = next(((one.topic, one.uniq_key) for one in found if one.uniq_key is not None), None)
    if keyed is None:
        return
    topic, uniq_key = keyed
    yield Question(
        ID,
        f"--id {uniq_key} --topic {topic}",
        lambda store: ask.by_id(store, str(uniq_key), topic),
        lambda message: (message.topic, message.uniq_key) == keyed,
    )


def _by_key(found: list[Message], settings: StoreSettings) -> Iterator[Question]:
    times = [one.record.store_timestamp for one in found]
    for topic, key in sorted({(one.topic, key) for one in found for key in one.keys} | {("One", "none")}):
        for begin, end in ((None, None), (times[1], times[-1])):
            yield Question(
                KEY,
                f"--topic {topic} --key {key} --since {begin}",
                lambda store, words=(topic, key, begin, end): ask.by_key(store, *words),  # type: ignore[misc]
                lambda message, topic=topic, key=key: message.has_key(topic, key),  # type: ignore[misc]
            )
    if settings.dialect.index_tags:
        yield Question(
            KEY,
            "--topic One --key A --index-type T",
            lambda store: ask.by_key(store, "One", "A", None, None, index_type="T"),
            lambda message: (message.topic, message.tags) == ("One", "A"),
        )


def _of_queues(found: list[Message], settings: StoreSettings) -> Iterator[Question]:
    times = sorted({one.record.store_timestamp for one in found})
    boundaries = (Boundary.LOWER, Boundary.UPPER) if settings.dialect.queries.time_boundaries else (None,)
    kinds = (settings.root / kind for kind in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE))
    for topic in sorted(path.name for kind in kinds if kind.is_dir() for path in kind.iterdir()):

        def fits(message: Message, topic: str = topic) -> bool:
            return topic.startswith(LMQ_PREFIX.decode()) or (message.topic, message.record.queue_id) == (
                topic,
                0,
            )

        for at, count, tags in ((1, None, None), (0, _MANY, None), (0, _MANY, "A || B")):
            yield Question(
                PLACE,
                f"--queue {topic}:0 --at {at} --limit {count} --tags {tags}",
                lambda store, words=(topic, 0, at, count, tags): ask.by_queue(store, *words),  # type: ignore[misc]
                fits,
            )
        yield Question(
            PLACE, f"--queue {topic}:0", lambda store, topic=topic: ask.queue_range(store, topic, 0), fits
        )  # type: ignore[misc]
        for boundary in boundaries:
            for time in (times[0], times[len(times) // 2] + 1, times[-1] + 1):
                yield Question(
                    TIME,
                    f"--queue {topic}:0 --time {time} --boundary {boundary}",
                    lambda store, words=(topic, 0, time, boundary): ask.by_time(store, *words),  # type: ignore[misc]
                    fits,
                )
