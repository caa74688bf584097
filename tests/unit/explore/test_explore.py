"""Frames, charts, damage and the writer of explore, as far as they need no Spark."""

from __future__ import annotations

import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.text import Text
from matplotlib.typing import ColorType

from explore import Store, Workspace, charts, incident, lags, latency, offsets_charts, traffic
from explore.charts import Chart
from explore.tail import Phase, Recording, Replay, stages
from explore.workspace import Terminal
from reput.broker.snapshot import take
from reput.config.kept import write_queues
from reput.errors import OutputError, ReputError, SettingsError, StoreError
from reput.format import commitlog, names
from reput.lag import lag
from reput.recovery.plan import plan
from reput.replay.target import is_system
from tests.local import open_store, rebuild_locally
from tests.rebuilds import golden

NOW = pd.Timestamp("2026-11-21T11:06:10.676Z")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def demo(workspace: Workspace) -> Store:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REPUT_STORE", raising=False)
        return workspace.open()


@pytest.fixture
def copied(demo: Store, tmp_path: Path) -> Store:
    return Workspace(tmp_path).copy(demo)


def test_a_workspace_goes_with_its_process() -> None:
    workspace = Workspace()
    assert workspace.root.is_dir()
    assert workspace.relative(f"in {workspace.root}/store or {workspace.root}") == "in store or ."
    root = workspace.root
    with pytest.warns(ResourceWarning):
        del workspace
    assert not root.exists()


def test_the_environment_names_a_store(
    workspace: Workspace, demo: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "comes with reput" in repr(demo)
    monkeypatch.setenv("REPUT_STORE", str(demo.root))
    monkeypatch.setenv("REPUT_BROKER_CONF", str(demo.broker_conf))
    monkeypatch.setenv("REPUT_ROCKETMQ_VERSION", "5.5.0")
    own = workspace.open()
    assert (own.root, own.broker_conf, own.version) == (demo.root, demo.broker_conf, demo.version)
    assert str(demo.root) in repr(own)
    monkeypatch.setenv("REPUT_STORE", str(demo.root / "gone"))
    with pytest.raises(StoreError, match=r"there is no store here.*found nothing.*REPUT_STORE"):
        workspace.open()


def test_copies_are_refused_where_they_would_lead_astray(demo: Store, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "large")
    with pytest.raises(StoreError, match=r"too large to be copied.*up to 1.0 KiB"):
        workspace.copy(demo, most=1024)
    assert not (workspace.root / "store").exists()
    assert demo.broker_conf is not None
    text = demo.broker_conf.read_text()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(demo.root / names.COMMIT_LOG, elsewhere)
    for number, (place, error, words) in enumerate(
        (
            (elsewhere, StoreError, "isn't in the store's directory"),
            (demo.root / names.COMMIT_LOG, SettingsError, "two commit logs could be meant"),
        )
    ):
        conf = tmp_path / f"{number}.conf"
        root = f"storePathRootDir={demo.root}\n" if error is StoreError else ""
        conf.write_text(f"{text}{root}storePathCommitLog={place}\n")
        room = tmp_path / str(number)
        room.mkdir()
        with pytest.raises(error, match=words):
            Workspace(room).copy(Store(demo.root, conf, demo.version, "own"))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30))
def test_gini_is_half_the_mean_difference_by_the_mean(counts: list[int]) -> None:
    values = np.array(counts, float)
    mean = values.mean()
    slow = np.abs(values[:, None] - values).mean() / 2 / mean if mean else 0.0
    assert traffic.gini(counts) == pytest.approx(slow, abs=1e-12)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=20),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
)
def test_quantiles_are_those_of_all_values(pairs: list[tuple[int, int]], wanted: list[float]) -> None:
    values, counts = (np.array(column) for column in zip(*pairs, strict=True))
    every = np.sort(np.repeat(values, counts))
    slow = [next(int(v) for n, v in enumerate(every, 1) if n >= share * len(every)) for share in wanted]
    assert traffic.quantiles(values, counts, wanted) == slow


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=30))
def test_gaps_are_the_same_in_stretches(steps: list[tuple[int, int]]) -> None:
    """Whatever the cuts; a step may begin a new stretch."""
    at = pd.Series(np.cumsum([ms for ms, _ in steps]))
    block = pd.Series(np.cumsum([cut == 0 for _, cut in steps]))

    def counted(ms: pd.Series) -> pd.DataFrame:
        steps = pd.DataFrame({"ms": ms, "first": at}).dropna().astype("int64")
        return steps.groupby("ms", as_index=False).agg(count=("first", "size"), first=("first", "min"))

    whole = traffic.together(counted(at.diff()), pd.DataFrame({"first": at[:1], "last": at[-1:].to_numpy()}))
    ends = at.groupby(block).agg(["first", "last"]).reset_index(drop=True)
    assert traffic.together(counted(at.groupby(block).diff()), ends).equals(whole)
    assert whole["count"].sum() == len(steps) - 1


