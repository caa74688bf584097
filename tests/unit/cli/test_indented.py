"""Documents are written as Python's own encoder indents them."""

from __future__ import annotations

import json
from enum import IntEnum

from hypothesis import example, given
from hypothesis import strategies as st

from reput.cli.output import indented
from reput.newer_python import StrEnum


class Word(StrEnum):
    """A text that is more."""

    ONE = 'o"ne\n'


class Number(IntEnum):
    """A number that is more."""

    TWO = 2


PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([*Word, *Number])
)
NAMES = st.text() | st.integers() | st.booleans() | st.none() | st.floats() | st.sampled_from(Word)
DOCUMENTS = st.recursive(
    PLAIN,
    lambda inside: st.lists(inside) | st.lists(inside).map(tuple) | st.dictionaries(NAMES, inside),
    max_leaves=30,
)


@given(DOCUMENTS)
@example({})
@example([])
@example({"rows": [{"a": (), "b": {}}, {"a": [Word.ONE], "b": {Word.ONE: [[]]}}, {}], "é": "\u2028"})
@example({1: [[1, 2.5, float("nan")]], None: [True], "x": {}})
def test_a_document_is_as_the_library_indents_it(document: object) -> None:
    assert indented(document) == json.dumps(document, indent=2)
