"""Topics' messages by their queues' units, where ``check --proofs`` has shown that these are all of them.

Of a sealed segment that is as it was then, a proof says which units are a queue's messages in it, and their
sum. A task that reads units with this sum needs nothing else of the segment but the messages they lead to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.derived.plain import QueueReader
from reput.errors import SettingsError
from reput.format import dledger
from reput.log.segments import Segment
from reput.source.filters import ALL, NOTHING, Range, Wanted
from reput.source.ranges import ReadStatistics
from reput.store.reading import read_file
from reput.verify.proven import Proofs, QueueUnits, identity_of_segment
from reput.verify.units import unit_sum, units_of

if TYPE_CHECKING:
    from reput.scan.rules import Part


@dataclass(frozen=True, slots=True)
class ProvenQueues:
    """What proofs say of a store's queues."""

    proofs: Proofs  # of this store
    multi_dispatch: bool  # messages may have units in other queues than their own

    @classmethod
    def load(cls, path: Path, settings: StoreSettings) -> ProvenQueues:
        """Those in a file of ``check --proofs``.

        Raises:
            SettingsError: it can't be read, or is another store's.
        """
        try:
            proofs = Proofs.decode(
                read_file(path), path, "Make it anew: reput check STORE --proofs FILE --all"
            )
        except OSError as error:
            raise SettingsError(
                "the proofs can't be read",
                path=path,
                expected="a file that `reput check STORE --proofs FILE` wrote",
                found=error.strerror or str(error),
            ) from error
        here = str(settings.root.absolute())
        if proofs.place != here:
            raise SettingsError(
                "the proofs are another store's", path=path, expected=here, found=proofs.place
            )
        return cls(proofs, settings.enable_multi_dispatch)

    def units(self, segment: Segment, wanted: Wanted) -> tuple[QueueUnits, ...] | None:
        """The units of all wanted messages of a segment, and of others; None where they aren't known."""
        topics = wanted.texts.get("topic")
        proof = self.proofs.segments.get(segment.base)
        if topics is None or self.multi_dispatch or proof is None or proof.length != segment.length:
            return None
        if proof.identity is None or proof.identity != identity_of_segment(segment):
            return None
        found = proof.units_of(topics)
        return None if found is None else tuple(one for one in found if _may_hold(one, wanted))


def places(
    units: tuple[QueueUnits, ...],
    settings: StoreSettings,
    wanted: Wanted,
    part: Part,
    reads: ReadStatistics,
) -> NDArray[np.int64] | None:
    """Where the frames of wanted messages begin, positions in their segment, ascending.

    Args:
        units: those of the segment.
        part: whose messages are wanted.

    Returns:
        int64[messages], some of which may not be wanted; None where units aren't what was proven.
    """
    with QueueReader(settings.root, settings.consume_queue_file_size) as reader:
        stored = [reader.read(one.topic, one.queue_id, one.first, one.next - one.first) for one in units]
    reads.files += reader.opened
    reads.read += sum(map(len, stored))
    found = [np.empty(0, np.int64)]
    for one, data in zip(units, stored, strict=True):
        if unit_sum(one.first, data) != one.sum:
            return None
        fits = _offsets(one, wanted).holds(np.arange(one.first, one.next))
        found.append(units_of(data)["position"].astype(np.int64)[fits])
    lead = dledger.HEADER_LENGTH if settings.entries else 0
    frames = np.sort(np.concatenate(found)) - lead
    return frames[(part.start <= frames) & (frames < part.end)] - part.base


def _may_hold(one: QueueUnits, wanted: Wanted) -> bool:
    queue = wanted.range_of("queueId").clip(one.queue_id, one.queue_id)
    return queue is not None and _offsets(one, wanted).clip(one.first, one.next - 1) is not None


def _offsets(one: QueueUnits, wanted: Wanted) -> Range:
    """The queueOffsets of a queue that are wanted."""
    of_queue = ALL if wanted.queues is None else wanted.queues.get((one.topic, one.queue_id), NOTHING)
    return wanted.range_of("queueOffset").and_(of_queue)
