"""What an operator can do instead of a restart that loses something."""

from __future__ import annotations

from reput.broker.predict import Prediction
from reput.next_command import next_command
from reput.recovery.loss import DERIVED_GONE, LOG_GONE, Loss

#: What a rebuild of queues and index mends.
_REBUILT = DERIVED_GONE | {
    "units-missing",
    "units-displaced",
    "queue-begins-late",
    "delay-tags-hashed",
    "queue-ext-missing",
    "index-missing",
    "index-dropped",
    "index-ahead",
    "index-torn",
    "checkpoint-ahead",
}


def steps_instead(prediction: Prediction, found: list[Loss]) -> list[str]:
    """Steps, one a line, for what a restart loses or leaves broken; none is there twice."""
    kinds = {loss.kind for loss in found}
    steps = [problem.next_step for problem in prediction.problems]
    steps += [problem.next_step for problem in prediction.snapshot.problems if problem.kind in LOG_GONE]
    by_hand = _by_hand(prediction, found, kinds)
    if kinds - LOG_GONE:
        apply = prediction.snapshot.settings.command("recover", "--apply")
        steps.append(
            f"With the broker stopped: `{apply}` mends what it can; `{_undo(prediction)}` takes it back."
            + (" Or by hand:" if by_hand else "")
        )
    steps += by_hand
    if prediction.unread is not None:
        full = prediction.snapshot.settings.command("recover", "--plan", "--full")
        steps.append(f"`{full}` reads the rest as well.")
    if not steps:
        steps.append("Nothing: this restart loses nothing that the walk can see.")
    return list(dict.fromkeys(steps))


def _by_hand(prediction: Prediction, found: list[Loss], kinds: set[str]) -> list[str]:
    steps = []
    cut = sum(loss.count for loss in found if loss.kind in ("log-cut", "segment-deleted"))
    if cut:
        out = prediction.snapshot.settings.command("rebuild", "--out", "DIR")
        steps.append(
            f"Before the broker starts: `{out}` skips the damage and takes the {cut} messages behind "
            "it, which the broker cuts off."
        )
    if kinds & _REBUILT:
        in_place = prediction.snapshot.settings.command("rebuild", "--in-place")
        steps.append(
            f"With the broker stopped: `{in_place}` builds all queues and the index from the log; "
            f"`{_undo(prediction)}` takes it back."
        )
    return steps


def _undo(prediction: Prediction) -> str:
    return next_command("undo", prediction.snapshot.settings.root)
