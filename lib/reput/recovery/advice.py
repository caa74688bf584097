"""What an operator can do instead of a restart that loses something."""

from __future__ import annotations

from reput.recovery.loss import DERIVED_GONE, LOG_GONE, Loss
from reput.recovery.predict import Prediction

#: What a rebuild of queues and index mends.
_REBUILT = DERIVED_GONE | {
    "units-missing",
    "units-displaced",
    "queue-begins-late",
    "delay-tags-hashed",
    "index-missing",
    "index-dropped",
    "index-ahead",
    "index-torn",
    "checkpoint-ahead",
}


def steps_instead(prediction: Prediction, found: list[Loss], release: str) -> list[str]:
    """Steps, one a line, for what a restart of this release loses or leaves broken."""
    settings = prediction.snapshot.settings
    steps = [problem.next_step for problem in prediction.problems]
    options = f" --rocketmq-version {release}"
    if settings.broker_conf is not None:
        options = f" --broker-conf {settings.broker_conf}{options}"
    kinds = {loss.kind for loss in found}
    gone = dict.fromkeys(
        problem.next_step for problem in prediction.snapshot.problems if problem.kind in LOG_GONE
    )
    steps += gone
    batch = sorted({topic for topic, _ in prediction.batch_queues})
    if kinds - LOG_GONE and batch:
        steps.append(
            f"reput doesn't write batch consume queues (queue.type=BatchCQ: {', '.join(batch)}). --apply is "
            "refused with them, and a rebuild leaves them as they are:"
        )
    if kinds - LOG_GONE and settings.recovery.queue_ext:
        steps.append(
            "With the broker stopped: set enableConsumeQueueExt=false in broker.conf, and leave it so for "
            "the broker. reput can then build its queues, with the tags in the units; bit maps are gone:"
        )
    if kinds - LOG_GONE:
        steps.append(
            f"With the broker stopped: `reput recover {settings.root} --apply{options}` mends what it can; "
            "`reput undo` takes it back. Or by hand:"
        )
    cut = sum(loss.count for loss in found if loss.kind in ("log-cut", "segment-deleted"))
    if cut:
        steps.append(
            f"Before the broker starts: `reput rebuild {settings.root} --out DIR{options}` goes around the "
            f"damage and takes the {cut} messages behind it, which the broker cuts off."
        )
    if kinds & _REBUILT:
        steps.append(
            f"With the broker stopped: `reput rebuild {settings.root} --in-place{options}` builds all queues "
            "and the index from the log; `reput undo` takes it back."
        )
    if prediction.unread is not None:
        steps.append(f"`reput recover {settings.root} --plan --full{options}` reads the rest as well.")
    if not steps:
        steps.append("Nothing: this restart loses nothing that the walk can see.")
    return steps
