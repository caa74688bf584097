"""How far messages were sent, as it survives kills and isn't taken for another run's."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from reput.errors import OutputError, StoreInUseError
from reput.export.send import Position, Reached

RUN: dict[str, object] = {"reput": "resend 1", "source": "/x", "name_server": "h:1"}


def test_it_goes_on_from_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "position"
    steps = [Reached(100 * n, 100 * n - 50, f"hash{n}", n) for n in range(1, 4)]
    with Position(path, RUN) as position:
        assert position.reached == Reached()
        for step in steps:
            position.reach(step)
    whole = path.read_bytes()
    ends = [number for number, byte in enumerate(whole) if byte == 0x0A]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        with Position(path, RUN) as position:
            lines = sum(end < cut for end in ends)
            expected = steps[lines - 2] if lines > 1 else Reached()
            assert position.reached == expected
            position.reach(Reached(7, 6, "more", 5, 2))
        with Position(path, RUN) as position:
            assert position.reached == Reached(7, 6, "more", 5, 2)


def test_a_position_of_a_version_that_did_not_count_damage(tmp_path: Path) -> None:
    reached = asdict(Reached(7, 6, "more", 5))
    del reached["damage"]
    path = tmp_path / "position"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (RUN, reached)))
    with Position(path, RUN) as position:
        assert position.reached == Reached(7, 6, "more", 5)


def test_a_run_that_sent_nothing_leaves_nothing(tmp_path: Path) -> None:
    with Position(tmp_path / "position", RUN):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [{"source": "/y"}, {"name_server": "other:1"}])
def test_another_run_has_another_position(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "position"
    with Position(path, RUN) as position:
        position.reach(Reached(1, 0, "h", 1))
    before = path.read_bytes()
    with pytest.raises(OutputError, match=next(iter(change))), Position(path, RUN | change):
        pass
    assert path.read_bytes() == before
    # A dry run without a name server looks at any.
    with Position(path, {"source": "/x"}) as position:
        assert position.reached.sent == 1


@pytest.mark.parametrize("data", [b"mine", b"mine\n", b"[]\n[]\n", b'{"topic": "t"}\n', b"\xff\n"])
def test_a_file_of_another_sort_is_left_alone(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "position"
    path.write_bytes(data)
    with pytest.raises(OutputError), Position(path, RUN):
        pass
    assert path.read_bytes() == data


def test_two_runs_at_once(tmp_path: Path) -> None:
    path = tmp_path / "position"
    with Position(path, RUN) as first:
        for _ in range(2):
            with pytest.raises(StoreInUseError), Position(path, RUN):
                pass
        first.reach(Reached(7, 6, "more", 5, 2, 1))
    with Position(path, RUN) as position:
        assert position.reached == Reached(7, 6, "more", 5, 2, 1), "the second has not removed it"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError), Position(tmp_path / "no" / "position", RUN):
        pass
