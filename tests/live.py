"""A real store's log that appears bit by bit, as a broker writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from reput.format import names
from reput.job import TailOptions
from tests.golden.store import GoldenStore
from tests.rebuilds import broker_conf, golden, record_starts


@dataclass
class Live:
    """A store whose log appears bit by bit, in segments that are preallocated.

    Attributes:
        whole: the store in the end.
        root: the store as it is now.
        reached: physical offset up to which its log is written.
    """

    whole: GoldenStore
    root: Path
    reached: int = 0
    segments: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.segments = sorted((self.whole.root / names.COMMIT_LOG).iterdir())
        (self.root / names.COMMIT_LOG).mkdir(parents=True)
        self.starts = [
            start for segment in self.segments for start in record_starts(self.whole.root, int(segment.name))
        ]

    @property
    def options(self) -> TailOptions:
        return TailOptions(
            store=self.root,
            out=self.root.parent / "out",
            broker_conf=broker_conf(self.whole),
            rocketmq_version=self.whole.version,
        )

    def grow(self, end: int) -> None:
        """Write the log up to a physical offset."""
        for segment in self.segments:
            data, base = segment.read_bytes(), int(segment.name)
            path = self.root / names.COMMIT_LOG / segment.name
            if base > end:
                return
            if not path.exists():
                path.write_bytes(bytes(len(data)))
            start, stop = max(self.reached - base, 0), min(end - base, len(data))
            if start < stop:
                with path.open("r+b") as file:
                    file.seek(start)
                    file.write(data[start:stop])
                self.reached = base + stop

    def share(self, part: float) -> int:
        """Where the record begins that lies at this share of the log."""
        return self.starts[int(part * (len(self.starts) - 1))]

    def finish(self) -> None:
        self.grow(int(self.segments[-1].name) + self.segments[-1].stat().st_size)


def live_store(name: str, place: Path) -> Live:
    """A golden store whose log is to appear in ``place / "live"``; ``place / "out"`` is for the output."""
    whole = golden(name, place)
    conf = broker_conf(whole)
    lines = [line for line in conf.read_text().splitlines() if not line.startswith("storePath")]
    conf.write_text("\n".join(lines) + "\n")
    return Live(whole, place / "live")
