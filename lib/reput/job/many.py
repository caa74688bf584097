"""Many stores: lists of them, by ``stores.toml`` or the STORE arguments of a command, and their jobs.

Some run at a time; a failure doesn't stop the others.
"""

from __future__ import annotations

import ipaddress
import os
import posixpath
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from reput.config.dialect import dialect
from reput.errors import ReputError, Result, SettingsError
from reput.job.options import RebuildOptions
from reput.newer_python import tomllib
from reput.remote.client import check_here, is_url, url_of
from reput.store.listing import nearest
from reput.unforeseen import unforeseen
from reput.verify.plan import VerifyOptions

_ON_HOST = re.compile(r"(?P<host>\[[^\]/]*\]|[^/:]*):(?P<path>.*)", re.DOTALL)
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """A store's place."""

    path: Path  # its directory; absolute and without ``..`` if it is on a host. Of a URL, what ``Path`` makes
    #: a name in lower case, or an address; None for this process's own file system, and for a URL
    host: str | None = None

    def __str__(self) -> str:
        if self.host is None:
            return self.url or str(self.path)
        return f"[{self.host}]:{self.path}" if ":" in self.host else f"{self.host}:{self.path}"

    @property
    def url(self) -> str | None:
        """The store's URL, if it is in an object store or in HDFS."""
        return url_of(self.path) if self.host is None and is_url(self.path) else None

    @property
    def is_here(self) -> bool:
        """Whether it is a directory of this host."""
        return self.host is None and self.url is None

    @classmethod
    def parse(cls, word: str) -> Place:
        """The place that a word names: ``PATH``, ``HOST:/PATH``, ``[IPV6]:/PATH`` or a URL.

        As with scp, a colon ahead of the first slash ends a host; nothing is looked up.
        """
        # A host's path may begin with two slashes; a scheme that nobody knows is a host, then.
        if "://" in word and is_url(word):
            return cls(Path(url_of(word)))
        found = _ON_HOST.fullmatch(word)
        if found is None:
            return cls(Path(word))
        host, path = _host(found["host"]), found["path"]
        if host is None or not path.startswith("/"):
            raise SettingsError(
                "a store's place can't be understood",
                expected="HOST:/PATH, where /PATH begins at the host's root",
                found=word,
                next_step=f"If it is a path on this host: ./{word}",
            )
        if _is_everywhere(host):
            raise SettingsError(
                "each host calls itself so",
                expected="a name or an address by which other hosts know it",
                found=host,
                next_step="A path without a host is one here",
            )
        return cls(Path("/" + posixpath.normpath(path).lstrip("/")), host)


def _host(text: str) -> str | None:
    """A name or an address in its usual spelling; None if it is neither."""
    bare = text.removeprefix("[").removesuffix("]")
    with suppress(ValueError):
        return str(ipaddress.ip_address(bare))
    name = bare.lower().removesuffix(".")
    return name if bare == text and _NAME.fullmatch(name) else None


def _is_everywhere(host: str) -> bool:
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_unspecified
    return host == "localhost" or host.endswith(".localhost")