def _queues(**topics: list[int]) -> pd.DataFrame:
    rows = [(topic, at, count) for topic, counts in topics.items() for at, count in enumerate(counts)]
    frame = pd.DataFrame(rows, columns=["topic", "queue", "messages"])
    return frame.assign(first_stored=NOW - pd.Timedelta(hours=1), last_stored=NOW)


def test_skew(demo: Store) -> None:
    queues = _queues(Orders=[30, 10], Audit=[5], Shipments=[4, 4, 4, 4], SCHEDULE_TOPIC_XXXX=[9, 1])
    skew = traffic.skew(queues)
    assert list(skew["topic"]) == ["Orders", "Shipments"]
    assert list(skew["max_to_mean"]) == [1.5, 1.0]
    assert list(skew["gini"]) == [0.25, 0.0]
    assert offsets_charts.skew_title(skew) == "A queue of Orders holds 1.5 times the mean of its topic's"
    # Orders has eight queues by config/topics.json: six of them got nothing.
    known = traffic.skew(queues, demo)
    assert write_queues(demo.settings().config)["Orders"] == 8
    assert known.loc[0, ["topic", "queues", "empty", "fullest", "max_to_mean"]].tolist() == [
        "Orders",
        8,
        6,
        30,
        6.0,
    ]
    assert offsets_charts.skew_title(skew[1:]).startswith(
        "All topics are spread evenly: no queue is more than 0%"
    )
    assert "nothing to be uneven" in offsets_charts.skew_title(traffic.skew(_queues(Audit=[5])))
    assert (traffic.bucket(queues), traffic.bucket(queues[:0])) == (15, 1)
    assert is_system("rmq_sys_x")
    assert offsets_charts.skew_chart(queues, known).png().startswith(b"\x89PNG")


def test_lag_of_a_store(demo: Store, tmp_path: Path) -> None:
    by_queue = lags.lags(demo)
    groups = lags.by_group(by_queue).set_index("group")
    assert groups["lag"].to_dict() == {
        "analytics": 7783,
        "warehouse": 1300,
        "parcel-service": 95,
        "billing": 0,
    }
    assert groups["share"].round(2).tolist() == [0.6, 0.1, 0.03, 0.0]
    assert groups.loc["analytics", "behind"] == pd.Timedelta("29.717s")
    assert lags.ages_to(by_queue).startswith("up to the log's last message, 2026-")
    report = lag(demo.settings())
    oldest = max(report.age(row.oldest_stored) or 0 for row in report.rows)
    assert by_queue["behind"].max() == pd.Timedelta(oldest, unit="ms"), "as reput lag has it"
    assert groups["behind"].isna().tolist() == [False, False, False, True]
    store = golden("5.3.3-tiny", tmp_path)
    shutil.rmtree(store.root / names.CONFIG, ignore_errors=True)
    none = lags.lags(Store(store.root, None, "5.3.3", "no config"))
    assert none.empty
    assert "No consumer group" in offsets_charts.lag_title(lags.by_group(none))


def test_charts_say_what_they_show() -> None:
    groups = pd.DataFrame(
        {"group": ["a", "b"], "topic": "T", "lag": [30, 10], "share": 0.5, "behind": pd.Timedelta("4h")}
    )
    assert (
        offsets_charts.lag_title(groups) == "a has 30 messages of T still to read, 75% of all that is behind"
    )
    assert "read all there is" in offsets_charts.lag_title(groups.assign(lag=0))
    assert "No consumer group" in offsets_charts.lag_title(groups[:0])
    queues = pd.DataFrame({"group": ["a", "a", "b"], "topic": "T", "lag": [10, 20, 10]})
    for shown in (groups, groups[:0]):
        assert offsets_charts.lag_chart(shown, queues).png()
    gaps = pd.DataFrame({"ms": [0, 1, 2000], "count": [6, 3, 1], "first": NOW})
    assert "90% of messages came within 1 ms" in offsets_charts.gap_title(gaps)
    assert "longest silence 2.0 s" in offsets_charts.gap_title(gaps)
    back = pd.concat([gaps, pd.DataFrame({"ms": [-5], "count": [2], "first": [NOW]})])
    assert "clock went back 2 times" in offsets_charts.gap_title(back)
    assert "no gap" in offsets_charts.gap_title(gaps[:0])
    chart = offsets_charts.gap_chart(gaps)
    assert repr(chart) == f"[chart: {chart.title}]"
    assert chart._repr_png_() == chart.png()


