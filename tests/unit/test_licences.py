"""docs/data/licences.md against the packages that are locked; ``make licences`` writes its table."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "data" / "licences.md"
HEAD = "| package | licence | in |\n|---|---|---|\n"

#: Of those whose metadata says nothing: what another file of the package says.
READ = {"hdfs-native": "Apache-2.0, by its SBOM"}
#: Longer ones are the licence's text.
_LONGEST = 60


def locked(name: str) -> dict[str, str]:
    """Versions by package of requirements/NAME.txt."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE))


def licence(one: Distribution) -> str:
    """What a package's metadata says of its licence, "" for nothing."""
    facts = one.metadata
    if expression := facts.get("License-Expression"):
        return expression
    kinds = [text.split(" :: ")[-1] for text in facts.get_all("Classifier", []) if text.startswith("License")]
    said = (facts.get("License") or "").strip()
    if said and said != "UNKNOWN" and "\n" not in said and len(said) <= _LONGEST and "Copyright" not in said:
        return said
    return ", ".join(kinds)


def rows() -> list[str]:
    """The table's rows, by package."""
    light, run = locked("light"), locked("run")
    found = []
    for name, version in sorted({**locked("build"), **locked("dev")}.items()):
        one = distribution(name)
        assert one.version == version, (
            f"{name} {one.version} is installed, {version} is locked: run make install"
        )
        said = licence(one) or READ.get(name, "")
        assert said, f"{name} says nothing of its licence: read its other files, and add it to READ"
        assert not (licence(one) and name in READ), f"{name} says by itself what READ says"
        found.append(
            f"| {name} | {said} | {'light, run' if name in light else 'run' if name in run else 'dev'} |"
        )
    return found


def test_the_table_is_what_is_locked() -> None:
    before, _, table = PAGE.read_text(encoding="utf-8").partition(HEAD)
    assert "## Locked packages" in before
    assert table.splitlines() == rows(), "run `make licences`"


@pytest.mark.parametrize("name", ["light", "run"])
def test_what_is_locked_for_all_is_locked_alike(name: str) -> None:
    assert locked(name).items() <= locked("dev").items()


def test_copyleft_is_only_what_developers_run() -> None:
    strict = {row.split(" | ")[0][2:] for row in rows() if re.search(r"GPL|MPL|Mozilla|EPL|CDDL", row)}
    assert "docutils" in strict
    assert not strict & locked("run").keys()


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8").partition(HEAD)[0]
    PAGE.write_text(text + HEAD + "\n".join(rows()) + "\n", encoding="utf-8")
