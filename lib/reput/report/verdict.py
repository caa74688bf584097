"""What it all comes to, in plain words, and what to run next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reput.broker.config_files import LOST_CONFIG, MISSING_CONFIG
from reput.broker.snapshot import NO_CHECKPOINT
from reput.recovery.losses import LOG_GONE
from reput.recovery.past_end import INDEX_AHEAD, PAST_LOG_END
from reput.recovery.verdict import MAY_BE_MADE
from reput.report.checks import CHECK, LOG, QUEUES, VERIFY, worst
from reput.report.facts import ATTENTION, BROKEN, NOTHING_FOUND, SOUND, Check, Facts, Verdict
from reput.words import counted

#: Findings that show a log has lost its end. A checkpoint alone, one number in one file, shows no such thing.
_PAST = frozenset({PAST_LOG_END, INDEX_AHEAD})
#: Findings of which only a start, or a file that isn't there, tells whether they are a loss.
_MAY_BE_LOST = frozenset({"queue-without-files", "queue-behind-log", PAST_LOG_END, *MAY_BE_MADE})

#: Steps of findings that the verdict has; `reput check` has all.
_MOST_STEPS = 5
#: Findings of the index alone that don't say so in the first word.
_OF_INDEX = frozenset({"no-index", "missing-entry", "dangling-entry", "uncommitted-entries"})


def verdict(facts: Facts, command: Callable[..., str], verify_next: Sequence[str]) -> Verdict:
    """The verdict on a store whose facts are complete.

    Args:
        command: from the name of a command and options to one about the store.
        verify_next: what a verification says is to be run next.
    """
    checks = {check.name: check for check in facts.checks}
    is_odd = facts.log is None or checks[CHECK].level == ATTENTION
    level = worst(facts.findings) or (ATTENTION if is_odd else SOUND)
    return Verdict(
        level,
        NOTHING_FOUND if level == SOUND and not checks[VERIFY].ran else level,
        _headline(facts, checks, level),
        tuple(_sentences(facts, checks)),
        tuple(_next(facts, checks, command, verify_next)),
    )


def _headline(facts: Facts, checks: dict[str, Check], level: str) -> str:
    check = checks[CHECK]
    if any(one.kind == "unreadable" for one in facts.findings):
        return "Files of this store can't be read."
    if check.ran and any(one.source == CHECK and one.level == BROKEN and one.where for one in facts.findings):
        return "A broker doesn't start on this store."
    kinds = {one.kind for one in facts.findings}
    if "no-log" in kinds:
        return "The commit log isn't there."
    if facts.log is None:
        return "The commit log can't be read."
    if kinds & LOG_GONE:
        return "A part of the commit log is missing."
    if level == BROKEN:
        if checks[LOG].level == BROKEN:
            return "The commit log is damaged."
        if any(one.kind in _PAST and one.level == BROKEN for one in facts.findings):
            return "The commit log has lost its end: queues or index lead past it."
        if LOST_CONFIG in kinds:
            return "A broker starts without its topics, offsets or groups: a file of config/ is broken."
        if MISSING_CONFIG in kinds:
            return "A broker starts without its topics, offsets or groups: config/ or files in it are gone."
        if all(_is_of_index(one.kind) for one in facts.findings if one.level == BROKEN):
            return "Searches by key don't find what the log holds: the index is broken."
        return "Consumers don't get what the log holds: queues, index or checkpoint are broken."
    if kinds & (_MAY_BE_LOST - {NO_CHECKPOINT} if facts.clean else _MAY_BE_LOST):
        return "It isn't known whether consumers get all that the log holds."
    if level == ATTENTION:
        return "Nothing is broken, but something is odd."
    looked = [check.name for check in facts.checks if check.ran]
    if VERIFY in looked:
        return "This store is sound: all that was derived from the log is as the log says."
    if LOG in looked:
        return "Nothing wrong was found; not compared entry by entry: reput verify does that."
    return (
        "Nothing wrong was found by its files alone; the messages weren't read, and nothing was compared "
        "entry by entry: reput verify does that."
    )


def _is_of_index(kind: str) -> bool:
    return kind.startswith("index-") or kind in _OF_INDEX


def _sentences(facts: Facts, checks: dict[str, Check]) -> list[str]:
    said = []
    if facts.in_use_by is not None:
        said.append(f"In use by {facts.in_use_by}: what is said here was true while it was read.")
    if facts.clean is False and facts.in_use_by is None:
        said.append(
            "The last broker didn't stop in good order (the file abort is there): "
            "the next start recovers as after a crash."
        )
    if facts.log is not None and facts.log.messages is not None:
        said.append(f"{checks[LOG].answer}.")
    if checks[QUEUES].ran:
        said.append(f"{checks[QUEUES].answer}.")
    broken, odd = (sum(one.level == level for one in facts.findings) for level in (BROKEN, ATTENTION))
    found = [f"{counted(broken, 'finding')} of something broken"] if broken else []
    found += [f"{counted(odd, 'finding')} of something odd"] if odd else []
    if found:
        said.append(f"{', '.join(found)}.")
    return said


def _next(
    facts: Facts, checks: dict[str, Check], command: Callable[..., str], verify_next: Sequence[str]
) -> list[str]:
    check, log, queues = checks[CHECK], checks[LOG], checks[QUEUES]
    steps = []
    told = list(dict.fromkeys(one.next for one in facts.findings if one.next))
    steps += told[:_MOST_STEPS]
    if len(told) > _MOST_STEPS or (check.level in (BROKEN, ATTENTION) and not told):
        steps.append(command("check"))
    plan = facts.log is not None and check.ran and facts.in_use_by is None
    past = any(one.kind in _PAST for one in facts.findings)
    if plan and (log.level == BROKEN or facts.clean is False or past):
        planned = command("recover", "--plan")
        steps += [] if any(f"`{planned}`" in step for step in steps) else [planned]
    if checks[VERIFY].ran:
        steps += verify_next
    elif facts.log is not None and (not facts.findings or queues.level or log.level):
        steps.append(command("verify"))
    if facts.lag and any(row.expired for row in facts.lag):
        steps.append(command("lag"))
    return list(dict.fromkeys(steps))
