"""Thousands of expressions to a broker's own filter classes and to reput, and the same answers.

One JVM a release, and one call of each kind. The expressions are seeded.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from reput.build.bitmaps import BloomFilter, TopicFilters, load
from reput.build.expression import EvaluationError
from reput.build.grammar import NotAnExpressionError, parse
from reput.config.dialect import dialect
from reput.config.settings import FilterSettings
from reput.errors import SettingsError
from reput.format import javastring, properties
from tests.compat.filters import JavaFilters
from tests.compat.jvm import Jvm
from tests.slow_filter import bit_map, evaluate

pytestmark = pytest.mark.compat

SEED = 20_261_121
EXPRESSIONS = 6_000
MESSAGES = 5
#: Without the operators for parts of texts, and with them.
RELEASES = ("4.9.7", "5.5.0")

NAMES = ("a", "b", "c", "$x", "_y1", "TAGS")
TEXTS = (
    *(
        "1",
        "5",
        "-5",
        "5.5",
        "+7",
        "-0",
        "0",
        "0.0",
        "-0.0",
        " 7 ",
        "7f",
        "7L",
        "1e5",
        "1e400",
        "0x1p3",
        "0x1",
        ".5",
    ),
    *(
        "2147483647",
        "2147483648",
        "-2147483649",
        "9223372036854775807",
        "9223372036854775808",
        "00000000000000000005",
    ),
    *(
        "NaN",
        "-NaN",
        "Infinity",
        "nan",
        "true",
        "TRUE",
        "false",
        "",
        "abc",
        "ab",
        "x'y",
        "a b",
        "é",
        "٣",
        "12٣",
        "\uff15",
    ),
    *("🚀", "\ud83d", "e\u0301"),
)
NUMBERS = (
    *(
        "1",
        "5",
        "0",
        "5l",
        "7L",
        "00",
        "010",
        "2147483647",
        "2147483648",
        "9223372036854775807",
        "9223372036854775808",
    ),
    *(
        "5.5",
        ".5",
        "5.",
        "1e5",
        "1E+2",
        "1e-400",
        "4.9e-324",
        "1e400",
        "0.0",
        "5.E2",
        "7.0",
        "9007199254740993.0",
    ),
)
# Of every sort of token, and what is nearly one: a long s, a Kelvin sign, a vertical tab.
PIECES = (*"'()-+<>=.,#e1 \n\tL*/é$;", "\x0b", "\r", "\f", "\u017f", "\u212a", "--", "/*", "*/", "''", "\x00")


class Expressions:
    """Random ones, most of them whole."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._pick = self._chance.choice

    def message(self) -> dict[str, str]:
        return {name: self._pick(TEXTS) for name in NAMES if self._chance.random() < 0.7}

    def expression(self) -> str:
        text = self._condition(2)
        return text if self._chance.random() < 0.65 else self._changed(text)

    def _changed(self, text: str) -> str:
        at, other = sorted(self._chance.randrange(len(text) + 1) for _ in range(2))
        match self._pick(("out", "in", "in", "cut")):
            case "out":
                return text[:at] + text[at + 1 :]
            case "in":
                return text[:at] + self._pick(PIECES) + text[at:]
            case _:
                return text[:at] + text[other:]

    def _condition(self, depth: int) -> str:
        text = self._equality(depth)
        while depth and self._chance.random() < 0.4:
            text += self._pick((" AND ", " OR ", " and ", "\toR\n")) + self._equality(depth - 1)
        return text

    def _equality(self, depth: int) -> str:
        text = self._comparison(depth)
        match self._chance.randrange(20):
            case 0 | 1 | 2 | 3 | 4 | 5 | 6:
                return text + self._pick(("=", " = ", "<>")) + self._comparison(depth)
            case 7 | 8 | 9 | 10:
                return text + self._pick((" IS NULL", " is not null"))
            case 11:
                return text + self._pick((" IS 5", " = 5 = TRUE", " IS NULL IS NULL", " IS NOT 5"))
        return text

    def _comparison(self, depth: int) -> str:
        text, maybe = self._unary(depth), self._pick((" ", " NOT ", " not "))
        match self._chance.randrange(20):
            case 0 | 1 | 2 | 3:
                return text + self._pick((" < ", ">", "<=", " >= ")) + self._unary(depth)
            case 4 | 5 | 6:
                return f"{text}{maybe}BETWEEN {self._unary(depth)} AND {self._unary(depth)}"
            case 7 | 8 | 9:
                elements = ",".join(self._string() for _ in range(self._chance.randrange(1, 7)))
                return f"{text}{maybe}IN ({elements})"
            case 10 | 11 | 12:
                return f"{text}{maybe}{self._pick(('CONTAINS', 'startswith', 'EndsWith'))} {self._string()}"
            case 13:
                odd = ("NOT", "IS", "IN", "BETWEEN", "/* c **/", "-- c\n", "--", "/*", "#", ",")
                return f"{text} {self._pick(odd)} {self._unary(depth)}"
        return text

    def _unary(self, depth: int) -> str:
        sign = self._pick(("-", "+", "NOT ", "- ")) if self._chance.random() < 0.25 else ""
        return sign + self._primary(depth)

    def _primary(self, depth: int) -> str:
        match self._chance.randrange(20):
            case number if number < 11:
                return self._pick(NAMES)
            case 11 | 12 | 13:
                return self._string()
            case 14 | 15:
                return self._pick(("TRUE", "false", "NULL"))
            case 16 | 17 if depth:
                return f"({self._condition(depth - 1)})"
        return self._pick(NUMBERS)

    def _string(self) -> str:
        return "'" + self._pick(TEXTS).replace("'", "''") + "'"


