"""What errors and findings say."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

from reput.broker.problem import Problem
from reput.dump.damage import Damage
from reput.errors import Fact, Finding, JournalError, OutputError, ReputError, StoreError
from reput.log import segments
from reput.output import retention, step_back, writer
from reput.recovery.losses import Loss
from reput.replay import placing
from reput.scan import part
from reput.verify.report import INDEX, Difference


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


@pytest.mark.parametrize(
    ("fact", "said", "own"),
    [
        (
            Finding("bad-size", "/log", 10, 20, "a", "b", "c"),
            "expected a, found b; c",
            ["offset", "end", "expected", "found", "outcome", "topic", "queue_id", "queue_offset", "count"],
        ),
        (
            Problem("empty-file", "/log", "a", "b", "c", "Do d."),
            "expected a, found b; c",
            ["expected", "found", "outcome", "next_step", "stops"],
        ),
        (Loss("no-log", "/log", 1, 2, 3, "gone"), "gone", ["offset", "end", "count", "text"]),
        (
            Difference("missing-entry", "/log", INDEX, "a", "b", first=3),
            "expected a, found b",
            [
                "area",
                "expected",
                "found",
                "first",
                "end",
                "count",
                "offset",
                "topic",
                "queue_id",
                "cause",
                "remark",
            ],
        ),
    ],
)
def test_facts_have_one_form(fact: Fact, said: str, own: list[str]) -> None:
    assert fact.said == said
    assert said in str(fact)
    # The journal writes a finding's facts in this order.
    assert list(fact.to_dict()) == ["kind", "path", *own]
    assert pickle.loads(pickle.dumps(fact)) == fact


def test_damage_is_a_finding_in_the_names_of_a_messages_columns() -> None:
    damage = Damage("hole", "/q", 20, 40, "units", "zeros", "gone", "T", 0, 1, queue_end=2)
    assert damage.to_dict() == {
        "type": "damage",
        "kind": "hole",
        "path": "/q",
        "offset": 20,
        "end": 40,
        "expected": "units",
        "found": "zeros",
        "outcome": "gone",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 1,
        "queueEnd": 2,
    }
    assert "topic" not in Damage.of(Finding("hole", "/q", 20, 40, "a", "b", "c", "T", 0)).to_dict()
    assert pickle.loads(pickle.dumps(damage)) == damage
