"""The building blocks of the notebooks in ``notebooks/``: stores to look at, data frames, charts.

Frames come from :mod:`~reput.explore.tables` (a store's files, for SQL), :mod:`~reput.explore.traffic` (the
log through Spark), :mod:`~reput.explore.lags` (what consumers committed), :mod:`~reput.explore.reach` (an
incident), :mod:`~reput.explore.latency` (a tail), and :mod:`~reput.explore.fleet`,
:mod:`~reput.explore.replicas` and :mod:`~reput.explore.dead_letters` (several stores).
:mod:`~reput.explore.charts` draws them; it alone needs matplotlib: ``reput[spark,notebook]``.
"""

from __future__ import annotations

from reput.explore.workspace import Store, Workspace

__all__ = ["Store", "Workspace"]