@pytest.fixture(scope="module", params=RELEASES)
def java(request: pytest.FixtureRequest) -> Iterator[JavaFilters]:
    with Jvm(request.param) as jvm:
        yield JavaFilters(jvm)


def test_expressions(java: JavaFilters) -> None:
    source = Expressions(SEED)
    questions = [
        (source.expression(), [source.message() for _ in range(MESSAGES)]) for _ in range(EXPRESSIONS)
    ]
    answers = java.evaluate(questions)
    for (text, messages), answer in zip(questions, answers, strict=True):
        assert outcomes(text, messages, parts=dialect(java.version).filter_parts) == answer, text
    # They show something: a good part can be compiled, and has every outcome.
    counts = {letter: sum(answer.count(letter) for answer in answers) for letter in "PTFNE"}
    assert counts["P"] < EXPRESSIONS * 0.8
    assert min(counts.values()) > EXPRESSIONS * 0.1


def outcomes(text: str, messages: Sequence[Mapping[str, str]], *, parts: bool) -> str:
    try:
        condition = parse(text, parts=parts)
    except NotAnExpressionError:
        return "P"
    letters = []
    for message in messages:
        try:
            letters.append({True: "T", False: "F", None: "N"}[evaluate(condition, message)])  # type: ignore[index]
        except EvaluationError:
            letters.append("E")
    return "".join(letters)


def test_positions_in_the_bloom_filter(java: JavaFilters) -> None:
    chance = random.Random(SEED)
    letters = "aZ09_-%|" * 4 + "äß中文🚀\ud83d\x00\u0800"
    names = [
        (
            "".join(chance.choices(letters, k=chance.randrange(30))),
            "".join(chance.choices(letters, k=chance.randrange(9))),
        )
        for _ in range(300)
    ]
    bloom = BloomFilter.create(FilterSettings())
    hashes, bits, found = java.positions(20, 32, [f"{group}#{topic}" for group, topic in names])
    assert (bloom.hashes, bloom.bits) == (hashes, bits)
    assert [list(bloom.positions(group, topic)) for group, topic in names] == found
    for error_rate in range(1, 100):
        for consumers in (1, 32, 333):
            bloom = BloomFilter.create(FilterSettings(error_rate=error_rate, consumers=consumers))
            hashes, bits, found = java.positions(error_rate, consumers, ["g#t"])
            assert (bloom.hashes, bloom.bits, [list(bloom.positions("g", "t"))]) == (hashes, bits, found)


