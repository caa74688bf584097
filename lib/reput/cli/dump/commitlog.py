"""``reput dump commitlog``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.cli.arguments import Broker, Limited, command, dump_app, flag, option
from reput.cli.dump.lines import Lines, damage_line, dumping, in_log, message_line, place_line, word
from reput.cli.dump.options import AsLines, Conditions, OnPath, in_order, unclear, wanted_of
from reput.cli.output import settings_told
from reput.cli.times import moment
from reput.dump.damage import Damage
from reput.errors import SettingsError

if TYPE_CHECKING:
    from reput.dump.commitlog import Event as LogEvent
    from reput.dump.places import LogPlace
    from reput.dump.wanted import Wanted
    from reput.statistics.tally import Group

_EXAMPLES = """Examples:
  What a topic got between two times:
    reput dump commitlog /data/store --topic orders --since 2026-11-21T10:00 --until 2026-11-21T10:05
  The messages of a queue from queueOffset 1000 on, with their bodies:
    reput dump commitlog /data/store --queue orders:3 --queue-start 1000 --limit 20 --bodies
  One segment that was copied here, whatever it is called; is it sound?
    reput dump commitlog ./00000000001073741824 --quiet
  Bytes by topic, and what comes from now on, for a program:
    reput dump commitlog /data/store --stats
    reput dump commitlog /data/store --follow --start end --json | jq .topic
"""


@dataclass(kw_only=True)
class _Words(OnPath, Conditions, Limited, Broker, AsLines):
    start: str | None = option("--start -s N", "Start at this physical offset; with --follow also `end`.")
    bodies: bool = flag("--bodies", "Print bodies, uncompressed: as text, or in base64.")
    show_all: bool = flag("--all", "Also show BLANKs and the unwritten end.")
    stats: bool = flag("--stats -z", "Print sums by topic instead of records.")
    follow: bool = flag("--follow -f", "Continue with what a running broker writes, until Ctrl-C.")


@command("commitlog", _EXAMPLES, group=dump_app)
def commitlog_command(given: _Words) -> None:
    """Show the messages of the commit log, in log order, and what is damaged between them.

    Ranges are half open. All conditions must hold. Damage in the range is always shown. Where nothing is to
    be shown, stderr says where the log begins and ends.

    Exit code 0: sound. 1: something in the range is damaged. 2: refused or failed.
    """
    end, body, show_all = given.end, given.bodies, given.show_all
    stats, quiet, follow = given.stats, given.quiet, given.follow
    with dumping(given.as_json) as lines:
        first = _start(given.start, follow=follow)
        wanted = wanted_of(given)
        in_order("--start", first, "--end", end)
        if stats and (body or show_all):
            raise unclear("--stats with --bodies or --all", "--stats alone: no record is shown")
        if quiet and (body or show_all or stats):
            raise unclear("--quiet with --bodies, --all or --stats", "--quiet alone: no record is shown")
        from reput.dump import places

        place = places.log_place(given.path, given.broker_conf, given.rocketmq_version, may_be_empty=follow)
        if follow and not place.can_grow:
            raise unclear("--follow with one file", "--follow with a store or a directory of segments")
        settings_told(place.settings.basis, files=False)
        events = _log_events(place, wanted, first, end, follow=follow)
        anything = _show_log(lines, events, given)
        if not (anything or follow):
            lines.nothing(in_log(place, wanted, first or 0, end), quiet=quiet)


def _log_events(
    place: LogPlace, wanted: Wanted, start: int | None, end: int | None, *, follow: bool
) -> Iterator[LogEvent | None]:
    from reput.dump.commitlog import MOST_OFFSET, Reader

    last = MOST_OFFSET if end is None else end
    entries = place.log.entries
    if follow:
        from reput.dump.commitlog import follow as following

        yield from following(place.settings, wanted, start, last, entries=entries)
        return
    reader = Reader(place.settings, entries=entries, wanted=wanted, start=start or 0, end=last)
    yield from reader.log(place.log, followed=place.followed)


def _show_log(lines: Lines, events: Iterator[LogEvent | None], given: _Words) -> bool:
    """Whether there was anything to show."""
    from reput.dump.commitlog import Block
    from reput.statistics.count import groups_of, total_of
    from reput.statistics.tally import By, Tally

    tally = Tally(By.TOPIC)
    left = given.limit
    anything = False
    try:
        for event in events:
            if event is None:
                lines.wait()
                continue
            if isinstance(event, Damage):
                lines.show(event, damage_line)
                lines.flush()
            elif not isinstance(event, Block):
                if not given.show_all:
                    continue
                lines.show(event, place_line)
            else:
                block = event if left is None else event.first(left)
                left = None if left is None else left - len(block.rows)
                if given.stats:
                    tally.add(block.data, block.base, block.frames, block.rows)
                elif not given.quiet:
                    for message in block.messages():
                        held = message.body_to_dict() if given.bodies else {}
                        if lines.as_json:
                            lines.record({"type": "message", **message.to_dict(), **held})
                        else:
                            lines.put(message_line(message, held))
                    lines.flush()
            anything = True
            if left == 0:
                break
    except KeyboardInterrupt:
        if not given.follow:
            raise
    if given.stats:
        _show_sums(lines, groups_of([tally], By.TOPIC), total_of([tally]))
    return anything


def _show_sums(lines: Lines, topics: tuple[Group, ...], total: Group | None) -> None:
    if total is None:
        if not lines.as_json:
            lines.put("no message")
        return
    if lines.as_json:
        for one in (*topics, total):
            lines.record(_sums(one, is_total=one is total))
        return
    lines.put(
        f"{'messages':>12} {'bytes':>16} {'share':>6} {'min':>8} {'mean':>10} {'max':>8}  "
        f"{'first stored':<24} {'last stored':<24} topic"
    )
    for one in (*topics, total):
        name = "all topics" if one is total else "further topics" if one.topic is None else word(one.topic)
        lines.put(
            f"{one.messages:>12,} {one.bytes:>16,} {one.bytes / total.bytes:>6.1%} {one.least:>8,} "
            f"{one.bytes / one.messages:>10,.1f} {one.most:>8,}  "
            f"{moment(one.first):<24} {moment(one.last):<24} {name}"
        )


def _sums(group: Group, *, is_total: bool) -> dict[str, object]:
    return {
        "type": "total" if is_total else "topic",
        **({} if is_total else {"topic": group.topic}),
        "messages": group.messages,
        "bytes": group.bytes,
        "min_size": group.least,
        "mean_size": round(group.bytes / group.messages, 1),
        "max_size": group.most,
        "first_store_timestamp": group.first,
        "last_store_timestamp": group.last,
    }


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
