"""What a PATH means: a store, a directory of it, or one file, where it belongs or copied away from there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from reput.config.log_places import absolute
from reput.config.settings import StoreSettings
from reput.config.stand_in import here
from reput.derived.files import in_order, numbered_files, read_bytes
from reput.derived.rocksdb import kept_open, queues_with_units
from reput.errors import StoreError, UnsupportedError
from reput.format import commitlog, dledger, names
from reput.format.checkpoint import FIELDS, LENGTH, StoreCheckpoint
from reput.format.dtypes import IN_FILES, IN_ROCKSDB, PLAIN, Form
from reput.format.names import QueueBytes
from reput.log.segments import MAX_BASE, CommitLog, Segment, discover, map_segment, without_unwritten_end
from reput.log.walk import Frame, frame
from reput.rocksdb import is_database
from reput.store.reading import stat_of, unreadable
from reput.words import next_command

#: How far up a file of a store is: a file of a queue lies deepest.
_DEEPEST = 4


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A commit log, or some of its segments."""

    settings: StoreSettings  # those of its store, as far as they are known
    log: CommitLog  # the segments; none where it may be empty, and can't be read yet
    can_grow: bool  # a whole directory was named, so that new segments can be seen
    followed: bool = False  # other segments follow, which weren't asked for


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """The files of one queue."""

    topic: str | None  # topic, queue_id: as the directories are named; None where a file lies elsewhere
    queue_id: int | None
    #: (path, byte offset of the first byte in the queue, bytes), in the queue's order
    files: tuple[tuple[Path, int, int], ...]
    form: Form | None  # None where only the bytes can tell
    ext: Path | None  # where its records of consumequeue_ext would be
    database: Path | None = None  # the RocksDB that has it instead of files

    @property
    def keys(self) -> tuple[Path, QueueBytes]:
        """Of a queue in RocksDB the database, and topic and queueId as keys have them."""
        topic = (self.topic or "").encode("utf-8", "surrogateescape")
        return self.database or Path(), (topic, self.queue_id or 0)


def log_place(
    path: Path, broker_conf: Path | None, version: str | None, *, may_be_empty: bool = False
) -> LogPlace:
    """The commit log at a path: a store, a directory of segments, or a segment.

    ``broker_conf`` and ``version``: see :meth:`StoreSettings.load`. ``may_be_empty``: a directory may have no
    segments yet, since a broker is starting; the log has none then.

    StoreError where it is missing, or a file's place in the log can't be told. SettingsError,
    UnsupportedError: see :meth:`StoreSettings.load`.
    """
    path = _looked_at(here(path, derived=False), "commitlog", broker_conf, version)
    if path.is_file():
        settings = _alone(
            StoreSettings.load(path.parent, broker_conf, version, dledger=True, rocksdb=True), path.parent
        )
        log = _one_segment(path, settings)
        return LogPlace(settings, log, can_grow=False, followed=_is_followed(log.segments[0]))
    own = path / names.COMMIT_LOG
    if (path.name == names.COMMIT_LOG and not own.is_dir()) or numbered_files(path):
        settings = _alone(StoreSettings.load(path, broker_conf, version, dledger=True, rocksdb=True), path)
        log = _discovered(settings, may_be_empty=may_be_empty)
        return LogPlace(settings, replace(log, entries=any(map(_begins_with_entry, log.segments))), True)
    settings = StoreSettings.load(path, broker_conf, version, dledger=True, rocksdb=True)
    if broker_conf is None and not own.is_dir():
        raise StoreError(
            "there is no commit log here",
            path=path,
            expected=f"a store with {names.COMMIT_LOG}/, a directory of segments, or a segment",
            found="none of these",
            next_step="Check the path. Where the log is elsewhere, or DLedger writes it, give broker.conf, "
            "too, or the directory with the segments",
        )
    return LogPlace(settings, _discovered(settings, may_be_empty=may_be_empty), can_grow=True)


def _discovered(settings: StoreSettings, *, may_be_empty: bool) -> CommitLog:
    try:
        return without_unwritten_end(discover(settings))
    except StoreError:
        if not may_be_empty:
            raise
        return CommitLog((), 0, entries=settings.entries)


