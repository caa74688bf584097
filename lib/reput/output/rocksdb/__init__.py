"""Queues and index in RocksDB: from runs of units to a database."""
