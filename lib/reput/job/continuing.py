"""Whether an existing output may be continued: same store, same settings, same log."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from reput.errors import OutputError
from reput.log.segments import CommitLog

if TYPE_CHECKING:
    from reput.config.settings import StoreSettings
    from reput.job.options import RebuildOptions
    from reput.replay.selection import Selection
    from reput.replay.state import Opening, State

_LONGEST_VALUE = 60
_KNOWN, _BATCH = "known_topics", "batch_topics"
#: Topics that an output lacks because an earlier release, which wrote no batch queues, began it.
_LEFT_OUT = "left_out_topics"
#: Settings in StoreSettings.describe that no output byte depends on.
_PLACES = frozenset({"store", "broker_conf", "commit_log_dirs", "segment_size"})


def deciding(settings: StoreSettings, options: RebuildOptions, selection: Selection) -> dict[str, object]:
    """Everything that decides what the output holds, JSON-ready."""
    return {
        **{name: value for name, value in settings.describe().items() if name not in _PLACES},
        "index": options.index,
        "queues": sorted(
            topic if queue_id is None else f"{topic}:{queue_id}" for topic, queue_id in selection.queues
        ),
        _KNOWN: None if selection.known is None else sorted(selection.known),
        _BATCH: sorted(selection.batch),
        **({"passed_over": sorted(settings.passed_over)} if settings.passed_over else {}),
    }


def fingerprint(deciding: dict[str, object]) -> str:
    """One text for everything that decides what the output holds."""
    # The version's name, and which others share its rules, add nothing to the rules themselves.
    facts = {name: value for name, value in deciding.items() if not name.startswith("rocketmq_")}
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def check_continues(
    begun: Opening, state: State, now: Opening, log: CommitLog, root: Path, *, follows: bool = False
) -> None:
    """Check that the output was begun from this store, with these settings.

    A store that was moved is accepted if its log still holds the last record that was read.

    Args:
        begun: what the output's journal begins with.
        state: what its batches add up to.
        now: what this run's journal would begin with.
        follows: the broker's topics may have changed, since a tail reads them each time.

    Raises:
        OutputError: it was begun from another store or with other settings.
    """
    from reput.output.step_back import record_mark

    moved = begun.store != now.store
    if moved and (
        not state.last_record or record_mark(log, state.last_position, state.cursor) != state.last_record
    ):
        raise OutputError(
            "the output was begun from another store",
            path=root,
            expected=begun.store,
            found=now.store,
            next_step="Choose another directory, or remove this one",
        )
    changed: list[str] | None = None
    if begun.fingerprint != now.fingerprint and not (begun.settings and _same_but_topics(begun, now)):
        changed = [
            name
            for name in sorted(begun.settings.keys() | now.settings.keys())
            if name != "fingerprint" and begun.settings.get(name) != now.settings.get(name)
        ]
    elif not follows and begun.settings.get(_KNOWN) != now.settings.get(_KNOWN):
        changed = [_KNOWN]
    if changed is not None:
        raise OutputError(
            "the output was begun with other settings",
            path=root,
            expected=_shown(begun.settings, changed),
            found=_shown(now.settings, changed),
            next_step=f"Run with the settings it was begun with, or remove {root} and run again",
        )
    _check_batch(state, begun, now, root)


def _same_but_topics(begun: Opening, now: Opening) -> bool:
    """Whether two openings differ at most in the broker's list of topics; both or neither have to use it."""
    one, other = (
        json.dumps(
            {
                name: value is not None if name == _KNOWN else value
                for name, value in opening.settings.items()
                if name not in (_BATCH, _LEFT_OUT) and not name.startswith("rocketmq_")
            },
            sort_keys=True,
        )
        for opening in (begun, now)
    )
    return one == other


def _check_batch(state: State, begun: Opening, now: Opening, root: Path) -> None:
    """Check that no topic was written with queues of another type than it has now.

    Topics come and go while a log is followed; only topics that were written count.

    Raises:
        OutputError: one was.
    """
    batch = _topics(now, _BATCH)
    written = sorted({topic for (topic, _), queue in state.queues.items() if not queue.is_batch} & batch)
    if written:
        raise OutputError(
            f"topic {written[0]} has queues of type BatchCQ now, but the output has consume queues of it",
            path=root,
            next_step=f"Remove {root} and run again",
        )
    left_out = sorted(_topics(begun, _LEFT_OUT))
    if left_out:
        raise OutputError(
            f"the output was begun by a release that wrote no batch queues, and lacks topic {left_out[0]}",
            path=root,
            next_step=f"Remove {root} and run again",
        )


def _topics(opening: Opening, key: str) -> frozenset[str]:
    found = opening.settings.get(key)
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


def check_same_log(state: State, log: CommitLog, root: Path) -> None:
    """Check that the log still holds what the output was made from: a broker may have cut or expired it.

    Raises:
        OutputError: it doesn't.
    """
    from reput.output.step_back import stands

    if state.cursor < log.start:
        problem, expected, found = (
            "the log has lost segments that this output hasn't got yet",
            f"a log that begins at {state.cursor} or before",
            f"one that begins at {log.start}",
        )
    elif stands(log, state):
        return
    else:
        problem, expected, found = (
            "the log isn't the one that this output was made from: it was cut, or is another one",
            f"a message stored at {state.last_timestamp} ms, at physical offset {state.last_position}",
            "none",
        )
    raise OutputError(
        problem,
        path=root,
        expected=expected,
        found=found,
        next_step=f"Remove {root} and run again, for a rebuild from the log's start",
    )


def _shown(settings: dict[str, object], names: list[str]) -> str:
    """Some settings as ``name=value``, long values cut short."""
    texts = {name: json.dumps(settings.get(name)) for name in names}
    shown = (
        f"{name}={text if len(text) <= _LONGEST_VALUE else f'{text[:_LONGEST_VALUE]}…'}"
        for name, text in texts.items()
    )
    return ", ".join(shown) or "rules of another release"
