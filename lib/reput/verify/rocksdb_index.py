"""The index in RocksDB: its entries against the log, or against another store's, both ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reput.format import names, rocksdbindex
from reput.format.rocksdbindex import ENTRIES
from reput.output.databases import KeyShare, key_shares_of
from reput.replay.runner import Runner
from reput.replay.runs import KeyRun
from reput.rocksdb import is_database, opened
from reput.rocksdb.reader import is_installed
from reput.rocksdb.snapshot import caught, temporary
from reput.verify.databases import (
    RANGES_A_SLOT,
    Bounds,
    DatabaseCheck,
    KeyBlocks,
    Listed,
    differing_keys,
    lacking,
    odd_keys,
    refuse_other_hosts,
)
from reput.verify.plan import Plan
from reput.verify.report import (
    INDEX,
    Difference,
    Note,
    Report,
    of_two,
    which_of_two,
)
from reput.verify.waves import in_waves

if TYPE_CHECKING:
    from reput.verify.plan import Pair
    from reput.verify.tasks import PartChecked

_MISSING, _DANGLING, _WRONG, _FOREIGN = "missing-entry", "dangling-entry", "index-time", "foreign-key"


@dataclass(slots=True)
class EntriesChecked(Listed):
    """What came of a range of keys."""

    there: int = 0  # entries that the database has, or the first one
    pending: int = 0  # entries that it lacks, since the broker hadn't flushed them


@dataclass(frozen=True, slots=True)
class EntriesTask:
    """Compare a range of keys."""

    database: Path  # where it was caught
    named: Path  # where it is in the store
    runs: tuple[str, ...]  # the log's keys
    bounds: Bounds
    share: KeyShare

    def __call__(self) -> EntriesChecked:
        """Compare."""
        share, done = self.share, EntriesChecked()
        expected: dict[bytes, bytes] = {}
        for path in self.runs:
            with KeyRun(path) as run:
                expected |= run.entries(share.first, share.stop)
        with opened(self.database, named=self.named) as database:
            for odd in odd_keys(expected, _counted(done, database.blocks(ENTRIES, share.first, share.stop))):
                key, right, value = odd
                kind = self._kind(key, right, value)
                if kind is not None:
                    done.add(kind, odd)
                elif value is None:
                    done.pending += 1
        return done

    def _kind(self, key: bytes, right: bytes | None, value: bytes | None) -> str | None:
        bounds = self.bounds
        if value is None:
            is_due = bounds.flushed is None or int.from_bytes(key[-8:], "big") < bounds.flushed
            return _MISSING if is_due else None
        entry = rocksdbindex.parse_key(key)
        if entry is None:
            return None if key in rocksdbindex.MARKS else _FOREIGN
        if right is not None:
            return _WRONG
        is_let_be = 0 <= entry.position < bounds.start or bounds.is_live(entry.position)
        return None if is_let_be else _DANGLING


def _counted(done: EntriesChecked, blocks: KeyBlocks) -> KeyBlocks:
    for keys, values in blocks:
        done.there += len(keys) - sum(mark in keys for mark in rocksdbindex.MARKS)
        yield keys, values


class IndexDatabaseCheck(DatabaseCheck):
    """The index's database of one run.

    Attributes:
        entries: how many the database has.
    """

    def __init__(self, plan: Plan, runner: Runner) -> None:
        super().__init__(plan, runner, plan.settings.root / names.ROCKSDB_STORE, INDEX)
        self._done: list[EntriesChecked] = []
        self.entries = 0

    def find(self, _proven: object, held: ExitStack) -> None:
        """Catch the database as it is now."""
        if self._plan.index_in_rocksdb:
            refuse_other_hosts(self._runner, self.directory)
            self.scratch = held.enter_context(temporary())
            if is_database(self.directory):
                self._held = held.enter_context(caught(self.directory)).directory

    def add(self, checked: PartChecked) -> None:
        """See :class:`reput.verify.run.Form`."""
        self._runs += checked.result.key_runs

    def compare(self, _log: object, _proven: object) -> None:
        """Compare all that was taken with the database."""
        if self.scratch is None:
            return
        samples: list[bytes] = []
        last = -1
        for path in self._runs:
            with KeyRun(path) as run:
                samples += run.samples()
                last = max(last, run.last_position)
        if self._held is None:
            if samples:
                of = "missing-database", "an index, with CURRENT", "none"
                self._problems.append(self._differs(*of, remark="the index is gone"))
            return
        mark, plan = _marked(self._held, self.directory), self._plan
        bounds = Bounds.of(plan, 0 if mark is None else mark + 1)
        tasks = [
            EntriesTask(self._held, self.directory, tuple(self._runs), bounds, share)
            for share in key_shares_of(samples, self._runner.slots) or [KeyShare(b"", None)]
        ]
        for done in in_waves(self._runner, tasks):
            self._done.append(done)
            self.entries += done.there
        if mark is not None and mark > last and mark >= plan.log.start and not plan.running:
            of = "index-ahead", f"lastOffsetPy of at most {last}", str(mark)
            self._problems.append(self._differs(*of, remark="a start indexes no message before it"))

    def findings(self, _explainer: object) -> Iterator[Difference | Note]:
        """What is wrong with the database, then what is odd and legal."""
        yield from self._problems
        yield from self._listed()
        pending = sum(done.pending for done in self._done)
        if pending and not self._plan.running:
            text = f"{pending:,} index entries that the broker hadn't flushed when it was killed"
            yield Note("to-dispatch", text, count=pending)

    def _listed(self) -> Iterator[Difference]:
        for done in self._done:
            for kind, (key, expected, found), count in done.each():
                entry = rocksdbindex.parse_key(key)
                text = key[:48].hex() if entry is None else _text_of(entry)
                first = 0 if entry is None or kind != _MISSING else entry.position
                end = first + 1 if kind == _MISSING else 0
                without = "a key of a message" if kind == _FOREIGN else "nothing"
                said = _said(text, expected, without), _said(text, found, "nothing")
                yield self._differs(kind, *said, first=first, end=end, count=count)


def _marked(held: Path, place: Path) -> int | None:
    """The physical offset of the last message that an index has, by its own mark."""
    with opened(held, required=(ENTRIES,), named=place) as database:
        found = database.get(ENTRIES, rocksdbindex.LAST_POSITION)
    return None if found is None else rocksdbindex.parse_value(found)


def _text_of(entry: rocksdbindex.Entry) -> str:
    return f"{entry.middle.decode('utf-8', 'replace')} of the message at {entry.position}"


def _said(text: str, value: bytes | None, without: str) -> str:
    if value is None:
        return without
    number = rocksdbindex.parse_value(value)
    return f"{text}, storeTimestamp {value.hex() if number is None else number}"


# --- two stores -------------------------------------------------------------------------------------------


def compare_indexes(pair: Pair, runner: Runner, report: Report) -> None:
    """Compare the databases of two stores' indexes; what isn't flushed in both isn't compared."""
    why = "" if is_installed() else "reput[rocksdb] isn't installed"
    if not runner.is_local:
        why = "tasks on other hosts don't see it as it was caught here"
    if why:
        report.not_checked.append(Note("index", f"the index in RocksDB: {why}"))
        return
    if pair.running:
        text = "what the broker hasn't flushed into the index in RocksDB"
        report.not_checked.append(Note("not-flushed", text))
    places = [settings.root / names.ROCKSDB_STORE for settings in pair.stores]
    if lacks := lacking(places, INDEX, "an index in RocksDB"):
        if any(map(is_database, places)):
            report.findings.append(lacks)
        return
    with ExitStack() as stack:
        held = [stack.enter_context(caught(place)).directory for place in places]
        cuts: set[bytes] = set()
        end = pair.end
        for of in zip(held, places, strict=True):
            cuts.update(_hours(*of, runner.slots))
            if pair.running:
                mark = _marked(*of)
                end = min(end, 0 if mark is None else mark + 1)
        firsts = [b"", *sorted(cuts)]
        look = partial(_compare_entries, held, places, (pair.start, end))
        ranges = zip(firsts, [*firsts[1:], None], strict=True)
        for done in in_waves(runner, [partial(look, *each) for each in ranges]):
            report.index_entries += done.there
            for kind, (key, left, right), count in done.each():
                entry = rocksdbindex.parse_key(key)
                text = key.hex() if entry is None else _text_of(entry)
                at = 0 if entry is None else entry.position
                said = _said(text, left, "nothing"), _said(text, right, "nothing")
                span = at, at + 1, count
                report.findings.append(of_two(kind, places, INDEX, said, span, offset=None))


