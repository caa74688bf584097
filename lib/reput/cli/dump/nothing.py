"""What is said where nothing of what was asked for is there: where it begins and ends instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.cli.dump.text import word
from reput.cli.times import moment
from reput.store.listing import nearest_of
from reput.words import counted

if TYPE_CHECKING:
    from pathlib import Path

    from reput.dump.index import IndexPlace
    from reput.dump.places import LogPlace, QueuePlace
    from reput.dump.wanted import Wanted

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
    from reput.dump.extent import of_log

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


def in_index(files: list[IndexPlace], database: Path | None, since: int | None, until: int | None) -> Nothing:
    """Of the entries of [since, until) there is none."""
    from reput.dump import rocksdbindex
    from reput.dump.extent import of_index

    found = [of_index(files), None if database is None else rocksdbindex.extent(database)]
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