def _looked_at(path: Path, asked: str, broker_conf: Path | None = None, version: str | None = None) -> Path:
    """A path made absolute, that leads somewhere.

    Where a store has files of another sort it is refused: their bytes would be shown as what they aren't.

    StoreError where it leads nowhere, or can't be followed, or other files lie there: names what shows them.
    """
    path = absolute(path)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            "there is nothing here",
            path=path,
            expected=_SORTS[asked][1],
            found="no such file or directory",
            next_step="Check the path",
        ) from error
    except OSError as error:
        raise unreadable("this", path, error) from error
    sort = _sort(path)
    if sort in (None, asked):
        return path
    if sort != "index":
        broker_conf = version = None  # the others take none, or need none
    command = next_command("dump", sort, str(path), broker_conf=broker_conf, rocketmq_version=version)
    raise StoreError(
        "these are files of another sort",
        path=path,
        expected=_SORTS[asked][0],
        found=_SORTS[sort][0],
        next_step=_with_their_units(path) if _is_ext(path) else f"`{command}` shows them",
    )


def _is_ext(path: Path) -> bool:
    """Whether a path is one of records that units of queues lead to, not one of queues."""
    kind = next((name for name in reversed(path.parts) if name in names.QUEUES), None)
    return kind == names.CONSUME_QUEUE_EXT


def _with_their_units(path: Path) -> str:
    """What shows such records."""
    root = next(one for one in (path, *path.parents) if one.name == names.CONSUME_QUEUE_EXT)
    inner = (path.parent if path.is_file() else path).relative_to(root)
    units = root.with_name(names.CONSUME_QUEUE) / inner
    if not units.is_dir():
        return f"A dump of their store's {names.CONSUME_QUEUE}/ shows each with the unit that leads there"
    return f"`{next_command('dump', 'consumequeue', str(units))}` shows each with the unit that leads there"


#: What each command shows, and where that may be.
_SORTS = {
    "commitlog": ("the commit log", "a store, a directory of segments, or a segment"),
    "consumequeue": ("consume queues", "a store, consumequeue/, a topic in it, a queue, or a file of one"),
    "index": ("index files", "a store, index/, an index file, or rocksdbstore/"),
    "checkpoint": ("the checkpoint", "a store with a checkpoint, or a checkpoint"),
}


def _sort(path: Path) -> str | None:
    """Which command shows a path, by where it lies in its store; None where that doesn't tell."""
    if path.is_file():
        if names.parse_offset_name(path.name) is not None:
            if path.parents[min(2, len(path.parents) - 1)].name in names.QUEUES:
                return "consumequeue"
            return "commitlog" if path.parent.name == names.COMMIT_LOG else None
        if path.parent.name == names.INDEX and _is_index(path.name):
            return "index"
        return "checkpoint" if path.name == names.CHECKPOINT else None
    if any((path / name).is_dir() for name in (names.COMMIT_LOG, *names.QUEUES, names.INDEX)):
        return None  # a store, whatever it is called
    if any(one.name in names.QUEUES for one in (path, *path.parents[:2])):
        return "consumequeue"
    sorts = {names.COMMIT_LOG: "commitlog", names.INDEX: "index", names.ROCKSDB_STORE: "index"}
    return sorts.get(path.name)


def _alone(settings: StoreSettings, directory: Path) -> StoreSettings:
    """Of segments that were named themselves: nothing else of a store is asked."""
    return replace(settings, commit_log_dirs=(directory,), dledger=None)


def _one_segment(path: Path, settings: StoreSettings) -> CommitLog:
    length = stat_of("the segment", path).st_size
    if not length:
        raise StoreError(
            "the segment is empty",
            path=path,
            expected="records",
            found="0 bytes",
            next_step="Check the path",
        )
    base = names.parse_offset_name(path.name)
    base = None if base is None or base > MAX_BASE else base
    one = Segment(path, 0 if base is None else base, length)
    entries = _begins_with_entry(one)
    if base is None:
        one = replace(one, base=_base_by_first_record(one, settings, entries=entries))
    size = max(settings.segment_size or 0, length)
    return CommitLog((one,), size, entries=entries)


