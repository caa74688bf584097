"""Fixtures that several test packages share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIB = Path(__file__).parents[1] / "lib"

# The same examples at every run, so that a failure is the change's that is tested. Those that nobody has seen
# yet are looked for by ``make test ARGS='--hypothesis-profile=explore tests/property'``.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeat")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local session for all tests, set up as the jobs' own."""
    from reput.spark import session

    # Executors and planners are other processes: they use this Python, and the package as it lies here.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(LIB), os.environ.get("PYTHONPATH")]))
    started = session(
        "reput tests", "local[2]", {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    )
    yield started
    started.stop()
