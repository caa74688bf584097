"""What is sent of a message, and what isn't."""

from __future__ import annotations

import zlib

import pytest

from reput.export.outgoing import NOT_KEPT, ORIGIN, NotSentError, Outgoing, encoded, outgoing
from reput.export.records import Apart
from reput.format import commitlog, innerbatch, properties
from reput.format.commitlog import Record
from reput.format.innerbatch import InnerMessage
from reput.query.message import Message

NOW = 1_800_000_000_000


def message(topic: bytes = b"t", body: bytes = b"body", **more: object) -> Message:
    values = more.pop("values", {})
    assert isinstance(values, dict)
    record = Record(topic, body, properties.encode(values), **more)  # type: ignore[arg-type]
    record.body_crc = commitlog.body_crc(body)
    return Message(record, 0)


def one(given: Message, due: int | None = None, **more: object) -> Outgoing:
    (found,) = outgoing(given, due, NOW, **more)  # type: ignore[arg-type]
    return found


def values(sent: Outgoing) -> dict[bytes, bytes]:
    return properties.parse(sent.inner.properties)


def test_a_plain_message_keeps_its_own_and_names_its_origin() -> None:
    own = {
        b"KEYS": b"a b",
        b"TAGS": b"x",
        b"UNIQ_KEY": b"u",
        b"mine": "é\x01".encode(),
        b"__SHARDINGKEY": b"s",
    }
    stored = message(values=own | {b"CLUSTER": b"c", b"WAIT": b"true"}, flag=-7, queue_id=3)
    sent = one(stored)
    assert (sent.topic, sent.queue_id) == ("t", 3)
    assert (sent.inner.flag, sent.inner.body) == (-7, b"body")
    assert values(sent) == own | {ORIGIN.encode(): stored.offset_msg_id.encode()}
    again = one(message(values={b"REPUT_ORIGIN": b"first"}))
    assert values(again) == {b"REPUT_ORIGIN": b"first"}


def test_nothing_is_kept_that_would_steer_a_broker() -> None:
    # In this order no checksum stands last, where it would count.
    sent = one(message(values={name.encode(): b"1" for name in sorted(NOT_KEPT, reverse=True)}))
    assert values(sent).keys() == {ORIGIN.encode()}


def test_a_body_is_sent_as_its_producer_gave_it() -> None:
    packed = message(body=zlib.compress(b"long " * 100), sys_flag=0x1)
    assert one(packed).inner.body == b"long " * 100
    with pytest.raises(NotSentError) as why:
        one(message(body=b"not packed", sys_flag=0x1))
    assert why.value.kind == "body"


def test_a_batch_is_sent_as_its_messages() -> None:
    inner = [InnerMessage(n, b"m%d" % n, properties.encode({b"KEYS": b"k%d" % n})) for n in range(3)]
    flags = commitlog.SYS_FLAG_INNER_BATCH | commitlog.SYS_FLAG_NEED_UNWRAP
    sent = outgoing(message(body=innerbatch.encode(inner), sys_flag=flags), None, NOW)
    assert [(each.inner.flag, each.inner.body) for each in sent] == [(n, b"m%d" % n) for n in range(3)]
    assert [values(each)[b"KEYS"] for each in sent] == [b"k0", b"k1", b"k2"]
    assert innerbatch.decode(encoded(sent)) == [each.inner for each in sent]


@pytest.mark.parametrize(
    ("given", "kind", "option"),
    [
        (message(b"RMQ_SYS_TRANS_HALF_TOPIC"), "half", "--half"),
        (message(sys_flag=commitlog.TRANSACTION_PREPARED), "half", "--half"),
        (message(sys_flag=commitlog.TRANSACTION_ROLLBACK), "half", "--half"),
        (message(commitlog.SCHEDULE_TOPIC), "delayed", "--delayed"),
        (message(commitlog.TIMER_TOPIC), "delayed", "--delayed"),
        (message(b"RMQ_SYS_TRACE_TOPIC"), "system-topics", "--system-topics"),
        (message(b"rmq_sys_REVIVE_LOG_c"), "system-topics", "--system-topics"),
        (Message(Record(b"t", b"other", body_crc=1), 0), "damaged", "--damaged"),
        (message(b"with space"), "topic", "--to-topic"),
        (message(b"t" * 128, version=2), "topic", "--to-topic"),
        (message(body=b""), "no-body", None),
        (message(values={b"p": b"x" * 32_760}), "properties", None),
    ],
)
def test_what_is_left_out_says_why_and_what_sends_it(given: Message, kind: str, option: str | None) -> None:
    with pytest.raises(NotSentError) as why:
        one(given)
    assert (why.value.kind, why.value.option) == (kind, option)
    assert why.value.reason


def test_half_and_delayed_messages_go_where_they_belong() -> None:
    real = {b"REAL_TOPIC": b"Orders", b"REAL_QID": b"2", b"TRAN_MSG": b"true", b"PGROUP": b"g"}
    half = one(message(b"RMQ_SYS_TRANS_HALF_TOPIC", values=real), included={Apart.HALF})
    assert (half.topic, values(half).keys()) == ("Orders", {b"PGROUP", b"REPUT_ORIGIN"})
    delay = message(commitlog.SCHEDULE_TOPIC, values={**real, b"DELAY": b"4"})
    for due, waits in ((NOW + 1, {b"DELAY": b"4"}), (NOW, {}), (None, {b"DELAY": b"4"})):
        sent = one(delay, due, included={Apart.DELAYED})
        assert sent.topic == "Orders"
        assert {name: text for name, text in values(sent).items() if name == b"DELAY"} == waits
    timer = message(commitlog.TIMER_TOPIC, values={**real, b"TIMER_OUT_MS": b"5"})
    sent = one(timer, NOW + 5, included={Apart.DELAYED})
    assert values(sent)[b"TIMER_DELIVER_MS"] == str(NOW + 5).encode()
    assert b"TIMER_DELIVER_MS" not in values(one(timer, NOW - 5, included={Apart.DELAYED}))
    for topic in (commitlog.SCHEDULE_TOPIC, commitlog.TIMER_TOPIC, b"RMQ_SYS_TRANS_HALF_TOPIC"):
        with pytest.raises(NotSentError, match="REAL_TOPIC"):
            one(message(topic), included=set(Apart))
        assert one(message(topic), included=set(Apart), to_topic="new").topic == "new"


def test_a_groups_retry_topic_keeps_how_often() -> None:
    sent = one(message(b"%RETRY%g", values={b"RETRY_TOPIC": b"t"}, reconsume_times=3))
    assert sent.topic == "%RETRY%g"
    assert values(sent)[b"RECONSUME_TIME"] == b"3"
    assert values(sent)[b"RETRY_TOPIC"] == b"t"
    assert b"RECONSUME_TIME" not in values(one(message(b"%DLQ%g", reconsume_times=16)))


def test_light_queues_are_given_anew() -> None:
    both = {b"INNER_MULTI_DISPATCH": b"%LMQ%a", b"INNER_MULTI_QUEUE_OFFSET": b"7"}
    sent = one(message(values=both))
    assert values(sent).keys() == {b"INNER_MULTI_DISPATCH", b"REPUT_ORIGIN"}
