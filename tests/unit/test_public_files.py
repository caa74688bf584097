"""The files that the repository's host and others read: workflow, forms, citation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

import reput

ROOT = Path(__file__).parents[2]
HOST = ROOT / ".github"
#: What a form's element may be, by the host's documentation.
ELEMENTS = {"markdown", "input", "textarea", "dropdown", "checkboxes"}


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_workflow_runs_what_everybody_runs() -> None:
    workflow = parsed(HOST / "workflows" / "ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    (python,) = (step["with"] for step in job["steps"] if "setup-python" in step.get("uses", ""))
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'target-version = "py{python["python-version"].replace(".", "")}"' in text


@pytest.mark.parametrize("path", sorted((HOST / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_a_form_is_one(path: Path) -> None:
    form = parsed(path)
    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": False}
        return
    assert form.keys() == {"name", "description", "body"}
    assert {one["type"] for one in form["body"]} <= ELEMENTS
    asked = [one for one in form["body"] if one["type"] != "markdown"]
    assert len({one["id"] for one in asked}) == len(asked) > 0
    assert all(one["attributes"]["label"] for one in asked)
    assert any(one.get("validations", {}).get("required") for one in asked)


def test_the_citation_is_of_this_version() -> None:
    citation = parsed(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["version"] == reput.__version__
    assert citation["license"] == "Apache-2.0"
