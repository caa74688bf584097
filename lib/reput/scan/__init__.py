"""The commit-log scan: from bytes to consume-queue units and index keys.

:mod:`reput.scan.kernel` has a slow twin that takes and fills the same arrays, ``tests/slow_scan.py``.
"""
