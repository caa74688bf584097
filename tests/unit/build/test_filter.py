"""SQL92 expressions, Bloom filters and config/consumerFilter.json, without Java."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np
import pytest

from reput.build.bitmaps import BloomFilter, ConsumerFilters, TopicFilters, load
from reput.build.expression import (
    EvaluationError,
    NumberFormatError,
    Value,
    compare_doubles,
    double,
    integer,
    units_of,
)
from reput.build.grammar import MOST_NESTED, NotAnExpressionError, TooDeepError, parse
from reput.config.dialect import dialect
from reput.config.settings import FilterSettings
from reput.errors import SettingsError
from reput.format import commitlog, properties
from tests.golden.store import FILTERED, unpack
from tests.slow_filter import bit_map, evaluate

BLOOM = BloomFilter.create(FilterSettings())


def said(text: str, /, *, parts: bool = True, **message: str) -> Value:
    return evaluate(parse(text, parts=parts), message)


@pytest.mark.parametrize(
    ("text", "message", "expected"),
    [
        # Null on the left is null, on the right it is False: NOT makes True of that.
        ("a = 'x'", {}, None),
        ("'x' = a", {}, False),
        ("'x' <> a", {}, True),
        ("a = b", {}, True),
        ("a <> 'x'", {}, None),
        ("a IS NULL", {}, True),
        ("a IS NOT NULL", {}, False),
        ("NULL IS NULL", {}, True),
        ("a > 5 IS NULL", {}, True),
        # Three values.
        ("a = 1 AND b = 1", {"b": "1"}, None),
        ("a = 1 AND b = 1", {"b": "2"}, False),
        ("a = 1 OR b = 1", {"b": "1"}, True),
        ("a = 1 OR b = 1", {"b": "2"}, None),
        ("NOT a = 1", {"a": "1"}, False),
        # A property as a condition is never True, and so its negation can be.
        ("a", {"a": "true"}, False),
        ("NOT a", {"a": "true"}, True),
        ("NOT a", {}, None),
        ("a = TRUE", {"a": "tRuE"}, True),
        ("a = FALSE", {"a": "anything"}, True),
        ("1 = TRUE", {}, False),
        # Numbers.
        ("a > 5", {"a": "+6"}, True),
        ("a = 3000000000", {"a": "3000000000"}, True),
        ("a > 5.5", {"a": " 0x1p3 "}, True),
        ("a > b", {"a": "10", "b": "9"}, True),
        ("a > 0", {"a": "٣"}, True),
        ("-a IS NULL", {"a": "5"}, True),
        ("a = -5", {"a": "-5"}, True),
        ("a = - -5l", {"a": "5"}, True),
        ("a < 1e400 - -5", {"a": "5"}, "refused"),
        ("a BETWEEN 1 AND 5 AND b = 'x'", {"a": "5", "b": "x"}, True),
        ("a NOT BETWEEN 5 AND 1", {"a": "3"}, True),
        ("b > 0.5 AND b <= 1.5E1", {"b": "15"}, True),
        # Lists and parts of texts.
        ("a IN ('x', 'it''s')", {"a": "it's"}, True),
        ("a NOT IN ('x')", {"a": "y"}, True),
        ("a NOT IN ('x')", {}, None),
        ("a CONTAINS 'bc'", {"a": "abcd"}, True),
        ("a NOT CONTAINS 'bc'", {}, False),
        ("a CONTAINS ''", {"a": "abcd"}, False),
        ("a NOT ENDSWITH ''", {"a": "abcd"}, False),
        ("a STARTSWITH 'ab' AND a endswith 'cd'", {"a": "abcd"}, True),
        ("5 CONTAINS '5'", {}, False),
        # Code units, not characters.
        ("a CONTAINS '\ud83d'", {"a": "🚀"}, True),
        # What follows a whole expression isn't read.
        ("a = 1 b = 2", {"a": "1"}, True),
        ("a = 1) OR (", {"a": "1"}, True),
        ("a = 010", {"a": "0"}, True),
        ("a = 1 /* of all */ AND -- and\n b = 2", {"a": "1", "b": "2"}, True),
        ("a IS NOTNULL", {"a": "1"}, "refused"),
    ],
)
def test_an_expression_says_what_the_broker_makes_of_it(
    text: str, message: dict[str, str], expected: Value
) -> None:
    if expected == "refused":
        with pytest.raises(NotAnExpressionError):
            parse(text, parts=True)
    else:
        assert said(text, **message) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a > 5", {"a": "5.5"}),
        ("a > 5", {"a": "2147483648"}),
        ("5 = a", {"a": " 5"}),
        ("a > b", {"a": "x", "b": "5"}),
        ("TRUE = a", {"a": "true"}),
        ("a = b = c", {"a": "1", "b": "1", "c": "1"}),
        ("a = 1 OR b = 'x'", {"a": "x", "b": "x"}),
    ],
)
def test_what_cant_be_compared_throws(text: str, message: dict[str, str]) -> None:
    with pytest.raises(EvaluationError):
        said(text, **message)


def test_what_is_decided_before_doesnt_throw() -> None:
    assert said("b = 'x' OR a = 1", a="x", b="x") is True
    assert said("b = 'y' AND a = 1", a="x", b="x") is False


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a >",
        "a = NULL",
        "NULL > 5",
        "a > 'x'",
        "a > (b = 1)",
        "TRUE = 1",
        "5",
        "-a",
        "'x' AND a",
        "a BETWEEN 5 AND 1",
        "a BETWEEN 5 AND 4.5",
        "a BETWEEN 'a' AND 'b'",
        "NOT a IN ('x')",
        "5 IN ('x')",
        "a IN (5)",
        "a IN ()",
        "a = 9223372036854775808",
        "a = 0.0",
        "a = 1e400",
        "a = 'x",
        "a # 1",
        "a = 1 #",
        "a = 1 NOT 5",
        "a IS 5",
        "(a = 1",
        "a = 1 AND -- no end of line",
        "ä = 1",
    ],
)
def test_what_the_broker_cant_compile_is_refused(text: str) -> None:
    with pytest.raises(NotAnExpressionError):
        parse(text, parts=True)


def test_before_5_1_3_the_tests_for_parts_are_names() -> None:
    versions = ("4.9.8", "5.1.2", "5.1.3", "5.5.0")
    assert [dialect(version).filter_parts for version in versions] == [False, False, True, True]
    assert said("a CONTAINS 'x'", parts=False, a="x") is False
    assert said("NOT contains", parts=False, contains="x") is True
    with pytest.raises(NotAnExpressionError):
        parse("NOT contains", parts=True)


def test_chains_may_be_long_but_not_deep() -> None:
    assert said(" OR ".join(f"a = '{number}'" for number in range(5000)), a="4999") is True
    assert said("(" * 500 + "a = 1" + ")" * 500, a="1") is True
    parse("NOT " * (MOST_NESTED - 3) + "a = 1", parts=True)
    with pytest.raises(TooDeepError):
        parse("NOT " * MOST_NESTED + "a = 1", parts=True)


@pytest.mark.parametrize("text", ["", "+", "-", "1 ", "0x1", "1_0", "1.0", "½", units_of("\U0001d7d3")])
def test_no_integer(text: str) -> None:
    with pytest.raises(NumberFormatError):
        integer(text, 32)


def test_integers_have_their_range() -> None:
    assert integer("0" * 9000 + "7", 32) == 7
    assert integer("-2147483648", 32) == -(2**31)
    for text, bits in (("2147483648", 32), ("9223372036854775808", 64), ("9" * 9000, 64)):
        with pytest.raises(NumberFormatError):
            integer(text, bits)


def test_doubles() -> None:
    assert [double(text) for text in ("1.", ".5f", "\t1e3D ", "0X1.8p1d", "-Infinity", "1e999")] == [
        *(1.0, 0.5, 1000.0, 3.0),
        *(-math.inf, math.inf),
    ]
    assert math.isnan(double("-NaN"))
    assert (double("0x1p99999"), double("-0x1p99999")) == (math.inf, -math.inf)
    for text in ("", ".", "e5", "1e", "0x1", "nan", "inf", "1ff", "1_0", "٣", "\xa01"):
        with pytest.raises(NumberFormatError):
            double(text)
    assert [
        compare_doubles(*pair) for pair in ((-0.0, 0.0), (math.nan, math.inf), (math.nan, -math.nan))
    ] == [
        *(-1, 1),
        0,
    ]


def test_the_bloom_filter_of_the_defaults() -> None:
    assert (BLOOM.bits, BLOOM.hashes, BLOOM.size) == (112, 3, 14)
    assert BLOOM.positions("g", "t") == (22, 87, 58)
    mask = BLOOM.mask((0, 9, 111))
    assert mask is not None
    assert mask.tobytes().hex() == "0102" + "00" * 11 + "80"
    assert BLOOM.mask((1, 112, 3)) is BLOOM.mask((-1, 2, 3)) is None


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (FilterSettings(error_rate=0), "maxErrorRateOfBloomFilter"),
        (FilterSettings(error_rate=100), "maxErrorRateOfBloomFilter"),
        (FilterSettings(consumers=0), "expectConsumerNumUseFilter"),
        (FilterSettings(consumers=2**31 - 1), "expectConsumerNumUseFilter"),
    ],
)
def test_settings_that_a_broker_doesnt_start_with(settings: FilterSettings, match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        BloomFilter.create(settings)


def entry(expression: Any = "a = 1", kind: Any = "SQL92", **more: Any) -> dict[str, Any]:
    bloom_data = {"bitNum": BLOOM.bits, "bitPos": list(BLOOM.positions("g", "t"))}
    return {"bloomFilterData": bloom_data, "expression": expression, "expressionType": kind, **more}


def document(*entries: Any, **topics: Any) -> str:
    groups = {f"g{number}": each for number, each in enumerate(entries)}
    return json.dumps({"filterDataByTopic": {"t": {"groupFilterData": groups, "topic": "t"}, **topics}})


def loaded(path: Path, text: str, backup: str | None = None) -> ConsumerFilters:
    (path / "f.json").write_text(text, encoding="utf-8")
    (path / "f.json.bak").unlink(missing_ok=True)
    if backup is not None:
        (path / "f.json.bak").write_text(backup, encoding="utf-8")
    return load(path / "f.json", BLOOM, parts=True)


def test_filters_are_read(tmp_path: Path) -> None:
    broken = [entry("a >"), entry(None), entry(kind="TAG"), entry(kind=None)]
    found = loaded(tmp_path, document(entry(), *broken, u={"groupFilterData": {}}, v={}))
    assert found.ignored is None
    assert list(found.by_topic) == ["t"]
    good, *rest = found.by_topic["t"]
    assert (good.group, good.text, good.positions, good.problem) == ("g0", "a = 1", (22, 87, 58), None)
    assert [each.condition for each in rest] == [None] * 4
    assert [each.problem for each in rest] == [
        "unexpected end",
        "there is no expression",
        "there is no filter of type TAG",
        "there is no filter of type None",
    ]


def test_without_a_file_there_are_no_filters(tmp_path: Path) -> None:
    assert load(tmp_path / "f.json", BLOOM, parts=True).by_topic == {}
    for text in ("", "{}"):
        assert loaded(tmp_path, text).by_topic == {}


def test_one_consumer_of_other_settings_discards_all(tmp_path: Path) -> None:
    good = {"bitNum": 112, "bitPos": [1, 2, 3]}
    for other in ({**good, "bitNum": 120}, {**good, "bitPos": [1, 2]}, {**good, "bitPos": None}, {}, None):
        found = loaded(tmp_path, document(entry(), entry(bloomFilterData=other)), backup=document(entry()))
        assert found.by_topic == {}
        assert found.ignored is not None
        assert found.ignored.startswith("the Bloom filter data of group g1, topic t have ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[]", "an object"),
        ('{"filterDataByTopic": []}', "filterDataByTopic to be an object"),
        ('{"filterDataByTopic": {"t": 1}}', "the filters of topic t to be an object"),
        ('{"filterDataByTopic": {"t": {"groupFilterData": null}}}', "groupFilterData of topic t"),
        (document(None), "the filter of group g0, topic t to be an object"),
        (document(entry(5)), "expression of group g0, topic t to be a string"),
        (document(entry(kind=[])), "expressionType of group g0"),
        (document(entry(bloomFilterData=1)), "bloomFilterData of group g0"),
        (document(entry(bloomFilterData={"bitNum": "112"})), "bitNum of group g0"),
        (document(entry(bloomFilterData={"bitPos": [True]})), "bitPos of group g0"),
        (document(entry(bloomFilterData={"bitPos": [1 << 31]})), "bitPos of group g0"),
    ],
)
def test_a_broken_file_is_refused_unless_there_is_a_backup(text: str, expected: str, tmp_path: Path) -> None:
    for backup in (None, "", "}"):
        with pytest.raises(SettingsError) as refused:
            loaded(tmp_path, text, backup)
        assert refused.value.path == str(tmp_path / "f.json")
        assert expected in str(refused.value.expected)
        assert "move it and its .bak away" in str(refused.value)
    assert "t" in loaded(tmp_path, text, document(entry())).by_topic


def test_a_file_that_cant_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.json").mkdir()
    with pytest.raises(SettingsError, match="can't be read"):
        load(tmp_path / "f.json", BLOOM, parts=True)


def test_an_expression_of_a_depth_that_no_one_can_tell_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="the expression of group g0, topic t to have fewer levels"):
        loaded(tmp_path, document(entry("NOT " * 1000 + "a")), backup=document(entry()))
    # Nobody evaluates what doesn't count.
    assert loaded(tmp_path, document(entry("NOT " * 1000 + "a", bloomFilterData=None))).ignored


def block(records: list[bytes]) -> tuple[np.ndarray[Any, Any], ...]:
    lengths = np.array([len(record) for record in records], np.int64)
    return np.frombuffer(b"".join(records), np.uint8), np.cumsum(lengths) - lengths, lengths


def test_a_position_outside_the_map_costs_the_message_its_map(tmp_path: Path) -> None:
    outside = {"bitNum": 112, "bitPos": [1, 2, 112]}
    filters = loaded(
        tmp_path, document(entry(), entry("b = 1", bloomFilterData=outside), entry("c >"))
    ).by_topic["t"]
    topic = pickle.loads(pickle.dumps(TopicFilters(filters, BLOOM)))
    maps = topic.of_records(*block([b"a\x011", b"a\x011\x02b\x011", b""]))
    assert maps.stored.tolist() == [True, False, True]
    assert maps.bits[1:].any() == np.False_
    assert (
        maps.bits[0].tobytes()
        == bit_map(filters, BLOOM, {"a": "1"})
        == bytes.fromhex("0000400000000004" + "0000800000" + "00")
    )
    assert bit_map(filters, BLOOM, {"a": "1", "b": "1"}) is None
    assert bit_map((), BLOOM, {"a": "1"}) is None
    with pytest.raises(ValueError, match="no bit maps"):
        TopicFilters((), BLOOM)


def ext_units(root: Path, topic: str, queue: str) -> list[bytes]:
    """The bit maps in a queue's extension files, in order."""
    found = []
    for path in sorted((root / "consumequeue_ext" / topic / queue).iterdir()):
        data, at = path.read_bytes(), 0
        while (size := unpack_from(">h", data, at)[0]) > 0:
            assert size == 20 + unpack_from(">h", data, at + 18)[0]
            found.append(data[at + 20 : at + size])
            at += size
    return found


