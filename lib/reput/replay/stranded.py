"""Findings whose messages can be saved: those that no unit of their queue leads to, or that a start cuts off.

Who finds them says what to do; :mod:`reput.export` knows how they are told from others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: A queue that begins at 0 again: its topic was created again, or it was lost and no start has made it.
QUEUE_RESTARTED = "queue-restarted"
CREATED_AGAIN = "the topic was created again, or its queues were lost: the newest messages alone are kept"
#: What stands in a message's place of its queue.
ITSELF, NOTHING, ANOTHER = 0, 1, 2
#: By the names of findings: what stands in the place of such a message.
BY_UNIT = {
    "no-queues": {NOTHING},
    "missing-queue-files": {NOTHING},
    "missing-unit": {NOTHING},
    "wrong-unit": {ANOTHER},
    "repeated-queue-offset": {ANOTHER},
    "queue-begins-late": {NOTHING, ANOTHER},
    "queue-restarted": {NOTHING, ANOTHER},
    "unproven-message": {NOTHING, ANOTHER},
}
#: Losses of a start that are ranges of the log.
BY_RANGE = frozenset({"log-cut", "segment-deleted"})
#: The kinds that can be asked for.
KINDS = (*BY_UNIT, *sorted(BY_RANGE))
#: No mending has a place for these: only sending them anew brings them to consumers. All others are brought
#: back by a mending; sent anew besides, consumers would get them twice.
WITHOUT_PLACE = frozenset({"repeated-queue-offset", "queue-restarted", "unproven-message"})


def save_steps(kinds: Iterable[str], command: Callable[..., str]) -> list[str]:
    """Next steps that save the messages of findings which no mending brings back.

    Args:
        kinds: of all findings; all others are passed over.
        command: makes a command about the store of its name and its words.
    """
    found = {*kinds} & WITHOUT_PLACE
    # Whatever has another's unit in its place is among those that no unit leads to.
    wide = {kind for kind in found if ANOTHER in BY_UNIT[kind] and NOTHING in BY_UNIT[kind]}
    chosen = [min(wide)] if wide else sorted(found)
    return [
        f"`{command('export', '--finding', kind, '-o', f'{kind}.jsonl')}` saves the messages that no queue "
        "has a place for"
        for kind in chosen
    ]
