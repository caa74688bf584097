"""Delay levels, and corrected files of offsets."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput import demo
from reput.config.kept import parse
from reput.config.settings import StoreSettings
from reput.errors import OutputError, SettingsError, StoreInUseError
from reput.format.names import queue_directory
from reput.lag import EXPIRED, PAST_END, Flag, QueueLag, corrected, delay_lags, lag, write_corrected
from tests.rebuilds import broker_lock

PATH = Path("consumerOffset.json")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> StoreSettings:
    unpacked = demo.unpack(tmp_path_factory.mktemp("demo"))
    return StoreSettings.load(unpacked.root, unpacked.broker_conf, demo.VERSION, dledger=True)


def offsets_of(settings: StoreSettings) -> Path:
    return settings.root / "config" / "delayOffset.json"


def test_levels_of_a_real_store(settings: StoreSettings) -> None:
    """A broker of 5.5.0 wrote them; half an hour had not passed for the last three levels."""
    found = {one.level: one for one in delay_lags(settings)}
    assert {level: one.waiting for level, one in found.items()} == {1: 0, 2: 0, 16: 51, 17: 38, 18: 40}
    assert (found[16].delay_ms, found[16].offset, found[16].max_offset) == (1_800_000, 0, 51)
    assert found[1].due_ms is None
    times = [found[level].due_ms for level in (16, 17, 18)]
    assert times == sorted(times, key=str)
    assert all(one.flag is None for one in found.values())


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ('{"offsetTable":{16:52,1:0}}', {16: PAST_END}),
        ('{"offsetTable":{16:-3}}', {16: EXPIRED}),
        ('{"offsetTable":{}}', {}),
        ("", {}),
    ],
)
def test_what_lies_outside_is_flagged(settings: StoreSettings, text: str, flags: dict[int, str]) -> None:
    path = offsets_of(settings)
    before = path.read_bytes()
    try:
        path.write_text(text)
        found = {one.level: one.flag for one in delay_lags(settings) if one.flag is not None}
        report = lag(settings)
    finally:
        path.write_bytes(before)
    assert found == flags
    assert {one.level: one.flag for one in report.delays if one.flag is not None} == flags
    assert lag(settings, group="billing").delays == ()


@pytest.mark.parametrize(
    "text", ["[]", '{"offsetTable":5}', '{"offsetTable":{"x":1}}', "{", '{"offsetTable":{1:1e99}}']
)
def test_a_broken_file_is_refused_unless_there_is_its_backup(settings: StoreSettings, text: str) -> None:
    path = offsets_of(settings)
    before, backup = path.read_bytes(), path.with_name(path.name + ".bak")
    kept = backup.read_bytes() if backup.exists() else None
    try:
        path.write_text(text)
        backup.unlink(missing_ok=True)
        with pytest.raises(SettingsError, match="delay offsets is broken"):
            delay_lags(settings)
        backup.write_bytes(before)
        assert len(delay_lags(settings)) == 5
    finally:
        path.write_bytes(before)
        backup.unlink(missing_ok=True)
        if kept is not None:
            backup.write_bytes(kept)


def row(group: str, topic: str, queue_id: int, committed: int | None, low: int, high: int) -> QueueLag:
    return QueueLag(group, topic, queue_id, committed, None, low, high, 0, 0, None)


BROKERS = b"""{
\t"dataVersion":{"counter":7},
\t"offsetTable":{
\t\t"Orders@a":{0:5,1:70,10:3
\t\t},
\t\t"Or\\"ders@a@broadcast":{0:5}
\t},
\t"lmqOffsetTable":{"%LMQ%x@%LMQ%x":9},
\t"pullOffsetTable":{"Orders@a":{1:70}}
}"""


def test_only_what_lies_outside_is_changed() -> None:
    rows = [
        row("a", "Orders", 0, 5, 0, 10),
        row("a", "Orders", 1, 70, 0, 33),
        row("a", "Orders", 10, 3, 4, 9),
        row("a@broadcast", 'Or"ders', 0, 5, 6, 7),
        row("%LMQ%x", "%LMQ%x", 0, 9, 0, 1),
        replace(row("a", "Gone", 0, 5, 0, 0), flags=(Flag.NO_QUEUE,)),
        row("a", "Orders", 2, None, 0, 3),
    ]
    assert corrected(BROKERS, rows, PATH) == (
        BROKERS.replace(b"1:70,10:3", b"1:33,10:4")
        .replace(b'@broadcast":{0:5}', b'@broadcast":{0:6}')
        .replace(b'%LMQ%x":9', b'%LMQ%x":1')
    )


def test_what_has_changed_or_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError, match="have changed meanwhile; expected Orders@a, queue 1: 71"):
        corrected(BROKERS, [row("a", "Orders", 1, 71, 0, 33)], PATH)
    with pytest.raises(SettingsError, match="isn't where it should be"):
        corrected(BROKERS, [row("b", "Orders", 1, 71, 0, 33)], PATH)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
    lambda one: "@" not in one
)


@given(
    st.dictionaries(
        st.tuples(names, names), st.dictionaries(st.integers(0, 20), st.integers(0, 99)), max_size=4
    )
)
def test_every_offset_is_found_in_its_place(table: dict[tuple[str, str], dict[int, int]]) -> None:
    offsets = {f"{topic}@{group}": found for (topic, group), found in table.items()}
    text = json.dumps(
        {"groupTopicMap": {}, "offsetTable": offsets, "pullOffsetTable": offsets}, ensure_ascii=False
    )
    rows = [
        row(group, topic, queue_id, offset, offset + 1, 200)
        for (topic, group), found in table.items()
        for queue_id, offset in found.items()
    ]
    changed = parse(corrected(text.encode(), rows, PATH))
    assert isinstance(changed, dict)
    assert changed["offsetTable"] == {
        key: {str(queue_id): offset + 1 for queue_id, offset in found.items()}
        for key, found in offsets.items()
    }
    assert changed["pullOffsetTable"] == json.loads(text)["pullOffsetTable"]


def test_beside_a_broker_no_offsets_are_corrected(settings: StoreSettings, tmp_path: Path) -> None:
    ours = tmp_path / "consumerOffset.json"
    text = (settings.root / "config" / "consumerOffset.json").read_text()
    ours.write_text(text.replace("0:1438", "0:999999"))
    report = lag(settings, offsets=ours, now=0)
    with broker_lock(settings.root), pytest.raises(StoreInUseError):
        write_corrected(report, tmp_path / "corrected.json")
    assert not (tmp_path / "corrected.json").exists()


def test_one_broken_queue_hides_no_other(tmp_path: Path) -> None:
    unpacked = demo.unpack(tmp_path / "demo")
    settings = StoreSettings.load(unpacked.root, unpacked.broker_conf, demo.VERSION)
    sound = lag(settings, now=0)
    queue = queue_directory(settings.root, "Orders", 0)
    os.truncate(min(queue.iterdir()), 5000)
    found = lag(settings, now=0)
    broken = [row for row in found.rows if Flag.UNREADABLE in row.flags]
    assert {(row.topic, row.queue_id) for row in broken} == {("Orders", 0)}
    assert len(found.rows) == len(sound.rows)
    assert [row for row in found.rows if row not in broken] == [
        row for row in sound.rows if (row.topic, row.queue_id) != ("Orders", 0)
    ]
    assert found.exit_code == 1
    assert any("reput check" in step for step in found.next_steps)


def test_the_file_is_new_and_leaves_no_flag(settings: StoreSettings, tmp_path: Path) -> None:
    ours = tmp_path / "consumerOffset.json"
    text = (settings.root / "config" / "consumerOffset.json").read_text()
    ours.write_text(text.replace("0:1438", "0:999999"))
    report = lag(settings, offsets=ours, now=0)
    assert [one.flags for one in report.rows if one.flags] == [(Flag.PAST_END,)]
    done = write_corrected(report, tmp_path / "corrected.json")
    assert (done.moved, done.corrected) == (1, tmp_path / "corrected.json")
    check, copy = done.next_steps
    assert check.startswith(f"`{settings.command('check')}`: ")
    store_s = settings.root / "config" / "consumerOffset.json"
    assert copy == f"With the broker stopped: cp {tmp_path}/corrected.json {store_s}", "not over the copy"
    again = lag(settings, offsets=tmp_path / "corrected.json", now=0)
    assert not any(one.flags for one in again.rows)
    with pytest.raises(OutputError, match="is there already"):
        write_corrected(report, tmp_path / "corrected.json")
    sound = write_corrected(again, tmp_path / "other.json")
    assert (sound.moved, sound.corrected, (tmp_path / "other.json").exists()) == (0, None, False)
