"""What a restart takes away from consume queues, and what of them it leaves broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reput.broker.predict import Prediction
from reput.broker.units import Unreached
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.recovery.loss import Loss


def queue_losses(prediction: Prediction) -> Iterator[Loss]:
    """Units that are cut off with the log."""
    for (topic, queue_id), queue in sorted(prediction.queues.items()):
        if queue.recovered_end <= queue.end and not queue.deleted:
            continue
        lost = (queue.recovered_end - queue.end) // UNIT_LENGTH
        if lost > 0:
            yield Loss(
                kind="queue-cut",
                path=str(_queue_path(prediction, topic, queue_id)),
                offset=queue.max_offset,
                end=queue.max_offset + lost,
                count=lost,
                text=f"queue {topic}:{queue_id} is cut to {queue.max_offset}: {lost} units go",
            )

    for (topic, queue_id), batch in sorted(prediction.batch_queues.items()):
        lost = batch.recovered_max - batch.max_offset
        if lost > 0:
            yield Loss(
                kind="queue-cut",
                path=str(_queue_path(prediction, topic, queue_id)),
                offset=batch.max_offset,
                end=batch.recovered_max,
                count=lost,
                text=f"batch queue {topic}:{queue_id} is cut to {batch.max_offset}: {lost} messages go",
            )


def broken_queues(prediction: Prediction) -> Iterator[Loss]:
    """What is wrong with queues after the restart, as far as its walk went through their messages."""
    yield from _unreached(prediction)
    yield from _beginning_late(prediction)
    yield from _hashed(prediction)
    yield from _without_ext(prediction)


def _unreached(prediction: Prediction) -> Iterator[Loss]:
    walked, end = prediction.walked, prediction.log_end
    for one in (
        *walked.unreached(prediction.queues, end),
        *walked.unreached_batches(prediction.batch_queues, end),
    ):
        topic, queue_id = one.queue
        yield Loss(
            kind="units-displaced" if one.displaced == one.count else "units-missing",
            path=str(_queue_path(prediction, topic, queue_id)),
            offset=one.first,
            end=one.last + 1,
            count=one.count,
            text=_unreached_text(one),
        )


def _beginning_late(prediction: Prediction) -> Iterator[Loss]:
    """Queues that the start makes anew behind their first messages, some of which the log may still hold."""
    if prediction.began_at is None:
        return
    unseen = prediction.began_at.base
    if prediction.dispatched is not None:
        unseen = min(unseen, prediction.dispatched.start)
    start = prediction.snapshot.log.files[0].base
    listings = {**prediction.snapshot.queues, **prediction.snapshot.batch_queues}
    for queue, model in sorted(prediction.all_queues.items()):
        listing = listings.get(queue)
        if (listing is not None and listing.files) or model.min_offset <= 0 or unseen <= start:
            continue
        topic, queue_id = queue
        text = (
            f"queue {topic}:{queue_id} has no file, and is made anew from queueOffset {model.min_offset} on"
        )
        yield Loss(
            kind="queue-begins-late",
            path=str(_queue_path(prediction, topic, queue_id)),
            offset=0,
            end=model.min_offset,
            count=0,
            text=f"{text}, and messages before that may lie in {start} to {unseen} of the log, not walked",
        )


def _hashed(prediction: Prediction) -> Iterator[Loss]:
    for (topic, queue_id), count in sorted(prediction.hashed.items()):
        end = prediction.queues[topic, queue_id].max_offset
        yield Loss(
            kind="delay-tags-hashed",
            path=str(_queue_path(prediction, topic, queue_id)),
            offset=end - count,
            end=end,
            count=count,
            text=f"{count} units of {topic}:{queue_id} get the hash of the tags, not the deliver time: "
            "those messages are delivered at once",
        )


def _without_ext(prediction: Prediction) -> Iterator[Loss]:
    """Units whose record in consumequeue_ext is gone: the next records come to stand in their places."""
    for (topic, queue_id), queue in sorted(prediction.queues.items()):
        first, last, count = queue.without_ext()
        if count:
            yield Loss(
                kind="queue-ext-missing",
                path=str(names.queue_ext_directory(prediction.snapshot.settings.root, topic, queue_id)),
                offset=first,
                end=last + 1,
                count=count,
                text=f"{count} units of {topic}:{queue_id} ({first} to {last}) lead to no record: their "
                "messages are given whatever their tags are, or by those of records that come there",
            )


def _unreached_text(one: Unreached) -> str:
    topic, queue_id = one.queue
    where = f"queueOffsets {one.first} to {one.last}, from {one.position} of the log on"
    text = f"queue {topic}:{queue_id} doesn't lead to {one.count} messages ({where})"
    return f"{text}; {one.displaced} of them stand in a wrong place" if one.displaced else text


def _queue_path(prediction: Prediction, topic: str, queue_id: int) -> Path:
    root = prediction.snapshot.settings.root
    if (topic, queue_id) in prediction.batch_queues:
        return names.batch_queue_directory(root, topic, queue_id)
    return names.queue_directory(root, topic, queue_id)
