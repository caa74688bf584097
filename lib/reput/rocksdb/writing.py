"""Writing a database of RocksDB: files of sorted keys by many tasks, then one database of them.

What RocketMQ's releases open: format version 5 of the files, keys compared byte by byte. Other options are
the broker's own at each start; those that reach a file are as in ``RocksDBOptionsFactory`` (5.5.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.errors import OutputError
from reput.rocksdb.reader import installed
from reput.store import files

if TYPE_CHECKING:
    from reput.store.ownership import Owner

#: What rocksdict leaves beside RocksDB's own files.
_OWN = "rocksdict-config.json"
_DEFAULT = "default"
_FORMAT = 5  # of tables: 6 isn't opened by RocksDB 8.4, which 5.3.3 and 5.5.0 have
_BLOCK = 32 << 10
_BLOOM_BITS = 16


def write_sorted(path: Path, pairs: Iterable[tuple[Any, ...]], *, compressed: bool) -> None:
    """Write a file of sorted keys, which :func:`assemble` takes; on disk when this returns.

    Args:
        path: a new file; its directory exists.
        pairs: (key, value), at least one, ascending by key, each key once.
        compressed: by LZ4, as units and index entries are; queues' ends aren't.

    Raises:
        OutputError: it can't be written, or the keys don't ascend.
    """
    writer = installed(path).SstFileWriter(_options(compressed=compressed))
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

    Args:
        directory: is made; nothing is there. A crash leaves a part of a database in it: rename it when this
            has returned.
        families: the column families, ``default`` among them: whether they are compressed, and their files
            in the order in which they apply. The files are moved away.
    """
    rocksdict = installed(directory)
    files.make_dirs(directory, owner)
    given = {name: _options(compressed=compressed) for name, (compressed, _) in families.items()}
    main = given.pop(_DEFAULT)
    moving = rocksdict.IngestExternalFileOptions()
    moving.set_move_files(True)
    with _reporting("the database can't be made", directory):
        database = rocksdict.Rdict(str(directory), main, given, rocksdict.AccessType.read_write())
        try:
            for name, (_, paths) in families.items():
                family = database if name == _DEFAULT else database.get_column_family(name)
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


def _options(*, compressed: bool) -> Any:
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
