"""A message of the commit log as a row, in the names of the data source's columns: docs/source.md."""

from __future__ import annotations

from contextlib import suppress

from reput.errors import StoreError
from reput.query.message import _COMPRESSED, _COMPRESSION_TYPE, _TYPES, Message, _host


def row(message: Message) -> dict[str, object]:
    """The message without its body, JSON-ready; times in ms."""
    record = message.record
    return {
        "type": "message",
        "topic": message.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "size": message.size,
        "storeTimestamp": record.store_timestamp,
        "bornTimestamp": record.born_timestamp,
        "bornHost": _host(record.born_host),
        "storeHost": _host(record.store_host),
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": _signed(record.body_crc or 0),
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
        "uniqKey": message.uniq_key,
        "properties": message.properties,
        "bodySize": len(record.body),
    }


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
    return {
        "innerMessages": [
            {
                "queueOffset": one.queue_offset,
                "tags": one.tags,
                "keys": one.properties.get("KEYS"),
                "uniqKey": one.properties.get("UNIQ_KEY"),
                "properties": one.properties,
                "bodySize": len(one.body),
                **_text(one.body),
            }
            for one in inner
        ]
    }


def compression(message: Message) -> str | None:
    """How the body is compressed, by sysFlag; None where it isn't."""
    flags = message.record.sys_flag
    if not flags & _COMPRESSED:
        return None
    return _TYPES.get(flags & _COMPRESSION_TYPE, f"type {(flags & _COMPRESSION_TYPE) >> 8}")


def _text(data: bytes) -> dict[str, object]:
    with suppress(UnicodeDecodeError):
        return {"body": data.decode()}
    return {"bodyHex": data.hex()}


def _signed(value: int) -> int:
    """As the column has it: int32."""
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value
