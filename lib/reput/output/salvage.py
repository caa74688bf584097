"""What damage in the log leaves behind: its bytes are kept, and messages that no queue can show are listed.

The bytes of each range that was skipped go to ``lost-and-found/`` in the output, a file each, before the
journal's record that names them. A file is written beside its place and renamed, and written again by a batch
that is repeated. reput never removes one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reput.errors import Finding
from reput.format import names
from reput.log.segments import CommitLog, is_zero, open_segment
from reput.replay.state import HIDDEN, KEPT, Salvaged
from reput.replay.target import Target
from reput.store import files
from reput.store.space import check_free

#: Messages of all queues of a batch that are listed one by one; beyond that a queue's are one row.
MOST_HIDDEN_IN_BATCH = 1 << 16


def keep_ranges(
    target: Target, log: CommitLog, findings: Iterable[Finding], breaks: Collection[int]
) -> list[Salvaged]:
    """Keep the bytes that a scan has skipped; on return they are on disk.

    They go from the segment's map to the file, whatever their length. Zeros alone are listed, not kept.

    Args:
        findings: of the scan.
        breaks: physical offsets where something was skipped.

    Returns:
        One for each range that has bytes.

    Raises:
        OutputError: a file can't be written; or there is no room for all of them, and none is written.
        StoreError: a segment can't be read.
    """
    passed = set(breaks)
    result = []
    kept: list[tuple[str, NDArray[np.uint8]]] = []
    for finding in findings:
        segment = log.segment_at(finding.offset)
        if finding.offset not in passed or finding.topic is not None or segment is None:
            continue
        end = min(finding.end, segment.base + segment.length)
        if end <= finding.offset:
            continue
        opened = open_segment(segment.path, segment.length)
        data = opened.read(finding.offset - segment.base, end - segment.base)
        name = None
        if not is_zero(data):
            name = f"{names.offset_name(finding.offset)}-{end - finding.offset}"
            kept.append((name, data))
        result.append(Salvaged(KEPT, finding.offset, end, file=name))
    if kept:
        directory = target.root / names.LOST_AND_FOUND
        check_free(directory, sum(len(data) for _, data in kept), "what is damaged in the log, kept aside")
        files.make_dirs(directory, target.owner)
        for name, data in kept:
            files.write_atomically(directory / name, data.data, target.owner)
    return result


def bounded(salvaged: Iterable[list[Salvaged]]) -> Iterator[Salvaged]:
    """What was salvaged of a batch's queues, given as a list each, in as many rows as a journal can take."""
    left = MOST_HIDDEN_IN_BATCH
    for rows in salvaged:
        hidden = [one for one in rows if one.kind == HIDDEN]
        yield from (one for one in rows if one.kind != HIDDEN)
        if len(hidden) <= left:
            left -= len(hidden)
            yield from hidden
        elif hidden:
            yield replace(hidden[0], end=hidden[-1].end, count=sum(one.count for one in hidden))
