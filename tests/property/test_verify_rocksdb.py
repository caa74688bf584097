"""Damage to a database of queues is found, all of it and nothing else; what a broker may leave is let be."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reput.config.settings import StoreSettings
from reput.errors import StoreError, UnsupportedError
from reput.format import names, rocksdbqueue
from reput.format.rocksdbqueue import CHECKPOINT_KEY, MAX, MIN, OFFSETS, UNITS, Unit
from reput.log.segments import cut
from reput.replay.part_result import pass_over
from reput.replay.runner import InlineRunner
from reput.replay.runs import RunReader, RunWriter
from reput.rocksdb import opened
from reput.verify.plan import Plan, VerifyOptions, prepare, prepare_pair
from reput.verify.report import Report
from reput.verify.run import check, compare_pair
from tests import encoders, rocksdbs
from tests.golden.store import GoldenStore, unpack
from tests.laid_out import Spec, lay_out, odd_specs
from tests.levels import examples
from tests.local import Store as LocalStore
from tests.local import rebuild_locally
from tests.memory import scratch
from tests.stores import tree_of

Families = dict[str, dict[bytes, bytes]]


class Store:
    """A golden store whose database is written anew for each example."""

    def __init__(self, golden: GoldenStore) -> None:
        self.golden = golden
        self.directory = golden.root / names.CONSUME_QUEUE
        self.sound: Families = {name: dict(all_) for name, all_ in golden.dump()[names.CONSUME_QUEUE].items()}
        options = VerifyOptions(
            golden.root,
            broker_conf=golden.write_broker_conf(),
            rocketmq_version=golden.version,
            part_bytes=30_000,
        )
        self.plan = prepare(options)

    def families(self) -> Families:
        return {name: dict(entries) for name, entries in self.sound.items()}

    def verified(self, found: Families, plan: Plan | None = None) -> Report:
        """What is said of the store with this database."""
        with scratch() as place:
            rocksdbs.write(place / "db", found)
            for path in self.directory.iterdir():
                if path.is_file():
                    path.unlink()
            for path in (place / "db").iterdir():
                shutil.copy(path, self.directory / path.name)
        before = tree_of(self.golden.root)
        report = check(plan or self.plan, InlineRunner())
        assert tree_of(self.golden.root) == before
        return report


@pytest.fixture(scope="module", params=["5.3.3-rocksdb-lost-head", "5.5.0-rocksdb-restart"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(unpack(request.param, tmp_path_factory.mktemp("verify") / "store"))


def place(key: bytes) -> tuple[str, int, int]:
    parsed = rocksdbqueue.parse_unit_key(key)
    assert parsed is not None
    return parsed.topic.decode(), parsed.queue_id, parsed.queue_offset


def reported(report: Report) -> dict[tuple[str, int, int], str]:
    found = {}
    for one in report.findings:
        if one.kind.endswith("-unit"):
            assert one.count == one.end - one.first
            for at in range(one.first, one.end):
                assert found.setdefault((str(one.topic), one.queue_id or 0, at), one.kind) == one.kind
    return found


_change = st.tuples(
    st.sampled_from(["drop", "drop", "change", "cut", "add", "end", "first", "foreign", "mark"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 27),
    st.integers(1, 255),
)


@settings(max_examples=examples(20), deadline=None)
@given(changes=st.lists(_change, max_size=6), run=st.integers(1, 40))
def test_damage_is_found(store: Store, changes: list[tuple[str, float, int, int]], run: int) -> None:
    found = store.families()
    units, ends = found[UNITS], found[OFFSETS]
    keys = sorted(units)
    wrong: dict[tuple[str, int, int], str] = {}
    others: set[tuple[str, Any]] = set()
    for how, share, byte, mask in changes:
        at = int(share * len(keys))
        key = keys[at]
        if how == "drop":
            for one in keys[at : at + run]:
                if units.pop(one, None) is not None and one in store.sound[UNITS]:
                    wrong[place(one)] = "missing-unit"
        elif how in ("change", "cut") and key in units:
            value = bytearray(units[key])
            if how == "cut":
                del value[byte:]
            elif byte < len(value):
                value[byte] ^= mask
            units[key] = bytes(value)
            wrong[place(key)] = "wrong-unit"
            if units[key] == store.sound[UNITS][key]:
                del wrong[place(key)]
        elif how == "add":
            topic, queue_id, _ = place(key)
            added = rocksdbqueue.unit_key(topic.encode(), queue_id, 1_000_000 + byte)
            units[added] = encoders.unit_value(store.plan.log.start + byte, 100, 7, 8)
            wrong[place(added)] = "extra-unit"
        elif how in ("end", "first"):
            which = MAX if how == "end" else MIN
            topic, queue_id, _ = place(key)
            of_queue = rocksdbqueue.offset_key(topic.encode(), queue_id, which)
            if which == MIN:
                ends[of_queue] = rocksdbqueue.offset_value(store.plan.end - 1, 500_000)
                others.add(("wrong-min", (topic, queue_id)))
            elif mask % 2:
                ends.pop(of_queue, None)
                others -= {("wrong-max", (topic, queue_id))}
                others.add(("missing-max", (topic, queue_id)))
            else:
                ends[of_queue] = rocksdbqueue.offset_value(store.plan.end - 1, 500_000)
                others -= {("missing-max", (topic, queue_id))}
                others.add(("wrong-max", (topic, queue_id)))
        elif how == "foreign":
            found[UNITS if mask % 2 else OFFSETS][bytes([mask]) * byte + b"x"] = b"v"
            others.add(("foreign-key", None))
        elif how == "mark":
            wanted = {0: 1 << 40, 1: store.plan.log.start}.get(mask % 3)
            others -= {(f"checkpoint-{word}", None) for word in ("ahead", "behind", "missing")}
            if wanted is None:
                ends.pop(CHECKPOINT_KEY, None)
                others.add(("checkpoint-missing", None))
            else:
                ends[CHECKPOINT_KEY] = rocksdbqueue.checkpoint_value(wanted)
                others.add(("checkpoint-ahead" if mask % 3 == 0 else "checkpoint-behind", None))
    report = store.verified(found)
    assert reported(report) == wrong
    assert {
        (one.kind, None if one.topic is None else (one.topic, one.queue_id))
        for one in report.findings
        if not one.kind.endswith("-unit")
    } == others
    assert bool(report.findings) == bool(wrong or others)


def test_what_is_not_flushed_is_no_damage_before_a_start_that_dispatches_it(store: Store) -> None:
    found = store.families()
    units, ends = found[UNITS], found[OFFSETS]
    positions = {key: Unit(*(rocksdbqueue.parse_unit(value) or ())).position for key, value in units.items()}
    flushed = sorted(positions.values())[len(units) * 2 // 3]
    late = {key for key, position in positions.items() if position >= flushed}
    for key in late:
        del units[key]
    ends.clear()
    ends[CHECKPOINT_KEY] = rocksdbqueue.checkpoint_value(flushed)
    last: dict[tuple[bytes, int], tuple[int, int]] = {}
    for key in units:
        topic, queue_id, queue_offset = place(key)
        last[topic.encode(), queue_id] = max(
            last.get((topic.encode(), queue_id), (-1, -1)), (positions[key], queue_offset)
        )
    for queue, end in last.items():
        ends[rocksdbqueue.offset_key(*queue, MAX)] = rocksdbqueue.offset_value(*end)

    crashed = store.verified(found, replace(store.plan, crashed=True))
    assert crashed.findings == []
    assert [(note.kind, note.count) for note in crashed.notes] == [("to-dispatch", len(late))]

    running = store.verified(found, replace(store.plan, running=True))
    assert running.findings == []
    assert f"from {flushed} on" in next(
        note.text for note in running.not_checked if note.kind == "not-flushed"
    )

    stopped = store.verified(found)
    assert set(reported(stopped)) == {place(key) for key in late}
    assert {one.kind for one in stopped.findings} >= {"missing-unit", "checkpoint-behind", "wrong-max"}


def test_a_chosen_queue_alone_is_looked_at(store: Store) -> None:
    found = store.families()
    key = sorted(found[UNITS])[0]
    topic, queue_id, _ = place(key)
    del found[UNITS][key]
    other = next(place(each) for each in sorted(found[UNITS], reverse=True) if place(each)[0] != topic)
    found[UNITS][b"foreign"] = b""
    options = replace(store.plan.options, queues=(f"{topic}:{queue_id}",))
    report = store.verified(found, prepare(options))
    assert set(reported(report)) == {place(key)}
    options = replace(store.plan.options, queues=(other[0],))
    assert store.verified(found, prepare(options)).findings == []


def test_units_of_expired_messages_are_let_be(tmp_path: Path) -> None:
    store = Store(unpack("5.3.3-rocksdb-lost-head", tmp_path / "store"))
    found = store.families()
    first = {}
    for key in sorted(found[UNITS]):
        topic, queue_id, queue_offset = place(key)
        first.setdefault((topic, queue_id), queue_offset)
    queue, offset = next(item for item in first.items() if item[1] > 1)
    key = rocksdbqueue.unit_key(queue[0].encode(), queue[1], offset - 1)
    found[UNITS][key] = encoders.unit_value(store.plan.log.start - 100, 100, 0, 5)
    gone = rocksdbqueue.unit_key(b"Gone", 1, 7)
    found[UNITS][gone] = encoders.unit_value(store.plan.log.start - 300, 100, 0, 5)
    found[OFFSETS][rocksdbqueue.offset_key(b"Gone", 1, MAX)] = rocksdbqueue.offset_value(
        store.plan.log.start - 300, 7
    )
    report = store.verified(found)
    assert report.findings == []
    assert [(note.kind, note.count) for note in report.notes] == [("expired-unit", 2)]


@pytest.mark.parametrize("by", [-1, 1])
def test_a_min_key_needs_the_right_queue_offset_too(store: Store, by: int) -> None:
    found = store.families()
    key, end = next(
        (key, end)
        for key, value in sorted(found[OFFSETS].items())
        if (at := rocksdbqueue.parse_offset_key(key)) is not None
        and at.which == MIN
        and (end := rocksdbqueue.parse_offset(value)) is not None
        and end.position >= store.plan.log.start
    )
    found[OFFSETS][key] = rocksdbqueue.offset_value(end.position, end.queue_offset + by)
    (finding,) = store.verified(found).findings
    assert finding.kind == "wrong-min"
    assert finding.expected.startswith(f"min queueOffset {end.queue_offset} at {end.position}")
    assert finding.found == f"queueOffset {end.queue_offset + by} at {end.position}"


def test_errors_name_the_store(store: Store, tmp_path: Path) -> None:
    store.verified(store.families())
    other = tmp_path / "other"
    shutil.copytree(store.golden.root, other)
    for path in (other / names.CONSUME_QUEUE).glob("*.sst"):
        path.write_bytes(path.read_bytes()[:100])
    damaged = replace(store.plan.options, store=other)
    beside = prepare_pair(replace(store.plan.options, against=other))
    for ask in (
        lambda: check(prepare(damaged), InlineRunner()),
        lambda: compare_pair(beside, InlineRunner()),
    ):
        with pytest.raises(StoreError) as refused:
            ask()
        assert str(refused.value.path).startswith(str(other / names.CONSUME_QUEUE))


def test_without_rocksdict_nothing_is_started(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(UnsupportedError, match=r"pip install '.\[rocksdb\]'"):
        prepare(store.plan.options)


def test_no_database_is_one_finding(store: Store) -> None:
    store.verified(store.families())
    (store.directory / "CURRENT").rename(store.golden.root.parent / "CURRENT")
    report = check(store.plan, InlineRunner())
    (store.golden.root.parent / "CURRENT").rename(store.directory / "CURRENT")
    assert [one.kind for one in report.findings] == ["missing-database"]


def test_two_stores_side_by_side(store: Store, tmp_path: Path) -> None:
    store.verified(store.families())
    other = tmp_path / "other"
    shutil.copytree(store.golden.root, other)

    def compared(found: Families) -> Report:
        shutil.rmtree(other / names.CONSUME_QUEUE)
        rocksdbs.write(other / names.CONSUME_QUEUE, found)
        options = replace(store.plan.options, against=other)
        return compare_pair(prepare_pair(options), InlineRunner())

    found = store.families()
    same = compared(found)
    assert (same.findings, same.units) == ([], len(found[UNITS]))
    keys = sorted(found[UNITS])
    del found[UNITS][keys[3]]
    value = bytearray(found[UNITS][keys[7]])
    value[-1] ^= 1
    found[UNITS][keys[7]] = bytes(value)
    topic, queue_id, _ = place(keys[0])
    added = rocksdbqueue.unit_key(topic.encode(), queue_id, 1 << 40)
    found[UNITS][added] = encoders.unit_value(store.plan.log.start, 100, 1, 2)
    expired = rocksdbqueue.unit_key(topic.encode(), queue_id, 1 << 41)
    found[UNITS][expired] = encoders.unit_value(store.plan.end, 100, 1, 2)
    del found[OFFSETS][rocksdbqueue.offset_key(topic.encode(), queue_id, MAX)]
    report = compared(found)
    assert {(one.kind, one.topic, one.queue_id, one.first) for one in report.findings if one.end} == {
        ("only-in-first", *place(keys[3])),
        ("differs", *place(keys[7])),
        ("only-in-second", topic, queue_id, 1 << 40),
    }
    assert [(one.kind, one.topic, one.queue_id) for one in report.findings if not one.end] == [
        ("only-in-first", topic, queue_id)
    ]


@settings(max_examples=examples(40), deadline=None)
@given(log=st.lists(odd_specs, min_size=1, max_size=14), part_bytes=st.sampled_from([150, 700, 100_000]))
@example(log=[Spec(), Spec(jump=-1), Spec(), Spec(jump=-2), Spec()], part_bytes=700)
def test_odd_queues_that_a_rebuild_wrote_are_sound(log: list[Spec], part_bytes: int) -> None:
    """Holes, repeats, jumps and queues created anew; and of messages with one place any may have it."""
    laid = lay_out(log, segment_size=500)
    with scratch() as home:
        root, conf = home / "store", home / "broker.conf"
        conf.write_text(
            "storeType=defaultRocksDB\nindexRocksDBEnable=true\nmappedFileSizeCommitLog=500\nenableLmq=true\n"
        )
        (root / names.COMMIT_LOG).mkdir(parents=True)
        for base, data in laid.segments:
            (root / names.COMMIT_LOG / names.offset_name(base)).write_bytes(data)
        loaded = StoreSettings.load(root, conf, "5.5.0", rocksdb=True)
        rebuild_locally(LocalStore(root, loaded), home / "out")
        for name in (names.CONSUME_QUEUE, names.ROCKSDB_STORE):
            shutil.copytree(home / "out" / name, root / name)
        options = VerifyOptions(root, broker_conf=conf, rocketmq_version="5.5.0", part_bytes=part_bytes)
        plan = prepare(options)
        report = check(plan, InlineRunner())
        assert [one for one in report.findings if one.area != "log"] == []
        repeated = [note for note in report.notes if note.kind == "repeated-queue-offset"]
        if not repeated:
            return
        with opened(root / names.CONSUME_QUEUE) as database:
            found = {
                family: {
                    key: value
                    for keys, values in database.blocks(family)
                    for key, value in zip(keys, values, strict=True)
                }
                for family in database.families
            }
        earlier = earlier_units(plan, home, found[UNITS])
        found[UNITS].update(earlier)
        shutil.rmtree(root / names.CONSUME_QUEUE)
        rocksdbs.write(root / names.CONSUME_QUEUE, found)
        again = check(plan, InlineRunner())
        assert [one for one in again.findings if one.area == "queue" and one.kind.endswith("-unit")] == []


def earlier_units(plan: Plan, home: Path, units: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Other messages' units for places that have several, of the newest incarnation of each queue."""
    found: dict[bytes, bytes] = {}
    for number, part in enumerate(cut(plan.log, plan.log.start, plan.end, 1 << 30, plan.log.start)):
        runs = RunWriter(home, f"run-{number}", part.base)
        pass_over(plan.target(), part, runs.add, runs.finish)
        for path in runs.paths:
            with RunReader(path) as run:
                queues = run.queues()
                for prefix, first, stop in zip(queues.prefixes, queues.first, queues.stop, strict=True):
                    for row in run.rows(int(first), int(stop)):
                        fields = (int(row[name]) for name in ("position", "size", "tags", "timestamp"))
                        key = prefix + int(row["offset"]).to_bytes(8, "big", signed=True)
                        if row["offset"] == 0:
                            for known in [each for each in found if each.startswith(prefix)]:
                                del found[known]  # it may begin anew there
                        value = encoders.unit_value(*fields)
                        if key in units and units[key] != value:
                            found[key] = value
    return found


@pytest.mark.parametrize("name", ["5.3.3-rocksdb-settings-v1", "5.5.0-rocksdb-settings-v1"])
def test_what_a_whole_broker_wrote_is_sound(name: str, tmp_path: Path) -> None:
    store = Store(unpack(name, tmp_path / "store"))
    assert rocksdbqueue.offset_key(b"SCHEDULE_TOPIC_XXXX", 0, MIN)[:24] in b"".join(store.sound[OFFSETS])
    assert store.verified(store.families()).findings == []
