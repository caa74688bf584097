"""The filters of consumers, as ``config/consumerFilter.json`` has them now."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from reput.config.kept import Rereading
from reput.config.settings import StoreSettings
from reput.filter.bloom import BloomFilter

if TYPE_CHECKING:
    from reput.filter.bitmaps import TopicFilters

_LOG = logging.getLogger(__name__)


class FiltersNow:
    """Filters by topic, ready for blocks of messages: read again when the file has changed.

    A broker writes the file every ten seconds, and uses what it has in memory, so that a tail may learn of a
    new consumer some messages later than its broker. This is small enough to be pickled with a task.

    Args:
        settings: of a store with ``enableConsumeQueueExt`` and ``enableCalcFilterBitMap``.

    Raises:
        SettingsError: settings of the Bloom filter with which no broker starts.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._bloom = BloomFilter.create(settings.filters)
        self._file = Rereading(settings.consumer_filter_json, self._read)

    @classmethod
    def of(cls, settings: StoreSettings) -> FiltersNow | None:
        """Those of a store; None where units have no bit maps.

        Raises:
            SettingsError: as the class; or the file can't be read.
        """
        if not settings.has_bit_maps:
            return None
        filters = cls(settings)
        filters.by_topic()
        return filters

    def __reduce__(self) -> tuple[type[FiltersNow], tuple[StoreSettings]]:
        return FiltersNow, (self._settings,)

    def by_topic(self) -> Mapping[str, TopicFilters]:
        """The filters of each topic that has any.

        Raises:
            SettingsError: the file can't be read, nor the one beside it that stands in for it.
        """
        return self._file.now()

    def _read(self) -> Mapping[str, TopicFilters]:
        # Not before: the parser takes longer to be imported than most stores have filters.
        from reput.filter.bitmaps import TopicFilters
        from reput.filter.consumers import load

        path = self._settings.consumer_filter_json
        found = load(path, self._bloom, parts=self._settings.dialect.filter_parts)
        if found.ignored is not None:
            _LOG.warning("%s is ignored: %s", path, found.ignored)
        return {topic: TopicFilters(filters, self._bloom) for topic, filters in found.by_topic.items()}