def _is_followed(one: Segment) -> bool:
    """Whether the segment behind this one lies beside it, and something was written to it."""
    other = one.path.with_name(names.offset_name(one.base + one.length))
    if names.parse_offset_name(one.path.name) is None or not other.is_file() or not other.stat().st_size:
        return False
    head = map_segment(other, min(other.stat().st_size, commitlog.BLANK_LENGTH))
    return bool(head.any())


def _begins_with_entry(segment: Segment) -> bool:
    head = map_segment(segment.path, min(segment.length, commitlog.BLANK_LENGTH)).tobytes()
    magic, second = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
    return magic == dledger.ENTRY_MAGIC and second not in dledger.RECORD_MAGICS


def _base_by_first_record(segment: Segment, settings: StoreSettings, *, entries: bool) -> int:
    """Where a segment without its name begins in the log: its first record says so."""
    data = map_segment(segment.path, segment.length)
    at = dledger.POSITION if entries else commitlog.PHYSICAL_OFFSET
    base = int.from_bytes(data[at : at + 8].tobytes(), "big")
    if isinstance(frame(data.data, base, 0, settings.dialect.topic_length_v2, entries), Frame):
        return base
    raise StoreError(
        "it can't be told where this file begins in the log",
        path=segment.path,
        offset=0,
        expected="a name of 20 digits, or a whole record to begin with",
        found=f"the name {segment.path.name}, and no record",
        next_step="Give the file its name back: the physical offset of its first byte, in 20 digits",
    )


def queue_places(path: Path) -> Iterator[QueuePlace]:
    """The queues at a path: a store, ``consumequeue/``, a topic in it, a queue, or one file.

    StoreError where it is missing, or a file's place in its queue can't be told. UnsupportedError where these
    are files of another sort.
    """
    path = _looked_at(here(path, derived=True), "consumequeue")
    if _is_ext(path):
        raise UnsupportedError(
            "these are what units point to, no units", path=path, next_step=_with_their_units(path)
        )
    if path.is_file():
        base = names.parse_offset_name(path.name)
        if base is None:
            raise StoreError(
                "it can't be told where this file begins in its queue",
                path=path,
                expected="a name of 20 digits",
                found=path.name,
                next_step="Give the file its name back: the byte offset of its first unit in the queue, "
                "in 20 digits",
            )
        yield _queue(path.parent, [(path, base, path.stat().st_size)])
        return
    found = False
    for database in databases(path):
        found = True
        for name, queue_id in queues_with_units(kept_open(database)):
            yield QueuePlace(
                name.decode("utf-8", "surrogateescape"), queue_id, (), IN_ROCKSDB, None, database
            )
    for one in _below(path) if not is_database(path) or path.name == names.CONSUME_QUEUE else ():
        found = True
        yield one
    if not found:
        raise StoreError(
            "there is no consume queue here",
            path=path,
            expected="a store, consumequeue/, a topic in it, or a queue with files of 20 digits",
            found="none of these",
            next_step="Check the path",
        )


def databases(path: Path) -> list[Path]:
    """The RocksDBs of queues at a path: a store's, or the path itself."""
    places = (path, path / names.CONSUME_QUEUE, path / names.CONSUME_QUEUE_ROCKSDB)
    return [place for place in places if is_database(place)]


def _below(path: Path) -> Iterator[QueuePlace]:
    roots = [path / name for name in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)]
    if any(root.is_dir() for root in roots):
        for root in roots:
            yield from _topics(root)
        return
    if files := numbered_files(path):
        yield _queue(path, files)
        return
    one_topic = list(_queues(path))
    yield from one_topic or _topics(path)


def _topics(root: Path) -> Iterator[QueuePlace]:
    for topic in in_order(root):
        if topic.is_dir:
            yield from _queues(topic.path)


