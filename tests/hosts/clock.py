"""Clocks that are wrong, by libfaketime."""

from __future__ import annotations

import shutil
import subprocess


def why_not() -> str | None:
    """Why no clock can be made wrong here; None if it can."""
    return None if shutil.which("faketime") else "not installed: faketime"


def off_by(offset: str) -> dict[str, str]:
    """The environment of a program whose wall clock is off, by ``+300s``; its steady clock isn't."""
    said = subprocess.run(["faketime", "-m", "-f", offset, "env"], check=True, capture_output=True, text=True)
    found = dict(line.split("=", 1) for line in said.stdout.splitlines() if "=" in line)
    return {
        "LD_PRELOAD": found["LD_PRELOAD"],
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Else it moves the ends of waits by the steady clock, too, and Java never waits.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }
