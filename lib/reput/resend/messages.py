"""The messages to send: the lines of an export, or all records of a store's log, each with its place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.dump.commitlog import Block, Reader
from reput.dump.damage import Damage
from reput.dump.places import log_place
from reput.dump.wanted import Wanted
from reput.errors import StoreError
from reput.export.records import deliver_time, message_of
from reput.format import commitlog
from reput.query.message import Message
from reput.store.reading import unreadable

#: Bytes of the longest line: a body of base64, and what a record has beyond it.
_MOST_LINE = 1 << 30


@dataclass(frozen=True, slots=True)
class Item:
    """A message in its place."""

    #: start, next: where it begins, and where the next one does: bytes of a file, or physical offsets
    start: int
    next: int
    message: Message  # the message
    due: int | None  # when a delayed one is to be delivered, ms; None for others
    data: bytes  # its bytes there

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its bytes."""
        return hashlib.sha256(self.data).hexdigest()


class LinesSource:
    """The lines of a file that ``reput export`` wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damage: list[Damage] = []

    def items(self, start: int) -> Iterator[Item]:
        """The messages from a byte on, where a line begins.

        Raises:
            StoreError: a line is none; names it.
        """
        try:
            with open(self._path, "rb") as file:
                file.seek(start)
                at = start
                while line := file.readline(_MOST_LINE):
                    if line.strip():
                        yield self._item(at, line)
                    at += len(line)
        except OSError as error:
            raise unreadable("the export", self._path, error) from error

    def _item(self, at: int, line: bytes) -> Item:
        try:
            message = message_of(line)
            if not line.endswith(b"\n"):
                raise ValueError("expected a whole line, found one without its end")
            due = json.loads(line).get("deliver_timestamp")
        except ValueError as error:
            expected, _, found = str(error).removeprefix("expected ").partition(", found ")
            raise StoreError(
                "this is no line of an export",
                path=self._path,
                offset=at,
                expected=expected,
                found=found or None,
                next_step="Export the messages again, or mend the line",
            ) from None
        return Item(at, at + len(line), message, due if type(due) is int else None, line)


class StoreSource:
    """All records of a log, one after the other."""

    def __init__(self, path: Path, broker_conf: Path | None, version: str | None) -> None:
        self._place = log_place(path, broker_conf, version)
        self.damage: list[Damage] = []

    def items(self, start: int) -> Iterator[Item]:
        """The messages from a physical offset on."""
        place = self._place
        reader = Reader(place.settings, entries=place.log.entries, wanted=Wanted(), start=start)
        for event in reader.log(place.log, followed=place.followed):
            if isinstance(event, Damage):
                self.damage.append(event)
            if not isinstance(event, Block):
                continue
            for one in event.messages():
                at = one.record.physical_offset
                due = deliver_time(one, place.settings.delay_levels_ms)
                yield Item(at, at + one.size, one, due, commitlog.encode(one.record))


Source = LinesSource | StoreSource


def check_resumed(path: Path, source: Source, last: int, fingerprint: str) -> None:
    """See that the message that was sent last is still there, so that the position is of these messages.

    Raises:
        StoreError: it isn't.
    """
    item = next(source.items(last), None)
    if item is None or item.start != last or item.fingerprint != fingerprint:
        raise StoreError(
            "these aren't the messages that an earlier run has begun to send",
            path=path,
            offset=last,
            expected=f"the message that was sent last, with SHA-256 {fingerprint}",
            found="another one" if item is not None else "none",
            next_step="Name another file with --position; then all messages are sent",
        )
