"""Conditions over blocks of messages say what the slow evaluator says of each message."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reput.build.bitmaps import (
    ERROR,
    FALSE,
    TRUE,
    UNKNOWN,
    BlockEvaluator,
    BloomFilter,
    ConsumerFilter,
    TopicFilters,
    columns,
    load,
)
from reput.build.expression import EvaluationError, Node
from reput.build.grammar import NotAnExpressionError, TooDeepError, parse
from reput.config.settings import FilterSettings
from reput.errors import SettingsError
from reput.format import javastring, properties
from tests import slow_filter
from tests.levels import examples
from tests.property.test_parsers import any_of
from tests.slow_filter import bit_map, evaluate

BLOOM = BloomFilter.create(FilterSettings())
NAMES = ("a", "b", "TAGS")
VALUES = ("1", "5", "+5", "5.5", "NaN", "-0", " 7", "x", "xy", "true", "2147483648", "é", "🚀")
TEXTS = st.sampled_from(VALUES).map(lambda value: "'" + value + "'")
NUMBERS = st.sampled_from(["0", "5", "5l", "2147483648", "5.5", "7."])
OPERANDS = st.one_of(
    st.sampled_from(NAMES), st.sampled_from(NAMES), NUMBERS, NUMBERS.map("-{}".format), TEXTS
)
COMPARISONS = st.one_of(
    st.builds("{} {} {}".format, OPERANDS, st.sampled_from(["=", "<>", "<", ">="]), OPERANDS),
    st.builds("{} {} {}".format, st.sampled_from(NAMES), st.sampled_from(["<", "<=", ">", ">="]), NUMBERS),
    st.builds("{}{} BETWEEN {} AND {}".format, OPERANDS, st.sampled_from(["", " NOT"]), NUMBERS, NUMBERS),
    st.builds("{}{} IN ({}, {})".format, st.sampled_from(NAMES), st.sampled_from(["", " NOT"]), TEXTS, TEXTS),
    st.builds("{}{} CONTAINS {}".format, OPERANDS, st.sampled_from(["", " NOT"]), TEXTS),
    st.builds("{} IS{} NULL".format, OPERANDS, st.sampled_from(["", " NOT"])),
    st.sampled_from([*NAMES, "TRUE", "NULL"]),
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds("{} AND {}".format, inner, inner),
        st.builds("{} OR {}".format, inner, inner),
        st.builds("NOT ({})".format, inner),
        st.builds("({}) = ({})".format, inner, inner),
        st.builds("({}) IS NULL".format, inner),
    ),
    max_leaves=6,
)


def node(text: str) -> Node | None:
    try:
        return parse(text, parts=True)
    except NotAnExpressionError:
        return None


ENTRIES = st.tuples(
    st.sampled_from(["a", "b", "TAGS", "c", "aa", ""]), st.sampled_from([*VALUES, "", "1\x015"])
).map(lambda entry: f"{entry[0]}\x01{entry[1]}".encode())
ODD = st.sampled_from([b"a", b"\x01", b"a\x01\xff\xf0\x9f", b"b\x01\xed\xa0\xbd", b"", b"a\x01"])
RECORDS = st.lists(st.one_of(ENTRIES, ENTRIES, ENTRIES, ODD), max_size=6).map(b"\x02".join)


def block(records: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """The records one after the other, a byte between them that belongs to none."""
    lengths = np.array([len(record) for record in records], np.int64)
    return (
        np.frombuffer(b"Z".join([b"", *records]) + b"Z", np.uint8),
        np.cumsum(lengths + 1) - lengths,
        lengths,
    )


def texts(record: bytes) -> Mapping[str, str]:
    return {
        javastring.decode(name): javastring.decode(value) for name, value in properties.parse(record).items()
    }


def outcome(condition: Node, record: bytes) -> int:
    try:
        value = evaluate(condition, texts(record))
    except EvaluationError:
        return ERROR
    return {True: TRUE, False: FALSE, None: UNKNOWN}[value]  # type: ignore[index]  # a condition has no other


@settings(max_examples=examples(300))
@given(
    CONDITIONS.map(node).filter(lambda found: found is not None), st.lists(RECORDS, min_size=1, max_size=12)
)
@example(parse("a = 1 OR b IS NULL", parts=True), [b"a\x01x", b"b\x01x", b""])
@example(parse("a < b AND TAGS", parts=True), [b"a\x011\x02b\x015", b"a\x015\x02b\x011", b"a\x01x\x02b\x01x"])
def test_a_block_has_the_outcomes_of_its_messages(condition: Node, records: list[bytes]) -> None:
    evaluator = BlockEvaluator(condition)
    assert set(evaluator.names) | set(evaluator.present) == condition.names()
    found = columns(*block(records), evaluator.names, present=evaluator.present)
    expected = [outcome(condition, record) for record in records]
    # The second time from what it remembers.
    for _ in range(2):
        assert evaluator.outcomes(found, len(records)).tolist() == expected
    assert evaluator.matches(found, len(records)).tolist() == [each == TRUE for each in expected]


@settings(max_examples=examples(100))
@given(st.lists(CONDITIONS.map(node), min_size=1, max_size=4), st.lists(RECORDS, max_size=12))
def test_a_block_has_the_bit_maps_of_its_messages(
    conditions: list[Node | None], records: list[bytes]
) -> None:
    filters = [
        ConsumerFilter(f"g{number}", None, condition, None, BLOOM.positions(f"g{number}", "t"))
        for number, condition in enumerate(conditions)
    ]
    maps = TopicFilters(filters, BLOOM).of_records(*block(records))
    assert maps.stored.all()
    assert [bits.tobytes() for bits in maps.bits] == [
        bit_map(filters, BLOOM, texts(record)) for record in records
    ]


@settings(max_examples=examples(100))
@given(st.lists(RECORDS, max_size=40))
def test_columns_hold_what_the_records_say(records: list[bytes]) -> None:
    expected = slow_filter.columns(records, NAMES)
    found = columns(*block(records), NAMES)
    for name in NAMES:
        assert found[name].values == expected[name].values
        assert found[name].codes.tolist() == expected[name].codes.tolist()
    present = columns(*block(records), (), present=NAMES)
    for name in NAMES:
        assert (present[name].codes < 0).tolist() == (expected[name].codes < 0).tolist()


@settings(max_examples=examples(200))
@given(st.one_of(st.text(max_size=30), CONDITIONS, st.text("a1'.()<>=-+*/eEL \n ISNOTR", max_size=30)))
@example("a = '" + "'" * 5000)
@example("(" * 5000)
@example("a = " + "1" * 5000)
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    for parts in (False, True):
        try:
            condition = parse(text, parts=parts)
        except (NotAnExpressionError, TooDeepError):
            continue
        with suppress(EvaluationError):
            evaluate(condition, {"a": "1"})


_SOUND = (
    b'{"filterDataByTopic":{"t":{"groupFilterData":{"g":{"bloomFilterData":{"bitNum":112,"bitPos":[22,87,58]},'
    b'"bornTime":1,"expression":"a = 1","expressionType":"SQL92"}},"topic":"t"}}}'
)


@settings(max_examples=examples(200))
@given(st.data())
def test_any_file_is_read_or_refused(tmp_path_factory, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    path = Path(tmp_path_factory.getbasetemp()) / "consumerFilter.json"
    path.write_bytes(data.draw(any_of(_SOUND)))
    with suppress(SettingsError):
        load(path, BLOOM, parts=True)
