"""What `reput check` and `reput recover --plan` come to: one word for programs, one line for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from reput.broker.config_files import LOST_CONFIG, MISSING_CONFIG, missing_config
from reput.broker.problem import Problem
from reput.broker.snapshot import NO_CHECKPOINT
from reput.config.settings import StoreSettings
from reput.format import names
from reput.recovery.losses import LOG_GONE, Loss
from reput.recovery.past_end import CHECKPOINT_AHEAD, INDEX_AHEAD, PAST_LOG_END
from reput.words import counted

#: What a start neither stops at nor loses anything by.
_HARMLESS = frozenset(
    {
        "stray-index-file",
        "stray-directory",
        "empty-file",
        "broken-config",
        "rocksdb-elsewhere",
        "rocksdb-checkpoint",
        "unused-queue-files",
    }
)
#: What a start may make, or make again: that depends on the release and on what its walk reads.
MAY_BE_MADE = frozenset({"no-queues", "no-index", "index-unsafe", "checkpoint-length", NO_CHECKPOINT})
#: Files of settings without which a broker starts; no command mends them.
CONFIG_GONE = frozenset({LOST_CONFIG, MISSING_CONFIG})
#: After a crash the messages may never have been flushed.
_MAY_NEVER_HAVE_BEEN = frozenset({PAST_LOG_END, INDEX_AHEAD, CHECKPOINT_AHEAD})
_MESSAGES_GONE = frozenset({"log-cut", "segment-deleted"})
_MESSAGES_UNREACHED = frozenset({"units-missing"})
#: A file where a directory of queues or index is to be: a start comes about, and soon takes no more messages.
_STOPS_LATER = "not-a-directory"
#: What consumers don't get either, although nobody has counted the messages.
_NOT_REACHED_UNCOUNTED = frozenset(
    {"queue-begins-late", "queue-ends-early", "queue-ends-late", "broken-rocksdb", PAST_LOG_END}
)
#: Cut with the log, whose messages are counted; or because the log has lost them.
_CUT_WITH_THE_LOG = "queue-cut"


class Sort(StrEnum):
    """How bad it is, from bad to good."""

    DOES_NOT_START = "does-not-start"
    LOSES = "loses"
    NOT_READ = "not-read"
    HARMLESS = "harmless"
    NOTHING_FOUND = "nothing-found"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first line of a result.

    Attributes:
        sort: for programs.
        text: for people; names the store, and the release that is going to start.
    """

    sort: Sort
    text: str


def of_check(release: str, store: str, problems: Sequence[Problem], *, clean: bool) -> Verdict:
    """What the files say that a load looks at.

    Args:
        release: that is going to start.
        store: its directory.
        problems: all that was found.
        clean: the last broker stopped in good order.
    """
    stops = sum(problem.stops for problem in problems)
    if stops:
        return Verdict(Sort.DOES_NOT_START, _does_not_start(release, store, stops))
    harmless = _harmless(clean=clean)
    bad = [problem for problem in problems if problem.kind not in harmless]
    if any(loses(problem, clean=clean) for problem in bad):
        without = [config_name(problem.path) for problem in bad if problem.kind in CONFIG_GONE]
        does = f" without {' and '.join(without)}" if without else ""
        if len(without) < len(bad):
            does += ", but loses data"
        text = f"Don't start RocketMQ {release} with {store}: it starts{does}"
        return Verdict(Sort.LOSES, f"{text} ({_kinds(bad)})")
    if bad:
        text = f"Not known what a start of RocketMQ {release} does to {store}: it may lose data, or not make"
        return Verdict(Sort.NOT_READ, f"{text} what is missing ({_kinds(bad)})")
    if problems:
        return Verdict(Sort.HARMLESS, f"RocketMQ {release} starts with {store}; what was found does no harm")
    return Verdict(Sort.NOTHING_FOUND, f"RocketMQ {release} starts with {store}; nothing wrong was found")


def loses(problem: Problem, *, clean: bool) -> bool:
    """Whether a start with it is known to lose data, or not to come about; as for :func:`of_check`."""
    not_sure = _harmless(clean=clean) | MAY_BE_MADE
    return problem.stops or problem.kind not in (not_sure if clean else not_sure | _MAY_NEVER_HAVE_BEEN)


