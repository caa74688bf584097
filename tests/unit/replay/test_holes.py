"""A part of a segment that nothing was written to comes to the same, read or not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from reput.replay import part_result
from reput.replay.part_result import pass_over
from reput.scan.rules import Part
from reput.verify.plan import VerifyOptions, prepare
from tests.rebuilds import broker_conf, golden

SIZE, PART = 1 << 20, 1 << 16


@pytest.mark.parametrize("at", [None, PART, PART + 3, 2 * PART - 1, 2 * PART + 3, 2 * PART + 9, SIZE - 1])
def test_a_hole(at: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = golden("5.3.3-tiny", tmp_path)
    asked = VerifyOptions(store.root, broker_conf=broker_conf(store), rocketmq_version=store.version)
    target = prepare(asked).target()
    segment = tmp_path / "00000000000000000000"
    with segment.open("wb") as file:
        file.truncate(SIZE)
        if at is not None:
            file.seek(at)
            file.write(b"\x01")

    def of_parts() -> list[object]:
        found: list[object] = []
        for start in range(PART, SIZE, PART):
            part = Part(str(segment), 0, SIZE, SIZE, start, start + PART, exact=False, last=True)
            result = pass_over(target, part, lambda *_: None)
            assert result.part is part
            found.append((dataclasses.asdict(result.outcome), result.messages, result.queues.topics))
        return found

    looked = of_parts()
    monkeypatch.setattr(part_result, "_is_hole", lambda _part: False)
    assert looked == of_parts()


def test_only_parts_without_a_byte_are_left_out(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000"
    with segment.open("wb") as file:
        file.truncate(SIZE)
        file.seek(2 * PART)
        file.write(b"\x01")
    part = Part(str(segment), 0, SIZE, SIZE, 0, PART, exact=False, last=True)
    moved = [dataclasses.replace(part, start=at, end=at + PART) for at in range(0, SIZE, PART)]
    found = [part_result._is_hole(one) for one in moved]
    assert not found[1], "a frame may begin in its last bytes"
    assert not found[2]
    assert not part_result._is_hole(dataclasses.replace(part, exact=True))
    if not any(found):
        pytest.skip("this file system knows no holes")
    assert found[0]
    assert all(found[3:])
