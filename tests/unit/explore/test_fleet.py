"""Several stores side by side without Spark: the fleet that comes with reput, frames, titles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from explore import Workspace, charts, dead_letters, fleet, fleet_charts, replicas
from explore.fleet import Fleet, Member, open_fleet
from explore.replicas import Beside
from explore.workspace import Terminal
from reput import demo
from reput.errors import StoreError
from tests.golden.store import MANIFEST, describe

LAST = pd.Timestamp("2026-11-23T18:36:16.154Z")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def shop(workspace: Workspace) -> Fleet:
    return open_fleet(workspace)


def test_the_fleet_is_what_the_brokers_wrote(tmp_path: Path) -> None:
    stores = demo.unpack_fleet(tmp_path)
    assert tuple(stores) == demo.FLEET_BROKERS
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).unlink()
    assert describe(tmp_path) == manifest["files"]
    assert demo.FLEET.stat().st_size < 200_000


def test_broker_conf_tells_masters_and_slaves(shop: Fleet, tmp_path: Path) -> None:
    master, slave = shop.pair()
    assert (master.name, slave.name) == ("broker-a", "broker-a-slave")
    assert [one.name for one in shop.masters] == ["broker-a", "broker-b"]
    assert [one.name for one in shop] == list(demo.FLEET_BROKERS)
    assert shop["broker-b"].broker == "broker-b"
    assert repr(shop).splitlines()[2].startswith("broker-a-slave: a slave of broker-a, comes with reput")
    alone = Fleet((slave,))
    assert repr(alone).startswith("broker-a-slave: a slave, whose master isn't here")
    with pytest.raises(StoreError, match=r"no master has a slave.*Add the slave's store"):
        alone.pair()
    with pytest.raises(KeyError, match="there are broker-a-slave"):
        alone["broker-c"]
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=x\nbrokerRole=SLAVE\n")
    (named,) = open_fleet(Workspace(tmp_path), [("s", slave.store.root, conf)])
    assert (named.broker, named.number) == ("x", 1), "SLAVE is enough"


def test_stores_of_ones_own(shop: Fleet, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    a, b = shop.masters
    own = open_fleet(workspace, [("one", a.store.root, a.store.broker_conf), ("two", b.store.root, None)])
    assert [(one.name, one.broker) for one in own] == [("one", "broker-a"), ("two", None)]
    assert f"the store in {b.store.root}" in repr(own)
    assert not list(tmp_path.iterdir())
    with pytest.raises(StoreError, match=r"the same name.*found one"):
        open_fleet(workspace, [("one", a.store.root, None), ("one", b.store.root, None)])
    with pytest.raises(StoreError, match=r"there is no store here.*Check the list"):
        open_fleet(workspace, [("one", tmp_path / "gone", None)])
    with pytest.raises(StoreError, match=r"broker\.conf can't be read"):
        open_fleet(workspace, [("one", a.store.root, tmp_path / "gone.conf")])


def test_offsets_of_all_brokers(shop: Fleet) -> None:
    offsets = fleet.offsets(shop)
    table = offsets.pivot_table("messages", "topic", "broker", aggfunc="sum", fill_value=0)
    assert table.loc["Orders"].tolist() == [531, 429, 969]
    assert table.loc["Audit"].tolist() == [66, 48, 0], "a topic that only one broker has"
    assert table.loc["%DLQ%billing"].tolist() == [5, 4, 6]
    assert "SCHEDULE_TOPIC_XXXX" not in table.index
    assert offsets["last_stored"].max() == LAST


def _queues(counts: dict[str, dict[str, list[int]]]) -> pd.DataFrame:
    rows = [
        (broker, topic, at, count, 100 * count)
        for broker, topics in counts.items()
        for topic, of in topics.items()
        for at, count in enumerate(of)
    ]
    frame = pd.DataFrame(rows, columns=["broker", "topic", "queue", "messages", "bytes"])
    frame["times"] = frame["messages"] / frame.groupby("topic")["messages"].transform("mean")
    return frame


def test_skew_between_brokers() -> None:
    queues = _queues({"a": {"Orders": [10, 10], "Audit": [10]}, "b": {"Orders": [10, 30]}})
    shares = fleet.shares(queues)
    assert list(shares["broker"]) == ["b", "a"]
    assert shares["share"].tolist() == pytest.approx([4 / 7, 3 / 7])
    assert shares["share_of_bytes"].sum() == pytest.approx(1)
    by_topic = fleet.shares(queues, ["topic"])
    assert by_topic[["topic", "broker", "share"]].to_numpy().tolist() == [
        ["Audit", "a", 1.0],
        ["Orders", "b", pytest.approx(2 / 3)],
        ["Orders", "a", pytest.approx(1 / 3)],
    ]
    chart = fleet_charts.skew_chart(queues, shares, by_topic)
    assert chart.title == "b holds 57% of all; its queue Orders:1 has 2.0 times its topic's mean"
    assert chart.png().startswith(b"\x89PNG")
    even = _queues({"a": {"Orders": [10]}, "b": {"Orders": [11]}})
    assert fleet_charts.skew_title(even, fleet.shares(even)) == (
        "The brokers hold even shares; no queue has more than 1.0 times its topic's mean"
    )
    alone = even[:1]
    assert fleet_charts.skew_title(alone, fleet.shares(alone)).startswith("a is alone; no queue")
    other = _queues({"a": {"Orders": [0, 40]}, "b": {"Orders": [35, 35]}})
    assert "b holds 64% of all; no queue" in fleet_charts.skew_title(other, fleet.shares(other))
    hot = _queues({"a": {"One": [0, 40]}, "b": {"Two": [35, 35]}})
    assert "; a's queue One:1 has 2.0 times" in fleet_charts.skew_title(hot, fleet.shares(hot))
    assert fleet_charts.skew_title(queues[:0], fleet.shares(queues[:0])) == "No broker has a message"


def test_which_broker_holds_a_group_back(shop: Fleet) -> None:
    lags = fleet.lags(shop, LAST)
    assert set(lags["broker"]) == {"broker-a", "broker-b"}, "a slave's consumers are its master's"
    assert not lags["topic"].str.startswith("%RETRY%").any()
    behind = fleet.behind(lags)
    assert behind[["group", "lag", "broker"]].to_numpy().tolist() == [
        ["warehouse", 401, "broker-b"],
        ["analytics", 302, "broker-b"],
        ["billing", 0, None],
        ["mailer", 0, None],
    ]
    assert behind["there"].tolist() == pytest.approx([389 / 401, 195 / 302, 0, 0])
    assert behind["holds"].tolist()[:2] == pytest.approx([969 / 1500, 969 / 1500])
    chart = fleet_charts.lag_chart(behind, lags)
    assert chart.title == "broker-b holds warehouse back: 97% of its lag of 401 messages lies there"
    assert chart.png().startswith(b"\x89PNG")
    even = fleet.behind(lags[lags["group"] == "analytics"])
    assert fleet_charts.lag_title(even) == (
        "No broker holds a group back; analytics has the most to read, 302 messages"
    )
    alone = fleet.behind(lags[lags["broker"] == "broker-a"])
    assert fleet_charts.lag_title(alone).startswith("No broker holds a group back"), (
        "it has all messages, too"
    )
    assert "has read all there is" in fleet_charts.lag_title(behind[2:])
    assert "committed anything" in fleet_charts.lag_title(fleet.behind(lags[:0]))


def test_one_message_on_both(shop: Fleet) -> None:
    master, slave = shop.pair()
    found = replicas.key_at(master, 251_840)
    assert found == ("Orders", "C00002070F1E18B4AAC20000000006F6")
    table = replicas.one_message((master, slave), *found)
    assert table["same"].all()
    row = table["broker-a-slave"]
    assert (row["physicalOffset"], row["queueOffset"]) == ("251840", "98")
    assert row["bodyCRC"] == row["CRC of its body"] == "6b85c8d9"
    assert row["storeTimestamp"] == "2026-11-23 18:34:25.435"
    missing = replicas.key_at(master, 259_898)
    assert missing is not None
    table = replicas.one_message((master, slave), *missing)
    assert not table["same"].any()
    assert set(table["broker-a-slave"]) == {""}
    assert replicas.key_at(master, None) is replicas.key_at(master, 1) is None


def _beside(**changed: object) -> Beside:
    missing = pd.DataFrame(
        {"topic": ["Orders"], "messages": [3], "bytes": [300], "first_stored": [LAST], "last_stored": [LAST]}
    )
    whole = Beside("m", "s", 0, 1000, 0, 1300, 0, 1000, 10, 0, None, missing, 0, 900, 1000)
    return replace(whole, **changed)  # type: ignore[arg-type] # names and values are the test's


def test_what_is_said_of_two_logs() -> None:
    behind = _beside()
    assert repr(behind) == "10 messages of m and s are the same; s lacks the last 3 messages, 300 bytes"
    chart = fleet_charts.beside_chart(behind)
    assert chart.title == "s lacks the last 3 messages of m; all before is the same"
    assert chart.png().startswith(b"\x89PNG")
    nothing = behind.missing[:0]
    same = _beside(missing=nothing, master_end=1000)
    assert same.text.endswith("are the same; none is missing")
    assert fleet_charts.beside_title(same) == "s has all that m has"
    ahead = _beside(missing=nothing, master_end=1000, slave_end=1200, ahead=2)
    assert ahead.text.endswith("s has 2 messages that m lacks")
    assert fleet_charts.beside_title(ahead) == "s has all that m has, and 2 messages more"
    parted = _beside(parted_at=700, differing=4)
    assert parted.text.startswith("The logs part ways at physical offset 700, 4 messages differ")
    assert fleet_charts.beside_title(parted) == "The logs part ways at 700: 4 messages differ"
    assert fleet_charts.beside_chart(parted).png().startswith(b"\x89PNG")
    apart = _beside(start=1000, slave_start=2000, slave_end=2500)
    assert apart.text == "The logs of m and s have no range in common"


def _letters(shop: Fleet) -> pd.DataFrame:
    """As Spark would give them."""
    rows = [
        {
            "group": "billing",
            "broker": member.name,
            "origin_topic": one.properties["RETRY_TOPIC"],
            "origin_id": one.properties["ORIGIN_MESSAGE_ID"],
            "uniq_key": one.uniq_key,
            "came": pd.Timestamp(one.record.store_timestamp, unit="ms", tz="UTC"),
            "born": pd.Timestamp(one.record.born_timestamp, unit="ms", tz="UTC"),
        }
        for member in shop.masters
        for one in member.store.open().messages(topic="%DLQ%billing")
    ]
    frame = pd.DataFrame(rows)
    return frame.assign(age=frame["came"] - frame["born"])


def test_originals_of_dead_letters(shop: Fleet) -> None:
    assert dead_letters.topics(shop) == ["%DLQ%billing", "%DLQ%mailer"]
    letters = _letters(shop)
    found = dead_letters.originals(shop, letters)
    assert found["origin_broker"].tolist() == letters["broker"].tolist(), "each broker keeps those of its own"
    for row in found.to_dict("records"):
        message = shop[row["origin_broker"]].store.open().query.message_at(int(row["origin_offset"]))
        assert message is not None
        assert (message.topic, message.uniq_key) == ("Payments", row["uniq_key"])
        assert row["origin_queue"] == f"{message.record.queue_id}:{message.record.queue_offset}"
    wrong = letters.assign(uniq_key="another")
    wrong.loc[0, "origin_id"] = None
    wrong.loc[1, "origin_id"] = "no id"
    wrong.loc[2, "origin_topic"] = "Orders"
    lost = dead_letters.originals(shop, wrong)
    assert lost[["origin_broker", "origin_offset", "origin_queue"]].isna().all(axis=None)
    only_b = Fleet((shop["broker-b"],))
    assert dead_letters.originals(only_b, letters)["origin_broker"].notna().sum() == 6


def test_what_is_said_of_dead_letters(shop: Fleet) -> None:
    letters = _letters(shop)
    totals = pd.DataFrame({"group": ["billing"], "origin_topic": ["Payments"], "messages": [11]})
    chart = fleet_charts.dead_chart(totals, letters)
    assert chart.title == "billing gave up 11 messages of Payments, half within 40 s of birth"
    assert chart.png().startswith(b"\x89PNG")
    more = pd.concat([totals, totals.assign(origin_topic="Other"), totals.assign(group="x", messages=1)])
    title = "billing gave up 22 messages, half within 40 s of birth; 23 in all"
    assert fleet_charts.dead_title(more, letters) == title
    none = fleet_charts.dead_chart(totals[:0], letters[:0])
    assert none.title == "No dead-letter topic has a message"
    assert none.png().startswith(b"\x89PNG")


def test_what_a_command_writes_is_in_the_workspace(
    workspace: Workspace, shop: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    store = shop["broker-b"].store
    place = workspace.relative(str(store.root))
    Terminal(workspace)(f"reput export {place} --topic %DLQ%mailer -o dead.jsonl {workspace.options(store)}")
    assert "Saved 5 messages, 2.1 KiB, to dead.jsonl" in capsys.readouterr().out
    assert len((workspace.root / "dead.jsonl").read_text().splitlines()) == 5


def test_text_of_charts_is_readable_on_white_and_on_black() -> None:
    """By the formula of WCAG 2: 4.5 to 1 for text."""
    channels = [int(charts.GREY[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    light = sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    assert 1.05 / (light + 0.05) >= 4.5
    assert (light + 0.05) / 0.05 >= 4.5


def test_a_member_without_broker_conf_is_a_master(shop: Fleet) -> None:
    store = shop["broker-a"].store
    assert not Member("x", store).is_slave
    with pytest.raises(StoreError, match="no master has a slave"):
        Fleet((Member("x", store), Member("y", store, None, 1))).pair()
