"""A database opened to be read, and its keys in blocks.

rocksdict's own iterators end without a word where a block of a file is broken: at the end of each scan the
place where it ended is looked at again, by the calls that say so.

What RocketMQ's releases open: format version 5 of the files, keys compared byte by byte. Other options are
the broker's own at each start; those that reach a file are as in ``RocksDBOptionsFactory`` (5.5.0).
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.errors import OutputError, ReputError, StoreError, UnsupportedError
from reput.rocksdb.snapshot import Snapshot, caught, stamp, torn_at
from reput.store import files
from reput.words import install_step

if TYPE_CHECKING:
    from rocksdict import Rdict, ReadOptions

    from reput.store.ownership import Owner

PACKAGE = "rocksdict"


def installed(directory: Path | None = None) -> Any:
    """The module.

    ``directory``: the database that it is wanted for. UnsupportedError where it isn't installed.
    """
    try:
        import rocksdict
    except ImportError as error:
        raise not_installed(directory) from error
    return rocksdict


def is_installed() -> bool:
    """Whether it is."""
    try:
        installed()
    except UnsupportedError:
        return False
    return True


def not_installed(directory: Path | None = None) -> UnsupportedError:
    """The error where it isn't."""
    return UnsupportedError(
        "this needs RocksDB, and reput was installed without it",
        path=directory,
        expected="reput[rocksdb]",
        found=f"no module {PACKAGE}",
        next_step=install_step("rocksdb"),
    )


DEFAULT = "default"
#: Entries of a block.
BLOCK = 65_536
#: How often a database is caught anew where a compaction removed a file all the same.
_TRIES = 4
_READ_AHEAD = 2 << 20
_SIZES = re.compile(r"([0-9]{1,20}\.sst)\. Expected ([0-9]+), actual size ([0-9]+)")
_GONE = re.compile(r"([0-9]{1,20}\.(?:sst|log|blob)): No such file")
_FILE = re.compile(r"([0-9]{1,20}\.(?:sst|log|blob)|MANIFEST-[0-9]{1,20})(?: offset ([0-9]{1,20}))?")
_COMPARATOR = re.compile(r"(\S+): does not match existing comparator (\S+)")
COPY = "Bring the whole directory back from a copy, or let `reput mend` make it anew from the log"


