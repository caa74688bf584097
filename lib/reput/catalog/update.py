"""Brings a table up to date: takes out what the log has lost, adds what it has gained, merges files."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Protocol

from reput.catalog import Cataloged, CatalogOptions
from reput.catalog.appending import Appending, Standing, stand
from reput.catalog.hold import hold_of
from reput.catalog.rows import columns
from reput.catalog.table import BODY, BROKER, CLUSTER, DAY, Broker, File, Table, broker_of
from reput.config.settings import StoreSettings
from reput.errors import OutputError, ReputError, SegmentGoneError, SettingsError, UnsupportedError
from reput.format import dledger
from reput.log.segments import CommitLog, discover
from reput.newer_python import UTC, Self
from reput.remote import remote_store, with_urls
from reput.remote.client import HDFS, is_url, url_of
from reput.replay.runner import Runner
from reput.spark.sessions import converting_spark_errors
from reput.store import files
from reput.store.places import check_outside, lies_in
from reput.store.reading import check_store
from reput.unforeseen import unforeseen

# A file's rows are in order from the first, so that only many small files are worth writing anew: those that
# a run adds every few minutes. Larger ones are left as they are. A row is thus written a few times, whatever
# a day gets, and a run merges about as much as has come since the last merge.

#: Bytes: a smaller file is to be merged, and so large a merged file gets.
SMALL, LARGE = 4 << 20, 16 << 20
#: Of a merged file; they are in memory together.
MOST_ROWS = 1 << 19
#: Bytes of log between the first file's end and the last one's: in memory rows are as large as there, and in
#: files bodies may be a small part of that.
MOST_LOG = 128 << 20
#: Small files of one day that make it due before it is over.
MANY = 16


def due(live: Iterable[File], today: date | None = None) -> Iterator[list[File]]:
    """The files that are to become one, by day and in log order.

    Messages of days after ``today``, in UTC, don't make a day be over.
    """
    today = datetime.now(UTC).date() if today is None else today
    days: dict[date | None, list[tuple[int, File]]] = {}
    newest = date.min
    for file in live:
        if file.day is not None and file.day <= today:
            newest = max(newest, file.day)
        if file.size < SMALL and file.last is not None:
            days.setdefault(file.day, []).append((file.last, file))
    for day, small in sorted(days.items(), key=lambda one: one[0] or date.min):
        if len(small) < MANY and (day is None or day >= newest):
            continue
        merged: list[File] = []
        for _, file in sorted(small, key=lambda one: one[0]):
            with_it = [*merged, file]
            is_large = (
                sum(one.size for one in with_it) > LARGE
                or sum(one.rows for one in with_it) > MOST_ROWS
                or (file.last or 0) - (with_it[0].last or 0) > MOST_LOG
            )
            if merged and is_large:
                yield from [merged] if len(merged) > 1 else []
                merged = []
            merged.append(file)
        yield from [merged] if len(merged) > 1 else []


def outdated(live: Iterable[File], days: int, newest: date | None, today: date | None = None) -> list[File]:
    """The files of days that a table shall not keep any more.

    Messages without a day are kept, and so is the file with a store's last message: without it nobody could
    tell whether the log is still the one that the table holds. ``days`` are counted before ``today``, in UTC,
    or before the day after ``newest``, of which the table has messages, whoever's, if that is earlier. Else a
    clock that is ahead would empty the table.
    """
    files = list(live)
    today = datetime.now(UTC).date() if today is None else today
    if newest is not None:
        today = min(today, newest + timedelta(days=1))
    first = today - timedelta(days=days)
    last = max((file.last for file in files if file.last is not None), default=None)
    return [
        file
        for file in files
        if file.day is not None and file.day < first and file.last is not None and file.last != last
    ]


_LOG = logging.getLogger(__name__)

#: What Spark and deltalake take for something else than a part of a path, or for another one each.
_NO_PATH = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:/|[\x00-\x1f\\\ud800-\udfff]|%[0-9A-Fa-f]{2}")
#: Segments may expire while the table's end is held against the log.
_TRIES = 3


def catalog(
    options: CatalogOptions,
    start: Callable[[], Runner],
    listener: Callable[[int, int, int], None] = lambda *_: None,
) -> Cataloged:
    """Bring a table up to the log's end.

    ``start`` gives what runs the tasks; it is only called when nothing that can be seen before speaks against
    the run.
    """
    one = Catalog(options, listener=listener, either=True)
    one.find_log()  # before there is a directory for the table
    with one:
        return one.advance(start)


@dataclass(frozen=True, slots=True)
class _Known:
    """Where a run continues, as long as table and log are what they were, but for what the log has gained."""

    standing: Standing  # that
    state: tuple[int | None, frozenset[str]]  # the table's
    log: tuple[tuple[int, ...], ...]  # what the segments' files looked like before the two were compared
    is_told: bool = False  # somebody tells where the log goes back before the table's end


class Catalog:
    """A table that is brought up to date once or often. A context manager: nobody else writes meanwhile.

    ``is_told``: whoever brings it up to date calls :meth:`went_back` when the log did before where they have
    read it to. Once that is no less than the table has, the two are compared once, and not each time that the
    log was written to meanwhile. ``listener`` gets the bytes of log
    that were read, the messages that were found, and the bytes in all. Without ``either``, a table of many
    stores is refused. ``settings`` None: the store's are read.
    """

    def __init__(
        self,
        options: CatalogOptions,
        settings: StoreSettings | None = None,
        *,
        is_told: bool = False,
        listener: Callable[[int, int, int], None] = lambda *_: None,
        either: bool = False,
    ) -> None:
        self._options = options
        self._listener = listener
        self._is_told = is_told
        self._either = either
        self._known: _Known | None = None
        self._begin = 0
        self._settings = settings or StoreSettings.load(
            options.store, options.broker_conf, options.rocketmq_version, dledger=True, rocksdb=True
        )
        _check_place(options.table, self._settings)
        self._stack = ExitStack()
        # Where the log is known to have gone back to since the table was brought up to date.
        self._gone_from: list[int] = []

    def __enter__(self) -> Self:
        options = self._options
        broker = self.broker()
        with ExitStack() as stack:
            if not is_url(options.table):
                files.make_dirs(options.table)
            self._table = Table(options.table, broker)
            self._hold = stack.enter_context(hold_of(self._table))
            self._table.refresh()
            if self._table.columns and (BODY in self._table.columns) != options.bodies:
                raise SettingsError(
                    "the table was begun otherwise",
                    path=self._table.url,
                    expected="bodies" if BODY in self._table.columns else "no bodies",
                    found="bodies" if options.bodies else "no bodies",
                    next_step="Run it as it was begun, or take another directory",
                )
            self._stack = stack.pop_all()
        return self

    def broker(self) -> Broker | None:
        """Whose store it is, for a table of many; None for one of one store."""
        options = self._options
        is_many = Table(options.table, either=True).is_many
        if is_many and not self._either:
            raise UnsupportedError(
                "the table is one of many stores",
                path=options.table,
                expected="one of this store",
                next_step="Run `reput catalog` by itself for it, or take another directory",
            )
        asked = {
            "--cluster": options.cluster is not None,
            "--broker": options.broker is not None,
            "several stores": options.many,
            "--retain": options.retain_days is not None,
        }
        if is_many is None:
            is_many = is_url(options.table) or any(asked.values())
        elif not is_many and any(asked.values()):
            raise SettingsError(
                "the table is one of one store, without the columns cluster and broker",
                path=options.table,
                expected="a table of many stores, or a new one",
                found=f"{', '.join(name for name, given in asked.items() if given)} given",
                next_step="Begin another table: it takes all that the logs still have",
            )
        return broker_of(self._settings, options.cluster, options.broker) if is_many else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def find_log(self) -> None:
        """See that there is a log, else raise StoreError."""
        check_store(self._settings.root)
        discover(self._settings)

    def check(self, read: int = -1) -> None:
        """See that table and log belong together, before anything is done.

        ``read``: up to where whoever brings it up to date has read the log.
        """
        is_told = self._is_told and read >= (self._table.cursor or 0)
        self._known = replace(self._look(), is_told=is_told)

    def reached(self) -> int:
        """Physical offset up to which the table holds the log, after :meth:`check` or :meth:`advance`.

        Before its first commit, that where it will begin. May be asked while a run is under way.
        """
        cursor = self._table.cursor
        return self._begin if cursor is None else cursor

    def went_back(self, offset: int) -> None:
        """Take out, before anything else comes, what the table holds of the log from an offset on.

        From the record at that physical offset on, the log is known to be another one. What :meth:`advance`
        is told as the end after that lies there or behind it.
        """
        self._gone_from.append(offset)

    def advance(
        self,
        start: Callable[[], Runner],
        committed: Callable[[], int] | None = None,
        most: int | None = None,
    ) -> Cataloged:
        """Commit what the log holds that the table doesn't, of at most ``most`` bytes of log.

        ``committed`` tells the physical offset up to which the log is read, known to be settled; None for the
        end that it has. Raises LogWentBackError where the log has none of the table's messages, and
        StoreError where it begins behind the table's last one and no gap is allowed.
        """
        began = time.monotonic()
        self._table.refresh()
        # Before a step back: what that takes out is kept.
        self._hold.clean()
        told = len(self._gone_from)
        # Forgotten first: after a failure, table and log are compared.
        known, self._known = self._known, None
        # Before the two are compared: what changes later and behind it, nobody tells.
        read = -1 if committed is None else committed()
        if known is None or not self._holds(known):
            known = self._look()
        standing = known.standing
        cursor = self._table.cursor
        if told and cursor is not None and (gone_from := min(self._gone_from[:told])) < cursor:
            standing = standing.earlier(gone_from)
        if standing.gone_from is not None:
            start()  # what is taken out shall be followed by what the log has now
        removed, removed_after = self._take_back(standing)
        del self._gone_from[:told]
        before, cursor = self._table.messages, self._table.cursor
        is_told = self._is_told and read >= (cursor or 0)
        begin = standing.begin if cursor is None else max(cursor, standing.begin)
        # Asked after what is known to be gone, or an end of before the log went back might be taken.
        end = None if committed is None else committed()
        if end is not None:
            end = max(end, cursor or 0)  # a tail that was begun anew is behind the table
            end = end if most is None else min(end, begin + most)
        run = Appending(self._options, self._settings, self._table, self._listener, self._hold)
        with converting_spark_errors(self._options.table):
            if end is None or cursor is None or cursor < end or self._table.lacks:
                run.append(start, standing, end)
            added = self._messages() - before
            retired = self._retire()
            clustered = self._cluster(run, start) if self._options.optimize else ()
        vacuumed = self._table.vacuum() if self._options.retain_days is not None else 0
        messages = self._messages()
        after = self._next(standing) if run.commits else replace(standing, gone_from=None, expired=0)
        self._known = _Known(after, self._table.state, known.log, is_told)
        whose = self._table.broker
        return Cataloged(
            table=self._table.url,
            cluster=None if whose is None else whose.cluster,
            broker=None if whose is None else whose.name,
            start=begin,
            end=max(self._table.cursor or begin, begin),
            expired=standing.expired + run.expired,
            removed=removed,
            removed_after=removed_after,
            added=added,
            messages=messages,
            commits=run.commits,
            clustered=clustered,
            retired=retired,
            vacuumed=vacuumed,
            findings=run.findings,
            seconds=time.monotonic() - began,
            basis=self._settings.basis,
        )

    def _look(self) -> _Known:
        """Compare table and log."""
        for tries_left in reversed(range(_TRIES)):
            try:
                log = _stamps(discover(self._settings))
                standing = stand(self._table, self._settings, allow_gap=self._options.allow_gap)
                self._begin = standing.begin
                return _Known(standing, self._table.state, log)
            except SegmentGoneError:
                if not tries_left:
                    raise
        raise AssertionError  # the loop returns or raises

    def _holds(self, known: _Known) -> bool:
        """Whether table and log needn't be compared again."""
        if known.state != self._table.state:
            return False  # somebody else has changed the table
        log = discover(self._settings)
        if log.start > known.standing.begin:
            return False  # the table's last message has expired
        return known.is_told or _stamps(log) == known.log

    def _next(self, before: Standing) -> Standing:
        """Where the next run continues, after one that began with ``before`` and has committed."""
        last = self._table.last()
        if last is None:  # the log has no message yet
            return Standing(before.after, before.begin)
        return Standing(last, begin=last - (dledger.HEADER_LENGTH if self._settings.entries else 0))

    def _take_back(self, standing: Standing) -> tuple[int, tuple[int, ...]]:
        """Take out what isn't in the log any more; how many messages, and the version that has them still."""
        if standing.gone_from is None:
            return 0, ()
        version, before = self._table.version, self._table.messages
        self._hold.check()
        self._table.step_back(standing.gone_from, self._hold.check)
        removed = before - self._table.messages
        if not removed:
            return 0, ()
        # Said at once: the run may still fail, and the next one finds nothing to take out.
        _LOG.warning(
            "%s: the log went back to %d; %d messages are taken out, version %d of the table has them",
            self._table.url,
            standing.gone_from,
            removed,
            version,
        )
        return removed, (version,)

    def _messages(self) -> int:
        """How many messages the newest version has."""
        self._table.refresh()
        return self._table.messages

    def _retire(self) -> int:
        """Take out the days that are over for the table; how many messages."""
        days = self._options.retain_days
        old = [] if days is None else outdated(self._table.files(), days, self._table.newest_day())
        if old:
            self._hold.check()
            self._table.remove(old, self._hold.check)
        return sum(file.rows for file in old)

    def _cluster(self, run: Appending, start: Callable[[], Runner]) -> tuple[str, ...]:
        """Merge the small files that are worth it; of which days."""
        self._table.refresh()
        # Columns that somebody added would be lost, and so would be what says that rows are deleted.
        whose = () if self._table.broker is None else (CLUSTER, BROKER)
        expected = (*whose, *columns(bodies=self._options.bodies), DAY)
        if not self._table.is_plain or self._table.columns != expected:
            return ()
        groups = list(due(self._table.files()))
        merged = list(run.merge(start(), groups)) if groups else []
        return tuple(sorted({group[0].day.isoformat() for group in merged if group[0].day is not None}))


