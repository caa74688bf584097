"""The databases of two stores' queues and index side by side: for the messages that both logs have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.errors import SettingsError
from reput.format import names, rocksdbindex, rocksdbqueue
from reput.format.rocksdbqueue import MAX, OFFSETS, UNITS, Unit, parse_unit, parse_unit_key
from reput.replay.runner import Runner
from reput.replay.selection import Selection
from reput.rocksdb import Database, is_database, opened
from reput.rocksdb.snapshot import caught
from reput.verify.report import DIFFERS, INDEX, ONLY_FIRST, ONLY_SECOND, QUEUE, Difference
from reput.verify.rocksdb_check import wanted_keys, wants
from reput.verify.rocksdb_units import StoredRange, refuse_other_hosts
from reput.verify.tasks import in_waves
from reput.verify.units import add_ranges

_RANGES_A_SLOT = 3
#: Index entries of a range and kind that are listed one by one.
_LISTED = 64
_Queue = tuple[bytes, int]
#: A key, and its values in the first store and the second; None where it isn't there.
_Odd = tuple[bytes, bytes | None, bytes | None]


@dataclass(slots=True)
class RangeCompared:
    """What came of a range of keys.

    Attributes:
        queues: what differs, by topic and queueId: ``expected`` is the first store's, ``found`` the second's.
        units: of messages that both logs have, in the first store.
    """

    queues: dict[_Queue, list[StoredRange]] = field(default_factory=dict)
    units: int = 0


def compare_databases(
    stores: tuple[StoreSettings, StoreSettings],
    bounds: tuple[int, int],
    runner: Runner,
    selection: Selection,
) -> tuple[list[Difference], int, int]:
    """Compare the queues' databases of two stores.

    Args:
        bounds: physical offsets that both logs have, half open.

    Returns:
        What differs; how many queues the first one has; how many units of them both logs have.

    Raises:
        ReputError: one can't be read; or neither has a queue that was chosen.
    """
    places = [settings.root / str(settings.rocksdb.queues) for settings in stores]
    for place in places:
        refuse_other_hosts(runner, place)
        if not is_database(place):
            kind = ONLY_SECOND if place == places[0] else ONLY_FIRST
            return [Difference(kind, str(place), QUEUE, "queues in RocksDB", "none", offset=None)], 0, 0
    with ExitStack() as stack:
        held = [stack.enter_context(caught(place)).directory for place in places]
        ends = [_ends(*of, selection) for of in zip(held, places, strict=True)]
        if not selection.is_all and not (ends[0] or ends[1]):
            raise SettingsError(
                "there is no such queue",
                path=places[0],
                expected="a queue that one of the databases has",
                found=", ".join(sorted(topic for topic, _ in selection.queues)),
                next_step="Check --queue; names of topics are case-sensitive",
            )
        tasks = [
            partial(_compare, (held[0], held[1]), (places[0], places[1]), bounds, first, stop)
            for first, stop in _ranges(selection, ends[0], runner.slots)
        ]
        queues: dict[_Queue, list[StoredRange]] = {}
        units = 0
        for done in in_waves(runner, tasks):
            units += done.units
            for queue, ranges in done.queues.items():
                add_ranges(queues.setdefault(queue, []), ranges)
    found = [_difference(places, queue, one) for queue, ranges in sorted(queues.items()) for one in ranges]
    return [*found, *_ends_differ(places, ends[0], ends[1], bounds)], len(ends[0]), units


def _ends(held: Path, place: Path, selection: Selection) -> dict[_Queue, rocksdbqueue.QueueEnd]:
    """The last message of each queue."""
    found = {}
    with opened(held, required=(UNITS, OFFSETS), named=place) as database:
        for keys, values in database.blocks(OFFSETS):
            for key, value in zip(keys, values, strict=True):
                parsed, end = rocksdbqueue.parse_offset_key(key), rocksdbqueue.parse_offset(value)
                if parsed is not None and end is not None and parsed.which == MAX:
                    queue = parsed.topic, parsed.queue_id
                    if wants(selection.queues, queue):
                        found[queue] = end
    return found


def _ranges(
    selection: Selection, ends: Mapping[_Queue, rocksdbqueue.QueueEnd], slots: int
) -> Iterator[tuple[bytes, bytes | None]]:
    """Ranges of keys that leave out none that is wanted, cut between queues."""
    prefixes = sorted(rocksdbqueue.prefix(*queue) for queue in ends)
    step = max(-(-len(prefixes) // (slots * _RANGES_A_SLOT)), 1)
    cuts = prefixes[step::step]
    for low, high in wanted_keys(selection.queues):
        inside = [cut for cut in cuts if cut > low and (high is None or cut < high)]
        yield from zip([low, *inside], [*inside, high], strict=True)


def _compare(
    held: tuple[Path, Path],
    places: tuple[Path, Path],
    bounds: tuple[int, int],
    first: bytes,
    stop: bytes | None,
) -> RangeCompared:
    """Compare the units of [first, stop), in their order."""
    done = RangeCompared()
    for mine, differing in _differing(held, places, UNITS, first, stop):
        done.units += len(mine)
        for key, left, right in differing:
            at = parse_unit_key(key)
            if at is None:
                continue  # no unit of a queue; the log's verification reports it
            left_unit, right_unit = _unit(left, bounds), _unit(right, bounds)
            if left_unit is None and right_unit is None:
                continue
            kind = ONLY_SECOND if left_unit is None else ONLY_FIRST if right_unit is None else DIFFERS
            place = at.queue_offset
            one = StoredRange(kind, None, place, place + 1, 1, left_unit, right_unit)
            add_ranges(done.queues.setdefault((at.topic, at.queue_id), []), [one])
    return done


def _differing(
    held: tuple[Path, Path], places: tuple[Path, Path], family: str, first: bytes, stop: bytes | None
) -> Iterator[tuple[dict[bytes, bytes], list[_Odd]]]:
    """The first store's entries of [first, stop), many at once, and what differs there, sorted."""
    with opened(held[0], named=places[0]) as one, opened(held[1], named=places[1]) as other:
        here = first
        for keys, values in one.blocks(family, first, stop):
            end = keys[-1] + b"\0"
            mine = dict(zip(keys, values, strict=True))
            yield mine, _of_block(mine, other, family, here, end)
            here = end
        if stop is None or here < stop:
            yield {}, _of_block({}, other, family, here, stop)


