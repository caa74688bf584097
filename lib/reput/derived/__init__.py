"""What a broker derives from its log, as it stands: a reader for each form of queue and index.

A queue is in files (:mod:`~reput.derived.plain`, with :mod:`~reput.derived.ext`), in files of batches
(:mod:`~reput.derived.batch`) or in RocksDB (:mod:`~reput.derived.rocksdb`); so is an index
(:mod:`~reput.derived.index`). What differs between the forms for a reader is known here; what writes,
compares or migrates them knows its own form, too.
"""
