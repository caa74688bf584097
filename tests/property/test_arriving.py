"""A segment elsewhere is scanned as one here, whatever of it has come; nothing else of it is looked at."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.config.settings import StoreSettings
from reput.remote.client import RemoteFile
from reput.remote.segment import RemoteSegment
from reput.remote.store import RemoteStore
from reput.scan import output
from reput.scan.frames import FrameWalk, frames, has_stored_crc
from reput.scan.output import Status
from reput.scan.part import PartOutcome, missing_range, scan_part
from reput.scan.rules import Part
from reput.scan.rules import rules as rules_of
from reput.scan.table import QueueTable
from tests.levels import examples
from tests.property.logs import segments
from tests.property.test_scan import columns, queues, topics

SETTINGS = StoreSettings.load(Path("store"), None, "5.3.3")
ROOT = Path("/reput-remote/store")


class Forgetful(RemoteSegment):
    """Gives memory back at once, and byte by byte; what was in it is there no more."""

    def passed(self, position: int) -> None:
        if self._fetched and position > self._fetched[0][0]:
            self._let_go(self._fetched[0][0], position)

    def _let_go(self, start: int, stop: int) -> None:
        self._written[start:stop] = np.random.default_rng(5).integers(0, 256, stop - start, np.uint8)
        self._fetched = [(max(begin, stop), end) for begin, end in self._fetched if end > stop]


class Client:
    """Has one file, and counts what is asked of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []
        self.is_wrong = False  # what is read ahead may never be waited for

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        self.is_wrong |= not 0 <= start < stop <= file.size
        self.asked.append((start, stop))
        return self.data[start:stop]


def remote_segment(client: Client) -> RemoteSegment:
    """A segment of which nothing has come; in place of what isn't there stands what would show in a scan."""
    store = RemoteStore("s3://b/s", ROOT, (RemoteFile("commitlog/0", len(client.data), ""),))
    with patch("reput.remote.segment.client_of", return_value=client):
        segment = Forgetful(store, ROOT / "commitlog/0", len(client.data))
    segment._written[:] = np.random.default_rng(7).integers(0, 256, len(client.data), np.uint8)
    return segment


def scanned(part: Part, data: np.ndarray, arriving: RemoteSegment | None) -> list[object]:
    rules = rules_of(SETTINGS)._replace(largest_record=1 << 12)
    out, outcome, table = output.output(), PartOutcome(), QueueTable()
    found: list[object] = []
    rows: dict[str, list[int]] = {}
    for chunk in scan_part(part, data, rules, table, out, outcome, arriving):
        for name, values in columns(chunk).items():
            # Remarks come to the outcome, too, whether or not there is a chunk.
            if name != "counts" and not name.startswith("remark"):
                rows.setdefault(name, []).extend(values)
    found += [rows, queues(table), topics(table), outcome]
    found += [out.counts[number] for number in (output.MESSAGES, output.BYTES, output.LAST_TIMESTAMP)]
    return found


@settings(max_examples=examples(400), deadline=None)
@given(
    segments(damaged=True, any_time=True),
    st.integers(150, 3000),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.booleans(),
    st.booleans(),
)
def test_what_arrives_is_scanned_as_what_is_there(
    segment: tuple[int, np.ndarray], length: int, cut: tuple[float, float], exact: bool, last: bool
) -> None:
    base, data = segment
    start, end = sorted(int(one * len(data)) for one in cut)
    part = Part("segment", base, len(data), len(data), base + start, base + end, exact, last)
    client = Client(data.tobytes())
    with (
        patch("reput.remote.segment.RANGE", length),
        patch("reput.scan.part._SEARCHED", length),
        patch("reput.scan.part._HEAD", 256),
    ):
        arriving = remote_segment(client)
        assert scanned(part, arriving.data, arriving) == scanned(part, data, None)
        arriving.fetch(0, len(data))
    assert not client.is_wrong


@settings(max_examples=examples(300), deadline=None)
@given(
    segments(damaged=True, any_time=True),
    st.integers(150, 3000),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.integers(300, 5000),
    st.booleans(),
)
def test_what_arrives_is_walked_over_as_what_is_there(
    segment: tuple[int, np.ndarray], length: int, cut: tuple[float, float], block: int, last: bool
) -> None:
    base, data = segment
    start, end = sorted(int(one * len(data)) for one in cut)
    part = Part("segment", base, len(data), len(data), base, base + end, True, last)
    client = Client(data.tobytes())
    with (
        patch("reput.remote.segment.RANGE", length),
        patch("reput.scan.part._SEARCHED", length),
        patch("reput.scan.part._HEAD", 256),
    ):
        arriving = remote_segment(client)
        assert walked(part, arriving.data, arriving, start, block) == walked(part, data, None, start, block)
        arriving.fetch(0, len(data))
    assert not client.is_wrong


def walked(
    part: Part, data: np.ndarray, arriving: RemoteSegment | None, start: int, block: int
) -> list[object]:
    found: list[object] = []

    def skipped(status: Status, position: int, end: int, outcome: str) -> None:
        # What is said of damage is there while it is said.
        found.append(missing_range(part, data, part.base + position, part.base + end, status, outcome))

    going = FrameWalk(
        data,
        part.base,
        part.segment_size,
        part.end - part.base,
        last=part.last,
        topic_length_v2=True,
        is_whole=lambda position: has_stored_crc(data.data, position),
        largest_record=1 << 12,
        arriving=arriving,
        skipped=skipped,
    )
    going.advance(start)
    found += [going.position, going.end]
    out = frames(16)
    for rows in going.blocks(part.end - part.base, out, block):
        found.append([getattr(out, name)[:rows].tolist() for name in ("position", "size", "body_length")])
        # What a block's records lead to is there while it is looked at.
        for at, size in zip(out.position[:rows].tolist(), out.size[:rows].tolist(), strict=True):
            found.append(data[at : at + size].tobytes())
    return [*found, going.position, going.end, going.last_record, going.timestamp]


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=8))
def test_ranges_come_once(length: int, asked: list[tuple[int, int]]) -> None:
    data = bytes(np.random.default_rng(1).integers(0, 256, 250, np.uint8))
    client = Client(data)
    with patch("reput.remote.segment.RANGE", length):
        segment = remote_segment(client)
        for one, other in asked:
            start, stop = min(one, other), max(one, other)
            segment.fetch(start, stop)
            assert segment.data[start:stop].tobytes() == data[start:stop]
            there = segment.until(start, other)
            assert segment.data[start:there].tobytes() == data[start:there]
            assert there >= min(other, start + 1, len(data))
        segment.fetch(0, len(data))
    assert not client.is_wrong
    assert sum(stop - start for start, stop in client.asked) == len(
        {at for start, stop in client.asked for at in range(start, stop)}
    )
    assert all(stop - start <= length for start, stop in client.asked)
