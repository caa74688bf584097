"""A tail without Spark, in this process, over a log that grows before its eyes: seconds, not minutes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reput.format import names
from reput.log.segments import discover
from reput.output.writer import BatchWriter
from reput.replay.state import State
from reput.store import files
from tests.laid_out import Log
from tests.local import NoLedger, Runner, Store, opened_output, parts_of, target_of


class GrowingLog:
    """A log on its way to what it will be in the end, as a broker writes it: into segments full of zeros.

    Args:
        store: its commit log is emptied.
        laid: what the log will hold.
    """

    def __init__(self, store: Store, laid: Log) -> None:
        self.store = store
        self.end = laid.end
        self.reached = laid.segments[0][0]
        self._segments = laid.segments
        self._ends = [*laid.starts, laid.end]
        self._directory = store.root / names.COMMIT_LOG
        for path in self._directory.iterdir():
            path.unlink()
        self.grow(self.reached)

    def grow(self, offset: int) -> None:
        """Let everything below a physical offset be written; the segment after it is there already, too."""
        for number, (base, data) in enumerate(self._segments):
            path = self._directory / names.offset_name(base)
            if not path.exists():
                if number and self._segments[number - 1][0] > offset:
                    break
                path.write_bytes(bytes(len(data)))
            written, now = max(self.reached - base, 0), min(offset - base, len(data))
            if written < now:
                with path.open("r+b") as file:
                    file.seek(written)
                    file.write(data[written:now])
        self.reached = max(self.reached, offset)

    @property
    def settled(self) -> int:
        """The physical offset after the last message that is whole, or was before it was damaged."""
        return max((end for end in self._ends if end <= self.reached), default=self._ends[0])


def tail_locally(
    log: GrowingLog,
    out: Path,
    offsets: Sequence[int],
    *,
    limit: int = 1 << 30,
    part_bytes: int = 1 << 20,
    ledger: bool = False,
) -> State:
    """Follow a log that grows to these physical offsets, one after the other, which may lie within messages.

    Args:
        limit: bytes that a batch takes at most.
        part_bytes: bytes of log in a part.
        ledger: write the Delta ledger, too.

    Returns:
        What the journal says after a clean stop.
    """
    store = log.store
    files.make_dirs(out)
    target = target_of(store, out)
    with opened_output(target, discover(store.settings)) as journal:
        writer = BatchWriter(
            target, journal, discover(store.settings), Runner(), look=lambda: discover(store.settings)
        )
        if not ledger:
            writer._ledger = NoLedger()  # type: ignore[assignment]
        writer.begin()
        batch_id = 0
        for offset in [log.reached, *offsets]:
            log.grow(offset)
            found = discover(store.settings)
            start = journal.state.cursor
            while start < log.settled:
                stop = min(start + limit, log.settled)
                if batch_id % 2 and writer.is_small(stop):
                    # As a tail does it: from the end that Spark planned, and then from Spark's rows.
                    writer.write_to(stop, batch_id)
                    writer.write([], -1)
                writer.write(parts_of(found, start, stop, part_bytes, journal.state.cursor), batch_id)
                start, batch_id = stop, batch_id + 1
        writer.finish()
        writer.close()
        return journal.state