def config_name(path: str) -> str:
    """A path of :data:`CONFIG_GONE` as a sentence has it."""
    name = Path(path).name
    all_of_it = f"its settings and committed offsets in {names.CONFIG}/"
    return all_of_it if name == names.CONFIG else f"{names.CONFIG}/{name}"


def settings_not_there(settings: StoreSettings, problems: Iterable[Problem]) -> list[str]:
    """Settings that aren't there and no finding, for it isn't known that a broker had any; for people."""
    said = {problem.path for problem in problems}
    return [
        f"{one.path.relative_to(settings.root)}: found {one.found}; where a broker has taken messages, it "
        f"starts {one.without}"
        for one in missing_config(settings)
        if str(one.path) not in said
    ]


def _harmless(*, clean: bool) -> frozenset[str]:
    return _HARMLESS | {NO_CHECKPOINT} if clean else _HARMLESS


def of_plan(
    release: str,
    store: str,
    problems: Sequence[Problem],
    losses: Sequence[Loss],
    unrepaired: Sequence[Loss],
    unread: str | None,
    *,
    config: Sequence[str],
    lost_end: bool,
    deleted: str,
) -> Verdict:
    """What a start is going to do.

    Args:
        release, store: as above.
        problems: what keeps it from starting.
        losses, unrepaired: what it takes away, and what it leaves broken.
        unread: how much of the log that the start reads wasn't read, in words; None if all was.
        config: files without which it starts, for they are broken.
        deleted: topics that were deleted, as it seems, whose messages have no queues; "" without any.
        lost_end: units past the log's end are of messages that it had, not of what a crash or a cut left.
    """
    if problems:
        return Verdict(Sort.DOES_NOT_START, _does_not_start(release, store, len(problems)))
    gone = sum(loss.count for loss in losses if loss.kind in _MESSAGES_GONE)
    unreached = sum(loss.count for loss in unrepaired if loss.kind in _MESSAGES_UNREACHED)
    counted_already = {*_MESSAGES_GONE, _CUT_WITH_THE_LOG} if gone else set()
    counted_already |= _MESSAGES_UNREACHED if unreached else set()
    lost = [counted(gone, "message")] if gone else []
    if more := _kinds(loss for loss in losses if loss.kind not in counted_already):
        lost.append(f"data ({more})")
    left = [f"at least {counted(unreached, 'message')} that no queue leads to"] if unreached else []
    if more := _kinds(loss for loss in unrepaired if loss.kind not in counted_already):
        left.append(f"damage ({more})")
    no_log = any(loss.kind in LOG_GONE for loss in unrepaired)
    no_end = lost_end and any(loss.kind == _CUT_WITH_THE_LOG for loss in losses)
    late = any(loss.kind in {*_NOT_REACHED_UNCOUNTED, _STOPS_LATER} for loss in unrepaired)
    without = ["all of its log"] if no_log else []
    without += config
    does = [f"start without {' and '.join(without)}"] if without else []
    does += [f"lose {' and '.join(lost)}"] if lost else []
    does += [f"leave {', and '.join(left)}"] if left else []
    if does:
        begin = f"A start of RocketMQ {release} with {store}"
        if gone or unreached or without or no_end or late:
            begin = f"Don't start RocketMQ {release} with {store}: it"
        text = f"{begin} would {', and '.join(does)}"
        return Verdict(Sort.LOSES, text if unread is None else f"{text}; {unread} weren't read")
    if unread is not None:
        text = f"Not known what a start of RocketMQ {release} does to {store}: {unread} weren't read"
        return Verdict(Sort.NOT_READ, text)
    text = f"A start of RocketMQ {release} loses nothing of {store}, and leaves nothing broken that it reads"
    return Verdict(Sort.NOTHING_FOUND, f"{text}, if {deleted} was deleted" if deleted else text)


def _does_not_start(release: str, store: str, stops: int) -> str:
    return f"RocketMQ {release} doesn't start with {store}: see to {counted(stops, 'thing')} first"


def _kinds(found: Iterable[Problem | Loss]) -> str:
    """Each kind once, with how often it was found."""
    kinds = Counter(one.kind for one in found)
    return ", ".join(kind if number == 1 else f"{number:,} {kind}" for kind, number in kinds.items())
