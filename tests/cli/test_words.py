"""One word for one thing: times, zones, names that options had before, and how commands are listed."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from reput.cli import output, times
from reput.errors import SettingsError
from reput.newer_python import UTC
from tests import rocksdbs
from tests.cli.test_help import COMMANDS
from tests.golden.store import GoldenStore
from tests.local import open_store, rebuild_locally
from tests.rebuilds import Command, broker_conf, golden


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


#: Commands that print times or take them, with words that make them do so.
TIMED = {
    "check": "STORE",
    "dump checkpoint": "STORE",
    "dump commitlog": "STORE --limit 1",
    "dump config": "STORE",
    "dump consumequeue": "STORE",
    "dump index": "STORE --limit 1",
    "export": "STORE -o OUT",
    "lag": "STORE",
    "query": "STORE --offset 0",
    "report": "STORE -o OUT",
    "stats": "STORE",
    "tail": "--status OUTPUT",
}
#: The same of what an option makes another command.
MORE_TIMED = {"tail --stop": "OUTPUT", "stats --topics": "STORE"}
#: One only takes them; of queues only delayed messages have some.
UNPRINTED = {"export", "dump consumequeue"}
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


def test_every_command_with_times_takes_a_zone() -> None:
    with_zone = {" ".join(path) for path, one in COMMANDS.items() if _option(one, "--tz")}
    assert with_zone == set(TIMED)
    asked = {
        " ".join(path)
        for path, one in COMMANDS.items()
        if any(parameter.metavar == "TIME" for parameter in one.params)
    }
    assert asked <= with_zone


def _option(command: object, name: str) -> bool:
    return any(name in one.opts for one in getattr(command, "params", ()))


@pytest.mark.parametrize("command", sorted({*TIMED, *MORE_TIMED} - UNPRINTED))
def test_what_is_printed_names_its_zone(reput: Command, tmp_path: Path, command: str) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    (store.root / "config").mkdir(exist_ok=True)
    offsets = json.dumps({"offsetTable": {"Orders@readers": {"0": 3}}})
    (store.root / "config" / "consumerOffset.json").write_text(offsets)
    if command == "dump config":
        rocksdbs.settings(store.root, "separate", topics={"Orders": {"perm": 6}})
    if command.startswith("tail"):
        rebuild_locally(open_store(store.root, version="5.3.3"), tmp_path / "output")
    page = tmp_path / "page.html"
    words = (
        {**TIMED, **MORE_TIMED}[command]
        .replace("OUTPUT", f"{tmp_path}/output")
        .replace("STORE", str(store.root))
    )
    conf = [] if command.startswith("dump c") else ["--broker-conf", broker_conf(store)]
    said = reput(*command.split(), *words.replace("OUT", str(page)).split(), *conf, "--tz", "Asia/Shanghai")
    assert said.code in (0, 1, 3), said.stderr
    shown = page.read_text() if page.exists() else said.stdout
    assert _TIME.search(shown)
    assert "+08:00" in shown
    assert "UTC" not in shown


def test_a_zone_with_summer_time_is_called_by_its_name() -> None:
    times.use_zone("Europe/Berlin")
    summer, winter = NOON - 150 * 86_400_000, NOON
    assert times.zone_name() == "Europe/Berlin", "an offset would be wrong for half of the year"
    assert (times.second(summer)[11:13], times.second(winter)[11:13]) == ("14", "13")
    assert times.moment(summer).endswith("+02:00")
    assert times.time_of("--since", "2026-06-24T14:00") == summer
    times.use_zone(None)
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    try:
        assert times.zone_name() == "CET/CEST"
    finally:
        os.environ["TZ"] = "UTC"
        time.tzset()


def test_commands_are_listed_by_what_they_are_for(reput: Command) -> None:
    said = reput("--help").stdout
    places = [said.index(f"\n{group}:\n") for group in ("Look", "Mend", "Follow", "Tables", "Set up")]
    assert places == sorted(places)
    for command in ("", "query", "stats", "rebuild", "dump commitlog"):
        assert "<bool>" not in reput(*command.split(), "--help").stdout


def test_there_are_eighteen_commands() -> None:
    assert len({path[0] for path in COMMANDS}) == 18


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
        ("dump consumequeue STORE --queue orders:99", "Orders:"),
        ("export STORE --topic orders -o OUT", "Orders"),
        ("export STORE --queue Payment:0 -o OUT", "Payments:0"),
        ("stats STORE --topics --topic order", "Orders"),
        ("rebuild STORE --out OUT --dry-run --queue Order:1", "Orders:1"),
    ],
)
def test_the_nearest_name_is_offered(reput: Command, store: GoldenStore, words: str, meant: str) -> None:
    places = {"STORE": str(store.root), "OUT": f"{store.root.parent}/out"}
    asked = reput(*(places.get(word, word) for word in words.split()))
    assert f"did you mean {meant}" in (asked.stdout + asked.stderr).replace("Did", "did")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("stats STORE --since 2100-01-01", "no message from 2100-01-01T00:00:00.000Z on; the log has 2026-"),
        ("stats STORE --until 2001-09-10", "no message before 2001-09-10T00:00:00.000Z; the log has 2026-"),
        ("stats STORE --topic Ordrs --since 2001-09-10", "did you mean Orders?"),
        ("query STORE --topic Orders --key none --since 2100-01-01", "in this time; the log has 2026-"),
        ("dump commitlog STORE --since 2100-01-01", "the log's last message is of 2026-"),
        ("dump commitlog STORE --topic Orders --until 2001-09-10", "the log's first message is of 2026-"),
    ],
)
def test_a_time_without_messages_names_those_of_the_log(
    reput: Command, store: GoldenStore, words: str, said: str
) -> None:
    conf = ["--broker-conf", str(broker_conf(store))]
    given = [str(store.root) if word == "STORE" else word for word in words.split()]
    asked = reput(*given, *conf)
    assert said in asked.stdout + asked.stderr
    if not words.startswith("dump"):
        facts = json.loads(reput(*given, *conf, "--json").stdout)
        assert facts["log_first_store_timestamp"] < facts["log_last_store_timestamp"]


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
