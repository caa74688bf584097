"""What a verification remembers: it never hides what a whole one finds, and reads only what is new."""

from __future__ import annotations

import gzip
import json
import mmap
import os
import random
import shutil
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import reput
from reput.errors import SettingsError
from reput.format import names
from reput.format.indexfile import IndexHeader
from reput.replay.runner import InlineRunner
from reput.scan.rules import Part
from reput.verify import proofs, proven, tasks
from reput.verify.plan import prepare
from reput.verify.proofs import CHANGED, GONE, Proofs, Remembering
from reput.verify.report import LOG, Remembered, Report
from reput.verify.run import check
from reput.verify.units import MODULUS, sums_by
from tests.golden.store import NAMES, GoldenStore
from tests.rebuilds import record_starts
from tests.unit.verify.test_verify import open_golden, options, queue_file

STORE = "5.3.3-mixed"


@pytest.fixture(autouse=True)
def _nothing_is_racy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a test were written just now."""
    monkeypatch.setattr(proofs, "RACY_NS", -(10**18))


def night(
    store: GoldenStore, before: Proofs | None, batch_bytes: int = 1, **how: bool
) -> tuple[Report, Proofs]:
    """A run, and what it leaves, as it comes back from a file."""
    proven = Remembering(before, **how)
    report = check(prepare(options(store, batch_bytes=batch_bytes)), InlineRunner(), proven=proven)
    return report, Proofs.decode(proven.after.encode(), Path("proofs"))


def whole(store: GoldenStore) -> Report:
    return check(prepare(options(store, batch_bytes=1)), InlineRunner())


def facts(report: Report) -> dict[str, object]:
    """What a run says of the store, but for what it remembers."""
    return asdict(replace(report, remembered=None, seconds=0))


def remembered(report: Report) -> Remembered:
    assert report.remembered is not None
    return report.remembered


def segments(store: GoldenStore) -> list[Path]:
    return sorted((store.root / names.COMMIT_LOG).iterdir())


def test_sums_by_key_in_any_order() -> None:
    numbers = np.random.default_rng(1)
    mixed = numbers.integers(0, 1 << 64, 500, np.uint64)
    for keys in (numbers.integers(-1, 4, 500), np.sort(numbers.integers(0, 9, 500)), np.zeros(500, int)):
        expected = {
            key: (int((keys == key).sum()), sum(mixed[keys == key].tolist()) % MODULUS)
            for key in set(keys.tolist())
        }
        assert sums_by(keys, mixed) == expected
    assert sums_by(np.zeros(0, int), mixed[:0]) == {}


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return open_golden(STORE, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_second_night_says_the_same_as_a_whole_run(name: str, tmp_path: Path) -> None:
    store = open_golden(name, tmp_path)
    expected = facts(whole(store))
    first, left = night(store, None)
    second, again = night(store, left)
    for report in (first, second):
        assert facts(report) == expected
    assert remembered(first).skipped == 0
    assert again.segments.keys() == left.segments.keys()
    # Of several segments at a time no more is kept, and notes may be told together.
    wide, of_several = night(store, None, 1 << 30)
    assert wide.findings == first.findings
    for base, proof in of_several.segments.items():
        assert proof == left.segments[base]


def test_an_unchanged_night_reads_the_last_segment_alone(store: GoldenStore) -> None:
    first, left = night(store, None)
    count = len(segments(store))
    size = segments(store)[0].stat().st_size
    log = count * size
    assert remembered(first).bytes_read == log
    second, _ = night(store, left)
    assert remembered(second).skipped == count - 1 > 2
    assert remembered(second).bytes_skipped == (count - 1) * size
    assert remembered(second).bytes_read == size
    assert second.messages == first.messages
    everything, _ = night(store, left, read_all=True)
    assert remembered(everything).skipped == count - 1
    assert remembered(everything).bytes_read > log
    anew, _ = night(store, left, anew=True)
    assert remembered(anew).skipped == 0


def flip(path: Path, at: int) -> None:
    """In its place: another thread may map the file, which is never short."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_bit_in_a_sealed_segment(store: GoldenStore) -> None:
    _, left = night(store, None)
    path = segments(store)[1]
    flip(path, path.stat().st_size // 2)
    expected = whole(store)
    assert expected.findings
    second, then = night(store, left)
    told, *others = second.findings
    assert (told.kind, told.path) == (CHANGED, str(path))
    assert told.first <= int(path.name) + path.stat().st_size // 2 < told.end
    assert others == expected.findings
    assert path.name not in {names.offset_name(base) for base in then.segments}
    # It is told until the bytes are there again, or all is verified again, though the segment is as it was.
    third, then = night(store, then)
    assert third.findings == second.findings
    seen = remembered(third).first_seen
    assert seen == remembered(second).first_seen
    assert len(seen) == len(third.findings)
    fourth, _ = night(store, then, anew=True)
    assert facts(fourth) == facts(expected)


def test_a_segment_that_was_mended_is_sound_again(store: GoldenStore) -> None:
    """What was proven before binds its bytes: where these are there again, nothing is left to be told."""
    first, left = night(store, None)
    path, other = segments(store)[1:3]
    sound = path.read_bytes()
    for damaged in (path, other):
        flip(damaged, len(sound) // 2)
    _, then = night(store, left)
    _, then = night(store, then)
    path.write_bytes(sound)
    mended, then = night(store, then)
    assert [one.path for one in mended.findings if one.kind == CHANGED] == [str(other)]
    assert str(path) not in {one.path for one in mended.findings}
    flip(other, len(sound) // 2)
    mended, then = night(store, then, read_all=True)
    assert facts(mended) == facts(first)
    again, then = night(store, then)
    assert facts(again) == facts(first)
    assert remembered(again).skipped == remembered(mended).skipped + 1 == len(segments(store)) - 1
    assert (then.told, then.lost) == ([], {})


@pytest.mark.parametrize("of", ["queue", "index"])
def test_files_that_changed_while_a_segment_was_another_one(store: GoldenStore, of: str) -> None:
    _, left = night(store, None)
    index = min((store.root / names.INDEX).iterdir())
    flip(*((queue_file(store), 7) if of == "queue" else (index, 40 + 100 * 4 + 20 + 11)))
    kept = {path: path.read_bytes() for path in segments(store)[:2]}
    for path in kept:
        flip(path, 30000)
    _, then = night(store, left)
    for path, data in kept.items():
        path.write_bytes(data)
    expected = facts(whole(store))
    assert expected["findings"]
    for _ in range(2):
        report, then = night(store, then)
        assert facts(report) == expected


def test_a_segment_that_was_sound_with_other_bytes_in_between(store: GoldenStore) -> None:
    """Bytes that no checksum covers turn: what was told of them ends with the first bytes, and no other."""
    _, left = night(store, None)
    path = segments(store)[1]
    sound = path.read_bytes()
    flip(path, 8 + 4 + 4 + 4 - 1)  # the queue id's neighbour: the first message's flag
    second, then = night(store, left)
    assert [one.kind for one in second.findings] == [CHANGED]
    third, then = night(store, then)
    assert [one.kind for one in third.findings] == [CHANGED]
    assert remembered(third).skipped == len(segments(store)) - 1
    flip(path, len(sound) // 2)
    _, then = night(store, then)
    flip(path, len(sound) // 2)
    fifth, then = night(store, then)
    assert {one.kind for one in fifth.findings} == {CHANGED}
    path.write_bytes(sound)
    mended, _ = night(store, then)
    assert not mended.findings


def test_what_1_0_0_told_stays_until_all_is_verified_again(store: GoldenStore) -> None:
    """It kept no digest of what had been proven before, so that nothing says whether that is there again."""
    _, left = night(store, None)
    path = segments(store)[1]
    sound = path.read_bytes()
    flip(path, len(sound) // 2)
    _, then = night(store, left)
    then.lost = {}
    path.write_bytes(sound)
    third, then = night(store, then)
    assert [one.kind for one in third.findings] == [CHANGED]
    flip(path, len(sound) // 2)
    _, then = night(store, then)
    path.write_bytes(sound)
    _, then = night(store, then)
    assert then.told[0] == third.findings[0]
    assert not night(store, then, anew=True)[0].findings


def test_a_bit_that_no_time_tells_is_found_by_its_digest(
    store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, left = night(store, None)
    path = segments(store)[1]
    real = proofs.identity_of
    before = {str(one): real(one) for one in segments(store)}
    flip(path, path.stat().st_size // 2)
    for module in (proofs, proven):  # queue and index files, and segments
        monkeypatch.setattr(module, "identity_of", lambda one: before.get(str(one)) or real(one))
    believed, _ = night(store, left)
    assert not believed.findings
    assert "by size, inode and times" in remembered(believed).text
    read, _ = night(store, left, read_all=True)
    assert read.findings[0].kind == CHANGED


def test_a_segment_that_changes_between_its_scan_and_its_digest(
    store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = segments(store)[2], tasks.sha256_of

    def late(part: Part) -> str:
        if part.path == str(path) and part.start == part.base:
            flip(path, path.stat().st_size // 2)
        return real(part)

    with monkeypatch.context() as patched:
        patched.setattr(tasks, "sha256_of", late)
        first, left = night(store, None)
    assert not first.findings
    expected = facts(whole(store))
    assert expected["findings"]
    for how in ({}, {"read_all": True}):
        assert facts(night(store, left, **how)[0]) == expected


def test_a_touched_segment_is_read_and_no_finding(store: GoldenStore) -> None:
    _, left = night(store, None)
    path = segments(store)[1]
    os.utime(path, (1, 1))
    second, then = night(store, left)
    assert not second.findings
    assert remembered(second).skipped == len(segments(store)) - 1
    third, _ = night(store, then)
    assert remembered(second).bytes_read - remembered(third).bytes_read == path.stat().st_size


@pytest.mark.parametrize("damage", ["bit", "zeroed", "gone", "short"])
def test_a_queue_file(store: GoldenStore, damage: str) -> None:
    _, left = night(store, None)
    path = queue_file(store)
    match damage:
        case "bit":
            flip(path, 7)
        case "zeroed":
            path.write_bytes(bytes(path.stat().st_size))
        case "gone":
            path.unlink()
        case "short":
            path.write_bytes(path.read_bytes()[:-20])
    expected = facts(whole(store))
    second, then = night(store, left)
    assert second.findings
    assert facts(second) == expected
    # It is told again, from what is remembered.
    third, then = night(store, then)
    assert facts(third) == expected
    assert remembered(third).first_seen == remembered(second).first_seen


def test_a_mended_finding_goes_when_it_is_verified_again(store: GoldenStore) -> None:
    path = queue_file(store)
    sound = path.read_bytes()
    flip(path, 7)
    first, left = night(store, None)
    second, left = night(store, left)
    assert facts(first) == facts(second)
    assert second.findings
    assert remembered(second).skipped == len(segments(store)) - 1
    path.write_bytes(sound)
    third, left = night(store, left)
    assert not third.findings
    assert not left.first_seen


@pytest.mark.parametrize("damage", ["entry", "time", "gone", "twice"])
def test_an_index_file(store: GoldenStore, damage: str) -> None:
    _, left = night(store, None)
    path = min((store.root / names.INDEX).iterdir())
    first_entry = 40 + 100 * 4 + 20
    match damage:
        case "entry":
            flip(path, first_entry + 11)
        case "time":
            flip(path, first_entry + 20 + 15)
        case "gone":
            path.unlink()
        case "twice":
            shutil.copy(path, path.with_name("3" + path.name[1:]))
    expected = facts(whole(store))
    assert expected["findings"]
    second, then = night(store, left)
    assert facts(second) == expected
    third, _ = night(store, then)
    assert facts(third) == expected


@pytest.mark.parametrize("how", [{}, {"read_all": True}])
@pytest.mark.parametrize(("file", "place"), [(2, 5), (3, 13)])
def test_a_time_that_entries_count_from(
    store: GoldenStore, file: int, place: int, how: dict[str, bool]
) -> None:
    """Of a file whose own first entry has expired, and of one that no entry binds, before another's first."""
    for path in segments(store)[:3]:
        path.unlink()
    before = sorted((store.root / names.INDEX).iterdir())[2]
    said = replace(IndexHeader.decode(before.read_bytes()), slot_count=0, index_count=1).encode()
    empty = before.with_name(str(int(before.name) + 1))
    empty.write_bytes(said + bytes(before.stat().st_size - len(said)))
    first, left = night(store, None)
    assert not first.findings
    flip(sorted((store.root / names.INDEX).iterdir())[file], place)
    expected = facts(whole(store))
    assert "index-time" in str(expected["findings"])
    assert facts(night(store, left, **how)[0]) == expected


def test_the_head_expires_and_the_log_grows(store: GoldenStore, tmp_path: Path) -> None:
    grown = segments(store)[-1]
    kept = tmp_path / "kept"
    shutil.move(grown, kept)
    _, left = night(store, None)
    shutil.move(kept, grown)
    expected = facts(whole(store))
    second, then = night(store, left)
    assert facts(second) == expected
    assert remembered(second).skipped == len(segments(store)) - 2
    expired = segments(store)[0]
    expired.unlink()
    expected = facts(whole(store))
    third, then = night(store, then)
    assert facts(third) == expected
    assert CHANGED not in {one.kind for one in third.findings}
    assert remembered(third).skipped == len(segments(store)) - 1
    assert int(expired.name) not in then.segments


def test_a_segment_in_the_middle_goes(store: GoldenStore) -> None:
    _, left = night(store, None)
    segments(store)[1].unlink()
    expected = facts(whole(store))
    second, then = night(store, left)
    assert facts(second) == expected
    assert second.findings
    third, _ = night(store, then)
    assert facts(third) == expected


def test_the_end_of_the_log_goes(store: GoldenStore) -> None:
    _, left = night(store, None)
    for path in segments(store)[-2:]:
        path.unlink()
    second, then = night(store, left)
    assert second.findings[0].kind == GONE
    assert second.findings[0].count == 1
    assert facts(whole(store))["findings"] == facts(second)["findings"][1:]  # type: ignore[index]
    third, _ = night(store, then)
    assert third.findings[0].kind == GONE


def test_the_end_of_the_log_comes_back(store: GoldenStore) -> None:
    first, left = night(store, None)
    kept = {path: path.read_bytes() for path in segments(store)[-4:]}
    for path in kept:
        path.unlink()
    _, then = night(store, left)
    back = iter(kept)
    for is_told in (True, True, False):  # the last one wasn't sealed
        path = next(back)
        path.write_bytes(kept[path])
        report, then = night(store, then)
        assert (GONE in {one.kind for one in report.findings}) is is_told
    path = next(back)
    path.write_bytes(kept[path])
    report, then = night(store, then)
    assert facts(report) == facts(first)
    assert not then.told


def test_other_settings_are_another_proof(store: GoldenStore) -> None:
    _, left = night(store, None)
    proven = Remembering(left)
    check(prepare(options(store, index=False)), InlineRunner(), proven=proven)
    assert proven.skipped == 0


def test_another_version_copies_all_files_of_a_store_elsewhere() -> None:
    known = Proofs(queue_files={("T", 0, 0): (100, 'ETag "x"')}, version=reput.__version__)
    again = Proofs.decode(known.encode(), Path("proofs"))
    assert list(again.known_files()) == ["consumequeue/T/0/" + "0" * 20]
    for version in ("0.1", ""):
        other = Proofs(queue_files=known.queue_files, version=version)
        assert Proofs.decode(other.encode(), Path("proofs")).known_files() == {}


def test_a_sealed_segment_that_becomes_the_last_one(store: GoldenStore) -> None:
    _, left = night(store, None)
    segments(store)[-1].unlink()
    path = segments(store)[-1]
    base, sound = int(path.name), path.read_bytes()
    expected = facts(whole(store))
    second, then = night(store, left)
    assert facts(second) == expected
    assert base in then.segments
    data = bytearray(sound)
    starts = [at - base for at in record_starts(store.root, base) if at - base + 88 < len(sound)]
    at = next(at for at in starts if int.from_bytes(data[at + 84 : at + 88], "big") > 10)
    length = int.from_bytes(data[at + 84 : at + 88], "big")
    data[at + 88] ^= 1
    body = bytes(data[at + 88 : at + 88 + length])
    data[at + 8 : at + 12] = (zlib.crc32(body) & 0x7FFFFFFF).to_bytes(4, "big")
    path.write_bytes(data)
    assert facts(whole(store)) == expected  # its CRC is right
    for before in (left, then):
        third, changed = night(store, before)
        assert [(one.kind, one.path) for one in third.findings if one.area == LOG] == [(CHANGED, str(path))]
        fourth, _ = night(store, changed)
        assert fourth.findings == third.findings
    path.write_bytes(sound)
    assert facts(night(store, changed)[0]) == expected


def test_the_log_is_cut_within_a_proven_segment(store: GoldenStore) -> None:
    _, left = night(store, None)
    segments(store)[-1].unlink()
    path = segments(store)[-1]
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    second, then = night(store, left)
    told = second.findings[0]
    assert (told.kind, told.path) == (GONE, str(path))
    assert (told.first, told.end) == (second.end, int(path.name) + len(data))
    third, _ = night(store, then)
    assert [one.kind for one in third.findings].count(GONE) == 1
    path.write_bytes(data)
    fourth, _ = night(store, then)
    assert GONE not in {one.kind for one in fourth.findings}


def test_what_was_told_and_found_stays_over_other_settings(store: GoldenStore) -> None:
    """An upgrade verifies all again; that hides neither what was told nor what has changed since."""
    _, left = night(store, None)
    path = segments(store)[1]
    flip(path, path.stat().st_size // 2)
    left.settings = "another release"
    second, then = night(store, left)
    assert (second.findings[0].kind, second.findings[0].path) == (CHANGED, str(path))
    assert remembered(second).skipped == 0
    assert [one.kind for one in then.told] == [CHANGED]
    then.settings = "the next release"
    third, then = night(store, then)
    assert third.findings == second.findings
    for gone in segments(store)[-2:]:
        gone.unlink()
    then.settings = "one more"
    fourth, _ = night(store, then)
    assert [one.kind for one in fourth.findings[:2]] == [CHANGED, GONE]


def test_a_file_that_was_just_written_is_read_again(
    store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    _, left = night(store, None)
    assert {one.identity for one in left.segments.values()} == {None}
    assert set(left.queue_files.values()) == {None}
    second, _ = night(store, left)
    assert remembered(second).skipped == len(segments(store)) - 1
    assert remembered(second).bytes_read > second.end - second.start


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda _: b"", lambda _: b"{}", lambda data: data[:40] + data[41:]]
)
def test_proofs_that_cannot_be_read(store: GoldenStore, damage: Callable[[bytes], bytes]) -> None:
    _, left = night(store, None)
    with pytest.raises(SettingsError, match="what was proven before can't be read"):
        Proofs.decode(damage(left.encode()), Path("proofs"))


@pytest.mark.parametrize(
    "shape",
    [{"index_files": []}, {"index_files": {"1": {"identity": None, "header": "00"}}}, {"first_seen": "x"}],
    ids=str,
)
def test_proofs_of_another_shape(store: GoldenStore, shape: dict[str, object]) -> None:
    _, left = night(store, None)
    facts = json.loads(gzip.decompress(left.encode())) | shape
    with pytest.raises(SettingsError, match="what was proven before can't be read"):
        Proofs.decode(gzip.compress(json.dumps(facts).encode()), Path("proofs"))


def test_proofs_of_an_earlier_format_are_compared_again(
    store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their headers weren't bound; what was told stays."""
    monkeypatch.setattr(proofs, "FORMAT", 2)
    _, left = night(store, None)
    path = segments(store)[1]
    flip(path, path.stat().st_size // 2)
    told, left = night(store, left)
    monkeypatch.undo()
    known = json.loads(gzip.decompress(left.encode())) | {"format": 2}
    for one in known["index_files"].values():
        del one["before_time"]
    old = Proofs.decode(gzip.compress(json.dumps(known).encode()), Path("proofs"))
    assert (old.place, old.told) == (left.place, left.told)
    report, _ = night(store, old)
    assert remembered(report).skipped == 0
    assert report.findings == told.findings


@pytest.mark.parametrize("seed", range(10))
def test_any_damage_is_found_as_by_a_whole_run(seed: int, tmp_path: Path) -> None:
    """Of what was proven nothing hides it, the first night after it and the second."""
    draw = random.Random(seed)
    name = draw.choice(
        ["5.3.3-mixed", "4.9.7-mixed", "5.5.0-mixed", "5.5.0-lmq", "4.9.7-restart", "5.3.3-crash"]
    )
    store = open_golden(name, tmp_path)
    _, left = night(store, None)
    for _ in range(3):
        directory = store.root / draw.choice([names.CONSUME_QUEUE, names.INDEX, names.COMMIT_LOG])
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        if not files:
            continue
        path = draw.choice(files)
        data = bytearray(path.read_bytes())
        written = len(bytes(data).rstrip(b"\0"))
        at = draw.randrange(max(written, 1))
        match draw.choice(["flip", "unit", "zero", "gone", "same"]):
            case "flip":
                data[at] ^= 1 << draw.randrange(8)
            case "unit":
                data[at - at % 20 : at - at % 20 + 20] = data[:20]
            case "zero":
                data[at : at + 200] = bytes(len(data[at : at + 200]))
            case "gone" if path.parent.name != names.COMMIT_LOG:
                path.unlink()
                continue
        path.write_bytes(data)
        expected = facts(whole(store))
        for _ in range(2):
            report, left = night(store, left)
            found = facts(report)
            kept = [one for one in found["findings"] if one["kind"] not in (CHANGED, GONE)]  # type: ignore[attr-defined]
            assert kept == expected["findings"]
            assert found["notes"] == expected["notes"]
            assert (found["messages"], found["units"]) == (expected["messages"], expected["units"])


def test_a_page_that_a_broker_has_mapped_changes_without_the_times_of_its_file(
    store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives the file its time when a page is first written to, until it is written back."""
    monkeypatch.undo()
    _, left = night(store, None)
    path = queue_file(store)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as page:
        page[0] = page[0]
        an_hour_later = time.time_ns() + 3600 * 10**9
        monkeypatch.setattr(proofs.time, "time_ns", lambda: an_hour_later)
        _, left = night(store, left)
        times = path.stat()
        page[12] ^= 1
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        real = proofs.identity_of
        before = (times.st_size, times.st_mtime_ns, times.st_ctime_ns, times.st_ino)
        monkeypatch.setattr(proofs, "identity_of", lambda one: before if str(one) == str(path) else real(one))
        third, _ = night(store, left)
    assert third.findings
    assert facts(third) == facts(whole(store))
