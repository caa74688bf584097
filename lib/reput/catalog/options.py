"""What a catalog is asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from reput.config.evidence import Basis


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """What to catalog.

    Attributes:
        table: the Delta table's directory, on a file system that all see, or the URL of one in an object
            store; made when missing.
        broker_conf: the broker's file, None for what the store shows.
        rocketmq_version: the release that wrote the store, None for the one that the store shows.
        bodies: the table has bodies, too.
        max_bytes_per_trigger: log bytes in one commit.
        optimize: merge small files.
        allow_gap: continue although the table's last message has expired from the log.
        many: a new table is one of many stores; a table in an object store always is.
        cluster, broker: whose store it is, in such a table; None for what broker.conf says.
        retain_days: in such a table, take out this store's messages of days before so many; None keeps all.
    """

    store: Path
    table: Path
    broker_conf: Path | None = None
    rocketmq_version: str | None = None
    bodies: bool = False
    max_bytes_per_trigger: int = 1 << 30
    optimize: bool = True
    allow_gap: bool = False
    many: bool = False
    cluster: str | None = None
    broker: str | None = None
    retain_days: int | None = None


@dataclass(frozen=True, slots=True)
class Cataloged:
    """What a run did.

    Attributes:
        table: its directory or URL.
        cluster, broker: whose messages these are, in a table of many stores; None in one of one store.
        start, end: half-open range of physical offsets that this run went over.
        expired: bytes of log that the broker had deleted before they were read.
        removed: messages taken back, because the log went back before them.
        removed_after: the versions of the table that have them still: one each time that it stepped back.
        added: messages that it put into the table.
        messages: how many of this store the table holds.
        commits: that it made, without those of stepping back and merging.
        clustered: days whose small files it merged, as ``YYYY-MM-DD``.
        retired: messages that it took out, because their days are over for the table.
        vacuumed: files that it removed, which had been taken out of the table a week before.
        seconds: that it took.
        basis: what the settings rest on.
    """

    table: str
    start: int
    end: int
    expired: int
    removed: int
    removed_after: tuple[int, ...]
    added: int
    messages: int
    commits: int
    clustered: tuple[str, ...]
    seconds: float
    basis: Basis = field(default_factory=Basis)
    cluster: str | None = None
    broker: str | None = None
    retired: int = 0
    vacuumed: int = 0

    def then(self, later: Cataloged) -> Cataloged:
        """This run and a later one as one."""
        return replace(
            later,
            start=min(self.start, later.start),
            expired=self.expired + later.expired,
            removed=self.removed + later.removed,
            removed_after=self.removed_after + later.removed_after,
            added=self.added + later.added,
            commits=self.commits + later.commits,
            clustered=tuple(sorted({*self.clustered, *later.clustered})),
            seconds=self.seconds + later.seconds,
        )

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        facts = {name: getattr(self, name) for name in self.__slots__ if name != "basis"}
        return {**facts, "rocketmq_version": self.basis.rocketmq_version, "settings": self.basis.to_dict()}
