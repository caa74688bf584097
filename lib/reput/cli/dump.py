"""``reput dump``: what is in the files, a line a record, or a digest a range."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from reput.cli.arguments import (
    AsJson,
    AsLines,
    Broker,
    Conditions,
    InTime,
    InZone,
    Limited,
    OnPath,
    OnStore,
    command,
    dump_app,
    filled,
    flag,
    in_order,
    option,
    times_of,
    unclear,
    wanted_of,
)
from reput.cli.dump_lines import (
    Lines,
    damage_line,
    dumping,
    in_index,
    in_log,
    in_queues,
    index_line,
    message_line,
    place_line,
    queue_line,
    word,
)
from reput.cli.output import Output, ProgressDisplay, at_most, fact_lines, settings_lines, settings_told
from reput.cli.times import moment
from reput.config.log_places import absolute
from reput.config.stand_in import here
from reput.dump.damage import Damage
from reput.errors import SettingsError
from reput.format.checkpoint import StoreCheckpoint
from reput.format.names import parse_queue
from reput.store.listing import nearest_of
from reput.store.system import human
from reput.words import counted, next_command

if TYPE_CHECKING:
    from reput.dump.commitlog import Event as LogEvent
    from reput.dump.config import Kept
    from reput.dump.digest import Compared, Written
    from reput.dump.places import LogPlace
    from reput.dump.wanted import Wanted
    from reput.statistics import Group


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
    from reput.statistics import By, Tally, groups_of, total_of

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
            f"{moment(one.first_time):<24} {moment(one.last_time):<24} {name}"
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
        "first_store_timestamp": group.first_time,
        "last_store_timestamp": group.last_time,
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


_CONSUMEQUEUE_EXAMPLES = """Examples:
  A queue, from a queueOffset on:
    reput dump consumequeue /data/store --queue orders:3 --start 1000 --limit 10
  When delayed messages are due:
    reput dump consumequeue /data/store/consumequeue/SCHEDULE_TOPIC_XXXX
"""


@dataclass(kw_only=True)
class _QueueWords(OnPath, Limited, AsLines):
    queue: list[str] | None = option("--queue TOPIC[:ID]", "Only this topic or queue; repeatable.")
    start: int = option("--start -s N", "Start at this queueOffset.", 0, min=0)
    end: int | None = option("--end -e N", "Stop before this queueOffset.", min=0)
    show_all: bool = flag("--all", "Also show the unwritten end of each queue.")


@command("consumequeue", _CONSUMEQUEUE_EXAMPLES, group=dump_app)
def consumequeue_command(given: _QueueWords) -> None:
    """Show the units of consume queues and batch queues: where each leads, and its tagsCode.

    With files of `consumequeue_ext` beside them, what a tagsCode leads to there is shown with its unit.
    Places before a queue's first message are named `pre-blank`; zeros before other units, and units that no
    broker takes, are damage.

    Where nothing is to be shown, stderr says where queues begin and end.

    Exit code 0: sound. 1: something in the range is damaged. 2: refused or failed.
    """
    with dumping(given.as_json) as lines:
        path, queue, start, end = given.path, given.queue, given.start, given.end
        in_order("--start", start, "--end", end)
        from reput.dump import places
        from reput.dump.consumequeue import MOST, UNWRITTEN, QueueUnit, Run, dump

        chosen = []
        for text in queue or ():
            filled("--queue", text)
            chosen.append(parse_queue(text))
        shown = 0
        asked = []
        anything = False
        for place in places.queue_places(path):
            if chosen and not any(
                topic == place.topic and number in (None, place.queue_id) for topic, number in chosen
            ):
                continue
            asked.append(place)
            for event in dump(place, start, MOST if end is None else end):
                if isinstance(event, Run) and event.kind == UNWRITTEN and not given.show_all:
                    continue
                anything = True
                if isinstance(event, Damage) or not given.quiet:
                    lines.show(event, queue_line)
                shown += isinstance(event, QueueUnit)
                if shown == given.limit:
                    return
        if not asked:
            raise SettingsError(
                "there is no such queue here",
                path=path,
                expected="files of " + ", ".join(queue or ()),
                found="none",
                next_step=_instead(absolute(path), queue or [], chosen),
            )
        if not anything:
            lines.nothing(in_queues(asked, start, end), quiet=given.quiet)


def _instead(path: Path, queues: list[str], chosen: list[tuple[str, int | None]]) -> str:
    from reput.dump.places import store_of

    store = store_of(path)
    if store is None:
        return "A dump of the commit log finds messages that no queue leads to"
    meant = nearest_of(Path(store), chosen)
    asked = [part for queue in queues for part in ("--queue", queue)]
    command = next_command("dump", "commitlog", str(store), *asked)
    text = f"`{command}` finds messages that no queue leads to"
    return text if meant is None else f"Did you mean {word(meant)}? {text}"


_CHECKPOINT_EXAMPLES = """Examples:
    reput dump checkpoint /data/store
