"""What the sources' planners and tasks reported of their reading."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from reput.source.ranges import ReadStatistics


def total(directory: Path) -> ReadStatistics:
    """The counts of all planners and tasks that reported into a directory so far."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("*.read.json")]
    return ReadStatistics(
        **{one.name: sum(counts[one.name] for counts in found) for one in fields(ReadStatistics)}
    )
