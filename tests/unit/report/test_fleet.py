"""The page of a fleet: each store has its row, the worst first, and what anybody named is only text."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from reput.newer_python import UTC
from reput.report.fleet import render

NOW = datetime(2026, 11, 24, 1, 30, tzinfo=UTC)


def row(place: str, days_ago: int = 0, **facts: Any) -> dict[str, Any]:
    return {
        "run": f"run-{days_ago}",
        "time": NOW - timedelta(days=days_ago),
        "cluster": None,
        "broker": None,
        "place": place,
        "verdict": "start",
        "exit_code": 0,
        "summary": f"{place}: start it: nothing is wrong",
        "next_steps": [],
        "seconds": 2.0,
        "findings": 0,
        "finding_list": [],
        "messages": 10,
        "log_start": 0,
        "log_end": 5 << 30,
        "growth": 3 << 20,
        "lag": 7,
        "bytes_read": 1 << 20,
        "bytes_skipped": 5 << 30,
        **facts,
    }


def refused(place: str, said: str) -> dict[str, Any]:
    facts = ("place", "run", "time", "cluster", "broker", "seconds")
    known = {key: value for key, value in row(place).items() if key in facts}
    return {**known, "verdict": "refused", "exit_code": 2, "summary": said, "next_steps": ["Mount it"]}


def test_the_worst_come_first_and_nothing_but_the_page_is_needed() -> None:
    evil = "<script>alert(1)</script>\u202e"
    finding = {
        "kind": "wrong-unit",
        "said": f"expected 1, found {evil}",
        "path": f"/b/consumequeue/{evil}/0/0",
        "topic": evil,
        "queue_id": 0,
        "count": 3,
        "first_seen": (NOW - timedelta(days=1)).isoformat(),
    }
    rows = [
        row("/a", growth=-5),
        row(
            "/b",
            verdict="mend",
            exit_code=3,
            findings=1200,
            finding_list=[finding],
            next_steps=[f"reput x {evil}"],
        ),
        refused("h:/c", f"on host h: /c: there is no store here; found {evil}"),
    ]
    earlier = [row(one["place"], day) for day in (2, 1) for one in rows]
    page = render(rows, earlier).decode()
    assert "<script>alert" not in page
    assert "\u202e" not in page
    places = [page.index(f'<span class="path">{place}</span></th>') for place in ("h:/c", "/b", "/a")]
    assert places == sorted(places)
    assert "3 stores: 1 not checked, 1 to be mended." in page
    assert "there is no store here" in page
    assert "The first 1 of 1,200 are listed here" in page
    assert "2026-11-23 01:30:00" in page
    assert "-5 B" in page
    assert page.count('class="trend"') == 3
    assert page.count("<rect") == 9
    assert "10 GiB of sealed segments weren" in page


def test_without_a_history_there_is_no_trend() -> None:
    page = render([row("/a", run=None, growth=None, bytes_skipped=None, bytes_read=None)], []).decode()
    assert "1 store: nothing is wrong." in page
    assert 'class="trend"' not in page
    assert "Without <code>--history</code>" in page


def test_each_verdict_has_its_level_and_the_worst_come_first() -> None:
    codes = {"start-with-loss": 1, "mend": 3, "no-start": 4, "unknown": 5}
    rows = [row(f"/{name}", verdict=name, exit_code=code) for name, code in codes.items()]
    page = render([*rows, row("/start"), refused("/refused", "no")], []).decode()
    said = "1 not checked, 1 that will not start, 1 that can&#39;t be told, 1 to be mended, 1 with losses"
    assert f"6 stores: {said} for good." in page
    places = [page.index(f'<span class="path">/{name}</span></th>') for name in (
        "refused", "no-start", "unknown", "mend", "start-with-loss", "start")]  # fmt: skip
    assert places == sorted(places)
    for name, level in (("start-with-loss", "attention"), ("mend", "broken"), ("no-start", "broken"),
                        ("unknown", "attention"), ("start", "sound")):  # fmt: skip
        only = render([row("/a", verdict=name, exit_code=codes.get(name, 0))], []).decode()
        assert f'class="verdict {level}"' in only


def test_a_history_of_reput_1_is_still_shown() -> None:
    earlier = [
        row("/a", 3, verdict="damaged", exit_code=1, findings=2),
        row("/a", 2, verdict="nothing-found"),
        row("/a", 1, verdict="sound"),
    ]
    page = render([row("/a")], earlier).decode()
    assert "4 runs, 1 of them with findings or not checked" in page
    assert [page.count(f'<rect class="{level}"') for level in ("broken", "attention", "sound")] == [1, 1, 2]
    # Such a run that goes on has rows of both.
    assert "1 store: 1 with findings." in render([earlier[0]], []).decode()
