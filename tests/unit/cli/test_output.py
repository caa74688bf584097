"""What commands print, and how."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reput.cli import output
from reput.cli.output import ProgressDisplay, inline, printed, summary_lines, told
from reput.job.summary import Summary


def test_what_would_steer_the_terminal_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    printed("topic \x1b[31mred\x07 \x9b0m", "a\tb")
    told("topic \r\x1b]0;title\x07")
    shown = capsys.readouterr()
    assert shown.out == "topic \\x1b[31mred\\x07 \\x9b0m\na\tb\n"
    assert shown.err == "reput: topic \\r\\x1b]0;title\\x07\n"


def test_a_text_of_a_store_stays_in_its_line() -> None:
    assert inline("a\nb\tc\r\x1b\x85\u2028d标é") == "a\\nb\\tc\\r\\x1b\\x85\\u2028d标é"


@given(st.text(st.characters(categories=["Cc", "Cf", "Zl", "Zp", "Cs", "L", "Mn", "So", "Zs", "Co"])))
@example("or\u202eders\u2066 \u200b\ufeff\U000e0041\ud800 標é 🚀")
def test_what_cannot_be_seen_is_shown_and_all_else_is_as_it_was(text: str) -> None:
    shown = inline(text)
    unseen = {
        character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs")
    }
    assert not unseen & set(shown)
    for character in unseen:
        text = text.replace(character, character.encode("unicode_escape").decode())
    assert shown == text
    # JSON is ASCII, and stays what it was.
    assert json.loads(inline(json.dumps([text]))) == [text]


def test_lines_stay_lines_and_bidirectional_overrides_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    printed("a\nb\u202ec\u2028d")
    assert capsys.readouterr().out == "a\nb\\u202ec\\u2028d\n"


def test_what_was_salvaged_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = Summary(str(tmp_path), str(tmp_path / "out"), in_place=False, rocketmq_version="5.5.0")
    printed(*summary_lines(replace(plain, salvaged={"kept": 1, "filled": 2000, "hidden": 0})))
    assert (
        "  salvaged   1 damaged range kept in lost-and-found, 2,000 places of lost messages filled: "
        "the ledger lists them\n"
    ) in capsys.readouterr().out
    printed(*summary_lines(replace(plain, salvaged={"kept": 0, "filled": 0, "hidden": 0})))
    assert "  salvaged " not in capsys.readouterr().out


def test_progress_tells_what_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([100.0, 101.0, 111.0, 121.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(now))
    display = ProgressDisplay()
    display.update(0, 0, 40 << 20)
    display.update(1 << 20, 7, 40 << 20)
    display.update(2 << 20, 9, 0)
    said = capsys.readouterr().err
    assert "1.0 MiB of 40.0 MiB, 7 messages" in said
    assert " min left" in said
    assert "2.0 MiB, 9 messages" in said
    assert "of 0 bytes" not in said


def test_a_few_bytes_are_no_rate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 101.0, 111.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(now))
    display = ProgressDisplay()
    display.update(0, 0, 4 << 20)
    display.update(180, 1, 4 << 20)
    said = capsys.readouterr().err
    assert said.endswith("180 bytes of 4.0 MiB, 1 message\n")


@pytest.mark.parametrize("told", [True, False])
def test_each_phase_has_a_speed_of_its_own(
    told: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A phase begins where it is named, or where the count begins anew."""
    now = iter([0.0, 1.0, 11.0, 1000.0, 1010.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(now))
    display = ProgressDisplay()
    display.update(0, 0, 40 << 20)
    display.update(30 << 20, 7, 40 << 20)
    if told:
        display.say("verifying")
    display.update(0, 0, 40 << 20)
    display.update(10 << 20, 3, 40 << 20)
    first, *_, second = capsys.readouterr().err.splitlines()
    assert "30.0 MiB of 40.0 MiB, 7 messages, 3.0 MiB/s, 3.3 s left" in first
    assert "10.0 MiB of 40.0 MiB, 3 messages, 1.0 MiB/s, 30.0 s left" in second