SUFFIX = ".toml"
_TABLE, _PLACE = "store", "place"
#: May stand at the top, too, for all stores that don't say otherwise.
_COMMON = ("cluster", "broker", "broker_conf", "rocketmq_version")
_KEYS = (_PLACE, *_COMMON)


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A store, and what is said of it."""

    place: Place  # where it is; a path here is absolute if it comes from a file
    #: cluster, broker: ``brokerClusterName`` and ``brokerName``; None where nothing is said
    cluster: str | None = None
    broker: str | None = None
    #: the broker's configuration file, where the store is, or here for a URL. ``{store}`` and
    #: ``{host}`` in it stand for the store's
    broker_conf: Path | None = None
    rocketmq_version: str | None = None  # the release that wrote the store

    @classmethod
    def parse(cls, word: str) -> StoreEntry:
        """The store that an argument names; nothing else is known of it."""
        return cls(Place.parse(word))


def listed(words: Iterable[str]) -> list[StoreEntry]:
    """The stores that arguments name: each a place, or a file whose name ends in ``.toml``."""
    found: list[StoreEntry] = []
    for word in words:
        place = Place.parse(word)
        if place.is_here and word.endswith(SUFFIX):
            found += read_stores(Path(word))
        else:
            found.append(StoreEntry(place))
    return found


def read_stores(path: Path) -> list[StoreEntry]:
    """The stores of a ``stores.toml``, one at least; no store is looked at.

    Relative paths in it begin at its directory.
    """
    document = _document(path)
    _check_keys(path, "", document, (_TABLE, *_COMMON))
    common = {key: _text(path, "", key, document[key]) for key in _COMMON if key in document}
    tables = document.get(_TABLE)
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
        raise _refused(path, "it lists no stores", f"[[{_TABLE}]] tables, one per store", _shown(tables))
    entries, seen = [], dict[str, int]()
    for number, table in enumerate(tables, 1):
        where = f"[[{_TABLE}]] {number}"
        _check_keys(path, where, table, _KEYS)
        said = common | {key: _text(path, where, key, value) for key, value in table.items()}
        if _PLACE not in said:
            raise _refused(path, f"{where} has no {_PLACE}", f"{_PLACE} = {_PLACES}", "none")
        entry = _entry(path, where, said)
        earlier = seen.setdefault(str(entry.place), number)
        if earlier != number:
            raise _refused(
                path,
                "a store is listed twice",
                "each store once",
                f"{entry.place} in [[{_TABLE}]] {earlier} and {number}",
            )
        entries.append(entry)
    return entries


_PLACES = "a PATH, HOST:/PATH or URL"


def _document(path: Path) -> dict[str, Any]:
    expected = f"TOML with [[{_TABLE}]] tables"
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        found = error.strerror or str(error)
        raise _refused(path, "the list of stores can't be read", expected, found) from error
    except UnicodeDecodeError as error:
        found = f"byte {error.start} isn't UTF-8"
        raise _refused(path, "the list of stores can't be read", expected, found) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _refused(path, "the list of stores isn't TOML", expected, str(error)) from error


def _check_keys(path: Path, where: str, table: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            place = f" in {where}" if where else ""
            meant = nearest(key, known)
            raise _refused(
                path,
                f"a key is unknown{place}",
                ", ".join(known),
                repr(key),
                None if meant is None else f"Did you mean {meant}?",
            )


def _text(path: Path, where: str, key: str, value: object) -> str:
    """A value that is a string with something in it."""
    if isinstance(value, str) and value.strip() and "\0" not in value:
        return value
    place = f" in {where}" if where else ""
    raise _refused(path, f"{key}{place} can't be used", f'a string: {key} = "…"', _shown(value))


def _shown(value: object) -> str:
    match value:
        case None:
            return "none"
        case dict():
            return "one table"
        case list():
            return "an array" if value else "an empty array"
        case str():
            return repr(value)
        case bool():
            return str(value).lower()
    return str(value)


def _entry(path: Path, where: str, said: dict[str, str]) -> StoreEntry:
    directory = Path(os.path.abspath(path)).parent
    try:
        place = Place.parse(said[_PLACE])
        if (version := said.get("rocketmq_version")) is not None:
            dialect(version)
    except SettingsError as error:
        raise _refused(
            path, f"{where}: {error.problem}", error.expected or _PLACES, error.found, error.next_step
        ) from error
    if place.is_here:
        place = Place(Path(os.path.abspath(directory / place.path)))
    conf = said.get("broker_conf")
    if conf is not None and place.host is None and not conf.startswith("{store}"):
        conf = str(directory / conf)
    return StoreEntry(
        place,
        said.get("cluster"),
        said.get("broker"),
        None if conf is None else Path(conf),
        version,
    )


def _refused(
    path: Path, problem: str, expected: str, found: str | None, next_step: str | None = None
) -> SettingsError:
    return SettingsError(problem, path=path, expected=expected, found=found, next_step=next_step)


REFUSED = 2
#: Exit codes from good to bad, by what an operator has to do: nothing; nothing more; mend; find out what a
#: start would do; put right by hand what stops it; find out why reput was refused or failed.
_BAD = (0, 1, 3, 5, 4, REFUSED)
_STORE, _HOST = "{store}", "{host}"
#: No host is called so.
_URLS = ":"
_Made = TypeVar("_Made")
_Options = TypeVar("_Options", RebuildOptions, VerifyOptions)
Options: TypeAlias = RebuildOptions | VerifyOptions


@dataclass(frozen=True, slots=True)
class Job:
    """A job on one store."""

    place: Place  # the store's
    options: Options  # of the job; their paths are on the store's host
    cluster: str | None = None  # cluster, broker: what the store is called, where that was said
    broker: str | None = None

    @property
    def is_check(self) -> bool:
        """Nothing is written."""
        return isinstance(self.options, VerifyOptions)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one store."""

    job: Job  # what was requested
    result: Result | ReputError  # of the job, or why it was refused or failed
    seconds: float  # wall time, while others ran

    @property
    def exit_code(self) -> int:
        """The exit code of ``reput rebuild`` or ``reput check`` for this store alone."""
        return REFUSED if isinstance(self.result, ReputError) else self.result.exit_code

    def to_dict(self) -> dict[str, object]:
        """The outcome as a JSON-ready mapping: the result's, or the error's."""
        place, options = self.job.place, self.job.options
        facts: dict[str, object] = {
            "exit_code": self.exit_code,
            "store": place.url or str(place.path),
            "host": place.host,
            "seconds": self.seconds,
        }
        if isinstance(options, RebuildOptions):
            facts["output"] = str(options.out)
        if not isinstance(self.result, ReputError):
            return {"next_steps": [], **self.result.to_dict(), **facts}
        return {**facts, **self.result.document(), "host": self.result.host or place.host}


