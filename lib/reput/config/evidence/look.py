"""One look at a store: sizes and release, and what couldn't be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.config.evidence.index import index_files
from reput.config.evidence.log import LogRecords
from reput.config.evidence.release import Release, release
from reput.config.evidence.sizes import Sizes, queue_files
from reput.config.evidence.units import Switches, switches
from reput.format import batchconsumequeue, consumequeue, names


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a store shows.

    Attributes:
        queues, batch_queues, queue_ext, index: by the lengths of these files.
        release: by what only some releases write.
        switches: by the newest units of some queues.
        unread: what couldn't be read, and so says nothing.
    """

    queues: Sizes
    batch_queues: Sizes
    queue_ext: Sizes
    index: Sizes
    release: Release
    switches: Switches
    unread: tuple[str, ...]

    def sizes(self) -> Iterator[Sizes]:
        """All kinds of files."""
        yield from (self.queues, self.index, self.batch_queues, self.queue_ext)


def look(root: Path, commit_log_dirs: Iterable[Path], *, is_maped: bool = False) -> Evidence:
    """Look at a store: names, lengths, headers, a few index entries and the records that they lead to.

    Args:
        root: the store.
        commit_log_dirs: where its segments are.
        is_maped: broker.conf has a key as releases up to 4.5.1 spell it.
    """
    unread: list[str] = []
    found = []
    for directory, what, setting, unit in (
        (names.CONSUME_QUEUE, "queue file", "mappedFileSizeConsumeQueue", consumequeue.UNIT_LENGTH),
        (
            names.BATCH_CONSUME_QUEUE,
            "batch queue file",
            "mapperFileSizeBatchConsumeQueue",
            batchconsumequeue.UNIT_LENGTH,
        ),
        (names.CONSUME_QUEUE_EXT, "consumequeue_ext file", "mappedFileSizeConsumeQueueExt", 1),
    ):
        sizes, problem = queue_files(root, directory, what, setting, unit)
        found.append(sizes)
        unread += [] if problem is None else [problem]
    log = LogRecords(commit_log_dirs)
    index = index_files(root, log)
    shown, not_read = release(root, index, log, is_maped=is_maped)
    return Evidence(
        queues=found[0],
        batch_queues=found[1],
        queue_ext=found[2],
        index=index.sizes,
        release=shown,
        switches=switches(root, log),
        unread=tuple(dict.fromkeys((*unread, *index.unread, *not_read))),
    )
