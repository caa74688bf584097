"""RocksDB directories: those of a store are opened to be read, and never written into; new ones are made.

What the keys and values mean is :mod:`reput.format`'s to say.
"""

from reput.rocksdb.reader import DEFAULT, Database, opened
from reput.rocksdb.snapshot import CURRENT, is_database, stamp, traces

__all__ = ["CURRENT", "DEFAULT", "Database", "is_database", "opened", "stamp", "traces"]
