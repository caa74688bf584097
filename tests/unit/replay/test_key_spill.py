"""Index keys in scratch files, and their way from there into index files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.errors import OutputError
from reput.format.indexfile import IndexHeader, file_length
from reput.output import index_files
from reput.output.index_files import IndexTask, message_of_key
from reput.replay.spills import Spill, SpillWriter
from reput.scan import output
from tests import slow_rebuild
from tests.levels import examples
from tests.memory import scratch

Row = tuple[int, int, list[int]]


def spilled(path: Path, chunks: list[list[Row]], *, for_others: bool = False) -> Spill | None:
    writer = SpillWriter(path, for_others=for_others)
    out = output.output()
    for rows in chunks:
        keys = [key for row in rows for key in row[2]]
        out.row_position[: len(rows)] = [row[0] for row in rows]
        out.row_timestamp[: len(rows)] = [row[1] for row in rows]
        out.row_keys[: len(rows)] = [len(row[2]) for row in rows]
        out.key_hash[: len(keys)] = keys
        out.counts[output.ROWS], out.counts[output.KEYS] = len(rows), len(keys)
        writer.add(out)
    return writer.close()


def test_what_was_spilled_is_read_back(tmp_path: Path) -> None:
    first, second = [(1, 10, [5, 6]), (2, 20, [7])], [(3, 30, [8])]
    spill = spilled(tmp_path / "keys", [first, [], second])
    assert spill == Spill(str(tmp_path / "keys"), 4)
    chunks = [
        (rows.position.tolist(), rows.timestamp.tolist(), rows.keys.tolist(), rows.key_hash.tolist())
        for rows in spill.chunks()
    ]
    assert chunks == [([1, 2], [10, 20], [2, 1], [5, 6, 7]), ([3], [30], [1], [8])]


def test_without_keys_there_is_no_file(tmp_path: Path) -> None:
    assert spilled(tmp_path / "keys", [[], []]) is None
    assert not list(tmp_path.iterdir())


def test_the_message_of_a_key(tmp_path: Path) -> None:
    one = spilled(tmp_path / "1", [[(1, 10, [5, 6])], [(2, 20, [7])]])
    two = spilled(tmp_path / "2", [[(3, 30, [8, 9])]])
    assert one is not None
    assert two is not None
    found = [message_of_key((one, two), key) for key in range(5)]
    assert found == [(1, 10), (1, 10), (2, 20), (3, 30), (3, 30)]
    with pytest.raises(OutputError, match="can't be read back; expected 6 keys"):
        message_of_key((one, two), 5)


@pytest.mark.parametrize("at", range(0, 96, 5))
def test_what_other_hosts_read_is_what_was_written(tmp_path: Path, at: int) -> None:
    """Harm is seen in the chunk that is read, also by who stops there."""
    spill = spilled(tmp_path / "keys", [[(1, 10, [5, 6])], [(2, 20, [7])]], for_others=True)
    assert spill is not None
    path = Path(spill.path)
    written = path.read_bytes()
    first = 3 * 8 + 20 + 8
    assert len(written) == 2 * first - 4
    path.write_bytes(written[:at] + bytes([written[at] ^ 0x10]) + written[at + 1 :])
    with pytest.raises(OutputError, match="can't be read back"):
        message_of_key((spill,), 0 if at < first else 2)
    path.write_bytes(written[:at])
    with pytest.raises(OutputError, match="can't be read back"):
        message_of_key((spill,), 0 if at < first else 2)


rows_of_a_part = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), max_size=6)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(rows_of_a_part, min_size=1, max_size=5), st.integers(3, 12), st.data())
def test_tasks_build_the_files_that_one_key_after_the_other_would(
    parts: list[list[list[int]]], entries: int, data: st.DataObject
) -> None:
    """Whatever the parts, and however many rounds of tasks a file takes."""
    slots = 5
    position, spills, slow = (
        0,
        [],
        [slow_rebuild.IndexFile(slow_rebuild.Settings(slots=slots, entries=entries))],
    )
    with scratch() as place:
        for number, part in enumerate(parts):
            rows: list[Row] = []
            for keys in part:
                position += 100
                rows.append((position, 1_000_000 + position * 37, keys))
                for key in keys:
                    if slow[-1].is_full:
                        before = slow[-1]
                        slow.append(
                            slow_rebuild.IndexFile(
                                before.settings,
                                before.end_time,
                                before.end_time,
                                before.end_offset,
                                before.end_offset,
                            )
                        )
                    _put(slow[-1], key, rows[-1])
            cut = data.draw(st.integers(0, len(rows)))
            spill = spilled(place / str(number), [rows[:cut], rows[cut:]])
            if spill is not None:
                spills.append(spill)
        total = sum(spill.keys for spill in spills)
        settings = SimpleNamespace(
            max_hash_slot_num=slots, max_index_num=entries, dialect=SimpleNamespace(counts_keys=False)
        )
        target: Any = SimpleNamespace(settings=settings, owner=None, flush_in_tasks=False)
        header: IndexHeader | None = IndexHeader()
        first, files = 0, 0
        while first < total:
            room = entries - (header.index_count if header else 1)
            keys = min(room, total - first, data.draw(st.integers(1, 8)))
            task = IndexTask(place / f"index{files}", header, first, keys, tuple(spills))
            done = index_files.build(target, task)
            first += keys
            header = done
            if done.index_count >= entries:
                header, files = None, files + 1
        for number, file in enumerate(slow):
            path = place / f"index{number}"
            if file.entries:
                assert path.read_bytes() == file.content()
                assert path.stat().st_size == file_length(slots, entries)


def _put(file: slow_rebuild.IndexFile, key: int, row: Row) -> None:
    """A key by its hash."""
    message = slow_rebuild.Message(row[0], 100, "T", 0, 0, 0, row[1], {})
    file.put_hash(key, message)


def test_hashes_are_kept_as_they_are(tmp_path: Path) -> None:
    spill = spilled(tmp_path / "keys", [[(1 << 40, 1 << 41, [2**31 - 1, 0])]])
    assert spill is not None
    (rows,) = spill.chunks()
    assert rows.key_hash.dtype == np.int32
    assert rows.key_hash.tolist() == [2**31 - 1, 0]
