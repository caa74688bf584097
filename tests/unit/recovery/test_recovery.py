"""The model of a broker's start, on stores that real brokers wrote and that were damaged afterwards.

What the real stores do with such damages is in tests/compat/test_recovery.py; here stands what reput makes of
it for an operator, and the corners that small stores don't reach.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from reput.broker import snapshot as snapshot_module
from reput.broker import walk
from reput.broker.config_files import config_problems
from reput.broker.predict import Prediction
from reput.broker.record import Kind, judge
from reput.broker.snapshot import Snapshot, take
from reput.config.dialect import DIALECTS, dialect
from reput.config.settings import StoreSettings
from reput.demo import VERSION, DemoStore
from reput.demo import unpack as unpack_demo
from reput.derived import kernels
from reput.derived import plain as queue_module
from reput.derived.files import StoreFile, listed
from reput.derived.index import IndexModel
from reput.derived.plain import QueueModel
from reput.diagnosis.check import Diagnosis, check
from reput.diagnosis.findings import not_derived
from reput.diagnosis.verdict import COUNTS, Effect, Remedy, Sort
from reput.errors import Problem, StartFailsError, StoreError, UnsupportedError
from reput.format import commitlog, names, properties
from reput.format.checkpoint import StoreCheckpoint
from reput.format.consumequeue import PRE_BLANK, UNIT_LENGTH, unit
from reput.format.dtypes import UNIT_DTYPE
from reput.format.indexfile import IndexHeader
from reput.log.walk import Frame, frame
from reput.query import QueryStore
from reput.recovery.losses import index_losses, messages_in
from reput.recovery.plan import Plan, plan
from reput.verify.plan import VerifyOptions
from tests import slow_scan
from tests.compat import damage
from tests.compat.damage import Copy, Damage
from tests.golden.store import GoldenStore, unpack

RESTARTED = ("4.9.7-restart", "5.3.3-restart", "5.5.0-restart")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GoldenStore]:
    root = tmp_path_factory.mktemp("golden")
    return {
        name: unpack(name, root / name) for name in (*RESTARTED, "4.9.7-mixed", "5.3.3-lmq", "5.5.0-crash")
    }


def planned(store: GoldenStore, harm: Damage, tmp_path: Path) -> Plan:
    root = tmp_path / "store"
    shutil.copytree(store.root, root)
    queue_file = int(str(store.config["mappedFileSizeConsumeQueue"]))
    harm(Copy(root, int(str(store.config["mappedFileSizeCommitLog"])), -(-queue_file // 20) * 20))
    conf = tmp_path / "broker.conf"
    store.write_broker_conf(conf)
    text = conf.read_text(encoding="utf-8").replace(str(store.root), str(root))
    conf.write_text(text, encoding="utf-8")
    return plan(take(StoreSettings.load(root, conf, store.version)))


def diagnosed(looked_at: Plan | Snapshot) -> Diagnosis:
    """What a quick check says."""
    snapshot = looked_at.snapshot if isinstance(looked_at, Plan) else looked_at
    settings = snapshot.settings
    return check(VerifyOptions(settings.root, None, settings.broker_conf, settings.basis.given), quick=True)


def kinds(result: Plan) -> set[str]:
    return {loss.kind for loss in (*result.losses, *result.unrepaired)}


# --- What is said of a damaged store ----------------------------------------------------------------------


@pytest.mark.parametrize("name", RESTARTED)
def test_a_sound_store_loses_nothing(name: str, stores: dict[str, GoldenStore], tmp_path: Path) -> None:
    result = planned(stores[name], damage.nothing, tmp_path)
    assert (kinds(result), diagnosed(result).findings) == (set(), [])
    assert result.prediction.units_added == 0
    assert result.facts()["starts"] is True


@pytest.mark.parametrize("name", RESTARTED)
@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (damage.zeroed_units, {"missing-unit"}),
        (damage.topic_gone, {"missing-unit"}),
        (damage.queues_gone, set()),
        (damage.index_gone, {"missing-entry"}),
        (damage.index_torn, {"missing-entry", "index-length"}),
    ],
)
def test_what_a_clean_start_does_not_repair(
    name: str, harm: Damage, expected: set[str], stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    result = planned(stores[name], harm, tmp_path)
    assert kinds(result) == expected
    found = diagnosed(result)
    assert found.verdict.sort is (Sort.MEND if expected else Sort.START)
    assert any("reput mend" in step for step in found.next_steps) is bool(expected)
    if harm is damage.queues_gone:
        (one,) = found.findings
        assert (one.kind, one.effect, one.remedy) == ("no-queues", Effect.HEALS, Remedy.START)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("name", RESTARTED)
def test_a_unit_of_a_message_that_was_cut_off_is_said(
    name: str, crash: bool, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    def harm(copy: Copy) -> None:
        damage.unit_of_a_cut(copy)
        if crash:
            (copy.root / names.ABORT).touch()

    result = planned(stores[name], harm, tmp_path)
    last = Copy(result.snapshot.settings.root, 65536, 1000).records()[-1].offset
    (found,) = [loss for loss in result.unrepaired if loss.kind == "queue-ends-late"]
    assert found.queue is not None
    ((first, units),) = result.prediction.queues[found.queue].units(found.offset * UNIT_LENGTH)
    assert (first, found.end, found.count) == (found.offset, found.offset + 1, 1)
    assert units["position"].tolist() == [last], "the place of another queue's message"
    checked = diagnosed(result)
    assert checked.verdict.sort is Sort.MEND
    assert any("reput mend" in step for step in checked.next_steps)


def test_units_that_settings_do_not_ask_for_are_no_units_of_a_cut(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    store = stores["5.3.3-lmq"]
    config = {name: value for name, value in store.config.items() if name != "enableMultiDispatch"}
    assert config != store.config
    without = replace(store, manifest={**store.manifest, "config": config})
    assert kinds(planned(without, damage.nothing, tmp_path)) == set()


@pytest.mark.parametrize("name", RESTARTED)
def test_a_cut_leaves_queues_index_and_checkpoint_behind(
    name: str, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    result = planned(stores[name], damage.bad_magic, tmp_path)
    expected = {"log-cut", "queue-cut", "index-ahead"}
    if name.startswith("5.5"):
        expected.add("checkpoint-ahead")  # its logicsPhysicalOffset
    assert kinds(result) == expected


@pytest.mark.parametrize("harm", [damage.bad_magic, damage.zeroed_units])
def test_each_step_is_there_once_and_none_saves_what_a_mend_brings_back(
    harm: Damage, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    steps = diagnosed(planned(stores["5.3.3-restart"], harm, tmp_path)).next_steps
    assert len(set(steps)) == len(steps)
    assert not any("reput export" in step for step in steps), "a mend brings all of it back"
    assert any("reput mend" in step for step in steps[:1])


@pytest.mark.parametrize("version", [None, "5.5", "5.5.0"])
def test_commands_name_the_release_that_was_given(
    version: str | None, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    snapshot = planned(stores["5.5.0-restart"], damage.index_gone, tmp_path).snapshot
    settings = StoreSettings.load(snapshot.settings.root, snapshot.settings.broker_conf, version)
    result = diagnosed(take(settings))
    (step,) = result.next_steps
    assert step.startswith("`reput mend ")
    assert (f"--rocketmq-version {version}`" in step) is (version is not None)


@pytest.mark.parametrize("name", RESTARTED)
def test_a_checkpoint_from_the_future_is_told(
    name: str, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    result = planned(stores[name], damage.checkpoint_from_the_future, tmp_path)
    assert kinds(result) == {"checkpoint-ahead"}


def topic_gone_and_killed(copy: Copy) -> None:
    damage.topic_gone(copy)
    (copy.root / names.ABORT).touch()


def test_a_queue_that_is_made_anew_behind_its_first_messages_is_told(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    result = planned(stores["5.5.0-restart"], topic_gone_and_killed, tmp_path)
    late = [loss for loss in result.unrepaired if loss.kind == "queue-begins-late"]
    assert [loss.path.rpartition("/consumequeue/")[2] for loss in late] == [f"Orders/{n}" for n in range(4)]
    for loss in late:
        queue = result.prediction.queues["Orders", int(loss.path[-1])]
        assert (loss.offset, loss.end) == (0, queue.min_offset)


def queues_gone_and_killed(copy: Copy) -> None:
    damage.queues_gone(copy)
    copy.set_checkpoint(StoreCheckpoint())
    (copy.root / names.ABORT).touch()


def test_a_4_9_crash_start_that_makes_queues_anew_forgets_deliver_times(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    result = planned(stores["4.9.7-mixed"], queues_gone_and_killed, tmp_path)
    hashed = [loss for loss in result.unrepaired if loss.kind == "delay-tags-hashed"]
    schedule = commitlog.SCHEDULE_TOPIC.decode()
    queues = sorted(result.prediction.queues.items(), key=lambda one: one[0])
    delayed = [model for (topic, _), model in queues if topic == schedule]
    assert [loss.count for loss in hashed] == [model.max_offset for model in delayed]
    assert hashed


def test_messages_behind_a_bad_magic_are_counted(stores: dict[str, GoldenStore], tmp_path: Path) -> None:
    result = planned(stores["5.5.0-restart"], damage.bad_magic, tmp_path)
    (cut,) = [loss for loss in result.losses if loss.kind == "log-cut"]
    behind = [r for r in Copy(result.snapshot.settings.root, 65536, 1000).records() if r.offset >= cut.offset]
    assert behind == [], "the walk of the test ends at the same place"
    assert cut.offset == result.prediction.log_end
    assert cut.count == 59


def test_later_units_stand_too_low_when_all_queues_are_short_in_5_x(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    result = planned(stores["5.3.3-restart"], damage.all_queues_shorter, tmp_path)
    assert {loss.kind for loss in result.unrepaired} == {"missing-unit"}
    assert any("stand in a wrong place" in loss.text for loss in result.unrepaired)


def test_light_queues_as_their_broker_wrote_them_forbid_no_start(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    result = planned(stores["5.3.3-lmq"], damage.nothing, tmp_path)
    assert {loss.kind for loss in result.unrepaired} == {"misplaced-unit"}
    assert diagnosed(result).verdict.sort is Sort.START


def test_a_crash_drops_the_unfilled_index_file_and_fills_it_again(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    result = planned(stores["5.5.0-crash"], damage.nothing, tmp_path)
    assert len(result.prediction.index_dropped) == 1
    assert diagnosed(result).findings == []
    assert result.prediction.index.added > 0


@pytest.mark.parametrize(
    ("harm", "name", "kind"),
    [
        (damage.stray_in_log, "5.5.0-restart", "stray-file"),
        (damage.short_segment, "5.5.0-restart", "wrong-length"),
        (damage.short_queue_file, "4.9.7-restart", "wrong-length"),
        (damage.directory_in_index, "5.5.0-restart", "index-directory"),
        (damage.stray_directory_in_log, "4.9.7-restart", "stray-directory"),
    ],
)
def test_what_stops_a_broker_is_named(
    harm: Damage, name: str, kind: str, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    result = planned(stores[name], harm, tmp_path)
    assert not result.prediction.starts
    assert [problem.kind for problem in result.prediction.problems] == [kind]
    found = diagnosed(result)
    assert found.verdict.sort is Sort.NO_START
    (stops,) = [one for one in found.findings if one.effect is Effect.BLOCKS]
    assert (stops.kind, stops.remedy) == (kind, Remedy.MEND)


@pytest.mark.parametrize("quick", [True, False])
def test_a_directory_in_a_files_place_is_to_be_mended(
    stores: dict[str, GoldenStore], tmp_path: Path, *, quick: bool
) -> None:
    root = tmp_path / "store"
    shutil.copytree(stores["5.5.0-restart"].root, root)
    queue = next((root / names.CONSUME_QUEUE).glob("*/0/*"))
    next_file = queue.parent / names.offset_name(queue.stat().st_size)
    next_file.mkdir()
    (queue.parent / "old").mkdir()
    found = check(VerifyOptions(root, None, None, "5.5.0"), quick=quick)
    assert found.verdict.sort is Sort.MEND
    assert [(one.kind, one.path) for one in found.left] == [("not-a-file", str(next_file))]


def broken_delay_offsets(copy: Copy) -> None:
    (copy.root / names.CONFIG).mkdir(exist_ok=True)
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (copy.root / names.CONFIG / name).write_text('{"offsetTable":{1:5')


def fastjson_keys(copy: Copy) -> None:
    (copy.root / names.CONFIG).mkdir(exist_ok=True)
    (copy.root / names.CONFIG / "delayOffset.json").write_text('{"offsetTable":{1:5,\n12:0}}')


def batch_topic(copy: Copy) -> None:
    (copy.root / names.CONFIG).mkdir(exist_ok=True)
    (copy.root / names.CONFIG / "topics.json").write_text(
        '{"topicConfigTable":{"Orders":{"attributes":{"queue.type":"BatchCQ"}}}}'
    )


def test_config_files_stop_a_broker(stores: dict[str, GoldenStore], tmp_path: Path) -> None:
    result = planned(stores["5.5.0-restart"], broken_delay_offsets, tmp_path)
    assert [problem.kind for problem in result.prediction.problems] == ["broken-config"]


def test_a_log_without_keys_needs_no_index(odd_stores: dict[str, GoldenStore], tmp_path: Path) -> None:
    result = planned(odd_stores["5.5.0-no-keys"], damage.nothing, tmp_path)
    assert not result.loses
    assert list(not_derived(result.snapshot)) == []
    long_topics, again = odd_stores["5.3.3-long-topics"], tmp_path / "again"
    result = planned(long_topics, lambda copy: shutil.rmtree(copy.root / "index"), again)
    assert "missing-entry" in {loss.kind for loss in (*result.losses, *result.unrepaired)}


@pytest.mark.parametrize(
    ("file", "spare", "kind", "effect"),
    [
        ("topics.json", None, "lost-config", Effect.LOSES),
        ("consumerOffset.json", "", "lost-config", Effect.LOSES),
        ("topics.json", "{}", "broken-config", Effect.HARMLESS),
        ("consumerOrderInfo.json", None, "lost-config", Effect.LOSES),
        ("consumerFilter.json", None, "broken-config", Effect.HARMLESS),
    ],
)
def test_a_start_without_a_config_file_is_no_harmless_one(
    file: str, spare: str | None, kind: str, effect: Effect, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    def torn(copy: Copy) -> None:
        path = copy.root / names.CONFIG / file
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"topicConfigTable":')
        if spare is not None:
            path.with_name(f"{file}.bak").write_text(spare)

    result = planned(stores["5.3.3-restart"], torn, tmp_path)
    found = diagnosed(result)
    (one,) = found.findings
    assert (one.kind, one.effect) == (kind, effect)
    lost = effect is Effect.LOSES
    assert not result.loses, "of log, queues and index"
    assert found.verdict.sort is (Sort.MEND if lost else Sort.START)
    assert found.next_steps == ([one.step] if lost else [])


def test_numbers_as_keys_are_no_damage(stores: dict[str, GoldenStore], tmp_path: Path) -> None:
    assert not planned(stores["5.5.0-restart"], fastjson_keys, tmp_path).loses


@pytest.mark.parametrize("there", [None, ""])
def test_a_broken_backup_of_a_file_that_isnt_there_stops_a_broker(
    there: str | None, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    def torn(copy: Copy) -> None:
        path = copy.root / names.CONFIG / "consumerOffset.json"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        if there is not None:
            path.write_text(there)
        path.with_name(path.name + ".bak").write_text('{"offsetTable":{"T@gr')

    (found,) = planned(stores["5.3.3-restart"], torn, tmp_path).prediction.problems
    assert (found.kind, Path(found.path).name) == ("broken-config", "consumerOffset.json.bak")


@pytest.mark.parametrize(
    ("file", "since"),
    [("consumerFilter.json", "4.1.0"), ("topicQueueMapping.json", "5"), ("consumerOrderInfo.json", "5")],
)
def test_a_broken_file_that_few_brokers_write_stops_those_that_load_it(
    file: str, since: str, tmp_path: Path
) -> None:
    (tmp_path / names.CONFIG).mkdir()
    for name in (file, f"{file}.bak"):
        (tmp_path / names.CONFIG / name).write_text("{broken")
    for version in ("4.0.0", "4.1.0", "4.9.7", "5.0.0", "5.5.0"):
        found = [one.stops for one in config_problems(StoreSettings.load(tmp_path, None, version))]
        assert found == ([True] if version >= since else [])


def torn_timer_files(copy: Copy) -> None:
    (copy.root / "timerlog").mkdir()
    for name in ("timerwheel", f"timerlog/{0:020}"):
        (copy.root / name).write_bytes(bytes(5000))


def test_torn_timer_files_stop_5_x_only(stores: dict[str, GoldenStore], tmp_path: Path) -> None:
    result = planned(stores["5.5.0-restart"], torn_timer_files, tmp_path / "5")
    assert [one.kind for one in result.prediction.problems] == ["wrong-length"] * 2
    root = result.snapshot.settings.root
    (found,) = plan(take(StoreSettings.load(root, None, "5.5.0"))).prediction.problems
    assert found.path == str(root / "timerwheel"), "how long files of the log are isn't known"
    assert not planned(stores["4.9.7-restart"], torn_timer_files, tmp_path / "4").loses


def timed_store(
    tmp_path: Path,
    *,
    due: int = 2000,
    read: int = 2000,
    taken: int | None = 1,
    timers: tuple[str, ...] = (),
    flushed: int = 0,
    more: str = "",
    version: str = "5.3.3",
) -> list[Problem]:
    """What a look at a store with one timed message meets; ``taken`` None for no timercheck."""
    root = tmp_path / "store"
    record = commitlog.Record(
        commitlog.TIMER_TOPIC, b"body", properties.encode({b"TIMER_OUT_MS": b"%d" % due})
    )
    (root / names.COMMIT_LOG).mkdir(parents=True)
    segment = root / names.COMMIT_LOG / names.offset_name(0)
    segment.write_bytes(commitlog.encode(record).ljust(65536, b"\0"))
    (root / names.CONFIG).mkdir()
    if taken is not None:
        checkpoint = struct.pack(">4q", read, flushed, taken, taken).ljust(4096, b"\0")
        (root / names.CONFIG / "timercheck").write_bytes(checkpoint)
    (root / "timerlog").mkdir()
    for name in timers:
        (root / name).touch()
        os.truncate(root / name, 5200 if name.startswith("timerlog/") else 2 * 7 * 86_400 * 32)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"mappedFileSizeCommitLog=65536\nmappedFileSizeTimerLog=5200\n{more}")
    problems = take(StoreSettings.load(root, conf, version)).problems
    return [one for one in problems if one.kind == "missing-config"]


LATE_TIMERS = (f"timerlog/{5200:020}", f"timerlog/{10400:020}")


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({}, "timerlog"),
        ({"timers": ("timerwheel",)}, "timerlog"),
        ({"due": 3000}, "timerlog"),
        ({"timers": LATE_TIMERS, "flushed": 15700}, "timerwheel"),  # a start begins at 10,400
        ({"timers": LATE_TIMERS, "flushed": 15500}, None),
        ({"timers": ("timerwheel", *LATE_TIMERS), "flushed": 15700}, None),
        ({"due": 1000}, None),  # delivered
        ({"taken": 0}, None),  # a start takes it
        ({"taken": None}, None),
        ({"more": "timerWheelEnable=false\n"}, None),
        ({"version": "4.9.7"}, None),
    ],
)
def test_timed_messages_that_a_start_forgets(told: dict[str, Any], name: str | None, tmp_path: Path) -> None:
    found = timed_store(tmp_path, **told)
    assert [Path(one.path).name for one in found] == ([] if name is None else [name])


def test_of_a_large_log_the_worst_is_said_of_timed_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "_MOST_FOR_TIMERS", 0)
    assert timed_store(tmp_path, due=1000)


def second_segment_gone(copy: Copy) -> None:
    sorted((copy.root / names.COMMIT_LOG).iterdir())[1].unlink()


def last_segment_short(copy: Copy) -> None:
    os.truncate(max((copy.root / names.COMMIT_LOG).iterdir()), 1000)


@pytest.mark.parametrize(
    ("harm", "kind", "commands"),
    [
        (second_segment_gone, "missing-segments", ["mend"]),
        (last_segment_short, "wrong-length", ["mend", "export"]),
    ],
)
def test_what_is_named_for_a_segment_that_is_missing_or_short(
    harm: Callable[[Copy], None],
    kind: str,
    commands: list[str],
    stores: dict[str, GoldenStore],
    tmp_path: Path,
) -> None:
    problems = planned(stores["5.3.3-restart"], harm, tmp_path).snapshot.problems
    (step,) = (problem.next_step for problem in problems if problem.kind == kind)
    assert re.findall("`reput ([a-z]+) ", step) == commands
    assert "--from REPLICA" in step


def test_a_start_from_a_backup_of_an_empty_file_is_reported(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    def emptied(copy: Copy) -> None:
        path = copy.root / names.CONFIG / "topics.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
        path.with_name("topics.json.bak").write_text('{"topicConfigTable":{}}')

    checked = diagnosed(planned(stores["5.3.3-restart"], emptied, tmp_path))
    (found,) = checked.findings
    assert (found.kind, found.found, Path(found.path).name) == (
        "broken-config",
        "an empty file",
        "topics.json",
    )
    assert "takes its .bak" in found.outcome
    assert (found.effect, checked.verdict.sort) == (Effect.HARMLESS, Sort.START)


def numbers_in_strings(copy: Copy) -> None:
    (copy.root / "config" / "topics.json").write_text('{"note": "x, 5: y", "topicConfigTable": {}}')


def nested_too_deep(copy: Copy) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (copy.root / "config" / name).write_text("[" * 100_000)


def test_strings_in_a_config_file_are_left_as_they_are(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    assert planned(stores["4.9.7-restart"], numbers_in_strings, tmp_path).prediction.starts


def test_a_config_file_that_is_nested_too_deep_is_broken(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    result = planned(stores["4.9.7-restart"], nested_too_deep, tmp_path)
    assert [problem.kind for problem in result.prediction.problems] == ["broken-config"]


def no_log(copy: Copy) -> None:
    shutil.rmtree(copy.root / "commitlog")


def empty_log(copy: Copy) -> None:
    for path in copy.segments:
        path.unlink()


@pytest.mark.parametrize("harm", [no_log, empty_log])
def test_queues_without_a_log_are_not_sound(
    harm: Damage, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    result = planned(stores["5.5.0-restart"], harm, tmp_path)
    assert "no-log" in kinds(result)
    found = diagnosed(result)
    assert found.verdict.sort is Sort.UNKNOWN
    assert any("Bring the commit log back" in step for step in found.next_steps)


def no_second_segment(copy: Copy) -> None:
    copy.segments[1].unlink()


def test_a_missing_segment_is_not_sound(stores: dict[str, GoldenStore], tmp_path: Path) -> None:
    result = planned(stores["5.5.0-restart"], no_second_segment, tmp_path)
    assert "missing-segments" in kinds(result)
    assert diagnosed(result).verdict.sort is Sort.MEND


def test_any_directory_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(StoreError, match="there is no store here"):
        take(StoreSettings.load(tmp_path, None, "5.5.0"))


def test_a_queue_type_that_changed_stops_5_x_only(stores: dict[str, GoldenStore], tmp_path: Path) -> None:
    result = planned(stores["5.5.0-restart"], batch_topic, tmp_path / "5")
    assert [problem.kind for problem in result.prediction.problems] == ["queue-type"]
    assert not planned(stores["4.9.7-restart"], batch_topic, tmp_path / "4").loses


def test_a_queue_type_without_files_is_a_broken_setting(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    def in_rocksdb(copy: Copy) -> None:
        batch_topic(copy)
        path = copy.root / names.CONFIG / "topics.json"
        path.write_text(path.read_text().replace("BatchCQ", "RocksDBCQ"))

    (found,) = planned(stores["5.5.0-restart"], in_rocksdb, tmp_path / "5").prediction.problems
    assert (found.kind, found.found, found.stops) == ("broken-config", "queue.type=RocksDBCQ", True)
    assert not planned(stores["4.9.7-restart"], in_rocksdb, tmp_path / "4").loses


def test_what_the_model_does_not_know_is_refused(tmp_path: Path) -> None:
    (tmp_path / names.COMMIT_LOG).mkdir()
    conf = tmp_path / "broker.conf"
    conf.write_text("enableAcceleratedRecovery=true\n")
    with pytest.raises(UnsupportedError, match="enableAcceleratedRecovery"):
        plan(take(StoreSettings.load(tmp_path, conf, None)))


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        take(StoreSettings.load(tmp_path / "nowhere", None, None))


# --- Settings and checkpoint that aren't there --------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoStore:
    """A store of a real broker, with what it wrote below config/."""
    return unpack_demo(tmp_path_factory.mktemp("demo"))


def looked_at(
    store: DemoStore, tmp_path: Path, *, without: tuple[str, ...] = (), empty: str = ""
) -> Snapshot:
    """A look at a copy without some files, and with others emptied."""
    root = tmp_path / "store"
    shutil.copytree(store.root, root)
    for name in without:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in root.glob(empty) if empty else ():
        path.write_bytes(b"")
    return take(StoreSettings.load(root, store.broker_conf, VERSION))


@pytest.mark.parametrize(
    ("without", "empty", "found"),
    [
        (["config"], "", {"config": "no such directory"}),
        ([], "config/*", {"config": "empty files alone"}),
        (
            ["config/consumerOffset.json", "config/delayOffset.json"],
            "",
            {"consumerOffset.json": "nothing", "delayOffset.json": "nothing"},
        ),
        ([], "config/subs*", {"subscriptionGroup.json": "an empty file"}),
        (["config", "consumequeue", "index"], "", {"config": "no such directory"}),
        (["config", "checkpoint", "index"], "", {"config": "no such directory"}),
    ],
)
def test_a_broker_whose_settings_are_gone_is_not_to_be_started(
    without: list[str], empty: str, found: dict[str, str], demo: DemoStore, tmp_path: Path
) -> None:
    result = diagnosed(looked_at(demo, tmp_path, without=tuple(without), empty=empty))
    gone = [one for one in result.findings if one.kind == "missing-config"]
    assert {Path(one.path).name: one.found for one in gone} == found
    assert {(one.effect, one.remedy) for one in gone} == {(Effect.LOSES, Remedy.BY_HAND)}
    assert result.verdict.sort is Sort.MEND
    assert not any(line.startswith("config") for line in result.not_read), "it is said once"
    assert {one.step for one in gone} <= {*result.next_steps}


@pytest.mark.parametrize("name", [None, "subscriptionGroup.json", "topics.json", "consumerOffset.json"])
def test_settings_that_no_broker_needs_to_have_written_are_not_missed(
    name: str | None, demo: DemoStore, tmp_path: Path
) -> None:
    root, spare = tmp_path / "broker", {"topics.json": "topics.json.bak"}
    store = DemoStore(shutil.copytree(demo.root, root), demo.broker_conf)
    if name in ("topics.json", "consumerOffset.json"):  # with enableLmq that of a broker is called so
        (root / "config" / name).rename(root / "config" / spare.get(name, "lmqConsumerOffset.json"))
    gone = (f"config/{name}",) if name == "subscriptionGroup.json" else ()
    result = looked_at(store, tmp_path, without=gone)
    found = diagnosed(result)
    assert (found.findings, found.exit_code) == ([], 0)
    assert not any(line.startswith("config") for line in found.not_read)


def test_where_nothing_shows_that_a_broker_had_settings_that_is_no_finding(
    demo: DemoStore, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    only_log = looked_at(demo, tmp_path, without=("config", "consumequeue", "index", "checkpoint", "lock"))
    library = diagnosed(taken(stores["5.5.0-restart"], tmp_path))
    assert [problem.kind for problem in not_derived(only_log)] == ["no-queues", "no-index"]
    assert library.findings == []
    for result in (diagnosed(only_log), library):
        (line,) = [line for line in result.not_read if line.startswith("config")]
        assert line.startswith("config: found no such directory; where a broker has taken messages")


@pytest.mark.parametrize(
    ("name", "without", "found"),
    [
        ("5.3.3-rocksdb-settings-v1", ("topics", "topics.json"), {"topics"}),
        ("5.3.3-rocksdb-settings-v1", ("topics",), set()),  # the file is taken over
        ("5.5.0-rocksdb-settings-v2", ("delayOffset.json",), {"delayOffset.json"}),
        ("5.5.0-rocksdb-settings-v2", ("rdb",), {"rdb"}),  # which takes over no file
        ("5.5.0-rocksdb-settings-v1", None, {"config"}),
    ],
)
def test_settings_in_rocksdb_that_are_gone(
    name: str, without: tuple[str, ...] | None, found: set[str], tmp_path: Path
) -> None:
    store = unpack(name, tmp_path / "golden")
    config = store.root / names.CONFIG
    for path in [config] if without is None else [config / one for one in without]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    result = take(StoreSettings.load(store.root, conf, store.version, rocksdb=True))
    gone = [problem for problem in result.problems if problem.kind == "missing-config"]
    assert {Path(problem.path).name for problem in gone} == found


@pytest.mark.parametrize("crashed", [False, True])
def test_a_checkpoint_that_is_gone_is_said(crashed: bool, demo: DemoStore, tmp_path: Path) -> None:
    root = shutil.copytree(demo.root, tmp_path / "broker")
    if crashed:
        (root / names.ABORT).touch()
    result = looked_at(DemoStore(root, demo.broker_conf), tmp_path, without=("checkpoint",))
    (gone,) = [problem for problem in result.problems if problem.kind == "no-checkpoint"]
    assert ("reads the log from its first segment on" in gone.outcome) == crashed
    assert diagnosed(result).verdict.sort is Sort.START
    begins = plan(result).prediction.began_at
    assert begins is not None
    assert (begins.base == 0) == crashed


# --- What leads past the log's end ------------------------------------------------------------------------


def taken(store: GoldenStore, tmp_path: Path, *harms: Damage) -> Snapshot:
    """A copy of a store, damaged."""
    root = tmp_path / "copy"
    shutil.copytree(store.root, root)
    for harm in harms:
        harm(Copy(root, int(str(store.config["mappedFileSizeCommitLog"])), 0))
    conf = store.write_broker_conf(tmp_path / "copy.conf")
    conf.write_text(conf.read_text().replace(str(store.root), str(root)))
    return take(StoreSettings.load(root, conf, store.version))


def killed(copy: Copy) -> None:
    (copy.root / names.ABORT).touch()


_PAST = {"queue-cut", "past-log-end", "index-ahead", "checkpoint-ahead"}


def past_end(snapshot: Snapshot) -> set[str]:
    """What a quick check says of what leads past the log's end, and counts."""
    return {one.kind for one in diagnosed(snapshot).findings if one.effect in COUNTS} & _PAST