def _queues(topic: Path) -> Iterator[QueuePlace]:
    numbered = [one for one in in_order(topic) if one.is_dir and names.is_queue_id(one.path.name)]
    for one in sorted(numbered, key=lambda each: int(each.path.name)):
        if files := numbered_files(one.path):
            yield _queue(one.path, files)


def _queue(directory: Path, files: list[tuple[Path, int, int]]) -> QueuePlace:
    if not names.is_queue_id(directory.name):
        return QueuePlace(None, None, tuple(files), None, None)
    queue_id = int(directory.name)
    topic, kind = directory.parent.name, directory.parent.parent
    form = {one.directory: one for one in IN_FILES}.get(kind.name)
    ext = names.queue_ext_directory(kind.parent, topic, queue_id) if form == PLAIN else None
    return QueuePlace(topic, queue_id, tuple(files), form, ext)


def index_files(path: Path) -> list[Path]:
    """The index files at a path: a store, ``index/``, or one file; none where RocksDB alone has the index."""
    path = _looked_at(path, "index")
    if path.is_file():
        return [path]
    inner = path / names.INDEX
    directory = inner if inner.is_dir() else path
    found = [entry.path for entry in in_order(directory) if not entry.is_dir and _is_index(entry.path.name)]
    if not found and index_database(path) is None:
        raise StoreError(
            "there is no index file here",
            path=directory,
            expected="files named by a time of 17 digits",
            found="none",
            next_step="Check the path; a broker with messageIndexEnable=false writes none",
        )
    return found


def index_database(path: Path) -> Path | None:
    """The RocksDB of the index at a path, a store or the database itself; None without one."""
    path = absolute(path)
    places = (path / names.ROCKSDB_STORE, *([path] if path.name == names.ROCKSDB_STORE else []))
    return next((place for place in places if is_database(place)), None)


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdecimal() and names.parse_offset_name(name) is None


def checkpoint_file(path: Path) -> Path:
    """The checkpoint at a path: a store, or the file."""
    path = absolute(here(path, derived=False))
    inner = path / names.CHECKPOINT if path.is_dir() else path
    file = _looked_at(inner, "checkpoint")
    if not file.is_file():
        raise StoreError(
            "this is no checkpoint",
            path=file,
            expected="a file",
            found="none",
            next_step="Check the path",
        )
    return file


#: By the names of docs/formats/checkpoint.md; the first three are times in ms, the others physical offsets.
CHECKPOINT_FIELDS = (
    "physicMsgTimestamp",
    "logicsMsgTimestamp",
    "indexMsgTimestamp",
    "masterFlushedOffset",
    "confirmPhyOffset",
    "logicsPhysicalOffset",
)
TIMES = 3


def read_checkpoint(path: Path) -> dict[str, int]:
    """The fields of a checkpoint by name, in the order of the file."""
    data = read_bytes("the checkpoint", path, 0, LENGTH + 1)
    store = store_of(path)
    if len(data) != LENGTH:
        raise StoreError(
            "this isn't a whole checkpoint",
            path=path,
            expected=f"{FIELDS} fields in {LENGTH} bytes",
            found="more" if len(data) > LENGTH else f"{len(data)} bytes",
            next_step=f"`{next_command('check', store)}` says what a broker makes of it when it starts"
            if store is not None
            else "A check of its store says what a broker makes of it when it starts",
        )
    return dict(zip(CHECKPOINT_FIELDS, astuple(StoreCheckpoint.decode(data)), strict=True))


def store_of(path: Path) -> Path | None:
    """The store that a path is, or lies in; None where that isn't clear, as for a file that was copied away.

    ``path``: absolute.
    """
    derived = (*names.QUEUES, names.CONSUME_QUEUE_ROCKSDB, names.INDEX, names.ROCKSDB_STORE)
    parts = (*derived, names.COMMIT_LOG, names.CHECKPOINT)
    above = [path, *path.parents][: _DEEPEST + 1]
    for below, root in zip([None, *above], above, strict=False):
        if (below is None or below.name in parts) and (root / names.COMMIT_LOG).is_dir():
            return root
    return None
