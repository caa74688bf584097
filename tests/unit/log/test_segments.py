"""Finding the segments of a commit log. What is refused, and what is said of damage: test_bad_input.py."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from reput.config.settings import StoreSettings
from reput.errors import SegmentGoneError, SettingsError, StoreError
from reput.format import commitlog, names
from reput.format.commitlog import Record
from reput.log.segments import (
    Segment,
    discover,
    is_zero,
    likely_end,
    map_segment,
    without_unwritten_end,
    written_ranges,
)
from tests.local import kinds


def make(directory: Path, lengths: dict[int, int]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for base, length in lengths.items():
        (directory / names.offset_name(base)).write_bytes(bytes(length))


def settings(tmp_path: Path, *lines: str) -> StoreSettings:
    conf = tmp_path / "broker.conf"
    conf.write_text("\n".join(lines))
    return StoreSettings.load(tmp_path / "store", conf, None)


def test_segments_in_order(tmp_path: Path) -> None:
    make(tmp_path / "store" / "commitlog", {200: 100, 0: 100, 100: 100})
    log = discover(settings(tmp_path))
    assert [segment.base for segment in log.segments] == [0, 100, 200]
    assert (log.segment_size, log.start, log.end, log.findings) == (100, 0, 300, ())


def test_other_files_are_none(tmp_path: Path) -> None:
    directory = tmp_path / "store" / "commitlog"
    make(directory, {0: 100})
    (directory / names.offset_name(100)).mkdir()
    (directory / "00000000000000000000.bak").write_bytes(b"x")
    (directory / ".nfs0001").write_bytes(b"x")
    assert len(discover(settings(tmp_path)).segments) == 1


def test_what_is_no_file_is_passed_over_and_said(tmp_path: Path) -> None:
    directory = tmp_path / "store" / "commitlog"
    make(directory, {0: 100})
    (directory / names.offset_name(100)).symlink_to("nowhere")
    (directory / names.offset_name(200)).symlink_to(names.offset_name(200))
    os.mkfifo(directory / names.offset_name(300))
    (directory / names.offset_name(400)).symlink_to("/dev/zero")
    log = discover(settings(tmp_path))
    assert [segment.base for segment in log.segments] == [0]
    found = ["a link that leads nowhere", "a link that leads nowhere", "a FIFO", "a device"]
    assert [(one.kind, one.found) for one in log.findings] == [("not-a-file", what) for what in found]


def chained(base: int, count: int, body: bytes = b"b") -> bytes:
    """A segment with whole messages from its start on."""
    data = b""
    for number in range(count):
        place = base + len(data)
        data += commitlog.encode(Record(topic=b"t", body=body, queue_offset=number, physical_offset=place))
    return data.ljust(1000, b"\0")


@pytest.mark.parametrize(
    "name", ["1000", "+1000", "0000000000000001000", "000000000000000001000", "\u0661\u0660\u0660\u0660"]
)
def test_a_second_file_is_left_out_where_its_bytes_say_so(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "store" / "commitlog"
    make(directory, {0: 1000, 1000: 1000, 2000: 1000})
    right = directory / names.offset_name(1000)
    right.write_bytes(chained(1000, 5))
    for other, said in (
        (chained(1000, 5), "with the same bytes"),
        (chained(1000, 3), "differ from byte"),
        (bytes(1000), "and 0 of"),
        (chained(5000, 5), "and 0 of"),
        (chained(1000, 4)[:400], "differ from byte"),
    ):
        (directory / name).write_bytes(other)
        log = discover(settings(tmp_path, "mappedFileSizeCommitLog=1000"))
        assert [segment.path.name for segment in log.segments] == [
            names.offset_name(at) for at in (0, 1000, 2000)
        ]
        (finding,) = log.findings
        assert (finding.kind, finding.path) == ("second-file", str(directory / name))
        assert said in finding.found
        assert str(right) in finding.found


@pytest.mark.parametrize(
    ("there", "other"),
    [
        (chained(1000, 3)[:300], chained(1000, 7)),  # the wrong one has the right name
        (b"y" * 1000, b"x" * 1000),
        (chained(1000, 5), chained(1000, 5, b"c")),
    ],
)
def test_two_files_for_a_place_are_refused_where_it_is_not_proven(
    tmp_path: Path, there: bytes, other: bytes
) -> None:
    directory = tmp_path / "store" / "commitlog"
    make(directory, {0: 1000, 1000: 1000})
    right = directory / names.offset_name(1000)
    right.write_bytes(there.ljust(1000, b"\0"))
    (directory / "1000").write_bytes(other)
    with pytest.raises(StoreError, match="two files are for one place of the commit log") as refused:
        discover(settings(tmp_path))
    assert str(right) in str(refused.value)
    assert str(directory / "1000") in str(refused.value)


def test_a_segment_with_another_name_is_read_in_its_place(tmp_path: Path) -> None:
    directory = tmp_path / "store" / "commitlog"
    make(directory, {0: 1000, 2000: 1000})
    (directory / "1000").write_bytes(bytes(1000))
    (directory / "7").write_bytes(bytes(1000))
    log = discover(settings(tmp_path))
    assert [segment.path.name for segment in log.segments][1] == "1000"
    assert kinds(log.findings) == ["odd-name"]


def test_several_directories(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make(store / "a", {0: 100, 200: 100})
    make(store / "b", {100: 100})
    make(store / "old", {300: 100})
    log = discover(
        settings(
            tmp_path,
            f"storePathRootDir={store}",
            f"storePathCommitLog={store}/a,{store}/b",
            f"readOnlyCommitLogStorePaths={store}/old",
        )
    )
    assert [segment.path.parent.name for segment in log.segments] == ["a", "b", "a", "old"]
    assert log.findings == ()


@pytest.mark.parametrize(
    ("lengths", "conf", "size", "found"),
    [
        ({0: 100}, None, 100, []),
        ({0: 70}, 100, 100, ["segment-length"]),
        ({0: 100, 100: 100, 200: 70}, None, 100, ["segment-length"]),
        ({0: 70, 100: 70}, None, 100, ["segment-length"] * 2),
        ({0: 100, 300: 100, 400: 100}, None, 100, ["missing-segments"]),
        ({0: 100, 300: 100}, 100, 100, ["missing-segments"]),
        ({0: 100, 100: 0}, None, 100, []),
        ({0: 100, 100: 130}, 100, 100, ["segment-length"]),
    ],
)
def test_the_size_that_segments_span(
    tmp_path: Path, lengths: dict[int, int], conf: int | None, size: int, found: list[str]
) -> None:
    make(tmp_path / "store" / "commitlog", lengths)
    log = discover(settings(tmp_path, f"mappedFileSizeCommitLog={conf}" if conf else ""))
    assert log.segment_size == size
    assert kinds(log.findings) == found
    assert all(segment.length <= size for segment in log.segments)


def test_the_segment_at_an_offset(tmp_path: Path) -> None:
    make(tmp_path / "store" / "commitlog", {100: 100, 300: 60})
    log = discover(settings(tmp_path, "mappedFileSizeCommitLog=100"))
    found = {offset: log.segment_at(offset) for offset in (99, 100, 199, 200, 300, 399, 400)}
    assert {offset: None if at is None else at.base for offset, at in found.items()} == {
        99: None,
        100: 100,
        199: 100,
        200: None,
        300: 300,
        399: 300,
        400: None,
    }


def test_a_mapped_segment_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"abc")
    data = map_segment(path, 3)
    assert data.tobytes() == b"abc"
    assert data.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1
    assert len(map_segment(path, 0)) == 0


@pytest.mark.parametrize("length", [3, 1 << 40])
def test_a_segment_that_is_not_what_it_was(tmp_path: Path, length: int) -> None:
    path = tmp_path / "segment"
    if length > 3:
        path.write_bytes(b"abc")
    with pytest.raises(StoreError, match=f"the segment can't be read; expected {length} bytes") as caught:
        map_segment(path, length)
    assert caught.value.path == str(path)


def test_segments_that_were_only_made_ahead(tmp_path: Path) -> None:
    directory = tmp_path / "store" / "commitlog"
    make(directory, {0: 100, 100: 100, 200: 100, 300: 40})
    log = discover(settings(tmp_path, "mappedFileSizeCommitLog=100"))
    assert [finding.kind for finding in log.findings] == ["segment-length"]
    assert [segment.base for segment in without_unwritten_end(log).segments] == [0], "one always stays"
    with (directory / names.offset_name(100)).open("r+b") as file:
        file.seek(99)
        file.write(b"x")
    trimmed = without_unwritten_end(log)
    assert [segment.base for segment in trimmed.segments] == [0, 100]
    assert trimmed.findings == (), "what is said of those left out is left out, too"
    assert (trimmed.segment_size, trimmed.end) == (100, 200)


def test_holes_of_a_segment_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / names.offset_name(0)
    path.write_bytes(b"x" * 4096)
    os.truncate(path, 1 << 20)
    with path.open("r+b") as file:
        file.seek(1 << 19)
        file.write(b"y")
    assert written_ranges(Segment(path, 0, 1 << 20)) == [(0, 4096), (1 << 19, (1 << 19) + 4096)]
    assert written_ranges(Segment(path, 0, 100)) == [(0, 100)]
    with pytest.raises(SegmentGoneError, match="the segment can't be read"):
        written_ranges(Segment(tmp_path / "gone", 0, 100))


def test_what_is_said_of_a_segment_that_stays_stays(tmp_path: Path) -> None:
    directory = tmp_path / "store" / "commitlog"
    make(directory, {0: 100, 300: 100, 400: 100})
    (directory / names.offset_name(300)).write_bytes(b"x" * 120)
    log = without_unwritten_end(discover(settings(tmp_path, "mappedFileSizeCommitLog=100")))
    assert kinds(log.findings) == ["segment-length", "missing-segments"]


@pytest.mark.parametrize("at", [0, 1_048_575, 1_048_576, 2_500_000])
def test_a_single_byte_is_seen(at: int) -> None:
    data = np.zeros(2_500_001, np.uint8)
    assert is_zero(data)
    data[at] = 1
    assert not is_zero(data)


@pytest.mark.parametrize(("length", "written"), [(200, 0), (101, 101)])
def test_one_segment_of_a_broker_with_longer_ones(tmp_path: Path, length: int, written: int) -> None:
    make(tmp_path / "store" / "commitlog", {0: length})
    (tmp_path / "store" / "commitlog" / names.offset_name(0)).write_bytes(
        (b"x" * written).ljust(length, b"\0")
    )
    with pytest.raises(SettingsError, match=f"expected {length}, the length of every segment"):
        discover(settings(tmp_path, "mappedFileSizeCommitLog=100"))


def test_one_segment_with_bytes_behind_its_end(tmp_path: Path) -> None:
    make(tmp_path / "store" / "commitlog", {0: 101})
    log = discover(settings(tmp_path, "mappedFileSizeCommitLog=100"))
    assert (log.segment_size, log.segments[0].length, kinds(log.findings)) == (100, 100, ["segment-length"])


@pytest.mark.parametrize("written", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000, 1 << 22])
def test_about_where_the_last_segment_ends(tmp_path: Path, written: int) -> None:
    directory = tmp_path / "store" / "commitlog"
    make(directory, {0: 1 << 22, 1 << 22: 1 << 22})
    with (directory / names.offset_name(1 << 22)).open("r+b") as file:
        file.write(b"\x01" * written)
    log = discover(settings(tmp_path, f"mappedFileSizeCommitLog={1 << 22}"))
    assert written <= likely_end(log) - (1 << 22) < written + (1 << 20)
