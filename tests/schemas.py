"""What commands print with ``--json`` is held against docs/schemas wherever a test runs one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import relevance
from referencing import Registry, Resource

SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas"


def hold(arguments: Sequence[object], stdout: str) -> None:
    """Hold what a command printed against its schema; without ``--json`` nothing is looked at."""
    words = [str(one) for one in arguments]
    if "--json" not in words or "--help" in words:
        return
    name = schema_of(words)
    by_line = name.startswith("dump-") and name != "dump-digest"
    for text in stdout.splitlines() if by_line else filter(None, [stdout]):
        document = json.loads(text)
        of_stores = "stores" in document and (SCHEMAS / f"{name}-stores.json").exists()
        told = f"{name}-stores" if of_stores else name
        errors = [error.message for error in _deepest(validator(told).iter_errors(document))]
        assert not errors, f"{told}.json: {errors}\n{text[:2000]}"


def schema_of(words: Sequence[str]) -> str:
    """The name of the schema of what a command prints."""
    command, *more = (one for one in words if one not in ("-q", "--quiet", "-v", "--verbose"))
    if command == "dump":
        return f"dump-{more[0]}"
    for name, options in (("tail", ("--status", "--stop")), ("stats", ("--topics",))):
        if command == name and (given := [one for one in options if one in more]):
            return f"{name}-{given[0][2:]}"
    return command


@cache
def validator(name: str) -> Draft202012Validator:
    """Of a schema, by its name."""
    schemas = {path.name: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    registry = Registry().with_resources(
        (one, Resource.from_contents(schema)) for one, schema in schemas.items()
    )
    Draft202012Validator.check_schema(schemas[f"{name}.json"])
    return Draft202012Validator(schemas[f"{name}.json"], registry=registry)


def _deepest(errors: Iterable[ValidationError]) -> list[ValidationError]:
    """Of each error what is wrong in the alternative that comes nearest."""
    return [min(error.context or [error], key=relevance) for error in errors]