"""


@dataclass(kw_only=True)
class _CheckpointWords(OnPath, InZone):
    as_json: bool = flag("--json", "Print JSON lines: one object per record.")


@command("checkpoint", _CHECKPOINT_EXAMPLES, group=dump_app)
def checkpoint_command(given: _CheckpointWords) -> None:
    """Show the fields of a store checkpoint: three times, in ms and as times, and three physical offsets.

    Exit code 0: read. 2: refused or failed.
    """
    from reput.dump import places

    with dumping(given.as_json) as lines:
        file = places.checkpoint_file(given.path)
        found = places.read_checkpoint(file)
        shown = {name: moment(found[name]) for name in places.CHECKPOINT_FIELDS[: places.TIMES]}
        if given.as_json:
            names = (field.name for field in fields(StoreCheckpoint))
            values = dict(zip(names, found.values(), strict=True))
            lines.record({"type": "checkpoint", "path": str(file), **values})
            return
        for name, value in found.items():
            lines.put(
                f"{name:<21} {value:>19}  {shown[name]}" if name in shown else f"{name:<21} {value:>19}"
            )


_CONFIG_EXAMPLES = """Examples:
    reput dump config /data/store
  The offsets of one group:
    reput dump config /data/store/config/consumerOffsets --group billing
"""


@dataclass(kw_only=True)
class _ConfigWords(OnPath, Limited, AsLines):
    topic: str | None = option("--topic T", "Only this topic, and offsets in it.")
    group: str | None = option("--group G", "Only this group, and its offsets.")


@command("config", _CONFIG_EXAMPLES, group=dump_app)
def config_command(given: _ConfigWords) -> None:
    """Show topics, groups and offsets that a broker keeps in RocksDB: each database of config/.

    Versions come first. What a start takes where JSON files lie beside them is another question: `reput lag`
    and `reput stats --topics` say so.

    Exit code 0: sound. 1: an entry isn't as a broker writes it. 2: refused or failed.
    """
    topic, group = given.topic, given.group
    with dumping(given.as_json) as lines:
        filled("--topic", topic)
        filled("--group", group)
        from reput.dump import config

        shown = 0
        for database in config.databases(absolute(here(given.path, derived=False))):
            for event in config.dump(database):
                if isinstance(event, config.Kept):
                    named = event.name if event.kind not in (config.GROUP, config.VERSION) else None
                    of_group = event.name if event.kind == config.GROUP else event.group
                    if (topic is not None and named != topic) or (group is not None and of_group != group):
                        continue
                    shown += 1
                if isinstance(event, Damage) or not given.quiet:
                    lines.show(event, _line)
                if shown == given.limit:
                    return


def _line(event: Kept) -> str:
    database = event.path.name
    if event.version is not None:
        version = event.version
        return (
            f"{database}  version of {event.name}  counter={version.counter} "
            f"timestamp={moment(version.timestamp)} stateVersion={version.state_version}"
        )
    if event.offset is not None:
        place = f"{word(event.name)}:{event.queue_id}"
        return (
            f"{database}  {event.kind}  group={word(event.group or '')} queue={place} offset={event.offset}"
        )
    text = json.dumps(event.config, ensure_ascii=False, separators=(",", ":"))
    return f"{database}  {event.kind}  {word(event.name)}  {text}"


_DIGEST_EXAMPLES = """Examples:
  On one host, and with that file on another one:
    reput dump digest /data/store --out store.digest --broker-conf broker.conf
    reput dump digest /data/store --against store.digest --broker-conf broker.conf
