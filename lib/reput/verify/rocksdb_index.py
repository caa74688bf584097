"""The database of the index in a verification: its entries against the log, both ways."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from reput.format import names, rocksdbindex
from reput.format.rocksdbindex import ENTRIES
from reput.newer_python import Self
from reput.output.rocksdb.index import Share, shares_of
from reput.replay.key_runs import KeyRun
from reput.replay.part_result import PartResult
from reput.replay.runner import Runner
from reput.rocksdb import is_database, opened
from reput.rocksdb.snapshot import PREFIX, caught
from reput.verify.plan import Plan
from reput.verify.report import INDEX, Difference, Note
from reput.verify.rocksdb_units import Bounds, refuse_other_hosts
from reput.verify.tasks import in_waves

#: Entries of a share and kind that are listed one by one.
_LISTED = 64
_MISSING, _DANGLING, _WRONG, _FOREIGN = "missing-entry", "dangling-entry", "index-time", "foreign-key"


@dataclass(slots=True)
class EntriesChecked:
    """What came of a range of keys.

    Attributes:
        listed: by kind, (key, expected value, found value) of the first ones.
        counts: by kind, of all.
        there: entries that the database has.
        pending: entries that it lacks, since the broker hadn't flushed them.
    """

    listed: dict[str, list[tuple[bytes, bytes | None, bytes | None]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    there: int = 0
    pending: int = 0

    def tell(self, kind: str, key: bytes, expected: bytes | None, found: bytes | None) -> None:
        """Note what differs."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        listed = self.listed.setdefault(kind, [])
        if len(listed) < _LISTED:
            listed.append((key, expected, found))


@dataclass(frozen=True, slots=True)
class EntriesTask:
    """Compare a range of keys.

    Attributes:
        database: where it was caught.
        named: where it is in the store.
        runs: the log's keys.
        bounds: ``flushed`` is the position from which on entries may be missing.
    """

    database: Path
    named: Path
    runs: tuple[str, ...]
    bounds: Bounds
    share: Share

    def __call__(self) -> EntriesChecked:
        """Compare."""
        share, done = self.share, EntriesChecked()
        missing: dict[bytes, bytes] = {}
        for path in self.runs:
            with KeyRun(path) as run:
                missing |= run.entries(share.first, share.stop)
        with opened(self.database, named=self.named) as database:
            for keys, values in database.blocks(ENTRIES, share.first, share.stop):
                done.there += len(keys)
                for key, value in sorted(dict(zip(keys, values, strict=True)).items() - missing.items()):
                    self._odd(done, key, missing.get(key), value)
                for key in missing.keys() & set(keys):
                    del missing[key]
        for key in sorted(missing):
            if self.bounds.flushed is not None and int.from_bytes(key[-8:]) >= self.bounds.flushed:
                done.pending += 1
            else:
                done.tell(_MISSING, key, missing[key], None)
        return done

    def _odd(self, done: EntriesChecked, key: bytes, expected: bytes | None, value: bytes) -> None:
        if key in rocksdbindex.MARKS:
            done.there -= 1
            return
        entry = rocksdbindex.parse_key(key)
        if entry is None:
            done.tell(_FOREIGN, key, None, value)
        elif expected is not None:
            done.tell(_WRONG, key, expected, value)
        elif not 0 <= entry.position < self.bounds.start and not (
            self.bounds.live_end is not None and entry.position >= self.bounds.live_end
        ):
            done.tell(_DANGLING, key, None, value)


