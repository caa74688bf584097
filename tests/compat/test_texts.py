"""Numbers, white space, times and names that no client of the usual kind sends: as Java takes them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.format import javastring, names
from reput.format.commitlog import Record
from reput.query.store import QueryStore
from reput.recovery.plan import plan
from reput.replay.runner import InlineRunner
from reput.replay.target import Selection
from reput.scan import kernel
from reput.store.compare import compare
from reput.verify.plan import VerifyOptions, prepare
from reput.verify.run import check
from tests.compat.compiled import instance
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.jvm import Jvm
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried
from tests.local import Store, kinds, rebuild_locally, tree
from tests.slow_scan import is_blank
from tests.stores import LogWriter

pytestmark = pytest.mark.compat

_CHARACTERS = Path(__file__).with_name("Characters.java")


def test_each_char_is_a_digit_or_white_space_where_java_says_so() -> None:
    with Jvm("4.9.7") as jvm:
        java = instance(jvm, _CHARACTERS)
        digits, blanks = str(java.digits()), str(java.blanks())
    assert digits.count("-") == 0x10000 - 10 * len(javastring.ZEROS)
    for unit in range(0x10000):
        digit = None if digits[unit] == "-" else int(digits[unit])
        blank = blanks[unit] == "b"
        assert javastring.digit(unit) == digit, hex(unit)
        if 0xD800 <= unit < 0xE000:
            continue  # no bytes become this
        text = chr(unit).encode()
        assert (javastring.parse_integer(text, 32), is_blank(text)) == (digit, blank), hex(unit)
        array = np.frombuffer(text, np.uint8)
        number, value = kernel._integer(array, 0, len(text), 64)
        assert (int(value) if number else None) == digit, hex(unit)
        assert bool(kernel._is_blank_text(array, 0, len(text))) == blank, hex(unit)


#: Names in the log, and as what Java reads them: two of them are one topic.
_ODD_TOPICS = (b"caf\xe9", b"caf\xff", b"\xff", b"\xed\xa0\x80", b"\xf0\x9f\x98", "caf\ufffd".encode())


def _odd_log(root: Path, version: str) -> LogWriter:
    """A log of messages that differ from a usual client's in what this module is about."""
    log = LogWriter(root, int(SMALL_FILES["mappedFileSizeCommitLog"]))
    now = 1_700_000_000_000
    next_offset: Counter[str] = Counter()

    def put(topic: bytes, properties: bytes, time: int = now, queue_id: int = 0) -> None:
        queue = f"{javastring.decode(topic)}:{queue_id}"
        log.append(
            Record(
                topic,
                b"body",
                properties,
                queue_id=queue_id,
                queue_offset=next_offset[queue],
                born_timestamp=now,
                store_timestamp=time,
            )
        )
        next_offset[queue] += 1

    put(b"Times", b"KEYS\x01first\x02")
    for time in (-(1 << 63), (1 << 63) - 1, -(1 << 63) + now - 1, -(1 << 63) + now, 0, -1, now + 1999):
        put(b"Times", b"KEYS\x01a b\x02TAGS\x01t\x02", time)
    for number, topic in enumerate(_ODD_TOPICS * 2):
        put(topic, b"KEYS\x01k%d\x02UNIQ_KEY\x01u\x02TAGS\x01\xe9\x02" % number)
    for number in range(12):
        digits = "".join(chr(javastring.ZEROS[-number] + int(digit)) for digit in str(number)).encode()
        queues = b"%LMQ%a,%LMQ%caf" + (b"\xe9", b"\xff")[number % 2]
        offsets = b"%b,%d" % (digits, number)
        put(
            b"Orders", b"INNER_MULTI_DISPATCH\x01%b\x02INNER_MULTI_QUEUE_OFFSET\x01%b\x02" % (queues, offsets)
        )
    for blank in ("\u3000", "\u2028 \u1680\t"):
        put(b"Orders", b"INNER_MULTI_DISPATCH\x01%b\x02INNER_MULTI_QUEUE_OFFSET\x010\x02" % blank.encode())
    for number in range(4):
        base, count = "\u0660\u0662\u06f4\u096c"[number], "\uff12"
        put(b"Batches", f"INNER_BASE\x01{base}\x02INNER_NUM\x01{count}\x02".encode())
    return log


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7", "5.3.3"]))
def test_what_a_store_makes_of_odd_texts_and_times(version: str, tmp_path: Path) -> None:
    config = {**SMALL_FILES, "enableMultiDispatch": True, "enableLmq": True}
    root = tmp_path / "store"
    log = _odd_log(root, version)
    (root / names.ABORT).touch()
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(config), encoding="utf-8")
    settings = StoreSettings.load(root, conf, version)
    out = tmp_path / "out"
    batch = [] if version.startswith("4.") else ["Batches"]
    selection = Selection(batch=frozenset(batch))
    state = rebuild_locally(
        Store(root, settings), out, part_bytes=700, ends=[1500, 3000], selection=selection
    )
    assert (state.messages, kinds(state.findings)) == (len(log.records), [])

    attributes = {topic: {"queue.type": "BatchCQ"} for topic in batch}
    with JavaStore(version, root, config, topics=attributes) as store:
        assert store.load()
        store.start()
        store.wait_dispatched()
        assert int(store.store.getMaxPhyOffset()) == log.end
    found = compare(root, out)
    assert (found.differences, found.empty_directories) == ((), ())
    assert found.queue_files > 5
    assert found.index_files
    assert len(tree(out / names.BATCH_CONSUME_QUEUE)) == len(batch)

    # What looks at a store sees the same in it.
    (root / names.CONFIG).mkdir(exist_ok=True)
    (root / names.CONFIG / "topics.json").write_text(
        json.dumps({"topicConfigTable": {topic: {"attributes": attributes[topic]} for topic in batch}})
    )
    asked = VerifyOptions(root, broker_conf=conf, rocketmq_version=version)
    assert kinds(check(prepare(asked), InlineRunner()).findings) == []
    foretold = plan(take(settings))
    assert (foretold.losses, foretold.unrepaired, foretold.prediction.problems) == ([], [], [])
    found = QueryStore(settings).by_key("caf\ufffd", "u")
    assert [hit.message.record.topic for hit in found if hit.message is not None] == [
        one.topic for one in log.records if javastring.decode(one.topic) == "caf\ufffd"
    ]


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7", "5.3.3"]))
def test_a_delay_level_in_digits_of_any_script(version: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with JavaStore(version, root, SMALL_FILES) as store:
        assert store.load()
        store.start()
        for number, level in enumerate(("\u0661", "+\u06f2", "\uff11\uff18", "\u0e53")):
            given = f"TAGS\x01t\x02DELAY\x01{level}\x02"
            store.put(Message("SCHEDULE_TOPIC_XXXX", number, b"body", properties_string=given))
        store.wait_dispatched()
    out = tmp_path / "out"
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(SMALL_FILES), encoding="utf-8")
    state = rebuild_locally(Store(root, StoreSettings.load(root, conf, version)), out)
    assert (state.messages, kinds(state.findings)) == (4, [])
    assert compare(root, out).differences == ()
