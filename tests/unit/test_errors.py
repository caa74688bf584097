"""What errors and findings say."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

from reput.errors import Finding, JournalError, OutputError, ReputError, StoreError
from reput.log import segments
from reput.output import retention, step_back, writer
from reput.replay import placing
from reput.scan import part


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, "it failed"),
        ({"path": Path("/a/b")}, "/a/b: it failed"),
        ({"path": "/a", "offset": 0}, "/a at offset 0: it failed"),
        ({"offset": 7}, "offset 7: it failed"),
        ({"expected": 1, "found": 2}, "it failed; expected 1, found 2"),
        ({"expected": 1}, "it failed; expected 1"),
        ({"found": ""}, "it failed; found "),
        (
            {"path": "/a", "expected": "x", "found": "y", "next_step": "Do z."},
            "/a: it failed; expected x, found y. Do z.",
        ),
    ],
)
def test_an_error_is_one_sentence(facts: dict[str, object], text: str) -> None:
    assert str(ReputError("it failed", **facts)) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [ReputError, OutputError, StoreError, JournalError])
def test_errors_travel(kind: type[ReputError]) -> None:
    error = kind("it failed", path="/a", offset=3, expected=4, found=5, next_step="Go on")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.facts()) == (str(error), error.facts())


def test_a_finding_says_where_and_what() -> None:
    finding = Finding("bad-size", "/log", 10, 20, "91 bytes", "3 bytes", "passed over")
    assert str(finding) == (
        "/log at physical offset 10 to 20: bad-size: expected 91 bytes, found 3 bytes; passed over"
    )


def test_a_finding_of_a_queue_names_it() -> None:
    finding = Finding("stray", "/log", 10, 10, "5", "7", "left", "T", 2, 5, 4)
    assert str(finding) == (
        "/log at physical offset 10, queue T:2 at queueOffset 5: stray: expected 5, found 7; left (4 times)"
    )
    facts = json.loads(json.dumps(finding.to_dict()))
    assert Finding(**facts) == finding


def test_every_kind_of_finding_is_explained() -> None:
    kinds = {*part._KIND.values(), *(kind for kind, _, _ in part._REMARKS.values()), *placing._OUTCOMES}
    kinds.add(segments.UNCOMMITTED)
    for module in (part, segments, writer, retention, step_back, placing):
        source = Path(str(module.__file__)).read_text()
        kinds |= set(re.findall(r'kind="([a-z-]+)"', source))
    page = (Path(__file__).parents[2] / "docs" / "findings.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \|(.*)\|(.*)\|(.*)\|$", page, re.MULTILINE)
    assert sorted(kind for kind, *_ in rows) == sorted(kinds)
    assert all(cell.strip() for row in rows for cell in row)
