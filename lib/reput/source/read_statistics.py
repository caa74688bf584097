"""What a query really reads: files opened and bytes gone over, counted where it happens.

With the option ``readReport`` the planner and every task leave a JSON file in that directory;
:func:`total` adds them up. An attempt of a task that is made again counts again, for it has read again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from reput.errors import SettingsError

_SUFFIX = ".read.json"


@dataclass(slots=True)
class ReadStatistics:
    """Counts of one planner or task.

    Attributes:
        tasks: 1 for a task, 0 for the planner.
        files: files opened.
        read: bytes whose records, units or entries were taken apart.
        passed: bytes that were gone over by headers alone: to find where a part begins, or the log's end.
        copied: bytes of texts, hosts, properties and bodies that were copied out of the log.
        rows: rows handed to Spark.
    """

    tasks: int = 0
    files: int = 0
    read: int = 0
    passed: int = 0
    copied: int = 0
    rows: int = 0


@contextmanager
def reported(directory: Path | None, *, tasks: int) -> Iterator[ReadStatistics]:
    """Counts for the block to keep, written down when it ends, however it ends.

    Args:
        directory: where to; made when missing. None: nowhere.
        tasks: 1 for a task, 0 for the planner.

    Raises:
        SettingsError: they can't be written.
    """
    reads = ReadStatistics(tasks)
    try:
        yield reads
    finally:
        if directory is not None:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                path = directory / f"{uuid.uuid4().hex}{_SUFFIX}"
                path.write_text(json.dumps(asdict(reads)), encoding="utf-8")
            except OSError as error:
                raise SettingsError(
                    "readReport can't be written",
                    path=directory,
                    expected="a directory that planner and tasks can write to",
                    found=error.strerror or str(error),
                ) from error


def total(directory: str | Path) -> ReadStatistics:
    """The counts of all planners and tasks that reported into a directory so far."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in Path(directory).glob(f"*{_SUFFIX}")]
    return ReadStatistics(
        **{one.name: sum(counts[one.name] for counts in found) for one in fields(ReadStatistics)}
    )
