"""What is tried: a store that the real one wrote, and what is done to it, by a name to run it again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fixed_point.damages import ALL, Victim, damage

#: How a store was left, as tests/compat/starts.py makes them.
STATES = ("written", "killed", "behind")
#: Every store is what it was, or what few damages of the matrix leave.
_SEEDS = 1 << 20


@dataclass(frozen=True, slots=True)
class Original:
    """A store to be copied and damaged.

    Attributes:
        root: its directory; nothing in it is changed.
        conf: its broker.conf, which names no place.
        version: the release that wrote it, and starts on it.
        segment_size, queue_file_size: bytes.
    """

    root: Path
    conf: Path
    version: str
    segment_size: int
    queue_file_size: int


@dataclass(frozen=True, slots=True)
class Case:
    """One combination; its text names it.

    Attributes:
        version: of the release.
        state: one of STATES, or a golden store's name.
        damages: kinds and seeds, in the order in which they happen.
    """

    version: str
    state: str
    damages: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.version}/{self.state}/" + "+".join(f"{kind}:{seed}" for kind, seed in self.damages)

    @classmethod
    def of(cls, text: str) -> Case:
        """The case of that name."""
        version, state, damages = text.split("/")
        return cls(
            version,
            state,
            tuple((kind, int(seed)) for kind, _, seed in (one.partition(":") for one in damages.split("+"))),
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds alone."""
        return tuple(kind for kind, _ in self.damages)

    def damage(self, root: Path, original: Original) -> int:
        """Damage a copy; how many of the damages found a place."""
        victim = Victim(root, self.version, original.segment_size, original.queue_file_size)
        return sum(damage(victim, kind, seed) for kind, seed in self.damages)


def drawn(seed: int, versions: tuple[str, ...], kinds: tuple[str, ...] = ALL) -> Iterator[Case]:
    """Cases without end, two or three damages each; the same ones for a seed."""
    rng = random.Random(seed)
    while True:
        for version in versions:
            count = rng.choice((2, 2, 3))
            damages = tuple((kind, rng.randrange(_SEEDS)) for kind in rng.choices(kinds, k=count))
            yield Case(version, rng.choice(STATES), damages)
