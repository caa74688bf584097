"""A Spark cluster on this machine: a standalone master and its workers, on the loopback.

``python -m tests.cluster`` runs a rebuild on it and compares the result with the broker's own files;
docs/cluster.md says what a real cluster needs.
"""

from __future__ import annotations

from tests.cluster.standalone import Cluster, Job, Submitted

__all__ = ["Cluster", "Job", "Submitted"]
