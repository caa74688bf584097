"""What a start takes away from queues in RocksDB, and what of them it leaves broken."""

from __future__ import annotations

from collections.abc import Iterator

from reput.broker.predict import Prediction
from reput.broker.rocksdb_queues import QueueLeft
from reput.format.names import Queue
from reput.recovery.losses import Loss
from reput.words import counted


def rocksdb_losses(prediction: Prediction) -> Iterator[Loss]:
    """Queues whose end is moved back with the log's."""
    for queue, left in _queues(prediction):
        if left.cut > 0:
            text = f"queue {_named(queue)} is cut to {left.following}: {counted(left.cut, 'place')} less"
            places = left.following, left.following + left.cut
            yield _loss(prediction, queue, "queue-cut", places, left.cut, text)


def broken_in_rocksdb(prediction: Prediction) -> Iterator[Loss]:
    """What is wrong with them after the restart."""
    model = prediction.rocksdb
    if model is None:
        return
    if model.unreadable is not None:
        error = model.unreadable
        path = str(error.path or model.kept.directory)
        text = f"units can't be read ({error.problem}; {error.found}): consumers don't get their messages"
        yield Loss("broken-rocksdb", path, 0, 0, 0, text)
    for queue, left in _queues(prediction):
        yield from _of_queue(prediction, queue, left)


def _of_queue(prediction: Prediction, queue: Queue, left: QueueLeft) -> Iterator[Loss]:
    name, places = _named(queue), (left.first, left.following)
    if left.missing:
        text = f"queue {name} has {counted(left.missing, 'place')} without a unit"
        if left.position >= 0:
            text += f", from {left.position} of the log on"
            places = left.missing_first, left.missing_last + 1
        text += ": a consumer that comes to such a place gets no further, or misses others"
        yield _loss(prediction, queue, "missing-unit", places, left.missing, text)
    if left.wrong:
        text = f"{counted(left.wrong, 'unit')} of queue {name} lead to other messages than their own"
        yield _loss(prediction, queue, "misplaced-unit", (left.first, left.following), left.wrong, text)
    if left.nowhere:
        units = f"{counted(left.nowhere, 'unit')} of queue {name}"
        text = f"{units} lead past the log's end: a consumer gets nothing there, and may miss others"
        yield _loss(prediction, queue, "past-log-end", (left.first, left.following), left.nowhere, text)
    if left.behind:
        seems = "looks empty" if not left.following else f"ends at {left.following}"
        text = (
            f"queue {name} {seems}, and {counted(left.behind, 'message')} behind, with units, aren't found: "
            "new messages are put over them"
        )
        places = left.following, left.following + left.behind
        yield _loss(prediction, queue, "queue-ends-early", places, left.behind, text)
    if left.late:
        text = (
            f"queue {name} ends {counted(left.late, 'place')} behind its last message: new ones leave a hole"
        )
        yield _loss(
            prediction, queue, "queue-ends-late", (left.following - left.late, left.following), 0, text
        )
    if left.before:
        text = (
            f"queue {name} begins at {left.first}, and {counted(left.before, 'message')} before aren't found"
        )
        yield _loss(prediction, queue, "queue-begins-late", (0, left.first), left.before, text)
    elif left.anew and left.first > 0 and _unseen(prediction) > prediction.snapshot.log.files[0].base:
        start = prediction.snapshot.log.files[0].base
        text = (
            f"queue {name} has no unit, and is made anew from queueOffset {left.first} on, and messages "
            f"before that may lie in {start} to {_unseen(prediction)} of the log, not walked"
        )
        yield _loss(prediction, queue, "queue-begins-late", (0, left.first), 0, text)


def _unseen(prediction: Prediction) -> int:
    return 0 if prediction.began_at is None else prediction.began_at.base


def _queues(prediction: Prediction) -> list[tuple[Queue, QueueLeft]]:
    return [] if prediction.rocksdb is None else sorted(prediction.rocksdb.queues.items())


def _named(queue: Queue) -> str:
    return f"{queue[0]}:{queue[1]}"


def _loss(
    prediction: Prediction, queue: Queue, kind: str, places: tuple[int, int], count: int, text: str
) -> Loss:
    directory = "" if prediction.rocksdb is None else str(prediction.rocksdb.kept.directory)
    return Loss(kind, directory, *places, count, text, queue)
