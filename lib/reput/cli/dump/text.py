"""The lines of ``reput dump`` for people: what ``cut`` wants first, then ``name=value``."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from reput.cli.times import moment
from reput.dump.damage import Damage

if TYPE_CHECKING:
    from reput.dump.index import Chain, Entry, FileHead
    from reput.dump.places import QueuePlace
    from reput.dump.queueevents import QueueUnit, Run
    from reput.dump.rocksdbindex import DatabaseHead, KeyEntry
    from reput.query.message import Message

_PLAIN = re.compile(r"""[^\s"'=\\]+""")


def message_line(message: Message, held: dict[str, object]) -> str:
    """A message; ``held`` is what is said of its body."""
    from reput.dump.wanted import Transaction, transaction_of

    record = message.record
    queue = f"{word(message.topic)}:{record.queue_id}@{record.queue_offset}"
    facts = [f"{record.physical_offset}  {message.size}  {moment(record.store_timestamp)}  {queue} "]
    facts += [f"tags={word(message.tags)}"] if message.tags is not None else []
    if (keys := message.properties.get("KEYS")) is not None:
        facts.append(f"keys={word(keys)}")
    facts += [f"uniqKey={word(message.uniq_key)}"] if message.uniq_key is not None else []
    state = transaction_of(record.sys_flag)
    if state is not Transaction.NONE:
        facts.append(f"transaction={state.value}")
    if state in (Transaction.COMMIT, Transaction.ROLLBACK):
        facts.append(f"preparedTransactionOffset={record.prepared_transaction_offset}")
    facts += [f"reconsumeTimes={record.reconsume_times}"] if record.reconsume_times else []
    if message.batch is not None:
        facts.append(f"batch={message.batch.base_offset}+{message.batch.messages}")
    if message.compression is not None:
        facts.append(f"compressed={message.compression}")
    facts.append(f"bodySize={len(record.body)}")
    inner = held.get("inner_messages")
    if isinstance(inner, list):
        facts += [f"inner={one['queue_offset']}:{_body_text(one)}" for one in inner]
    elif held:
        facts.append(_body_text(held))
    if "body_problem" in held:
        facts.append(f"bodyProblem={word(str(held['body_problem']))}")
    return " ".join(facts)


def _body_text(held: dict[str, object]) -> str:
    if "body" in held:
        return f"body={json.dumps(held['body'], ensure_ascii=False)}"
    return f"bodyBase64={held['body_base64']}"


def word(text: str) -> str:
    """A text as one word: in quotes where it has a space, or looks as if it had some."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def place_line(event: Any) -> str:
    """A BLANK, or the unwritten end."""
    from reput.dump.commitlog import Blank

    if isinstance(event, Blank):
        return f"{event.offset}  {event.size}  BLANK, which closes the segment"
    return f"{event.offset}  {event.end - event.offset}  unwritten"


def damage_line(damage: Damage) -> str:
    """What is damaged."""
    where = f"{damage.offset} to {damage.end}" if damage.end > damage.offset else f"{damage.offset}"
    text = f"DAMAGE {damage.kind} at {where} of {damage.path}"
    if damage.topic is not None:
        text += f", queue {word(damage.topic)}:{damage.queue_id}"
    if damage.queue_offset is not None:
        text += f", queueOffset {damage.queue_offset} to {damage.queue_end}"
    return f"{text}: {damage.said}"


def _queue_name(place: QueuePlace) -> str:
    return "" if place.topic is None else f"{word(place.topic)}:{place.queue_id}"


def queue_line(event: QueueUnit | Run) -> str:
    """What a queue holds."""
    from reput.dump.queueevents import Run

    if isinstance(event, Run):
        return f"{_queue_name(event.place)}@{event.start} to {event.end}  {event.kind}"
    return _unit_line(event)


def _unit_line(unit: QueueUnit) -> str:
    facts = [f"{_queue_name(unit.place)}@{unit.queue_offset}  {unit.position}  {unit.size} "]
    facts.append(f"tagsCode={unit.tags_code}")
    if unit.batch is not None:
        timestamp, messages, compacted = unit.batch
        facts.append(f"messages={messages} storeTimestamp={moment(timestamp)}")
        facts += [f"compactedOffset={compacted}"] if compacted != -1 else []
    facts += [f"storeTimestamp={moment(unit.stored)}"] if unit.stored is not None else []
    if unit.is_address and unit.ext is None:
        facts.append("ext=absent")
    if unit.ext is not None:
        ext = unit.ext
        facts.append(f"ext.tagsCode={ext.tags_code} ext.storeTimestamp={moment(ext.store_timestamp)}")
        facts += [f"ext.bitMap={ext.bit_map.hex()}"] if ext.bit_map else []
    facts += [f"deliver={moment(unit.delivery)}"] if unit.delivery is not None else []
    facts += ["(repeats the next unit)"] if unit.repeats else []
    return " ".join(facts)


def index_line(event: FileHead | Chain | Entry | DatabaseHead | KeyEntry) -> str:
    """What an index holds."""
    from reput.dump.index import Chain, FileHead
    from reput.dump.rocksdbindex import DatabaseHead, KeyEntry

    if isinstance(event, DatabaseHead):
        last = "none" if event.timestamp is None else moment(event.timestamp)
        return f"{event.path}  lastOffsetPy={event.position} lastStoreTimeStamp={last}"
    if isinstance(event, KeyEntry):
        key = "" if event.key is None else f" key={word(event.key)}"
        return (
            f"{event.position}  {moment(event.timestamp)}  {event.kind}  topic={word(event.topic)}{key} "
            f"uniqKey={word(event.unique)} hour={moment(event.hour)}"
        )
    if isinstance(event, FileHead):
        header = event.header
        return (
            f"{event.place.path}  begin={moment(header.begin_timestamp)}@{header.begin_physical_offset} "
            f"end={moment(header.end_timestamp)}@{header.end_physical_offset} "
            f"hashSlotCount={header.slot_count} slotsUsed={event.slots_used}/{event.place.slots} "
            f"indexCount={header.index_count}/{event.place.entries}"
        )
    if isinstance(event, Chain):
        return (
            f"slot {event.slot} of {word(event.key)}  keyHash={event.key_hash} indexOrdinal={event.ordinal}"
        )
    other = "  (another key)" if event.matches is False else ""
    return (
        f"{event.ordinal}  {event.position}  {moment(event.timestamp)}  keyHash={event.key_hash} "
        f"slot={event.slot} prevIndex={event.previous}{other}"
    )
