"""How a command's process begins before it is loaded, and ends where it fails outside of what it reports.

Never with exit code 1, which says that the work was done and has findings.
"""

from __future__ import annotations

import gc
import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from reput.spark import ahead
from reput.unforeseen import unforeseen
from reput.words import SCHEMA_VERSION, visible

REFUSED = 2
INTERRUPTED = 130
#: A command whose starter has ended has so long to remove what is temporary.
GRACE_SECONDS = 10.0
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


def begin_early() -> None:
    """Start the JVM of the command that this process is, while the command loads."""
    _open_streams()
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    # Python makes the first of the two absolute, and not the second.
    is_script = main is not None and Path(main).name == "reput" and Path(sys.argv[0]).absolute() == Path(main)
    if is_script or sys.orig_argv[1:3] == ["-m", "reput.cli"]:
        # Loading leaves hardly any garbage, and the collector would look for it 250 times.
        gc.set_threshold(100_000)
        ahead.is_command = True
        ahead.begin(sys.argv[1:])


def with_deep_stack(call: Callable[[list[str] | None], object], arguments: list[str] | None) -> None:
    """Call it where Python has room for the frames of many calls within each other.

    CPython keeps frames in chunks of 16 KiB, and maps and unmaps one at each call and return across an edge:
    ten thousand times, where the imports of numpy and numba happen to stand at one. A frame of a
    megabyte gets a chunk of two, and those above it the rest (``push_chunk`` in CPython 3.11's pystate.c).
    """
    call(arguments)


with_deep_stack.__code__ = with_deep_stack.__code__.replace(co_stacksize=(1 << 20) // 8)


def _open_streams() -> None:
    """Have closed streams go nowhere: else a file gets the number of one, and with it what is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
