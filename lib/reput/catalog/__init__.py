"""A store's messages as a Delta table: each once, whatever ends a run; found by day, topic and queueOffset.

:mod:`table` knows Delta, and :mod:`rows` writes the table's files, both without Spark; :mod:`appending`
compares table and log, has tasks write and commits what they wrote, and :mod:`update` does all of it, also
again and again beside a tail.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from reput.config.basis import Basis
from reput.errors import Finding, Result


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """What to catalog."""

    store: Path
    #: the Delta table's directory, on a file system that all see, or the URL of one in an object
    #: store; made when missing
    table: Path
    broker_conf: Path | None = None  # the broker's file, None for what the store shows
    #: the release that wrote the store, None for the one that the store shows
    rocketmq_version: str | None = None
    bodies: bool = False  # the table has bodies, too
    max_bytes_per_trigger: int = 1 << 30  # log bytes in one commit
    optimize: bool = True  # merge small files
    allow_gap: bool = False  # continue although the table's last message has expired from the log
    many: bool = False  # a new table is one of many stores; a table in an object store always is
    #: cluster, broker: whose store it is, in such a table; None for what broker.conf says
    cluster: str | None = None
    broker: str | None = None
    #: in such a table, take out this store's messages of days before so many; None keeps all
    retain_days: int | None = None


@dataclass(frozen=True, slots=True)
class Cataloged(Result):
    """What a run did."""

    table: str  # its directory or URL
    start: int  # start, end: half-open range of physical offsets that this run went over
    end: int
    expired: int  # bytes of log that the broker had deleted before they were read
    removed: int  # messages taken back, because the log went back before them
    #: the versions of the table that have them still: one each time that it stepped back
    removed_after: tuple[int, ...]
    added: int  # messages that it put into the table
    messages: int  # how many of this store the table holds
    commits: int  # that it made, without those of stepping back and merging
    clustered: tuple[str, ...]  # days whose small files it merged, as ``YYYY-MM-DD``
    seconds: float  # that it took
    basis: Basis = field(default_factory=Basis)  # what the settings rest on
    #: cluster, broker: whose messages these are, in a table of many stores; None in one of one store
    cluster: str | None = None
    broker: str | None = None
    retired: int = 0  # messages that it took out, because their days are over for the table
    vacuumed: int = 0  # files that it removed, which had been taken out of the table a week before
    findings: tuple[Finding, ...] = ()  # what the table lacks of the log, and what is wrong there

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