"""


@dataclass(kw_only=True)
class _DigestWords(OnStore, Broker, AsJson):
    out: Path | None = option("--out -o FILE", "Write the digests to this new file.")
    against: Path | None = option("--against FILE", "Compare with a file of digests of another store.")
    force: bool = flag("--force", "Replace a file that is there.")


@command("digest", _DIGEST_EXAMPLES, group=dump_app)
def digest_command(given: _DigestWords) -> None:
    """Compare log and queues of two hosts by a small file, without copying a store.

    The file has a SHA-256 for each 16 MiB of log and each 65,536 units of a queue, for less towards their
    ends; batch queues and index files aren't looked at. What lies before or behind the other's log is no
    difference: a slave may be behind, and a head expires. A gap is, and a queue that ends before its log.

    Exit code 0: written, or the same. 1: something differs, has a gap, or couldn't be compared. 2: refused
    or failed.
    """
    from reput.dump.digest import Compared, compare, write

    out, against = given.out, given.against
    with Output(given.as_json, interrupted="nothing was written") as output:
        store = here(given.store, derived=True)
        if (out is None) == (against is None):
            raise SettingsError(
                "what to do with the digests is not clear",
                expected="either --out FILE or --against FILE",
                found="neither" if out is None else "both",
            )
        with ProgressDisplay("reading") as display:
            broker = given.broker_conf, given.rocketmq_version
            done: Written | Compared
            if out is not None:
                done = write(store, out, *broker, force=given.force, listener=display.read)
            elif against is not None:
                done = compare(store, against, *broker, display.read)
    output.show(done, _compared(done) if isinstance(done, Compared) else _written(done))


def _written(done: Written) -> Iterator[str]:
    size = human(done.out.stat().st_size)
    yield f"Wrote {counted(done.ranges, 'digest')} of {done.settings.root} to {done.out}: {size}"
    yield from settings_lines(done.settings.basis)
    yield f"  log        {done.start} to {done.end}"
    yield f"  queues     {done.queues:,}"
    yield from at_most("  not read   ", done.not_read, "             and {} more; --json prints all")


def _compared(done: Compared) -> Iterator[str]:
    yield done.text
    yield from at_most("  not read   ", done.not_read, "             and {} more; --json prints all")
    yield from settings_lines(done.settings.basis)
    yield from fact_lines("findings", done.findings, done.settings.root)


_INDEX_EXAMPLES = """Examples:
  The header of each file, and how full it is:
    reput dump index /data/store --headers --broker-conf broker.conf
  Where a key leads, entry by entry:
    reput dump index /data/store --key 'orders#4711' --broker-conf broker.conf
  Of an index in RocksDB:
    reput dump index /data/store/rocksdbstore --limit 20
"""


@dataclass(kw_only=True)
class _IndexWords(OnPath, InTime, Limited, Broker, AsLines):
    key: str | None = option("--key TOPIC#KEY", "Only this key, of a file its chain, newest entry first.")
    headers: bool = flag("--headers", "Show only headers and how full the files are.")


@command("index", _INDEX_EXAMPLES, group=dump_app)
def index_command(given: _IndexWords) -> None:
    """Show the index: of files the header, how many slots are used, and each entry; of RocksDB each key.

    Entries know the hash of a key, not the key, and whole seconds: an entry's message may be up to 999 ms
    later than the entry says. The sizes of a file come from broker.conf. An index in RocksDB has whole keys
    and times. Where no entry is of the time that is asked for, stderr says of which times they are.

    Exit code 0: sound. 1: something is damaged. 2: refused or failed.
    """
    key, headers = given.key, given.headers
    with dumping(given.as_json) as lines:
        if headers and key is not None:
            raise unclear("--headers and --key", "one of them")
        if headers and (given.since is not None or given.until is not None):
            raise unclear("--headers with --since or --until", "--headers alone: no entry is shown")
        if key is not None and "#" not in key:
            raise SettingsError(
                "a key can't be understood", expected="TOPIC#KEY, e.g. orders#4711", found=key
            )
        begin, stop = times_of(given.since, given.until)
        from reput.dump import index, places

        path = here(given.path, derived=True)
        root = absolute(path)
        alone = root if root.is_dir() else root.parent
        store = places.store_of(root)
        settings = given.settings(store or alone)
        settings_told(settings.basis)
        shown = 0
        anything = False
        paths = places.index_files(path)
        files = index.places(paths, settings) if paths else []
        database = places.index_database(root)
        if files and not settings.rocksdb.index:
            database = None  # a broker makes it unused as well
        sources: list[Iterator[index.Event | index.KeyEvent]] = [
            index.dump(place, begin, stop, lambda: None if store is None else index.log_end(settings))
            if key is None
            else index.walk(place, key, begin, stop)
            for place in files
        ]
        if database is not None:
            sources.append(index.dump_keys(database, begin, stop, key=key))
        for events in sources:
            for event in events:
                is_entry = isinstance(event, index.Entry | index.KeyEntry)
                if is_entry and headers:
                    break
                anything |= is_entry or isinstance(event, Damage)
                if isinstance(event, Damage) or not given.quiet:
                    lines.show(event, index_line)
                is_head = isinstance(event, index.FileHead | index.DatabaseHead)
                shown += is_head if headers else is_entry
                if shown == given.limit:
                    return
        if not (anything or headers) and (key is None or (begin, stop) != (None, None)):
            lines.nothing(in_index(files, database, begin, stop), quiet=given.quiet)