def test_text_stands_out_from_its_background() -> None:
    groups = pd.DataFrame(
        {"group": ["a"], "topic": "T", "lag": [30], "share": 0.5, "behind": pd.Timedelta("4h")}
    )
    queues = pd.DataFrame({"group": ["a"], "topic": "T", "lag": [30]})
    stages = pd.DataFrame({"messages": [9, 8, 5, 9], "keys": [9, 8, 5, 9]}, index=["as", "it", "was", "ok"])
    gaps = pd.DataFrame({"ms": [0, 1, 2000], "count": [6, 3, 1], "first": NOW})
    for chart in (
        offsets_charts.lag_chart(groups, queues),
        offsets_charts.gap_chart(gaps),
        incident.reach_chart(stages),
    ):
        chart.png()
        paper = chart.figure.get_facecolor()
        assert to_rgba(paper)[3] == 1, "else it is that of the page around it"
        texts = [one for one in chart.figure.findobj(Text) if one.get_text().strip()]
        assert len(texts) > 5
        assert {one.get_text(): _contrast(one.get_color(), paper) for one in texts if _pale(one, paper)} == {}


def _pale(text: Text, paper: ColorType) -> bool:
    return _contrast(text.get_color(), paper) < 4.5


def _contrast(one: ColorType, other: ColorType) -> float:
    """Of two colours, as WCAG 2 defines it."""

    def luminance(colour: ColorType) -> float:
        parts = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_names_leave_room() -> None:
    assert charts.short("Orders") == "Orders"
    assert charts.short("x" * 127) == "x" * 31 + "…"


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ReputError, match=r"charts need matplotlib.*pip install '.\[spark,notebook\]'"):
        Chart("a finding")


def test_commands_as_in_a_shell(
    workspace: Workspace, demo: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    reput = Terminal(workspace)
    reput(f"reput check demo/store {workspace.options(demo)}")
    printed = capsys.readouterr()
    line, first, *_, last = printed.out.splitlines()
    assert line == "$ reput check demo/store --broker-conf demo/broker.conf --rocketmq-version 5.5.0"
    assert first == "demo/store: start it: nothing is wrong for RocketMQ 5.5.0"
    assert last == "[exit code 0]"
    assert str(workspace.root) not in printed.out
    assert reput.json("reput check demo/store")["verdict"] == "start"
    assert capsys.readouterr().out.splitlines() == ["$ reput check demo/store --json", "[exit code 0]"]
    reput("reput check gone")
    assert "there is no store" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="there is no store"):
        reput.json("reput check gone")
    with pytest.raises(SettingsError, match="only reput's own commands"):
        reput("rm -rf demo")


def test_only_copies_are_damaged(demo: Store) -> None:
    for do in (incident.tear_index, incident.flip_bytes, lambda store: incident.lose_queues(store, "Orders")):
        with pytest.raises(StoreError, match="isn't a copy"):
            do(demo)


def test_damage_and_what_is_reached(copied: Store) -> None:
    before = incident.as_it_lies(copied)
    whole = before.of(before)
    assert whole.tolist() == [20_315, 75_933]
    with pytest.raises(StoreError, match="no queues of this topic"):
        incident.lose_queues(copied, "Nothing")
    done = [
        incident.lose_queues(copied, "Shipments"),
        incident.tear_index(copied),
        incident.flip_bytes(copied),
    ]
    assert "Shipments is gone, with 8 files" in repr(done[0])
    (lost,) = [one.lost for one in done if one.lost]
    now = incident.as_it_lies(copied).of(before, [lost])
    assert whole["messages"] - now["messages"] == 3_092 + 1
    # Half of its entries are zeros, and chains lead through those to some of the other half.
    assert 8_000 < whole["keys"] - now["keys"] < 16_000
    expected = plan(take(copied.settings()))
    restarted = incident.after_restart(expected, copied).of(before, [lost])
    (cut,) = [loss.count for loss in expected.losses if loss.kind == "log-cut"]
    of_lost_topic = before.units[
        (before.units["topic"] == "Shipments") & (before.units["position"] > lost[0])
    ]
    assert now["messages"] - restarted["messages"] == cut - len(of_lost_topic)
    assert restarted["keys"] < now["keys"]


@given(st.integers(1, 20), st.data())
def test_chains_are_followed_as_one_by_one(slots: int, data: st.DataObject) -> None:
    entries = data.draw(st.integers(1, 40))
    ordinals = st.integers(-1, entries + 2)
    first = np.array(data.draw(st.lists(ordinals, min_size=slots, max_size=slots)), ">i4")
    previous = np.array(data.draw(st.lists(ordinals, min_size=entries, max_size=entries)), ">i4")
    reached: set[int] = set()
    for at in first.tolist():
        while 0 < at < entries and at not in reached:
            reached.add(at)
            at = previous[at]
    assert set(np.flatnonzero(incident.chained(first, previous)).tolist()) == reached


