"""Which records of the commit log are asked for; told by columns, before any record is taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format import commitlog, javastring
from reput.scan.fields import begins
from reput.scan.frames import Frames
from reput.scan.load import u8


class Transaction(Enum):
    """The transaction state in a sysFlag."""

    NONE = "none"
    PREPARED = "prepared"
    COMMIT = "commit"
    ROLLBACK = "rollback"


_STATES = {
    Transaction.NONE: commitlog.TRANSACTION_NONE,
    Transaction.PREPARED: commitlog.TRANSACTION_PREPARED,
    Transaction.COMMIT: commitlog.TRANSACTION_COMMIT,
    Transaction.ROLLBACK: commitlog.TRANSACTION_ROLLBACK,
}


def transaction_of(sys_flag: int) -> Transaction:
    """The transaction state of a record."""
    return next(state for state, bits in _STATES.items() if sys_flag & commitlog.TRANSACTION_MASK == bits)


@njit(cache=CACHED, nogil=True)
def _equal(data, starts, lengths, text):  # type: ignore[no-untyped-def]
    found = np.zeros(len(starts), np.bool_)
    for row in range(len(starts)):
        found[row] = lengths[row] == len(text) and begins(data, starts[row], text)
    return found


@njit(cache=CACHED, nogil=True)
def _holds(data, starts, lengths, word):  # type: ignore[no-untyped-def]
    found = np.zeros(len(starts), np.bool_)
    for row in range(len(starts)):
        begin = starts[row]
        end = begin + lengths[row]
        at = begin
        while at < end and not found[row]:
            stop = at
            while stop < end and u8(data, stop) != 0x20:
                stop += 1
            found[row] = stop - at == len(word) and begins(data, at, word)
            at = stop + 1
    return found


class Pieces(NamedTuple):
    """Pieces of ``data``, uint8[bytes]: where each starts and its length, both int64[pieces]."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def are(self, text: bytes) -> NDArray[np.bool_]:
        """Which of them are this text: bool[pieces]."""
        found: NDArray[np.bool_] = _equal(*self, np.frombuffer(text, np.uint8))
        return found

    def read_as(self, text: bytes) -> NDArray[np.bool_]:
        """Which of them are this text, or what Java reads as it: bool[pieces]."""
        found = self.are(text)
        if "\ufffd".encode() in text:  # else it has no other spelling
            for row in np.flatnonzero(~found).tolist():
                piece = self.data[self.starts[row] : self.starts[row] + self.lengths[row]].tobytes()
                found[row] = javastring.utf8(piece) == text
        return found

    def hold(self, word: bytes) -> NDArray[np.bool_]:
        """Which of them have this among their words, which single spaces separate: bool[pieces]."""
        found: NDArray[np.bool_] = _holds(*self, np.frombuffer(word, np.uint8))
        return found


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a record must have; None asks for nothing."""

    topics: tuple[str, ...] = ()  # one of these
    #: one of these, (topic, queueId); a queueId of None stands for all queues of the topic
    queues: tuple[tuple[str, int | None], ...] = ()
    queue_start: int | None = None  # queue_start, queue_end: half open, of queueOffsets
    queue_end: int | None = None
    tags: frozenset[str] | None = None  # TAGS is one of these
    key: str | None = None  # a word of KEYS, or UNIQ_KEY, is this, as a client asks for a key
    uniq_key: str | None = None  # UNIQ_KEY is this
    transaction: Transaction | None = None  # its state
    body_size_over: int | None = None  # its body, as it is stored, has more bytes than this
    since: int | None = None  # since, until: storeTimestamp in ms; half open
    until: int | None = None

    @property
    def named(self) -> tuple[tuple[str, int | None], ...]:
        """The topics and queues that are asked for."""
        return (*((topic, None) for topic in self.topics), *self.queues)

    def rows(self, data: NDArray[np.uint8], found: Frames, count: int) -> NDArray[np.bool_]:
        """Which of the first ``count`` records are wanted: bool[count].

        ``found``: the columns of a block. ``count``: how many records are in it.
        """
        mask = np.ones(count, np.bool_)
        times, offsets = found.store_timestamp[:count], found.queue_offset[:count]
        if self.since is not None:
            mask &= times >= self.since
        if self.until is not None:
            mask &= times < self.until
        if self.queue_start is not None:
            mask &= offsets >= self.queue_start
        if self.queue_end is not None:
            mask &= offsets < self.queue_end
        if self.transaction is not None:
            mask &= found.sys_flag[:count] & commitlog.TRANSACTION_MASK == _STATES[self.transaction]
        if self.body_size_over is not None:
            mask &= found.body_length[:count] > self.body_size_over
        if self.topics or self.queues:
            mask &= self._places(data, found, count)
        if self.tags is not None:
            tags = Pieces(data, found.tags[:count], found.tags_length[:count])
            mask &= np.any([tags.are(_bytes(tag)) for tag in self.tags], axis=0)
        if self.key is not None or self.uniq_key is not None:
            unique_keys = Pieces(data, found.unique_key[:count], found.unique_key_length[:count])
            if self.uniq_key is not None:
                mask &= unique_keys.are(_bytes(self.uniq_key))
            if self.key is not None:
                key, keys = _bytes(self.key), Pieces(data, found.keys[:count], found.keys_length[:count])
                mask &= keys.hold(key) | unique_keys.are(key)
        return mask

    def _places(self, data: NDArray[np.uint8], found: Frames, count: int) -> NDArray[np.bool_]:
        mask = np.zeros(count, np.bool_)
        topics = Pieces(data, found.topic[:count], found.topic_length[:count])
        for topic, queue_id in (*((topic, None) for topic in self.topics), *self.queues):
            one = topics.read_as(_bytes(topic))
            if queue_id is not None:
                one &= found.queue_id[:count] == queue_id
            mask |= one
        return mask


def _bytes(text: str) -> bytes:
    """As a terminal gave it: what wasn't UTF-8 there becomes the same bytes again."""
    return text.encode("utf-8", "surrogateescape")
