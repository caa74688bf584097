"""What a restart takes away from consume queues, and what of them it leaves broken."""

from __future__ import annotations

from collections.abc import Iterator

from reput.broker.predict import Prediction
from reput.broker.units import Unreached
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.recovery.loss import Loss


def queue_losses(prediction: Prediction) -> Iterator[Loss]:
    """Units that are cut off with the log."""
    for (topic, queue_id), queue in sorted(prediction.queues.items()):
        lost = (queue.recovered_end - queue.end) // UNIT_LENGTH
        if lost > 0:
            text = f"queue {topic}:{queue_id} is cut to {queue.max_offset}: {lost} units go"
            places = queue.max_offset, queue.max_offset + lost
            yield _loss(prediction, (topic, queue_id), "queue-cut", places, lost, text)
    for (topic, queue_id), batch in sorted(prediction.batch_queues.items()):
        lost = batch.recovered_max - batch.max_offset
        if lost > 0:
            text = f"batch queue {topic}:{queue_id} is cut to {batch.max_offset}: {lost} messages go"
            places = batch.max_offset, batch.recovered_max
            yield _loss(prediction, (topic, queue_id), "queue-cut", places, lost, text)


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
        kind = "units-displaced" if one.displaced == one.count else "units-missing"
        yield _loss(prediction, one.queue, kind, (one.first, one.last + 1), one.count, _unreached_text(one))


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
        text = (
            f"queue {queue[0]}:{queue[1]} has no file, and is made anew from queueOffset {model.min_offset} "
            f"on, and messages before that may lie in {start} to {unseen} of the log, not walked"
        )
        yield _loss(prediction, queue, "queue-begins-late", (0, model.min_offset), 0, text)


def _hashed(prediction: Prediction) -> Iterator[Loss]:
    for (topic, queue_id), count in sorted(prediction.hashed.items()):
        end = prediction.queues[topic, queue_id].max_offset
        text = (
            f"{count} units of {topic}:{queue_id} get the hash of the tags, not the deliver time: "
            "those messages are delivered at once"
        )
        yield _loss(prediction, (topic, queue_id), "delay-tags-hashed", (end - count, end), count, text)


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


def _loss(
    prediction: Prediction, queue: tuple[str, int], kind: str, places: tuple[int, int], count: int, text: str
) -> Loss:
    """What a queue loses, by the queueOffsets of its first place and after its last one."""
    is_batch = queue in prediction.batch_queues
    directory = names.batch_queue_directory if is_batch else names.queue_directory
    return Loss(kind, str(directory(prediction.snapshot.settings.root, *queue)), *places, count, text)