def _of_block(
    mine: dict[bytes, bytes], other: Database, family: str, first: bytes, stop: bytes | None
) -> list[_Odd]:
    differing: list[_Odd] = []
    missing = dict(mine)
    for keys, values in other.blocks(family, first, stop):
        its = dict(zip(keys, values, strict=True))
        differing += [(key, mine.get(key), value) for key, value in its.items() - mine.items()]
        for key in missing.keys() & its.keys():
            del missing[key]
    return sorted([*differing, *((key, value, None) for key, value in missing.items())])


def _unit(value: bytes | None, bounds: tuple[int, int]) -> Unit | None:
    """A unit of a message that both logs have."""
    unit = None if value is None else parse_unit(value)
    return unit if unit is not None and bounds[0] <= unit.position < bounds[1] else None


def _difference(places: list[Path], queue: _Queue, one: StoredRange) -> Difference:
    def said(unit: object) -> str:
        if not isinstance(unit, Unit):
            return "nothing"
        return f"{unit.position}, {unit.size} bytes, tagsCode {unit.tags}, storeTimestamp {unit.timestamp}"

    return Difference(
        one.kind,
        str(places[1] if one.kind == ONLY_SECOND else places[0]),
        QUEUE,
        f"{said(one.expected)} (first store)",
        f"{said(one.found)} (second store)",
        first=one.first,
        end=one.end,
        count=one.count,
        offset=None,
        topic=queue[0].decode("utf-8", "replace"),
        queue_id=queue[1],
    )


def _ends_differ(
    places: list[Path],
    left: Mapping[_Queue, rocksdbqueue.QueueEnd],
    right: Mapping[_Queue, rocksdbqueue.QueueEnd],
    bounds: tuple[int, int],
) -> Iterator[Difference]:
    """Last messages that both logs have, and that aren't the same."""
    for queue in sorted(left.keys() | right.keys()):
        one, other = left.get(queue), right.get(queue)
        known = [end for end in (one, other) if end is not None]
        if one == other or not all(bounds[0] <= end.position < bounds[1] for end in known):
            continue
        said = [
            "nothing" if end is None else f"max {end.queue_offset} at {end.position}" for end in (one, other)
        ]
        yield Difference(
            ONLY_SECOND if one is None else ONLY_FIRST if other is None else DIFFERS,
            str(places[1] if one is None else places[0]),
            QUEUE,
            f"{said[0]} (first store)",
            f"{said[1]} (second store)",
            offset=None,
            topic=queue[0].decode("utf-8", "replace"),
            queue_id=queue[1],
        )