def badness(code: int) -> int:
    """How bad an exit code is, among those of other stores; 0 where nothing is to be done."""
    return _BAD.index(code)


def worst(codes: Iterable[int]) -> int:
    """The exit code of several stores, of which there is one at least."""
    return max(codes, key=badness)


def plan_rebuilds(stores: Sequence[StoreEntry], out_root: Path, common: RebuildOptions) -> list[Job]:
    """A rebuild of each store; outputs lie below ``out_root`` as a host's stores in their common directory.

    ``/brokers/a/store`` and ``/brokers/b/store`` go to ``a/store`` and ``b/store``, a single one to its name.
    What is on a host isn't looked at.

    What is said of a store itself comes before the ``common`` options. In ``out_root`` and the path of
    broker.conf ``{host}`` stands for each store's host; in the latter ``{store}`` for its path.

    A store that is named twice, is inside another one or lies elsewhere is refused.
    """
    jobs = []
    for entry in stores:
        if (url := entry.place.url) is not None:
            check_here(url)
    for entry, below in _apart(stores):
        options = replace(
            common,
            store=entry.place.path,
            out=_filled("--out-root", out_root, entry.place) / below,
            conf_by_hand=common.conf_by_hand or entry.broker_conf is not None,
            version_by_hand=common.version_by_hand or entry.rocketmq_version is not None,
        )
        jobs.append(Job(entry.place, _said(options, entry)))
    return jobs


def plan_checks(stores: Sequence[StoreEntry], common: VerifyOptions) -> list[Job]:
    """A check of each store; ``{store}`` and ``{host}`` in the path of broker.conf as for rebuilds."""
    return [
        Job(
            entry.place,
            _said(replace(common, store=entry.place.path), entry),
            entry.cluster,
            entry.broker,
        )
        for entry, _ in _apart(stores)
    ]


def _apart(stores: Sequence[StoreEntry]) -> Iterator[tuple[StoreEntry, Path]]:
    """Each store, and where it lies below the common directory of its host's stores."""
    # Where a path on a host leads is that host's affair: it was made absolute without a look at any.
    entries = [
        replace(one, place=Place(Path(os.path.abspath(one.place.path)))) if one.place.is_here else one
        for one in stores
    ]
    places = [one.place for one in entries]
    parents: dict[str | None, Path] = {}
    for where in {_where(one) for one in places}:
        paths = sorted(one.path for one in places if _where(one) == where)
        for path, other in pairwise(paths):
            if other.is_relative_to(path):
                raise SettingsError(
                    "a store is named twice" if path == other else "a store is inside another one",
                    path=other if where != _URLS else url_of(other),
                    found=str(path) if where != _URLS else url_of(path),
                    next_step="Name each store once",
                    host=None if where == _URLS else where,
                )
        parents[where] = Path(os.path.commonpath([path.parent for path in paths]))
    for entry in entries:
        yield entry, entry.place.path.relative_to(parents[_where(entry.place)])


def _where(place: Place) -> str | None:
    return place.host if place.url is None else _URLS


