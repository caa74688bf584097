"""Whether a store's derived files are what its commit log says: both ways, without changing anything.

:mod:`reput.verify.run` reads the log in parts, or takes another store. Each form of storage has its
module, with what compares and what a finding of it says: ``queue_files`` and ``queue_check``, ``batch``,
``index``, ``rocksdb_queues``, ``rocksdb_index``. docs/check.md says what is compared.
"""
