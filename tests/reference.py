"""Pages of docs/data that say what the code knows: commands, JSON, rules by release, plans, decisions.

``python -m tests.reference`` writes them anew; ``tests/unit/test_reference.py`` compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

from bench import sizing
from reput.cli import app as cli
from reput.config.dialect import DIALECTS, Dialect

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "data"
SCHEMAS = ROOT / "docs" / "schemas"
_WRITTEN = "<!-- Written by `python -m tests.reference`. -->"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(map(_cell, head))]
    lines += [["---"] * len(lines[0]), *(list(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", _WRITTEN, *parts]) + "\n"


# --- Commands and options ---------------------------------------------------------------------------------


def _commands(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    if children := getattr(command, "commands", None):
        for name, child in sorted(children.items()):
            if not child.hidden:
                yield from _commands(child, *path, name)
    else:
        yield " ".join(path), command


def _option(one: Any) -> tuple[str, str]:
    if one.opts[0][0] != "-":
        return f"`{one.metavar or one.name.upper()}`", one.help or ""
    names = ", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts])
    choices = "|".join(one.type_descriptor.choices or ())
    value = "" if one.is_flag else f" {one.metavar or choices or one.name.upper()}"
    variable = f" Or `{one.envvar}` in the environment." if one.envvar else ""
    return names + value, f"{one.help or ''}{variable}"


def commands() -> str:
    """Each command's first sentence, arguments and options."""
    parts = []
    for name, command in _commands(typer.main.get_command(cli.app)):
        about = " ".join((command.help or "").split("\n\n")[0].split())
        options = [_option(one) for one in command.params if not getattr(one, "hidden", False)]
        parts.append(f"## reput {name}\n\n{about}\n\n{_table(('', 'meaning'), options)}")
    about = (
        "What `--help` says; there each command has its examples. Before a command may stand `-q` (no\n"
        "progress) and `-v` (Python's and Spark's own words of what fails)."
    )
    return _page("Commands and options", about, *parts)


# --- JSON -------------------------------------------------------------------------------------------------


def _resolve(reference: str, at: str) -> tuple[dict[str, Any], str]:
    file, _, path = reference.partition("#")
    found = json.loads((SCHEMAS / (file or at)).read_text(encoding="utf-8"))
    for name in filter(None, path.split("/")):
        found = found[name]
    return found, file or at


def _properties(schema: dict[str, Any], at: str) -> dict[str, dict[str, Any]]:
    """The fields of an object, with those of what it is made of."""
    found: dict[str, dict[str, Any]] = {}
    if "$ref" in schema:
        found |= _properties(*_resolve(schema["$ref"], at))
    for one in schema.get("allOf", []):
        found |= _properties(one, at)
    return found | schema.get("properties", {})


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2].removesuffix(".json")
    for way in ("anyOf", "oneOf"):
        if way in schema:
            return " or ".join(dict.fromkeys(map(_kind, schema[way])))
    kinds = schema.get("type", "")
    kinds = list(kinds) if isinstance(kinds, list) else [kinds]
    if "items" in schema and "array" in kinds:
        kinds[kinds.index("array")] = f"list of {_kind(schema['items'])}"
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    return ", ".join(str(value) for value in values) or " or ".join(filter(None, kinds)) or "any"


def _fields(schema: dict[str, Any], at: str) -> str:
    rows = [
        (f"`{name}`", _kind(one), one.get("description", ""))
        for name, one in _properties(schema, at).items()
        if isinstance(one, dict)
    ]
    return _table(("field", "type", "meaning"), rows)