@dataclass(slots=True)
class EntriesCompared:
    """What came of a range of the index's keys.

    Attributes:
        listed: by kind, the first ones that differ.
        counts: by kind, all of these.
        entries: that the first store has.
    """

    listed: dict[str, list[_Odd]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    entries: int = 0


def compare_indexes(
    stores: tuple[StoreSettings, StoreSettings], bounds: tuple[int, int], runner: Runner, *, running: bool
) -> tuple[list[Difference], int]:
    """Compare the databases of two stores' indexes, both ways.

    Args:
        bounds: physical offsets that both logs have, half open.
        running: somebody writes to one of them: what isn't flushed in both isn't compared.

    Returns:
        What differs; and how many entries the first one has.
    """
    places = stores[0].root / names.ROCKSDB_STORE, stores[1].root / names.ROCKSDB_STORE
    there = [is_database(place) for place in places]
    if not all(there):
        kind, place = (ONLY_FIRST, places[1]) if there[0] else (ONLY_SECOND, places[0])
        lacks = Difference(kind, str(place), INDEX, "an index in RocksDB", "none", offset=None)
        return ([lacks] if any(there) else []), 0
    with ExitStack() as stack:
        held = [stack.enter_context(caught(place)).directory for place in places]
        cuts: set[bytes] = set()
        for of in zip(held, places, strict=True):
            hours, mark = _hours(*of, runner.slots)
            cuts.update(hours)
            if running:
                bounds = bounds[0], min(bounds[1], mark + 1)
        firsts = [b"", *sorted(cuts)]
        tasks = [
            partial(_compare_entries, (held[0], held[1]), places, bounds, first, stop)
            for first, stop in zip(firsts, [*firsts[1:], None], strict=True)
        ]
        found: list[Difference] = []
        entries = 0
        for done in in_waves(runner, tasks):
            entries += done.entries
            for kind, listed in done.listed.items():
                rest = done.counts[kind] - len(listed)
                found += [_entry(places, kind, odd, 1) for odd in listed[:-1]]
                found.append(_entry(places, kind, listed[-1], 1 + rest))
    return found, entries


def _hours(held: Path, place: Path, slots: int) -> tuple[list[bytes], int]:
    """Keys that cut an index by hours, and the physical offset of the last message that it has."""
    with opened(held, required=(rocksdbindex.ENTRIES,), named=place) as database:
        first = database.first(rocksdbindex.ENTRIES, b"")
        last = database.last(rocksdbindex.ENTRIES, rocksdbindex.LAST_POSITION[:1])
        mark = database.get(rocksdbindex.ENTRIES, rocksdbindex.LAST_POSITION)
    found = [None if one is None else rocksdbindex.parse_key(one[0]) for one in (first, last)]
    hours = [0 if one is None else one.hour // rocksdbindex.MS_AN_HOUR for one in found]
    step = max(-(-(hours[1] - hours[0]) // (slots * _RANGES_A_SLOT)), 1)
    cuts = range(hours[0] + step, hours[1] + 1, step)
    position = None if mark is None else rocksdbindex.parse_value(mark)
    return (
        [rocksdbindex.value(hour * rocksdbindex.MS_AN_HOUR) for hour in cuts],
        -1 if position is None else position,
    )


def _compare_entries(
    held: tuple[Path, Path],
    places: tuple[Path, Path],
    bounds: tuple[int, int],
    first: bytes,
    stop: bytes | None,
) -> EntriesCompared:
    done = EntriesCompared()
    for mine, differing in _differing(held, places, rocksdbindex.ENTRIES, first, stop):
        done.entries += len(mine) - sum(mark in mine for mark in rocksdbindex.MARKS)
        for odd in differing:
            key, left, right = odd
            entry = rocksdbindex.parse_key(key)
            if entry is None or not bounds[0] <= entry.position < bounds[1]:
                continue
            kind = ONLY_SECOND if left is None else ONLY_FIRST if right is None else DIFFERS
            done.counts[kind] = done.counts.get(kind, 0) + 1
            listed = done.listed.setdefault(kind, [])
            if len(listed) < _LISTED:
                listed.append(odd)
    return done


def _entry(places: tuple[Path, Path], kind: str, odd: _Odd, count: int) -> Difference:
    key, left, right = odd
    entry = rocksdbindex.parse_key(key)
    text = key.hex() if entry is None else entry.middle.decode("utf-8", "replace")
    position = 0 if entry is None else entry.position

    def said(value: bytes | None) -> str:
        if value is None:
            return "nothing"
        number = rocksdbindex.parse_value(value)
        return (
            f"{text} of the message at {position}, storeTimestamp {value.hex() if number is None else number}"
        )

    return Difference(
        kind,
        str(places[1] if kind == ONLY_SECOND else places[0]),
        INDEX,
        f"{said(left)} (first store)",
        f"{said(right)} (second store)",
        first=position,
        end=position + 1,
        count=count,
        offset=None,
    )
