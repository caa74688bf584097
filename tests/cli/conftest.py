"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import shellingham

from tests.rebuilds import Command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of completion look for a shell among the parents of the process; tests may have none."""
    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("bash", "/bin/bash"))


@pytest.fixture
def reput(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """The command line in this process, for what must be done, or refused, without Spark."""

    def no_spark() -> SparkSession:
        raise AssertionError("Spark was to be started")

    command = Command(monkeypatch, no_spark)
    yield command
    assert command.sessions == 0