@pytest.fixture(scope="module")
def odd_stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GoldenStore]:
    root = tmp_path_factory.mktemp("odd")
    kinds = (
        "4.9.7-lost-head", "4.9.7-no-index", "4.9.7-queue-ext", "4.9.7-recreated-topic", "5.3.3-batch-queue",
        "5.3.3-crash", "5.3.3-lmq", "5.3.3-long-topics", "5.5.0-no-keys", "5.5.0-property-crc",
    )  # fmt: skip
    stores = {name: unpack(name, root / name) for name in kinds}
    stores["5.3.3-batch-queue"].write_topics_json()
    return stores


@pytest.mark.slow
def test_nothing_leads_past_the_end_of_a_sound_store(
    stores: dict[str, GoldenStore], odd_stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    for store in (*stores.values(), *odd_stores.values()):
        conf = store.write_broker_conf(tmp_path / "broker.conf")
        assert past_end(take(StoreSettings.load(store.root, conf, store.version))) == set()


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        *((name, damage.zeroed_tail) for name in (*RESTARTED, "5.3.3-batch-queue")),
        *((name, damage.torn_in_the_body) for name in (*RESTARTED, "5.3.3-batch-queue")),
        *((name, damage.log_shorter) for name in RESTARTED),
    ],
)
def test_a_log_that_lost_its_end_is_not_sound(
    name: str,
    harm: Damage,
    stores: dict[str, GoldenStore],
    odd_stores: dict[str, GoldenStore],
    tmp_path: Path,
) -> None:
    snapshot = taken({**stores, **odd_stores}[name], tmp_path, harm)
    found = diagnosed(snapshot)
    assert "queue-cut" in past_end(snapshot)
    cut = [one for one in found.findings if one.kind == "queue-cut"]
    assert {(one.effect, one.remedy) for one in cut} == {(Effect.GONE, Remedy.NONE)}
    assert sum(one.messages for one in cut) > 0, "whoever has a copy of the log's end knows how much it has"
    assert any("--from REPLICA" in step for step in found.next_steps)
    killed(Copy(snapshot.settings.root, 65536, 0))
    assert "queue-cut" in past_end(take(snapshot.settings))


