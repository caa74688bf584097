"""How many messages a log has to have: what the store took of its writer, less what cuts have lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.torture.day.stores import FedStore, Queue, Record, Slave
from tests.torture.verify import WrongError


class Books:
    """Kept by queue, over all lives of a store.

    Args:
        feed: the store that is written to.
        slave: has its log up to some place.

    Attributes:
        uncounted: messages in the log whose writer was killed before it counted them.
        lost: messages that were in the log, and are no more.
    """

    def __init__(self, feed: FedStore, slave: Slave) -> None:
        self.uncounted: Counter[Queue] = Counter()
        self.lost: Counter[Queue] = Counter()
        self._feed, self._slave = feed, slave

    def kept(self) -> Counter[Queue]:
        """How many messages of each queue the log has to have."""
        kept = self._feed.taken()
        kept.update(self.uncounted)
        kept.subtract(self.lost)
        return kept

    def after_kill(self, found: Sequence[Record], *, lost: int) -> int:
        """Count what is in the log of a store that was killed; where the log ends now.

        Args:
            found: what was in it from the slave's end on when the store was killed.
            lost: how many of these, the last ones, have been lost since.

        Raises:
            WrongError: the log had other messages than the store took, or more than one beside those.
        """
        more = self._slave.counts + Counter(record.queue for record in found)
        more.subtract(self.kept())
        if min(more.values(), default=0) < 0 or more.total() > 1:
            raise WrongError(f"the log has other messages than its store has taken: {dict(more)}")
        self.uncounted.update(+more)
        self.lost.update(record.queue for record in found[len(found) - lost :])
        kept = found[: len(found) - lost]
        return kept[-1].position + kept[-1].size if kept else self._slave.end
