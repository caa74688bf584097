"""One word for one thing: times, zones, names that options had before, and how commands are listed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from reput.cli import output, times
from reput.errors import SettingsError
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, golden


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    return golden("5.3.3-restart", tmp_path_factory.mktemp("words"))


@pytest.fixture
def shanghai() -> Iterator[None]:
    """A machine in another zone."""
    os.environ["TZ"] = "Asia/Shanghai"
    time.tzset()
    yield
    os.environ["TZ"] = "UTC"
    time.tzset()
    times.use_zone(None)


NOON = 1_795_262_400_000  # 2026-11-21T12:00Z


@pytest.mark.parametrize(
    "text",
    [
        "1795262400000",
        "2026-11-21T12:00Z",
        "2026-11-21T20:00+08:00",
        "2026-11-21 20:00",
        "2026/11/21 20:00:00",
    ],
)
def test_a_time_in_the_zone_of_the_machine(text: str, shanghai: None) -> None:
    assert times.time_of("--since", text) == NOON
    assert times.moment(NOON) == "2026-11-21T20:00:00.000+08:00"
    assert times.zone_name() == "+08:00"


def test_a_time_in_a_chosen_zone(shanghai: None) -> None:
    times.use_zone("UTC")
    assert times.time_of("--since", "2026/11/21 12:00") == NOON
    assert (times.moment(NOON), times.zone_name()) == ("2026-11-21T12:00:00.000Z", "UTC")
    times.use_zone("America/New_York")
    assert times.time_of("--since", "2026-11-21T07:00") == NOON
    assert times.second(NOON) == "2026-11-21 07:00:00"
    with pytest.raises(SettingsError, match="--tz can't be understood"):
        times.use_zone("Mars/Olympus")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("3d", 259_200), ("now", 0)]
)
def test_a_time_ago(text: str, seconds: int) -> None:
    asked = times.time_of("--since", text)
    assert asked is not None
    assert 0 <= time.time() * 1000 - asked - seconds * 1000 < 5000


def test_days_by_name(shanghai: None) -> None:
    today, yesterday = times.time_of("--since", "today"), times.time_of("--since", "yesterday")
    assert today is not None
    assert yesterday is not None
    assert today - yesterday == 86_400_000
    assert datetime.fromtimestamp(today / 1000, UTC).hour == 16, "midnight in Shanghai"


@pytest.mark.parametrize("text", ["soon", "1795262400", "10 m", "1y", "21.11.2026", "999999999d", ""])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(SettingsError, match="--until can't be understood"):
        times.time_of("--until", text)


def test_the_zone_is_named(reput: Command, store: GoldenStore) -> None:
    shown = reput("stats", store.root, "--tz", "Asia/Shanghai")
    assert "first +08:00" in shown.stdout
    assert "first UTC" in reput("stats", store.root).stdout
    assert reput("stats", store.root, "--tz", "Mars/Olympus").code == 2
    stored = reput("query", store.root, "--offset", "0", "--tz", "Asia/Tokyo").stdout.splitlines()[0]
    assert stored.endswith("+09:00")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("query STORE --queue Orders:0 --at 0 --count 2", "query STORE --queue Orders:0 --at 0 --limit 2"),
        ("query STORE --offset 0 --body", "query STORE --offset 0 --bodies"),
        (
            "query STORE --topic Orders --key k --from 0 --max 3",
            "query STORE --topic Orders --key k --since 0 --limit 3",
        ),
        ("stats STORE --top=1", "stats STORE --limit 1"),
        ("dump commitlog STORE --body --limit 1", "dump commitlog STORE --bodies --limit 1"),
    ],
)
def test_old_names_go_on_working_with_a_note(reput: Command, store: GoldenStore, old: str, new: str) -> None:
    before, now = (
        reput(*(str(store.root) if word == "STORE" else word for word in words.split(" ")))
        for words in (old, new)
    )
    took = [line for line in before.stdout.splitlines() if not line.startswith("  took")]
    assert took == [line for line in now.stdout.splitlines() if not line.startswith("  took")]
    assert before.code == now.code
    notes = [line for line in before.stderr.splitlines() if " is called " in line]
    assert [f"reput: {one} is called" in " ".join(notes) for one in old.split() if one not in new.split()]
    assert notes
    assert " is called " not in now.stderr


def test_an_old_name_that_is_a_value_stays_one(reput: Command, store: GoldenStore) -> None:
    asked = reput("query", store.root, "--topic", "Orders", "--key", "--max")
    assert (asked.code, " is called " in asked.stderr) == (1, False)


def test_the_old_end_of_a_range_is_included(reput: Command, store: GoldenStore) -> None:
    words = ("query", store.root, "--topic", "Orders", "--key", "none", "--since", "1795262400000")
    assert reput(*words, "--to", "1795262400000").code == 1
    assert reput(*words, "--until", "1795262400000").code == 2
    assert reput(*words, "--until", "1795262400001", "--to", "1795262400000").code == 2


def test_commands_are_listed_by_what_they_are_for(reput: Command) -> None:
    said = reput("--help").stdout
    places = [said.index(f"─ {group} ─") for group in ("Look", "Mend", "Follow", "Tables", "Set up")]
    assert places == sorted(places)
    for command in ("", "query", "stats", "rebuild", "dump commitlog"):
        assert "<bool>" not in reput(*command.split(), "--help").stdout


@pytest.mark.parametrize("words", [("-V",), ("--version",)])
def test_version(reput: Command, words: tuple[str, ...]) -> None:
    assert reput(*words).stdout.startswith("reput ")


def test_quiet_shows_no_progress(reput: Command, store: GoldenStore) -> None:
    words = ("query", store.root, "--offset", "0")
    assert "settings: " in reput(*words).stderr
    assert reput("-q", *words).stderr == ""
    assert reput("-q", "query", store.root).stderr != "", "why it is refused is said"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("query STORE --queue order:3 --at 0", "Orders:3"),
        ("query STORE --queue Orders:99", "Orders:"),
        ("query STORE --topic orders --key none", "Orders"),
        ("stats STORE --topic Order", "Orders"),
        ("dump commitlog STORE --topic orders", "Orders"),
        ("dump commitlog STORE --queue Payment:0", "Payments:0"),
    ],
)
def test_the_nearest_name_is_offered(reput: Command, store: GoldenStore, words: str, meant: str) -> None:
    asked = reput(*(str(store.root) if word == "STORE" else word for word in words.split()))
    assert f"did you mean {meant}" in asked.stdout + asked.stderr


def test_no_name_is_offered_where_none_is_like_it(reput: Command, store: GoldenStore) -> None:
    asked = reput("query", store.root, "--queue", "zzzzzz:3")
    assert (asked.code, "did you mean" in asked.stdout) == (1, False)
    known = reput("query", store.root, "--topic", "Orders", "--key", "none")
    assert (known.code, "did you mean" in known.stdout) == (1, False)


def test_tables_fit_a_narrow_terminal(
    reput: Command, store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = reput("stats", store.root).stdout
    assert max(map(len, wide.splitlines()[2:6])) > 60
    monkeypatch.setattr(output, "_columns", lambda: 60)
    narrow = reput("stats", store.root).stdout.splitlines()
    cells = [line for line in narrow if line.split()[:1] in (["topic"], ["messages"], ["first"])]
    assert len(cells) > 6
    assert max(map(len, cells)) <= 60
    assert any(line.split() == ["topic", "Orders"] for line in narrow)