def _said(options: _Options, entry: StoreEntry) -> _Options:
    """Options for a store: what is said of it itself, else of all."""
    conf = entry.broker_conf or options.broker_conf
    return replace(
        options,
        broker_conf=None if conf is None else _filled("--broker-conf", conf, entry.place),
        rocketmq_version=entry.rocketmq_version or options.rocketmq_version,
    )


def _filled(option: str, path: Path, place: Place) -> Path:
    """A path for a store, made from one for all."""
    text = str(path)
    if place.url is not None and _STORE in text:
        raise SettingsError(
            f"{_STORE} in {option} stands for a path",
            path=place.url,
            expected="a file here, for each store in an object store or HDFS",
            found=text,
        )
    if place.host is None and _HOST in text:
        raise SettingsError(
            f"{_HOST} in {option} stands for a store's host",
            path=str(place),
            expected="HOST:/PATH",
            found="a store without a host",
        )
    filled = Path(text.replace(_STORE, str(place.path)).replace(_HOST, place.host or ""))
    if place.host is not None and not filled.is_absolute():
        raise SettingsError(
            f"{option} is a path on {place.host}, where no directory is the current one",
            expected="an absolute path",
            found=text,
        )
    return filled


def run_many(
    jobs: Sequence[Job],
    work: Callable[[Job], Result],
    at_once: int = 1,
    listener: Callable[[Outcome], None] = lambda _outcome: None,
) -> list[Outcome]:
    """Do each job, ``at_once`` at a time and one at a time on a host; a failure doesn't stop the others.

    They begin in the order given, which is that of the result, except that one whose host is busy lets others
    go ahead. An interrupt only ends the waiting: the caller's process has to end, too, as after a crash.

    ``work`` is called in threads; ``listener`` gets each outcome as soon as it is known, one at a time.
    """
    todo = _Todo(jobs)
    done: queue.SimpleQueue[tuple[int, Outcome] | None] = queue.SimpleQueue()

    def work_off() -> None:
        try:
            while (number := todo.take()) is not None:
                with todo.held(number):
                    done.put((number, _done(jobs[number], work)))
        finally:
            done.put(None)  # whatever ended it, this thread has no more results

    threads = min(at_once, len(jobs))
    for number in range(threads):
        # Not joined: an interrupt doesn't wait for jobs under way.
        threading.Thread(target=work_off, name=f"reput-store-{number}", daemon=True).start()
    outcomes: dict[int, Outcome] = {}
    while threads and len(outcomes) < len(jobs):
        ended = done.get()
        if ended is None:
            threads -= 1
            continue
        number, outcome = ended
        outcomes[number] = outcome
        listener(outcome)
    for number, job in enumerate(jobs):
        if number not in outcomes:
            lost = ReputError(
                "its thread ended without a result",
                path=job.place.path,
                host=job.place.host,
                next_step="Run the same command again with this store alone: it says why",
            )
            outcomes[number] = Outcome(job, lost, 0.0)
            listener(outcomes[number])
    return [outcomes[number] for number in sorted(outcomes)]


class Once(Generic[_Made]):
    """What all threads share, such as a session: made by the first that needs it."""

    def __init__(self, make: Callable[[], _Made]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[_Made] = []

    def __call__(self) -> _Made:
        """It; what making it raises is raised each time."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]


class _Todo:
    """The jobs that no thread has taken yet, and the hosts that are at work."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._hosts = [job.place.host for job in jobs]
        self._left = list(range(len(jobs)))
        self._busy: set[str] = set()
        self._changed = threading.Condition()

    def take(self) -> int | None:
        """The next job whose host is idle, as soon as there is one; None when all are taken."""
        with self._changed:
            while self._left:
                for number in self._left:
                    host = self._hosts[number]
                    if host not in self._busy:
                        self._left.remove(number)
                        if host is not None:
                            self._busy.add(host)
                        return number
                self._changed.wait()
        return None

    @contextmanager
    def held(self, number: int) -> Iterator[None]:
        """Keep the host of a job that was taken until the block ends."""
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(self._hosts[number] or "")
                self._changed.notify_all()


def _done(job: Job, work: Callable[[Job], Result]) -> Outcome:
    began = time.perf_counter()
    result: Result | ReputError
    try:
        result = work(job)
    except ReputError as refused:
        result = refused
    except BaseException as bug:  # noqa: BLE001 - of one store, an exit too: the others continue
        result = unforeseen(bug, job.place.path)
    return Outcome(job, result, time.perf_counter() - began)
