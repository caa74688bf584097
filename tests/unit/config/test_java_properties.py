"""Properties text against what java.util.Properties of OpenJDK 17 made of the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.config.broker_conf import parse
from reput.errors import SettingsError


def values(data: bytes) -> dict[str, str]:
    return {key: entry.value for key, entry in parse(data).items()}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # separators
        (b"a=1", {"a": "1"}),
        (b"a = 1", {"a": "1"}),
        (b"a:1", {"a": "1"}),
        (b"a 1", {"a": "1"}),
        (b"a\t\f1", {"a": "1"}),
        (b"a = : 1", {"a": ": 1"}),
        (b"a == 1", {"a": "= 1"}),
        (b"a", {"a": ""}),
        (b"a=", {"a": ""}),
        (b"=1", {"": "1"}),
        # white space: leading goes, trailing stays, and only these three count
        (b"  a=1  ", {"a": "1  "}),
        (b"a=1\t", {"a": "1\t"}),
        (b"a\x0b=1", {"a\x0b": "1"}),
        (b"a\x85=\x1c1", {"a\x85": "\x1c1"}),
        # lines
        (b"a=1\nb=2\rc=3\r\nd=4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        (b"\n \n\r\n", {}),
        (b"a=1\na=2\n", {"a": "2"}),
        (b"", {}),
        # comments
        (b"# a=1\n! b=2\n  # c=3\nd=4 # not one", {"d": "4 # not one"}),
        (b"# a=1 \\\nb=2", {"b": "2"}),
        # continuation
        (b"a=1,\\\n   2", {"a": "1,2"}),
        (b"a=1\\\r\n2", {"a": "12"}),
        (b"a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        (b"a=1\\\\\n2=3", {"a": "1\\", "2": "3"}),
        (b"a=1\\\\\\\n2=3", {"a": "1\\2=3"}),
        (b"a=1\\\n# 2", {"a": "1# 2"}),
        (b"\\\n# 2\na=1", {"a": "1"}),
        (b"a\\\n=1", {"a": "1"}),
        (b"a=1\\", {"a": "1"}),
        (b"a=1\\\n", {"a": "1"}),
        (b"a=\\\n\\\n 1", {"a": "1"}),
        # escapes
        (b"a=\\t\\r\\n\\f\\\\", {"a": "\t\r\n\f\\"}),
        (b"a=C:\\data\\store", {"a": "C:datastore"}),
        (b"a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
        (b"a\\\\=1", {"a\\": "1"}),
        (b"a=\\u0041\\u00e9\\uFFFD", {"a": "Aé\ufffd"}),
        (b"a=\\u0020x", {"a": " x"}),
        (b"a=\\ud83d\\ude00", {"a": "😀"}),
        (b"a=\\ud83d", {"a": "\ud83d"}),
        # every byte is a character
        ("a=é".encode(), {"a": "Ã©"}),
        (b"a=\xe9\xff\x00", {"a": "éÿ\x00"}),
    ],
)
def test_the_text_of_a_properties_file(data: bytes, expected: dict[str, str]) -> None:
    assert values(data) == expected


def test_lines_are_counted_from_one_where_the_entry_starts() -> None:
    entries = parse(b"# head\n\na=1\\\n 2\r\nb=2\n\n a = 3\n")
    assert [(entry.key, entry.value, entry.line) for entry in entries.values()] == [
        ("a", "3", 7),
        ("b", "2", 5),
    ]


@pytest.mark.parametrize(
    ("data", "found"),
    [(b"x=1\na=\\u00g0", "\\\\u00g0"), (b"x=1\na=\\u00e", "\\\\u00e"), (b"x=1\n\\u=1", "\\\\u")],
)
def test_a_broken_escape_names_file_and_line(data: bytes, found: str) -> None:
    with pytest.raises(SettingsError, match=r"^broker\.conf: line 2: a broken \\u escape") as caught:
        parse(data, "broker.conf")
    assert caught.value.found is not None
    assert found in caught.value.found


SPECIAL = str.maketrans(
    {char: f"\\{char}" for char in "\\=: #!"} | {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
)


@given(
    st.dictionaries(
        st.text(st.characters(max_codepoint=255), min_size=1), st.text(st.characters(max_codepoint=255))
    )
)
def test_what_is_escaped_comes_back(entries: dict[str, str]) -> None:
    text = "".join(f"{key.translate(SPECIAL)}={value.translate(SPECIAL)}\n" for key, value in entries.items())
    assert values(text.encode("iso-8859-1")) == entries


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        entries = parse(data)
    except SettingsError:
        return
    assert all(1 <= entry.line <= 1 + data.count(b"\n") + data.count(b"\r") for entry in entries.values())
