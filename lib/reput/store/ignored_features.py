"""What a store holds that the commit log alone doesn't tell. reput leaves it as it is, and says so.

The timer wheel (``timerWheelEnable``) and compacted topics (``cleanup.policy=COMPACTION``) follow from queues
and from how far the broker has come with them. Source: ``TimerMessageStore.getTimerWheelPath``,
``getTimerLogPath``, ``CompactionStore`` (rocketmq-all-5.3.3).
"""

from __future__ import annotations

from pathlib import Path

TIMER_WHEEL = "timerwheel"
TIMER_LOG = "timerlog"
COMPACTION = "compaction"
#: A 5.x store makes ``compaction`` and what lies in it anyway; messages are here.
_COMPACTION_LOG = "compactionLog"
#: What a broker with tiered storage has moved elsewhere (``DefaultMetadataStore``, rocketmq-all-5.3.3).
TIERED = "config/tieredStoreMetadata.json"


def ignored_features(root: Path) -> list[str]:
    """Which of these a store has, by their names below ``root``, sorted."""
    found = [name for name in (TIMER_LOG, TIMER_WHEEL, TIERED) if _holds_something(root / name)]
    if _holds_something(root / COMPACTION / _COMPACTION_LOG):
        found.append(COMPACTION)
    return sorted(found)


def _holds_something(path: Path) -> bool:
    try:
        return path.is_file() or any(path.iterdir())
    except OSError:  # not there, or not to be looked into
        return False
