"""What errors and findings say."""

from __future__ import annotations

import ast
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from reput.diagnosis.findings import judged
from reput.diagnosis.verdict import Effect, Remedy
from reput.dump.damage import Damage
from reput.errors import Fact, Finding, JournalError, OutputError, Problem, ReputError, StoreError
from reput.recovery.losses import Loss
from reput.recovery.mend_log import Change
from reput.replay import placing
from reput.scan import part
from reput.verify.report import INDEX, QUEUE, Difference

LIB = Path(str(part.__file__)).parents[1]


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
    facts = json.loads(json.dumps(finding.stored()))
    assert Finding(**facts) == finding
    assert list(facts)[:4] == ["kind", "path", "offset", "end"], "as journals have them"


def test_every_kind_of_finding_is_explained() -> None:
    kinds = {*part._KIND.values(), *(kind for kind, _, _ in part._REMARKS.values()), *placing._OUTCOMES}
    kinds |= _kinds_made()
    page = (Path(__file__).parents[2] / "docs" / "findings.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \|(.*)\|(.*)\|(.*)\|$", page, re.MULTILINE)
    lacking = kinds - set(re.findall("`([a-z-]+)`", page))
    assert not lacking, f"docs/findings.md has no row of {sorted(lacking)}"
    assert all(meaning.strip() for _, _, meaning, _ in rows)


def _kinds_made() -> set[str]:
    """The kinds that lib makes findings of, by their texts or by constants."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in LIB.rglob("*.py")]
    named = [
        (target.id, node.value.value)
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    found = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
        if isinstance(node, ast.Call) and called in ("Finding", "Problem", "Loss", "Difference"):
            given = [one.value for one in node.keywords if one.arg == "kind"] or node.args[:1]
            found |= {one.value for one in given if isinstance(one, ast.Constant)}
            names = {one.id for one in given if isinstance(one, ast.Name)}
            found |= {value for name, value in named if name in names}
    return {one for one in found if isinstance(one, str)}


def compared(*facts: str, **more: Any) -> Fact:
    return judged(Difference(*facts, **more), Effect.LACKS, Remedy.MEND)


@pytest.mark.parametrize(
    ("fact", "said", "own"),
    [
        (Finding("bad-size", "/log", 10, 20, "a", "b", "c"), "expected a, found b; c", set()),
        (Problem("empty-file", "/log", "a", "b", "c", "Do d."), "expected a, found b; c", {"stops"}),
        (Loss("no-log", "/log", 1, 2, 3, "gone"), "gone", set()),
        (
            Change("stand-in", "/log", 1, 2),
            "damaged: records stand there",
            {"physical_offset", "physical_end"},
        ),
        (
            compared("missing-entry", "/log", INDEX, "a", "b", first=3),
            "expected a, found b",
            {"area", "effect", "remedy", "messages", "cause", "remark"},
        ),
        (Damage("hole", "/q", 20, 40, "a", "b", "c"), "expected a, found b; c", {"type"}),
    ],
)
def test_facts_have_one_form(fact: Fact, said: str, own: set[str]) -> None:
    assert fact.said.startswith(said)
    assert said in str(fact)
    facts = json.loads(json.dumps(fact.to_dict()))
    assert facts["said"] == fact.said
    assert set(facts) == set(Fact.to_dict(fact)) | own
    assert pickle.loads(pickle.dumps(fact)) == fact


@pytest.mark.parametrize(
    ("fact", "places"),
    [
        (Finding("bad-size", "/log", 10, 20, "a", "b", "c"), {"physical_offset": 10, "physical_end": 20}),
        (Damage("hole", "/q", 20, 40, "a", "b", "c"), {"file_offset": 20, "file_end": 40}),
        (
            Damage("hole", "/q", 20, 40, "a", "b", "c", in_log=True),
            {"physical_offset": 20, "physical_end": 40},
        ),
        (
            compared("index-slot", "/i", INDEX, "a", "b", first=3, end=4, offset=52),
            {"file_offset": 52, "slot": 3, "slot_end": 4},
        ),
        (
            compared("stale-entry", "/i", INDEX, "a", "b", first=3, end=4, offset=52),
            {"file_offset": 52, "ordinal": 3, "ordinal_end": 4},
        ),
        (
            compared("wrong-unit", "/q", QUEUE, "a", "b", first=3, end=4, offset=60, topic="T", queue_id=1),
            {"file_offset": 60, "queue_offset": 3, "queue_end": 4},
        ),
        (
            compared("only-in-first", "/i", INDEX, "a", "b", first=3, end=4, offset=None),
            {"physical_offset": 3, "physical_end": 4},
        ),
    ],
)
def test_places_are_said_by_what_they_count(fact: Fact, places: dict[str, int]) -> None:
    found = fact.to_dict()
    names = [name for name in found if name.endswith(("_offset", "_end", "slot", "ordinal"))]
    assert {name: found[name] for name in names if found[name] is not None} == places
