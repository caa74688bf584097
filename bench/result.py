"""What was measured, independent of how it is shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

JAVA = "RocketMQ's own"
COLD = "reput, cold"
WARM = "reput, warm"
FLOOR = "reput without Spark"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table: the same thing done several times.

    Attributes:
        who: :data:`JAVA`, :data:`COLD`, :data:`WARM` or :data:`FLOOR`.
        version: whose bytes were built, a RocketMQ release.
        cores: CPUs that all processes of a run shared.
        seconds: wall time of each run.
        peak_bytes: anonymous memory of each run's processes together, at its peak.
        stages: for each run, seconds by stage; they add up to its wall time.
    """

    who: str
    version: str
    cores: int
    seconds: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    stages: tuple[dict[str, float], ...]

    @property
    def median_seconds(self) -> float:
        """The median of the runs' times."""
        return median(self.seconds)

    @property
    def median_peak_bytes(self) -> int:
        """The median of the runs' peaks."""
        return int(median(self.peak_bytes))

    @property
    def median_stages(self) -> dict[str, float]:
        """Each stage's median, stages in the order of the first run that has them; 0 where a run lacks it."""
        stages = dict.fromkeys(name for run in self.stages for name in run)
        return {name: median(run.get(name, 0.0) for run in self.stages) for name in stages}

    def to_dict(self) -> dict[str, Any]:
        """The result, JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Result:
        """What :meth:`to_dict` gave."""
        lists = {name: tuple(facts[name]) for name in ("seconds", "peak_bytes", "stages")}
        return cls(**{**facts, **lists})


def times_as_fast(result: Result, results: list[Result]) -> float | None:
    """RocketMQ's own time, same version and cores, divided by this one; None when it isn't known."""
    for other in results:
        if (other.who, other.version, other.cores) == (JAVA, result.version, result.cores):
            return other.median_seconds / result.median_seconds
    return None
