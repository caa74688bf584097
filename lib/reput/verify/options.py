"""What a verification is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What ``reput verify`` is asked for.

    Attributes:
        store: the store; holds ``commitlog/`` unless broker.conf says otherwise.
        against: another store whose derived files are compared with this one's, None to compare with the log.
        broker_conf: the broker's own configuration file, None for what the store shows.
        rocketmq_version: the dialect, None for the one that the store shows.
        queues: ``TOPIC`` or ``TOPIC:ID``; empty for all. With a choice the index isn't looked at.
        index: the index is looked at, too.
        part_bytes: bytes of log that one task takes.
        batch_bytes: bytes of log after which queues whose queueOffsets don't simply go on are looked at.
    """

    store: Path
    against: Path | None = None
    broker_conf: Path | None = None
    rocketmq_version: str | None = None
    queues: tuple[str, ...] = ()
    index: bool = True
    part_bytes: int = 128 << 20
    batch_bytes: int = 4 << 30