class Database:
    """One that is open; made by :func:`opened`.

    Attributes:
        path: the directory in the store.
        families: names of its column families.
        copied: bytes that had to be copied, since no link could be made; 0 where links did.
        tries: how often it was caught: more than once where a broker's compaction came between.
    """

    def __init__(self, path: Path, snapshot: Snapshot, db: Rdict, families: Sequence[str]) -> None:
        self.path = path
        self.families = tuple(families)
        self.copied = snapshot.copied
        self.tries = snapshot.tries
        self._at = snapshot.directory
        self._db = db
        self._open = {DEFAULT: db}

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key; None without one."""
        with self._reading():
            value: bytes | None = self._family(family).get(key)
            return value

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys, in their order."""
        with self._reading():
            return list(self._family(family).get(list(keys)) or ())

    def blocks(
        self, family: str, start: bytes = b"", stop: bytes | None = None, *, most: int = BLOCK
    ) -> Iterator[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
        """The keys of [start, stop) in order, with their values, many at once.

        ``family``: a column family. ``start``, ``stop``: keys; all from ``start`` on where ``stop`` is None.
        ``most``: so many at once, at most. StoreError: a file can't be read; what came before it was right.
        """
        with self._reading():
            cf = self._family(family)
            items = cf.items(from_key=start or None, read_opt=_options(stop))
            last: bytes | None = None
            while rows := list(islice(items, most)):
                keys, values = zip(*rows, strict=True)
                last = keys[-1]
                yield keys, values
            self._check_end(cf, start, stop, last)

    def first(self, family: str, start: bytes, stop: bytes | None = None) -> tuple[bytes, bytes] | None:
        """The first entry of [start, stop); None without one."""
        with self._reading():
            at = self._family(family).iter(_options(stop))
            at.seek(start)
            return self._entry(at)

    def last(self, family: str, key: bytes) -> tuple[bytes, bytes] | None:
        """The last entry at or before a key; None without one."""
        with self._reading():
            at = self._family(family).iter()
            at.seek_for_prev(key)
            return self._entry(at)

    def estimate(self, family: str) -> int:
        """About how many keys a column family has."""
        return self._family(family).property_int_value("rocksdb.estimate-num-keys") or 0

    def close(self) -> None:
        """Let go of the files."""
        for db in reversed(self._open.values()):
            db.close()

    def _family(self, name: str) -> Rdict:
        if name not in self._open:
            if name not in self.families:
                raise StoreError(
                    "this RocksDB lacks a column family",
                    path=self.path,
                    expected=name,
                    found=", ".join(self.families),
                    next_step="Check that it is what it is read as",
                )
            self._open[name] = self._db.get_column_family(name)
        return self._open[name]

    def _entry(self, at: Any) -> tuple[bytes, bytes] | None:
        if at.valid():
            return at.key(), at.value()
        at.status()
        return None

    def _check_end(self, cf: Rdict, start: bytes, stop: bytes | None, last: bytes | None) -> None:
        """See that nothing follows the last key that was given out."""
        at = cf.iter(_options(stop))
        if last is not None:
            at.seek(last)
            if at.valid():
                at.next()
        elif start:
            at.seek(start)
        else:
            at.seek_to_first()
        at.status()
        if at.valid():
            raise StoreError(
                "a scan of this RocksDB ended too early",
                path=self.path,
                expected="the last key",
                found=f"one more, {at.key()[:80].hex()}",
                next_step=COPY,
            )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (ReputError, GeneratorExit, KeyboardInterrupt):
            raise
        except Exception as error:
            if type(error) is not Exception:  # rocksdict raises no class of its own
                raise
            raise explained(self.path, self._at, error) from error


@contextmanager
def opened(
    directory: Path,
    *,
    required: Collection[str] = (),
    known: Collection[str] | None = None,
    named: Path | None = None,
) -> Iterator[Database]:
    """Open a database as it is now; where a broker has it open, what it hasn't flushed is missing.

    Args:
        directory: the database.
        required: column families that it has to have.
        known: all that it may have; None for any.
        named: what errors name, where ``directory`` was caught from it.

    Raises:
        StoreError: it is none, it is torn, or it isn't what it is read as.
        UnsupportedError: rocksdict isn't installed, or its RocksDB can't read this one.
        OutputError: there is no room for what has to be copied.
    """
    shown = named or directory
    rocksdict = installed(shown)
    for tries_left in reversed(range(_TRIES)):
        with ExitStack() as stack:
            snapshot = stack.enter_context(caught(directory))
            try:
                families = rocksdict.Rdict.list_cf(str(snapshot.directory))
                _check_families(shown, families, required, known)
                db = rocksdict.Rdict(
                    str(snapshot.directory),
                    rocksdict.Options(raw_mode=True),
                    {name: rocksdict.Options(raw_mode=True) for name in families if name != DEFAULT},
                    rocksdict.AccessType.read_only(False),
                )
                manifest = next(snapshot.directory.glob("MANIFEST-*"))
                if (at := torn_at(manifest)) is not None:
                    db.close()
                    if tries_left and stamp(directory) != snapshot.stamp:
                        continue
                    raise StoreError(
                        "the MANIFEST of this RocksDB was cut: which files it has isn't known",
                        path=shown / manifest.name,
                        offset=at,
                        expected="a whole record",
                        found=f"{manifest.stat().st_size - at} bytes of one",
                        next_step=COPY,
                    )
            except ReputError:
                raise
            except Exception as error:
                if type(error) is not Exception:
                    raise
                if tries_left and _GONE.search(str(error)) and stamp(directory) != snapshot.stamp:
                    time.sleep(0.1)
                    continue
                raise explained(shown, snapshot.directory, error) from error
            database = Database(shown, snapshot, db, families)
            stack.callback(database.close)
            yield database
            return


def explained(directory: Path, at: Path, error: Exception) -> ReputError:
    """What RocksDB said, as an error that names the file in the store.

    ``directory``: the database. ``at``: the directory that RocksDB read instead. ``error``: what it raised.
    """
    text = " ".join(str(error).replace(str(at), str(directory)).split())
    named = _FILE.search(text)
    path = directory if named is None else directory / named[1]
    if (sizes := _SIZES.search(text)) is not None:
        return StoreError(
            "this file of a RocksDB was cut",
            path=directory / sizes[1],
            expected=f"{sizes[2]} bytes",
            found=f"{sizes[3]}",
            next_step=COPY,
        )
    if (gone := _GONE.search(text)) is not None:
        return StoreError(
            "this RocksDB lacks a file",
            path=directory / gone[1],
            expected="a file, for the MANIFEST names it",
            found="none",
            next_step=COPY,
        )
    if (comparator := _COMPARATOR.search(text)) is not None:
        return UnsupportedError(
            "the keys of this RocksDB are in another order than RocketMQ's",
            path=directory,
            expected=comparator[1],
            found=comparator[2],
            next_step="Check that it is a broker's; RocketMQ never names a comparator",
        )
    if re.search(r"format_version|footer version|extended magic|not (?:implemented|supported)", text, re.I):
        return UnsupportedError(
            "this RocksDB was written in a form that the RocksDB of rocksdict can't read",
            path=path,
            expected="format_version 2 to 6, as RocketMQ's writes it",
            found=text,
            next_step="Try a newer one: pip install --upgrade rocksdict. If no newer RocksDB wrote it, "
            "the file is damaged: bring it back from a copy",
        )
    return StoreError(
        "this RocksDB is damaged",
        path=path,
        offset=None if named is None or named[2] is None else int(named[2]),
        found=text,
        next_step=COPY,
    )


def _check_families(
    directory: Path, found: Sequence[str], required: Collection[str], known: Collection[str] | None
) -> None:
    lacking = sorted(set(required) - set(found))
    foreign = [] if known is None else sorted(set(found) - set(known))
    if lacking or foreign:
        raise StoreError(
            "this RocksDB lacks a column family" if lacking else "this RocksDB has a foreign column family",
            path=directory,
            expected=", ".join(lacking or sorted(known or ())),
            found=", ".join(found if lacking else foreign),
            next_step="Check that it is what it is read as; a broker opens no others",
        )


def _options(stop: bytes | None) -> ReadOptions:
    from rocksdict import ReadOptions

    options = ReadOptions()
    options.set_readahead_size(_READ_AHEAD)
    if stop is not None:
        options.set_iterate_upper_bound(stop)
    return options


#: What rocksdict leaves beside RocksDB's own files.
_OWN = "rocksdict-config.json"
_FORMAT = 5  # of tables: 6 isn't opened by RocksDB 8.4, which 5.3.3 and 5.5.0 have
_BLOCK = 32 << 10
_BLOOM_BITS = 16


def write_sorted(path: Path, pairs: Iterable[tuple[Any, ...]], *, compressed: bool) -> None:
    """Write a file of sorted keys, which :func:`assemble` takes; on disk when this returns.

    ``path``: a new file; its directory exists. ``pairs``: (key, value), at least one, ascending by key, each
    key once. ``compressed``: by LZ4, as units and index entries are; queues' ends aren't. OutputError where
    it can't be written, or the keys don't ascend.
    """
    writer = installed(path).SstFileWriter(_write_options(compressed=compressed))
    with _reporting("a file of sorted keys can't be written", path):
        writer.open(str(path))
        put = writer.__setitem__
        for key, value in pairs:
            put(key, value)
        writer.finish()
    files.fsync_path(path)


def assemble(
    directory: Path,
    families: Mapping[str, tuple[bool, Sequence[Path]]],
    owner: Owner | None,
) -> None:
    """Make a database of files that :func:`write_sorted` wrote; all of it is on disk when this returns.

    ``directory``: is made; nothing is there. A crash leaves a part of a database in it: rename it when this
    has returned. ``families``: the column families, ``default`` among them: whether they are compressed, and
    their files in the order in which they apply. The files are moved away.
    """
    rocksdict = installed(directory)
    files.make_dirs(directory, owner)
    given = {name: _write_options(compressed=compressed) for name, (compressed, _) in families.items()}
    main = given.pop(DEFAULT)
    moving = rocksdict.IngestExternalFileOptions()
    moving.set_move_files(True)
    with _reporting("the database can't be made", directory):
        database = rocksdict.Rdict(str(directory), main, given, rocksdict.AccessType.read_write())
        try:
            for name, (_, paths) in families.items():
                family = database if name == DEFAULT else database.get_column_family(name)
                if paths:
                    family.ingest_external_file([str(path) for path in paths], moving)
                if family is not database:
                    family.close()
        finally:
            database.close()
    (directory / _OWN).unlink(missing_ok=True)
    if owner is not None:
        files.give_tree(directory, owner)
    # RocksDB flushes what it ingests and its manifest, not every name: all of it again costs little.
    for path in sorted(directory.iterdir()):
        files.fsync_path(path)
    files.fsync_dir(directory)


def _write_options(*, compressed: bool) -> Any:
    rocksdict = installed()
    tables = rocksdict.BlockBasedOptions()
    tables.set_format_version(_FORMAT)
    tables.set_block_size(_BLOCK)
    tables.set_bloom_filter(_BLOOM_BITS, False)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(tables)
    kinds = rocksdict.DBCompressionType
    options.set_compression_type(kinds.lz4() if compressed else kinds.none())
    options.set_keep_log_file_num(1)
    options.set_max_background_jobs(2)
    return options


class _reporting:  # noqa: N801 - used as a function, as files.reporting
    """Turns what rocksdict raises into an OutputError."""

    def __init__(self, problem: str, path: Path) -> None:
        self._problem = problem
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # rocksdict raises Exception itself, with RocksDB's words.
        if error is not None and type(error) is Exception:
            raise OutputError(
                self._problem,
                path=self._path,
                found=str(error),
                next_step="See that there is space and permission, then run the same command again",
            ) from error