def test_a_replay_is_a_sound_log(demo: Store, tmp_path: Path) -> None:
    recording = Recording.of(demo, 100_000)
    assert repr(recording).startswith(f"{len(recording)} messages of ")
    replay = Replay(Workspace(tmp_path), recording, "5.5.0", segment=30_000)
    replay.run([Phase("first", 0.1, 4_000), Phase("silence", 0.02, 0), Phase("second", 0.1, 8_000)])
    replay.close()
    ticks = replay.ticks
    assert set(ticks["phase"]) == {"first", "second"}
    assert ticks["messages"].sum() > 2 * len(recording), "it goes round"
    assert ticks["end"].iloc[-1] == replay.end
    next_offset: dict[tuple[bytes, int], int] = {}
    found, at, clock = 0, 0, 0
    paths = sorted((replay.store.root / names.COMMIT_LOG).iterdir())
    assert len(paths) > 3
    for path in paths:
        data, at = path.read_bytes(), 0
        assert (int(path.name), len(data)) == (30_000 * paths.index(path), 30_000)
        while at < len(data) and int(path.name) + at < replay.end:
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == commitlog.MAGIC_BLANK:
                assert size == len(data) - at
                break
            record = commitlog.decode(data, at)
            assert record.physical_offset == int(path.name) + at
            assert record.body_crc == commitlog.body_crc(record.body)
            assert record.store_timestamp >= clock
            assert record.queue_offset == next_offset.get((record.topic, record.queue_id), 0)
            next_offset[record.topic, record.queue_id] = record.queue_offset + 1
            clock, found, at = record.store_timestamp, found + 1, at + size
    assert found == ticks["messages"].sum()
    # All of it gets units, as of any log.
    state = rebuild_locally(
        open_store(
            replay.store.root, version="5.5.0", consume_queue_file_size=400_000, message_index_enable=False
        ),
        tmp_path / "out",
    )
    assert (state.messages, state.findings) == (found, [])


def test_what_a_replay_leaves_out(tmp_path: Path) -> None:
    store = golden("5.5.0-lmq", tmp_path)
    kept = Recording.of(Store(store.root, None, "5.5.0", "light queues"))
    assert 0 < len(kept)
    assert b"INNER_MULTI_DISPATCH" not in kept.data.tobytes()
    with pytest.raises(StoreError, match="no message that can be stored again"):
        Recording.of(Store(store.root, None, "5.5.0", "nothing"), most=0)


def test_latency_by_ledger_and_log(copied: Store, tmp_path: Path) -> None:
    local = open_store(
        copied.root, version="5.5.0", consume_queue_file_size=10_000, message_index_enable=False
    )
    rebuild_locally(local, tmp_path / "out", ledger=True)
    (batch,) = latency.batches(tmp_path / "out").itertuples()
    assert (batch.Index, batch.start, batch.end, batch.messages) == (1, 0, 4_850_658, 20_315)
    assert abs((pd.Timestamp.now("UTC") - batch.committed).total_seconds()) < 600
    assert latency.batches(tmp_path / "out", since=1).empty
    stored = latency.stored(tmp_path / "out", copied)
    assert len(stored) == 20_315
    assert pd.to_datetime(stored["stored"].max(), unit="ms", utc=True) == NOW
    found = latency.latencies(latency.batches(tmp_path / "out"), stored)
    last = (batch.committed - NOW).total_seconds() * 1000
    assert (len(found), found["ms"].iloc[-1]) == (20_315, pytest.approx(last))
    by_second = latency.percentiles(found)
    assert (by_second["messages"].sum(), by_second["messages"].max()) == (20_315, 893)
    with pytest.raises(OutputError, match="there is no ledger"):
        latency.batches(copied.root)


def test_latencies_leave_out_what_no_batch_has() -> None:
    committed = NOW + pd.to_timedelta([10, 50], unit="ms")
    batches = pd.DataFrame({"start": [100, 300], "end": [200, 400], "committed": committed}, index=[7, 8])
    ms = int(NOW.timestamp() * 1000)
    stored = pd.DataFrame({"position": [99, 100, 199, 200, 399, 400], "stored": ms})
    found = latency.latencies(batches, stored)
    assert found["batch"].tolist() == [7, 7, 8]
    assert found["ms"].tolist() == [10, 10, 50]


def test_stages_between_two_looks() -> None:
    name = "reput_stage_duration_seconds_sum"
    before = {"reput_batches_total": 10.0, f"{name}.scan": 1.0}
    after = {"reput_batches_total": 14.0, f"{name}.scan": 1.3, f"{name}.journal": 0.1}
    found = stages(before, after)
    assert found["ms"].to_dict() == pytest.approx({"scan": 75.0, "journal": 25.0})
    assert found["share"].sum() == pytest.approx(1)
