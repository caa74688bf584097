"""The schemas of docs/schemas themselves: that they are whole, and refuse what they should."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from reput.words import SCHEMA_VERSION
from tests.cli.test_every_command import ALL
from tests.schemas import SCHEMAS, hold, schema_of, validator

DOCUMENT = {"command": "undo", "schema_version": 2, "exit_code": 0, "next_steps": []}
UNDONE = {**DOCUMENT, "store": "/s", "put_back": [], "taken_away": [], "kept": "/s/replaced-1"}
FAILED = {
    "command": "undo",
    "schema_version": 2,
    "exit_code": 2,
    "error": "it is so",
    "message": "/s: it is so",
    "path": "/s",
    "offset": None,
    "expected": None,
    "found": None,
    "host": None,
    "next_steps": [],
}


def test_every_command_has_one_and_its_page_names_it() -> None:
    names = {schema_of(command.split()) for command in ALL} | {"export-line", "digest-line"}
    names |= {"check-stores", "rebuild-stores", "stats-topics", "tail-status", "tail-stop"}
    assert names == {path.stem for path in SCHEMAS.glob("*.json")} - {"common"}
    page = (SCHEMAS.parent / "data" / "json.md").read_text()
    assert set(re.findall(r"\(../schemas/([a-z-]+)\.json\)", page)) == names | {"common"}


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_it_is_a_schema_in_snake_case(path: Path) -> None:
    assert validator(path.stem)
    text = path.read_text()
    schema = json.loads(text)
    assert schema["$id"] == path.name
    fields = [name for found in _objects(schema) if _is_object(found) for name in found["properties"]]
    assert [name for name in fields if not re.fullmatch(r"[a-z][a-z0-9_]*", name)] == []


def _is_object(schema: dict[str, object]) -> bool:
    return schema.get("type") == "object" and "properties" in schema


def _objects(schema: object) -> list[dict[str, object]]:
    if isinstance(schema, list):
        return [found for one in schema for found in _objects(one)]
    if not isinstance(schema, dict):
        return []
    return [schema, *(found for one in schema.values() for found in _objects(one))]


def test_the_version_is_the_one_that_is_printed() -> None:
    common = json.loads((SCHEMAS / "common.json").read_text())
    assert common["$defs"]["version"]["const"] == SCHEMA_VERSION


@pytest.mark.parametrize("document", [UNDONE, FAILED])
def test_it_takes_what_is_printed(document: dict[str, object]) -> None:
    hold(["undo", "/s", "--json"], json.dumps(document))


@pytest.mark.parametrize(
    "document",
    [
        {**UNDONE, "more": 1},
        {**UNDONE, "schema_version": 3},
        {**UNDONE, "kept": 5},
        {name: value for name, value in UNDONE.items() if name != "put_back"},
        {name: value for name, value in UNDONE.items() if name != "next_steps"},
        {**FAILED, "exit_code": 1},
        {**FAILED, "more": 1},
    ],
)
def test_it_refuses_anything_else(document: dict[str, object]) -> None:
    with pytest.raises(AssertionError, match=r"undo\.json"):
        hold(["undo", "/s", "--json"], json.dumps(document))
