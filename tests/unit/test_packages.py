"""The packages of ``lib/reput`` and what they may import, as CONTRIBUTING.md has them in a table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIB = ROOT / "lib" / "reput"
ROW = re.compile(r"^\| (`[a-z_` ]+`) \| .+ \| (yes|no) \|$", re.MULTILINE)
SPARK = ("pyspark", "delta", "py4j")


def table() -> dict[str, tuple[int, bool]]:
    """Each package's row, from the top, and whether it may import PySpark."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = ROW.findall(text)
    return {
        name: (number, spark == "yes")
        for number, (cell, spark) in enumerate(rows)
        for name in re.findall("`([a-z_]+)`", cell)
    }


def package(module: list[str]) -> str:
    """The package below ``reput`` that a dotted name leads to; modules at the root are their own."""
    return module[1] if len(module) > 1 else ""


def imports(path: Path) -> Iterator[list[str]]:
    """The dotted names that a module imports, those for type checkers and in functions, too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}".split(".") for alias in node.names)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(LIB.rglob("*.py")):
        place = path.relative_to(LIB).with_suffix("").parts
        if place != ("__init__",):
            yield place[0], path


def test_the_table_has_every_package_and_no_other() -> None:
    assert {name for name, _ in modules()} == set(table())


def test_packages_import_only_from_those_above_them() -> None:
    rows = table()
    wrong = {
        f"{path.relative_to(LIB)} imports {other}"
        for name, path in modules()
        for dotted in imports(path)
        if dotted[0] == "reput" and (other := package(dotted)) in rows and other != name
        if rows[other][0] > rows[name][0] or (rows[other][0] == rows[name][0] and (LIB / name).is_dir())
    }
    assert not wrong


def test_spark_is_imported_only_where_the_table_says_so() -> None:
    rows = table()
    wrong = {
        f"{path.relative_to(LIB)} imports {dotted[0]}"
        for name, path in modules()
        for dotted in imports(path)
        if dotted[0] in SPARK and not rows[name][1]
    }
    assert not wrong
