"""A message of the commit log as a line of a dump; docs/source.md has the names."""

from __future__ import annotations

from contextlib import suppress

from reput.errors import StoreError
from reput.query.message import Message


def row(message: Message) -> dict[str, object]:
    """The message without its body, JSON-ready; times in ms."""
    return {"type": "message", **message.columns()}


def body(message: Message) -> dict[str, object]:
    """The body as its producer gave it, JSON-ready: ``body`` where it is UTF-8, else ``bodyHex``.

    Of a batch that clients take apart ``innerMessages``. A body that doesn't uncompress, or is no batch, is
    shown as it is stored, with ``bodyProblem``.
    """
    try:
        if not message.is_wrapped:
            return _text(message.body())
        inner = message.unwrapped()
    except StoreError as error:
        return {"bodyHex": message.record.body.hex(), "bodyProblem": str(error)}
    return {"innerMessages": [{**one.columns(), **_text(one.body)} for one in inner]}


def _text(data: bytes) -> dict[str, object]:
    with suppress(UnicodeDecodeError):
        return {"body": data.decode()}
    return {"bodyHex": data.hex()}