def _hours(held: Path, place: Path, slots: int) -> list[bytes]:
    """Keys that cut an index by hours."""
    with opened(held, required=(ENTRIES,), named=place) as database:
        ends = database.first(ENTRIES, b""), database.last(ENTRIES, rocksdbindex.LAST_POSITION[:1])
    found = [None if one is None else rocksdbindex.parse_key(one[0]) for one in ends]
    hours = [0 if one is None else one.hour // rocksdbindex.MS_AN_HOUR for one in found]
    step = max(-(-(hours[1] - hours[0]) // (slots * RANGES_A_SLOT)), 1)
    cuts = range(hours[0] + step, hours[1] + 1, step)
    return [rocksdbindex.value(hour * rocksdbindex.MS_AN_HOUR) for hour in cuts]


def _compare_entries(
    held: Sequence[Path], places: Sequence[Path], bounds: tuple[int, int], first: bytes, stop: bytes | None
) -> EntriesChecked:
    done = EntriesChecked()
    for keys, differing in differing_keys(held, places, ENTRIES, first, stop):
        done.there += len(keys) - sum(mark in keys for mark in rocksdbindex.MARKS)
        for odd in differing:
            entry = rocksdbindex.parse_key(odd[0])
            if entry is not None and bounds[0] <= entry.position < bounds[1]:
                done.add(which_of_two(*odd[1:]), odd)
    return done
