"""Files that lie where a broker has directories: ``File.listFiles`` gives null for them, and a load goes on.

Source: ``ConsumeQueueStore.load``, ``DefaultMessageStore.loadConsumeQueue``, ``IndexService.load``,
``MappedFileQueue.load``, ``UtilAll.ensureDirOK``, ``RunningFlags.isWriteable`` (rocketmq-all-4.9.7, 5.3.3).
What becomes of them was tried with the stores of 4.9.7, 5.3.3 and 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reput.broker.files import in_order
from reput.broker.problem import Problem
from reput.config.settings import StoreSettings
from reput.format import names

#: ``ConsumeQueue.putMessagePositionInfoWrapper`` tries thirty times, then marks the store not writable.
_REFUSES = "once it has tried for 30 s, it takes no message any more"
#: ``IndexService.getAndCreateLastIndexFile`` unlocks what it hasn't locked, and the dispatch begins again.
_STAYS = "its dispatch stays at the next message with keys, and those behind it get no unit"


def no_directories(settings: StoreSettings) -> Iterator[Problem]:
    """What is no directory, of those that hold queues and index files.

    Raises:
        StoreError: a directory can't be read.
    """
    root = settings.root
    queues = [names.CONSUME_QUEUE]
    if settings.dialect.recovery.switches_queue_types:
        queues.append(names.BATCH_CONSUME_QUEUE)
    for name in queues:
        if _is_no_directory(root / name):
            yield _problem(root / name, f"finds no queue and can't write any: {_REFUSES}")
        for topic in in_order(root / name):
            if not topic.is_dir:
                yield _problem(topic.path, f"can't write queues of a topic of this name: {_REFUSES}")
            for queue in in_order(topic.path):
                if not queue.is_dir and names.is_queue_id(queue.path.name):
                    yield _problem(queue.path, f"takes it for an empty queue and can't write it: {_REFUSES}")
    if settings.message_index_enable and _is_no_directory(root / names.INDEX):
        yield _problem(root / names.INDEX, f"finds no index file and can't write any: {_STAYS}")


def _is_no_directory(path: Path) -> bool:
    return path.exists() and not path.is_dir()


def _problem(path: Path, outcome: str) -> Problem:
    return Problem(
        kind="not-a-directory",
        path=str(path),
        expected="a directory",
        found="no directory",
        outcome=f"the broker starts, {outcome}",
        next_step="Move it elsewhere.",
    )
