"""What lies in a directory, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.store.listing import entries_in, names_in, names_seen, queues_in


def test_names_are_sorted_and_none_where_there_is_no_directory(tmp_path: Path) -> None:
    for name in ("b", "a", "10", "9"):
        (tmp_path / name).touch()
    assert names_in(tmp_path) == ["10", "9", "a", "b"]
    assert [entry.path for entry in entries_in(tmp_path)][2:] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert len(names_in(tmp_path, 3)) == 3
    assert names_in(tmp_path / "none") == names_in(tmp_path / "a") == []


def test_a_link_to_itself_is_no_directory(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    assert names_in(link) == []


def test_what_cannot_be_read_is_told_or_passed_over(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 300)
    with pytest.raises(OSError, match="too long") as raised:
        names_in(long)
    assert raised.value.filename == str(long)
    assert names_seen(long) == []


def test_queues_are_those_that_a_broker_takes_for_some(tmp_path: Path) -> None:
    for place in ("T/10", "T/9", "T/-1", "T/x", "A/0", "empty"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "T" / "3").touch()
    (tmp_path / "file").touch()
    assert list(queues_in(tmp_path)) == [
        (topic, queue_id, str(tmp_path / topic / str(queue_id)))
        for topic, queue_id in (("A", 0), ("T", -1), ("T", 10), ("T", 9))
    ]
    assert list(queues_in(tmp_path / "none")) == []