def test_without_an_index_the_queues_tell(stores: dict[str, GoldenStore], tmp_path: Path) -> None:
    snapshot = taken(stores["4.9.7-restart"], tmp_path, damage.log_shorter, damage.index_gone)
    assert "queue-cut" in past_end(snapshot)
    assert [one.kind for one in not_derived(snapshot)] == ["no-index"]


def test_damage_before_the_last_message_is_no_lost_end(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    found = diagnosed(taken(stores["5.5.0-restart"], tmp_path, damage.bad_magic))
    assert sum(one.messages for one in found.findings if one.effect is Effect.GONE) == 0


def units_left_by_a_cut(copy: Copy) -> None:
    """What a broker leaves that has cut its queues after a crash, and then was stopped in good order.

    Each release was tried once: its checkpoint has the last message of the log, and the units are there.
    """
    damage.zeroed_tail(copy)
    last, known = copy.records()[-1], copy.checkpoint()
    logics = last.offset if known.logics_physical_offset else 0
    copy.set_checkpoint(replace(known, logics_msg_timestamp=last.timestamp, logics_physical_offset=logics))


@pytest.mark.parametrize("name", RESTARTED)
def test_units_that_a_cut_has_left_are_no_lost_end(
    name: str, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    snapshot = taken(stores[name], tmp_path, units_left_by_a_cut, damage.index_gone)
    assert past_end(snapshot) == set()
    damage.checkpoint_gone(Copy(snapshot.settings.root, 65536, 0))
    assert past_end(take(snapshot.settings)) == {"queue-cut"}


# --- What is read -----------------------------------------------------------------------------------------


def told(found: Plan) -> tuple[object, ...]:
    return found.facts(), found.losses, found.unrepaired, found.deleted


def bad_magic_and_killed(copy: Copy) -> None:
    damage.bad_magic(copy)
    copy.set_checkpoint(StoreCheckpoint())
    (copy.root / names.ABORT).touch()


@pytest.mark.parametrize("name", RESTARTED)
def test_what_is_too_long_is_not_read_and_not_talked_about(
    name: str, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    whole = planned(stores[name], bad_magic_and_killed, tmp_path)
    quick = plan(whole.snapshot, 100_000)
    written = Copy(whole.snapshot.settings.root, 65536, 1000).segments
    assert quick.prediction.unread is not None
    start, end = quick.prediction.unread
    assert (start, quick.prediction.began_at) == (0, whole.prediction.began_at)
    assert whole.prediction.log_end < end <= int(written[-1].name) + 65536
    assert quick.prediction.queues == {}
    # The cut in the last segment is certain; what the queues lack isn't known.
    assert quick.losses == [loss for loss in whole.losses if loss.kind in ("log-cut", "index-dropped")]
    assert quick.loses
    assert told(plan(whole.snapshot, 1 << 30)) == told(whole)


def test_a_dispatch_that_is_too_long_is_not_done(stores: dict[str, GoldenStore], tmp_path: Path) -> None:
    whole = planned(stores["4.9.7-restart"], damage.queues_gone, tmp_path)
    assert (whole.loses, whole.prediction.unread) == (False, None)
    quick = plan(whole.snapshot, 200_000)
    assert quick.prediction.unread == (0, whole.prediction.log_end)
    assert quick.prediction.recovered == whole.prediction.recovered


@pytest.mark.parametrize(
    ("line", "starts"), [("brokerId=1", False), ("brokerId=0", True), ("brokerId=one", True), ("", True)]
)
def test_a_slave_does_not_dispatch_around_what_it_cannot_read(
    line: str, starts: bool, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    """Elsewhere than at its log's end, where every start ends its walk; a number alone makes a slave."""
    at = []

    def unreadable(copy: Copy) -> None:
        damage.queues_gone(copy)
        number = next(one for one in copy.records() if one.offset > 65536 + 1000)
        damage.write(copy.segments[1], number.offset - 65536 + commitlog.MAGIC, bytes(3) + b"\1")
        at.append(number.offset)

    conf = tmp_path / "broker.conf"
    root = planned(stores["4.9.7-mixed"], unreadable, tmp_path).snapshot.settings.root
    conf.write_text(f"{conf.read_text()}{line}\n")
    found = plan(take(StoreSettings.load(root, conf, "4.9.7")))
    assert found.prediction.starts is starts
    if not starts:
        (problem,) = found.prediction.problems
        assert problem.kind == "dispatch-never-ends"
        assert f" {at[0]} " in problem.expected
        assert diagnosed(found).verdict.sort is Sort.NO_START


@pytest.mark.parametrize(("more", "segments"), [(20_000, 7), (3, 8), (-3, 8)])
def test_a_wrong_size_moves_where_the_dispatch_goes_on(
    more: int, segments: int, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    """At the closing record it may be past the segment behind it, of which nothing is dispatched."""

    def wrong_size(copy: Copy) -> None:
        damage.queues_gone(copy)
        record = next(one for one in copy.records() if one.offset > 65536 + 1000)
        damage.write(record.segment, record.position, struct.pack(">i", record.size + more))

    found = planned(stores["4.9.7-mixed"], wrong_size, tmp_path).prediction
    assert found.dispatched is not None
    assert (found.dispatched.segments, found.dispatched.stuck_at) == (segments, None)


@pytest.mark.parametrize("harm", [damage.nothing, bad_magic_and_killed, damage.no_blank])
@pytest.mark.parametrize("name", ["4.9.7-mixed", "5.5.0-crash"])
def test_pieces_scanned_ahead_change_nothing(
    name: str,
    harm: Damage,
    stores: dict[str, GoldenStore],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = planned(stores[name], harm, tmp_path)
    taken = []
    at = walk.Ahead.at
    monkeypatch.setattr(walk.Ahead, "at", lambda *where: taken.append(at(*where)) or taken[-1])
    for size in (1500, 4096, 20_000):
        monkeypatch.setattr(walk, "PIECE", size)
        assert told(plan(alone.snapshot)) == told(alone)
    assert any(piece is not None and piece.found for piece in taken)


# --- The parts of the model -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("00000000000000000020", 20), ("-5", -5), ("+7", 7), ("", None), ("1e3", None), ("9" * 20, None)],
)
def test_names_are_numbers_as_java_reads_them(name: str, value: int | None) -> None:
    assert names.number(name) == value


def test_an_empty_last_file_goes_in_5_1_3(tmp_path: Path) -> None:
    (tmp_path / names.offset_name(0)).write_bytes(bytes(8))
    (tmp_path / names.offset_name(8)).touch()
    new = listed([tmp_path], 8, dialect("5.1.3").recovery, "size", "")
    empty = [(one.kind, one.path, one.stops) for one in new.problems]
    assert (len(new.files), empty) == (1, [("empty-file", str(tmp_path / names.offset_name(8)), False)])
    old = listed([tmp_path], 8, dialect("5.1.2").recovery, "size", "")
    assert [problem.stops for problem in old.problems] == [True]


def queue_of(tmp_path: Path, *units: bytes, file_units: int = 4) -> QueueModel:
    data = b"".join(units)
    size = file_units * UNIT_LENGTH
    files = []
    for base in range(0, max(len(data), 1), size):
        path = tmp_path / names.offset_name(base)
        path.write_bytes(data[base : base + size].ljust(size, b"\0"))
        files.append(StoreFile(str(path), base))
    return QueueModel(files, size)


def put(queue: QueueModel, *messages: tuple[int, int]) -> list[int]:
    """(physical offset, queueOffset) of messages of 100 bytes; the places they get."""
    position, offset = np.array(messages, np.int64).T
    size = np.full(len(position), 100, np.int32)
    return [int(place) for place in queue.put(position, size, offset, np.zeros(len(position), np.int64))]


def test_a_queue_ends_at_its_first_bad_unit(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, *(unit(n * 100, 100, 0) for n in range(6)), bytes(20), unit(700, 100, 0))
    queue.recover()
    assert (queue.max_offset, queue.max_physical) == (6, 600)


def test_units_go_where_a_broker_puts_them(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, *(unit(n * 100, 100, 0) for n in range(3)))
    queue.recover()
    places = put(queue, (200, 2), (300, 3), (400, 9), (500, 10), (600, 2), (700, 0))
    assert places == [-1, 3, 4, 5, -1, 6]
    assert [file.base for file in queue.files] == [0, 80]


def test_a_new_queue_begins_with_blanks(tmp_path: Path) -> None:
    queue = QueueModel((), 80)
    assert put(queue, (1000, 6), (1100, 7), (1200, 8)) == [6, 7, 8]
    assert (queue.min_offset, queue.max_offset) == (6, 9)
    held = b"".join(units.tobytes() for _, units in queue.units())
    assert held[:40] == PRE_BLANK * 2
    assert held[40:60] == unit(1000, 100, 0)


def test_placing_is_the_same_without_numba() -> None:
    rng = np.random.default_rng(7)
    for _ in range(200):
        count = int(rng.integers(1, 12))
        position = np.sort(rng.integers(0, 2000, count)).astype(np.int64)
        offset = rng.integers(0, 9, count).astype(np.int64)
        size = rng.integers(1, 90, count).astype(np.int32)
        state = (
            80,
            bool(rng.integers(2)),
            80,
            int(rng.integers(5)) * 20,
            False,
            int(rng.integers(-1, 900)),
            0,
        )
        fast = kernels.place(position, size, offset, *state)
        slow = kernels.place.py_func(position, size, offset, *state)
        assert fast[0].tolist() == slow[0].tolist()
        assert tuple(fast[1]) == tuple(slow[1])


@pytest.mark.parametrize("head", [204, 5])
def test_the_end_of_a_queue_is_the_same_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: int
) -> None:
    monkeypatch.setattr(queue_module, "HEAD", head * UNIT_LENGTH)
    rng = np.random.default_rng(11)
    for turn in range(40):
        made = [unit(int(o), int(s), 0) for o, s in rng.integers([-2, -1], [500, 40], (30, 2))]
        (tmp_path / str(turn)).mkdir()
        queue = queue_of(tmp_path / str(turn), *made, file_units=30)
        (file,) = queue.files
        for start, before in ((0, None), (1, 250), (3, 0), (30, None)):
            slow = queue._valid_prefix_of_chunks(file, start, 30, before)
            assert queue._valid_prefix(file, start, before) == slow


def test_a_cut_takes_the_first_unit_unchecked(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, *(unit(n * 100, 100, 0) for n in range(4)), bytes(20))
    queue.recover()
    assert queue.max_offset == 4
    queue.truncate(1000)
    assert queue.max_offset == 5, "zeros at the file's start count as a unit"
    queue.truncate(150)
    assert queue.max_offset == 5
    queue.files[-1].patches.append((0, np.frombuffer(unit(400, 100, 0), UNIT_DTYPE)))
    queue.truncate(150)
    assert (queue.max_offset, len(queue.deleted)) == (2, 1)


@pytest.mark.parametrize("searches", [False, True])
def test_the_first_unit_in_the_log(tmp_path: Path, searches: bool) -> None:
    queue = queue_of(tmp_path, *(unit(n * 100, 100, 0) for n in range(6)), file_units=8)
    queue.recover()
    queue.correct_min(250, searches=searches)
    assert queue.min_offset == 3
    queue.correct_min(5000, searches=searches)
    assert queue.min_offset == (6 if searches else 3)


def test_an_index_file_that_is_full_gets_a_successor() -> None:
    index = IndexModel((), 4)
    position = np.array([100, 200, 300], np.int64)
    index.put(position, position * 10, np.array([2, 2, 1], np.int32), 300)
    headers = [file.header for file in index.files]
    assert [header.index_count for header in headers] == [4, 3]
    assert headers[1].begin_physical_offset == 200
    assert (headers[1].end_physical_offset, headers[1].end_timestamp) == (300, 3000)
    assert index.filled == [2000]
    index.put(np.array([250], np.int64), np.array([1], np.int64), np.array([1], np.int32), 250)
    assert index.added == 5, "what lies before the file's end is skipped"


def test_an_index_file_comes_with_the_first_message_even_without_keys() -> None:
    index = IndexModel((), 4)
    nothing = np.empty(0, np.int64)
    index.put(nothing, nothing, np.empty(0, np.int32), 700)
    assert [file.header for file in index.files] == [IndexHeader()]


def record(**fields: object) -> bytes:
    return commitlog.encode(commitlog.Record(topic=b"Orders", body=b"body", **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("release", [row.versions[-1] for row in DIALECTS])
def test_a_record_that_lies_elsewhere_is_a_message(release: str) -> None:
    data = np.frombuffer(record(physical_offset=5_000), np.uint8)
    judged = judge(data, 0, dialect(release), check_crc=True)
    assert (judged.kind, judged.size, judged.physical_offset) == (Kind.MESSAGE, len(data), 5_000)


def test_bad_bytes_are_no_record() -> None:
    good = record()
    rules = dialect(None)
    for data in (good[:-1], good[:3], b"", bytes(100), good[:4] + b"oops" + good[8:]):
        assert judge(np.frombuffer(data, np.uint8), 0, rules, check_crc=True).kind is Kind.BAD
    body = good.index(b"body")
    torn = np.frombuffer(good[:body] + b"BODY" + good[body + 4 :], np.uint8)
    assert judge(torn, 0, rules, check_crc=True).kind is Kind.BAD
    assert judge(torn, 0, rules, check_crc=False).kind is Kind.MESSAGE


def test_a_closing_record_must_fit_from_5_3_2_on() -> None:
    blank = np.frombuffer(commitlog.encode_blank(40)[:20], np.uint8)
    assert judge(blank, 0, dialect("5.3.1"), check_crc=True).kind is Kind.BLANK
    assert judge(blank, 0, dialect("5.3.2"), check_crc=True).kind is Kind.BAD


def test_a_last_file_without_units_stops_5_0_to_5_4(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, *(unit(n * 100, 100, 0) for n in range(4)), bytes(20))
    queue.recover()
    with pytest.raises(StartFailsError, match="empty-queue-file"):
        queue.correct_min(0, searches=True, fails_on_empty=dialect("5.3").recovery.fails_on_empty_queue_file)
    queue.correct_min(0, searches=True, fails_on_empty=dialect("5.5").recovery.fails_on_empty_queue_file)
    assert (queue.min_offset, queue.max_offset) == (0, 4)


@pytest.mark.parametrize("name", ["4.9.7-tiny", "5.3.3-tiny"])
@pytest.mark.parametrize("field", range(commitlog.PHYSICAL_OFFSET + 5, commitlog.PHYSICAL_OFFSET + 8))
@pytest.mark.slow
def test_a_message_that_says_it_is_elsewhere_is_no_crash(name: str, field: int, tmp_path: Path) -> None:
    """A broker takes it; where it says to be there may be no whole record, or no segment."""
    store = unpack(name, tmp_path / "golden")
    path = sorted((store.root / names.COMMIT_LOG).iterdir())[-1]
    data = path.read_bytes()
    starts = [at for at in range(len(data)) if data[at + 4 : at + 8] == commitlog.MAGIC_V1.to_bytes(4, "big")]
    for start in starts:
        for bit in range(8):
            changed = bytearray(data)
            changed[start + field] ^= 1 << bit
            path.write_bytes(changed)
            settings = StoreSettings.load(store.root, store.write_broker_conf(tmp_path / "conf"), name[:5])
            assert plan(take(settings)).facts()


# --- Files in the place of directories --------------------------------------------------------------------


@pytest.mark.parametrize("name", RESTARTED)
@pytest.mark.parametrize(
    "place",
    ["index", "consumequeue", "consumequeue/Orders", "consumequeue/Orders/0", "consumequeue/notes.txt"],
)
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_in_the_place_of_a_directory_is_named(
    name: str, place: str, is_link: bool, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    def replaced(copy: Copy) -> None:
        shutil.rmtree(copy.root / place, ignore_errors=True)
        if is_link:
            (copy.root / place).symlink_to(copy.root / place)
        else:
            (copy.root / place).write_text("hello")

    result = planned(stores[name], replaced, tmp_path)
    path = str(result.snapshot.settings.root / place)
    assert [(one.kind, one.path) for one in result.snapshot.problems] == [("not-a-directory", path)]
    assert result.prediction.starts
    assert ("get no unit" in result.snapshot.problems[0].outcome) is (place == names.INDEX)
    assert ("not-a-directory", path) in [(loss.kind, loss.path) for loss in result.unrepaired]
    assert diagnosed(result).verdict.sort is Sort.MEND


def test_a_file_in_the_place_of_config_is_no_broken_config(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    def replaced(copy: Copy) -> None:
        shutil.rmtree(copy.root / names.CONFIG, ignore_errors=True)
        (copy.root / names.CONFIG).write_text("hello")

    assert planned(stores["5.3.3-restart"], replaced, tmp_path).snapshot.problems == []


@pytest.mark.parametrize(("length", "outcome"), [(3, "fills it up"), (0, "fills it up"), (5000, "its start")])
def test_a_checkpoint_of_another_length_is_named(
    length: int, outcome: str, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    def cut(copy: Copy) -> None:
        path = copy.root / names.CHECKPOINT
        path.write_bytes(path.read_bytes()[:length].ljust(length, b"\0"))

    (found,) = planned(stores["5.3.3-restart"], cut, tmp_path).snapshot.problems
    assert (found.kind, found.found, found.stops) == ("checkpoint-length", f"{length} bytes", False)
    assert outcome in found.outcome


def test_an_index_file_that_vanishes_after_the_look_is_no_trouble(
    stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    snapshot = planned(stores["5.3.3-restart"], damage.index_torn, tmp_path).snapshot
    snapshot.index[-1].path.unlink()
    assert kinds(plan(snapshot)) == {"missing-entry", "index-length"}


# --- What lies behind a cut -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_messages_behind_a_cut_are_counted_as_one_by_one(
    seed: int, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    random, places = Random(seed), []

    def damaged(copy: Copy) -> None:
        records = [record for record in copy.records() if record.segment == copy.segments[-2]]
        places.extend(random.sample(records, 4))
        for record in places:
            damage.write(record.segment, record.position + random.choice([0, 4, 28, 90]), b"oops")

    snapshot = planned(stores["5.3.3-restart"], damaged, tmp_path).snapshot
    segment, size = snapshot.log.files[-2], snapshot.segment_size
    v2 = snapshot.settings.dialect.topic_length_v2
    data = np.frombuffer(segment.path.read_bytes(), np.uint8)
    for start in (0, places[0].position, places[1].position + 1, size - 1):
        for not_before in (0, places[2].timestamp, 1 << 62):
            assert messages_in(snapshot, segment, start, not_before) == _slowly_counted(
                data, segment.base, start, not_before, v2
            )


def _slowly_counted(data: np.ndarray, base: int, start: int, not_before: int, v2: bool) -> tuple[int, int]:
    count, position, end = 0, start, start
    while position < len(data):
        found = slow_scan.find_record(data, base, position, len(data), v2)
        if found < 0:
            break
        record = frame(data.data, base, found, v2)
        assert isinstance(record, Frame)
        if commitlog.decode(data.data, found).store_timestamp < not_before:
            position = found + record.size
            continue
        position = found
        while isinstance(record := frame(data.data, base, position, v2), Frame):
            count, position = count + 1, position + record.size
        end = position
    return count, (
        end if count else len(data.tobytes().rstrip(b"\0")) if data[start:].any() else start
    ) - start


# --- consumequeue_ext -------------------------------------------------------------------------------------


def ext_gone(copy: Copy) -> None:
    shutil.rmtree(copy.root / names.CONSUME_QUEUE_EXT)


def last_ext_record_gone(copy: Copy) -> None:
    path = sorted((copy.root / names.CONSUME_QUEUE_EXT / "Orders" / "0").iterdir())[-1]
    damage.write(path, 0, bytes(path.stat().st_size))


@pytest.mark.parametrize("name", ["4.9.7-queue-ext", "5.3.3-queue-ext", "5.5.0-queue-ext"])
def test_records_of_consumequeue_ext_that_are_gone_are_told(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "golden")
    sound = planned(store, damage.nothing, tmp_path / "sound")
    assert not sound.loses
    for harm in (ext_gone, last_ext_record_gone):
        result = planned(store, harm, tmp_path / harm.__name__)
        assert kinds(result) == {"queue-ext-missing"}
    (one,) = result.unrepaired
    assert (one.end, one.path[-8:]) == (result.prediction.queues["Orders", 0].max_offset, "Orders/0")


def test_a_queue_that_fails_is_passed_over_where_they_recover_at_once(tmp_path: Path) -> None:
    """What a start makes of it then isn't known; that of sound queues is as always."""

    def bad_size(copy: Copy) -> None:
        path = sorted((copy.root / names.CONSUME_QUEUE_EXT / "Orders" / "0").iterdir())[-1]
        damage.write(path, 0, b"\x7f\xff")

    store = unpack("5.5.0-queue-ext", tmp_path / "golden")
    assert not planned(store, bad_size, tmp_path / "in turn").prediction.starts
    store.manifest["config"]["recoverConcurrently"] = True
    assert not planned(store, damage.nothing, tmp_path / "sound").loses
    with pytest.raises(UnsupportedError, match="with recoverConcurrently"):
        planned(store, bad_size, tmp_path / "at once")


# --- Batch queues -----------------------------------------------------------------------------------------


def batch_queue_gone(copy: Copy) -> None:
    shutil.rmtree(copy.root / names.BATCH_CONSUME_QUEUE / "Batches" / "0")


@pytest.mark.parametrize("name", ["5.3.3-batch-queue", "5.5.0-batch-queue"])
def test_messages_that_a_batch_queue_lacks_are_told(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "golden")
    store.write_topics_json()
    sound = planned(store, damage.nothing, tmp_path / "sound")
    assert not sound.loses
    result = planned(store, batch_queue_gone, tmp_path / "damaged")
    assert kinds(result) == {"missing-unit"}
    (one,) = result.unrepaired
    whole = sound.prediction.batch_queues["Batches", 0]
    last = whole.files[-1].counting[-1]  # the walk meets no other of this queue
    assert (one.offset, one.end, one.count) == (last["base_offset"], whole.max_offset, 1)


def test_numbers_of_batches_are_read_as_by_the_slow_parser() -> None:
    pieces = [
        b"INNER_NUM\x013",
        b"INNER_BASE\x01+41",
        b"INNER_NUM\x01-2",
        b"INNER_BASE\x010",
        b"INNER_NUM\x01",
    ]
    pieces += [b"INNER_BASE1\x017", b"TAGS\x01INNER_NUM\x019", b"\x01", b"x"]
    chosen = [some for count in range(4) for some in permutations(pieces, count)]
    hosts = ("127.0.0.1", 0), ("::1", 0)
    expected, log, positions = [], b"", []
    for n, some in enumerate(chosen):
        text = b"\x02".join(some) + b"\x02" * (n % 2)
        positions.append(len(log))
        record = commitlog.Record(b"t" * (n % 100 + 1), b"body" * (n % 3), text, queue_offset=n)
        record.version = 2 if n % 7 == 0 else 1
        record.born_host, record.store_host = hosts[n % 2], hosts[n // 2 % 2]
        record.store_timestamp = n + 5
        log += commitlog.encode(record)
        values = properties.parse(text)
        first, count = n, 1
        if properties.INNER_NUM in values and properties.INNER_BASE in values:
            first, count = int(values[properties.INNER_BASE]), int(values[properties.INNER_NUM])
        expected.append((first, count, n + 5))
    found = kernels.inner(np.frombuffer(log + bytes(200), np.uint8), np.array(positions))
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


# --- Files that aren't the broker's -----------------------------------------------------------------------


@pytest.mark.parametrize("directory", [names.COMMIT_LOG, names.CONSUME_QUEUE])
@pytest.mark.parametrize("name", ["-5", "-00000000000000000005", "5", "+7", str(2**63 - 1)])
def test_a_file_that_begins_nowhere_is_a_stray_one(
    name: str, directory: str, stores: dict[str, GoldenStore], tmp_path: Path
) -> None:
    """A broker takes the number for a place; no file of its own begins there."""
    source = stores["5.3.3-restart"]
    root = tmp_path / "store"
    shutil.copytree(source.root, root)
    conf = source.write_broker_conf(tmp_path / "broker.conf")
    conf.write_text(conf.read_text(encoding="utf-8").replace(str(source.root), str(root)), encoding="utf-8")
    place = root / directory
    if directory == names.CONSUME_QUEUE:
        place = next(queue for topic in sorted(place.iterdir()) for queue in sorted(topic.iterdir()))
    shutil.copy(max(place.iterdir()), place / name)
    settings = StoreSettings.load(root, conf, source.version)
    snapshot = take(settings)
    (problem,) = (one for one in snapshot.problems if one.path == str(place / name))
    assert (problem.kind, problem.found, problem.stops) == ("stray-file", name, False)
    with pytest.raises(UnsupportedError, match="Move it elsewhere"):
        plan(snapshot)
    store = QueryStore(settings)
    view = store.queue("Orders", 0)
    assert [file.path for file in view.files if file.path is not None and file.path.name == name] == []


def test_minus_zero_is_no_queue() -> None:
    assert all(map(names.is_queue_id, ("0", "-1", "7", str(-(2**31)))))
    assert not any(map(names.is_queue_id, ("-0", "00", "+1", "\u0663", str(2**31), "notes", "")))


def test_keys_of_expired_messages_are_no_loss() -> None:
    path = Path("index/20261128233616384")
    header = SimpleNamespace(begin_physical_offset=0, end_physical_offset=500)
    snapshot = SimpleNamespace(index=[SimpleNamespace(path=path, header=header)])
    found = SimpleNamespace(snapshot=snapshot, index_dropped=[path], began_at=SimpleNamespace(base=100))
    found.log_start, found.log_end = 100, 600
    assert list(index_losses(cast(Prediction, found))) == []
    found.log_start = 50
    assert [(one.offset, one.end) for one in index_losses(cast(Prediction, found))] == [(50, 100)]