def entry(expression: object = "a = 1", **more: object) -> dict[str, object]:
    """What fastjson writes of a consumer."""
    return {
        "bloomFilterData": {"bitNum": 112, "bitPos": [22, 87, 58]},
        "bornTime": 1,
        "clientVersion": 1,
        "consumerGroup": "g",
        "dead": False,
        "deadTime": 0,
        "expression": expression,
        "expressionType": "SQL92",
        "topic": "t",
        **more,
    }


def filters_of(*entries: object, **topics: object) -> str:
    groups = {f"g{number}": each for number, each in enumerate(entries)}
    return json.dumps({"filterDataByTopic": {"t": {"groupFilterData": groups, "topic": "t"}, **topics}})


def bloom_data(*positions: int, bits: int = 112) -> dict[str, object]:
    return {"bitNum": bits, "bitPos": list(positions)}


OTHER = entry("b > 0.5 OR c IS NULL", bloomFilterData=bloom_data(1, 2, 111))
FILES = {
    "two": filters_of(entry(), OTHER),
    "gone": filters_of(entry(bornTime=5, deadTime=7, dead=True), OTHER),
    "no expression": filters_of(OTHER, entry(None)),
    "not compiled": filters_of(OTHER, entry("a >")),
    "only one, not compiled": filters_of(entry("a >")),
    "no such type": filters_of(OTHER, entry(expressionType="TAG"), entry(expressionType=None)),
    "position above": filters_of(OTHER, entry(bloomFilterData=bloom_data(1, 2, 113))),
    "position at the end": filters_of(OTHER, entry(bloomFilterData=bloom_data(1, 2, 112))),
    "position below": filters_of(OTHER, entry(bloomFilterData=bloom_data(1, 2, -1))),
    "other bits": filters_of(OTHER, entry(bloomFilterData=bloom_data(1, 2, 3, bits=120))),
    "fewer hashes": filters_of(OTHER, entry(bloomFilterData=bloom_data(1, 2))),
    "no positions": filters_of(OTHER, entry(bloomFilterData={"bitNum": 112})),
    "no Bloom data": filters_of(OTHER, entry(bloomFilterData=None)),
    "no groups": filters_of(OTHER, u={"groupFilterData": {}, "topic": "u"}),
    "another name inside": json.dumps(
        {"filterDataByTopic": {"t": {"groupFilterData": {"g": entry()}, "topic": "u"}}}
    ),
    "no topics": json.dumps({"filterDataByTopic": {}}),
    "nothing": "{}",
    "null group": filters_of(OTHER, None),
    "null topic": filters_of(OTHER, u=None),
    "cut": filters_of(OTHER)[:-4],
}


@pytest.mark.parametrize("name", FILES)
def test_bit_maps_of_a_file(java: JavaFilters, name: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    pieces = (
        b"a\x011",
        b"a\x012",
        b"b\x015",
        b"b\x01x",
        b"c\x01\xff",
        b"c\x01",
        b"\x01",
        b"b\x011\x011",
        b"",
    )
    messages = [
        (chance.choice("tttu"), b"\x02".join(chance.choices(pieces, k=chance.randrange(6))))
        for _ in range(60)
    ]
    expected = java.bit_maps(20, 32, FILES[name], messages)
    path = tmp_path / "consumerFilter.json"
    path.write_text(FILES[name], encoding="utf-8")
    bloom = BloomFilter.create(FilterSettings())
    if expected is None:
        with pytest.raises(SettingsError):
            load(path, bloom, parts=True)
        return
    found = load(path, bloom, parts=True).by_topic
    assert expected == [
        bit_map(
            found.get(topic, ()),
            bloom,
            {javastring.decode(n): javastring.decode(v) for n, v in properties.pairs(record)},
        )
        for topic, record in messages
    ]
    for topic, filters in found.items():
        records = [record for of, record in messages if of == topic]
        lengths = np.array([len(record) for record in records], np.int64)
        data = np.frombuffer(b"".join(records), np.uint8)
        maps = TopicFilters(filters, bloom).of_records(data, np.cumsum(lengths) - lengths, lengths)
        assert [each for (of, _), each in zip(messages, expected, strict=True) if of == topic] == [
            bits.tobytes() if stored else None for bits, stored in zip(maps.bits, maps.stored, strict=True)
        ]
