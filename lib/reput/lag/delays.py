"""How far the broker is with delayed messages: ``config/delayOffset.json`` beside their topic's queues.

The file holds ``{"offsetTable": {LEVEL: OFFSET, …}}``: the queueOffset of each level's next message; a level
without one begins at 0. A start moves an offset outside of its queue to the queue's nearest end.

Source: ``ScheduleMessageService.start``, ``correctDelayOffset`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from reput.config.kept import of_either, parse
from reput.errors import SettingsError
from reput.format import commitlog, names
from reput.query import QueryStore

if TYPE_CHECKING:
    from pathlib import Path

    from reput.config.settings import StoreSettings

FILE = "delayOffset.json"
TOPIC = commitlog.SCHEDULE_TOPIC.decode()
PAST_END, EXPIRED = "past-end", "expired"
_LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DelayLag:
    """A delay level."""

    level: int  # 1 and on
    delay_ms: int | None  # how long it delays; None where broker.conf doesn't have the level
    offset: int | None  # queueOffset of the next message to deliver; None where the broker noted none: 0
    min_offset: int  # min_offset, max_offset: half-open range of the queue's offsets
    max_offset: int
    waiting: int  # messages that wait
    due: int | None  # deliver time of the next one, ms; None without one
    flag: str | None  # "past-end" or "expired" (before the first message); a start corrects both

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        facts = asdict(self)
        facts["due_ms"] = facts.pop("due")
        return facts


def delay_lags(settings: StoreSettings) -> list[DelayLag]:
    """The levels that have messages, or an offset."""
    return list(_rows(settings, _offsets(settings.root / names.CONFIG / FILE)))


def _rows(settings: StoreSettings, offsets: dict[int, int]) -> Iterator[DelayLag]:
    store = QueryStore(settings)
    levels = settings.delay_levels_ms
    there = {number + 1 for number in store.queue_ids(TOPIC)}
    for level in sorted({*there, *(level for level in offsets if level > 0)}):
        view, offset = store.queue(TOPIC, level - 1), offsets.get(level)
        least, end = max(view.min_offset, 0), max(view.max_offset, 0)
        begin = min(max(offset or 0, least), end)
        flag = None
        if offset is not None and offset > end:
            flag = PAST_END
        elif offset is not None and offset < least:
            flag = EXPIRED
        units = view.units_from(begin, 1) if begin < end else None
        due = units[0].tags_code if units else None
        delay = levels[level - 1] if level <= len(levels) else None
        yield DelayLag(level, delay, offset, least, end, end - begin, due, flag)


def _offsets(path: Path) -> dict[int, int]:
    """The file's offsets by level, or its backup's; empty without either."""
    return of_either(path, "delay offsets", _levels, (FileNotFoundError, NotADirectoryError)) or {}


def _levels(data: bytes, path: Path) -> dict[int, int]:
    try:
        document = parse(data)
        table = document.get("offsetTable", {}) if isinstance(document, dict) else None
        if not isinstance(table, dict):
            raise ValueError("no offsetTable")
        found = {int(level): int(offset) for level, offset in table.items()}
        if not all(-_LONG_MAX <= offset <= _LONG_MAX for offset in found.values()):
            raise ValueError("an offset beyond 64 bits")
    except (ValueError, TypeError, RecursionError) as error:
        raise _broken(path, "offsets by level", str(error)) from error
    return found


def _broken(path: Path, expected: str, found: str) -> SettingsError:
    return SettingsError(
        "this file of delay offsets is broken",
        path=path,
        expected=expected,
        found=found,
        next_step="Bring it back from a copy: without it all that is still in the queues is delivered again.",
    )
