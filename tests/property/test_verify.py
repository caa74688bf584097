"""Damage to queues and index is found, all of it and nothing else: against a slow twin, unit by unit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from reput.format import names
from reput.replay.runner import InlineRunner
from reput.verify.plan import VerifyOptions, prepare
from reput.verify.report import Difference, Report
from reput.verify.run import check
from tests import slow_rebuild, slow_verify
from tests.laid_out import VERSIONS, Log, Spec, lay_out, odd_specs, specs_of_any_time, without_light
from tests.levels import examples
from tests.memory import scratch
from tests.stores import tree_of

CONF = """mappedFileSizeConsumeQueue=100
maxHashSlotNum=7
maxIndexNum=9
enableMultiDispatch=true
enableLmq=true
"""
QUEUE_FILES, INDEX_FILES = "consumequeue/*/*/*", "index/*"


@dataclass(frozen=True)
class Blow:
    """A change to one file: where, as a share of what there is, and how."""

    files: str
    file: float
    how: str
    at: float = 0.0
    byte: int = 0
    unit: int = 20

    def strike(self, root: Path) -> None:
        found = sorted(root.glob(self.files))
        if not found:
            return
        path = found[int(self.file * (len(found) - 1))]
        data = bytearray(path.read_bytes())
        # An index file's interesting bytes are few: its entries are aligned at 20 bytes from 68 on.
        grid = 8 if self.files == INDEX_FILES else 0
        at = max(int(self.at * (len(data) - 1)), 0)
        length = self.unit
        unit = max(at - (at - grid) % length, 0)
        if self.how == "remove":
            path.unlink()
            return
        if self.how == "cut":
            del data[unit:]
        elif self.how == "rename":
            path.rename(path.with_name("1" * 20))
            return
        elif self.how == "byte" and data:
            data[at] ^= self.byte
        elif self.how == "zero":
            data[unit : unit + length] = bytes(len(data[unit : unit + length]))
        elif self.how == "blank":
            data[unit : unit + 20] = b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\0" * 8
        elif self.how == "shift":
            data[unit : len(data) - length] = data[unit + length :]
        elif self.how == "copy":
            data[unit : unit + length] = data[0:length]
        elif self.how == "swap":
            first, second = data[unit : unit + length], data[unit + length : unit + 2 * length]
            if len(second) == length:
                data[unit : unit + 2 * length] = second + first
        path.write_bytes(data)


_shares = st.floats(0, 1, allow_nan=False)
blows = st.one_of(
    st.builds(
        Blow,
        files=st.just(QUEUE_FILES),
        file=_shares,
        how=st.sampled_from(["byte", "byte", "zero", "blank", "shift", "copy", "remove", "cut", "rename"]),
        at=_shares,
        byte=st.integers(1, 255),
    ),
    st.builds(
        Blow,
        files=st.just(INDEX_FILES),
        file=_shares,
        how=st.sampled_from(["byte", "byte", "byte", "zero", "copy"]),
        at=_shares,
        byte=st.integers(1, 255),
    ),
)


def write(root: Path, log: Log, slow: slow_rebuild.Rebuilt, expired: int) -> list[tuple[int, bytes]]:
    """A store as a broker leaves it, without the first ``expired`` segments; what is left of the log."""
    for path, data in slow.queues.items():
        (root / names.CONSUME_QUEUE / path).parent.mkdir(parents=True, exist_ok=True)
        (root / names.CONSUME_QUEUE / path).write_bytes(data)
    (root / names.INDEX).mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(slow.index):
        (root / names.INDEX / f"{20260101000000000 + number}").write_bytes(data)
    left = log.segments[min(expired, len(log.segments) - 1) :]
    (root / names.COMMIT_LOG).mkdir()
    for base, data in left:
        (root / names.COMMIT_LOG / names.offset_name(base)).write_bytes(data)
    (root.parent / "broker.conf").write_text(CONF + f"mappedFileSizeCommitLog={len(log.segments[0][1])}\n")
    return left


def verified(root: Path, version: str, part_bytes: int, batch_bytes: int = 1) -> Report:
    options = VerifyOptions(
        root,
        broker_conf=root.parent / "broker.conf",
        rocketmq_version=version,
        part_bytes=part_bytes,
        batch_bytes=batch_bytes,
    )
    return check(prepare(options), InlineRunner())


def expanded(findings: list[Difference]) -> dict[tuple[str, int, int], str]:
    """Units that differ, one by one; the ranges hold no more than they count."""
    found = {}
    for one in findings:
        if one.area == "queue" and one.kind.endswith(("-unit", "-address")):
            assert one.count == one.end - one.first
            for place in range(one.first, one.end):
                assert found.setdefault((str(one.topic), one.queue_id or 0, place), one.kind) == one.kind
    return found


@settings(max_examples=examples(250), deadline=None)
@given(
    st.lists(specs_of_any_time, min_size=1, max_size=16),
    st.sampled_from(VERSIONS),
    st.integers(0, 2),
    st.lists(blows, max_size=4),
    st.sampled_from([150, 700, 100_000]),
)
@example([Spec(keys=2)] * 9, "5.5.0", 0, [Blow(QUEUE_FILES, 0.0, "shift", 0.5)], 700)
@example([Spec(keys=2)] * 9, "5.5.0", 1, [Blow(QUEUE_FILES, 0.0, "zero", 0.0)], 700)
@example([Spec(keys=2)] * 9, "4.9.7", 0, [Blow(INDEX_FILES, 0.0, "byte", 0.6, 64)], 150)
def test_damage_is_found_as_by_the_slow_twin(
    log: list[Spec], version: str, expired: int, damage: list[Blow], part_bytes: int
) -> None:
    laid = lay_out(without_light(log, version), segment_size=1100, long_topics=not version.startswith("4."))
    rules = slow_rebuild.Settings(version=version, multi_dispatch=True, lmq=True)
    slow = slow_rebuild.rebuild(laid.segments, rules)
    assume(not slow.altered)  # the slow verifier doesn't look for a changed byte in a message's queue
    with scratch() as place:
        root = place / "store"
        # Of a queue that was shifted before the log's start nothing tells any more where its units belong.
        left = write(root, laid, slow, 0 if slow.odd else expired)
        for blow in damage:
            blow.strike(root)
        before = tree_of(root)
        twin = slow_verify.verify(root, left, rules)
        report = verified(root, version, part_bytes)
        assert tree_of(root) == before
        numbers = {str(path): number for number, path in enumerate(sorted((root / names.INDEX).iterdir()))}
    findings = report.findings
    assert expanded(findings) == twin.units
    files = {(one.kind, one.topic, one.queue_id) for one in findings if one.kind.startswith("queue-file")}
    assert files == twin.files
    missing = sum(one.count for one in findings if one.kind == "missing-entry")
    assert missing == twin.missing_keys.total()
    first = {one.first for one in findings if one.kind == "missing-entry"}
    assert first <= {position for position, _ in twin.missing_keys}
    strange = [one for one in findings if one.kind in ("dangling-entry", "index-duplicate")]
    legal = sum(note.count for note in report.notes if note.kind == "indexed-twice")
    assert sum(one.count for one in strange) + legal == twin.entries
    chains = Counter(
        (one.kind, numbers[one.path]) for one in findings if one.kind in CHAINS for _ in range(one.count)
    )
    assert chains == Counter((kind, number) for kind, number, _ in twin.chains)
    assert sum(one.count for one in findings if one.kind == "index-time") == len(twin.times)
    if not damage:
        assert not report.findings
    elif twin != slow_verify.Wrong():
        assert report.findings


CHAINS = ("index-chain", "index-cycle", "index-hash", "index-slot")


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(odd_specs, min_size=1, max_size=16), st.sampled_from([150, 700, 100_000]))
@example([Spec(jump=jump, stray=jump == 40) for jump in (0, 0, 0, 0, -1000, 40, 0, 0, 1, -1, 1)], 700)
@example([*(Spec(jump=jump, stray=jump < 0) for jump in (0, 0, 0, -1, -2)), Spec(jump=-1), Spec()], 150)
@example(
    [*(Spec(jump=jump) for jump in (2, -2)), Spec(topic=1), Spec(topic=1, body=18), Spec(), Spec(jump=1)], 150
)
def test_odd_queues_that_a_broker_wrote_are_sound(log: list[Spec], part_bytes: int) -> None:
    """Holes, repeats, jumps and queues created anew are in the log; the queues are as they have to be.

    A batch is judged by what it shows: what a later one shows changes nothing that is committed, and a repeat
    that opens a batch may look altered, for what came before it in its queue isn't known any more.
    """
    laid = lay_out(log, segment_size=500)
    slow = slow_rebuild.rebuild(laid.segments, slow_rebuild.Settings(multi_dispatch=True, lmq=True))
    odd = {"repeated-queue-offset", "missing-queue-offsets"}
    with scratch() as place:
        write(place / "store", laid, slow, 0)
        whole = verified(place / "store", "5.5.0", part_bytes, 1 << 30)
        batches = None if slow.doubted else verified(place / "store", "5.5.0", part_bytes, 1)
    assert [one for one in whole.findings if one.area != "log"] == []
    assert {one.kind for one in whole.findings} <= odd | ({"altered-message"} if slow.altered else set())
    if batches is not None:
        altered = {one.first for one in batches.findings if one.kind == "altered-message"}
        assert altered <= repeats_that_open(laid, slow_rebuild.Settings(multi_dispatch=True, lmq=True))
        found = [one for one in batches.findings if one.area != "log"]
        assert {one.cause for one in found} == ({"altered-message"} if altered else set())
        assert {one.kind for one in batches.findings if one.area == "log"} <= odd | (
            {"altered-message"} if altered else set()
        )


def repeats_that_open(laid: Log, rules: slow_rebuild.Settings) -> set[int]:
    """Where a queue's first message in a segment, each a batch, has a queueOffset that was there before."""
    found, nexts = set(), dict[tuple[str, int], int]()
    for base, data in laid.segments:
        opened = dict(nexts)
        for one in slow_rebuild.read(base, data, rules):
            queue = one.topic, one.queue_id
            if one.queue_offset < opened.pop(queue, 0):
                found.add(one.position)
            nexts[queue] = max(nexts.get(queue, 0), one.queue_offset + 1)
    return found


def test_a_unit_may_differ_beside_an_altered_message() -> None:
    laid = lay_out([Spec(jump=1, stray=True), Spec(), Spec(jump=1)], segment_size=500)
    slow = slow_rebuild.rebuild(laid.segments, slow_rebuild.Settings(multi_dispatch=True, lmq=True))
    (altered,) = slow.altered
    with scratch() as place:
        write(place / "store", laid, slow, 0)
        Blow(QUEUE_FILES, 0.0, "zero", 0.5).strike(place / "store")
        report = verified(place / "store", "5.5.0", 150)
    assert [one.first for one in report.findings if one.kind == "altered-message"] == [altered]
    (unit,) = [one for one in report.findings if one.kind == "missing-unit"]
    assert (unit.first, unit.cause) == (2, "altered-message")
