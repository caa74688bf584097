"""File and directory names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from reput.format import names


def test_offsets() -> None:
    assert names.offset_name(0) == "00000000000000000000"
    assert names.offset_name(1 << 62) == "04611686018427387904"
    for offset in (0, 6_000_000, (1 << 63) - 1):
        assert names.parse_offset_name(names.offset_name(offset)) == offset


@pytest.mark.parametrize(
    "name",
    ["", "0", "0" * 19, "0" * 21, "-000000000000000001", "0000000000000000000x", "\u0660" * 20, "9" * 20],
)
def test_other_names_are_no_offsets(name: str) -> None:
    assert names.parse_offset_name(name) is None


def local(*moment: int) -> int:
    """A local time in ms since the epoch."""
    return int(time.mktime((*moment, 0, 0, -1))) * 1000


def test_index_names_are_local_times() -> None:
    assert names.index_name(local(2026, 11, 21, 9, 5, 7) + 42) == "20261121090507042"
    assert names.is_index_name("20261121090507042")
    assert not names.is_index_name("2026112109050704")
    assert not names.is_index_name("20261121090507042.tmp")


def test_index_names_increase() -> None:
    at = local(2026, 11, 21, 0, 0, 0)
    first = names.later_index_name(at, None)
    second = names.later_index_name(at, first)
    third = names.later_index_name(at - 5000, second)
    assert first < second < third
    assert [len(name) for name in (first, second, third)] == [17] * 3
    assert names.later_index_name(at + 1000, third) == names.index_name(at + 1000)
    assert names.later_index_name(at, "20261121235959999") == "20261121235960000"


def test_a_queue_has_a_directory(tmp_path: Path) -> None:
    assert names.queue_directory(tmp_path, "T", 3) == tmp_path / "consumequeue" / "T" / "3"
    assert names.batch_queue_directory(tmp_path, "T", 3) == tmp_path / "batchconsumequeue" / "T" / "3"
    assert names.queue_ext_directory(tmp_path, "T", 3) == tmp_path / "consumequeue_ext" / "T" / "3"


@pytest.mark.parametrize(
    "topic", [b"T", b"%RETRY%group", b"...", b".hidden", b"a b", "Thema-\u00e9".encode(), b"x" * 255]
)
def test_topics_that_can_be_directories(topic: bytes) -> None:
    assert names.topic_problem(topic) is None


@pytest.mark.parametrize("topic", [b"", b".", b"..", b"/", b"a/b", b"a\0", b"x" * 256, b"\xff"])
def test_topics_that_cannot(topic: bytes) -> None:
    assert names.topic_problem(topic)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (("订单", 0), ("订书", 0), False),  # three bytes each, which all differ
        (("订单", 0), ("订卒", 0), True),
        (("订单", 0), ("订卖", 1), False),
        (("T", 0), ("T", 4), True),
        (("T", 1), ("T", 1 - (1 << 31)), True),
        (("Orders", 0), ("Ord\ufffdrs", 0), True),
        (("订单", 0), (b"\xe8\xae\x22\xe5\x8d\x95".decode("utf-8", "replace"), 0), True),
        (("订单", 0), (b"\xe8\xae\x22\xe5\x8d\x22".decode("utf-8", "replace"), 0), False),
        (("Ord\ufffdrs", 0), ("Ord\ufffdrs", 0), False),
    ],
)
def test_queues_that_a_byte_tells_apart(one: names.Queue, other: names.Queue, apart: bool) -> None:
    assert names.one_byte_apart(one, other) is apart
