"""The messages of a finding: those that no unit of their queue leads to, or that a start cuts off."""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.derived.files import mapped, numbered_files
from reput.derived.queues import Queues
from reput.dump.commitlog import Block
from reput.errors import SettingsError, UnsupportedError
from reput.format import commitlog, javastring, names
from reput.format.dtypes import BATCH, PLAIN, Form, UnitKind, classify
from reput.format.names import QueueBytes
from reput.recovery.plan import MOST_READ, brings_back, plan
from reput.replay.placing import ANOTHER, BY_RANGE, BY_UNIT, ITSELF, KINDS, NOTHING
from reput.store.listing import nearest
from reput.store.reading import unreadable

#: Findings without messages to save, and why.
_WITHOUT = {
    "past-log-end": "the log doesn't hold these messages: look for its end on a replica or in a backup",
    "index-ahead": "the log doesn't hold these messages: look for its end on a replica or in a backup",
    "checkpoint-ahead": "the log doesn't hold these messages: look for its end on a replica or in a backup",
    "missing-segments": "the log doesn't hold these messages: look for the segments on a replica",
    "queue-cut": "units go with the messages that they lead to: export --finding log-cut saves these",
    "misplaced-unit": "consumers get these messages, in another place of the queue: `reput mend`",
    "no-index": "consumers get these messages: `reput mend` makes the index anew",
    "missing-entry": "consumers get these messages: `reput mend` makes the index anew",
}


class Stranded:
    """Chooses the messages of one kind of finding.

    Args:
        settings: of a whole store.
        kind: the finding's name.

    Raises:
        SettingsError: no finding with messages has this name; says why.
        ReputError: what a start cuts off can't be told.

    Attributes:
        uncertain: in words, whether messages among them were cut off on purpose.
    """

    def __init__(self, settings: StoreSettings, kind: str) -> None:
        self._settings = settings
        self._kind = check_kind(kind)
        self._ranges: list[tuple[int, int]] = []
        self._queues: dict[QueueBytes, _Queue] = {}
        self.uncertain: list[str] = []
        by_range = kind in BY_RANGE
        if not by_range:
            self._batch = settings.batch_topics()
            self._all = Queues(settings)
        elif settings.dledger is not None:
            raise UnsupportedError("what a start cuts off a DLedger log isn't known", path=settings.root)
        with nullcontext() if by_range else suppress(UnsupportedError):
            snapshot = take(settings)
            if by_range or snapshot.holder is None:
                start = plan(snapshot, None if by_range else MOST_READ)
                self.uncertain += brings_back(start.prediction)
                self._ranges = [(loss.offset, loss.end) for loss in start.losses if loss.kind == kind]

    def of(self, block: Block) -> NDArray[np.int64]:
        """Which rows of a block they are: int64[n], ascending."""
        rows, found = block.rows, block.frames
        places = found.position[rows] + block.base
        if self._kind in BY_RANGE:
            mask = np.zeros(len(rows), np.bool_)
            for start, end in self._ranges:
                mask |= (places >= start) & (places < end)
            return rows[mask]
        state = found.sys_flag[rows] & commitlog.TRANSACTION_MASK
        has_unit = (state == commitlog.TRANSACTION_NONE) | (state == commitlog.TRANSACTION_COMMIT)
        of_queue: dict[QueueBytes, list[int]] = {}
        columns = found.topic[rows], found.topic_length[rows], found.queue_id[rows]
        for number, (at, length, queue_id) in enumerate(zip(*(one.tolist() for one in columns), strict=True)):
            of_queue.setdefault((block.data[at : at + length].tobytes(), queue_id), []).append(number)
        wanted = np.zeros(len(rows), np.bool_)
        for queue, numbers in of_queue.items():
            chosen = np.array(numbers)
            states = self._queue(queue).states(found.queue_offset[rows[chosen]], places[chosen])
            wanted[chosen] = np.isin(states, list(BY_UNIT[self._kind]))
        chosen_rows: NDArray[np.int64] = rows[wanted & has_unit]
        return chosen_rows

    def _queue(self, queue: QueueBytes) -> _Queue:
        found = self._queues.get(queue)
        if found is None:
            topic = javastring.decode(queue[0])
            form = BATCH if topic in self._batch else PLAIN
            if names.topic_problem(topic.encode()) is not None:
                found = _Queue([])  # no directory can have this name
            elif self._all.is_in_rocksdb(topic):
                found = _QueueBytes(self._all, topic, queue[1])
            else:
                found = _Queue(_files(form.place(self._settings.root, topic, queue[1])), form)
            self._queues[queue] = found
        return found


