"""Stores that lie elsewhere: in an object store, or in HDFS. They are only read.

A store there gets a local directory that stands for it: copies of its small files, while segments of the
commit log are read when they are needed, range by range. No file stands for a segment, so that who opens one
by itself finds nothing, and no zeros.
"""

from __future__ import annotations

from reput.remote.client import is_url
from reput.remote.store import RemoteStore, is_elsewhere, known, remote_store, with_urls

__all__ = ["RemoteStore", "is_elsewhere", "is_url", "known", "remote_store", "with_urls"]
