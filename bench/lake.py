"""``python -m bench.lake TABLE``: what a query for one topic and one hour reads of a table of messages.

Of each layout: files, row groups and bytes of them that are left after the table's log and the files' footers
were asked, for a topic with few messages, one with a middling number, and one with many, and 1/24 of the
time that the table spans. The table's own layout is measured as it lies; others are written from its rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_ROW_GROUPS = (1 << 14, 1 << 16, 1 << 19)


def _chosen(files: Sequence[Path]) -> tuple[list[str], int, int]:
    """The topics, and the times [from, to) in microseconds."""
    columns = pa.concat_tables(pq.read_table(path, columns=["topic", "storeTimestamp"]) for path in files)
    counts = columns.group_by("topic").aggregate([("topic", "count")]).sort_by("topic_count")
    names = counts.column("topic").to_pylist()
    times = columns.column("storeTimestamp").cast(pa.int64())
    least, most = pc.min(times).as_py(), pc.max(times).as_py()
    begin = least + (most - least) // 2
    return [names[0], names[len(names) // 2], names[-1]], begin, begin + (most - least) // 24 + 1


def _read(files: Sequence[Path], topic: str, begin: int, end: int) -> dict[str, int]:
    """What is left after the statistics were asked."""
    found = {"files": 0, "row_groups": 0, "bytes": 0, "bytes_of_4_columns": 0}
    few = ("topic", "queueId", "queueOffset", "storeTimestamp")
    for path in files:
        footer = pq.ParquetFile(path).metadata
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        columns = [{one.path_in_schema: one for one in map(g.column, range(g.num_columns))} for g in groups]
        if not _is_in(columns, topic, begin, end):
            continue
        found["files"] += 1
        for one in columns:
            if _is_in([one], topic, begin, end):
                found["row_groups"] += 1
                found["bytes"] += sum(column.total_compressed_size for column in one.values())
                found["bytes_of_4_columns"] += sum(one[name].total_compressed_size for name in few)
    return found


def _is_in(columns: list[dict[str, Any]], topic: str, begin: int, end: int) -> bool:
    names = [one["topic"].statistics for one in columns]
    times = [one["storeTimestamp"].statistics for one in columns]
    if not min(s.min for s in names) <= topic <= max(s.max for s in names):
        return False
    micros = [[int(value.timestamp() * 1e6) for value in (s.min, s.max)] for s in times]
    return min(low for low, _ in micros) < end and max(high for _, high in micros) >= begin


def _layouts(files: Sequence[Path], work: Path) -> Iterator[tuple[str, list[Path]]]:
    yield "as it lies", list(files)
    for rows in _ROW_GROUPS:
        (directory := work / f"{rows}").mkdir()
        made = []
        for path in files:
            made.append(directory / path.name)
            pq.write_table(pq.read_table(path), made[-1], row_group_size=rows, compression="zstd")
        yield f"row groups of {rows}", made
    (directory := work / "topics").mkdir()
    made = []
    for path in files:
        table = pq.read_table(path)
        for topic in pc.unique(table.column("topic")).to_pylist():
            made.append(directory / f"{len(made)}.parquet")
            of_topic = table.filter(pc.equal(table.column("topic"), topic))
            pq.write_table(of_topic, made[-1], row_group_size=1 << 16, compression="zstd")
    yield "a file for each topic", made


def main(words: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.lake", description=__doc__)
    parser.add_argument("table", type=Path, help="a table's directory")
    files = sorted(parser.parse_args(words).table.rglob("part-*.parquet"))
    topics, begin, end = _chosen(files)
    with tempfile.TemporaryDirectory() as work:
        for name, made in _layouts(files, Path(work)):
            line: dict[str, object] = {
                "layout": name,
                "files": len(made),
                "row_groups": sum(pq.ParquetFile(path).metadata.num_row_groups for path in made),
                "bytes": sum(path.stat().st_size for path in made),
            }
            for what, topic in zip(("few", "middling", "many"), topics, strict=True):
                line[what] = {"topic": topic, **_read(made, topic, begin, end)}
            print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
