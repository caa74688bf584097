"""The building blocks of the notebooks beside it: stores to look at, data frames, charts.

Frames come from :mod:`~explore.tables` (a store's files, for SQL), :mod:`~explore.traffic` (the log through
Spark), :mod:`~explore.lags` (what consumers committed), :mod:`~explore.incident` (damage, and what is reached
then), :mod:`~explore.latency` (a tail), and :mod:`~explore.fleet`, :mod:`~explore.replicas` and
:mod:`~explore.dead_letters` (several stores). :mod:`~explore.charts` draws them.
"""

from __future__ import annotations

from explore.workspace import Store, Terminal, Workspace

__all__ = ["Store", "Terminal", "Workspace"]
