"""The options of the jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from reput.config.basis import Asked, Writes
from reput.errors import SettingsError
from reput.newer_python import Self
from reput.store.places import lies_in

if TYPE_CHECKING:
    from reput.catalog import CatalogOptions

GIB = 1 << 30
_LEAST_PART_BYTES = 128 << 20
_PARTS_A_SLOT = 4


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """The options of ``reput rebuild``."""

    store: Path  # the store; holds ``commitlog/`` unless broker.conf says otherwise
    out: Path | None = None  # directory for the output, None to rebuild in place
    broker_conf: Path | None = None  # the broker's own configuration file, None to use what the store shows
    rocketmq_version: str | None = None  # the dialect, None to use what the store shows
    queues: tuple[str, ...] = ()  # ``TOPIC`` or ``TOPIC:ID``; empty for all
    index: bool = True  # build index files, too
    known_topics_only: bool = False  # leave out topics that config/topics.json doesn't name
    max_bytes_per_trigger: int = 4 * GIB  # bytes of log that one micro-batch takes
    part_bytes: int = 256 << 20  # bytes of log that one task takes at most
    catalog: Path | None = None  # a Delta table that gets all messages, None for none
    catalog_bodies: bool = False  # with their bodies
    convert: bool = False  # in place, to the sizes and the release given, whatever the store shows
    changes: tuple[tuple[str, str], ...] = ()  # keys and values that take the place of those in broker_conf
    #: physical offsets of messages with a wrong body that are passed over like other damage
    without: tuple[int, ...] = ()
    #: tasks write into the same files, as they may where all share one page cache; False: they don't;
    #: None: what the executors show
    single_host: bool | None = None
    #: conf_by_hand, version_by_hand: broker_conf or rocketmq_version was given by an option, not by
    #: the environment
    conf_by_hand: bool = True
    version_by_hand: bool = True

    def for_slots(self, slots: int, log_bytes: int) -> Self:
        """These options for so many tasks at once, and so many bytes of log.

        A task costs Spark 15 ms of a core, which smaller parts pay more often; larger ones leave slots idle
        at a batch's end. So parts are as large as they may be while a batch has four of them for each slot.
        """
        part, batch = self.part_bytes, min(log_bytes, self.max_bytes_per_trigger)
        while part > _LEAST_PART_BYTES and batch < _PARTS_A_SLOT * slots * part:
            part //= 2
        return replace(self, part_bytes=part)

    @property
    def asked(self) -> Asked:
        """What the store's own files may contradict."""
        return Asked(
            Writes.IN_PLACE if self.out is None else Writes.BESIDE,
            index=self.index and not self.queues,
            conf_by_hand=self.conf_by_hand,
            version_by_hand=self.version_by_hand,
            converts=self.convert,
        )

    def to_catalog(self) -> CatalogOptions | None:
        """What to put into the table of messages; None when no table is wanted.

        Refused where only chosen queues are to be rebuilt, for a table has the messages of all.
        """
        if self.catalog is None:
            if self.catalog_bodies:
                raise SettingsError("bodies go into a catalog", expected="--catalog DIR", found="none")
            return None
        if self.queues:
            raise SettingsError(
                "a catalog has the messages of all queues",
                expected="either --catalog or --queue",
                found="both",
                next_step="Run `reput catalog` by itself",
            )
        out = self.out
        if out is not None and (lies_in(self.catalog, out) or lies_in(out, self.catalog)):
            raise SettingsError(
                "catalog and output can't be inside each other",
                path=self.catalog,
                expected=f"a directory outside of {out}, and not around it",
                next_step="Name another directory with --catalog",
            )
        from reput.catalog import CatalogOptions

        return CatalogOptions(
            store=self.store,
            table=self.catalog,
            broker_conf=self.broker_conf,
            rocketmq_version=self.rocketmq_version,
            bodies=self.catalog_bodies,
        )


@dataclass(frozen=True, slots=True)
class TailOptions(RebuildOptions):
    """The options of ``reput tail``; ``out`` is given."""

    max_rate: int | None = None  # bytes of log a second that are read at most, None for no limit
    metrics_port: int | None = None  # where metrics are served, 0 for any free port, None for no metrics
    metrics_address: str = "127.0.0.1"  # the address that this port is opened on
