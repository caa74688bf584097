"""The commit-log scan: from bytes to consume-queue units and index keys.

:mod:`reput.scan.reference` is slow and obvious; :mod:`reput.scan.kernel` does the same in numba. Both take
and fill the same arrays, so that one test body checks both.
"""