def _stamps(log: CommitLog) -> tuple[tuple[int, ...], ...]:
    """What the segments' files look like; not the same after somebody has written to one of them."""
    found = []
    for segment in log.segments:
        try:
            status = segment.path.stat()
        except OSError:
            continue
        found.append((segment.base, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _check_place(table: Path, settings: StoreSettings) -> None:
    """Refuse a place that isn't one for Spark and deltalake alike, or that has to do with the store.

    A broker takes directories in the store for its own; in one around it, VACUUM would take the log's
    segments for files that nobody needs.
    """
    if is_url(table):
        _check_url(url_of(table), settings)
        return
    if _NO_PATH.search(str(table)) or _NO_PATH.search(str(table.absolute())):
        raise SettingsError(
            "the table needs a directory, with a name that Delta Lake leaves as it is",
            path=table,
            expected="a path in UTF-8 without %XX, backslashes and control characters, mounted where need be",
            found=str(table),
            next_step="Name another directory",
        )
    check_outside("a table", table, settings.directories, "Name another directory")
    for directory in settings.directories:
        if lies_in(directory, table):
            raise OutputError(
                "the store lies in the table's directory",
                path=table,
                expected=f"a directory that {directory} isn't in",
                next_step="Name another directory",
            )


def _check_url(url: str, settings: StoreSettings) -> None:
    if url.lower().startswith(f"{HDFS}:"):
        raise UnsupportedError(
            "no table can be written to HDFS",
            path=url,
            expected="a directory, or a URL of an object store",
            next_step="Mount it, or take an object store",
        )
    store = remote_store(settings.root)
    theirs = None if store is None else f"{store.url.split('://', 1)[1]}/"
    ours = f"{url.split('://', 1)[1]}/"
    if theirs is not None and (ours.startswith(theirs) or theirs.startswith(ours)):
        raise OutputError(
            "store and table can't be inside each other",
            path=url,
            expected=f"a place apart from {with_urls(str(settings.root))}",
            next_step="Name another one",
        )


# A file and a commit for each of a tail's batches would be too many to read. The table follows in a thread of
# its own, up to where the tail has committed, with all that has come since in one.

#: From the end of one run to the next, seconds.
EVERY_SECONDS = 60.0
#: Bytes of log in one step: a tail that is asked to end waits for the one that is under way.
MOST_BYTES = 1 << 30


class Watch(Protocol):
    """What reports the state of the table."""

    def succeeded(self) -> None:
        """After a step that brought the table up to date, and kept it up."""

    def failed(self, error: BaseException) -> None:
        """After a step that didn't."""


class CatalogBeside(Catalog):
    """A table that follows a tail."""

    def __init__(self, options: CatalogOptions) -> None:
        super().__init__(options, is_told=True)
        self.path = options.table
        self._committed: Callable[[], int] = lambda: 0
        self._runner: Runner | None = None
        self._watch: Watch | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reput-catalog", daemon=True)
        self._done: Cataloged | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        super().__exit__(kind, error, trace)

    def start(self, runner: Runner, committed: Callable[[], int], watch: Watch) -> None:
        """Begin to follow; ``committed`` tells the physical offset up to which the tail has committed."""
        self._committed = committed
        self._watch = watch
        self._runner = runner
        self._thread.start()

    def finish(self) -> Cataloged:
        """Bring the table up to where the tail has ended, and tell what came of all runs.

        So that a tail ends soon, one more step is made, of :data:`MOST_BYTES` of log. What is left is for the
        next run. After an error the table is as of its last commit.
        """
        self._end()
        done = self._advance()
        left = self._committed() - done.end
        if left > 0:
            _LOG.warning("the table of messages is %d bytes of log behind; the next run continues", left)
        return done

    def _end(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            try:
                self._catch_up()
            except Exception as error:  # noqa: BLE001 - whatever it is: the tail continues, and so must the thread
                _LOG.warning("the table of messages stays behind: %s", error)

    def _catch_up(self) -> None:
        reached = -1
        while not self._stop.is_set():
            end = self._advance().end
            if end <= reached or end >= self._committed():
                return  # a log that was cut ends before what was committed
            reached = end

    def _advance(self) -> Cataloged:
        runner, watch = self._runner, self._watch
        if runner is None or watch is None:
            raise ValueError("it was not started")
        try:
            done = self.advance(lambda: runner, self._committed, MOST_BYTES)
        except Exception as error:
            watch.failed(error)
            raise
        watch.succeeded()
        self._done = done if self._done is None else self._done.then(done)
        return self._done


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one store."""

    store: str  # its directory or URL
    result: Cataloged | ReputError  # what was done, or why it was refused or failed

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        facts = self.result.document() if isinstance(self.result, ReputError) else self.result.to_dict()
        return {"next_steps": [], **facts, "store": self.store, "exit_code": self.exit_code}

    @property
    def exit_code(self) -> int:
        """0, 1 where the table lacks something of the log, 2 where the store was refused or failed."""
        return 2 if isinstance(self.result, ReputError) else self.result.exit_code


def catalog_many(
    stores: Sequence[CatalogOptions],
    start: Callable[[], Runner],
    listener: Callable[[int, int, int], None] = lambda *_: None,
    told: Callable[[Outcome, int], None] = lambda *_: None,
) -> list[Outcome]:
    """Bring a table up to the ends of several logs; a store that is refused or fails stops no other.

    ``told`` gets the outcome of each store, and how many are left. Raises SettingsError where two of the
    stores say that they are one broker's.
    """
    results: dict[int, Cataloged | ReputError] = {}
    planned: dict[int, Catalog] = {}
    claimed: dict[Broker, CatalogOptions] = {}
    for number, options in enumerate(stores):
        try:
            one = Catalog(options, listener=listener, either=True)
            one.find_log()
            broker = one.broker()
        except ReputError as error:
            results[number] = error
            continue
        planned[number] = one
        if broker is not None and (other := claimed.setdefault(broker, options)) is not options:
            raise SettingsError(
                "two stores say that they are one broker's",
                path=with_urls(str(options.store)),
                expected="each broker's messages from one store: its master's, or a slave's",
                found=f"{broker} here and in {with_urls(str(other.store))}",
                next_step="Leave one out, or give each its broker.conf, or cluster and broker in stores.toml",
            )
    for number, options in enumerate(stores):
        if number in planned:
            results[number] = _done(planned[number], options, start)
        told(Outcome(with_urls(str(options.store)), results[number]), len(stores) - number - 1)
    return [Outcome(with_urls(str(one.store)), results[number]) for number, one in enumerate(stores)]


def _done(one: Catalog, options: CatalogOptions, start: Callable[[], Runner]) -> Cataloged | ReputError:
    try:
        with one:
            return one.advance(start)
    except ReputError as error:
        return error
    except Exception as bug:  # noqa: BLE001 - of one store: the others continue
        return unforeseen(bug, options.store)
