"""Loading every kernel that a task uses, before there is a task."""

from __future__ import annotations

import gc

import numpy as np

from reput.build.index import KeyRows, put_keys
from reput.build.units import pack
from reput.format.indexfile import IndexHeader
from reput.log import walk_kernel
from reput.replay.unit_spill import crc32_of_each
from reput.scan import kernel, output
from reput.scan.rules import Rules
from reput.scan.table import QueueTable


def load() -> None:
    """Load the kernels from numba's cache, or compile them, by running each over nothing."""
    nothing = np.zeros(128, np.uint8)
    nothing.flags.writeable = False
    rules = Rules(True, True, True, True, True, True, True, True, False, np.zeros(1, np.int64))
    out = output.output()
    kernel.scan(nothing, 0, 0, 1, rules, QueueTable(), out)
    kernel.walk(nothing, 0, 0, 1, True)
    kernel.find_record(nothing, 0, 0, 1, True)
    kernel.first_written(nothing, 0, 1)
    walk_kernel.load()
    pack(out, 1)
    none = np.zeros(0, np.int64)
    crc32_of_each(np.zeros(0, np.uint8), none, none)
    QueueTable().grow_queues()
    rows = KeyRows(none, none, np.zeros(0, np.int32), np.zeros(0, np.int32))
    put_keys(IndexHeader(), np.zeros(1, np.int32), rows, 0, 2)
    # What is loaded stays: the garbage collector, which PySpark calls after every task, can skip it.
    gc.freeze()
