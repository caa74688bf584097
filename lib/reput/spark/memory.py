"""Giving back to the system what the processes of a session hold and don't need."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext


def give_back(context: SparkContext) -> None:
    """Have the driver's JVM and this process give back free memory: for a moment when nothing is to be done.

    The JVM collects garbage, which stops it for a tenth of a second or two, and it collects none by itself
    while it makes none.
    """
    context._jvm.System.gc()  # type: ignore[union-attr]
    gc.collect()
    with suppress(OSError, AttributeError):  # the C library isn't GNU's
        ctypes.CDLL(None).malloc_trim(0)