class IndexDatabaseCheck:
    """The index's database of one run. A context manager; without one where the settings have none.

    Attributes:
        scratch: where tasks put the log's keys for :meth:`compare`; None where there is nothing to compare.
        entries: how many the database has.
    """

    def __init__(self, plan: Plan, runner: Runner) -> None:
        self._plan = plan
        self._runner = runner
        self._stack = ExitStack()
        self._held: Path | None = None
        self._runs: list[str] = []
        self._done: list[EntriesChecked] = []
        self._problems: list[Difference] = []
        self.scratch: Path | None = None
        self.entries = 0

    @property
    def directory(self) -> Path:
        """The database."""
        return self._plan.settings.root / names.ROCKSDB_STORE

    def __enter__(self) -> Self:
        """Catch the database as it is now."""
        if not self._plan.index_in_rocksdb:
            return self
        refuse_other_hosts(self._runner, self.directory)
        self.scratch = self._stack.enter_context(_Scratch())
        if is_database(self.directory):
            self._held = self._stack.enter_context(caught(self.directory)).directory
        return self

    def __exit__(self, *of: object) -> None:
        self._stack.__exit__(*of)  # type: ignore[arg-type]

    def add(self, result: PartResult) -> None:
        """Take what came of a part of the log."""
        self._runs += result.key_runs

    def compare(self) -> None:
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
                self._tell("missing-database", "an index, with CURRENT", "none", "the index is gone")
            return
        with opened(self._held, required=(ENTRIES,), named=self.directory) as database:
            found = database.get(ENTRIES, rocksdbindex.LAST_POSITION)
        mark = None if found is None else rocksdbindex.parse_value(found)
        plan = self._plan
        bounds = Bounds.of(plan, 0 if mark is None else mark + 1)
        tasks = [
            EntriesTask(self._held, self.directory, tuple(self._runs), bounds, share)
            for share in shares_of(samples, self._runner.slots) or [Share(b"", None)]
        ]
        for done in in_waves(self._runner, tasks):
            self._done.append(done)
            self.entries += done.there
        if mark is not None and mark > last and mark >= plan.log.start and not plan.running:
            expected = f"lastOffsetPy of at most {last}"
            self._tell("index-ahead", expected, str(mark), "a start indexes no message before it")

    def _tell(self, kind: str, expected: str, found: str, remark: str) -> None:
        self._problems.append(
            Difference(kind, str(self.directory), INDEX, expected, found, offset=None, remark=remark)
        )

    def findings(self) -> Iterator[Difference]:
        """What is wrong with the database."""
        yield from self._problems
        for done in self._done:
            for kind, listed in done.listed.items():
                rest = done.counts[kind] - len(listed)
                for number, (key, expected, found) in enumerate(listed):
                    count = 1 + (rest if number == len(listed) - 1 else 0)
                    yield self._difference(kind, key, expected, found, count)

    def _difference(
        self, kind: str, key: bytes, expected: bytes | None, found: bytes | None, count: int
    ) -> Difference:
        entry = rocksdbindex.parse_key(key)
        position = 0 if entry is None else entry.position
        text = key[:48].hex() if entry is None else entry.middle.decode("utf-8", "replace")
        place = "" if entry is None else f" of the message at {position}"

        def said(value: bytes | None, without: str) -> str:
            if value is None:
                return without
            number = rocksdbindex.parse_value(value)
            return f"{text}{place}, storeTimestamp {value.hex() if number is None else number}"

        return Difference(
            kind,
            str(self.directory),
            INDEX,
            said(expected, "a key of a message" if kind == _FOREIGN else "nothing"),
            said(found, "nothing"),
            first=position if kind == _MISSING else 0,
            end=position + 1 if kind == _MISSING else 0,
            count=count,
            offset=None,
        )

    def notes(self) -> Iterator[Note]:
        """What is odd and legal."""
        pending = sum(done.pending for done in self._done)
        if pending and not self._plan.running:
            text = f"{pending:,} index entries that the broker hadn't flushed when it was killed"
            yield Note("to-dispatch", text, count=pending)


class _Scratch:
    """A directory for the log's keys that goes with the block."""

    def __enter__(self) -> Path:
        self._place = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._held = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._held, fcntl.LOCK_SH)  # so that nobody sweeps it
        return self._place

    def __exit__(self, *of: object) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        os.close(self._held)
