"""``reput dump index``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from reput.cli.arguments import BrokerConf, Limit, Since, TimeZone, Until, WrittenBy
from reput.cli.dump.lines import dumping
from reput.cli.dump.nothing import in_index
from reput.cli.dump.options import AsLines, PathArgument, Quiet, times_of, unclear
from reput.cli.dump.text import index_line
from reput.cli.output import settings_told
from reput.config.log_places import absolute
from reput.config.settings import StoreSettings
from reput.config.stand_in import here
from reput.dump.damage import Damage
from reput.errors import SettingsError

EXAMPLES = """**Examples**

The header of each file, and how full it is:

    reput dump index /data/store --headers --broker-conf broker.conf

Where a key leads, entry by entry:

    reput dump index /data/store --key 'orders#4711' --broker-conf broker.conf

Of an index in RocksDB:

    reput dump index /data/store/rocksdbstore --limit 20
"""


def index_command(
    path: PathArgument,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="TOPIC#KEY",
            help="Walk only this key's chain, newest entry first; in RocksDB, only this key.",
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Show only headers and how full the files are.")
    ] = False,
    limit: Limit = None,
    quiet: Quiet = False,
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    _tz: TimeZone = None,
    as_json: AsLines = False,
) -> None:
    """Show the index: of files the header, how many slots are used, and each entry; of RocksDB each key.

    Entries know the hash of a key, not the key, and whole seconds: an entry's message may be up to 999 ms
    later than the entry says. The sizes of a file come from broker.conf. An index in RocksDB has whole keys
    and times. Where no entry is of the time that is asked for, stderr says of which times they are.

    Exit code 0: sound. 1: something is damaged. 2: refused or failed.
    """
    with dumping(as_json) as lines:
        if headers and key is not None:
            raise unclear("--headers and --key", "one of them")
        if headers and (since is not None or until is not None):
            raise unclear("--headers with --since or --until", "--headers alone: no entry is shown")
        if key is not None and "#" not in key:
            raise SettingsError(
                "a key can't be understood", expected="TOPIC#KEY, e.g. orders#4711", found=key
            )
        begin, stop = times_of(since, until)
        from reput.dump import index, places, rocksdbindex

        path = here(path, derived=True)
        root = absolute(path)
        alone = root if root.is_dir() else root.parent
        store = places.store_of(root)
        settings = StoreSettings.load(
            store or alone, broker_conf, rocketmq_version, dledger=True, rocksdb=True
        )
        settings_told(settings.basis)
        shown = 0
        anything = False
        paths = places.index_files(path)
        files = index.places(paths, settings) if paths else []
        database = places.index_database(root)
        if files and not settings.rocksdb.index:
            database = None  # a broker makes it unused as well
        sources: list[Iterator[index.Event | rocksdbindex.Event]] = [
            index.dump(place, begin, stop, lambda: None if store is None else index.log_end(settings))
            if key is None
            else index.walk(place, key, begin, stop)
            for place in files
        ]
        if database is not None:
            sources.append(rocksdbindex.dump(database, begin, stop, key=key))
        for events in sources:
            for event in events:
                is_entry = isinstance(event, index.Entry | rocksdbindex.KeyEntry)
                if is_entry and headers:
                    break
                anything |= is_entry or isinstance(event, Damage)
                if isinstance(event, Damage) or not quiet:
                    lines.show(event, index_line)
                is_head = isinstance(event, index.FileHead | rocksdbindex.DatabaseHead)
                shown += is_head if headers else is_entry
                if shown == limit:
                    return
        if not (anything or headers) and (key is None or (begin, stop) != (None, None)):
            lines.nothing(in_index(files, database, begin, stop), quiet=quiet)
