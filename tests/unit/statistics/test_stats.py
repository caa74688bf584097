"""What a log holds, counted: against a slow, obvious twin on golden stores, and where it could go wrong."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reput.cli import app as cli
from reput.config.settings import StoreSettings
from reput.format import commitlog, javastring, properties
from reput.statistics import BINS, MOST_GAPS, By, Group, Span, Statistics, bin_of, bin_range, count
from tests import pages
from tests.golden.store import GoldenStore
from tests.local import write_store
from tests.rebuilds import broker_conf, golden

STORES = ["4.9.7-mixed", "5.3.3-lost-head", "5.5.0-restart", "5.5.0-long-topics", "5.5.0-odd-properties"]
DELAYS = {b"DELAY", b"TIMER_DELAY_SEC", b"TIMER_DELIVER_MS", b"TIMER_DELAY_MS"}


@dataclass(frozen=True)
class Slow:
    """A message as the twin sees it."""

    offset: int
    size: int
    record: commitlog.Record
    given: dict[bytes, bytes]

    def key(self, by: By) -> object:
        topic, tag = javastring.decode(self.record.topic), self.given.get(b"TAGS")
        return {
            By.TOPIC: topic,
            By.QUEUE: (topic, self.record.queue_id),
            By.TAG: (topic, None if tag is None else javastring.decode(tag)),
            By.HOUR: self.record.store_timestamp // 3_600_000 * 3_600_000,
            By.HOST: str(ip_address(self.record.born_host[0])),
        }[by]


def slow_messages(root: Path) -> Iterator[Slow]:
    """Every record of an undamaged log, one after the other."""
    for path in sorted((root / "commitlog").iterdir()):
        data, base, at = path.read_bytes(), int(path.name), 0
        while at + 8 <= len(data):
            size, magic = (
                int.from_bytes(data[at : at + 4], "big"),
                int.from_bytes(data[at + 4 : at + 8], "big"),
            )
            if magic not in (commitlog.MAGIC_V1, commitlog.MAGIC_V2):
                break
            record = commitlog.decode(memoryview(data), at)
            yield Slow(base + at, size, record, properties.parse(record.properties))
            at += size


def slow_group(messages: list[Slow]) -> dict[str, object]:
    sizes = sorted(one.size for one in messages)
    times = [one.record.store_timestamp for one in messages]
    return {
        "messages": len(messages),
        "bytes": sum(sizes),
        "least": sizes[0],
        "most": sizes[-1],
        "first_time": min(times),
        "last_time": max(times),
        "keys": sum(b"KEYS" in one.given for one in messages),
        "tags": sum(b"TAGS" in one.given for one in messages),
        "transactions": sum(one.record.sys_flag & 0xC != 0 for one in messages),
        "delayed": sum(bool(DELAYS & one.given.keys()) for one in messages),
        "retries": sum(one.record.reconsume_times > 0 for one in messages),
    }


def key_of(group: Group, by: By) -> object:
    return {
        By.TOPIC: group.topic,
        By.QUEUE: (group.topic, group.queue_id),
        By.TAG: (group.topic, group.tag),
        By.HOUR: group.hour_ms,
        By.HOST: group.host,
    }[by]


def assert_same(group: Group, messages: list[Slow]) -> None:
    expected = slow_group(messages)
    assert {name: getattr(group, name) for name in expected} == expected
    sizes = sorted(one.size for one in messages)
    for percent, found in ((50, group.p50), (99, group.p99)):
        exact = sizes[-(-len(sizes) * percent // 100) - 1]
        assert abs(found - exact) <= 0.07 * exact


def settings_of(store: GoldenStore) -> StoreSettings:
    return StoreSettings.load(store.root, broker_conf(store), store.version, dledger=True)


@pytest.mark.parametrize("name", STORES)
def test_it_counts_what_its_slow_twin_counts(tmp_path: Path, name: str) -> None:
    store = golden(name, tmp_path)
    settings, messages = settings_of(store), list(slow_messages(store.root))
    for by in By:
        expected: dict[object, list[Slow]] = {}
        for one in messages:
            expected.setdefault(one.key(by), []).append(one)
        found = count(settings, by, threads=3)
        assert {key_of(group, by) for group in found.groups} == set(expected)
        for group in found.groups:
            assert_same(group, expected[key_of(group, by)])
        assert found.total is not None
        assert_same(found.total, messages)
        assert list(found.groups) == sorted(
            found.groups, key=(lambda one: one.hour_ms) if by is By.HOUR else (lambda one: -one.bytes)
        )
        assert count(settings, by, threads=1).groups == found.groups
    assert_gaps(found, messages)
    # The last segment isn't full: the log ends before it does.
    assert found.end == messages[-1].offset + messages[-1].size < found.allocated


def assert_gaps(found: Statistics, messages: list[Slow]) -> None:
    steps = [
        (after.record.store_timestamp - before.record.store_timestamp, before, after)
        for before, after in pairwise(messages)
    ]
    forward = sorted((step for step, _, _ in steps if step > 0), reverse=True)
    assert [gap.gap_ms for gap in found.gaps] == forward[:MOST_GAPS]
    by_offset = {after.offset: (step, before.offset) for step, before, after in steps}
    for gap in found.gaps:
        assert (gap.gap_ms, gap.before_physical_offset) == by_offset[gap.after_physical_offset]
        assert gap.after_store_timestamp - gap.before_store_timestamp == gap.gap_ms
    assert found.steps_back == sum(step < 0 for step, _, _ in steps)


def test_only_part_of_it(tmp_path: Path) -> None:
    store = golden("5.3.3-lost-head", tmp_path)
    settings, messages = settings_of(store), list(slow_messages(store.root))
    middle = messages[len(messages) // 2]
    # Also from within a record: those that begin from there on count.
    found = count(settings, span=Span(start=middle.offset - 1)).total
    assert found is not None
    assert_same(found, [one for one in messages if one.offset >= middle.offset])
    part = count(settings, span=Span(end=middle.offset + 1))
    assert part.end == middle.offset + 1
    found = part.total
    assert found is not None
    assert_same(found, [one for one in messages if one.offset <= middle.offset])
    time = middle.record.store_timestamp
    found = count(settings, topic="Orders", span=Span(since=time)).total
    assert found is not None
    orders = [one for one in messages if one.record.topic == b"Orders"]
    assert_same(found, [one for one in orders if one.record.store_timestamp >= time])
    tags = count(settings, By.TAG, topic="Orders", span=Span(until=time)).groups
    before = Counter(one.key(By.TAG) for one in orders if one.record.store_timestamp < time)
    assert {(group.topic, group.tag): group.messages for group in tags} == before
    assert count(settings, topic="nothing").total is None
    assert count(settings, topic="\udcff").total is None, "a name that is no UTF-8, as an argument has it"
    assert count(settings, By.HOST, topic="nothing").groups == ()
    nothing = count(settings, span=Span(start=1 << 60))
    assert (nothing.total, nothing.start, nothing.end) == (None, 1 << 60, 1 << 60)


def test_groups_without_room_share_a_row(tmp_path: Path) -> None:
    store = golden("5.5.0-mixed", tmp_path)
    settings = settings_of(store)
    every = count(settings, By.TAG, threads=1)
    assert every.total is not None
    few = count(settings, By.TAG, threads=1, most_groups=64)
    *named, rest = few.groups
    assert (rest.rest, len(named)) == (True, 63)
    assert rest.messages == sum(group.messages for group in every.groups) - sum(one.messages for one in named)
    assert few.total == every.total
    assert few.to_dict()["groups"][-1]["rest"] is True  # type: ignore[index]


def test_many_groups_make_the_table_grow(tmp_path: Path) -> None:
    data = b""
    for number in range(1000):
        tags = properties.encode({b"TAGS": b"%d" % (number % 300)})
        data += commitlog.encode(
            commitlog.Record(
                b"t%d" % (number % 7),
                b"x",
                tags,
                queue_id=number % 30,
                store_timestamp=number,
                physical_offset=len(data),
            )
        )
    store = write_store(tmp_path, [(0, data)])
    assert len(count(store.settings, By.QUEUE).groups) == 210
    tags = count(store.settings, By.TAG).groups
    assert len(tags) == len({(number % 7, number % 300) for number in range(1000)})
    assert sum(group.messages for group in tags) == 1000


def test_names_are_what_java_reads_and_hosts_are_bytes(tmp_path: Path) -> None:
    data = b""
    for number, topic in enumerate((b"caf\xe9", b"caf\xff", "caf\ufffd".encode(), b"cafe")):
        tags = properties.encode({b"TAGS": (b"\xe9", b"\xff")[number % 2]})
        host = (f"192.0.2.{200 + number}", 1)
        record = commitlog.Record(topic, b"x", tags, born_host=host, physical_offset=len(data))
        data += commitlog.encode(record)
    store = write_store(tmp_path, [(0, data)])
    by = {by: [(key_of(one, by), one.messages) for one in count(store.settings, by).groups] for by in By}
    assert by[By.TOPIC] == [("caf\ufffd", 3), ("cafe", 1)]
    assert by[By.TAG] == [(("caf\ufffd", "\ufffd"), 3), (("cafe", "\ufffd"), 1)]
    assert sorted(by[By.HOST]) == [(f"192.0.2.{host}", 1) for host in range(200, 204)]
    assert count(store.settings, By.TOPIC, topic="caf\ufffd").total.messages == 3  # type: ignore[union-attr]


def test_damage_is_gone_around_and_a_step_back_is_told(tmp_path: Path) -> None:
    data = b""
    for time in (10_000, 20_000, 5_000, 70_000):
        data += commitlog.encode(
            commitlog.Record(b"t", b"body", store_timestamp=time, physical_offset=len(data))
        )
    size = len(data) // 4
    store = write_store(tmp_path, [(0, data)])
    found = count(store.settings)
    assert (found.steps_back, found.most_back_ms, found.gaps[0].gap_ms) == (1, 15_000, 65_000)
    damaged = bytearray(data)
    damaged[5] ^= 0xFF
    store = write_store(tmp_path, [(0, bytes(damaged))])
    found = count(store.settings)
    assert found.total is not None
    assert (found.total.messages, found.total.bytes) == (3, 3 * size)


def test_sizes_and_their_bins() -> None:
    for number in range(BINS):
        low, high = bin_range(number)
        assert bin_of(low) == bin_of(high - 1) == number
        assert high - low <= low / 8
    assert bin_range(0)[0] == 64
    assert all(bin_range(number)[1] == bin_range(number + 1)[0] for number in range(BINS - 1))


def test_the_command(tmp_path: Path) -> None:
    store = golden("5.3.3-lost-head", tmp_path)
    options = [
        "stats",
        str(store.root),
        "--broker-conf",
        str(broker_conf(store)),
        "--rocketmq-version",
        "5.3.3",
    ]
    shown = CliRunner().invoke(cli.app, [*options, "--by", "queue", "--limit", "3"])
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0].endswith(", by queue")
    assert lines[2].split()[0] == "all"
    assert "and 1" in lines[6]
    document = json.loads(
        CliRunner().invoke(cli.app, [*options, "--since", "2001-09-09T01:46:40", "--json"]).stdout
    )
    assert document["exit_code"] == 0
    total = document["total"]
    assert {"p50_size", "p99_size", "messages_per_second", "share"} < set(total)
    assert set(document["groups"][0]) == {*total, "topic"}
    renamed = {
        "most_back": "most_back_ms",
        "basis": "settings",
        "log_times": "log_first_store_timestamp",
    }
    assert {renamed.get(field.name, field.name) for field in fields(Statistics)} <= set(document)
    refused = CliRunner().invoke(cli.app, [*options, "--since", "some day"])
    assert refused.exit_code == 2
    (segment, *_) = sorted((store.root / "commitlog").iterdir())
    segment.with_name("00000000000000000000").write_bytes(segment.read_bytes())
    missing = CliRunner().invoke(cli.app, options)
    assert (missing.exit_code, "missing-segments" in missing.stdout) == (1, True)


_PAGE = Path(__file__).parents[3] / "docs" / "look.md"
_EXAMPLE = re.compile(r"^\$ (reput stats (?!.*--topics).*)\n((?:(?!\$ |```).*\n)*)", re.MULTILINE)


def test_the_examples_of_its_page(tmp_path: Path) -> None:
    store = golden("5.3.3-lost-head", tmp_path)
    places = {"/data/store": str(store.root), "broker.conf": str(broker_conf(store))}
    examples = _EXAMPLE.findall(_PAGE.read_text(encoding="utf-8"))
    assert len(examples) == 1
    for command, shown in examples:
        result = CliRunner().invoke(cli.app, [places.get(word, word) for word in shlex.split(command)[1:]])
        found = result.stdout.replace(str(store.root), "/data/store")
        pages.assert_printed(tuple(shown.splitlines()), found)
