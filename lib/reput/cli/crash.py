"""How a command ends when it fails outside of what it reports by itself: while it is loaded, for instance.

Never with exit code 1, which says that the work was done and has findings.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import suppress
from typing import TextIO

from reput.unforeseen import unforeseen
from reput.words import SCHEMA_VERSION, visible

REFUSED = 2
INTERRUPTED = 130
_NO_WORDS = (
    f'{{"schema_version": {SCHEMA_VERSION}, "exit_code": 2, "error": "it failed, and can\'t say why"}}'
)


def ended_by(error: BaseException) -> int:
    """Say why a command ends; its exit code."""
    if isinstance(error, KeyboardInterrupt):
        _say("reput: interrupted", sys.stderr)
        return INTERRUPTED
    try:
        failure = unforeseen(error)
        as_json, text = (
            json.dumps({"schema_version": SCHEMA_VERSION, **failure.document()}),
            visible(str(failure)),
        )
    except Exception:  # noqa: BLE001 - what memory is left may not do for more words
        as_json, text = _NO_WORDS, "it failed, and can't say why: it has too little memory, or a bug"
    if "--json" in sys.argv:
        _say(as_json, sys.stdout)
    _say(f"reput: {text}", sys.stderr)
    return REFUSED


def _say(text: str, stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        print(text, file=stream, flush=True)