def check_kind(kind: str) -> str:
    """The name of a finding with messages to save.

    Raises:
        SettingsError: it is none; says why, or which may have been meant.
    """
    if kind in KINDS:
        return kind
    meant = nearest(kind, [*KINDS, *_WITHOUT])
    raise SettingsError(
        f"finding {kind} has no messages to save" if kind in _WITHOUT else "--finding can't be understood",
        expected=f"one of {', '.join(KINDS)}",
        found=kind,
        next_step=_WITHOUT.get(kind) or (None if meant is None else f"Did you mean {meant}?"),
    )


def _files(directory: Path) -> list[tuple[Path, int, int]]:
    return numbered_files(directory) if directory.is_dir() else []


class _Queue:
    """The units of a queue, as they are on disk.

    Args:
        files: (path, byte offset of the first byte in the queue, bytes), in order.
        form: of the queue.
    """

    def __init__(self, files: Iterable[tuple[Path, int, int]], form: Form = PLAIN) -> None:
        self._form = form
        self._bases: list[int] = []
        self._units = []
        for path, base, length in files:
            whole = length - length % form.unit_length
            if not whole:
                continue
            try:
                units = mapped(path, whole)
            except (OSError, ValueError) as error:  # no permission; or it has become shorter meanwhile
                reason = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
                raise unreadable("this queue", path, reason) from error
            self._bases.append(base // form.unit_length)
            self._units.append(units.view(form.dtype))
        self._known: NDArray[np.int64] | None = None

    def states(self, offsets: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """What stands in the places of messages.

        Args:
            offsets: int64[messages], queueOffsets.
            places: int64[messages], physical offsets.

        Returns:
            int64[messages]. One that stands elsewhere in the queue counts as itself: consumers get it.
        """
        found = np.full(len(offsets), ITSELF)
        for number in np.flatnonzero(~self._is_in(places)).tolist():
            found[number] = ANOTHER if self._holds(int(offsets[number])) else NOTHING
        return found

    def _is_in(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        known = self._positions()
        at = np.minimum(np.searchsorted(known, places), max(len(known) - 1, 0))
        return known[at] == places if len(known) else np.zeros(len(places), np.bool_)

    def _positions(self) -> NDArray[np.int64]:
        """Physical offsets that units lead to, int64[units], ascending; 8 bytes of memory each."""
        if self._known is None:
            pieces = [units["position"][_is_unit(units)].astype(np.int64) for units in self._units]
            self._known = np.sort(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)
        return self._known

    def _holds(self, offset: int) -> bool:
        """Whether a unit stands at a queueOffset; never in a batch queue, where it has no place."""
        number = bisect_right(self._bases, offset) - 1
        if not self._form.by_place or number < 0 or offset < 0:
            return False
        units, at = self._units[number], offset - self._bases[number]
        return at < len(units) and bool(_is_unit(units[at : at + 1])[0])


class _QueueBytes(_Queue):
    """The units of a queue in RocksDB: each stands at its queueOffset."""

    def __init__(self, queues: Queues, topic: str, queue_id: int) -> None:
        super().__init__([])
        self._offsets, positions = queues.positions_in_rocksdb(topic, queue_id)
        self._known = np.sort(positions)

    def _holds(self, offset: int) -> bool:
        at = int(np.searchsorted(self._offsets, offset))
        return at < len(self._offsets) and int(self._offsets[at]) == offset


def _is_unit(units: NDArray[np.void]) -> NDArray[np.bool_]:
    is_one: NDArray[np.bool_] = classify(units) == UnitKind.MESSAGE
    return is_one
