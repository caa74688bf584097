"""What docs/interface.md promises to keep: all that tests/unit/interface.json lists is still there.

The file is written by ``python -m tests.unit.test_interface`` at a release, which may take away what a major
version ends; between releases only what is new is missing from it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main

import reput
from reput.catalog import rows as messages
from reput.cli import app as cli
from reput.job import history
from reput.output import ledger
from reput.query import QueryStore
from reput.source.columns import INDEX_COLUMNS, MESSAGE_COLUMNS, PART_COLUMNS, QUEUE_COLUMNS
from reput.source.options import NAMES, QUEUE_NAMES, SHARED_NAMES
from tests.schemas import SCHEMAS

KEPT = Path(__file__).with_name("interface.json")
QUESTIONS = ("by_id", "by_key", "message_at", "offset_by_time", "pull")


def commands(command: Any, *path: str) -> Iterator[tuple[str, list[str]]]:
    """Each command, with its arguments and options."""
    if children := getattr(command, "commands", None):
        for name, child in sorted(children.items()):
            if not child.hidden:
                yield from commands(child, *path, name)
        return
    given = [
        word
        for one in command.params
        for word in ([*one.opts, *one.secondary_opts] if one.opts[0][0] == "-" else [one.name])
    ]
    yield " ".join(path), sorted({str(word) for word in given})


def members(of: object, names: Iterable[str]) -> list[str]:
    """What a module or a class has by these names; of functions each parameter, too."""
    found = []
    for name in sorted(names):
        value = getattr(of, name)
        given = inspect.signature(value).parameters if callable(value) else ()
        found += [name, *(f"{name}({one})" for one in given)]
    return found


def typed(columns: Mapping[str, str]) -> list[str]:
    return [f"{name} {type_}" for name, type_ in columns.items()]


def fields(schema: Any) -> list[str]:
    return [f"{one.name} {one.type}" for one in schema]


def required(schema: object, place: str = "") -> Iterator[str]:
    """What each part of a JSON Schema always has."""
    if isinstance(schema, dict):
        yield from (f"{place}: {name}" for name in schema.get("required", ()))
        for name, below in schema.items():
            yield from required(below, f"{place}/{name}")
    elif isinstance(schema, list):
        for below in schema:
            yield from required(below, place)


def interface() -> dict[str, dict[str, list[str]]]:
    """All of it as lists, by what it is and what it is of."""
    schemas = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in SCHEMAS.glob("*.json")}
    return {
        "commands": dict(commands(typer.main.get_command(cli.app))),
        "json": {name: sorted(set(required(schema))) for name, schema in sorted(schemas.items())},
        "tables": {
            "ledger": fields(ledger.SCHEMA),
            "messages": fields(messages.schema(bodies=True, many=True)),
            "history": fields(history.SCHEMA),
        },
        "sources": {
            "rocketmq-commitlog": typed(MESSAGE_COLUMNS),
            "rocketmq-commitlog, content=parts": typed(PART_COLUMNS),
            "rocketmq-consumequeue": typed(QUEUE_COLUMNS),
            "rocketmq-index": typed(INDEX_COLUMNS),
            "options": sorted({*SHARED_NAMES, *NAMES, *QUEUE_NAMES}),
        },
        "python": {
            "reput": members(reput, reput.__all__),
            "Store": members(reput.Store, [name for name in vars(reput.Store) if not name.startswith("_")]),
            "Store.query": members(QueryStore, QUESTIONS),
        },
    }


def gone(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What was there before and isn't now."""
    return [
        f"{what} {of}: {one}"
        for what, kinds in before.items()
        for of, names in kinds.items()
        for one in [of, *names]
        if of not in now.get(what, {}) or (one != of and one not in now[what][of])
    ]


def moved(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Tables whose new columns aren't at the end."""
    return [
        name
        for what in ("tables", "sources")
        for name, columns in before[what].items()
        if name != "options" and now[what][name][: len(columns)] != columns
    ]


def test_nothing_is_gone() -> None:
    before, now = json.loads(KEPT.read_text(encoding="utf-8")), interface()
    assert gone(before, now) == []
    assert moved(before, now) == []


@pytest.mark.parametrize("what", ["commands", "json", "tables", "sources", "python"])
def test_what_goes_is_seen(what: str) -> None:
    before, now = interface(), interface()
    of = next(name for name, names in before[what].items() if names)
    taken = now[what][of].pop()
    assert gone(before, now) == [f"{what} {of}: {taken}"]
    del now[what][of]
    assert f"{what} {of}: {of}" in gone(before, now)


def test_a_column_in_between_is_seen() -> None:
    before, now = interface(), interface()
    now["tables"]["history"].append("new int64")
    assert moved(before, now) == []
    now["tables"]["history"].insert(1, "newer int64")
    assert moved(before, now) == ["history"]


if __name__ == "__main__":
    KEPT.write_text(json.dumps(interface(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