def documents() -> str:
    """Each schema's fields; those that all documents have, and the shapes in them, once."""
    common = json.loads((SCHEMAS / "common.json").read_text(encoding="utf-8"))
    shared = _properties(common["$defs"]["document"], "common.json")
    about = "Of [the schemas](../schemas/common.json). At the end is what [all](../interface.md#json) have."
    parts = [about]
    for path in sorted(SCHEMAS.glob("*.json")):
        if path.name == "common.json":
            continue
        schema = json.loads(path.read_text(encoding="utf-8"))
        kinds = list(schema.get("anyOf", schema.get("oneOf", [schema])))
        tables = []
        for one in kinds:
            if str(one.get("$ref", "")).endswith("/error"):
                continue
            names = {
                name: value
                for name, value in _properties(one, path.name).items()
                if name not in shared and isinstance(value, dict)
            }
            if names:
                tables.append(_fields({"properties": names}, path.name))
        title = schema["title"].removesuffix(" --json").replace(" --json", "")
        tables = list(dict.fromkeys(tables))
        parts.append("\n\n".join([f"## {title}", f"[{path.name}](../schemas/{path.name})", *tables]))
    parts.append("## Shapes")
    for name, schema in common["$defs"].items():
        if _properties(schema, "common.json"):
            parts.append(f"### {name}\n\n{_fields(schema, 'common.json')}")
    return _page("Fields of JSON", *parts)


# --- Rules by release -------------------------------------------------------------------------------------


def _light_queues(row: Dialect) -> str:
    if not row.multi_dispatch:
        return "never"
    without = [f"`{one}…`" for one in row.lmq_excluded_prefixes] + [
        f"`{one}`" for one in row.lmq_excluded_topics
    ]
    text = f"not for {', '.join(sorted(without))}" if without else "all topics"
    return f"{text}; not for names with `/`" if row.lmq_rejects_slash else text


def rules() -> str:
    """A row for each line of releases."""
    yes = {True: "yes", False: "no"}
    rows = [
        (
            f"`{row.name}`",
            ", ".join(row.versions),
            _light_queues(row),
            yes[row.topic_length_v2],
            yes[row.inner_batch_properties],
            yes[row.index_tags],
            yes[row.append_prop_crc],
            str(row.checkpoint_fields),
            str(row.empty_index_count),
        )
        for row in DIALECTS
    ]
    head = (
        "name",
        "releases",
        "light queues (LMQ)",
        "magic v2, long topics",
        "`INNER_BASE`, `INNER_NUM` are numbers",
        "TAGS in the index",
        "`__CRC32#`",
        "longs in `checkpoint`",
        "indexCount of an empty index file",
    )
    return _page(
        "Rules by release",
        "What decides bytes, by line of releases ([the columns](../settings.md#releases)).",
        _table(head, rows),
    )


# --- Plans ------------------------------------------------------------------------------------------------

_PLANS = {
    "Each store rebuilt on its own host, without a shared file system": "--bytes 100t --stores 50",
    "On a file system shared by ten large hosts, each rebuilding five stores in turn": (
        "--bytes 100t --stores 50 --hosts 10 --cores 32 --disk-read 2000 --disk-write 1000 --network 1100"
    ),
    "One store on the machine at hand, with the rate of its own `make bench`": (
        "--bytes 2t --cores 16 --disk-read 2500 --disk-write 1500 --rate 1400 --rate-cores 4"
    ),
    "A check every night, 5 % of the log new each time": "--bytes 100t --stores 50 --nightly 5",
}


def plans() -> str:
    """What the calculator prints."""
    parts = []
    for title, words in _PLANS.items():
        result = CliRunner().invoke(sizing.app, words.split())
        assert result.exit_code == 0, result.output
        shown = f"$ python -m bench.sizing {words}\n{result.stdout}"
        parts.append(f"## {title}\n\n```text\n{shown}```")
    return _page("Plans", "Examples of [the calculator](../sizing.md).", *parts)


# --- Decisions --------------------------------------------------------------------------------------------


def decisions() -> str:
    """Each number with its title; one that was replaced leads to what replaced it."""
    lines: dict[str, str] = {}
    for path in sorted((ROOT / "docs" / "adr").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        number, title = re.match(r"# (\d{4}) (.*)", text).groups()  # type: ignore[union-attr]
        lines[number] = f"- [{number}](../adr/{path.name}): {title}"
        for old in re.findall(r"Replaces (\d{4})", text):
            lines[old] = f"- [{old}](../adr/{path.name}): replaced by {number}"
    return _page("Decisions", "\n".join(lines[number] for number in sorted(lines)))


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "json.md": documents,
    "rules.md": rules,
    "plans.md": plans,
    "decisions.md": decisions,
}


if __name__ == "__main__":
    for name, text in PAGES.items():
        (DATA / name).write_text(text(), encoding="utf-8")
