"""The table of messages that a rebuild or a tail keeps up to date, if one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.errors import SettingsError
from reput.job.options import RebuildOptions
from reput.store.outside import lies_in

if TYPE_CHECKING:
    from reput.catalog.options import CatalogOptions


def catalog_options(options: RebuildOptions) -> CatalogOptions | None:
    """What to catalog; None when no table is asked for.

    Raises:
        SettingsError: chosen queues are to be rebuilt, but a table has the messages of all; or one of the two
            directories lies in the other.
    """
    if options.catalog is None:
        if options.catalog_bodies:
            raise SettingsError("bodies go into a catalog", expected="--catalog DIR", found="none")
        return None
    if options.queues:
        raise SettingsError(
            "a catalog has the messages of all queues",
            expected="either --catalog or --queue",
            found="both",
            next_step="Run `reput catalog` by itself",
        )
    out = options.out
    if out is not None and (lies_in(options.catalog, out) or lies_in(out, options.catalog)):
        raise SettingsError(
            "catalog and output can't lie in each other",
            path=options.catalog,
            expected=f"a place outside of {out}, and not around it",
            next_step="Name another directory with --catalog",
        )
    from reput.catalog.options import CatalogOptions

    return CatalogOptions(
        store=options.store,
        table=options.catalog,
        broker_conf=options.broker_conf,
        rocketmq_version=options.rocketmq_version,
        bodies=options.catalog_bodies,
    )
