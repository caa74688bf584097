"""Queues or an index that are missing altogether, and an index database that doesn't open.

No start tells of these, and of the first only a comparison with the log, which isn't always made.
"""

from __future__ import annotations

from collections.abc import Iterator

from reput.broker.snapshot import Snapshot
from reput.config.settings import StoreSettings
from reput.derived.rocksdb import open_index
from reput.errors import Problem, StoreError, UnsupportedError
from reput.format import commitlog, names, properties
from reput.log.segments import map_segment
from reput.log.walk import Frame, frame
from reput.rocksdb import traces
from reput.rocksdb.reader import is_installed

#: No queue at all, no index file at all: of a log whose first message belongs there.
NO_QUEUES, NO_INDEX = "no-queues", "no-index"
BROKEN_ROCKSDB_STORE = "broken-rocksdbstore"
_GETS_UNIT = (commitlog.TRANSACTION_NONE, commitlog.TRANSACTION_COMMIT)


def not_derived(snapshot: Snapshot) -> Iterator[Problem]:
    """Queues or index that are missing, though the log begins with a message that belongs there."""
    settings, files, kept = snapshot.settings, snapshot.log.files, snapshot.kept
    in_database = kept is not None and bool(kept.ends or kept.units)
    has_queues = bool(snapshot.queues or snapshot.batch_queues or in_database)
    if not files or snapshot.log.unloadable is not None or (has_queues and snapshot.index):
        return
    data = map_segment(files[0].path, snapshot.segment_size).data
    first = frame(data, files[0].base, 0, settings.dialect.topic_length_v2)
    if not isinstance(first, Frame):
        return
    sys_flag = int.from_bytes(data[commitlog.SYS_FLAG : commitlog.SYS_FLAG + 4], "big")
    known = {problem.path for problem in snapshot.problems}  # a file in the directory's place, say
    broken = any(problem.kind == "broken-rocksdb" for problem in snapshot.problems)
    queues = str(settings.root / names.CONSUME_QUEUE if kept is None else kept.directory)
    gets_unit = sys_flag & commitlog.TRANSACTION_MASK in _GETS_UNIT
    if not has_queues and gets_unit and queues not in known and not broken:
        yield Problem(
            kind=NO_QUEUES,
            path=queues,
            expected="queues, for the log has messages",
            found="none" if kept is None or kept.exists else "no RocksDB there",
            outcome="consumers get nothing until they are made",
            next_step="",
        )
    if snapshot.index or not settings.message_index_enable:
        return
    index = str(settings.root / names.INDEX)
    in_rocksdb = settings.rocksdb.index and settings.broker_conf is None
    has_keys = properties.has_keys(properties.parse(bytes(data[slice(*first.properties)])))
    if has_keys and not in_rocksdb and index not in known:
        yield Problem(
            kind=NO_INDEX,
            path=index,
            expected="index files, for the log has messages with keys",
            found="none",
            outcome="a search by key finds nothing until they are made",
            next_step="",
        )


def index_database(settings: StoreSettings) -> Iterator[Problem]:
    """A ``rocksdbstore/`` that doesn't open; nothing where it can't be tried. What is in it isn't read.

    Raises:
        OutputError: there is no room for links to its files.
    """
    directory = settings.root / names.ROCKSDB_STORE
    if not traces(directory) or not is_installed():
        return
    try:
        with open_index(directory):
            return
    except (StoreError, UnsupportedError) as error:
        yield Problem(
            kind=BROKEN_ROCKSDB_STORE,
            path=str(error.path or directory),
            expected=str(error.expected or "a RocksDB that opens"),
            found=str(error.found or error.problem),
            outcome=f"{error.problem}: what a broker makes of index, timers and half messages isn't known",
            next_step=f"Bring {directory} back from a copy. The log gives back an index alone: move it away, "
            f"and `{settings.command('rebuild', '--in-place')}` makes it where broker.conf has it there",
        )
