"""What commands print, and how."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reput.cli import output
from reput.cli.output import ProgressDisplay, TextOutput, inline, printed, told
from reput.job.summary import nothing_followed
from reput.settings import StoreSettings


def test_what_would_steer_the_terminal_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    printed("topic \x1b[31mred\x07 \x9b0m", "a\tb")
    told("topic \r\x1b]0;title\x07")
    shown = capsys.readouterr()
    assert shown.out == "topic \\x1b[31mred\\x07 \\x9b0m\na\tb\n"
    assert shown.err == "reput: topic \\r\\x1b]0;title\\x07\n"


def test_a_text_of_a_store_stays_in_its_line() -> None:
    assert inline("a\nb\tc\r\x1b\x85\u2028d标é") == "a\\nb\\tc\\r\\x1b\\x85\\u2028d标é"


def test_what_was_salvaged_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = nothing_followed(StoreSettings.load(tmp_path, None, None), tmp_path / "out", 1.0)
    TextOutput().summary(replace(plain, salvaged={"kept": 1, "filled": 2000, "hidden": 0}))
    assert (
        "  salvaged   1 damaged range kept in lost-and-found, 2,000 places of lost messages filled: "
        "the ledger lists them\n"
    ) in capsys.readouterr().out
    TextOutput().summary(replace(plain, salvaged={"kept": 0, "filled": 0, "hidden": 0}))
    assert "  salvaged " not in capsys.readouterr().out


def test_progress_tells_what_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([100.0, 101.0, 111.0, 121.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(now))
    display = ProgressDisplay()
    display.update(0, 0, 4096)
    display.update(1024, 7, 4096)
    display.update(2048, 9, 0)
    said = capsys.readouterr().err
    assert "1.0 KiB of 4.0 KiB, 7 messages" in said
    assert " s left" in said
    assert "2.0 KiB, 9 messages" in said
    assert "of 0 bytes" not in said
