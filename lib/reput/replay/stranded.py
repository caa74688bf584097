"""Findings whose messages can be saved: those that no unit of their queue leads to, or that a start cuts off.

What finds them names the command; :mod:`reput.export` knows how they are told from others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: What stands in a message's place of its queue.
ITSELF, NOTHING, ANOTHER = 0, 1, 2
#: By the names that check, recover and verify give to findings: what stands in the place of such a message.
BY_UNIT = {
    "no-queues": {NOTHING},
    "missing-queue-files": {NOTHING},
    "missing-unit": {NOTHING},
    "wrong-unit": {ANOTHER},
    "repeated-queue-offset": {ANOTHER},
    "units-missing": {NOTHING, ANOTHER},
    "queue-begins-late": {NOTHING, ANOTHER},
    "queue-restarted": {NOTHING, ANOTHER},
    "unproven-message": {NOTHING, ANOTHER},
}
#: Losses of a plan that are ranges of the log.
BY_RANGE = frozenset({"log-cut", "segment-deleted"})
#: The kinds that can be asked for.
KINDS = (*BY_UNIT, *sorted(BY_RANGE))
#: No rebuild has a place for these.
_UNPLACEABLE = frozenset({"repeated-queue-offset", "queue-restarted", "unproven-message"})
#: These name files or directories, and no messages.
_OF_FILES = frozenset({"no-queues", "missing-queue-files"})


def save_steps(kinds: Iterable[str], command: Callable[..., str]) -> list[str]:
    """Next steps that save the messages of findings, behind those that mend.

    Args:
        kinds: of all findings; those without messages to save are passed over.
        command: makes a command about the store of its name and its words.
    """
    steps = []
    for kind in _apart({*kinds} & {*KINDS}):
        saves = command("export", "--finding", kind, "-o", f"{kind}.jsonl")
        what = "these messages before that"
        if kind in _UNPLACEABLE:
            what = "the messages that no rebuild has a place for"
        elif kind in _OF_FILES:
            what = "the messages that no queue leads to before that"
        steps.append(f"To save {what}: `{saves}`")
    return steps


def _apart(kinds: set[str]) -> list[str]:
    """Of kinds that have the same messages one, and none whose messages another one has as well."""
    chosen: list[str] = []
    for kind in sorted(kinds, key=lambda one: (-len(BY_UNIT.get(one, ())), one)):
        places = BY_UNIT.get(kind)
        if places is None or not any(
            places <= BY_UNIT.get(other, set()) and (kind in _UNPLACEABLE) == (other in _UNPLACEABLE)
            for other in chosen
        ):
            chosen.append(kind)
    return sorted(chosen)
