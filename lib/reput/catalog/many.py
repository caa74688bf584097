"""Brings a table of many stores up to date with each of them, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.catalog.broker import Broker
from reput.catalog.options import Cataloged, CatalogOptions
from reput.catalog.update import Catalog
from reput.errors import ReputError, SettingsError
from reput.remote import with_urls
from reput.unforeseen import unforeseen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one store."""

    store: str  # its directory or URL
    result: Cataloged | ReputError  # what was done, or why it was refused or failed

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        failed = isinstance(self.result, ReputError)
        facts = self.result.document() if isinstance(self.result, ReputError) else self.result.to_dict()
        return {"next_steps": [], **facts, "store": self.store, "exit_code": 2 if failed else 0}


def catalog_many(
    stores: Sequence[CatalogOptions],
    start_spark: Callable[[], SparkSession],
    listener: Callable[[int, int, int], None] = lambda *_: None,
    told: Callable[[Outcome, int], None] = lambda *_: None,
) -> list[Outcome]:
    """Bring a table up to the ends of several logs; a store that is refused or fails stops no other.

    ``told`` gets the outcome of each store, and how many are left. Raises SettingsError where two of the
    stores say that they are one broker's.
    """
    results: dict[int, Cataloged | ReputError] = {}
    planned: dict[int, Catalog] = {}
    claimed: dict[Broker, CatalogOptions] = {}
    for number, options in enumerate(stores):
        try:
            one = Catalog(options, listener=listener, either=True)
            one.find_log()
            broker = one.broker()
        except ReputError as error:
            results[number] = error
            continue
        planned[number] = one
        if broker is not None and (other := claimed.setdefault(broker, options)) is not options:
            raise SettingsError(
                "two stores say that they are one broker's",
                path=with_urls(str(options.store)),
                expected="each broker's messages from one store: its master's, or a slave's",
                found=f"{broker} here and in {with_urls(str(other.store))}",
                next_step="Leave one out, or give each its broker.conf, or cluster and broker in stores.toml",
            )
    for number, options in enumerate(stores):
        if number in planned:
            results[number] = _done(planned[number], options, start_spark)
        told(Outcome(with_urls(str(options.store)), results[number]), len(stores) - number - 1)
    return [Outcome(with_urls(str(one.store)), results[number]) for number, one in enumerate(stores)]


def _done(
    one: Catalog, options: CatalogOptions, start_spark: Callable[[], SparkSession]
) -> Cataloged | ReputError:
    try:
        with one:
            return one.advance(start_spark)
    except ReputError as error:
        return error
    except Exception as bug:  # noqa: BLE001 - of one store: the others continue
        return unforeseen(bug, options.store)
