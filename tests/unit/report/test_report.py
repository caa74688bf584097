"""The report: facts of stores, drawings, the page, and where it may be written."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from reput.config.settings import StoreSettings
from reput.diagnosis.check import Diagnosis, check
from reput.diagnosis.verdict import TITLES, Area, Effect, Finding, Remedy, Sort
from reput.errors import OutputError, StoreError
from reput.format.commitlog import Record
from reput.report import numbers
from reput.report.charts import WIDE, log_map, size_histogram, traffic_chart
from reput.report.facts import (
    CORRUPT,
    EXPIRED,
    MISSING,
    UNREAD,
    UNWRITTEN,
    WRITTEN,
    Facts,
    LogFacts,
    Series,
    Sizes,
    Stretch,
    Traffic,
)
from reput.report.gather import GatherOptions, gather
from reput.report.page import check_target, is_report, render
from reput.report.queues import topic_list
from reput.store.places import write_alone
from reput.verify.plan import VerifyOptions
from reput.words import visible
from tests.golden.store import unpack
from tests.rebuilds import broker_conf, golden
from tests.report.made import HOSTILE, MORNING, Elements, hostile_store, many_queues
from tests.stores import LogWriter, tree_of

NOW = 1_800_000_000_000


def _facts(root: Path, **more: object) -> Facts:
    return gather(GatherOptions(root, at=NOW, **more))  # type: ignore[arg-type]


def _log(root: Path, count: int = 12, segment_size: int = 1000) -> LogWriter:
    log = LogWriter(root, segment_size)
    for number in range(count):
        log.append(
            Record(
                topic=b"T",
                body=bytes(100),
                queue_id=0,
                queue_offset=number,
                store_timestamp=MORNING + number * 1000,
            )
        )
    return log


# --- facts ------------------------------------------------------------------------------------------------


def test_a_sound_store_of_a_broker(tmp_path: Path) -> None:
    store = unpack("5.5.0-mixed", tmp_path / "store")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    before = tree_of(store.root)
    facts = _facts(store.root, broker_conf=conf, rocketmq_version="5.5.0")
    assert (facts.verdict.sort, facts.exit_code, facts.findings, facts.next_steps) == (Sort.START, 0, [], [])
    assert facts.log is not None
    assert (facts.log.messages, facts.log.end) == (847, 495028)
    assert sum(one.messages for one in facts.topics) == 847
    assert facts.traffic is not None
    assert sum(sum(one.messages) for one in facts.traffic.series) == 847
    assert facts.sizes is not None
    assert sum(facts.sizes.counts) == 847
    assert facts.queue_totals.queues == 47
    # physicMsgTimestamp of this store is 37:38.186, when the second segment began; a stop doesn't move it.
    reaches = {one.name: one.offset for one in facts.log.reaches}
    assert reaches["queues"] == 495028
    assert 65536 < (reaches["checkpoint: log"] or 0) < (reaches["checkpoint: queues"] or 0) < 495028
    assert [one.kind for one in facts.log.stretches] == [WRITTEN] * 8 + [UNWRITTEN]
    assert any("committed offsets" in note for note in facts.not_seen)
    assert tree_of(store.root) == before
    for language, said in (("en", "start it"), ("zh", "可以启动")):
        shown = Elements(render(facts, language=language))
        assert "".join(shown.texts["title"]).startswith(f"{said}: ")
        assert any(text.startswith(f"{said}: ") for text in shown.texts["span"]), "the headline"
    told = json.loads(json.dumps(facts.to_dict()))
    assert (told["verdict"], told["rocketmq_version"]) == ("start", "5.5.0")


def test_lost_queues_show_beside_the_log(tmp_path: Path) -> None:
    store = unpack("5.3.3-mixed", tmp_path / "store")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    full = _facts(store.root, broker_conf=conf, rocketmq_version="5.3.3")
    plain = [one for one in full.queues if one.files and one.log_messages]
    gone, cut = plain[0], max(plain[1:], key=lambda one: one.max_offset or 0)
    queues = store.root / "consumequeue"
    for path in (queues / gone.topic / str(gone.queue_id)).iterdir():
        path.unlink()
    last = sorted((queues / cut.topic / str(cut.queue_id)).iterdir())[-1]
    size, base = last.stat().st_size, int(last.name)
    units_there = (cut.max_offset or 0) - base // 20
    with last.open("r+b") as file:
        file.seek((units_there - 1) * 20)
        file.write(bytes(20))
    assert last.stat().st_size == size

    facts = _facts(store.root, broker_conf=conf, rocketmq_version="5.3.3")
    missing = {one.queue: one.count for one in facts.findings if one.kind == "missing-unit"}
    assert missing[cut.topic, cut.queue_id] == 1
    assert missing[gone.topic, gone.queue_id] == gone.log_messages
    rows = {(one.topic, one.queue_id): one for one in facts.queues}
    assert rows[cut.topic, cut.queue_id].behind == 1
    assert rows[gone.topic, gone.queue_id].max_offset is None
    assert (facts.verdict.sort, facts.queue_totals.behind) == (Sort.MEND, 1)


def _lose_the_logs_end(root: Path) -> None:
    """The last segment that holds messages, and those behind it, go."""
    (directory,) = {path.parent for path in (*root.glob("commitlog/*"), *root.glob("dledger-*/data/*"))}
    files = sorted(directory.iterdir())
    last = max(path for path in files if any(path.read_bytes()[:100]))
    for path in files:
        if path >= last:
            path.unlink()


@pytest.mark.parametrize("name", ["5.3.3-restart", "4.9.7-crash", "5.5.0-dledger", "5.3.3-batch-queue"])
def test_queues_and_index_past_the_logs_end_are_drawn(tmp_path: Path, name: str) -> None:
    store = unpack(name, tmp_path / "store")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    sound = _facts(store.root, broker_conf=conf, rocketmq_version=store.version)
    assert ", past the log</span>" not in render(sound).decode()
    _lose_the_logs_end(store.root)
    facts = _facts(store.root, broker_conf=conf, rocketmq_version=store.version)
    page = render(facts).decode()
    assert page.count(", past the log</span>") == page.count('class="beyond"') == 2
    assert facts.exit_code


def test_a_diagnosis_that_fails_leaves_the_rest_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    _log(root)

    def fails(*_: object, **_more: object) -> Diagnosis:
        raise StoreError("this queue file can't be read", path=root / "consumequeue/T/0/0")

    monkeypatch.setattr(sys.modules["reput.report.gather"], "check", fails)
    facts = _facts(root)
    (found,) = facts.findings
    assert (found.kind, found.effect, found.outcome) == (
        "not-foretold",
        Effect.UNKNOWN,
        "this queue file can't be read",
    )
    assert (facts.verdict.sort, facts.exit_code) == (Sort.UNKNOWN, 5)
    assert facts.log is not None
    assert facts.log.messages == 12


def test_damage_is_drawn_where_it_is(tmp_path: Path) -> None:
    log = _log(tmp_path, 20)
    hit = log.records[8]
    log.overwrite(hit.physical_offset, b"\xff" * 50)
    facts = _facts(tmp_path, rocketmq_version="5.5.0")
    assert facts.log is not None
    assert facts.log.messages == 19
    corrupt = [one for one in facts.log.stretches if one.kind == CORRUPT]
    assert [(one.start, one.end) for one in corrupt] == [
        (hit.physical_offset, log.records[9].physical_offset)
    ]
    assert facts.verdict.sort is Sort.MEND
    ends = [(one.start, one.end) for one in facts.log.stretches]
    assert ends[0][0] == 0
    assert all(one[1] == other[0] for one, other in itertools.pairwise(ends))
    assert ends[-1][1] == facts.log.allocated


def test_an_expired_head_and_a_lost_segment(tmp_path: Path) -> None:
    log = _log(tmp_path, 40)
    segments = sorted((tmp_path / "commitlog").iterdir())
    segments[0].unlink()
    segments[3].unlink()
    facts = _facts(tmp_path)
    assert facts.log is not None
    kinds = [(one.kind, one.start, one.end) for one in facts.log.stretches]
    assert kinds[0] == (EXPIRED, 0, 1000)
    assert (MISSING, 3000, 4000) in kinds
    assert facts.log.end == log.end
    drawn = log_map(facts.log)
    assert [box.kind for box in drawn.boxes].count(MISSING) == 1
    assert {one.kind for one in facts.findings} >= {"missing-segments"}


def test_a_quick_report_reads_no_messages(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.overwrite(log.records[3].physical_offset, b"\xff" * 50)
    facts = _facts(tmp_path, quick=True)
    assert facts.log is not None
    assert (facts.log.end, facts.log.messages, facts.traffic) == (log.end, None, None)
    assert {one.kind for one in facts.log.stretches} == {UNREAD, UNWRITTEN}
    store = unpack("5.5.0-restart", tmp_path / "whole")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    facts = _facts(store.root, broker_conf=conf, rocketmq_version="5.5.0", quick=True)
    assert facts.findings == []
    assert "Not read: " in facts.verdict.text
    assert b"weren't read" in render(facts).replace(b"&#39;", b"'")


def _without_a_segment(root: Path) -> None:
    sorted((root / "commitlog").iterdir())[1].unlink()


def _without_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def _after_a_crash(root: Path) -> None:
    (root / "abort").touch()
    _without_queues(root)


def _with_a_file_for_the_index(root: Path) -> None:
    shutil.rmtree(root / "index")
    (root / "index").touch()


def _without_a_log(root: Path) -> None:
    (root / "commitlog").rename(root.parent / "elsewhere")


def _with_broken_settings(root: Path) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text("{")


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    "harm",
    [
        _without_a_segment,
        _without_queues,
        _after_a_crash,
        _with_a_file_for_the_index,
        _without_a_log,
        _with_broken_settings,
        _lose_the_logs_end,
    ],
)
def test_the_page_says_what_a_check_says(tmp_path: Path, harm: Callable[[Path], object], quick: bool) -> None:
    store = unpack("5.5.0-restart", tmp_path / "store")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    harm(store.root)
    facts = _facts(store.root, broker_conf=conf, rocketmq_version="5.5.0", quick=quick)
    found = check(VerifyOptions(store.root, None, conf, "5.5.0"), quick=quick)
    told, said = json.loads(json.dumps(facts.to_dict())), json.loads(json.dumps(found.to_dict()))
    for key in ("verdict", "summary", "next_steps", "notes", "quick", "starting", "clean"):
        assert told[key] == said[key]
    assert (facts.findings, facts.exit_code) == (found.findings, found.exit_code)
    assert {*found.not_read} <= {*facts.not_seen}
    page = Elements(render(facts))
    assert {one.kind for one in found.findings} <= {*page.texts.get("code", ())}
    assert found.verdict.text == f"{store.root}: {found.verdict.words}: {found.verdict.said}"


def test_findings_stand_below_what_comes_of_them() -> None:
    one = Finding(
        "bad-magic",
        "/data/store/commitlog/0",
        "a",
        "b",
        area=Area.LOG,
        effect=Effect.GONE,
        remedy=Remedy.NONE,
    )
    facts = many_queues(1, findings=[replace(one, effect=effect) for effect in Effect for _ in range(3)])
    page = Elements(render(facts, rows=2))
    badges = [text for text in page.texts["span"] if text in TITLES.values()]
    assert badges == list(TITLES.values())
    assert page.texts["code"].count("bad-magic") == 2 * len(Effect)


@pytest.mark.parametrize("quick", [False, True])
def test_an_empty_store_has_a_page(tmp_path: Path, quick: bool) -> None:
    (tmp_path / "commitlog").mkdir()
    facts = _facts(tmp_path, quick=quick)
    assert facts.log is None
    assert any("the commit log is empty" in note for note in facts.not_seen)
    page = render(facts)
    assert b"It can&#39;t be read" in page or b"It can't be read" in page


def test_a_log_of_zeros_has_a_page(tmp_path: Path) -> None:
    LogWriter(tmp_path, 1000).preallocate(0)
    facts = _facts(tmp_path)
    assert facts.log is not None
    assert (facts.log.messages, facts.traffic, facts.sizes) == (0, None, None)
    assert b"No message." in render(facts)


def test_a_store_that_no_broker_could_load_has_a_page(tmp_path: Path) -> None:
    _log(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    facts = _facts(tmp_path)
    assert facts.log is not None
    assert facts.log.messages == 12
    assert ("not-a-file", str(tmp_path / "checkpoint")) in [(one.kind, one.path) for one in facts.findings]
    assert facts.verdict.sort is Sort.NO_START
    assert b"not-a-file" in render(facts)


def test_a_queue_file_between_two_units(tmp_path: Path) -> None:
    store = unpack("5.5.0-tiny", tmp_path / "store")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    queue = store.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "0"
    (file,) = queue.iterdir()
    file.rename(queue / "-5")
    facts = _facts(store.root, broker_conf=conf, rocketmq_version="5.5.0")
    (row,) = (one for one in facts.queues if (one.topic, one.queue_id) == ("SCHEDULE_TOPIC_XXXX", 0))
    assert row.problem is not None
    assert row.problem.startswith(f"{queue / '-5'}: expected a name of 20 digits")


def test_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store here"):
        _facts(tmp_path)


# --- numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.50 KiB"),
        (485_596, "474 KiB"),
        (1 << 40, "1 TiB"),
    ],
)
def test_size(value: int, text: str) -> None:
    assert numbers.size(value) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 milliseconds"),
        (80, "80 milliseconds"),
        (1_000, "1 second"),
        (61_000, "1 minute 1 second"),
        (3_600_000, "1 hour"),
        (3_601_000, "1 hour"),
        (93_600_000, "1 day 2 hours"),
    ],
)
def test_span(ms: int, text: str) -> None:
    assert numbers.span(ms) == text


def test_times_that_no_calendar_has_show_as_they_are() -> None:
    assert numbers.moment((1 << 63) - 1) == "9223372036854775807 ms"
    assert numbers.moment(None) == numbers.iso(None) == ""


@pytest.mark.parametrize("most", [1, 3, 7, 10, 99, 1000, 123_456, 10**12])
@pytest.mark.parametrize("binary", [False, True])
def test_ticks_reach_over_the_greatest_value(most: int, binary: bool) -> None:
    ticks = numbers.value_ticks(most, binary=binary)
    assert ticks[0] == 0
    assert ticks[-2] < most <= ticks[-1]
    assert 2 <= len(ticks) <= 6


@pytest.mark.parametrize(
    "span", [5, 900, 60_000, 7_200_000, 90_000_000, 30 * 86_400_000, 16 * 365 * 86_400_000]
)
def test_ticks_of_time_lie_within(span: int) -> None:
    ticks = numbers.time_ticks(MORNING + 123, MORNING + 123 + span)
    assert 1 <= len(ticks) <= 7
    assert all(MORNING + 123 <= ms <= MORNING + 123 + span for ms, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


def test_ticks_are_round_in_the_zone_of_the_page() -> None:
    zone = numbers.Zone(ZoneInfo("Asia/Kolkata"), "Asia/Kolkata")
    with numbers.in_zone(zone):
        ticks = numbers.time_ticks(MORNING, MORNING + 3 * 86_400_000)
        assert {numbers.moment(ms)[11:] for ms, _ in ticks} <= {"00:00:00", "12:00:00"}
        assert numbers.moment(1_795_262_400_000) == "2026-11-21 17:30:00"
        assert numbers.moment_fine(1_795_262_400_007) == "2026-11-21 17:30:00.007"
        assert numbers.iso(1_795_262_400_000) == "2026-11-21T12:00:00.000Z"
    assert numbers.moment(1_795_262_400_000) == "2026-11-21 12:00:00"


def test_a_page_has_the_times_of_one_zone() -> None:
    facts = many_queues(3)
    page = render(facts, zone=numbers.Zone(ZoneInfo("Asia/Tokyo"), "Asia/Tokyo")).decode()
    assert "All times are Asia/Tokyo." in page
    assert " UTC" not in page
    assert "(UTC)" not in page
    assert '"zone":"Asia/Tokyo"' in page
    assert "All times are UTC." in render(facts).decode()


# --- drawings ---------------------------------------------------------------------------------------------


def test_map_is_to_scale_and_damage_is_seen() -> None:
    gib = 1 << 30
    stretches = (
        Stretch(EXPIRED, 0, 100 * gib),
        Stretch(WRITTEN, 100 * gib, 101 * gib),
        Stretch(CORRUPT, 101 * gib, 101 * gib + 91),
        Stretch(WRITTEN, 101 * gib + 91, 102 * gib),
        Stretch(MISSING, 102 * gib, 900 * gib),
        Stretch(WRITTEN, 900 * gib, 901 * gib),
        Stretch(UNWRITTEN, 901 * gib, 902 * gib),
    )
    drawn = log_map(LogFacts(100 * gib, 901 * gib, 902 * gib, gib, (), stretches))
    boxes = {(box.kind, round(box.x)): box for box in drawn.boxes}
    written = [box.width for (kind, _), box in boxes.items() if kind == WRITTEN]
    assert written == pytest.approx([written[0]] * 3, rel=1e-6)
    (corrupt,) = (box for box in drawn.boxes if box.kind == CORRUPT)
    assert corrupt.width == 5
    assert drawn.boxes[-1] is corrupt
    (missing,) = (box for box in drawn.boxes if box.kind == MISSING)
    assert missing.width < written[0]
    assert not drawn.to_scale
    assert max(box.x + box.width for box in drawn.boxes) == pytest.approx(WIDE)


def test_map_of_many_segments_has_few_boxes() -> None:
    stretches = []
    for number in range(20_000):
        stretches += [
            Stretch(WRITTEN, number * 1000, number * 1000 + 900),
            Stretch(CORRUPT, number * 1000 + 900, number * 1000 + 1000),
        ]
    drawn = log_map(LogFacts(0, 20_000_000, 20_000_000, 1000, (), tuple(stretches)))
    assert len(drawn.boxes) < 4000


def test_chart_stacks_to_its_totals() -> None:
    traffic = Traffic(
        MORNING, 60_000, (Series("A", (1, 0, 3), (10, 0, 30)), Series(None, (1, 0, 1), (5, 0, 5))), 0, 4
    )
    chart = traffic_chart(traffic, what="messages")
    assert [layer.name for layer in chart.layers] == ["A", "4 other topics"]
    # 4 messages in the last bucket, of an axis up to 4: up to the top.
    heights = [
        float(number) for number in re.findall(r"v([0-9.]+)", chart.layers[0].path + chart.layers[1].path)
    ]
    assert heights == pytest.approx([50, 150, 50, 50])
    assert len(chart.slices) == 3
    assert "most in one bar: 4 at 2026-11-20 00:02:00" in chart.summary


def test_histogram_marks_lie_in_their_bars() -> None:
    drawn = size_histogram(Sizes((64, 128, 256, 512), (1, 2, 1), 190.0, 192, 300, 511, 64, 511))
    assert [round(at) for at, _, _ in drawn.marks] == [50, 72, 100]
    assert [high for _, high, _, _ in drawn.bars] == [50, 100, 50]


# --- the page ---------------------------------------------------------------------------------------------


def test_hostile_names_stay_texts(tmp_path: Path) -> None:
    facts = _facts(hostile_store(tmp_path / "store"))
    assert {one.topic for one in facts.topics} == set(HOSTILE)
    assert facts.lag
    page = render(facts)
    harmless = render(many_queues(3))
    found, clean = Elements(page), Elements(harmless)
    assert found.tags.count("script") == clean.tags.count("script") == 2
    assert not {"img", "iframe", "object", "embed", "base", "form"} & set(found.tags)
    assert not [name for name in found.attributes if name.startswith("on")]
    assert not [value for value in found.values["href"] if not value.startswith(("#", "data:,"))]
    (embedded,) = re.findall(rb'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert b"<" not in embedded
    assert b">" not in embedded
    topics = {one["topic"] for one in json.loads(embedded)["traffic"]["series"]}
    assert topics - {None} <= set(HOSTILE)
    texts = "".join(found.texts["bdi"])
    assert "<script>window.broken=1</script>" in texts
    assert "{{ 7 * 7 }}" in texts
    assert "\\u202egnirts" in texts
    assert "a\\x00b\\x1b[31mred" in texts
    assert b"\0" not in page
    assert "\u202e".encode() not in page


def test_a_drawing_shows_hostile_names_as_texts() -> None:
    name = "</title></svg><script>x</script>"
    facts = many_queues(
        1,
        traffic=Traffic(MORNING, 1000, (Series(name, (1,), (1,)),)),
        log=LogFacts(0, 10, 10, 10, (), (Stretch(CORRUPT, 0, 10, name),)),
    )
    found = Elements(render(facts))
    assert found.tags.count("script") == 2
    assert any(name in text for text in found.texts["title"])


def test_page_needs_nothing_beside_it() -> None:
    page = render(many_queues(5))
    found = Elements(page)
    assert b"http://" not in page
    assert b"https://" not in page
    assert b"@import" not in page
    assert b"url(" not in page.replace(b"url(#", b"")
    assert found.values["http-equiv"] == ["Content-Security-Policy"]
    assert "src" not in found.attributes
    (policy,) = (value for value in found.values["content"] if value.startswith("default-src"))
    assert "default-src 'none'" in policy


def test_headings_and_tables_say_what_they_are(tmp_path: Path) -> None:
    _log(tmp_path)
    found = Elements(render(_facts(tmp_path)))
    headings = [int(tag[1]) for tag in found.tags if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(other - one <= 1 for one, other in itertools.pairwise(headings))
    assert found.tags.count("table") == found.tags.count("caption") == found.tags.count("thead")
    assert set(found.values["scope"]) == {"col", "row"}
    assert found.tags.count("svg") <= len([text for text in found.texts["title"] if text.strip()])


def test_a_hundred_thousand_queues_stay_one_readable_page() -> None:
    facts = many_queues(100_000)
    page = render(facts)
    assert len(page) < 1_000_000
    text = page.decode()
    assert "100,000 queues of 12,500 topics" in text
    assert "The first 1,000 of 100,000 queues" in text
    assert len(render(facts, rows=10)) < 100_000


def test_commands_in_a_sentence_show_as_commands() -> None:
    step = "See to what `reput check /a/b` found: `<i>` is a topic, ` is none."
    page = render(many_queues(1, next_steps=[step])).decode()
    words = " ".join(f'<span class="whole">{word}</span>' for word in ("reput", "check", "/a/b"))
    assert f"to what <code>{words}</code> found: " in page
    assert '<code><span class="whole">&lt;i&gt;</span></code> is a topic, ` is none.' in page


def test_skew_is_that_of_reput_topics(tmp_path: Path) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    conf = broker_conf(store)
    facts = gather(GatherOptions(store.root, conf, "5.3.3"))
    listed = topic_list(StoreSettings.load(store.root, conf, "5.3.3"))
    skews = {one.name: one.skew for one in listed.topics}
    assert facts.topics
    assert {one.topic: one.skew for one in facts.topics} == {
        one.topic: skews[one.topic] for one in facts.topics
    }
    (most,) = {one.skew for one in facts.topics if one.topic == "Orders"}
    assert most is not None
    assert f">{most:.2f}</td>" in render(facts).decode()


def test_what_is_missing_isnt_counted_as_written(tmp_path: Path) -> None:
    _log(tmp_path, 40)
    sorted((tmp_path / "commitlog").iterdir())[3].unlink()
    facts = _facts(tmp_path)
    assert facts.log is not None
    page = render(facts).decode()
    assert f"{numbers.size(facts.log.end - 1000)} written. Drawn to scale, but for long gaps;" in page


def test_visible() -> None:
    assert visible("plain ~text é 漢字") == "plain ~text é 漢字"
    assert visible("a\tb\nc", keep="\n") == "a\\tb\nc"
    assert visible("a\tb\u2028c\u200bd\udcff") == "a\\tb\\u2028c\\u200bd\\udcff"


# --- where it goes ----------------------------------------------------------------------------------------


def test_a_page_goes_where_it_harms_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    _log(store)
    settings = StoreSettings.load(store, None, None)
    target = tmp_path / "report.html"
    assert check_target(target, settings, force=False) == target
    page = render(many_queues(1))
    write_alone(target, page)
    assert target.read_bytes() == page
    assert is_report(target)
    assert check_target(target, settings, force=False) == target
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "store"]


@pytest.mark.parametrize(
    "place", ["store/report.html", "store/commitlog/x.html", "link/config/x.html", "link"]
)
def test_no_page_in_the_store(tmp_path: Path, place: str) -> None:
    _log(tmp_path / "store")
    (tmp_path / "link").symlink_to(tmp_path / "store")
    with pytest.raises(OutputError, match="isn't written into the store"):
        check_target(tmp_path / place, StoreSettings.load(tmp_path / "store", None, None), force=True)


def test_no_page_in_a_log_that_lies_elsewhere(tmp_path: Path) -> None:
    _log(tmp_path / "store")
    (tmp_path / "disk2").mkdir()
    (tmp_path / "store" / "commitlog").rename(tmp_path / "disk2" / "commitlog")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={tmp_path}/disk2/commitlog\n")
    settings = StoreSettings.load(tmp_path / "store", conf, None)
    with pytest.raises(OutputError, match="isn't written into the store"):
        check_target(tmp_path / "disk2/commitlog/report.html", settings, force=False)


def test_what_is_no_report_stays(tmp_path: Path) -> None:
    _log(tmp_path / "store")
    settings = StoreSettings.load(tmp_path / "store", None, None)
    other = tmp_path / "letter.html"
    other.write_text("<!DOCTYPE html><title>Dear Sir</title>")
    with pytest.raises(OutputError, match="it is no report"):
        check_target(other, settings, force=False)
    assert check_target(other, settings, force=True) == other
    empty = tmp_path / "empty.html"
    empty.touch()
    assert check_target(empty, settings, force=False) == empty
    with pytest.raises(OutputError, match="a report is a file"):
        check_target(tmp_path, settings, force=True)
    with pytest.raises(OutputError, match="the directory isn't there"):
        check_target(tmp_path / "no" / "x.html", settings, force=True)


def test_what_was_there_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    target.write_bytes(b"before")

    def fails(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OutputError, match="can't be written"):
        write_alone(target, b"after")
    assert target.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
