"""Tests of ``reput.rocksdb``."""