def messages_of(root: Path) -> Mapping[tuple[str, str], list[bytes]]:
    """The property bytes of each queue's messages, in order."""
    found: dict[tuple[str, str], list[bytes]] = {}
    for path in sorted((root / "commitlog").iterdir()):
        data, at = path.read_bytes(), 0
        while unpack_from(">I", data, at + 4)[0] == commitlog.MAGIC_V1:
            record = commitlog.decode(data, at)
            found.setdefault((record.topic.decode(), str(record.queue_id)), []).append(record.properties)
            at += unpack_from(">i", data, at)[0]
    return found


@pytest.mark.parametrize("name", FILTERED)
def test_the_bit_maps_of_a_real_broker(name: str, tmp_path: Path) -> None:
    golden = unpack(name, tmp_path)
    broker = golden.manifest["broker"]
    bloom = BloomFilter.create(
        FilterSettings(
            calculates=broker["enableCalcFilterBitMap"],
            error_rate=broker["maxErrorRateOfBloomFilter"],
            consumers=broker["expectConsumerNumUseFilter"],
        )
    )
    found = load(
        golden.root / "config" / "consumerFilter.json", bloom, parts=dialect(golden.version).filter_parts
    )
    assert found.ignored is None
    consumers = golden.manifest["consumers"]
    assert {
        (topic, each.group, each.text) for topic, filters in found.by_topic.items() for each in filters
    } == {(topic, group, text) for group, texts in consumers.items() for topic, text in texts.items()}
    for topic, filters in found.by_topic.items():
        assert all(each.positions == bloom.positions(each.group, topic) for each in filters)
    queues = {
        (path.parent.parent.name, path.parent.name) for path in golden.root.glob("consumequeue_ext/*/*/*")
    }
    messages = messages_of(golden.root)
    assert queues == messages.keys()
    maps = set()
    for (topic, queue), records in messages.items():
        units = ext_units(golden.root, topic, queue)
        if topic not in found.by_topic:
            assert units == [b""] * len(records)
            continue
        calculated = TopicFilters(found.by_topic[topic], bloom).of_records(*block(records))
        assert calculated.stored.all()
        assert units == [bits.tobytes() for bits in calculated.bits]
        texts = [{n.decode(): v.decode() for n, v in properties.parse(record).items()} for record in records]
        assert units == [bit_map(found.by_topic[topic], bloom, text) for text in texts]
        maps |= set(units)
    assert len(maps) == 5
